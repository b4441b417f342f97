from typing import Any

import numpy as np
import pytest
from helpers import (
    COMPLEX_STEP,
    SHAPES,
    SOME_HIDDEN,
    Array,
    Case,
    Shape,
    assert_close,
    assert_same_bits,
    attentions,
    each,
    leaves,
    normal,
    random_parameters,
)

from attention_np import dot_product, gradcheck, masks, multi_head, rotary
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


@each("options", [{}, {"mask": SOME_HIDDEN}, {"is_causal": True}])
def test_the_gradient_of_the_key_bias_is_zero_but_for_rounding(options: Any) -> None:
    inputs = arrays("a batch")
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


@each("shape", [(3, 8), (2, 3, 8), (2, 5, 3, 8), (0, 8), (3, 0), (0, 3, 8)])
@each("num_heads", [1, 2, 4, 8])
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


@each("num_heads", [0, -1, -2, 3, 5, 16])
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


@each("of_in", [True, False])
@each("of_out", [True, False])
def test_both_fused_layouts_give_the_parameters_that_were_fused_with_either_bias(of_in: bool, of_out: bool) -> None:
    (w_q, w_k, w_v, w_o), (b_q, b_k, b_v, b_o) = fused()
    given = (np.concatenate([b_q, b_k, b_v]) if of_in else None, b_o if of_out else None)
    in_proj = Parameters.from_in_proj(np.concatenate([w_q.T, w_k.T, w_v.T]), w_o.T, *given)
    c_attn = Parameters.from_c_attn(np.concatenate([w_q, w_k, w_v], axis=1), w_o, *given)
    expected = (w_q, w_k, w_v, w_o, *((b_q, b_k, b_v) if of_in else (None,) * 3), given[1])
    for parameters in (in_proj, c_attn):
        for actual, array in zip(parameters[:8], expected, strict=True):
            assert (actual is None) == (array is None)
            if actual is not None and array is not None:
                assert_same_bits(actual, array)


@each(
    ("name", "shapes", "message"),
    [
        ("in_proj", ((6, 18), (6, 6)), r"in_proj_weight must have the shape \(3 \* d_model, d_model\).*6, 18"),
        ("in_proj", ((18,), (6, 6)), r"in_proj_weight.*in_proj_weight\.shape=\(18,\)"),
        ("in_proj", ((18, 6), (6, 5)), r"out_proj_weight must have the shape \(6, 6\).*\(6, 5\)"),
        ("in_proj", ((18, 6), (6, 6), (6,)), r"in_proj_bias must have the shape \(18,\).*\(6,\)"),
        ("in_proj", ((18, 6), (6, 6), (18,), (1,)), r"out_proj_bias must have the shape \(6,\).*\(1,\)"),
        ("c_attn", ((18, 6), (6, 6)), r"c_attn_weight must have the shape \(d_model, 3 \* d_model\).*18, 6"),
        ("c_attn", ((6, 18), (5, 6)), r"c_proj_weight must have the shape \(6, 6\).*\(5, 6\)"),
        ("c_attn", ((6, 18), (6, 6), (6,)), r"c_attn_bias must have the shape \(18,\).*\(6,\)"),
        ("c_attn", ((6, 18), (6, 6), (18,), (1,)), r"c_proj_bias must have the shape \(6,\).*\(1,\)"),
    ],
)
def test_fused_arrays_of_another_shape_are_refused(name: str, shapes: tuple[Shape, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
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
    for b in Parameters.random(6, rng=0)[4:8]:
        assert_same_bits(b, np.zeros(6))
    assert Parameters.random(6, rng=0, biases=False)[4:] == (None,) * 7


def test_random_parameters_are_reproducible_and_differ_from_one_another() -> None:
    first, again, other = (Parameters.random(6, rng=seed) for seed in (0, 0, 1))
    for a, b, c in zip(first[:4], again[:4], other[:4], strict=True):
        assert_same_bits(a, b)
        assert (a != c).all()
    assert len({w.tobytes() for w in first[:4]}) == 4
    generator = np.random.default_rng(0)
    assert_same_bits(Parameters.random(6, rng=generator).w_query, first.w_query)
    assert (Parameters.random(6, rng=generator).w_query != first.w_query).all()


@each("dtype", [np.float16, np.float32, np.float64])
def test_random_parameters_have_the_dtype_asked_for(dtype: Any) -> None:
    assert {array.dtype for array in Parameters.random(6, rng=0, dtype=dtype)[:8]} == {np.dtype(dtype)}


@each(
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
)
def test_random_parameters_that_cannot_be_are_refused(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Parameters.random(**{"d_model": 6, "rng": 0, **changed})


@each("one", [np.int8(1), np.array(1)])
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


@each("vast", [1.0, 1e200])
def test_a_tangent_of_the_bias_moves_the_output_also_where_queries_do_not_fit(vast: float) -> None:
    x, eye = normal(0, 3, 2), np.eye(2)
    parameters = Parameters(vast * eye, 0 * eye, eye, eye)  # keys of zero: all weights are 1/3
    _, cache = multi_head.forward(vast * np.ones((4, 2)), x, x, parameters, num_heads=1, bias=np.zeros((4, 3)))
    d_bias = normal(1, 4, 3)
    expected = (d_bias - d_bias.mean(axis=1, keepdims=True)) @ x / 3
    np.testing.assert_allclose(multi_head.jvp(cache, bias=d_bias), expected, rtol=1e-13, atol=1e-15)


@each("shapes", [((2, 5, 4), (2, 6, 4), (6, 4)), ((5, 4), (2, 6, 4), (6, 4)), ((5, 4), (6, 4), (3, 6, 4))])
def test_the_cache_of_the_heads_is_one_of_dot_product(shapes: Any) -> None:
    query, key, value = (normal(i, *shape) for i, shape in enumerate(shapes))
    output, cache = multi_head.forward(query, key, value, random_parameters(0), num_heads=2)
    heads = (*output.shape[:-2], 2, 5, 2)
    assert cache.attention.output_shape == heads
    gradients = dot_product.backward(np.ones(heads), cache.attention)
    assert gradients.value.shape == cache.attention.value.shape


# What the layers in use have besides


def a_layer(num_heads: int = 4, num_kv_heads: int = 2, gains: bool = True, sink: bool = True) -> Parameters:
    """Of heads 4 wide, whose values are 3 wide."""
    shapes = ((5, 4 * num_heads), (5, 4 * num_kv_heads), (5, 3 * num_kv_heads), (3 * num_heads, 6))
    weights = [normal(i, *shape) / np.sqrt(shape[0]) for i, shape in enumerate(shapes)]
    biases = [normal(i + 4, shape[1]) for i, shape in enumerate(shapes)]
    of_heads = (normal(8, 4), normal(9, 4)) if gains else (None, None)
    return Parameters(*weights, *biases, *of_heads, normal(10, num_heads) if sink else None)


EVERYTHING: dict[str, Any] = {
    "num_heads": 4,
    "num_kv_heads": 2,
    "rotary": {"base": 50.0, "width": 2, "trailing": True},
    "positions": np.array([3, 5, 6, 9, 11]),
    "softcap": 2.0,
    "window": (3, 1),
    "scale": 0.4,
}
LAYERS: dict[str, dict[str, Any]] = {
    "everything": EVERYTHING,
    "one head of keys": EVERYTHING | {"num_kv_heads": 1},
    "as many heads of keys": EVERYTHING | {"num_kv_heads": None},
    "normalised last": EVERYTHING | {"qk_norm_after_rotary": True, "rotary": {"interleaved": True}},
    "lengths": EVERYTHING | {"qk_norm": "l2", "qk_norm_epsilon": 0.3},
    "lengths last": EVERYTHING | {"qk_norm": "l2", "qk_norm_after_rotary": True},
    "yarn": EVERYTHING | {"rotary": {"scaling": rotary.yarn(4, 32)}, "qk_norm_epsilon": 0.1},
    "a batch of positions": EVERYTHING | {"positions": np.arange(10).reshape(2, 5)},
    "keys elsewhere": EVERYTHING | {"key_positions": np.arange(5.0)},
}


def layer_case(options: dict[str, Any], **how: bool) -> Case:
    parameters = a_layer(4, options["num_kv_heads"] or 4, **how)
    x = {"query": normal(20, 2, 5, 5), "key": normal(21, 2, 5, 5), "value": normal(22, 5, 5)}
    return Case(multi_head, x | {"parameters": parameters, "bias": normal(23, 4, 1, 5)}, options)


@each(("name", "gains"), [("everything", True)], long=[("everything", False), *((name, True) for name in LAYERS)])
def test_gradients_of_whole_layers_are_numerical_ones_in_every_order(name: str, gains: bool) -> None:
    case = layer_case({"qk_norm": "rms"} | LAYERS[name], gains=gains)
    report = gradcheck.check_op(multi_head, case.inputs, method="complex-step", **case.options)
    report.raise_if_failed()
    assert report["jvp"].max_relative_error <= 1e-15
    assert report["double_backward"].max_relative_error <= 1e-13


@each("num_kv_heads", [1, 2])
def test_grouped_heads_are_repeated_heads_whose_gradients_are_summed(num_kv_heads: int) -> None:
    few, x = a_layer(4, num_kv_heads), normal(20, 2, 5, 5)
    each = np.arange(4) // (4 // num_kv_heads)

    def repeated(w: Array, d: int) -> Array:
        return w.reshape(*w.shape[:-1], num_kv_heads, d)[..., each, :].reshape(*w.shape[:-1], 4 * d)

    many = few._replace(
        **{f"{a}_{b}": repeated(getattr(few, f"{a}_{b}"), d) for a in "wb" for b, d in (("key", 4), ("value", 3))}
    )
    options = {name: x for name, x in EVERYTHING.items() if name != "num_kv_heads"}
    output, cache = multi_head.forward(x, x, x, few, num_kv_heads=num_kv_heads, **options)
    expected, of_many = multi_head.forward(x, x, x, many, **options)
    assert_same_bits(output, expected)
    d_output = normal(1, *output.shape)
    gradients, wanted = (multi_head.backward(d_output, c).parameters for c in (cache, of_many))
    for name, gradient in gradients._asdict().items():
        full = getattr(wanted, name)
        if name in ("w_key", "w_value", "b_value"):
            heads = full.reshape(*full.shape[:-1], num_kv_heads, 4 // num_kv_heads, -1)
            full = heads.sum(axis=-2).reshape(gradient.shape)
        if name != "b_key":
            assert_close(gradient, full, 1e-14)


def test_options_that_say_nothing_change_no_bit() -> None:
    x, parameters = normal(0, 2, 5, 4), random_parameters(0)
    output, cache = multi_head.forward(x, x, x, parameters, num_heads=2, is_causal=True)
    first = multi_head.backward(output, cache)
    for options in ({"num_kv_heads": 2}, {"window": (None, None)}, {"window": (9, 9)}, {"qk_norm_epsilon": 1.0}):
        again, cache = multi_head.forward(x, x, x, parameters, num_heads=2, is_causal=True, **options)
        assert_same_bits(again, output)
        for (_, one), (_, other) in zip(leaves(multi_head.backward(output, cache)), leaves(first), strict=True):
            assert_same_bits(one, other)
    window, _ = multi_head.forward(x, x, x, parameters, num_heads=2, window=(2, 1))
    by_mask, _ = multi_head.forward(x, x, x, parameters, num_heads=2, mask=masks.sliding_window(5, left=2, right=1))
    assert_same_bits(window, by_mask)


def test_positions_count_by_their_differences_alone() -> None:
    x, w = normal(0, 2, 5, 5), a_layer()
    options: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "rotary": {}, "is_causal": True}
    output, _ = multi_head.forward(x, x, x, w, **options)
    for places in (np.arange(5), np.arange(5) + 100, np.stack([np.arange(5) + 3, np.arange(5) - 7])):
        assert_close(multi_head.forward(x, x, x, w, positions=places, **options)[0], output, 1e-13)
    options["is_causal"] = False
    whole, _ = multi_head.forward(x[0], x[0], x[0], w, **options)
    one, _ = multi_head.forward(x[0, 2], x[0], x[0], w, positions=[2], key_positions=range(5), **options)
    assert_close(one, whole[2], 1e-14)


def test_a_padded_sample_cannot_poison_its_batch_through_norms_turns_and_groups() -> None:
    case = layer_case(EVERYTHING)
    d_output = normal(1, *case.forward()[0].shape)
    d_output[1] = 0
    expected = dict(leaves(multi_head.backward(d_output, case.forward()[1])))
    for poison in (np.nan, np.inf):
        inputs = dict(case.inputs)
        for name in ("query", "key"):
            inputs[name] = inputs[name].copy()
            inputs[name][1] = poison
        output, cache = multi_head.forward(**inputs, **EVERYTHING)
        assert np.isfinite(output[0]).all()
        for name, gradient in leaves(multi_head.backward(d_output, cache)):
            assert_same_bits(gradient, expected[name])


def test_projections_that_do_not_fit_are_normalised_to_what_they_say() -> None:
    x, w = normal(0, 5, 5), a_layer()
    options = {"num_heads": 4, "num_kv_heads": 2, "rotary": {}, "qk_norm_epsilon": 0.0}
    vast = w._replace(w_query=1e200 * w.w_query, w_key=1e200 * w.w_key, b_query=None, b_key=None)
    plain = w._replace(b_query=None, b_key=None)
    output, cache = multi_head.forward(1e150 * x, 1e150 * x, x, vast, **options)
    expected, of_plain = multi_head.forward(x, x, x, plain, **options)
    assert_close(output, expected, 1e-13)
    d_output = normal(1, *output.shape)
    gradients, wanted = (multi_head.backward(d_output, c).parameters for c in (cache, of_plain))
    assert_close(gradients.query_gain, wanted.query_gain, 1e-13)
    assert_close(gradients.w_value, wanted.w_value, 1e-13)


LAYER = a_layer()


@each(
    ("changed", "error", "message"),
    [
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads=3 must divide num_heads=4"),
        ({"num_kv_heads": 0}, ValueError, "num_kv_heads=0 must divide num_heads=4"),
        ({"num_kv_heads": 2.0}, TypeError, "num_kv_heads must be an integer, not float"),
        ({"num_kv_heads": 1}, ValueError, "w_key must map to 1 heads of 4 features, as w_query does, not to 8"),
        ({"num_kv_heads": None}, ValueError, "w_query and w_key must map to one number of features, not to 16 and 8"),
        ({"window": 3}, TypeError, r"window must be a pair \(left, right\), not 3"),
        ({"window": (-1, 0)}, ValueError, "left must be at least 0, not -1"),
        ({"rotary": True}, TypeError, "rotary must be a mapping of some of base, width, .*, not True"),
        ({"rotary": {"theta": 1}}, TypeError, "rotary must be a mapping of some of base"),
        ({"rotary": {"width": 6}}, ValueError, "width must be even, and at most the 4 features, not 6"),
        ({"positions": [1] * 5}, ValueError, "query_positions and key_positions are for rotary, which is not given"),
        ({"rotary": {}, "positions": [1] * 4}, ValueError, r"positions must broadcast to the rows, whose shape is \(5"),
        ({"qk_norm": "layer"}, ValueError, 'qk_norm must be "rms" or "l2", not \'layer\''),
        ({"qk_norm_epsilon": -1}, ValueError, "qk_norm_epsilon must be finite and not negative"),
        ({"qk_norm_after_rotary": 1}, TypeError, "qk_norm_after_rotary must be True or False, not 1"),
        (
            {"parameters": LAYER._replace(key_gain=np.ones(8))},
            ValueError,
            r"parameters\.key_gain must have the shape \(4,\)",
        ),
        ({"parameters": LAYER._replace(sink=np.ones(2))}, ValueError, r"parameters\.sink must have the shape \(4,\)"),
        (
            {"parameters": LAYER._replace(b_key=np.ones(16))},
            ValueError,
            r"parameters\.b_key must have the shape \(8,\)",
        ),
    ],
)
def test_options_of_layers_that_do_not_fit_are_refused(changed: Any, error: type[Exception], message: str) -> None:
    x = normal(0, 5, 5)
    given = {"parameters": a_layer(), "num_heads": 4, "num_kv_heads": 2}
    with pytest.raises(error, match=f"^{message}"):
        multi_head.forward(x, x, x, **{**given, **changed})


def in_layout(layout: str) -> dict[str, Array]:
    state = {"q_proj.weight": normal(0, 8, 5), "k_proj.weight": normal(1, 4, 5), "v_proj.weight": normal(2, 4, 5)}
    state |= {"o_proj.weight": normal(3, 5, 8)}
    if layout == "qwen3":
        state |= {"q_norm.weight": normal(4, 2), "k_norm.weight": normal(5, 2)}
    return state


def test_a_layer_of_hugging_face_is_read_by_name_without_a_copy() -> None:
    state = in_layout("qwen3")
    parameters = Parameters.from_layer(state, "qwen3")
    for name, of in (("w_query", "q_proj"), ("w_key", "k_proj"), ("w_value", "v_proj"), ("w_output", "o_proj")):
        assert_same_bits(getattr(parameters, name), state[f"{of}.weight"].T)
        assert np.shares_memory(getattr(parameters, name), state[f"{of}.weight"])
    assert parameters.query_gain is state["q_norm.weight"]
    assert parameters.sink is parameters.b_query is None
    x = normal(9, 3, 5)
    assert multi_head.forward(x, x, x, parameters, num_heads=4, num_kv_heads=2)[0].shape == (3, 5)


@each(
    ("state", "layout", "message"),
    [
        (in_layout("llama"), "falcon", "layout must be one of llama, gemma2, qwen3, gpt_oss, bloom, t5, bert, not"),
        (in_layout("llama"), "qwen3", r"a layer of the layout qwen3 lacks q_norm\.weight, k_norm\.weight \(its arr"),
        (in_layout("qwen3"), "llama", r"a layer of the layout llama has q_norm\.weight, k_norm\.weight besides"),
        ({}, "t5", r"a layer of the layout t5 lacks q\.weight, k\.weight, v\.weight, o\.weight"),
        ({"query_key_value.weight": np.ones((12, 4))}, "bloom", "num_heads is needed for the layout bloom"),
    ],
)
def test_layers_that_are_not_of_the_layout_are_refused(state: Any, layout: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Parameters.from_layer(state, layout)


def test_a_fused_layer_is_read_head_by_head() -> None:
    fused = np.arange(2 * 3 * 2 * 4.0).reshape(12, 4)  # of two heads, each two wide
    state = {"query_key_value.weight": fused, "query_key_value.bias": np.arange(12.0), "dense.weight": np.eye(4)}
    parameters = Parameters.from_layer(state, "bloom", num_heads=2)
    assert_same_bits(parameters.w_query, fused[[0, 1, 6, 7]].T)
    assert_same_bits(parameters.w_value, fused[[4, 5, 10, 11]].T)
    assert_same_bits(parameters.b_key, np.array([2.0, 3, 8, 9]))
    with pytest.raises(
        ValueError, match=r"^num_heads=3 must divide a third of query_key_value\.weight .*shape=\(12, 4\)"
    ):
        Parameters.from_layer(state, "bloom", num_heads=3)
