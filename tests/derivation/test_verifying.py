"""Pages together: every page holds, and agrees with its op."""

import json
from pathlib import Path

import pytest
from helpers import Patch, each

from attention_np.cases import OPS
from attention_np.derivation import Page, PageCheck, Verification, read_page, verify, verify_against_op

from . import toy_op
from .pages import DEFINITIONS, HEADER, page
from .toy import TOY, TOY_HEADER, toy


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


GRADIENT = r"$$ \frac{\partial (2 x_i)}{\partial x_k} = 2 \delta_{ik} \tag{t.1} $$" + "\n\n"


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
