from typing import Any

import numpy as np
import pytest
from helpers import (
    CENTRAL,
    COMPLEX_STEP,
    Array,
    Case,
    assert_close,
    assert_gradients_close,
    leaves,
    normal,
    reference,
)

from attention_np import additive, dot_product, gradcheck, masks

SOME_HIDDEN = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]], bool)  # (4, 5)

SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "four queries, five keys": ((4, 3), (5, 2), (5, 6)),
    "one query": ((1, 3), (5, 2), (5, 6)),
    "one key": ((4, 3), (1, 2), (1, 6)),
    "one of all": ((1, 3), (1, 2), (1, 1)),
    "a query without an axis": ((3,), (5, 2), (5, 6)),
    "a query without an axis, keys in a batch": ((3,), (2, 5, 2), (2, 5, 6)),
    "a batch": ((2, 4, 3), (2, 5, 2), (2, 5, 6)),
    "queries broadcast": ((4, 3), (2, 5, 2), (2, 5, 6)),
    "keys broadcast": ((2, 4, 3), (5, 2), (2, 5, 6)),
    "values broadcast": ((2, 4, 3), (2, 5, 2), (5, 6)),
    "values with axes of their own": ((4, 3), (5, 2), (2, 5, 6)),
    "each has its own leading axis": ((3, 1, 1, 2, 3), (2, 1, 3, 2), (2, 3, 2)),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "mask of pairs": {"mask": SOME_HIDDEN},
    "mask of keys": {"mask": SOME_HIDDEN[0]},
    "mask of queries": {"mask": np.array([[True], [False], [True], [True]])},
    "mask of all": {"mask": np.array(False)},
    "mask of nothing": {"mask": np.array(True)},
    "mask of a batch": {"mask": masks.padding([5, 2], 5)},
    "causal": {"mask": masks.causal(4, 5)},
}


def arrays(name: str = "four queries, five keys", b: bool = True, h: int = 4, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    q, k, v = SHAPES[name]
    shapes = {"query": q, "key": k, "value": v, "w_query": (q[-1], h), "w_key": (k[-1], h), "w_score": (h,), "b": (h,)}
    drawn = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    if not b:
        del drawn["b"]
    return drawn


def assert_gradients(inputs: dict[str, Array], **options: Any) -> None:
    for method, rtol in (("complex-step", COMPLEX_STEP), ("central", CENTRAL)):
        report = gradcheck.check_op(additive, inputs, method=method, **options)
        report.raise_if_failed()
        assert report["jvp"].max_relative_error <= 1e-15
        for name in inputs:
            assert report[name].max_relative_error <= rtol


@pytest.mark.parametrize("b", [True, False], ids=["with b", "without b"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_gradients_of_all_arrays_for_all_shapes(shapes: str, b: bool) -> None:
    assert_gradients(arrays(shapes, b))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_under_every_kind_of_mask(options: dict[str, Any]) -> None:
    assert_gradients(arrays("a batch"), **options)


@pytest.mark.parametrize("h", [1, 9])
def test_gradients_for_any_number_of_hidden_units(h: int) -> None:
    assert_gradients(arrays(h=h))


def every_case() -> dict[str, Case]:
    cases = {f"{name}, b={b}": Case(additive, arrays(name, b), {}) for name in SHAPES for b in (True, False)}
    return cases | {name: Case(additive, arrays("a batch"), options) for name, options in OPTIONS.items()}


@pytest.mark.parametrize("case", every_case().values(), ids=every_case())
def test_output_and_gradients_are_those_of_plain_loops(case: Case) -> None:
    output, cache = case.forward()
    d_output = normal(9, *output.shape)
    expected, expected_gradients = reference(case, d_output)
    assert_close(output, expected, 2e-15)
    gradients = dict(leaves(additive.backward(d_output, cache)))
    assert set(gradients) == set(case.inputs)
    assert_gradients_close(gradients, expected_gradients, 1e-14)


def test_the_cache_names_the_intermediates() -> None:
    x = arrays()
    output, cache = additive.forward(**x, mask=SOME_HIDDEN)
    assert all(getattr(cache, name) is array for name, array in x.items())
    queries, keys = x["query"] @ x["w_query"], x["key"] @ x["w_key"]
    assert_close(cache.hidden, np.tanh(queries[:, None] + keys[None] + x["b"]), 1e-15)
    assert_close(cache.scores, cache.hidden @ x["w_score"], 1e-15)
    assert_close(cache.weights @ x["value"], output, 1e-15)
    np.testing.assert_array_equal(cache.weights > 0, SOME_HIDDEN)


def test_saturated_units_have_no_gradient_and_do_no_harm() -> None:
    x = arrays()
    _, cache = additive.forward(**{**x, "b": np.full(4, 1e200)})
    gradients = additive.backward(normal(1, 4, 6), cache)
    for name in ("query", "key", "w_query", "w_key", "b"):
        assert (getattr(gradients, name) == 0).all()


def test_complex_input_continues_the_function_analytically() -> None:
    for options in OPTIONS.values():
        inputs = {k: x + 0.2j * normal(7, *x.shape) for k, x in arrays("a batch").items()}
        case = Case(additive, inputs, options)
        assert_close(case.forward()[0], reference(case)[0], 1e-13)


@pytest.mark.parametrize("name", ["query", "key", "value", "w_query", "w_key", "w_score", "b"])
def test_gradients_at_a_complex_point_are_the_complex_derivative(name: str) -> None:
    inputs = {k: x + 0.2j * normal(7, *x.shape) for k, x in arrays().items()}
    case = Case(additive, inputs, {"mask": SOME_HIDDEN})
    output, cache = case.forward()
    d_output = normal(2, *output.shape) + 1j * normal(3, *output.shape)
    gradient = getattr(additive.backward(d_output, cache), name)
    tangent = normal(4, *inputs[name].shape) + 1j * normal(5, *inputs[name].shape)
    h = 1e-5
    ahead, behind = (case.forward(**{name: inputs[name] + s * h * tangent})[0] for s in (1, -1))
    expected = (d_output * (ahead - behind)).sum() / (2 * h)
    assert abs((gradient * tangent).sum() - expected) <= 1e-7 * abs(expected)
    moved = additive.jvp(cache, **{name: tangent})
    assert abs((d_output * moved).sum() - (gradient * tangent).sum()) <= 1e-12


@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 3), (5, 2), (5, 6)),
        ((4, 3), (0, 2), (0, 6)),
        ((4, 3), (5, 2), (5, 0)),
        ((4, 0), (5, 0), (5, 6)),
        ((0, 4, 3), (0, 5, 2), (0, 5, 6)),
        ((0, 4, 3), (5, 2), (5, 6)),
        ((3,), (0, 2), (0, 6)),
    ],
    ids=str,
)
@pytest.mark.parametrize("h", [0, 4])
@pytest.mark.parametrize("options", [{}, {"mask": np.array(True)}, {"mask": np.array(False)}])
def test_zero_lengths_give_results_of_the_right_shape(
    shapes: tuple[tuple[int, ...], ...], h: int, options: dict[str, Any]
) -> None:
    q, k, v = shapes
    shapes_of = {"query": q, "key": k, "value": v}
    shapes_of |= {"w_query": (q[-1], h), "w_key": (k[-1], h), "w_score": (h,), "b": (h,)}
    inputs = {name: normal(i, *shape) for i, (name, shape) in enumerate(shapes_of.items())}
    case = Case(additive, inputs, options)
    output, cache = case.forward()
    d_output = normal(9, *output.shape)
    expected, expected_gradients = reference(case, d_output)
    gradients = dict(leaves(additive.backward(d_output, cache)))
    assert_close(output, expected, 2e-15)
    assert_gradients_close(gradients, expected_gradients, 1e-14)
    assert additive.jvp(cache, **inputs).shape == output.shape
    if 0 in k[:-1]:
        assert (output == 0).all()
        assert all((gradient == 0).all() for gradient in gradients.values())


VAST = 10**15  # so many queries that no arithmetic on them could even allocate its result


def zeros(*shape: int, dtype: Any = float) -> Array:
    return np.broadcast_to(np.zeros((), dtype), shape)


NAMES = ("query", "key", "value", "w_query", "w_key", "w_score", "b")

BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    **{
        f"integer {name}": ({name: zeros(5, 2, dtype=int)}, TypeError, rf"^{name} must hold floating-point.*int64.*\(5")
        for name in NAMES
    },
    "object query": ({"query": zeros(4, 3, dtype=object)}, TypeError, r"query must hold floating-point.*object"),
    "boolean w_key": ({"w_key": zeros(2, 4, dtype=bool)}, TypeError, r"w_key must hold floating-point.*bool"),
    "a number for a query": ({"query": 1.0}, ValueError, r"query must have at least one axis"),
    "one axis for the key": ({"key": zeros(3)}, ValueError, r"key must have at least two axes.*key\.shape=\(3,\)"),
    "lengths": (
        {"value": zeros(6, 2)},
        ValueError,
        r"5 keys and 6 values \(key\.shape=\(5, 2\), value\.shape=\(6, 2\)\)",
    ),
    "leading axes": (
        {"key": zeros(2, 5, 2), "value": zeros(3, 5, 6)},
        ValueError,
        r"leading axes.*do not broadcast.*key\.shape=\(2, 5, 2\), value\.shape=\(3, 5, 6\)",
    ),
    "features of the query": (
        {"w_query": zeros(2, 4)},
        ValueError,
        r"w_query takes 2 features but query has 3 \(w_query\.shape=\(2, 4\), query\.shape=\({n}, 3\)\)",
    ),
    "features of the key": (
        {"w_key": zeros(3, 4)},
        ValueError,
        r"w_key takes 3 features but key has 2 \(w_key\.shape=\(3, 4\), key\.shape=\(5, 2\)\)",
    ),
    "w_query as a vector": ({"w_query": zeros(3)}, ValueError, r"w_query must have two axes.*w_query\.shape=\(3,\)"),
    "w_key in a batch": ({"w_key": zeros(2, 2, 4)}, ValueError, r"w_key must have two axes.*\(2, 2, 4\)"),
    "hidden units": (
        {"w_key": zeros(2, 3)},
        ValueError,
        r"w_query and w_key.*to 4 and 3 \(w_query\.shape=\(3, 4\), w_key\.shape=\(2, 3\)\)",
    ),
    "w_score": ({"w_score": zeros(3)}, ValueError, r"w_score must have the shape \(4,\) \(w_score\.shape=\(3,\)\)"),
    "w_score as a matrix": ({"w_score": zeros(4, 1)}, ValueError, r"w_score must have the shape \(4,\).*\(4, 1\)"),
    "b": ({"b": zeros(1)}, ValueError, r"b must have the shape \(4,\) \(b\.shape=\(1,\)\)"),
    "integer mask": ({"mask": np.ones(5, int)}, TypeError, r"mask must be boolean.*int64 \(mask\.shape=\(5,\)\)"),
    "mask": (
        {"mask": np.ones(4, bool)},
        ValueError,
        r"mask must broadcast to the scores, whose shape is \({n}, 5\) \(mask\.shape=\(4,\)\)",
    ),
}


@pytest.mark.parametrize("n", [4, VAST])
@pytest.mark.parametrize(("changed", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_before_any_arithmetic(
    changed: dict[str, Any], error: type[Exception], message: str, n: int
) -> None:
    good = {**arrays(), "query": zeros(n, 3)}
    with pytest.raises(error, match=message.replace("{n}", str(n))):
        additive.forward(**{**good, **changed})


@pytest.mark.parametrize("shape", [(), (6,), (4, 1), (6, 4), (1, 4, 6)], ids=str)
def test_a_cotangent_of_another_shape_is_refused_even_if_it_broadcasts(shape: tuple[int, ...]) -> None:
    _, cache = additive.forward(**arrays())
    with pytest.raises(ValueError, match=r"d_output must have the shape \(4, 6\)") as caught:
        additive.backward(np.zeros(shape), cache)
    assert f"d_output.shape={shape}" in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_tangent_of_another_shape_is_refused_even_if_it_broadcasts(name: str) -> None:
    _, cache = additive.forward(**arrays())
    with pytest.raises(ValueError, match=rf"the tangent of {name} must have the shape.*\(1, 1\)"):
        additive.jvp(cache, **{name: np.zeros((1, 1))})


def test_a_tangent_for_a_b_that_there_was_not_is_refused() -> None:
    _, cache = additive.forward(**arrays(b=False))
    with pytest.raises(ValueError, match="tangent was given for b, but forward was called without b"):
        additive.jvp(cache, b=np.zeros(4))


def test_a_cache_of_another_op_is_refused() -> None:
    x = normal(0, 4, 3)
    for cache in (dot_product.forward(x, x, x)[1], None, ()):
        with pytest.raises(TypeError, match=r"cache must be the one that additive\.forward returned, not"):
            additive.backward(x, cache)
        with pytest.raises(TypeError, match=r"cache must be the one that additive\.forward returned, not"):
            additive.jvp(cache, query=x)


def test_a_sum_that_leaves_the_range_on_its_way_gives_the_score_that_it_comes_to() -> None:
    one = np.array([[100.0]])  # whose tanh is one
    w_score = np.array([1.5e308, 1e308, -1.5e308])
    _, cache = additive.forward(one, one, one, np.ones((1, 3)), np.ones((1, 3)), w_score)
    np.testing.assert_array_equal(cache.scores, [[1e308]])


def test_projections_that_do_not_fit_have_the_weights_that_they_say() -> None:
    huge = np.float32(1e30)
    query, key, value = np.array([[huge]]), np.array([[huge], [-huge]]), np.array([[1], [3]], np.float32)
    one = np.ones(1, np.float32)
    output, cache = additive.forward(query, key, value, np.array([[huge]]), np.array([[-2 * huge]]), one)
    share = 1 / (1 + np.exp(2))  # tanh(-inf) = -1 against tanh(inf) = 1
    np.testing.assert_allclose(output, share + 3 * (1 - share), rtol=1e-6)
    gradients = additive.backward(np.ones_like(output), cache)
    np.testing.assert_allclose(gradients.value, [[share], [1 - share]], rtol=1e-6)
    for gradient in (gradients.query, gradients.key, gradients.w_query, gradients.w_key):
        np.testing.assert_array_equal(gradient, 0)
    np.testing.assert_allclose(gradients.w_score, 4 * share * (1 - share), rtol=1e-6)


def test_a_tangent_that_overflows_on_its_way_is_found() -> None:
    ten, value = np.full((1, 2), 10.0), np.array([[1.0], [2.0]])
    _, cache = additive.forward(np.zeros((1, 1)), np.zeros((2, 1)), value, ten, ten, np.ones(2))
    moved = additive.jvp(cache, query=np.array([[1e308]]), key=np.array([[-1e308], [-0.9e308]]))
    np.testing.assert_allclose(moved, [[5e307]])  # scores that move by 0 and 2e308, of weights of one half
