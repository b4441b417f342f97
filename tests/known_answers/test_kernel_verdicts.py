"""Of cases in the shapes of kernels, too, a convention is named over all that fail, of a function and of files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, each

from attention_np import known_answers
from attention_np.known_answers import files
from attention_np.known_answers.examples.kernel import kernel_examples

from . import reference
from .sets import written

pytestmark = pytest.mark.long  # its set takes seconds to write
Function = Callable[[dict[str, Array], dict[str, Any]], Any]
NAMES = ("kernel-causal-bottom-right", "kernel-causal-more-keys", "kernel-groups-of-4", "kernel-one-query")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    return written(folder, lambda x: x.name in NAMES, ["float32"], kernel_examples)


def read(**changes: Any) -> Function:
    """The reference with other options; None takes one away."""

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> Any:
        given = {name: changes.get(name, x) for name, x in options.items()}
        return reference.attention(inputs, {name: x for name, x in given.items() if x is not None})

    return function


def tiled(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    few = inputs["key"].shape[1]
    order = np.argsort(np.arange(inputs["query"].shape[1]) % few, kind="stable")  # heads of one key side by side
    back = np.argsort(order)
    sorted_heads = {name: x[:, order] if name in ("query", "d_output") else x for name, x in inputs.items()}
    found = reference.attention(sorted_heads, options)
    return {name: x[:, back] if name in ("output", "logsumexp", "d_query") else x for name, x in found.items()}


@each(
    ("function", "said"),
    [
        (read(alignment=None), "another convention than these answers: the alignment, which is ignored."),
        (read(is_causal=None), "another convention than these answers: the causal mask, which is ignored."),
        (tiled, "another convention than these answers: the order of heads, which is tiled."),
    ],
)
def test_a_convention_of_a_kernel_is_named(kernels: Path, tmp_path: Path, function: Function, said: str) -> None:
    report = known_answers.verify(function, kernels, op="attention")
    assert not report.ok
    assert said in str(report.verdict)
    for case in known_answers.load(kernels):
        file = tmp_path / f"{case.name}.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(files.to_bytes(function(dict(case.inputs), dict(case.options)), "mine"))
    assert said in str(known_answers.verify_files(tmp_path, kernels).verdict)


def test_a_kernel_that_is_right_has_no_verdict(kernels: Path) -> None:
    report = known_answers.verify(reference.attention, kernels, op="attention")
    assert report.ok
    assert report.verdict is None
