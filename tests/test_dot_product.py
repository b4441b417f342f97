from typing import Any

import numpy as np
import pytest
from helpers import SHAPES, SOME_HIDDEN, Array, Shape, assert_close, assert_same_bits, attentions, each, normal

from attention_np import biases, blockwise, dot_product, gradcheck
from attention_np._lib.dual import dual, velocity_of


def arrays() -> dict[str, Array]:
    return attentions(SHAPES["four queries, five keys"], d_k=3, d_v=2)["dot_product"].inputs


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


# Dropout


def test_a_seed_gives_the_same_draws_again_and_another_seed_others() -> None:
    x = {"query": normal(0, 20, 3), "key": normal(1, 30, 3), "value": normal(2, 30, 2)}
    first, second, third = (dot_product.forward(**x, dropout_p=0.5, rng=seed)[1].dropout for seed in (7, 7, 8))
    assert_same_bits(first, second)
    assert (first != third).mean() > 0.4


def test_a_generator_is_advanced_by_exactly_one_integer_whatever_the_size_and_gives_the_draws_of_its_state() -> None:
    for n in (0, 9, 50):
        used, expected = np.random.default_rng(3), np.random.default_rng(3)
        first, second = (dropout_of((n, n), rng=used) for _ in range(2))
        assert (first != second).any() == (n > 0)
        assert_same_bits(first, dropout_of((n, n), rng=expected))
        expected.integers(2**63)
        assert used.bit_generator.state == expected.bit_generator.state
        blockwise.forward(*np.zeros((3, n, 1)), dropout_p=0.5, rng=used)
        expected.integers(2**63)
        assert used.bit_generator.state == expected.bit_generator.state


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


def dropout_of(shape: Shape, p: float = 0.5, rng: Any = 3, dtype: Any = float) -> Array:
    *leading, n, m = shape
    x = np.zeros((*leading, n, 1), dtype), np.zeros((*leading, m, 1), dtype)
    return dot_product.forward(x[0], x[1], x[1], dropout_p=p, rng=rng)[1].dropout


@each("shape", [(12, 7), (3, 4, 7), (2, 3, 2, 7), (12, 1, 7)])
def test_draws_depend_on_the_row_of_the_scores_and_not_on_how_rows_are_grouped(shape: Shape) -> None:
    assert_same_bits(dropout_of(shape).reshape(12, 7), dropout_of((12, 7)))


@each("m", [1, 5, 8, 13, 100])
def test_draws_are_those_of_philox_at_the_place_in_the_scores(m: int) -> None:
    width = (m + 7) // 8 * 8
    key = int(np.random.default_rng(3).integers(2**63))
    for row in range(4):
        stream = np.random.Philox(key=key)
        stream.advance(row * width // 8)  # a step of the counter is eight draws of 32 bits
        words = stream.random_raw(width // 2)
        draws = np.stack([words & 0xFFFFFFFF, words >> 32], axis=1).ravel()[:m]
        np.testing.assert_array_equal(dropout_of((4, m))[row] != 0, draws >= 2**31)


@each("p", [0.1, 0.5, 0.9])
def test_weights_are_kept_at_the_rate_that_was_asked_for(p: float) -> None:
    dropped = dropout_of((1000, 1000), p) == 0
    sigma = np.sqrt(p * (1 - p))
    assert abs(dropped.mean() - p) < 5 * sigma / 1000
    assert np.abs(dropped.mean(axis=0) - p).max() < 6 * sigma / np.sqrt(1000)
    assert np.abs(dropped.mean(axis=1) - p).max() < 6 * sigma / np.sqrt(1000)
    for axis in (0, 1):  # neighbours are independent
        one, other = (np.take(dropped, range(s, 999 + s), axis) for s in (0, 1))
        assert abs((one & other).mean() - p * p) < 5 * np.sqrt(p**2 * (1 - p**2) * 3) / 1000


@each("dtype", [np.float32, np.float64])
def test_a_kept_weight_is_divided_by_the_probability_of_keeping_it(dtype: Any) -> None:
    factors = dropout_of((20, 20), 0.3, dtype=dtype)
    assert factors.dtype == dtype
    np.testing.assert_array_equal(np.unique(factors), np.array([0, 1 / 0.7], dtype))
    x = arrays()
    output, cache = dot_product.forward(**x, dropout_p=0.3, rng=3)
    assert_close(output, (cache.weights * cache.dropout) @ x["value"], 1e-15)
    assert_close(cache.weights.sum(-1), np.ones(4), 1e-15)


@each("rng", [3, np.random.default_rng(3), np.random.SeedSequence(3), np.random.PCG64(3)])
def test_whatever_numpy_takes_as_a_seed_will_do(rng: Any) -> None:
    assert set(np.unique(dropout_of((30, 30), 0.5, rng))) == {0.0, 2.0}


@each("op", [dot_product, blockwise])
@each("name", ["query", "key"])
@each(
    ("tangent", "other", "scale", "value"),
    [(1.2e308, 1.0, 0.5, 1.0), (1e200, 1e150, 0.5, 1e-60), (1e200, 1e20, 1e140, 1e-60), (1e-100, 1e250, 1e200, 1e-60)],
)
def test_a_tangent_may_move_the_scores_out_of_range_where_it_does_not_move_the_output_there(
    op: Any, name: str, tangent: float, other: float, scale: float, value: float
) -> None:
    key = np.array([[other, other], [0.0, 0.0]]) if name == "query" else np.zeros((2, 2))
    query = np.zeros((1, 2)) if name == "query" else np.array([[other, other]])
    _, cache = op.forward(query, key, np.array([[value], [0.0]]), scale=scale)
    moving = np.full((1, 2), tangent) if name == "query" else np.array([[tangent, tangent], [0.0, 0.0]])
    small = op.jvp(cache, **{name: moving * 2.0**-300})
    assert_close(op.jvp(cache, **{name: moving}), small * 2.0**300, 1e-15)
    assert small > 0


def test_a_scale_that_is_infinite_in_the_dtype_alone_is_refused_with_the_dtype() -> None:
    with pytest.raises(ValueError, match=r"scale must be finite, not 1e\+40 in float32"):
        dot_product.forward(*(np.zeros((4, 3), np.float32) for _ in range(3)), scale=1e40)


@each("j", range(3))
def test_plus_infinity_in_a_bias_takes_all_the_weight_also_where_the_product_does_not_fit(j: int) -> None:
    q, k, bias = np.full((2, 1), 1e200), np.array([[1e200], [-1e200], [1.0]]), np.zeros((2, 3))
    bias[0, j] = np.inf
    _, cache = dot_product.forward(q, k, np.ones((3, 1)), bias=bias)
    np.testing.assert_array_equal(cache.weights, [np.eye(3)[j], [1, 0, 0]])


@each("dtype", [np.float64, np.float32])
def test_a_gradient_that_does_not_fit_is_infinite_though_it_is_a_difference_and_its_key_narrow(dtype: Any) -> None:
    query, value = np.array([[8.0], [-8.0]]), np.array([[1.0], [0.0]])
    _, cache = dot_product.forward(query, np.zeros((2, 1), dtype), value, scale=256.0)
    gradients = dot_product.backward(np.array([[1e308], [1e307]]), cache)
    assert gradients.key.dtype == dtype
    np.testing.assert_array_equal(gradients.key, [[np.inf], [-np.inf]])
    np.testing.assert_allclose(gradients.value, 5.5e307)
    np.testing.assert_array_equal(gradients.query, 0)


@each(("size", "of_output"), [(1e30, 1e8), (1e-30, 1e-8)])
def test_a_bias_of_one_number_has_a_gradient_where_the_range_was_left_too(size: float, of_output: float) -> None:
    query, key = normal(0, 3, 4).astype(np.float32), normal(1, 3, 4).astype(np.float32)
    value = (normal(2, 3, 4) * size).astype(np.float32)
    _, cache = dot_product.forward(query, key / np.float32(of_output), value, bias=0.0)
    found = dot_product.backward(np.full((3, 4), of_output, np.float32), cache)
    assert found.bias is not None
    assert found.bias.shape == ()
    for array in found[:4]:
        assert np.isfinite(array).all()


# Softcap and sink


def in_batch() -> dict[str, Array]:
    x = attentions(SHAPES["a batch"], d_k=3, d_v=2)["dot_product"].inputs
    return {**x, "bias": normal(5, 4, 5), "sink": normal(6, 2)}


@each("softcap", [None, 0.7])
def test_a_sink_is_one_more_key_of_zeros_whose_bias_is_the_sink_and_whose_value_is_zero(softcap: float | None) -> None:
    x, d_output = in_batch(), normal(9, 2, 4, 2)
    output, cache = dot_product.forward(**x, mask=SOME_HIDDEN, softcap=softcap)
    gradients = dot_product.backward(d_output, cache)
    of_sink = np.broadcast_to(x["sink"][:, None, None], (2, 4, 1))
    longer = {name: np.concatenate([x[name], np.zeros_like(x[name][:, :1])], axis=1) for name in ("key", "value")}
    longer["bias"] = np.concatenate([np.broadcast_to(x["bias"], (2, 4, 5)), of_sink], axis=2)
    mask = np.c_[SOME_HIDDEN, np.ones(4, bool)]
    expected, its_cache = dot_product.forward(x["query"], **longer, mask=mask, softcap=softcap)
    assert_close(output, expected, 1e-15)
    its = dot_product.backward(d_output, its_cache)
    assert_close(gradients.query, its.query, 1e-14)
    assert_close(gradients.key, its.key[:, :-1], 1e-14)
    assert_close(gradients.value, its.value[:, :-1], 1e-14)
    assert its.bias is not None
    assert_close(gradients.bias, its.bias[..., :-1].sum(axis=0), 1e-14)
    assert_close(gradients.sink, its.bias[..., -1].sum(axis=1), 1e-14)
    d_x = {name: normal(i, *array.shape) for i, (name, array) in enumerate(x.items())}
    d_longer = {name: np.concatenate([d_x[name], np.zeros_like(d_x[name][:, :1])], 1) for name in ("key", "value")}
    d_of_sink = np.broadcast_to(d_x["sink"][:, None, None], (2, 4, 1))
    d_longer["bias"] = np.concatenate([np.broadcast_to(d_x["bias"], (2, 4, 5)), d_of_sink], axis=2)
    assert_close(dot_product.jvp(cache, **d_x), dot_product.jvp(its_cache, query=d_x["query"], **d_longer), 1e-14)


def test_a_query_that_may_attend_to_nothing_gives_all_to_its_sink_and_gets_zero_output_and_gradient() -> None:
    x, dead = in_batch(), ~SOME_HIDDEN.any(axis=1)
    x["query"][:, dead] = np.nan
    output, cache = dot_product.forward(**x, mask=SOME_HIDDEN)
    assert_same_bits(output[:, dead], np.zeros((2, 1, 2)))
    assert_same_bits(cache.softmax.logsumexp[:, dead, 0], x["sink"][:, None])
    gradients = dot_product.backward(np.where(dead[:, None], 1.0, np.zeros((2, 4, 2))), cache)
    assert all(not gradient.any() for gradient in gradients[:-1])
    for m, sink in ((0, 0.5), (3, -np.inf), (3, np.inf)):
        output, cache = dot_product.forward(np.ones((2, 1)), np.ones((m, 1)), np.ones((m, 1)), sink=sink)
        assert_same_bits(output, np.full((2, 1), float(m > 0 > sink)))
        assert dot_product.backward(output + 1, cache).sink == 0


def test_the_gradient_under_a_softcap_keeps_its_digits_where_the_cap_is_at_work() -> None:
    products = np.array([0.0, 1.0, 10.0, 18.0, 30.0, 300.0, -18.0])
    _, cache = dot_product.forward(np.eye(1), products[:, None], np.ones((7, 1)), scale=1.0, softcap=1.0)
    assert_same_bits(cache.scores[0], np.tanh(products))
    # Only one value is not zero, so that the gradient of its key is (p - p^2) times the slope.
    for j, product in enumerate(products[1:5], 1):
        _, cache = dot_product.forward(np.eye(1), products[:, None], np.eye(7)[:, j : j + 1], scale=1.0, softcap=1.0)
        weight = cache.weights[0, j]
        found = dot_product.backward(np.ones((1, 1)), cache).key[j, 0]
        assert found == pytest.approx(weight * (1 - weight) / np.cosh(np.longdouble(product)) ** 2, rel=1e-14)


def test_products_that_do_not_fit_come_to_rest_at_the_softcap() -> None:
    query, key = np.array([[1e200, -1e200]]), np.array([[1e200, 0.0], [0.0, 1e200], [1e-200, 0.0]])
    _, cache = dot_product.forward(query, key, np.eye(3), softcap=2.0, scale=1.0)
    assert_close(cache.scores, np.array([[2.0, -2.0, 2 * np.tanh(0.5)]]), 1e-15)
    assert all(np.isfinite(x).all() for x in dot_product.backward(np.ones((1, 3)), cache)[:3])


@each("sign", [1, -1])
def test_a_row_beyond_the_range_of_the_dtype_is_on_one_side_of_any_finite_sink(sign: int) -> None:
    query, key, value = np.full((1, 1), sign * 1e200), np.full((2, 1), 1e200), np.array([[1.0], [3.0]])
    output, cache = dot_product.forward(query, key, value, sink=sign * 1e308)
    assert_same_bits(output, np.full((1, 1), 2.0 if sign > 0 else 0.0))
    assert dot_product.backward(np.ones((1, 1)), cache).sink == 0
    assert dot_product.forward(query, key, value, sink=-np.inf)[0] == 2


def test_a_scalar_sink_never_upcasts_and_an_array_does() -> None:
    x = {name: array.astype(np.float32) for name, array in arrays().items()}
    output, cache = dot_product.forward(**x, sink=0.0)
    gradients = dot_product.backward(output, cache)
    assert output.dtype == np.float32
    assert gradients.sink is not None
    assert (gradients.sink.dtype, gradients.sink.shape) == (np.float32, ())
    output, cache = dot_product.forward(**x, sink=np.array(0.0))
    assert output.dtype == np.float64


def with_scales(**others: Any) -> dict[str, Any]:
    shapes = {"query": (2, 1, 4, 3), "key": (2, 5, 3), "value": (2, 5, 2), "scale": (2, 4, 1)}
    return {name: normal(i, *shape) for i, (name, shape) in enumerate(shapes.items())} | others


def test_a_scale_of_each_query_is_its_number() -> None:
    x = with_scales()
    output, cache = dot_product.forward(**x, softcap=0.7)
    for head, i in np.ndindex(2, 4):
        scale = float(x["scale"][head, i, 0])
        alone = x | {"query": x["query"][..., i : i + 1, :], "scale": scale}
        assert_close(output[:, head, i], dot_product.forward(**alone, softcap=0.7)[0][:, head, 0], 1e-14)
    assert_same_bits(cache.scale, x["scale"])
    everywhere = dot_product.forward(**x | {"scale": np.full(1, 0.3)})[0]
    assert_close(everywhere, dot_product.forward(**x | {"scale": 0.3})[0], 1e-14)


def test_gradients_of_a_scale_of_each_query_are_numerical_ones() -> None:
    index = np.arange(20).reshape(4, 5) % 3
    parts = [biases.products(normal(9, 3, 3), index, of=of) for of in ("query", "key")]
    x = with_scales(bias=parts, sink=normal(8, 2))
    x["scale"][0, 1], x["scale"][1, 2] = 0, -1
    for options in ({}, {"softcap": 0.8, "is_causal": True, "dropout_p": 0.3, "rng": 3}):
        report = gradcheck.check_op(dot_product, x, method="complex-step", **options)
        report.raise_if_failed()
        assert max(entry.max_relative_error for entry in report.inputs) <= 1e-12


def test_a_scale_that_is_a_number_has_no_gradient_and_no_tangent() -> None:
    x = with_scales()
    for scale in (None, 2, 0.5, np.float32(0.5), np.array(0.5)):
        output, cache = dot_product.forward(**x | {"scale": scale})
        gradients = dot_product.backward(output, cache)
        assert gradients.scale is None
        assert dot_product.double_backward(gradients, output, cache)[1].scale is None
        with pytest.raises(ValueError, match=r"^a tangent was given for scale, but forward was called without scale$"):
            dot_product.jvp(cache, scale=np.ones(()))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.longdouble])
def test_a_scale_of_each_query_follows_the_rules_of_dtypes(dtype: Any) -> None:
    x = {name: array.astype(dtype) for name, array in with_scales().items()}
    output, cache = dot_product.forward(**x)
    assert {output.dtype, *(d.dtype for d in dot_product.backward(output, cache) if d is not None)} == {np.dtype(dtype)}
    exact, _ = dot_product.forward(**with_scales())
    assert_close(output.astype(np.float64), exact, 20 * max(np.finfo(dtype).eps, 1e-16))
    x["scale"] = x["scale"].astype(np.float64)
    output, cache = dot_product.forward(**x)
    assert output.dtype == np.result_type(np.float32 if dtype == np.float16 else dtype, np.float64)
    assert dot_product.backward(output, cache).query.dtype == dtype


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_scale_of_a_query_that_attends_nowhere_or_has_no_gradient_is_nobodys_business(number: float) -> None:
    x, mask = with_scales(), np.ones((4, 5), np.bool_)
    mask[1] = False
    d_output = normal(8, 2, 2, 4, 2)
    d_output[..., 2, :] = 0
    clean, cache = dot_product.forward(**x, mask=mask)
    expected = dot_product.backward(d_output, cache)
    x["scale"] = x["scale"].copy()
    x["scale"][:, 1:3] = number
    x["query"][:, :, 1] = np.nan
    output, cache = dot_product.forward(**x, mask=mask)
    others = [0, 1, 3]
    assert_same_bits(output[..., others, :], clean[..., others, :])
    gradients = dot_product.backward(d_output, cache)
    for found, d in zip(gradients, expected, strict=True):
        if d is not None:
            assert_close(found, d, 1e-14)
    np.testing.assert_array_equal(gradients.query[..., 1:3, :], 0)
    np.testing.assert_array_equal(gradients.scale[:, 1:3], 0)
    along = {name: normal(9, *array.shape) for name, array in x.items()}
    assert np.isfinite(dot_product.jvp(cache, **along)[..., others, :]).all()
    _, twice = dot_product.double_backward(dot_product.Gradients(**along, bias=None, sink=None), d_output, cache)
    assert all(np.isfinite(d).all() for d in twice if d is not None)


@each(("of_query", "of_scale", "of_key"), [(1e155, 1e153, 1e-308), (1e-200, 1e300, 1e-100)])
def test_a_scaled_query_that_leaves_the_range_on_its_way_is_found(
    of_query: float, of_scale: float, of_key: float
) -> None:
    x = with_scales()
    usual, cache = dot_product.forward(**x)
    d_output = usual / 4  # for the gradient of the keys to fit
    expected = dot_product.backward(d_output, cache)
    factors = {"query": of_query, "scale": of_scale, "key": of_key, "value": 1.0}
    output, cache = dot_product.forward(**{name: array * factors[name] for name, array in x.items()})
    assert_close(output, usual, 1e-13)
    gradients = dot_product.backward(d_output, cache)
    for name, factor in factors.items():
        assert_close(getattr(gradients, name) * factor, getattr(expected, name), 1e-12)


@pytest.mark.parametrize(
    ("scale", "error", "sentence"),
    [
        (np.ones(4), ValueError, r"scale must broadcast to \(..., n, 1\) of the scores, whose shape is \(2, 2, 4, 1\)"),
        (
            np.ones((3, 1)),
            ValueError,
            r"scale must broadcast to \(..., n, 1\) of the scores, .*\(scale.shape=\(3, 1\)\)",
        ),
        (np.ones((4, 1), int), TypeError, "scale must hold floating-point numbers, not int64"),
        (np.ma.masked_array([[1.0]]), TypeError, "scale must not be a masked array"),
        ([[1.0], [2.0, 3.0]], ValueError, "scale must be an array of numbers"),
        ("a", TypeError, "scale must be a number, not 'a'"),
    ],
)
def test_a_scale_that_cannot_be_used_is_refused(scale: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=f"^{sentence}"):
        dot_product.forward(**with_scales() | {"scale": scale})


@each("dtype", [np.float32, np.float64])
def test_the_slope_of_a_softcap_moves_with_all_its_digits_near_zero(dtype: Any) -> None:
    x, softcap = np.array([0.0, 1e-20, -3e-6, 2e-3, -0.1, 15.0], dtype), dtype(2.5)
    found = dot_product.slope_of_capped(dual(x, np.ones_like(x)), softcap)
    wide = x.astype(np.longdouble) / softcap
    expected = -2 * np.tanh(wide) / np.cosh(wide) ** 2 / np.longdouble(softcap)
    np.testing.assert_allclose(velocity_of(found), expected, rtol=10 * np.finfo(dtype).eps, atol=0)
