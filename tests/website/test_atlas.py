"""The page of the atlas: a row for each class of the stored run, each recipe with its tags, and a search."""

import json
from collections.abc import Callable
from typing import Any

from attention_np.atlas.recipes._registry import RECIPES

from .needed import ROOT

Soup = Callable[[str], Any]
FOLDERS = json.loads((ROOT / "docs/measured/atlas.json").read_text(encoding="utf-8"))["folders"]


def test_each_class_has_a_row_that_says_its_recipe_and_sizes_or_what_is_missing(soup: Soup) -> None:
    rows = [[cell.text for cell in row.select("td")] for row in soup("docs/atlas.html").select("table.atlas tbody tr")]
    classes = [(folder, name, about) for folder, of in FOLDERS.items() for name, about in of.items()]
    assert len(rows) == len(classes)
    for row, (folder, name, about) in zip(rows, classes, strict=True):
        assert row[0] == folder + name
        if about["state"] == "whole":
            assert row[1:3] == [about["recipe"], about["mechanisms"]]
            assert row[4:6] == [str(about.get("d", "")), str(about.get("kept", ""))]
        else:
            assert row[1] == f"not read: {about['why']}"


def test_sizes_are_those_of_published_configurations() -> None:
    gemma = FOLDERS["gemma2"]["Gemma2Attention"]
    assert [gemma[key] for key in ("heads", "key_heads", "d", "kept")] == [8, 4, 256, 2048]
    assert FOLDERS["deepseek_v3"]["DeepseekV3Attention"]["kept"] == 512 + 64


def test_a_row_leads_to_its_recipe_and_a_line_of_it_to_its_equation(soup: Soup) -> None:
    page = soup("docs/atlas.html")
    for link in page.select("table.atlas tbody a"):
        assert page.find(id=link["href"][1:]) is not None, link
    for name in RECIPES:
        section = page.find(id=f"recipe-{name.replace('_', '-')}")
        assert section.find(["h3", "h4"]).text.startswith(name)
    tags = page.select("#recipe-multi-head a.tag")
    assert {tag["href"] for tag in tags} >= {"../derivations/multi_head.html#multi-head.1"}


def test_mechanisms_of_a_row_are_counted_together(soup: Soup) -> None:
    found = soup("docs/atlas.html").select_one(".mechanisms-together td[title$='with softcap have rotary']")
    capped = [
        x["mechanisms"].split(", ")
        for of in FOLDERS.values()
        for x in of.values()
        if "softcap" in x.get("mechanisms", "")
    ]
    both = sum("rotary" in words for words in capped)
    assert found["title"].startswith(f"{both} of {len(capped)} ")
    assert both == int(found.text)


def test_the_search_leaves_the_rows_with_all_words(address: str, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto(f"{address}docs/atlas.html?q=gemma")
    assert tab.locator("table.atlas tbody tr:visible").all_text_contents()
    assert all("gemma" in text.lower() for text in tab.locator("table.atlas tbody tr:visible").all_text_contents())
    tab.fill(".atlas-search input", "gemma2 softcap")
    assert len(tab.locator("table.atlas tbody tr:visible").all()) == 1
    assert tab.text_content(".atlas-search [role=status]").startswith("1 of ")
    tab.close()
