"""What a reader does with the site: click, type, search, narrow the window, turn the light off."""

import re
from typing import Any

import pytest

from attention_np.derivation.citations import citations

from .looking import LOOK
from .needed import DESK, PHONE, ROOT, Built, page_of

CITED = sorted({tag.partition(".")[0] for tag in citations((ROOT / "attention_np").rglob("*.py"))[0]})


def test_the_first_page_leads_to_the_site(address: str, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto(address)
    tab.wait_for_url("**/docs/index.html")
    assert tab.locator("h1").inner_text().strip("#\n ") == "attention_np"
    tab.close()


@pytest.mark.parametrize("name", CITED)
def test_one_click_leads_from_an_equation_to_its_code_and_one_back(name: str, address: str, browser: Any) -> None:
    from playwright.sync_api import expect

    tab = browser.new_page(viewport={"width": DESK, "height": 900}, reduced_motion="reduce")
    page = page_of(name)
    tab.goto(address + page)
    cards = {card.get_attribute("id"): card for card in tab.locator(".equation:has(.carried-out)").all()}
    # one that its code cites itself, and not what it is the same as
    tag, card = next(
        (tag, card) for tag, card in cards.items() if f"({tag})" in card.locator(".carried-out").inner_text()
    )
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


@pytest.mark.parametrize("width", [DESK, 1400, 1600, 1920])
def test_code_stands_beside_its_equation_where_there_is_room(width: int, address: str, browser: Any) -> None:
    formula, code = _boxes(width, address, browser)
    assert code["x"] >= formula["x"] + formula["width"]
    assert abs(code["y"] - formula["y"]) < 20


@pytest.mark.parametrize("width", [PHONE, 800])
def test_code_stands_below_its_equation_where_there_is_no_room(width: int, address: str, browser: Any) -> None:
    formula, code = _boxes(width, address, browser)
    assert code["y"] >= formula["y"] + formula["height"]


def _boxes(width: int, address: str, browser: Any) -> tuple[Any, Any]:
    """Where the first equation that has code stands, and where its code."""
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.goto(f"{address}derivations/softmax.html")
    tab.evaluate("() => MathJax.startup.promise")
    card = tab.locator(".equation:has(.carried-out)").first
    boxes = card.locator(".formula").bounding_box(), card.locator(".carried-out").bounding_box()
    tab.close()
    return boxes


def test_views_of_an_equation_open_without_scripts(address: str, browser: Any) -> None:
    from playwright.sync_api import expect

    context = browser.new_context(java_script_enabled=False, viewport={"width": PHONE, "height": 900})
    tab = context.new_page()
    tab.goto(f"{address}derivations/softmax.html#softmax.31")
    card = tab.locator('[id="softmax.31"]')
    expect(card.locator(".view.numpy pre")).to_be_visible()
    expect(card.locator(".view.numbers pre")).to_be_hidden()
    card.locator(".view.numbers summary").click()
    expect(card.locator(".view.numbers pre")).to_contain_text("-0.0469")
    context.close()


def test_a_tag_shows_its_equation_and_a_button_copies_the_lines(address: str, browser: Any) -> None:
    from playwright.sync_api import expect

    context = browser.new_context(viewport={"width": DESK, "height": 900}, reduced_motion="reduce")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    tab.goto(f"{address}derivations/masks.html")
    tab.evaluate("() => MathJax.startup.promise")
    tag = tab.locator("p a.tag").first
    tag.scroll_into_view_if_needed()
    tag.hover()
    expect(tab.locator(".preview svg")).to_be_visible()
    tab.keyboard.press("Escape")
    expect(tab.locator(".preview")).to_be_hidden()
    view = tab.locator(".view.numpy[open]").first
    view.hover()
    view.locator("button.copy").click()
    assert tab.evaluate("() => navigator.clipboard.readText()") == view.locator("pre").inner_text().rstrip("\n")
    context.close()


def test_the_sections_of_a_page_are_listed_and_the_list_of_pages_stays_where_it_was(address: str, browser: Any) -> None:
    from playwright.sync_api import expect

    tab = browser.new_page(viewport={"width": 1300, "height": 900})
    tab.goto(f"{address}derivations/softmax.html")
    expect(tab.locator(".sidebar-contents a", has_text="Log-sum-exp")).to_be_in_viewport()
    tab.evaluate("document.querySelector('.sidebar-scroll').scrollTop = 700")
    tab.goto(f"{address}derivations/rms_norm.html")
    assert tab.evaluate("document.querySelector('.sidebar-scroll').scrollTop") == 700
    expect(tab.locator(".sidebar-scroll .current-page > a").last).to_be_in_viewport()
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


@pytest.mark.parametrize("page", ["README.html", "docs/index.html", "docs/trace.html"])
def test_no_code_or_output_is_cut_on_a_desktop(page: str, address: str, browser: Any) -> None:
    tab = browser.new_page(viewport={"width": DESK, "height": 900})
    tab.goto(address + page)
    tab.locator("details.view").evaluate_all("(views) => views.forEach((view) => { view.open = true; })")
    cut = "(blocks) => blocks.filter((block) => block.scrollWidth > block.clientWidth).map((block) => block.innerText)"
    blocks = tab.locator("article pre")
    assert blocks.count() > 0
    assert blocks.evaluate_all(cut) == []
    tab.close()


def test_a_wide_picture_can_be_read_on_a_phone_and_leads_to_its_own_file(address: str, browser: Any) -> None:
    tab = browser.new_page(viewport={"width": PHONE, "height": 900})
    tab.goto(f"{address}examples/two_heads.html")
    tab.wait_for_load_state("load")
    size = """(image) => [image.getBoundingClientRect().width / image.naturalWidth,
        image.closest("a").scrollWidth - image.closest("a").clientWidth,
        document.documentElement.scrollWidth - innerWidth]"""
    picture = tab.locator("a.enlarge.wide img").first
    share, hidden, wider = picture.evaluate(size)
    assert share > 0.7
    assert hidden > 0
    assert wider <= 0
    picture.click()
    tab.wait_for_url("**/_images/*.png")
    tab.close()
