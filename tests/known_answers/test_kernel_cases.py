"""Cases that a kernel can run as they are stored: that the answers are the truth."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, each

import attention_np
from attention_np import known_answers
from attention_np.known_answers.examples import OF_KERNELS, Example, all_examples
from attention_np.known_answers.examples.kernel import FIRST, first_examples, kernel_examples
from attention_np.known_answers.formats import EIGHT_BITS, OF_CASES, dtype_of

from . import reference
from .sets import written

long = pytest.mark.long
KERNELS = kernel_examples()


def name_of(example: Example) -> str:
    return f"{example.op}/{example.name}"


def test_each_case_has_an_id_of_its_own() -> None:
    names = [name_of(example) for example in [*all_examples(), *KERNELS]]
    assert len(set(names)) == len(names)
    assert set(FIRST) <= {name_of(example) for example in KERNELS}
    assert len(set(FIRST)) == len(FIRST)


@each("dtype", ["float16", "bfloat16", EIGHT_BITS])
def test_the_inputs_are_exact_in_every_dtype_that_a_case_has(dtype: str) -> None:
    for example in KERNELS:
        for name, x in example.inputs.items() if dtype in example.dtypes else ():
            stored = x.astype(dtype_of(example.format_of(name, dtype)))
            np.testing.assert_array_equal(stored.astype(float), x, name_of(example))


def of_kernel(op: str) -> Callable[[dict[str, Array], dict[str, Any]], Any]:
    return getattr(reference, op) if op in OF_KERNELS else known_answers.of_op(getattr(attention_np, op))


SOME = {name_of(example) for op in {x.op for x in KERNELS} for example in [x for x in KERNELS if x.op == op][::5]}


def is_known_to_the_ops(example: Example) -> bool:
    """Of every fifth case of an op: fifty digits of all would take minutes."""
    return "kept" not in example.inputs and name_of(example) in SOME


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("kernels"), is_known_to_the_ops, OF_CASES, kernel_examples)


@long
@each("op", sorted({example.op for example in KERNELS}))
def test_the_ops_give_the_answers_in_every_dtype(whole: Path, op: str) -> None:
    report = known_answers.verify(of_kernel(op), whole, op=op)
    report.raise_if_failed()
    assert not report.skipped


def test_some_answers_are_those_of_the_ops(tmp_path: Path) -> None:
    some = ("kernel-causal-bottom-right", "kernel-causal-more-keys")
    few = written(tmp_path, lambda example: example.name in some, ["float32", "bfloat16"], kernel_examples)
    report = known_answers.verify(of_kernel("attention"), few, op="attention")
    report.raise_if_failed()
    assert len({x.case for x in report}) == 2 * len(some)
    statistics = {case.answers["logsumexp"].dtype for case in known_answers.load(few)}
    assert statistics == {np.dtype(np.float32)}


def test_the_first_cases_are_forty() -> None:
    assert len(first_examples()) == len(FIRST) == 40
