"""What a kernel can do picks its cases, in its own layout; what says nothing of the kind is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, Printed, each

from attention_np import cli, dot_product, known_answers
from attention_np.known_answers import files
from attention_np.known_answers.capabilities import Capabilities, capable
from attention_np.known_answers.manifest import Entry, Tensor

from .sets import Sets

correct = known_answers.of_op(dot_product)


def entry(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], **options: Any) -> Entry:
    shapes = {"query": query, "key": key, "value": value, "d_output": (*query[:-1], value[-1])}
    more = {name: options.pop(name) for name in ("mask", "v_query") if name in options}
    tensors = {name: Tensor("input", "F32", shape) for name, shape in (shapes | more).items()}
    return Entry("a", "dot_product", "float32", "A case.", (), options, "a", 0, "", {}, tensors)


@each(
    ("able", "admitted"),
    [
        ({}, "plain grouped wide causal masked moved"),
        ({"takes": []}, "plain grouped wide"),
        ({"takes": ["is_causal"]}, "plain grouped wide causal"),
        ({"takes": ["mask", "tangents"]}, "plain grouped wide masked moved"),
        ({"d_k": [64]}, "plain grouped causal masked moved"),
        ({"d_v": [128]}, "wide"),
        ({"groups": [1]}, "plain wide causal masked moved"),
        ({"groups": [4]}, "grouped"),
        ({"axes": [3]}, "wide"),
        ({"ops": ["softmax"]}, ""),
        ({"dtypes": ["float16"]}, ""),
    ],
)
def test_a_case_is_admitted_by_what_it_holds(able: dict[str, Any], admitted: str) -> None:
    square = (2, 4, 8, 64)
    cases = {
        "plain": entry(square, square, square),
        "grouped": entry(square, (2, 1, 8, 64), (2, 1, 8, 64)),
        "wide": entry((2, 8, 96), (2, 8, 96), (2, 8, 128)),
        "causal": entry(square, square, square, is_causal=True),
        "masked": entry(square, square, square, mask=(8, 8)),
        "moved": entry(square, square, square, v_query=square),
    }
    assert [name for name, case in cases.items() if capable(able).admits(case)] == admitted.split()


def test_a_function_is_called_with_the_cases_that_it_can_run_and_in_its_layout(answers: Sets, tmp_path: Path) -> None:
    seen = []

    def by_token(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Any]:
        """(..., n, h, d), as flash kernels have it."""
        assert not options.keys() - {"is_causal"}
        seen.append(inputs["query"].shape)
        turned = ("query", "key", "value", "d_output")
        ours = {name: x.swapaxes(-3, -2) if name in turned else x for name, x in inputs.items()}
        found = correct(ours, options)
        return {name: x if name == "logsumexp" else x.swapaxes(-3, -2) for name, x in found.items() if x is not None}

    can = tmp_path / "mine.json"
    can.write_text(json.dumps({"takes": ["is_causal"], "axes": [4], "layout": "batch, queries, heads"}))
    report = known_answers.verify(by_token, answers["dot_product"], capabilities=can)
    assert report.ok
    assert not report.skipped
    assert len(seen) >= 2
    assert {len(shape) for shape in seen} == {4}
    shapes = {case.inputs["query"].shape for case in known_answers.load(answers["dot_product"], capabilities=can)}
    assert {(b, n, h, d) for b, h, n, d in shapes} == {*seen}


def test_results_in_files_may_have_the_layout_of_a_kernel(answers: Sets, tmp_path: Path, capsys: Printed) -> None:
    able = {"takes": [], "axes": [4], "layout": "batch, queries, heads"}
    (tmp_path / "mine.json").write_text(json.dumps(able))
    for case in known_answers.load(answers["dot_product"], capabilities=able):
        file = tmp_path / f"{case.name}.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        found = {name: x if name == "logsumexp" else x.swapaxes(1, 2) for name, x in case.answers.items()}
        file.write_bytes(files.to_bytes(found, "mine"))
    arguments = ["verify", str(tmp_path), "--answers", str(answers["dot_product"])]
    assert cli.main([*arguments, "--capabilities", str(tmp_path / "mine.json")]) == 0
    assert ", 0 skipped" in capsys.readouterr().out
    assert cli.main(arguments) == 1


def test_an_array_goes_into_another_layout_and_back() -> None:
    able = Capabilities(layout="batch, queries, heads")
    arrays = {
        "query": np.zeros((1, 2, 3, 4)), "d_d_output": np.zeros((2, 3, 4)), "beta": np.zeros((1, 2, 3)),
        "hvp_key": np.zeros((3, 4)), "logsumexp": np.zeros((1, 2, 3)), "mask": np.zeros((1, 2, 3, 4)), "bias": None,
    }  # fmt: skip
    turned = able.laid_out(arrays)
    assert [np.shape(x) for x in turned.values()] == [
        (1, 3, 2, 4), (3, 2, 4), (1, 3, 2), (3, 4), (1, 2, 3), (1, 2, 3, 4), (),
    ]  # fmt: skip
    assert [np.shape(x) for x in able.laid_out(turned).values()] == [np.shape(x) for x in arrays.values()]


@each(
    ("text", "message"),
    [
        ("[]", r"an object is expected, not \[\]"),
        ("{", "does not say what a kernel can do"),
        ('{"head_sizes": [64]}', "'head_sizes' is none of ops, dtypes, takes, d_k"),
        ('{"takes": ["dropout_q"]}', "takes: 'dropout_q' is none of tangents, mask"),
        ('{"d_k": [6.5]}', "d_k: a whole number"),
        ('{"layout": "bshd"}', "layout: 'bshd' is none of batch, heads, queries"),
    ],
)
def test_what_does_not_say_what_a_kernel_can_do_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        capable(tmp_path / "mine.json")


def test_a_set_without_a_case_that_the_kernel_can_run_is_told(answers: Sets, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no known answers of dot_product that the kernel can run$"):
        known_answers.load(answers["dot_product"], op="dot_product", capabilities={"d_k": [7777]})
    with pytest.raises(FileNotFoundError):
        capable(tmp_path / "none.json")


def test_the_file_that_the_page_shows_is_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "known-answers.md").read_text(encoding="utf-8")
    shown = page.split("```json\n")[1].split("```")[0]
    assert capable(json.loads(shown)).groups == (1, 4, 8)
