"""The shell of the passes, on an op of its own: y = x v w, whose w need not be given."""

import inspect
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import each

from attention_np import dot_product, multi_head, softmax
from attention_np._lib import passes
from attention_np._lib.arrays import Array
from attention_np._lib.passes import Tangent
from attention_np._lib.wide import is_wide


class Gradients(NamedTuple):
    x: Array
    v: Array
    w: Array | None


class Cache(NamedTuple):
    x: Array
    v: Array
    w: Array | None
    weights: Array  # whose dtype is what is computed in
    output_shape: tuple[int, ...]


SEEN: list[bool] = []  # whether each run of the formulas was on numbers whose range has no end


@passes.forward
def attend(x: Array, v: Array, w: Array | None) -> tuple[Array, Cache, tuple[Array, ...]]:
    SEEN.append(is_wide(x))
    y = x * v * as_factor(w)
    return y, Cache(x=x, v=v, w=w, weights=np.asarray(x), output_shape=y.shape), (x * v,)


def as_factor(w: Array | None) -> Any:
    return 1 if w is None else w


@passes.backward
def backward(d_y: Array, cache: Cache) -> Any:
    """The gradient.

    Notes
    -----
    Of a product.
    """
    SEEN.append(is_wide(d_y))
    d_xv = d_y * as_factor(cache.w)
    return Gradients(x=d_xv * cache.v, v=d_xv * cache.x, w=d_y * cache.x * cache.v), (d_xv,)


@passes.jvp
def jvp(cache: Cache, *, x: Tangent = None, v: Tangent = None, w: Tangent = None) -> Any:
    SEEN.append(is_wide(x))
    moved: Array = (x * cache.v + cache.x * v) * as_factor(cache.w)
    return moved if w is None else moved + w * cache.x * cache.v, (moved,)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def test_gradients_have_the_shape_and_dtype_of_what_they_belong_to() -> None:
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((1, 3), np.float16)
    y, cache = attend(x=x, v=x, w=w)
    gradients = backward(np.ones_like(y), cache)
    assert (y.dtype, cache.w is w, gradients.w.dtype, gradients.w.shape) == (np.float32, True, np.float16, (1, 3))
    np.testing.assert_array_equal(gradients.w, [[9, 17, 29]])
    np.testing.assert_array_equal(jvp(cache, w=np.ones_like(w)), x * x)
    assert backward(np.ones_like(y), attend(x=x, v=x, w=None)[1]).w is None
    assert not np.may_share_memory(passes._as_gradient(y[:], x, y), y)  # a gradient that is a view of d_output


def test_what_left_the_range_on_the_way_is_worked_out_again() -> None:
    x, w = np.full(3, 1e200), np.full(3, 1e-250)
    y, cache = attend(x=x, v=x, w=w)
    np.testing.assert_allclose(y, 1e150, rtol=1e-14)
    np.testing.assert_allclose(backward(np.full(3, 1e150), cache).w, np.inf)
    np.testing.assert_allclose(jvp(cache, x=np.full(3, 1e150)), 1e100, rtol=1e-14)
    assert SEEN == [False, True] * 3


def test_what_lies_between_tells_what_the_result_does_not_show() -> None:
    tiny, huge = np.full(3, 1e-200), np.full(3, 1e250)
    _, cache = attend(x=huge, v=huge, w=tiny)
    SEEN.clear()
    given = np.full(3, 1.2345678901234567e-122)  # times w it has two digits left, which times v look like a number
    assert backward(given, cache).x[0] == pytest.approx(given[0] * 1e50, rel=1e-14)
    assert SEEN == [False, True]


def test_what_stays_in_the_range_is_worked_out_once() -> None:
    one = np.ones(3)
    y, cache = attend(x=one, v=one, w=one)
    backward(y, cache)
    jvp(cache, x=y)
    assert SEEN == [False] * 3


def test_arguments_may_be_given_by_name_and_unknown_ones_are_refused() -> None:
    y, cache = attend(x=np.ones(3), v=np.ones(3), w=None)
    np.testing.assert_array_equal(backward(d_y=y, cache=cache).x, backward(y, cache).x)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^jvp\(\) got an unexpected keyword argument 'z'"):
        jvp(cache, z=y)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^backward\(\) missing a required argument: 'cache'"):
        backward(y)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"d_y must have the shape \(3,\)"):
        backward(np.ones(2), cache)
    with pytest.raises(ValueError, match="a tangent was given for w, but forward was called without w"):
        jvp(cache, w=y)


def test_an_op_declares_nothing_of_inputs_that_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OP", passes.Op(queries="x", added=("bias",)))
    with pytest.raises(ValueError, match=r"^OP of test_passes has bias, but Gradients has x, v, w$"):
        passes.backward(backward.mathematics)


def test_an_input_that_is_declared_as_queries_may_be_a_single_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OP", passes.Op(queries="v"))
    product, differentiate, push = (
        shell(formulas.mathematics)
        for shell, formulas in ((passes.forward, attend), (passes.backward, backward), (passes.jvp, jvp))
    )
    rows, one = np.arange(6.0).reshape(2, 3), np.arange(3.0)
    y, cache = product(x=rows[:1], v=one, w=None)
    assert (y.shape, cache.v.shape, cache.output_shape) == ((3,), (3,), (3,))
    assert (differentiate(one, cache).v.shape, push(cache, v=one).shape) == ((3,), (3,))


def test_arrays_whose_dtype_is_another_object_are_taken_as_they_are() -> None:
    x = np.ones(3, np.dtype(np.float32).newbyteorder("="))  # as of a pickle
    inputs, op = (x, np.ones(3, np.float32), None), passes._Known.of(attend.mathematics)
    assert op.ready(inputs)[0] is inputs


def test_a_small_call_is_of_few_calls_of_python() -> None:
    arrays = [np.random.default_rng(k).standard_normal((1, 1, 16, 64)) for k in range(4)]
    package, calls = str(Path(passes.__file__).parents[1]), 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(package)

    dot_product.forward(*arrays[:3])
    sys.setprofile(count)
    dot_product.backward(arrays[3], dot_product.forward(*arrays[:3])[1])
    sys.setprofile(None)
    assert calls <= 126  # each takes a tenth of what NumPy takes for a product


@each("op", [softmax, dot_product, multi_head])
def test_a_pass_has_its_signature_its_formulas_and_a_whole_docstring(op: Any) -> None:
    of_backward, of_jvp = inspect.signature(op.backward), inspect.signature(op.jvp)
    assert next(iter(of_backward.parameters)).startswith("d_")
    assert (of_backward.return_annotation, of_jvp.return_annotation) == ("Gradients", "Array")
    assert {x.annotation for x in of_jvp.parameters.values()} - {"Parameters | None"} == {
        "Cache",
        "npt.ArrayLike | None",
    }
    assert inspect.getsource(op.backward.mathematics).startswith("@passes.backward")
    for function in (op.backward, op.jvp):
        sections = [line for line in function.__doc__.splitlines() if line in ("Parameters", "Returns", "Raises")]
        assert sections == ["Parameters", "Returns", "Raises"]


def test_notes_come_after_what_is_the_same_for_all_ops() -> None:
    assert backward.__doc__ is not None
    assert backward.__doc__.index("Raises") < backward.__doc__.index("Notes") < backward.__doc__.index("Of a product.")
    assert "d_y : array_like" in backward.__doc__


TYPED = """
import numpy as np

from attention_np import dot_product, linear_attention, softmax

x = np.zeros((2, 3))
weights, cache = softmax.forward(x)
softmax.backward(d_weights=[[1.0, 0.0, 0.0]] * 2, cache=cache).scores
softmax.double_backward(softmax.Gradients(x), d_weights=x, cache=cache)
output, steps = linear_attention.forward(x, x, x)
linear_attention.backward(output, steps, d_final_state=x)
softmax.backward(d_output=x, cache=cache)  # wrong
softmax.backward(x, cache, rows=x)  # wrong
softmax.backward(x)  # wrong
softmax.backward(x, dot_product.forward(x, x, x)[1])  # wrong
softmax.double_backward(softmax.Gradients(x), d_output=x, cache=cache)  # wrong
linear_attention.backward(output, steps, d_state=x)  # wrong
"""


@pytest.mark.long
def test_a_type_checker_knows_the_keywords_of_a_pass_and_no_others(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api", reason="needs mypy: pip install 'attention-np[lint]'")
    (tmp_path / "uses.py").write_text(TYPED, encoding="utf-8")
    said, _, _ = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "uses.py")])
    refused = {int(line.split(":")[1]) for line in said.splitlines() if ": error: " in line}
    assert refused == {k for k, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# wrong")}
