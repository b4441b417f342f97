"""The pages of the site as they are built: equations, verdicts, code, links and pictures."""

import copy
import hashlib
import os
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attention_np
from attention_np.cli.verification import check_pages
from attention_np.derivation import Verification, read_pages

from .needed import ROOT, Built, page_of

from attention_site.figures import FIGURES  # isort: skip

MATHJAX = "d4295dc33744836935c1399feece5159577b34c5c8ffb9f1c6324cd82e03a882"  # of es5/tex-svg.js in mathjax 3.2.2
Soup = Callable[[str], Any]
ById = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def report() -> Verification:
    return check_pages(ROOT / "derivations")


def test_the_build_warns_of_nothing(site: Built) -> None:
    assert site.warnings == ""


def test_every_equation_stands_in_its_page_with_its_verdict(soup: Soup, by_id: ById, report: Verification) -> None:
    for page in read_pages([ROOT / "derivations", ROOT / "docs" / "course"]):
        cards = soup(Path(page.path).relative_to(ROOT).with_suffix(".html").as_posix()).select(".equation")
        assert [card["id"] for card in cards] == [equation.tag for equation in page.equations]
    for record in report.records:
        shown = by_id(page_of(record.page))[record.tag].select_one("a.verdict")
        assert shown["class"][1] == record.verdict.replace(" ", "-")
        assert shown["title"]


def test_an_equation_shows_each_line_that_cites_it_and_no_other_equation_does(
    by_id: ById, report: Verification
) -> None:
    for record in report.records:
        card = by_id(page_of(record.page))[record.tag]
        shown = card.select_one(".carried-out")
        assert (shown is None) == (not record.cited_by), record.tag
        if shown is not None:
            links = {link.text for link in shown.select("a.tag")}
            assert links & {*record.tags}, record.tag
            captions = shown.select(".excerpt a:not(.tag)")
            assert len({"/atlas/" in link["href"] for link in captions}) == 1, record.tag  # recipes where no op has it
            assert len(shown.select(".excerpt")) <= len(record.cited_by)


@pytest.mark.parametrize("name", ["docs/course/training", "docs/your-code", "derivations/feature_map"])
def test_a_translation_shows_the_programs_of_its_page(name: str, soup: Soup) -> None:
    translation = f"docs/zh/{name.removeprefix('docs/')}.zh.html"
    english, chinese = (
        [block.text for block in soup(page).select("article div[class*=highlight-]")]
        for page in (f"{name}.html", translation)
    )
    assert english
    assert chinese == english


@pytest.mark.parametrize("page", ["derivations/softmax.html", "docs/zh/derivations/softmax.zh.html"])
def test_an_equation_stands_with_its_numpy_and_its_numbers(page: str, by_id: ById) -> None:
    numpy, numbers = by_id(page)["softmax.32"].select(".views .view pre")
    assert numpy.text.split("\n")[0] == "dL_dS = A * (G - r[:, None])"
    assert "-0.0469, -0.3438,  0.3906" in numbers.text
    assert by_id(page)["softmax.64"].select(".view.numbers") == []  # these are the numbers themselves


def test_nearly_every_equation_that_holds_is_said_in_numpy(by_id: ById, report: Verification) -> None:
    silent = [
        record.tag
        for record in report.records
        if record.verdict == "holds" and not by_id(page_of(record.page))[record.tag].select(".view.numpy")
    ]
    assert len(silent) <= 2, silent


def test_what_only_the_checker_reads_is_not_shown(soup: Soup, report: Verification) -> None:
    for page in {record.page for record in report.records} - {"notation"}:
        shown = [mark.text for mark in soup(page_of(page)).select("article em")]
        assert [mark for mark in shown if re.match(r"Same as \(|Text only", mark)] == [], page


def test_a_derivation_leads_to_its_functions_the_trace_and_examples(soup: Soup) -> None:
    links = [link["href"] for link in soup("derivations/softmax.html").select(".ways a")]
    assert links[:2] == ["../docs/api/softmax.html", "../docs/trace.html"]
    assert links[2].startswith("../examples/")


@pytest.mark.parametrize(
    ("tag", "line"),
    [
        *((f"softmax.{number}", "(weights * above).sum(axis=axis") for number in (29, 30)),
        *((f"softmax.{number}", "weights * (above - mean)") for number in (27, 28, 31, 32)),
        *((tag, "softmax.times_jacobian") for tag in ("dot-product.14", "dot-product.16", "masks.8")),
        ("masks.5", "one.real == -np.inf"),
        ("masks.33", "np.tri(n, m, offset"),
        ("masks.57", "reduce(operator.and_, together)"),
        ("scaling.44", "backward_product(d_products, key, factor)"),
        ("linear.7", "transposed(backward_product(transposed(d_rows), x_rows))"),
        ("dot-product.25", "backward_product(transposed(d_products), scaled, factor)"),
    ],
)
def test_the_line_that_does_what_an_equation_says_stands_beside_it(tag: str, line: str, soup: Soup) -> None:
    card = soup(page_of(tag.partition(".")[0])).find(id=tag)
    assert line in card.select_one(".carried-out").text


def test_no_equation_that_code_cites_is_called_text_only(report: Verification) -> None:
    assert [record.tag for record in report.records if record.cited_by and record.text_only] == []


def test_each_derivation_says_once_what_an_equation_without_code_is(soup: Soup, report: Verification) -> None:
    for name in {record.page for record in report.records}:
        (guide,) = soup(page_of(name)).select("p.guide")
        has_code = any(record.cited_by for record in report.records if record.page == name)
        assert guide.text.startswith("Below an equation stands the same in NumPy")
        assert ("beside it the code" in guide.text) == has_code
        assert ("The equations of this page are" in guide.text) != has_code


def test_each_cited_line_of_the_source_leads_back_to_its_equation(by_id: ById, report: Verification) -> None:
    assert sum(len(record.cited_by) for record in report.records) > 100
    for record in report.records:
        for place in record.cited_by:
            file, line = place.split(":")
            page = f"source/{file.removesuffix('.py')}.html"
            links = by_id(page)[f"L{line}"].select("a.tag")
            cited = [link for link in links if link.text in record.tags]
            assert cited, (place, record.tag)
            for link in cited:
                assert link["href"].endswith(f"{page_of(link.text.partition('.')[0])}#{link.text}")


def test_every_link_of_the_site_lands_on_its_target(site: Built, soup: Soup, by_id: ById) -> None:
    lost, followed = [], 0
    for page in site.pages():
        for link in soup(page).find_all("a", href=True):
            address, _, target = link["href"].partition("#")
            if re.match(r"[a-z]+:", address) or (link["href"] == "#" and not link.text.strip()):
                continue
            name = Path(os.path.normpath(Path(page).parent / address)).as_posix() if address else page
            found = (site.folder / name).is_file()
            if not found or (target and name.endswith(".html") and target not in by_id(name)):
                lost.append((page, link["href"]))
            followed += 1
    assert followed > 5000
    assert not lost


def test_every_picture_says_in_words_what_it_shows(site: Built, soup: Soup) -> None:
    for page in site.pages():
        for image in soup(page).find_all("img"):
            assert len(image.get("alt", "")) > 20, (page, image)


def test_every_picture_leads_to_its_own_file(site: Built, soup: Soup) -> None:
    shown = 0
    for page in site.pages():
        for image in soup(page).select("article img"):
            link = image.find_parent("a")
            assert link is not None, (page, image["src"])
            assert link["href"] == image["src"]
            shown += 1
    assert shown > 10


def test_the_site_and_the_citation_name_the_same_authors() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (name,) = re.findall(r"^  - name: (.*)$", citation, flags=re.MULTILINE)
    assert f'author = "{name}"' in (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")


def test_every_figure_stands_behind_its_equation(site: Built, soup: Soup) -> None:
    for drawing in FIGURES:
        page = page_of(drawing.behind.partition(".")[0])
        figure = soup(page).find(id=f"figure-{drawing.name}")
        assert figure.find_previous(class_="equation")["id"] == drawing.behind
        assert (site.folder / "_images" / f"{drawing.name}.svg").stat().st_size > 2000


def test_every_public_module_is_in_the_reference() -> None:
    shown = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    modules = [module.name for module in pkgutil.iter_modules(attention_np.__path__) if not module.name.startswith("_")]
    elsewhere = ("cli", "functional")  # whose functions are shown as the package's own
    assert [name for name in modules if name not in elsewhere and f"attention_np.{name}\n" not in shown] == []


def test_no_markdown_is_left_in_the_text(site: Built, soup: Soup) -> None:
    for page in site.pages():
        if "source/" not in page:
            article = copy.copy(soup(page).find("article") or soup(page))
            for part in article.find_all(["pre", "code", "script"]):
                part.decompose()
            assert not re.search(r"\$\$|```|\{eval-rst\}|:math:|:func:", article.get_text()), page


def test_the_mathjax_that_is_shipped_is_that_of_its_authors(site: Built) -> None:
    shipped = (site.folder / "_static" / "tex-svg.js").read_bytes()
    assert hashlib.sha256(shipped).hexdigest() == MATHJAX


def test_chinese_pages_say_that_they_are_chinese_and_the_others_that_they_are_english(site: Built, soup: Soup) -> None:
    spoken = {page: soup(page).html["lang"] for page in site.pages()}
    chinese = {"README.zh.html", *(page for page in spoken if page.startswith("docs/zh/"))}
    assert {page for page, language in spoken.items() if language == "zh-Hans"} == chinese
    assert set(spoken.values()) == {"en", "zh-Hans"}


def test_a_page_is_called_what_the_navigation_calls_it(soup: Soup) -> None:
    assert soup("README.html").title.text == "Quick start - attention_np"
    assert "Quick start" in soup("docs/index.html").select_one("a.next-page").text


def test_the_number_of_an_equation_leads_to_it_and_is_not_a_part_of_the_formula(soup: Soup) -> None:
    card = soup("derivations/softmax.html").find(id="softmax.19")
    assert card.select_one("a.number").text == "(softmax.19)"
    assert card.select_one("a.number")["href"] == "#softmax.19"
    assert r"\tag" not in card.select_one(".formula").text


def test_the_reference_shows_code_as_code_and_types_as_the_source_writes_them(site: Built, soup: Soup) -> None:
    pages = [page for page in site.pages() if page.startswith("docs/api/")]
    assert len(pages) > 10
    for page in pages:
        assert [quote for quote in soup(page).select("blockquote") if "import" in quote.text] == [], page
        assert not re.search(r"ForwardRef|<class '", soup(page).text), page
    assert "from attention_np import dot_product, plot" in soup("docs/api/plot.html").select_one("pre").text
