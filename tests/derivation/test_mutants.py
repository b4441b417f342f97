"""Each kind of mutant of a page is made, and caught."""

import pytest
from helpers import each

from attention_np.derivation import PageCheck

from . import toy_op
from .mutants import mutants
from .mutate import Mutator, Score, mutate_pages
from .pages import page
from .toy import PAGES, toy


@pytest.mark.long
def test_a_sample_of_mutants_of_every_page_is_caught() -> None:
    scores = mutate_pages(sorted(PAGES.glob("*.md")), every=80)
    total = Score()
    for score in scores.values():
        assert score.killed > 0
        total.add(score)
    assert total.total > 200
    assert len(total.survived) <= 0.01 * total.total, str(total)


def test_mutants_of_a_page_with_an_op_are_all_caught() -> None:
    score = Score()
    Mutator(toy(), toy_op).run(score)
    assert not score.survived, str(score)
    assert score.killed > 60


def test_without_its_op_a_definition_can_be_mutated_unseen() -> None:
    score = Score()
    Mutator(toy()).run(score)
    assert score.survived


@each(
    ("equation", "kind", "mutant"),
    [
        (r"u = t - 1", "flip sign", r"u = t  +  1"),
        (r"u = t - 1", "drop term", r"u =  - 1"),
        (r"u = 2 t u", "drop factor", r"u = t u"),
        (r"B_{ik} = B_{ki}", "swap indices", r"B_{ ki} = B_{ki}"),
        (r"x_i = x_i", "replace index", r"x_ k  = x_i"),
        (r"u = \sum_i x_i", "drop sum", r"u =  x_i"),
        (r"u = \sum_i x_i", "sum over another index", r"u = \sum_ k  x_i"),
        (r"u = 2", "change constant", r"u = 3"),
        (r"u = t^2", "drop power", r"u = t "),
        (r"B = B^\top", "drop transpose", r"B = B "),
        (r"x = y", "replace symbol", r"x = x"),
        (r"u = \frac{t}{2}", "drop denominator", r"u = {t}"),
        (r"u = \frac{t}{2}", "drop numerator", r"u = \frac{1}{2}"),
        (r"u = 0.25", "change constant", r"u = 0.24"),
        (r"u = 0.25", "change constant", r"u = 0.23"),
        (r"u = \sqrt{n}", "replace size", r"u = \sqrt{m}"),
        (r"u = \exp(t)", "drop function", r"u = {t}"),
        (r"u \le t", "turn relation", r"u \ge t"),
        (r"u = \sum_{k \le n} x_k", "change bound", r"u = \sum_{k < n} x_k"),
        (r"u = \sum_{k \le n} x_k", "turn relation", r"u = \sum_{k \ge n} x_k"),
        (r"x_i = y_i", "mistype left side", r"\mathfrak{q}_i = y_i"),
        (
            r"B = \mathrm{einsum}(\texttt{ij->ji}, B)",
            "change letter of einsum",
            r"B = \mathrm{einsum}(\texttt{jj->ji}, B)",
        ),
        (
            r"B = \mathrm{einsum}(\texttt{ij->ji}, B)",
            "swap letters of einsum",
            r"B = \mathrm{einsum}(\texttt{ij->ij}, B)",
        ),
    ],
)
def test_each_kind_of_mutant_is_made(equation: str, kind: str, mutant: str) -> None:
    names = PageCheck(page("")).scope.names
    made = {("".join(text.split())) for name, text in mutants(equation, names) if name == kind}
    assert "".join(mutant.split()) in made
