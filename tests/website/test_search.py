"""The search, looked at in a browser: over http, and in pages that are opened as files, as the README has it."""

import json
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from .looking import LOOK
from .needed import PHONE, Built

WAYS = pytest.mark.parametrize("way", ["http", "file"])


class Results(NamedTuple):
    links: list[str]  # where the results lead, relative to the site
    texts: list[str]
    summary: str
    look: dict[str, Any]
    said: list[str]  # by the console, and requests that failed
    tab: Any


@pytest.fixture
def search(site: Built, address: str, browser: Any) -> Any:
    tabs = []

    def run(way: str, query: str) -> Results:
        begin = address if way == "http" else f"{site.folder.as_uri()}/"
        tab = browser.new_page(viewport={"width": PHONE, "height": 900})
        tabs.append(tab)
        said: list[str] = []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("requestfailed", lambda request: said.append(request.url))
        tab.goto(f"{begin}search.html?q={quote(query)}")
        look = tab.evaluate(LOOK)
        results = tab.locator("#search-results > li")
        links = [link.get_attribute("href") for link in results.locator("a").all()]
        return Results(links, results.all_inner_texts(), tab.locator("#search-summary").inner_text(), look, said, tab)

    yield run
    for tab in tabs:
        tab.close()


@WAYS
def test_the_question_about_the_sum_leads_to_the_derivations_that_answer_it(way: str, search: Any) -> None:
    for query in ("softmax gradient sum", "why is there a sum over j in the softmax gradient?"):
        first = search(way, query).links[:8]
        assert first[0] == "docs/questions.html#why-is-there-a-sum-in-softmax-s-gradient"
        assert "derivations/softmax.html#backward-a-vector-times-the-jacobian" in first
        assert "derivations/dot_product.html#the-chain-rule-and-why-it-sums-over-l" in first


@WAYS
def test_excerpts_are_sentences_with_typeset_formulas_and_the_console_is_silent(way: str, search: Any) -> None:
    found = search(way, "softmax gradient sum")
    assert found.said == []
    assert len(found.texts) == 40
    assert sum(len(text.split("\n")) > 1 for text in found.texts) > 35  # have an excerpt
    assert found.look["formulas"] == found.look["typeset"] > 10
    assert found.look["raw"] == found.look["errors"] == []
    assert found.look["wider"] <= 0
    assert found.tab.locator("mark").count() > 40


@WAYS
@pytest.mark.parametrize("query", ["softmax.29", "(softmax.29)", "Softmax.29 "])
def test_the_tag_of_an_equation_leads_to_the_equation(way: str, query: str, search: Any) -> None:
    from playwright.sync_api import expect

    found = search(way, query)
    assert found.links[0] == "derivations/softmax.html#softmax.29"
    assert found.look["typeset"] >= 1
    found.tab.locator("#search-results a").first.click()
    expect(found.tab.locator(":target")).to_have_id("softmax.29")
    expect(found.tab.locator(":target")).to_be_in_viewport()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("jacobian", "derivations/softmax.html#the-jacobian"),
        ("numerical_gradient", "docs/api/gradcheck.html#attention_np.gradcheck.numerical_gradient"),
        ("key bias zero", "derivations/multi_head.html#the-key-bias-has-gradient-zero"),
        ("saturat", "derivations/softmax.html#saturation-where-the-gradient-vanishes"),
        ("dropping weights: dropout", "derivations/dot_product.html#dropout-on-the-weights"),
    ],
)
def test_a_query_has_what_it_asks_for_among_its_first_results(query: str, expected: str, search: Any) -> None:
    assert expected in search("file", query).links[:3]


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("掩码", "derivations/masks.zh.html"),
        ("在线 softmax", "derivations/blockwise.zh.html"),  # of which each character stands in many places
        ("为什么要除以根号 d", "questions.zh.html"),
        ("什么是 KV 缓存", "questions.zh.html"),
        ("训练怎样改变权重", "questions.zh.html"),
    ],
)
def test_a_chinese_query_leads_to_a_chinese_page(query: str, place: str, search: Any) -> None:
    assert any(link.startswith(f"docs/zh/{place}") for link in search("file", query).links[:2])


@pytest.mark.parametrize(
    ("query", "question"),
    [
        ("sum in softmax gradient", "why-is-there-a-sum-in-softmax-s-gradient"),
        ("why divide by sqrt d", "why-divide-by-the-root-of-d"),
        ("mask gradient NaN", "what-does-a-mask-do-to-gradients"),
        ("why multiple heads", "why-several-heads"),
        ("GQA", "what-is-gqa-and-what-is-mqa"),
        ("MQA", "what-is-gqa-and-what-is-mqa"),
        ("KV cache", "what-is-a-kv-cache"),
        ("RNN", "why-is-linear-attention-a-recurrence"),
        ("how does training change the weights", "how-does-training-change-the-weights"),
        ("check my own backward", "how-do-i-check-my-own-backward"),
    ],
)
def test_the_words_of_students_lead_to_their_question(query: str, question: str, search: Any) -> None:
    assert f"docs/questions.html#{question}" in search("file", query).links[:2]


def test_every_equation_is_found_by_its_tag(site: Built) -> None:
    script = (site.folder / "_static" / "entries.js").read_text(encoding="utf-8")
    entries = json.loads(script.removeprefix("window.entries = ").removesuffix(";\n"))
    equations = [entry for entry in entries if entry["kind"] == "equation"]
    assert len({entry["heading"] for entry in equations}) > 700
    assert all(entry["to"].endswith(f"#{entry['heading'].strip('()')}") for entry in equations)


def test_a_query_that_nothing_answers_is_told_so(search: Any) -> None:
    found = search("file", "xylophone")
    assert found.links == []
    assert found.summary == "Nothing was found for “xylophone”."
