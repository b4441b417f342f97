"""The figures of the pages: each function has one, and its letters can be read on a phone."""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from attention_np import plot

for needed in ("myst_parser", "numpydoc", "sphinx"):
    pytest.importorskip(needed, reason="the figures of the pages are drawn where Sphinx is installed")

pytestmark = pytest.mark.long
EXTENSIONS = str(Path(__file__).resolve().parents[2] / "docs" / "_ext")
PHONE = 352  # pixels: the width of the text on a phone
LEAST = 8  # pixels: letters that can be read
SUBSCRIPT = 0.7  # of the size of the letters before it, and again below that


@pytest.fixture(scope="module")
def figures() -> Any:
    sys.path.insert(0, EXTENSIONS)
    try:
        return importlib.import_module("attention_site.figures")
    finally:
        sys.path.remove(EXTENSIONS)


@pytest.fixture(scope="module")
def images(figures: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all figures, with letters as text rather than as outlines."""
    folder: Path = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(figures.LOOK, "svg.fonttype", "none")
        figures.draw_figures(folder)
    return folder / figures.FOLDER


def test_every_function_has_a_figure_in_its_reference(figures: Any) -> None:
    functions = {f"attention_np.plot.{name}" for name in plot.__all__ if inspect.isfunction(getattr(plot, name))}
    assert {drawing.behind for drawing in figures.REFERENCE} == functions
    assert len(figures.REFERENCE) == len(functions) == 10


def test_every_figure_has_a_name_of_its_own_and_says_in_words_what_it_shows(figures: Any) -> None:
    drawings = [*figures.FIGURES, *figures.REFERENCE]
    assert len({drawing.name for drawing in drawings}) == len(drawings)
    assert [drawing.name for drawing in drawings if len(drawing.alt) < 40] == []
    assert {drawing.name for drawing in figures.FIGURES} == set(figures.IN_CHINESE)


@pytest.mark.usefixtures("figures")
def test_every_function_draws_on_a_page_of_the_derivations_too() -> None:
    code = inspect.getsource(importlib.import_module("attention_site.drawings"))
    assert [name for name in plot.__all__ if name != "TopKeys" and f"plot.{name}(" not in code] == []


def test_the_code_that_is_shown_is_that_of_the_figure_without_its_annotations(figures: Any) -> None:
    for drawing in figures.REFERENCE:
        code = importlib.import_module("attention_site.plot_examples").shown_code(drawing)
        ast.parse(code)
        assert f"{drawing.behind.removeprefix('attention_np.')}(" in code
        assert not re.search(r"Any|^return|^ax$|^\s+words", code, re.MULTILINE), code


def test_letters_can_be_read_where_a_phone_shrinks_the_figure(figures: Any, images: Path) -> None:
    for drawing in [*figures.FIGURES, *figures.REFERENCE]:
        drawn = (images / f"{drawing.name}.svg").read_text(encoding="utf-8")
        width = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', drawn)[1])  # type: ignore[index]
        shown = min(4 / 3, PHONE / width)  # pixels for each point
        texts = re.findall(r"<text.*?</text>", drawn, re.DOTALL)
        largest = [max(map(float, re.findall(r"(?:font|font-size): [^;\"]*?([\d.]+)px", text))) for text in texts]
        every = [float(size) for size in re.findall(r"(?:font|font-size): [^;\"]*?([\d.]+)px", drawn)]
        assert len(texts) > 5, drawing.name
        assert min(largest) * shown >= LEAST, drawing.name
        assert min(every) * shown >= LEAST * SUBSCRIPT**2, drawing.name
