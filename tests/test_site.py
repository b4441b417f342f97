"""The site: built whole, and opened in a real Chromium; skipped where Sphinx, Playwright or Chromium is missing."""

import functools
import hashlib
import http.server
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import attention_np
from attention_np._commands.verification import check_pages
from attention_np.derivation import Record, Report, read_pages
from attention_np.derivation.trace import citations

ROOT = Path(__file__).parents[1]

for package in ("sphinx", "myst_parser", "furo", "jupytext", "numpydoc", "sphinx-mathjax-offline"):
    pytest.importorskip(package, reason=f"{package} is missing, which the site is built with")
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from attention_site.examples import as_markdown  # noqa: E402
from attention_site.excerpts import excerpts  # noqa: E402
from attention_site.figures import FIGURES  # noqa: E402
from attention_site.listings import excerpt_html, linked  # noqa: E402
from attention_site.verdicts import badge  # noqa: E402
from bs4 import BeautifulSoup  # noqa: E402

CITED = sorted({tag.partition(".")[0] for tag in citations((ROOT / "attention_np").rglob("*.py"))[0]})
MATHJAX = "d4295dc33744836935c1399feece5159577b34c5c8ffb9f1c6324cd82e03a882"  # of es5/tex-svg.js in mathjax 3.2.2
WIDTHS = {"phone": 390, "desk": 1280}


class Built(NamedTuple):
    folder: Path
    warnings: str

    def pages(self) -> list[str]:
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.html"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-E", "-a", "-q", "-c", "docs", "-d", folder / "read"]
    done = subprocess.run([*command, ".", folder / "site"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Built(folder / "site", done.stderr)


@pytest.fixture(scope="module")
def report() -> Report:
    return check_pages(ROOT / "derivations")


@pytest.fixture(scope="module")
def soup(site: Built) -> Any:
    @functools.cache
    def read(page: str) -> BeautifulSoup:
        return BeautifulSoup((site.folder / page).read_text(encoding="utf-8"), "html.parser")

    return read


@pytest.fixture(scope="module")
def ids(soup: Any) -> Any:
    @functools.cache
    def read(page: str) -> set[str]:
        return {tag["id"] for tag in soup(page).select("[id]")}

    return read


def test_the_build_warns_of_nothing(site: Built) -> None:
    assert site.warnings == ""


def test_every_equation_stands_in_its_page_with_its_verdict(soup: Any, report: Report) -> None:
    for page in read_pages([ROOT / "derivations"]):
        cards = soup(f"derivations/{Path(page.path).stem}.html").select(".equation")
        assert [card["id"] for card in cards] == [equation.tag for equation in page.equations]
    for record in report.records:
        shown = soup(f"derivations/{record.page.replace('-', '_')}.html").find(id=record.tag).select_one("a.verdict")
        assert shown["class"][1] == record.verdict.replace(" ", "-")
        assert shown["title"]


def test_an_equation_shows_each_line_that_cites_it_and_no_other_equation_does(soup: Any, report: Report) -> None:
    for record in report.records:
        card = soup(f"derivations/{record.page.replace('-', '_')}.html").find(id=record.tag)
        shown = card.select_one(".carried-out")
        assert (shown is None) == (not record.cited_by), record.tag
        if shown is not None:
            assert record.tag in {link.text for link in shown.select("a.tag")}
            assert len(shown.select(".excerpt")) <= len(record.cited_by)


def test_each_cited_line_of_the_source_leads_back_to_its_equation(soup: Any, report: Report) -> None:
    assert sum(len(record.cited_by) for record in report.records) > 100
    for record in report.records:
        for place in record.cited_by:
            file, line = place.split(":")
            page = f"source/{file.removesuffix('.py')}.html"
            links = soup(page).find(id=f"L{line}").select("a.tag")
            (link,) = [link for link in links if link.text == record.tag]
            assert link["href"].endswith(f"derivations/{record.page.replace('-', '_')}.html#{record.tag}")


def test_every_link_of_the_site_lands_on_its_target(site: Built, soup: Any, ids: Any) -> None:
    lost, followed = [], 0
    for page in site.pages():
        for link in soup(page).select("a[href]"):
            address, _, target = link["href"].partition("#")
            if re.match(r"[a-z]+:", address) or (link["href"] == "#" and not link.text.strip()):
                continue
            name = Path(os.path.normpath(Path(page).parent / address)).as_posix() if address else page
            found = (site.folder / name).is_file()
            if not found or (target and name.endswith(".html") and target not in ids(name)):
                lost.append((page, link["href"]))
            followed += 1
    assert followed > 5000
    assert not lost


def test_every_picture_says_in_words_what_it_shows(site: Built, soup: Any) -> None:
    for page in site.pages():
        for image in soup(page).select("img"):
            assert len(image.get("alt", "")) > 20, (page, image)


def test_every_figure_stands_behind_its_equation(site: Built, soup: Any) -> None:
    for drawing in FIGURES:
        page = f"derivations/{drawing.behind.partition('.')[0].replace('-', '_')}.html"
        figure = soup(page).find(id=f"figure-{drawing.name}")
        assert figure.find_previous(class_="equation")["id"] == drawing.behind
        assert (site.folder / "_images" / f"{drawing.name}.svg").stat().st_size > 2000


def test_every_public_module_is_in_the_reference() -> None:
    shown = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    modules = [module.name for module in pkgutil.iter_modules(attention_np.__path__) if not module.name.startswith("_")]
    assert [name for name in modules if name != "cli" and f"attention_np.{name}\n" not in shown] == []


def test_no_markdown_is_left_in_the_text(site: Built, soup: Any) -> None:
    for page in site.pages():
        article = soup(page).find("article")
        for part in article.find_all(["pre", "code", "script"]) if article and "source/" not in page else ():
            part.decompose()
        text = article.get_text() if article and "source/" not in page else ""
        assert not re.search(r"\$\$|```|\{eval-rst\}|:math:|:func:", text), page


def test_the_mathjax_that_is_shipped_is_that_of_its_authors(site: Built) -> None:
    shipped = (site.folder / "_static" / "tex-svg.js").read_bytes()
    assert hashlib.sha256(shipped).hexdigest() == MATHJAX


# What follows needs a browser.


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


SLOWEST = 120_000  # milliseconds that a page may take on a machine that has much else to do
LEFT = "net::ERR_ABORTED"  # the next page was opened before an icon had come
LOOK = """async () => {
  if (window.MathJax?.startup) await MathJax.startup.promise;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const raw = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode;
    if (!text.parentElement.closest("pre, code, script, style, noscript, mjx-container")
        && /\\$|\\\\[(\\[]|\\\\[a-z]{3}/.test(text.data)) raw.push(text.data.trim());
  }
  return {
    formulas: all(".math").length,
    typeset: all("mjx-container").length,
    errors: all("mjx-merror, [data-mml-node=merror], [data-mjx-error]").map((node) => node.textContent),
    raw,
    wider: document.documentElement.scrollWidth - innerWidth,
    broken: [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src),
  };
}"""


@pytest.fixture(scope="module")
def address(site: Built) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site.folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is missing, which drives the browser")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("Chromium is missing")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def visits(site: Built, address: str, browser: Any) -> list[Visit]:
    found = []
    for width in WIDTHS.values():
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
            if page == "index.html" or (width == WIDTHS["phone"] and page.startswith("source/")):
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


def test_the_first_page_leads_to_the_site(address: str, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto(address)
    tab.wait_for_url("**/docs/index.html")
    assert tab.locator("h1").inner_text().strip("#\n ") == "attention_np"
    tab.close()


@pytest.mark.parametrize("name", CITED)
def test_one_click_leads_from_an_equation_to_its_code_and_one_back(name: str, address: str, browser: Any) -> None:
    from playwright.sync_api import expect

    tab = browser.new_page(viewport={"width": WIDTHS["desk"], "height": 900}, reduced_motion="reduce")
    page = f"derivations/{name.replace('-', '_')}.html"
    tab.goto(address + page)
    card = tab.locator(".equation:has(.carried-out)").first
    tag = card.get_attribute("id")
    card.locator(".place").first.click()
    tab.wait_for_url("**/source/**")
    line = tab.locator(":target")
    assert tag in line.inner_text()
    expect(line).to_be_in_viewport()
    line.locator("a.tag", has_text=re.compile(f"^{re.escape(tag)}$")).click()
    tab.wait_for_url(f"**/{page}#{tag}")
    expect(tab.locator(":target")).to_have_id(tag)
    expect(tab.locator(":target")).to_be_in_viewport()
    tab.close()


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_code_stands_beside_its_equation_where_there_is_room_and_below_it_where_not(
    width: int, address: str, browser: Any
) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.goto(f"{address}derivations/softmax.html")
    tab.evaluate("() => MathJax.startup.promise")
    card = tab.locator(".equation:has(.carried-out)").first
    formula, code = card.locator(".formula").bounding_box(), card.locator(".carried-out").bounding_box()
    beside = code["x"] >= formula["x"] + formula["width"] and abs(code["y"] - formula["y"]) < 20
    below = code["y"] >= formula["y"] + formula["height"]
    assert beside if width == WIDTHS["desk"] else below
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_verdicts_are_legible_in_the_light_and_in_the_dark(scheme: str, address: str, browser: Any) -> None:
    tab = browser.new_page(color_scheme=scheme)
    tab.goto(f"{address}derivations/errata.html")
    look = "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"
    behind = _luminance(tab.evaluate(look, ["body", "backgroundColor"]))
    assert behind > 0.9 if scheme == "light" else behind < 0.1
    for selector in ("article p", ".verdict.holds", ".verdict.refuted", "article p a"):
        bright, dim = sorted((behind, _luminance(tab.evaluate(look, [selector, "color"]))), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, selector  # as WCAG 2.1 AA asks of text
    tab.close()


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_keyboard_skips_to_the_content_and_sees_where_it_is(address: str, browser: Any) -> None:
    from playwright.sync_api import expect

    tab = browser.new_page()
    tab.goto(f"{address}derivations/softmax.html")
    tab.keyboard.press("Tab")
    focused = tab.locator(":focus")
    expect(focused).to_have_attribute("href", "#furo-main-content")
    expect(focused).to_be_in_viewport()
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    inside, outline = focused.evaluate("(at) => [!!at.closest('.content'), getComputedStyle(at).outlineStyle]")
    assert inside
    assert outline != "none"
    tab.close()


def test_search_finds_a_page_without_a_server(site: Built, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto(f"{(site.folder / 'search.html').as_uri()}?q=jacobian")
    results = tab.locator("#search-results li a")
    results.first.wait_for()
    assert "derivations/softmax.html" in " ".join(link.get_attribute("href") for link in results.all())
    tab.close()


def test_a_page_that_is_opened_as_a_file_is_typeset(site: Built, browser: Any) -> None:
    tab = browser.new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.goto((site.folder / "derivations" / "softmax.html").as_uri())
    look = tab.evaluate(LOOK)
    assert look["formulas"] == look["typeset"] > 100
    assert not look["errors"]
    assert not said
    tab.close()


# The parts of the extension by themselves.

SOURCE = """\
def forward(x):
    scores = (
        x @ x.T  # (page.1)
    )
    # (page.2)
    total = scores.sum()
    if total > 0:  # (page.3)
        total = 0
    return total  # (page.1)


class Cache:
    scores: int  # (page.1)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "module.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (3, "scores = (\n    x @ x.T  # (page.1)\n)"),
        (5, "# (page.2)\ntotal = scores.sum()"),
        (7, "if total > 0:  # (page.3)"),
        (9, "return total  # (page.1)"),
    ],
)
def test_an_excerpt_is_the_whole_statement_that_cites(source: Path, line: int, expected: str) -> None:
    (excerpt,) = excerpts(source, [f"module.py:{line}"])
    assert excerpt.text == expected
    assert excerpt.within == "forward"


def test_statements_that_touch_are_one_excerpt_and_others_are_not(source: Path) -> None:
    together = excerpts(source, ["module.py:5", "module.py:3"])
    assert [(excerpt.first, excerpt.last, excerpt.cited) for excerpt in together] == [(2, 6, (3, 5))]
    apart = excerpts(source, ["module.py:9", "module.py:3", "module.py:13"])
    assert [excerpt.within for excerpt in apart] == ["forward", "forward", "Cache"]


def test_only_tags_of_equations_become_links() -> None:
    html = linked("# (page.1, page.2) version 1.2", lambda tag: "there.html#1" if tag == "page.1" else None)
    assert html == '# (<a class="tag" href="there.html#1">page.1</a>, page.2) version 1.2'


def test_code_is_escaped(source: Path) -> None:
    (source / "module.py").write_text("x = 1 < 2  # <b> (page.1)\n", encoding="utf-8")
    (excerpt,) = excerpts(source, ["module.py:1"])
    html = excerpt_html(excerpt, lambda tag: f"#{tag}", "module.html")
    assert "<b>" not in html
    assert "&lt;b&gt;" in html


@pytest.mark.parametrize(
    ("record", "latex", "text"),
    [
        (Record("p.1", "p", 1, "holds", 2.2e-16), "a = b", "holds to 2e-16"),
        (Record("p.1", "p", 1, "holds", 0.0), "a = b", "holds exactly"),
        (Record("p.1", "p", 1, "holds", 0.0, defines=("a",)), r"a = \sum_{l=1}^n b_l", "by definition"),
        (Record("p.1", "p", 1, "holds", 0.0, defines=("a",)), "a = b = c", "holds exactly"),
        (Record("p.1", "p", 1, "holds", 1e-3, rounded=True), r"a \approx 0.1", "holds as printed"),
        (Record("p.1", "p", 1, "refuted", 0.5), "a = b", "false, as marked"),
        (Record("p.1", "p", 1, "refuted", None), "a = b", "false, as marked"),
        (Record("p.1", "p", 1, "not executed"), "a = b", "not executed"),
        (Record("p.1", "p", 1, "fails", 0.5), "a = b", "fails, off by 5e-01"),
    ],
)
def test_a_badge_says_what_the_check_found(record: Record, latex: str, text: str) -> None:
    assert badge(record, latex).text == text


def test_a_badge_gives_the_reason_why_an_equation_is_not_executed() -> None:
    assert badge(Record("p.1", "p", 1, "not executed"), "", "a limit").title == "a limit"


def test_an_example_becomes_a_page_with_a_place_for_its_results() -> None:
    text = as_markdown('# %% [markdown]\n"""\n# A title.\n\nWords.\n"""\n\n# %%\nprint(1)\n')
    assert text == "# A title\n\nWords.\n\n```python\nprint(1)\n```\n\n## What it prints\n\n```{results}\n```\n"


def test_a_missing_mathjax_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extension = importlib.import_module("attention_site")
    monkeypatch.setattr(extension, "CARRIER", "no-such-package")
    with pytest.raises(Exception, match=r"pip install 'attention-np\[site\]'"):
        extension.copy_mathjax(tmp_path)
