from typing import Any

import numpy as np
import pytest
from helpers import (
    COMPLEX_STEP,
    SHAPES,
    SOME_HIDDEN,
    Array,
    Shape,
    assert_close,
    assert_same_bits,
    attentions,
    leaves,
    normal,
    random_parameters,
)

from attention_np import dot_product, gradcheck, multi_head
from attention_np.multi_head import Parameters

EYE = np.eye(2)


def arrays(name: str = "four queries, five keys") -> dict[str, Any]:
    return attentions(SHAPES[name], d_k=2, d_v=2)["multi_head"].inputs


def test_the_gradient_of_self_attention_is_the_sum_of_those_of_its_three_roles() -> None:
    parameters = random_parameters(0)

    def forward(x: Array) -> Array:
        return multi_head.forward(x, x, x, parameters, num_heads=2, is_causal=True)[0]

    def backward(d_output: Array, x: Array) -> Array:
        _, cache = multi_head.forward(x, x, x, parameters, num_heads=2, is_causal=True)
        gradients = multi_head.backward(d_output, cache)
        return gradients.query + gradients.key + gradients.value

    gradcheck.assert_gradients(forward, backward, {"x": normal(1, 2, 5, 4)}, method="complex-step", rtol=COMPLEX_STEP)


def test_the_gradient_of_the_key_bias_is_zero_but_for_rounding() -> None:
    inputs = arrays("a batch")
    for options in ({}, {"mask": SOME_HIDDEN}, {"is_causal": True}):
        output, cache = multi_head.forward(**inputs, num_heads=2, **options)
        gradients = multi_head.backward(normal(1, *output.shape), cache).parameters
        scale = np.abs(gradients.b_query).max()
        assert 0.01 < scale < 100
        assert np.abs(gradients.b_key).max() <= 1e-15 * max(scale, 1)


def test_the_cache_refers_to_its_inputs() -> None:
    inputs = {**arrays(), "bias": normal(1, 4, 5)}
    output, cache = multi_head.forward(**inputs, num_heads=2)
    for name in ("query", "key", "value", "bias"):
        assert getattr(cache, name) is inputs[name]
    assert all(a is b for a, b in zip(cache.parameters, inputs["parameters"], strict=True))
    w = inputs["parameters"]
    assert_close(cache.combined @ w.w_output + w.b_output, output, 1e-15)


# Heads


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (2, 5, 3, 8), (0, 8), (3, 0), (0, 3, 8)], ids=str)
@pytest.mark.parametrize("num_heads", [1, 2, 4, 8])
def test_split_and_combine_undo_each_other(shape: Shape, num_heads: int) -> None:
    x = normal(0, *shape)
    split = multi_head.split_heads(x, num_heads)
    assert split.shape == (*shape[:-2], num_heads, shape[-2], shape[-1] // num_heads)
    d = shape[-1] // num_heads
    for h in range(num_heads):
        assert_same_bits(split[..., h, :, :], x[..., h * d : (h + 1) * d])
    assert_same_bits(multi_head.combine_heads(split), x)


def test_split_heads_is_a_view_and_holds_any_dtype() -> None:
    x = np.arange(24).reshape(3, 8)
    assert np.shares_memory(multi_head.split_heads(x, 2), x)
    assert multi_head.split_heads(x, 2).dtype == x.dtype


@pytest.mark.parametrize("num_heads", [0, -1, -2, 3, 5, 16])
def test_heads_that_do_not_divide_the_features_are_refused(num_heads: int) -> None:
    with pytest.raises(ValueError, match=rf"num_heads={num_heads} must divide the 8 features of x \(x\.shape=\(3, 8\)"):
        multi_head.split_heads(np.zeros((3, 8)), num_heads)


def test_arrays_without_the_axes_of_heads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"x must have at least two axes.*x\.shape=\(8,\)"):
        multi_head.split_heads(np.zeros(8), 2)
    with pytest.raises(ValueError, match=r"x must have at least three axes.*x\.shape=\(3, 8\)"):
        multi_head.combine_heads(np.zeros((3, 8)))


# Parameters


def fused(d_model: int = 6) -> tuple[Array, Array, Array, Array]:
    """The weights of query, key, value and output, multiplying from the right, and their four biases."""
    return normal(0, 4, d_model, d_model), normal(1, 4, d_model)  # type: ignore[return-value]


@pytest.mark.parametrize("biases", [True, False])
def test_both_fused_layouts_give_the_parameters_that_were_fused(biases: bool) -> None:
    (w_q, w_k, w_v, w_o), (b_q, b_k, b_v, b_o) = fused()
    b_in = np.concatenate([b_q, b_k, b_v])
    given = (b_in, b_o) if biases else ()
    in_proj = Parameters.from_in_proj(np.concatenate([w_q.T, w_k.T, w_v.T]), w_o.T, *given)
    c_attn = Parameters.from_c_attn(np.concatenate([w_q, w_k, w_v], axis=1), w_o, *given)
    expected = (w_q, w_k, w_v, w_o, *((b_q, b_k, b_v, b_o) if biases else (None,) * 4))
    for parameters in (in_proj, c_attn):
        for actual, array in zip(parameters, expected, strict=True):
            if array is None:
                assert actual is None
            else:
                assert_same_bits(actual, array)


def test_either_bias_of_a_fused_layout_may_be_left_out() -> None:
    (w_q, w_k, w_v, w_o), (b_q, b_k, b_v, b_o) = fused()
    w_in, b_in = np.concatenate([w_q, w_k, w_v], axis=1), np.concatenate([b_q, b_k, b_v])
    only_in = Parameters.from_c_attn(w_in, w_o, c_attn_bias=b_in)
    assert only_in.b_output is None
    assert_same_bits(only_in.b_value, b_v)
    only_out = Parameters.from_in_proj(w_in.T, w_o.T, out_proj_bias=b_o)
    assert only_out.b_query is None
    assert only_out.b_key is None
    assert only_out.b_value is None
    assert_same_bits(only_out.b_output, b_o)


@pytest.mark.parametrize(
    ("name", "shapes", "error", "message"),
    [
        (
            "in_proj",
            ((6, 18), (6, 6)),
            ValueError,
            r"in_proj_weight must have the shape \(3 \* d_model, d_model\).*6, 18",
        ),
        ("in_proj", ((18,), (6, 6)), ValueError, r"in_proj_weight.*in_proj_weight\.shape=\(18,\)"),
        ("in_proj", ((18, 6), (6, 5)), ValueError, r"out_proj_weight must have the shape \(6, 6\).*\(6, 5\)"),
        ("in_proj", ((18, 6), (6, 6), (6,)), ValueError, r"in_proj_bias must have the shape \(18,\).*\(6,\)"),
        ("in_proj", ((18, 6), (6, 6), (18,), (1,)), ValueError, r"out_proj_bias must have the shape \(6,\).*\(1,\)"),
        (
            "c_attn",
            ((18, 6), (6, 6)),
            ValueError,
            r"c_attn_weight must have the shape \(d_model, 3 \* d_model\).*18, 6",
        ),
        ("c_attn", ((6, 18), (5, 6)), ValueError, r"c_proj_weight must have the shape \(6, 6\).*\(5, 6\)"),
        ("c_attn", ((6, 18), (6, 6), (6,)), ValueError, r"c_attn_bias must have the shape \(18,\).*\(6,\)"),
        ("c_attn", ((6, 18), (6, 6), (18,), (1,)), ValueError, r"c_proj_bias must have the shape \(6,\).*\(1,\)"),
    ],
)
def test_fused_arrays_of_another_shape_are_refused(
    name: str, shapes: tuple[Shape, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        getattr(Parameters, f"from_{name}")(*map(np.zeros, shapes))


def test_fused_arrays_of_integers_are_refused() -> None:
    with pytest.raises(TypeError, match="in_proj_weight must hold floating-point numbers, not int64"):
        Parameters.from_in_proj(np.zeros((18, 6), int), np.zeros((6, 6)))
    with pytest.raises(TypeError, match="c_attn_bias must hold floating-point numbers, not int64"):
        Parameters.from_c_attn(np.zeros((6, 18)), np.zeros((6, 6)), np.zeros(18, int))


def test_random_parameters_have_glorots_bounds_and_variance() -> None:
    d, d_key, d_value = 200, 100, 300
    parameters = Parameters.random(d, rng=0, d_key=d_key, d_value=d_value)
    for w, d_in in zip(parameters[:4], (d, d_key, d_value, d), strict=True):
        assert w.shape == (d_in, d)
        bound = np.sqrt(6 / (d_in + d))
        assert 0.999 * bound < np.abs(w).max() <= bound
        assert abs(w.mean()) < 5 * bound / np.sqrt(3 * w.size)
        variance = 2 / (d_in + d)  # of the sample, the variance has the standard deviation variance * sqrt(0.8 / size)
        assert abs(w.var() - variance) < 5 * variance * np.sqrt(0.8 / w.size)


def test_random_parameters_have_zero_biases_or_none() -> None:
    for b in Parameters.random(6, rng=0)[4:]:
        assert_same_bits(b, np.zeros(6))
    assert Parameters.random(6, rng=0, biases=False)[4:] == (None,) * 4


def test_random_parameters_are_reproducible_and_differ_from_one_another() -> None:
    first, again, other = (Parameters.random(6, rng=seed) for seed in (0, 0, 1))
    for a, b, c in zip(first[:4], again[:4], other[:4], strict=True):
        assert_same_bits(a, b)
        assert (a != c).all()
    assert len({w.tobytes() for w in first[:4]}) == 4
    generator = np.random.default_rng(0)
    assert_same_bits(Parameters.random(6, rng=generator).w_query, first.w_query)
    assert (Parameters.random(6, rng=generator).w_query != first.w_query).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_random_parameters_have_the_dtype_asked_for(dtype: Any) -> None:
    assert {array.dtype for array in Parameters.random(6, rng=0, dtype=dtype)} == {np.dtype(dtype)}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"d_model": 0}, ValueError, r"^d_model must be at least 1, not 0"),
        ({"d_model": 6.0}, TypeError, r"^d_model must be an integer, not float"),
        ({"d_key": -4}, ValueError, r"^d_key must be at least 1, not -4"),
        ({"d_key": 0}, ValueError, r"^d_key must be at least 1, not 0"),
        ({"d_value": 0}, ValueError, r"^d_value must be at least 1, not 0"),
        ({"d_value": 1.5}, TypeError, r"^d_value must be an integer, not float"),
        ({"rng": "a"}, TypeError, r"^rng must be a seed or a numpy\.random\.Generator, not 'a'"),
        ({"rng": 1.5}, TypeError, r"^rng must be a seed or a numpy\.random\.Generator, not 1\.5"),
        ({"dtype": int}, TypeError, r"dtype must hold floating-point numbers, not int64"),
    ],
    ids=str,
)
def test_random_parameters_that_cannot_be_are_refused(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Parameters.random(**{"d_model": 6, "rng": 0, **changed})


@pytest.mark.parametrize("one", [np.int8(1), np.array(1)], ids=repr)
def test_whatever_is_an_index_will_do_for_a_number_of_heads(one: Any) -> None:
    x = arrays()
    output, cache = multi_head.forward(**x, num_heads=one)
    expected, _ = multi_head.forward(**x, num_heads=1)
    assert_same_bits(output, expected)
    assert type(cache.num_heads) is int
    assert_same_bits(multi_head.split_heads(x["query"], one), multi_head.split_heads(x["query"], 1))
    gradients = dict(leaves(multi_head.backward(output, cache)))
    assert gradients["query"].shape == x["query"].shape


def test_values_that_do_not_fit_have_an_output_and_gradients_that_do_beside_a_hidden_nan() -> None:
    weights = Parameters(EYE, EYE, EYE * 1e200, EYE * 1e-300)
    key, value = np.vstack([EYE, [np.nan, 1.0]]), np.array([[1e200, 0.0], [0.0, 2e200], [1.0, np.nan]])
    output, cache = multi_head.forward(0 * EYE, key, value, weights, num_heads=1, mask=np.array([True, True, False]))
    np.testing.assert_allclose(output, [[5e99, 1e100], [5e99, 1e100]])
    gradients = multi_head.backward(np.array([[1e-100, 0.0], [0.0, 0.0]]), cache)
    np.testing.assert_allclose(gradients.query, np.array([[0.25, -0.25], [0, 0]]) / np.sqrt(2))
    np.testing.assert_allclose(gradients.parameters.w_output[:, 0], [5e299, 1e300])


@pytest.mark.parametrize("vast", [1.0, 1e200])
def test_a_tangent_of_the_bias_moves_the_output_also_where_queries_do_not_fit(vast: float) -> None:
    x, eye = normal(0, 3, 2), np.eye(2)
    parameters = Parameters(vast * eye, 0 * eye, eye, eye)  # keys of zero: all weights are 1/3
    _, cache = multi_head.forward(vast * np.ones((4, 2)), x, x, parameters, num_heads=1, bias=np.zeros((4, 3)))
    d_bias = normal(1, 4, 3)
    expected = (d_bias - d_bias.mean(axis=1, keepdims=True)) @ x / 3
    np.testing.assert_allclose(multi_head.jvp(cache, bias=d_bias), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    "shapes", [((2, 5, 4), (2, 6, 4), (6, 4)), ((5, 4), (2, 6, 4), (6, 4)), ((5, 4), (6, 4), (3, 6, 4))]
)
def test_the_cache_of_the_heads_is_one_of_dot_product(shapes: Any) -> None:
    query, key, value = (normal(i, *shape) for i, shape in enumerate(shapes))
    output, cache = multi_head.forward(query, key, value, random_parameters(0), num_heads=2)
    heads = (*output.shape[:-2], 2, 5, 2)
    assert cache.attention.output_shape == heads
    gradients = dot_product.backward(np.ones(heads), cache.attention)
    assert gradients.value.shape == cache.attention.value.shape
