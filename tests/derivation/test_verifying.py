"""Pages together: worked examples, ops, citations, reports, mutants."""

import json
from pathlib import Path

import pytest
from helpers import Patch, each

from attention_np.cases import OPS
from attention_np.derivation import Page, PageCheck, Verification, read_page, read_pages, verify, verify_against_op
from attention_np.derivation.citations import citations

from . import toy_op
from .mutants import mutants
from .mutate import Mutator, Score, mutate_pages
from .pages import DEFINITIONS, HEADER, page, verdicts

PAGES = Path(__file__).parents[2] / "derivations"

TOY_HEADER = r"""---
op: toy
sizes: n m d_k d_v d
indices: {i: n, j: m, l: m, a: d_k, b: d_v}
tensors: {Q: [n, d_k], K: [m, d_k], V: [m, d_v], W^O: [d_v, d], M: [n, m, boolean], \tau: [positive]}
output: O
cotangent: G
code: {query: Q, key: K, value: V, parameters.w_output: W^O, scores: S, weights: A, output: O}
options: {mask: M, scale: \tau}
---
"""
TOY = r"""
$$ S = \tau Q K^\top \tag{toy.1} $$

$$ A_{ij} = \frac{M_{ij} e^{S_{ij}}}{\sum_l M_{il} e^{S_{il}}} \tag{toy.2} $$

$$ O = A V W^O \tag{toy.3} $$

$$ \frac{\partial L}{\partial W^O} = (A V)^\top G \tag{toy.4} $$

$$ \frac{\partial L}{\partial V} = A^\top G (W^O)^\top \tag{toy.5} $$
"""


def toy(text: str = TOY):  # type: ignore[no-untyped-def]
    return read_page("toy.md", TOY_HEADER + text)


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    return read_pages([PAGES])


@pytest.fixture(scope="module")
def report(pages: list[Page]) -> Verification:
    return verify(pages, operators=OPS, draws=2)  # at one set of lengths; `make check` and a long test take two


def test_every_page_holds_and_agrees_with_its_op(report: Verification) -> None:
    assert report.ok, [record.message for record in report.records if record.verdict == "fails"] + report.problems
    assert {item.op for item in report.fields} == set(OPS)


def test_nearly_every_displayed_equation_is_executed(report: Verification) -> None:
    assert report.count("not executed") <= 0.05 * len(report.records)
    assert all(record.message for record in report.records if record.verdict == "not executed")


@pytest.mark.long
def test_every_page_holds_with_other_draws(pages: list[Page]) -> None:
    other = verify(pages, operators=OPS, seed=101)
    assert other.ok, [record.message for record in other.records if record.verdict == "fails"]


def test_a_page_agrees_with_its_op() -> None:
    fields = verify_against_op(toy(), toy_op)
    assert [item.name for item in fields] == [
        "scores", "weights", "output",
        "gradient of query", "gradient of key", "gradient of value", "gradient of parameters.w_output",
    ]  # fmt: skip
    assert all(item.ok for item in fields), [item.describe() for item in fields]


@each("name", ["query", "key", "value", "w_output"])
def test_one_wrong_sign_in_backward_is_found_by_name(name: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(toy_op, "wrong", name)
    fields = verify_against_op(toy(), toy_op)
    assert [item.name.rpartition(".")[2].rpartition(" ")[2] for item in fields if not item.ok] == [name]


def test_a_changed_definition_clashes_with_the_op() -> None:
    changed = toy(TOY.replace(r"\tau Q", r"2 \tau Q"))
    assert all(record.verdict == "holds" for record in PageCheck(changed).run())
    assert not all(item.ok for item in verify_against_op(changed, toy_op))


def test_an_op_that_raises_is_a_finding() -> None:
    fields = verify_against_op(toy(TOY.replace(r"O = A V W^O", r"O = Q")), toy_op)
    assert not any(item.ok for item in fields if item.name == "output")


def test_a_page_that_names_an_unknown_op_is_a_problem() -> None:
    assert "there is no op toy" in verify([toy()], operators={}).problems[0]


def test_code_that_names_what_is_not_on_the_page_is_a_finding() -> None:
    fields = verify_against_op(read_page("toy.md", TOY_HEADER.replace("scores: S", "scores: Y") + TOY), toy_op)
    assert any("Y is not on the page" in item.message for item in fields)


EXAMPLE = r"""
$$ z_i = \sum_k B_{ik} x_k \tag{t.1} $$

## A worked example

$$ x = \begin{pmatrix} 1 \\ 2 \end{pmatrix}, \quad
B = \begin{pmatrix} 0 & 1 \\ 3 & 0.5 \end{pmatrix} \tag{t.2} $$

$$ z = \begin{pmatrix} 2 \\ 4 \end{pmatrix} \tag{t.3} $$

$$ z_1 = 2, \quad n = 2 \tag{t.4} $$

### Deeper

$$ \frac{\partial z_2}{\partial x_1} = 3 \tag{t.5} $$

## Afterwards

$$ z_1 = 2 \tag{t.6} $$
"""


def test_an_example_binds_values_until_its_section_ends() -> None:
    assert verdicts(EXAMPLE) == ["holds"] * 5 + ["fails"]


def test_outside_of_an_example_nothing_is_bound() -> None:
    assert verdicts(EXAMPLE.replace("A worked example", "Numbers"))[1:3] == ["fails", "fails"]


@each(
    ("old", "new", "position"),
    [
        ("2 \\\\ 4", "2 \\\\ 5", 2),
        ("1 \\\\ 2 \\end", "1 \\\\ 2 \\\\ 3 \\end", 1),
        ("z_1 = 2, \\quad n = 2", "z_1 = 2, \\quad n = 3", 1),
        ("z_1 = 2, \\quad n = 2", "x = \\begin{pmatrix} 5 \\\\ 5 \\end{pmatrix}", 1),
        ("0.5", "x", 1),
        ("0.5", "10^{400}", 1),
        ("x = \\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "x = 1", 1),
    ],
)
def test_an_example_that_contradicts_itself_fails(old: str, new: str, position: int) -> None:
    assert old in EXAMPLE
    assert "fails" in verdicts(EXAMPLE.replace(old, new, 1))[position:5]


PRINTED = [
    (r"\frac{1}{3}", "0.333", True),
    (r"\frac{1}{3}", "0.334", False),
    (r"\frac{1}{3}", "0.33333333333", True),
    (r"\frac{1}{3}", "0.3", True),
    (r"\frac{2}{3}", "0.66", False),
    (r"\frac{2}{3}", "0.67", True),
    (r"2.5", "2", True),
    (r"2.6", "2", False),
    (r"(0.501, 0.499)", "(0.50, 0.50)", True),
    (r"(0.9996, 0.0004)", "(1, 0.000)", True),
    (r"(0.996, 0.004)", "(1, 0.004)", False),
    (r"e^{-20}", r"2.06 \times 10^{-9}", True),
    (r"e^{-20}", r"2.07 \times 10^{-9}", False),
    (r"e^{-20}", r"2.06 \times 10^{-8}", False),
    (r"-\frac{1}{3}", "-0.333", True),
    (r"-\frac{1}{3}", "0.333", False),
    (r"e^{-1000}", "0.000", True),
]


@each(("left", "right", "holds"), PRINTED)
def test_printed_digits_are_held_to_half_a_unit(left: str, right: str, holds: bool) -> None:
    assert verdicts(f"$$ {left} \\approx {right} \\tag{{t.1}} $$") == ["holds" if holds else "fails"]


def test_citations_are_comments_only(tmp_path: Path) -> None:
    source = tmp_path / "code.py"
    source.write_text('x = "(t.9)"\n"""(t.8)"""\ny = 1  # (t.1, t.2): why\n# (dot-product.12)\n# (t.1)\n')
    found, problems = citations([source], tmp_path)
    assert found == {"t.1": ["code.py:3", "code.py:5"], "t.2": ["code.py:3"], "dot-product.12": ["code.py:4"]}
    assert not problems


GRADIENT = r"$$ \frac{\partial (2 x_i)}{\partial x_k} = 2 \delta_{ik} \tag{t.1} $$" + "\n\n"


@each(
    ("text", "comment", "words"),
    [
        (GRADIENT, "# (t.1)", None),
        (GRADIENT, "#", "no code cites it"),
        (GRADIENT + "*Text only.* Because.", "#", None),
        (GRADIENT, "# (t.1) (t.2)", "cites (t.2), which stands in no page"),
        (GRADIENT, "# (gone.1) (t.1)", "cites (gone.1)"),
    ],
)
def test_gradients_are_cited_and_citations_exist(tmp_path: Path, text: str, comment: str, words: str | None) -> None:
    source = tmp_path / "code.py"
    source.write_text(f"x = 1  {comment}\n")
    report = verify([page(text)], sources=[source])
    assert report.ok is (words is None)
    if words is not None:
        assert any(words in problem for problem in report.problems)


OTHER = (
    r"$$ S_{ij} = \sum_a Q_{ia} K_{ja} \tag{o.1} $$"
    + "\n\n"
    + r"""$$ X' = B S
= \mathrm{einsum}(\texttt{ik,kj->ij}, B, S) \tag{o.2} $$

$$ \frac{\partial X'_{ij}}{\partial S_{kl}} = B_{ik} \delta_{jl} \tag{o.3} $$

$$ 1 = 2 \tag{o.4} $$

*Refuted:* no."""
)
HERE = (
    r"$$ S = Q K^\top \tag{t.1} $$"
    + "\n\n*Same as (o.1).*\n\n"
    + r"$$ X'_{ij} = \sum_k B_{ik} S_{kj} \tag{t.2} $$"
    + "\n\n"
)
CLAIM = r"$$ \frac{\partial X'_{ij}}{\partial S_{kl}} = \delta_{jl} B_{ik} \tag{t.3} $$" + "\n\n"
MATRIX = r"$$ X' = B S, \quad S = Q K^\top \tag{t.4} $$" + "\n\n"


@each(
    ("text", "words"),
    [
        (CLAIM + "*Same as (o.3).* As there.", None),
        (CLAIM + "*Same as (t.4).*\n\n" + MATRIX + "*Same as (o.2, o.1).*", "no left side there has this value"),
        (CLAIM + "*Text only.*\n\n" + MATRIX + "*Same as (o.2, o.1).*", None),
        (CLAIM + "*Text only.*\n\n" + MATRIX + "*Same as (o.2).*", "no left side there has this value"),
        (CLAIM, "no code cites it"),
        (CLAIM + "*Same as (o.9).*", "(o.9), which stands in no page"),
        (CLAIM + "*Same as (t.3).*", "(t.3), which stands in no other"),
        (CLAIM + "*Same as (o.4).*", "does not hold itself: refuted"),
        (CLAIM + "*Same as (o.2).*", "no left side there has this value"),
        (CLAIM + "*Same as (o.3)*", "the marker *Same as (o.3)* is not known"),
        (CLAIM + "*Same as (o.3).* *Same as (o.2).*", "the marker *Same as (o.2).* is not known, or stands here twice"),
        (CLAIM + "*Same as (o.3, o.2, o.3).*", "the same as (o.3) is said twice"),
        (CLAIM + f"*Same as ({', '.join(f'o.{k}' for k in range(1, 10))}).*", "the same as more than 8 equations"),
        (CLAIM + "*Same as (o.3).* *Refuted:* no.", "only an equation that holds"),
        (CLAIM.replace("B_{ik}", "R_{ik}") + "*Same as (o.3).*", "this does not hold"),
        (CLAIM.replace("B_{ik}", "2 B_{ik} / 2") + "*Same as (o.3).*", None),
    ],
)
def test_what_is_the_same_as_another_equation_agrees_with_it(tmp_path: Path, text: str, words: str | None) -> None:
    (tmp_path / "o.py").write_text("# (o.1) (o.2) (o.3)\n")
    report = verify([page(HERE + text), page(OTHER, name="o")], sources=[tmp_path / "o.py"], root=tmp_path)
    assert report.ok is (words is None), str(report)
    assert words is None or words in str(report)
    if words is None:
        assert report.records[0].cited_by == ["o.py:1"]


def test_what_is_the_same_as_another_equation_is_cited_in_the_end(tmp_path: Path) -> None:
    source = tmp_path / "o.py"
    other = page(OTHER, name="o")
    source.write_text("# (o.3)\n")
    report = verify([page(HERE + CLAIM + "*Same as (o.3).*"), other], sources=[source])
    assert [problem.partition(": ")[2] for problem in report.problems] == ["the same as (o.1), which no code cites"]
    between = page(OTHER.replace("o.", "u.").replace("{u.3} $$", "{u.3} $$\n\n*Same as (o.3).*"), name="u")
    pages = [page(HERE.replace("*Same as (o.1).*", "") + CLAIM + "*Same as (u.3).*"), between, other]
    assert verify(pages, sources=[source]).ok
    source.write_text("")
    assert "the same as (u.3), which no code cites" in str(verify(pages, sources=[source]))


def test_a_same_equation_is_read_with_the_names_of_its_page() -> None:
    other = page(OTHER.replace("B", "R"), name="o")  # of another tensor, in the place of B
    assert "(o.3), which does not hold here" in str(verify([page(HERE + CLAIM + "*Same as (o.3).*"), other]))
    other = page(r"$$ Y_i = x_i \tag{o.1} $$" + "\n\n" + r"$$ Y_i = x_i \tag{o.2} $$", name="o")
    here = page(r"$$ 2 x_i = x_i + x_i \tag{t.1} $$" + "\n\n*Same as (o.2).*")
    assert "the symbol Y is not known here" in str(verify([here, other]))


def test_a_module_of_a_page_cites_that_page_alone(tmp_path: Path) -> None:
    for name, code in {"t.py": "# (t.3)\n# (o.3)\n", "helper.py": "# (t.3) (o.3)\n"}.items():
        (tmp_path / name).write_text(code)
    pages = [page(HERE.replace("*Same as (o.1).*", "") + CLAIM), page(OTHER, name="o")]
    report = verify(pages, sources=sorted(tmp_path.glob("*.py")), root=tmp_path)
    assert report.problems == [
        "t.py:2: cites (o.3), but this module cites its own page, t: write *Same as (t.N).* behind (o.3)"
    ]


def test_a_page_that_is_not_asked_for_is_there_to_be_cited(tmp_path: Path) -> None:
    source = tmp_path / "code.py"
    source.write_text("x = 1  # (t.1, toy.4, toy.5)\n")
    found = [page(r"$$ 1 = 2 \tag{t.1} $$"), toy()]
    report = verify(found, sources=[source], only={"toy"})
    assert report.ok, str(report)
    assert {record.page for record in report.records} == {"toy"}
    assert not verify(found, sources=[source]).ok


def test_a_page_may_be_text_only_as_a_whole() -> None:
    assert verify([page(GRADIENT, HEADER.replace("output: O", "cited: false\noutput: O"))], sources=[]).ok


def test_two_pages_of_one_name_are_a_problem() -> None:
    assert "a second page" in verify([page(r"$$ 1 = 1 \tag{t.1} $$")] * 2).problems[0]


def test_the_report_is_json_of_the_agreed_form(report: Verification) -> None:
    text = json.dumps(report.as_json(), allow_nan=False)
    for record in json.loads(text):
        assert {"tag", "page", "line", "verdict", "error", "cited_by"} <= set(record)
        assert record["verdict"] in {"holds", "fails", "refuted", "not executed"}
    failing = verify([page(r"$$ u = \infty \tag{t.1} $$")])
    json.dumps(failing.as_json(), allow_nan=False)
    assert "this does not hold" in str(failing)


def test_the_same_seed_gives_the_same_errors() -> None:
    first, second, other = (verify([toy()], seed=seed).as_json() for seed in (3, 3, 4))
    assert first == second != other


CITING = "x = 1  # (toy.4)\n# (toy.5)\n# (toy.6)\n"
SUSPECTS = {
    "query": ["toy.6"],
    "key": ["toy.6"],
    "value": ["toy.5"],
    "parameters.w_output": ["toy.4"],
}


@each("name", SUSPECTS)
def test_a_wrong_gradient_names_the_lines_that_may_be_wrong(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    source = tmp_path / "code.py"
    source.write_text(CITING)
    monkeypatch.setattr(toy_op, "wrong", name.rpartition(".")[2])
    more = r"""
$$ \frac{\partial L}{\partial S_{ij}} = A_{ij} \left( \frac{\partial L}{\partial A_{ij}}
  - \sum_l A_{il} \frac{\partial L}{\partial A_{il}} \right) \tag{toy.6} $$

$$ \frac{\partial L}{\partial Q} = \tau \frac{\partial L}{\partial S} K \tag{toy.7} $$

*Text only.*
"""
    report = verify([toy(TOY + more)], operators={"toy": toy_op}, sources=[source])
    assert not report.problems
    (wrong,) = (item for item in report.fields if not item.ok)
    assert [record.tag for record in report.suspects(wrong)] == SUSPECTS[name]
    assert report.suspects(report.fields[0]) == []
    for record, place in zip(report.records[3:6], ("code.py:10", "code.py:9", "code.py:2"), strict=True):
        record.cited_by, record.of = [place], (wrong.symbol,)
    assert [record.cited_by for record in report.suspects(wrong)] == [["code.py:2"], ["code.py:9"], ["code.py:10"]]
    report = verify([toy(TOY + more)])
    assert [record.of for record in report.records[3:]] == [("W^{O}",), ("V",), ("S",), ("Q",)]


def test_a_record_knows_the_gradient_behind_a_shorthand() -> None:
    body = (
        DEFINITIONS
        + r"""
$$ \bar{S}_{ij} = \frac{\partial L}{\partial S_{ij}} \tag{t.3} $$

$$ \bar{S}_{ij} = G_i s_j, \quad \frac{\partial L}{\partial Q_{ia}} = \sum_j \bar{S}_{ij} K_{ja} \tag{t.4} $$

$$ u = u, \quad \frac{\partial S_{ij}}{\partial s_l} = 0 \tag{t.5} $$
"""
    )
    records = PageCheck(page(body)).run()
    assert {record.verdict for record in records} == {"holds"}
    assert [record.of for record in records] == [(), (), ("S",), ("S", "Q"), ()]


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
