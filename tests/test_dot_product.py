import re
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
    assert_same_bits,
    leaves,
    normal,
    reference,
)

from attention_np import dot_product, gradcheck, masks, softmax

SOME_HIDDEN = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]], bool)  # (4, 5)

SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "four queries, five keys": ((4, 3), (5, 3), (5, 2)),
    "one query": ((1, 3), (5, 3), (5, 2)),
    "one key": ((4, 3), (1, 3), (1, 2)),
    "one of all": ((1, 1), (1, 1), (1, 1)),
    "wide values": ((2, 2), (3, 2), (3, 7)),
    "a query without an axis": ((3,), (5, 3), (5, 2)),
    "a query without an axis, keys in a batch": ((3,), (2, 5, 3), (2, 5, 2)),
    "a batch": ((2, 4, 3), (2, 5, 3), (2, 5, 2)),
    "queries broadcast": ((4, 3), (2, 5, 3), (2, 5, 2)),
    "keys broadcast": ((2, 4, 3), (5, 3), (2, 5, 2)),
    "values broadcast": ((2, 4, 3), (2, 5, 3), (5, 2)),
    "values with axes of their own": ((4, 3), (5, 3), (2, 5, 2)),
    "values with axes of their own before a batch": ((2, 4, 3), (5, 3), (3, 1, 5, 2)),
    "each has its own leading axis": ((3, 1, 1, 2, 2), (2, 1, 3, 2), (2, 3, 2)),
}


def arrays(name: str = "four queries, five keys", seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {k: rng.standard_normal(s) for k, s in zip(("query", "key", "value"), SHAPES[name], strict=True)}


BIAS_SHAPES: list[tuple[int, ...]] = [
    (),
    (1,),
    (5,),
    (1, 5),
    (4, 1),
    (4, 5),
    (1, 1, 1),
    (2, 1, 1),
    (2, 1, 5),
    (2, 4, 5),
]

OPTIONS: dict[str, dict[str, Any]] = {
    "mask of pairs": {"mask": SOME_HIDDEN},
    "mask of keys": {"mask": SOME_HIDDEN[0]},
    "mask of queries": {"mask": np.array([[True], [False], [True], [True]])},
    "mask of all": {"mask": np.array(False)},
    "mask of nothing": {"mask": np.array(True)},
    "mask of a batch": {"mask": masks.padding([5, 2], 5)},
    "a padding of everything": {"mask": masks.padding([3, 0], 5)},
    "causal": {"is_causal": True},
    "causal with a mask": {"is_causal": True, "mask": SOME_HIDDEN},
    "scale": {"scale": 0.3},
    "negative scale": {"scale": -2.0},
    "no scale": {"scale": 0.0},
    "dropout": {"dropout_p": 0.4, "rng": 3},
    "hardly any dropout": {"dropout_p": 1e-9, "rng": 3},
    "much dropout": {"dropout_p": 0.9, "rng": 3},
    "everything": {"mask": SOME_HIDDEN, "is_causal": True, "scale": 0.7, "dropout_p": 0.3, "rng": 5},
}


def assert_gradients(inputs: dict[str, Array], methods: tuple[str, ...], **options: Any) -> None:
    for method in methods:
        report = gradcheck.check_op(dot_product, inputs, method=method, **options)
        report.raise_if_failed()
        assert report["jvp"].max_relative_error <= 1e-15
        for name in inputs:
            assert report[name].max_relative_error <= (COMPLEX_STEP if method == "complex-step" else CENTRAL)


BOTH = ("complex-step", "central")


@pytest.mark.parametrize("shapes", SHAPES)
def test_gradients_for_all_shapes(shapes: str) -> None:
    assert_gradients(arrays(shapes), BOTH)


@pytest.mark.parametrize("shape", BIAS_SHAPES, ids=str)
def test_gradients_with_a_bias_of_any_shape_that_broadcasts(shape: tuple[int, ...]) -> None:
    assert_gradients({**arrays("a batch"), "bias": normal(1, *shape)}, BOTH)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_under_every_option(options: dict[str, Any]) -> None:
    assert_gradients({**arrays("a batch"), "bias": normal(1, 4, 5)}, BOTH, **options)


@pytest.mark.parametrize(("n", "m"), [(3, 6), (6, 3), (1, 4), (4, 1)])
def test_gradients_of_causal_attention_between_lengths_that_differ(n: int, m: int) -> None:
    inputs = {"query": normal(0, n, 3), "key": normal(1, m, 3), "value": normal(2, m, 2)}
    assert_gradients(inputs, BOTH, is_causal=True)


@pytest.mark.parametrize(
    "bias",
    [
        np.array([0.0, -np.inf, 1.0, 0.5, -np.inf]),
        np.where(SOME_HIDDEN, 0.5, -np.inf),
        np.where(SOME_HIDDEN, 0.5, np.inf),
        np.array(-np.inf),
    ],
    ids=["keys hidden", "pairs hidden", "limits", "all hidden"],
)
def test_gradients_with_an_infinite_bias(bias: Array) -> None:
    assert_gradients({**arrays("a batch"), "bias": bias}, ("complex-step",))


@pytest.mark.parametrize("size", [1e-3, 30.0])
def test_gradients_of_flat_and_of_sharp_attention(size: float) -> None:
    inputs = arrays("a batch")
    assert_gradients({**inputs, "query": size * inputs["query"]}, ("complex-step",))


def every_case() -> dict[str, Case]:
    cases = {name: Case(dot_product, arrays(name), {}) for name in SHAPES}
    cases |= {f"bias {s}": Case(dot_product, {**arrays("a batch"), "bias": normal(1, *s)}, {}) for s in BIAS_SHAPES}
    inputs = {**arrays("a batch"), "bias": normal(1, 4, 5)}
    return cases | {n: Case(dot_product, inputs, o) for n, o in OPTIONS.items() if "dropout_p" not in o}


@pytest.mark.parametrize("case", every_case().values(), ids=every_case())
def test_output_and_gradients_are_those_of_plain_loops(case: Case) -> None:
    output, cache = case.forward()
    d_output = normal(9, *output.shape)
    gradients = dict(leaves(dot_product.backward(d_output, cache)))
    expected, expected_gradients = reference(case, d_output)
    assert_close(output, expected, 2e-15)
    assert set(gradients) == set(case.inputs)
    assert_gradients_close(gradients, expected_gradients, 1e-14)


def test_the_cache_names_the_intermediates() -> None:
    x = arrays()
    bias = normal(1, 4, 5)
    output, cache = dot_product.forward(**x, bias=bias, mask=SOME_HIDDEN)
    assert all(getattr(cache, name) is array for name, array in x.items())
    assert cache.bias is bias
    assert cache.scale == 1 / np.sqrt(3)
    np.testing.assert_array_equal(cache.mask, SOME_HIDDEN)
    assert_close(cache.scores, np.einsum("ia,ja->ij", x["query"], x["key"]) / np.sqrt(3) + bias, 1e-15)
    assert_close(np.einsum("ij,jc->ic", cache.weights, x["value"]), output, 1e-15)
    assert cache.dropout is None


def test_a_float_scale_is_the_default_one_when_it_says_the_same() -> None:
    x = arrays()
    expected, _ = dot_product.forward(**x)
    assert_same_bits(dot_product.forward(**x, scale=1 / np.sqrt(3))[0], expected)


def test_causal_attention_is_aligned_top_left() -> None:
    for n, m in ((3, 5), (5, 3), (4, 4)):
        x = {"query": normal(0, n, 3), "key": normal(1, m, 3), "value": normal(2, m, 2)}
        _, cache = dot_product.forward(**x, is_causal=True)
        np.testing.assert_array_equal(cache.weights > 0, np.arange(m) <= np.arange(n)[:, None])


# Dropout


def test_a_seed_gives_the_same_draws_again_and_another_seed_others() -> None:
    x = {"query": normal(0, 20, 3), "key": normal(1, 30, 3), "value": normal(2, 30, 2)}
    first, second, third = (dot_product.forward(**x, dropout_p=0.5, rng=seed)[1].dropout for seed in (7, 7, 8))
    assert_same_bits(first, second)
    assert (first != third).mean() > 0.4


def test_a_generator_is_advanced_by_exactly_one_integer_whatever_the_size() -> None:
    for n in (0, 1, 50):
        used, expected = np.random.default_rng(3), np.random.default_rng(3)
        x = np.ones((n, 2))
        dot_product.forward(x, x, x, dropout_p=0.5, rng=used)
        expected.integers(2**63)
        assert used.bit_generator.state == expected.bit_generator.state


def test_a_generator_gives_other_draws_each_time_and_the_same_ones_from_the_same_state() -> None:
    x = np.ones((10, 10))
    used, again = np.random.default_rng(3), np.random.default_rng(3)
    draws = [dot_product.forward(x, x, x, dropout_p=0.5, rng=used)[1].dropout for _ in range(2)]
    repeated = [dot_product.forward(x, x, x, dropout_p=0.5, rng=again)[1].dropout for _ in range(2)]
    assert (draws[0] != draws[1]).any()
    for one, other in zip(draws, repeated, strict=True):
        assert_same_bits(one, other)


def test_numpys_booleans_will_do_for_is_causal() -> None:
    x = arrays()
    for flag in (True, False):
        assert_same_bits(
            dot_product.forward(**x, is_causal=np.bool_(flag))[0], dot_product.forward(**x, is_causal=flag)[0]
        )


def test_no_dropout_draws_nothing() -> None:
    x = arrays()
    used = np.random.default_rng(3)
    _, cache = dot_product.forward(**x, dropout_p=0.0, rng=used)
    assert used.bit_generator.state == np.random.default_rng(3).bit_generator.state
    assert cache.dropout is None


def dropout_of(shape: tuple[int, ...], p: float = 0.5, rng: Any = 3, dtype: Any = float) -> Array:
    *leading, n, m = shape
    x = np.zeros((*leading, n, 1), dtype), np.zeros((*leading, m, 1), dtype)
    return dot_product.forward(x[0], x[1], x[1], dropout_p=p, rng=rng)[1].dropout


@pytest.mark.parametrize("shape", [(12, 7), (3, 4, 7), (2, 3, 2, 7), (12, 1, 7)], ids=str)
def test_draws_depend_on_the_row_of_the_scores_and_not_on_how_rows_are_grouped(shape: tuple[int, ...]) -> None:
    assert_same_bits(dropout_of(shape).reshape(12, 7), dropout_of((12, 7)))


def test_the_first_rows_draw_the_same_however_many_rows_follow() -> None:
    assert_same_bits(dropout_of((5, 9)), dropout_of((50, 9))[:5])


@pytest.mark.parametrize("m", [1, 3, 7, 8])
def test_the_first_keys_of_a_step_draw_the_same_however_many_keys_follow_in_it(m: int) -> None:
    assert_same_bits(dropout_of((5, m)), dropout_of((5, 8))[:, :m])


@pytest.mark.parametrize("m", [1, 5, 8, 13, 100])
def test_draws_are_those_of_philox_at_the_place_in_the_scores(m: int) -> None:
    width = (m + 7) // 8 * 8
    key = int(np.random.default_rng(3).integers(2**63))
    for row in range(4):
        stream = np.random.Philox(key=key)
        stream.advance(row * width // 8)  # a step of the counter is eight draws of 32 bits
        words = stream.random_raw(width // 2)
        draws = np.stack([words & 0xFFFFFFFF, words >> 32], axis=1).ravel()[:m]
        np.testing.assert_array_equal(dropout_of((4, m))[row] != 0, draws >= 2**31)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_weights_are_kept_at_the_rate_that_was_asked_for(p: float) -> None:
    dropped = dropout_of((1000, 1000), p) == 0
    sigma = np.sqrt(p * (1 - p))
    assert abs(dropped.mean() - p) < 5 * sigma / 1000
    assert np.abs(dropped.mean(axis=0) - p).max() < 6 * sigma / np.sqrt(1000)
    assert np.abs(dropped.mean(axis=1) - p).max() < 6 * sigma / np.sqrt(1000)
    for axis in (0, 1):  # neighbours are independent
        one, other = (np.take(dropped, range(s, 999 + s), axis) for s in (0, 1))
        assert abs((one & other).mean() - p * p) < 5 * np.sqrt(p**2 * (1 - p**2) * 3) / 1000


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_kept_weight_is_divided_by_the_probability_of_keeping_it(dtype: Any) -> None:
    factors = dropout_of((20, 20), 0.3, dtype=dtype)
    assert factors.dtype == dtype
    np.testing.assert_array_equal(np.unique(factors), np.array([0, 1 / 0.7], dtype))
    x = arrays()
    output, cache = dot_product.forward(**x, dropout_p=0.3, rng=3)
    assert_close(output, (cache.weights * cache.dropout) @ x["value"], 1e-15)
    assert_close(cache.weights.sum(-1), np.ones(4), 1e-15)


def test_backward_and_jvp_see_the_draws_of_forward() -> None:
    x = arrays()
    output, cache = dot_product.forward(**x, dropout_p=0.5, rng=np.random.default_rng(0))
    d_output = normal(5, *output.shape)
    gradients = dot_product.backward(d_output, cache)
    assert_close(gradients.value, (cache.weights * cache.dropout).T @ d_output, 1e-15)
    assert_close(dot_product.jvp(cache, value=x["value"]), output, 1e-15)
    d_scores = cache.weights * (d_output @ x["value"].T * cache.dropout)
    d_scores -= cache.weights * d_scores.sum(-1, keepdims=True)
    assert_close(gradients.query, d_scores @ x["key"] / np.sqrt(3), 1e-14)


@pytest.mark.parametrize("rng", [3, np.random.default_rng(3), np.random.SeedSequence(3), np.random.PCG64(3)])
def test_whatever_numpy_takes_as_a_seed_will_do(rng: Any) -> None:
    assert set(np.unique(dropout_of((30, 30), 0.5, rng))) == {0.0, 2.0}


# Complex input


def test_complex_input_continues_the_function_analytically() -> None:
    case = Case(dot_product, {k: x + 0.3j * normal(7, *x.shape) for k, x in arrays("a batch").items()}, {})
    for options in ({}, {"mask": SOME_HIDDEN}, {"is_causal": True}):
        changed = case._replace(options=options)
        assert_close(changed.forward()[0], reference(changed)[0], 1e-14)


@pytest.mark.parametrize("name", ["query", "key", "value", "bias"])
def test_gradients_at_a_complex_point_are_the_complex_derivative(name: str) -> None:
    inputs = {k: x + 0.3j * normal(7, *x.shape) for k, x in {**arrays(), "bias": normal(1, 4, 5)}.items()}
    case = Case(dot_product, inputs, {"mask": SOME_HIDDEN})
    output, cache = case.forward()
    d_output = normal(2, *output.shape) + 1j * normal(3, *output.shape)
    gradient = getattr(dot_product.backward(d_output, cache), name)
    h = 1e-5
    for direction in (1, 1j):  # of an analytic function the derivative is the same along both
        numerical = np.zeros(gradient.shape, complex)
        for index in np.ndindex(*gradient.shape):
            step = np.zeros(gradient.shape, complex)
            step[index] = h * direction
            ahead, behind = (case.forward(**{name: inputs[name] + s * step})[0] for s in (1, -1))
            numerical[index] = (d_output * (ahead - behind)).sum() / (2 * h * direction)
        assert_close(gradient, numerical, 1e-8)
    tangent = normal(4, *inputs[name].shape) + 1j * normal(5, *inputs[name].shape)
    moved = dot_product.jvp(cache, **{name: tangent})
    assert abs((d_output * moved).sum() - (gradient * tangent).sum()) <= 1e-13


# Zero lengths


@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 3), (5, 3), (5, 2)),
        ((4, 3), (0, 3), (0, 2)),
        ((4, 3), (5, 3), (5, 0)),
        ((4, 0), (5, 0), (5, 2)),
        ((0, 4, 3), (0, 5, 3), (0, 5, 2)),
        ((0, 4, 3), (5, 3), (5, 2)),
        ((2, 0, 3), (2, 0, 3), (2, 0, 2)),
        ((0, 0), (0, 0), (0, 0)),
        ((3,), (0, 3), (0, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"mask": np.array(True)}, {"dropout_p": 0.5, "rng": 0}])
def test_zero_lengths_give_results_of_the_right_shape(
    shapes: tuple[tuple[int, ...], ...], options: dict[str, Any]
) -> None:
    inputs = {k: normal(i, *s) for i, (k, s) in enumerate(zip(("query", "key", "value"), shapes, strict=True))}
    inputs["bias"] = np.array(0.5)
    output, cache = dot_product.forward(**inputs, **options)
    case = Case(dot_product, inputs, {k: v for k, v in options.items() if k in ("mask", "is_causal")})
    d_output = normal(5, *output.shape)
    expected, expected_gradients = reference(case, d_output)
    gradients = dict(leaves(dot_product.backward(d_output, cache)))
    assert output.shape == expected.shape
    for name, x in inputs.items():
        assert gradients[name].shape == x.shape
    if not options.get("dropout_p"):
        assert_close(output, expected, 2e-15)
        assert_gradients_close(gradients, expected_gradients, 1e-14)
    assert dot_product.jvp(cache, **inputs).shape == output.shape
    if 0 in shapes[1][:-1] and output.size:
        assert (output == 0).all()
        assert all((gradient == 0).all() for gradient in gradients.values())


# Bad input

VAST = 10**15  # so many queries that no arithmetic on them could even allocate its result


def zeros(*shape: int, dtype: Any = float) -> Array:
    return np.broadcast_to(np.zeros((), dtype), shape)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "integer query": ({"query": zeros(4, 3, dtype=int)}, TypeError, r"query must hold floating-point.*int64.*\(4, 3\)"),
    "object key": ({"key": zeros(5, 3, dtype=object)}, TypeError, r"key must hold floating-point.*not object"),
    "boolean value": ({"value": zeros(5, 2, dtype=bool)}, TypeError, r"value must hold floating-point.*not bool"),
    "integer bias": ({"bias": zeros(5, dtype=int)}, TypeError, r"bias must hold floating-point.*int64.*\(5,\)"),
    "string query": ({"query": "query"}, TypeError, r"query must hold floating-point numbers, not <U5"),
    "no key": ({"key": None}, TypeError, r"key must hold floating-point numbers, not object"),
    "a number for a query": ({"query": 1.0}, ValueError, r"query must have at least one axis.*query\.shape=\(\)"),
    "one axis for the key": ({"key": zeros(3)}, ValueError, r"key must have at least two axes.*key\.shape=\(3,\)"),
    "one axis for the value": ({"value": zeros(3)}, ValueError, r"value must have at least two.*value\.shape=\(3,\)"),
    "features": (
        {"key": zeros(5, 4)},
        ValueError,
        r"key has 4 features but query has 3 \(key\.shape=\(5, 4\), query\.shape=\({n}, 3\)\)",
    ),
    "lengths": (
        {"value": zeros(6, 2)},
        ValueError,
        r"key and value.*5 keys and 6 values \(key\.shape=\(5, 3\), value\.shape=\(6, 2\)\)",
    ),
    "leading axes": (
        {"key": zeros(2, 5, 3), "value": zeros(3, 5, 2)},
        ValueError,
        r"leading axes.*key.*value.*do not broadcast.*key\.shape=\(2, 5, 3\), value\.shape=\(3, 5, 2\)",
    ),
    "integer mask": ({"mask": np.ones(5, int)}, TypeError, r"mask must be boolean.*int64 \(mask\.shape=\(5,\)\)"),
    "float mask": ({"mask": np.ones(5)}, TypeError, r"mask must be boolean.*float64.*bias"),
    "mask": (
        {"mask": np.ones(4, bool)},
        ValueError,
        r"mask must broadcast to the scores, whose shape is \({n}, 5\) \(mask\.shape=\(4,\)\)",
    ),
    "mask with more axes": (
        {"mask": np.ones((2, 1, 5), bool)},
        ValueError,
        r"mask must broadcast to the scores, whose shape is \({n}, 5\) \(mask\.shape=\(2, 1, 5\)\)",
    ),
    "bias": (
        {"bias": np.ones(4)},
        ValueError,
        r"bias must broadcast to the scores, whose shape is \({n}, 5\) \(bias\.shape=\(4,\)\)",
    ),
    "bias with more axes": ({"bias": np.ones((1, 1, 5))}, ValueError, r"bias must broadcast.*bias\.shape=\(1, 1, 5\)"),
    "dropout of all": ({"dropout_p": 1.0, "rng": 0}, ValueError, r"dropout_p must be.*less than 1, not 1\.0"),
    "negative dropout": ({"dropout_p": -0.1, "rng": 0}, ValueError, r"dropout_p must be at least 0.*not -0\.1"),
    "NaN dropout": ({"dropout_p": np.nan, "rng": 0}, ValueError, r"dropout_p must be.*not nan"),
    "dropout without an rng": ({"dropout_p": 0.5}, ValueError, r"dropout_p=0\.5 needs an rng"),
    "infinite scale": ({"scale": np.inf}, ValueError, r"scale must be finite, not inf"),
    "NaN scale": ({"scale": np.nan}, ValueError, r"scale must be finite, not nan"),
    "string scale": ({"scale": "a"}, TypeError, r"^scale must be a number, not 'a'"),
    "complex scale": ({"scale": 1j}, TypeError, r"^scale must be a number, not 1j"),
    "array of scales": ({"scale": np.ones(3)}, TypeError, r"^scale must be a number, not array"),
    "boolean scale": ({"scale": True}, TypeError, r"^scale must be a number, not True"),
    "string dropout": ({"dropout_p": "a"}, TypeError, r"^dropout_p must be a number, not 'a'"),
    "no dropout": ({"dropout_p": None}, TypeError, r"^dropout_p must be a number, not None"),
    "dropouts": ({"dropout_p": np.zeros(1)}, TypeError, r"^dropout_p must be a number, not array"),
    "float rng": ({"dropout_p": 0.5, "rng": 1.5}, TypeError, r"^rng must be a seed or.*not 1\.5"),
    "string rng": ({"dropout_p": 0.5, "rng": "a"}, TypeError, r"^rng must be a seed or.*not 'a'"),
    "ragged query": ({"query": [[1.0, 2.0, 3.0], [1.0]]}, ValueError, r"^query must be an array of floating-point"),
    "ragged key": ({"key": [[1.0], [1.0, 2.0]]}, ValueError, r"^key must be an array of floating-point"),
    "ragged bias": ({"bias": [[1.0], [1.0, 2.0]]}, ValueError, r"^bias must be an array of floating-point"),
    "a mask for is_causal": (
        {"is_causal": np.ones((3, 3), bool)},
        TypeError,
        r"^is_causal must be True or False, not array",
    ),
    "string is_causal": ({"is_causal": "no"}, TypeError, r"^is_causal must be True or False, not 'no'"),
    "integer is_causal": ({"is_causal": 1}, TypeError, r"^is_causal must be True or False, not 1"),
}


@pytest.mark.parametrize("n", [4, VAST])
@pytest.mark.parametrize(("changed", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_before_any_arithmetic(
    changed: dict[str, Any], error: type[Exception], message: str, n: int
) -> None:
    good = {"query": zeros(n, 3), "key": zeros(5, 3), "value": zeros(5, 2)}
    with pytest.raises(error, match=message.replace("{n}", str(n))):
        dot_product.forward(**{**good, **changed})


@pytest.mark.parametrize("shape", [(), (2,), (1, 2), (4, 1), (2, 4), (1, 4, 2)], ids=str)
def test_a_cotangent_of_another_shape_is_refused_even_if_it_broadcasts(shape: tuple[int, ...]) -> None:
    _, cache = dot_product.forward(**arrays())
    with pytest.raises(ValueError, match=r"d_output must have the shape \(4, 2\)") as caught:
        dot_product.backward(np.zeros(shape), cache)
    assert f"d_output.shape={shape}" in str(caught.value)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_a_tangent_of_another_shape_is_refused_even_if_it_broadcasts(name: str) -> None:
    _, cache = dot_product.forward(**arrays())
    shape = re.escape(str(arrays()[name].shape))
    message = rf"^the tangent of {name} must have the shape {shape} .*\({name}\.shape=\(1, 1\)\)$"
    with pytest.raises(ValueError, match=message):
        dot_product.jvp(cache, **{name: np.zeros((1, 1))})


def test_a_tangent_for_a_bias_that_there_was_not_is_refused() -> None:
    _, cache = dot_product.forward(**arrays())
    with pytest.raises(ValueError, match="tangent was given for bias, but forward was called without bias"):
        dot_product.jvp(cache, bias=np.zeros((4, 5)))


def test_integer_vectors_are_refused() -> None:
    output, cache = dot_product.forward(**arrays())
    with pytest.raises(TypeError, match="d_output must hold floating-point numbers, not int64"):
        dot_product.backward(np.ones(output.shape, int), cache)
    with pytest.raises(TypeError, match="the tangent of key must hold floating-point numbers, not int64"):
        dot_product.jvp(cache, key=np.ones((5, 3), int))


@pytest.mark.parametrize("cache", [None, (), softmax.forward(np.zeros(3))[1], "cache"], ids=str)
def test_a_cache_of_another_op_is_refused(cache: Any) -> None:
    with pytest.raises(TypeError, match=r"cache must be the one that dot_product\.forward returned, not"):
        dot_product.backward(np.zeros((4, 2)), cache)
    with pytest.raises(TypeError, match=r"cache must be the one that dot_product\.forward returned, not"):
        dot_product.jvp(cache, query=np.zeros((4, 3)))


@pytest.mark.parametrize("name", ["query", "key"])
@pytest.mark.parametrize(
    ("tangent", "other", "scale", "value"),
    [(1.2e308, 1.0, 0.5, 1.0), (1e200, 1e150, 0.5, 1e-60), (1e200, 1e20, 1e140, 1e-60), (1e-100, 1e250, 1e200, 1e-60)],
)
def test_a_tangent_may_move_the_scores_out_of_range_where_it_does_not_move_the_output_there(
    name: str, tangent: float, other: float, scale: float, value: float
) -> None:
    key = np.array([[other, other], [0.0, 0.0]]) if name == "query" else np.zeros((2, 2))
    query = np.zeros((1, 2)) if name == "query" else np.array([[other, other]])
    _, cache = dot_product.forward(query, key, np.array([[value], [0.0]]), scale=scale)
    moving = np.full((1, 2), tangent) if name == "query" else np.array([[tangent, tangent], [0.0, 0.0]])
    small = dot_product.jvp(cache, **{name: moving * 2.0**-300})
    assert_close(dot_product.jvp(cache, **{name: moving}), small * 2.0**300, 1e-15)
    assert small > 0


def test_the_scale_of_a_single_feature_is_one() -> None:
    _, cache = dot_product.forward(np.ones((2, 1)), np.ones((2, 1)), np.ones((2, 1)))
    assert cache.scale == 1


def test_features_that_differ_are_counted_at_the_last_axis() -> None:
    with pytest.raises(ValueError, match=r"key has 4 features but query has 3 \(key\.shape=\(2, 5, 4\)"):
        dot_product.forward(zeros(2, 6, 3), zeros(2, 5, 4), zeros(2, 5, 2))


def test_a_scale_that_is_infinite_in_the_dtype_alone_is_refused_with_the_dtype() -> None:
    with pytest.raises(ValueError, match=r"scale must be finite, not 1e\+40 in float32"):
        dot_product.forward(*(zeros(4, 3, dtype=np.float32) for _ in range(3)), scale=1e40)


@pytest.mark.parametrize("j", range(3))
def test_plus_infinity_in_a_bias_takes_all_the_weight_also_where_the_product_does_not_fit(j: int) -> None:
    q, k, bias = np.full((2, 1), 1e200), np.array([[1e200], [-1e200], [1.0]]), np.zeros((2, 3))
    bias[0, j] = np.inf
    _, cache = dot_product.forward(q, k, np.ones((3, 1)), bias=bias)
    np.testing.assert_array_equal(cache.weights, [np.eye(3)[j], [1, 0, 0]])


def test_a_mean_of_the_largest_numbers_is_finite_though_weights_add_up_to_more_than_one() -> None:
    most = np.finfo(np.float64).max
    q, k, v = normal(0, 50, 3), normal(1, 7, 3), np.full((7, 2), most)
    output, cache = dot_product.forward(q, k, v)
    assert (cache.weights.sum(axis=1) > 1).any()
    np.testing.assert_allclose(output, most, rtol=1e-14)


def test_a_gradient_that_does_not_fit_is_infinite_though_it_is_a_difference() -> None:
    query, value = np.array([[8.0], [-8.0]]), np.array([[1.0], [0.0]])
    _, cache = dot_product.forward(query, np.zeros((2, 1)), value, scale=256.0)
    gradients = dot_product.backward(np.array([[1e308], [1e307]]), cache)
    np.testing.assert_array_equal(gradients.key, [[np.inf], [-np.inf]])
    np.testing.assert_allclose(gradients.value, 5.5e307)
    np.testing.assert_array_equal(gradients.query, 0)


def test_the_gradient_of_a_narrow_key_that_does_not_fit_is_infinite() -> None:
    query, value = np.array([[8.0], [-8.0]]), np.array([[1.0], [0.0]])
    _, cache = dot_product.forward(query, np.zeros((2, 1), np.float32), value, scale=256.0)
    gradients = dot_product.backward(np.array([[1e308], [1e307]]), cache)
    assert gradients.key.dtype == np.float32
    np.testing.assert_array_equal(gradients.key, [[np.inf], [-np.inf]])


def test_gradients_and_tangents_are_found_where_what_is_between_is_too_small_for_the_dtype() -> None:
    query, key, value = np.array([[0.0]]), np.array([[1e300], [-1e300]]), np.array([[1e-200], [0.0]])
    _, cache = dot_product.forward(query, key, value, scale=1.0)
    np.testing.assert_allclose(dot_product.backward(np.array([[1e-200]]), cache).query, [[0.5e-100]])
    _, cache = dot_product.forward(query, np.array([[1e-200], [-1e-200]]), np.array([[1e300], [0.0]]), scale=1.0)
    np.testing.assert_allclose(dot_product.jvp(cache, query=np.array([[1e-200]])), [[0.5e-100]], rtol=1e-12)


@pytest.mark.parametrize(("size", "of_output"), [(1e30, 1e8), (1e-30, 1e-8)])
def test_a_bias_of_one_number_has_a_gradient_where_the_range_was_left_too(size: float, of_output: float) -> None:
    query, key = normal(0, 3, 4).astype(np.float32), normal(1, 3, 4).astype(np.float32)
    value = (normal(2, 3, 4) * size).astype(np.float32)
    _, cache = dot_product.forward(query, key / np.float32(of_output), value, bias=0.0)
    found = dot_product.backward(np.full((3, 4), of_output, np.float32), cache)
    assert found.bias is not None
    assert found.bias.shape == ()
    for array in found:
        assert np.isfinite(array).all()
