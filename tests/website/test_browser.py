"""Every page of the site, opened in a real Chromium."""

from typing import Any, NamedTuple

import pytest

from .looking import LOOK
from .needed import DESK, PHONE, Built

SLOWEST = 120_000  # milliseconds that a page may take on a machine that has much else to do
LEFT = "net::ERR_ABORTED"  # the next page was opened before an icon had come


class Visit(NamedTuple):
    page: str
    width: int
    elsewhere: list[str]  # requests beyond the site
    failed: list[str]  # requests without an answer, and what the console says
    formulas: int
    typeset: int
    errors: list[str]  # formulas that MathJax could not read
    raw: list[str]  # text in which LaTeX is left
    wider: int  # pixels that the page is wider than the window
    broken: list[str]  # pictures that do not show


@pytest.fixture(scope="module")
def visits(site: Built, address: str, browser: Any) -> list[Visit]:
    found = []
    for width in (PHONE, DESK):
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.set_default_timeout(SLOWEST)
        elsewhere: list[str] = []
        failed: list[str] = []
        tab.on("request", lambda r, to=elsewhere: None if r.url.startswith((address, "data:")) else to.append(r.url))
        tab.on("response", lambda r, to=failed: to.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        tab.on("requestfailed", lambda r, to=failed: None if r.failure == LEFT else to.append(f"{r.failure} {r.url}"))
        tab.on("console", lambda m, to=failed: to.append(f"{m.type}: {m.text}"))
        tab.on("pageerror", lambda error, to=failed: to.append(str(error)))
        for page in site.pages():
            if page == "index.html" or (width == PHONE and page.startswith("source/")):
                continue
            tab.goto(address + page)
            found.append(Visit(page, width, elsewhere[:], failed[:], **tab.evaluate(LOOK)))
            elsewhere.clear()
            failed.clear()
        tab.close()
    return found


def test_no_page_asks_for_anything_beyond_the_site(visits: list[Visit]) -> None:
    assert [(visit.page, visit.elsewhere) for visit in visits if visit.elsewhere] == []


def test_no_page_misses_a_file_or_complains_in_the_console(visits: list[Visit]) -> None:
    assert [(visit.page, visit.failed) for visit in visits if visit.failed] == []


def test_every_formula_is_typeset(visits: list[Visit]) -> None:
    assert sum(visit.formulas for visit in visits if visit.page.startswith("derivations/")) > 4000
    assert [visit for visit in visits if visit.formulas != visit.typeset or visit.errors or visit.raw] == []


def test_no_page_is_wider_than_the_window(visits: list[Visit]) -> None:
    assert [(visit.page, visit.width, visit.wider) for visit in visits if visit.wider > 0] == []


def test_every_picture_shows(visits: list[Visit]) -> None:
    assert [(visit.page, visit.broken) for visit in visits if visit.broken] == []
