"""The page of a trace is named where its reader has it."""

import sys

import pytest
from helpers import Patch

from attention_np import trace
from attention_np._lib import pages

from .traced import SENTENCE


def test_the_page_is_named_where_its_reader_has_it(monkeypatch: Patch) -> None:
    assert " derivations/dot_product.md, by " in trace.dot_product("a b").text(width=200)
    installed = pages.PACKAGE / "derivations"
    monkeypatch.setattr(pages, "PAGES", installed)
    assert f" {installed / 'dot_product.md'}, by " in trace.dot_product("a b").text(width=200)


def test_without_the_extra_that_reads_pages_a_trace_says_so(monkeypatch: Patch) -> None:
    for name in [name for name in sys.modules if name.startswith(("attention_np.derivation", "attention_np.trace._p"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lark", None)
    with pytest.raises(ImportError, match=r"pip install 'attention-np\[check\]'"):
        trace.dot_product(SENTENCE)
