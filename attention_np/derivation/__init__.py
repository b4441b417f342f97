"""Reads, executes and verifies derivation pages: Markdown with ordinary LaTeX.

    from attention_np.derivation import read_pages, verify

    report = verify(read_pages(["derivations"]), sources=["attention_np/softmax.py"])
    print(report)

Knows nothing of attention: ops are handed in by the caller. The language of the pages is described in
``GRAMMAR.md``.
"""

from attention_np.derivation.check import PageCheck
from attention_np.derivation.errors import Fault
from attention_np.derivation.operators import FieldRecord
from attention_np.derivation.page import Page, read_page
from attention_np.derivation.record import Record
from attention_np.derivation.verify import Verification, read_pages, verify, verify_against_op

__all__ = [
    "Fault",
    "FieldRecord",
    "Page",
    "PageCheck",
    "Record",
    "Verification",
    "read_page",
    "read_pages",
    "verify",
    "verify_against_op",
]
