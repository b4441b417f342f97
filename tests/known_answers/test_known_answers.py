"""Known answers: every op gives them, and what their page shows and counts is so."""

import re
from pathlib import Path
from typing import Any

import pytest
from helpers import Array, Patch, Printed, each

import attention_np
from attention_np import known_answers, latent
from attention_np.known_answers import verifying
from attention_np.known_answers.examples import OPS, all_examples
from attention_np.known_answers.formats import DTYPES

from .sets import BESIDE, Sets

DOCS = Path(__file__).parents[2] / "docs" / "known-answers.md"
long = pytest.mark.long


@pytest.mark.parametrize("op", [*OPS, "blockwise"])
@pytest.mark.parametrize(
    ("name", "dtypes"), [("answers", {"float32"}), ("few", set(DTYPES)), pytest.param("whole", set(DTYPES), marks=long)]
)
def test_every_op_gives_its_known_answers(request: pytest.FixtureRequest, name: str, dtypes: set[str], op: str) -> None:
    folder = request.getfixturevalue(name)
    folder = folder[op] if name == "answers" else folder
    report = known_answers.verify(known_answers.of_op(getattr(attention_np, op)), folder, op=op)
    report.raise_if_failed()
    assert all("weights-by" in name and op == "blockwise" for name in report.skipped)  # those that see whole rows
    assert {x.array for x in report} >= {"output"} | BESIDE.get(op, {"logsumexp"})
    assert {x.case.partition("/")[0] for x in report} == dtypes


def test_the_absorbed_form_of_latent_attention_gives_the_same_answers(answers: Sets, few: Path) -> None:
    def absorbed(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        found = known_answers.of_op(latent)(inputs, {**options, "absorbed": True})
        return found | {"logsumexp": found["logsumexp"].reshape(inputs["d_output"].shape[:-1])}  # heads are rows of one

    for folder in (answers["latent"], few):
        report = known_answers.verify(absorbed, folder, op="latent")
        report.raise_if_failed()
        assert not report.skipped


@each("op", ["softmax", "dot_product", "blockwise", "additive", "multi_head"])
def test_forward_mode_and_hessian_vector_products_give_the_answers(answers: Sets, op: str) -> None:
    module = getattr(attention_np, op)

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        tangents = {name[2:]: x for name, x in inputs.items() if name.startswith("v_")}
        if not tangents:
            raise NotImplementedError
        given = {name: x for name, x in inputs.items() if name in (*tangents, "mask")}
        if op == "multi_head":
            given, tangents = verifying.with_parameters(given), verifying.with_parameters(tangents)
        _, cache = module.forward(**given, **options)
        found = attention_np.hessian_vector_product(module, inputs["d_output"], cache, **tangents)
        products = verifying.without_parameters(found)
        return {"d_d_output": module.jvp(cache, **tangents), **{f"hvp_{name}": x for name, x in products.items()}}

    known_answers.verify(function, answers[op], op=op).raise_if_failed()


def block(language: str) -> tuple[str, str]:
    """The code of the page in a language, and what the page shows below it."""
    text = DOCS.read_text(encoding="utf-8")
    found = re.search(rf"```{language}\n(.*?)```\s+```\n(.*?)```", text, flags=re.DOTALL)
    assert found is not None
    return found[1], found[2]


@long
def test_the_example_of_the_page_prints_what_it_shows(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    code, shown = block("python")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(DOCS), "exec"), {})  # noqa: S102
    printed = capsys.readouterr().out
    ratio = r"(?<=float64  output   26     26    )0\.0\d\d"  # each NumPy has its own way to add
    assert re.search(ratio, printed)
    assert re.sub(ratio, "", printed) == re.sub(ratio, "", shown)


def test_the_page_counts_the_cases_right() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for op in OPS:
        assert f"| `{op}` | {sum(example.op == op for example in all_examples())} |" in text
