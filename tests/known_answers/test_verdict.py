"""One sentence over all cases that fail names what explains every number of them; where nothing does, there is none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from helpers import Array, Patch, Printed, each

from attention_np import cli, dot_product, known_answers
from attention_np.known_answers import files

from .sets import Sets, standard

correct = known_answers.of_op(dot_product)
Function = Callable[[dict[str, Array], dict[str, Any]], dict[str, Array]]


def half(x: Array) -> Array:
    return np.asarray(x.astype(np.float16).astype(x.dtype))


def planted(**ways: Any) -> Function:
    return lambda inputs, options: standard(inputs, options, **ways)


def returned(change: Callable[[str, Array], Array]) -> Function:
    """Right arrays, each changed by its name."""
    return lambda inputs, options: {
        name: change(name, x) for name, x in correct(inputs, options).items() if x is not None
    }


def read(change: Callable[[dict[str, Array], dict[str, Any]], Any]) -> Function:
    """The op with its inputs and options read otherwise."""

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        change(inputs, options)
        return correct(inputs, options)

    return function


def softcap_after_mask(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    if set(inputs) - {"query", "key", "value", "mask", "d_output"} or set(options) - {"softcap"}:
        raise NotImplementedError
    q, k, v = (inputs[name] for name in ("query", "key", "value"))
    mask = inputs.get("mask", np.True_)
    if not mask.any(-1).all():
        raise NotImplementedError
    cap = q.dtype.type(options.get("softcap", np.inf))
    scores = np.where(mask, q @ k.swapaxes(-1, -2) * q.dtype.type(q.shape[-1] ** -0.5), -np.inf).astype(q.dtype)
    scores = cap * np.tanh(scores / cap) if np.isfinite(cap) else scores
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return {"output": weights / weights.sum(-1, keepdims=True) @ v}


def without_sink_in_logsumexp(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    rest = {name: x for name, x in inputs.items() if name != "sink"}
    return correct(inputs, options) | {"logsumexp": correct(rest, options).get("logsumexp")}


def flip(inputs: dict[str, Array], _: Any) -> None:
    if "mask" in inputs:
        inputs["mask"] = ~inputs["mask"]


NAMED: dict[str, tuple[Function, str]] = {
    "no scale": (planted(scale=1.0), "another convention than these answers: the scale, which is 1."),
    "aligned with the last key": (planted(causal="aligned last"), "the causal mask, which is aligned bottom-right."),
    "a mask that hides": (read(flip), "the mask, which hides where it is true."),
    "a softcap that comes last": (softcap_after_mask, "the softcap, which is after mask."),
    "a log-sum-exp without the sink": (without_sink_in_logsumexp, "Its logsumexp follows another convention"),
    "to the base of two": (
        returned(lambda name, x: x / np.log(2).astype(x.dtype) if name == "logsumexp" else x),
        "the log-sum-exp, which is base 2.",
    ),
    "no mean": (planted(mean=False), "d_query and d_key lack the mean that the gradient of softmax takes away."),
    "no scale in one gradient": (planted(key_scale=np.float32(1)), "d_key lacks the scale."),
    "a gradient of the wrong sign": (
        returned(lambda name, x: -x if name == "d_value" else x),
        "d_value is -1 times the answer.",
    ),
    "a gradient that is zero": (returned(lambda name, x: 0 * x if name == "d_sink" else x), "d_sink is zero"),
    "queries and keys in half": (
        planted(products_in=np.float16),
        "Right, but its scores are of queries and keys rounded to 11",
    ),
    "an output in half": (
        returned(lambda name, x: half(x) if name == "output" else x),
        "Right, but its results are rounded to 11 bits",
    ),
}


@each(("function", "said"), NAMED.values())
def test_a_bug_or_a_convention_is_named_over_all_cases(answers: Sets, function: Function, said: str) -> None:
    report = known_answers.verify(function, answers["dot_product"], skip=["hidden non-finite", "infinite scores"])
    assert not report.ok
    assert said in (report.verdict or "None")
    assert len(str(report).splitlines()) <= 20


@each(
    "function",
    [
        planted(epsilon=1e-5),
        returned(lambda name, x: x + x.dtype.type(1e-4) if name == "d_query" else x),
    ],
    long=[
        returned(lambda name, x: np.where(np.arange(x.size).reshape(x.shape) == 1, 0, x) if name == "output" else x),
        returned(lambda name, x: x * x.dtype.type(1.001)),
    ],
)
def test_what_no_cause_explains_has_no_verdict(answers: Sets, function: Function) -> None:
    report = known_answers.verify(function, answers["dot_product"], skip=["hidden non-finite", "infinite scores"])
    assert not report.ok
    assert report.verdict is None


def test_a_cause_that_explains_all_cases_but_one_is_not_named(answers: Sets) -> None:
    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        found = standard(inputs, options, key_scale=np.float32(1))
        return found | ({"d_key": found["d_key"] * np.float32(1.01)} if options.get("is_causal") else {})

    assert known_answers.verify(function, answers["dot_product"], skip=["hidden non-finite"]).verdict is None


def test_right_functions_have_no_verdict(answers: Sets) -> None:
    report = known_answers.verify(correct, answers["dot_product"])
    assert report.ok
    assert report.verdict is None


def test_arrays_that_have_each_a_cause_of_their_own_are_each_named(answers: Sets) -> None:
    function = returned(lambda name, x: {"d_value": -x, "d_key": 2 * x}.get(name, x))
    report = known_answers.verify(function, answers["dot_product"])
    assert "d_key is 2 times the answer." in str(report.verdict)
    assert "d_value is -1 times the answer." in str(report.verdict)


def test_a_case_in_which_the_function_raises_has_failed_and_the_others_go_on(answers: Sets) -> None:
    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        if options.get("is_causal"):
            raise ZeroDivisionError("mine")
        return correct(inputs, options)

    report = known_answers.verify(function, answers["dot_product"])
    assert report.verdict == f"It raised ZeroDivisionError in {len(report.failed)} cases."
    raised = [x for x in report.failed if x.note == "it raised ZeroDivisionError: mine"]
    assert len(raised) == len(report.failed) >= 4
    assert sum(x.ok for x in report) > 300
    assert "float32/dot_product/causal (" in str(report)
    assert "): it raised ZeroDivisionError: mine" in str(report)
    assert len(str(report).splitlines()) <= 20


def test_a_function_that_raises_in_some_cases_has_a_verdict_on_the_others(answers: Sets) -> None:
    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        if options.get("is_causal"):
            raise ZeroDivisionError("mine")
        return standard(inputs, options, key_scale=np.float32(1))

    verdict = str(known_answers.verify(function, answers["dot_product"], skip=["hidden non-finite"]).verdict)
    assert verdict.startswith("d_key lacks the scale. That explains every number in the ")
    assert verdict.endswith(" cases that fail. It raised ZeroDivisionError in 11 cases.")


def test_a_failure_shows_its_tags_with_reasons_and_threads(answers: Sets, monkeypatch: Patch) -> None:
    monkeypatch.setattr("attention_np.known_answers.verdict.verdict_of", lambda *_: None)  # it takes a second
    function = returned(lambda name, x: x + x.dtype.type(1))
    report = known_answers.verify(function, answers["dot_product"])
    shown = str(report["softcap", "output"]).splitlines()[-1]
    assert shown == "    softcap: scores s are c tanh(s / c), before bias and mask (onnx/onnx#7865, onnx/onnx#7867)"
    assert len(str(report).splitlines()) <= 20
    (case,) = (x for x in known_answers.load(answers["dot_product"]) if x.name.endswith("/softcap"))
    assert case.flags["softcap"].threads == ("onnx/onnx#7865", "onnx/onnx#7867")


def test_a_function_is_asked_for_its_conventions_and_whose_they_are(answers: Sets) -> None:
    report = known_answers.verify(planted(causal="aligned last"), answers["dot_product"], skip=["hidden non-finite"])
    assert str(report.verdict).endswith("Yours is PyTorch's, but for the causal mask, which is aligned bottom-right.")


def test_right_cases_whose_inputs_hold_nan_hide_no_convention(answers: Sets) -> None:
    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        if options.keys() - {"is_causal"} or inputs.keys() - {"query", "key", "value", "d_output"}:
            raise NotImplementedError
        q, k, v = (inputs[name] for name in ("query", "key", "value"))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
        if options.get("is_causal"):
            scores = np.where(np.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2]) > 0, scores, -np.inf)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            return {"output": weights / weights.sum(-1, keepdims=True) @ v}

    verdict = str(known_answers.verify(function, answers["dot_product"]).verdict)
    assert "the causal mask, which is aligned bottom-right and a row without keys, which gives NaN." in verdict


def aligned_last(answers: Sets, folder: Path, base: float = np.e) -> Path:
    """The results of somebody whose causal mask is aligned with the last key, in files."""
    for case in known_answers.load(answers["dot_product"], skip=["hidden non-finite"]):
        try:
            found = standard(dict(case.inputs), dict(case.options), causal="aligned last")
        except NotImplementedError:
            continue
        found["logsumexp"] = found["logsumexp"] / np.float32(np.log(base))
        file = folder / f"{case.name}.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(files.to_bytes(found, "somebody's"))
    return folder


def test_two_conventions_at_once_are_named_of_results_in_files(answers: Sets, tmp_path: Path) -> None:
    aligned_last(answers, tmp_path, base=2)
    report = known_answers.verify_files(tmp_path, answers["dot_product"])
    both = "the log-sum-exp, which is base 2 and the causal mask, which is aligned bottom-right"
    assert f"another convention than these answers: {both}." in str(report.verdict)


def test_files_of_results_are_held_against_a_set_by_a_command(answers: Sets, tmp_path: Path, capsys: Printed) -> None:
    results = aligned_last(answers, tmp_path)
    arguments = ["verify", str(results), "--answers", str(answers["dot_product"])]
    assert cli.main(arguments) == 1
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].startswith(
        "It follows another convention than these answers: the causal mask, which"
    )
    assert len(printed.splitlines()) <= 20
    assert cli.main(["verify", str(answers["dot_product"]), "--answers", str(answers["dot_product"])]) == 0
    assert "NO" not in capsys.readouterr().out
    assert cli.main(["verify", str(results / "none"), "--answers", str(answers["dot_product"])]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert cli.main(["verify", str(results), "--answers", str(answers["softmax"])]) == 2
    assert "has a result for none of the" in capsys.readouterr().err
    (results / "float32" / "dot_product" / "plain.safetensors").write_bytes(b"nothing")
    assert cli.main(arguments) == 1
    assert "cannot be read" in capsys.readouterr().out
