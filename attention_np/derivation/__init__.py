"""Reads, executes and verifies derivation pages: Markdown with ordinary LaTeX.

    from attention_np.derivation import read_pages, verify

    report = verify(read_pages(["derivations"]), sources=["attention_np/softmax.py"])
    print(report)

Knows nothing of attention: ops are handed in by the caller. The language of the pages is described in
``GRAMMAR.md``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

MODULES = {  # imported at their first use: whoever reads the header of a page needs no grammar
    "Fault": "errors",
    "FieldRecord": "operators",
    "Page": "page",
    "PageCheck": "check",
    "Record": "record",
    "Verification": "verifying",
    "read_page": "page",
    "read_pages": "verifying",
    "verify": "verifying",
    "verify_against_op": "verifying",
}

if TYPE_CHECKING:
    from attention_np.derivation.check import PageCheck as PageCheck
    from attention_np.derivation.errors import Fault as Fault
    from attention_np.derivation.operators import FieldRecord as FieldRecord
    from attention_np.derivation.page import Page as Page
    from attention_np.derivation.page import read_page as read_page
    from attention_np.derivation.record import Record as Record
    from attention_np.derivation.verifying import Verification as Verification
    from attention_np.derivation.verifying import read_pages as read_pages
    from attention_np.derivation.verifying import verify as verify
    from attention_np.derivation.verifying import verify_against_op as verify_against_op
else:
    __all__ = [*MODULES]

    def __getattr__(name: str) -> Any:
        if name not in MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
