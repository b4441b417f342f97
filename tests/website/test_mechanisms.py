"""Diagrams of mechanism: drawn in both languages, and on every page of the derivations."""

import re

import pytest

from docs.translations import ROOT

from . import needed  # noqa: F401

from attention_site.diagram_parts import arrow, text  # isort: skip
from attention_site.mechanisms import MECHANISMS, draw  # isort: skip

OF_THE_FORMULAS = {"exp", "max", "sigmoid", "softmax", "sparsemax", "tanh", "log"}
SHOWN = re.compile(r"^```\{(mechanism|moving)\} (\w+)$", re.MULTILINE)


def words(drawn: str) -> set[str]:
    return {word for shown in re.findall(">([^<>]+)<", drawn) for word in re.findall("[a-z]{3,}", shown)}


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_diagram_in_chinese_has_no_english_word(name: str) -> None:
    assert words(draw(name, name, in_chinese=True)) <= OF_THE_FORMULAS


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_is_drawn_lies_in_the_picture(name: str) -> None:
    picture, *parts = (
        dict(re.findall(r'([\w-]+)="([^"]*)"', tag)) for tag in re.findall("<[a-z]+ [^>]*>", draw(name, name))
    )
    _, _, width, height = map(float, picture["viewBox"].split())
    for part in parts:
        x, y, wide, high = (float(part.get(key, 0)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width, part
        assert 0 <= y <= y + high <= height, part


def test_a_small_letter_stands_lower_and_what_follows_stands_on_the_line_again() -> None:
    assert (
        text(0, 0, "d_k x")
        == '<text x="0" y="0">d<tspan dy="4" class="small">k</tspan><tspan dy="-4"> x</tspan></text>'
    )


def test_an_arrow_ends_in_a_tip_that_is_turned_as_its_last_part_is() -> None:
    assert "translate(5 9) rotate(90.0)" in arrow((0, 0), (5, 0), (5, 9))


def test_every_page_but_the_errata_shows_a_mechanism_and_every_diagram_is_shown() -> None:
    pages = {file.stem: SHOWN.findall(file.read_text(encoding="utf-8")) for file in ROOT.glob("derivations/*.md")}
    assert [page for page, shown in pages.items() if not shown] == ["errata"]
    course = [SHOWN.findall(file.read_text(encoding="utf-8")) for file in ROOT.glob("docs/course/*.md")]
    shown = {name for shown in (*pages.values(), *course) for kind, name in shown if kind == "mechanism"}
    assert shown == set(MECHANISMS)
