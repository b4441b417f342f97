"""A function is run over the cases: what is wrong is found, and what is no answer is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, each

from attention_np import dot_product, known_answers

from .sets import arguments, changed


def with_entry(number: float) -> Callable[[Array], Array]:
    def change(x: Array) -> Array:
        x[(0,) * x.ndim] = number
        return x

    return change


def test_what_is_wrong_is_told_in_a_sentence(few: Path) -> None:
    assert changed(few, with_entry(np.nan)).note == "it is NaN in 1 entry where the answer is not"
    assert changed(few, with_entry(np.inf)).note == "it is infinite in 1 entry where the answer is not"
    assert changed(few, lambda x: 0 * x, "one-key").note == "it is zero throughout"
    assert changed(few, lambda x: x.T).note == "its shape is (3, 4, 2), and that of the answer is (2, 4, 3)"
    assert changed(few, lambda x: x.astype(np.float16)).note is None
    assert changed(few, np.nan_to_num, "nan-without-gradient").note.startswith("it is finite in 6 entries")
    nothing = changed(few, lambda x: x + np.float32(1e-30), "nothing-visible")
    assert nothing.note == "it is not exactly zero in 24 entries that nothing has an influence on"
    assert changed(few, lambda x: x).note is None


def test_one_wrong_entry_is_found_and_is_the_worst(few: Path) -> None:
    found = changed(few, lambda x: x + np.where(np.arange(x.size).reshape(x.shape) == 7, np.float32(1e-5), 0))
    assert (found.ok, found.wrong, found.worst_index) == (False, 1, (0, 2, 1))
    assert found.found - found.answer == pytest.approx(1e-5, rel=0.1)


def test_a_wider_result_is_compared_as_it_is(few: Path) -> None:
    assert changed(few, lambda x: x.astype(np.float64), dtype="float16").ok
    assert changed(few, lambda x: x.astype(np.longdouble)).ok
    assert not changed(few, lambda x: x.astype(np.longdouble) * (1 + 1e-4)).ok


def test_what_a_function_writes_to_its_inputs_harms_no_answer(few: Path) -> None:
    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        output, _ = dot_product.forward(**arguments(inputs), **options)
        for x in inputs.values():
            x[...] = 0
        return {"output": output}

    assert known_answers.verify(function, few, dtypes=["float32"]).ok


@each(
    ("returned", "error", "message"),
    [
        (np.zeros(3), TypeError, r"^the function must return a dictionary of arrays, .* not ndarray"),
        (
            {"d_keys": np.zeros(3)},
            ValueError,
            r"^the function returned d_keys, which float32/softmax/rows has no answer",
        ),
        ({}, ValueError, r"^the function returned no array for float32/softmax/rows"),
        ({"output": None}, ValueError, r"^the function returned no array"),
        (
            {"output": np.zeros((3, 5), complex)},
            TypeError,
            r"^output must be an array of real numbers, not of complex128",
        ),
        ({"output": "abc"}, TypeError, r"^output must be an array of real numbers"),
    ],
)
def test_what_is_no_answer_is_refused(small: Path, returned: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        known_answers.verify(lambda *_: returned, small, op="softmax")


def test_a_function_that_implements_no_case_is_told(small: Path) -> None:
    def nothing(inputs: Any, options: Any) -> Any:
        raise NotImplementedError

    with pytest.raises(ValueError, match=r"^nothing was compared: the function skipped all 17 cases$"):
        known_answers.verify(nothing, small, op="softmax")


def test_cases_are_chosen_by_op_dtype_tag_and_name(few: Path, small: Path) -> None:
    assert {case.op for case in known_answers.load(few, op="blockwise")} == {"dot_product"}
    assert {case.dtype for case in known_answers.load(few, dtypes=["bfloat16"])} == {"bfloat16"}
    names = {case.name for case in known_answers.load(few, dtypes=["float32"], skip=["mask", "rows"])}
    assert "float32/multi_head/self-attention" in names
    assert not names & {"float32/softmax/rows", "float32/dot_product/padding"}
    with pytest.raises(ValueError, match=r"holds no known answers of additive$"):
        known_answers.load(small, op="additive")
    with pytest.raises(ValueError, match=r"holds no known answers in float64$"):
        known_answers.load(small, dtypes=["float64"])
    with pytest.raises(ValueError, match="there is no dtype called float8: there are float64"):
        known_answers.load(small, dtypes=["float8"])
    with pytest.raises(TypeError, match="dtypes must be a list of names, not the string 'float32'"):
        known_answers.load(small, dtypes="float32")


def test_what_is_hidden_must_be_exactly_zero(few: Path) -> None:
    halves = {case.name: case for case in known_answers.load(few, op="dot_product", dtypes=["float16"])}
    padding = halves["float16/dot_product/padding"]
    assert not padding.bounds["d_key"][1, 4:].any()
    assert padding.bounds["d_key"][1, :4].all()
    assert not halves["float16/dot_product/nothing-visible"].bounds["output"].any()
