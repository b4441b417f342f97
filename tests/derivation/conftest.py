"""The pages, verified once."""

import pytest

from attention_np.cases import OPS
from attention_np.derivation import Page, Verification, read_pages, verify

from .toy import PAGES


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    return read_pages([PAGES])


@pytest.fixture(scope="module")
def report(pages: list[Page]) -> Verification:
    return verify(pages, operators=OPS, draws=2)  # at one set of lengths; `make check` and a long test take two
