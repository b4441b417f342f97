"""Chains of ops: every pass of a layer from those of its ops."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import assert_close, assert_same_bits, each, normal

from attention_np import (
    biases,
    blockwise,
    chain,
    cross_entropy,
    dot_product,
    gradcheck,
    hessian_vector_product,
    layer_norm,
    linear_attention,
    masks,
    multi_head,
    rms_norm,
    rotary,
    softmax,
)

Array = Any


def block(x: Any, gain: Any, w_query: Any, w_key: Any, w_value: Any, w_output: Any, w: Any) -> Any:
    """A norm, attention with a residual, and a gate."""
    normed = chain.apply(rms_norm, x, gain)
    parameters = multi_head.Parameters(w_query, w_key, w_value, w_output)
    x = x + chain.apply(multi_head, normed, normed, normed, parameters, num_heads=2, is_causal=True)
    return x * chain.apply(softmax, x @ w)


def with_state(x: Any, log_decay: Any, beta: Any, state: Any) -> Any:
    """A delta rule that hands its state on, and attention with its log-sum-exp."""
    told = chain.apply(
        linear_attention,
        x,
        x,
        x,
        log_decay=log_decay,
        beta=beta,
        initial_state=state,
        outputs=("output", "final_state"),
    )
    output, logsumexp = chain.apply(blockwise, told[0], x, x, outputs=["output", "logsumexp"])
    return output, told[1], logsumexp


def with_biases(x: Any, slopes: Any, table: Any, embedding: Any, log_f: Any) -> Any:
    """Each bias object that holds an array, around a variable."""
    x = chain.apply(dot_product, x, x, x, bias=biases.alibi(slopes))
    x = chain.apply(dot_product, x, x, x, bias=biases.t5(table, max_distance=4))
    x = chain.apply(dot_product, x, x, x, bias=biases.shaw(embedding))
    return chain.apply(dot_product, x, x, x, bias=biases.forgetting(log_f), is_causal=True)


def arithmetic(x: Any, y: Any, w: Any, v: Any) -> Any:
    """Each operation between ops, on shapes that broadcast."""
    mixed = (x + y) * y - 2.0 * x / (3 + y * y) + np.ones((2, 1, 1)) / (2 - (-x) * 0.1)
    rows = np.array([0, 2, 0])  # one of them twice
    taken = chain.concatenate([mixed[..., rows, :], x[None, 1]], axis=0)
    chosen = chain.where(np.arange(4) % 2 == 0, taken, y)
    folded = chosen.reshape(3, -1, 2).swapaxes(0, 1)
    return (folded @ w).sum(axis=0, keepdims=True) + (v @ w) @ v + (folded.sum() / 7)


LAYERS = {
    block: {"x": (2, 4, 6), "gain": (6,)} | dict.fromkeys(["w_query", "w_key", "w_value", "w_output", "w"], (6, 6)),
    with_state: {"x": (2, 5, 3), "log_decay": (2, 5, 1), "beta": (2, 5), "state": (3, 3)},
    with_biases: {"x": (2, 5, 4), "slopes": (2,), "table": (8,), "embedding": (3, 4), "log_f": (5,)},
    arithmetic: {"x": (2, 3, 4), "y": (4,), "w": (2, 2), "v": (2,)},
}


def inputs_of(layer: Any) -> dict[str, Array]:
    return {name: normal(k, *shape) / 2 for k, (name, shape) in enumerate(LAYERS[layer].items())}


@each("layer", LAYERS)
def test_all_passes_of_a_layer_are_numerical_derivatives_of_its_forward(layer: Any) -> None:
    report = gradcheck.check_op(chain, inputs_of(layer), method="complex-step", layer=layer)
    report.raise_if_failed()
    assert {"jvp", "double_backward"} <= {entry.name for entry in report}
    assert all(report[name].max_relative_error <= 1e-13 for name in LAYERS[layer])


def test_attention_of_many_heads_is_a_chain_of_its_steps() -> None:
    """With fewer heads of keys, norms of queries and keys, rotary positions, a softcap, a window and a sink."""
    shapes = {"w_query": (8, 8), "w_key": (8, 4), "w_value": (8, 4), "w_output": (8, 8), "b_query": (8,)}
    shapes |= {"b_output": (8,), "query_gain": (2,), "key_gain": (2,), "sink": (4,)}
    inputs = {"x": normal(0, 2, 5, 8)} | {name: normal(k, *shape) for k, (name, shape) in enumerate(shapes.items())}
    positions, turns = [4, 5, 6, 7, 9], {"base": 50.0}

    def heads(x: Any, count: int) -> Any:
        return x.reshape(*x.shape[:-1], count, -1).swapaxes(-2, -3)

    def written_out(x: Any, **w: Any) -> Any:
        query = chain.apply(rms_norm, heads(x @ w["w_query"] + w["b_query"], 4), w["query_gain"], epsilon=0.1)
        key = chain.apply(rms_norm, heads(x @ w["w_key"], 2), w["key_gain"], epsilon=0.1)
        query, key = (chain.apply(rotary, y, positions, **turns) for y in (query, key))
        key, value = (y[..., [0, 0, 1, 1], :, :] for y in (key, heads(x @ w["w_value"], 2)))
        options = {"sink": w["sink"], "softcap": 2.0, "mask": masks.sliding_window(5, left=2)}
        attended = chain.apply(dot_product, query, key, value, **options)
        return attended.swapaxes(-2, -3).reshape(2, 5, 8) @ w["w_output"] + w["b_output"]

    def whole(x: Any, **w: Any) -> Any:
        options = {"num_heads": 4, "num_kv_heads": 2, "window": (2, 0), "softcap": 2.0, "qk_norm_epsilon": 0.1}
        return chain.apply(
            multi_head, x, x, x, multi_head.Parameters(**w), rotary=turns, positions=positions, **options
        )

    d_output = normal(20, 2, 5, 8)
    tangents = {name: normal(30 + k, *x.shape) for k, (name, x) in enumerate(inputs.items())}
    of_each = []
    for layer in (written_out, whole):
        output, cache = chain.forward(layer, inputs)
        tangent, curved = chain.double_backward(tangents, d_output, cache)
        assert_same_bits(tangent, chain.jvp(cache, **tangents))
        of_each.append({"output": output, "tangent": tangent} | {f"H {name}": x for name, x in curved.items()})
        of_each[-1] |= chain.backward(d_output, cache)
    for name, expected in of_each[1].items():
        assert_close(of_each[0][name], expected, 1e-13)


def test_products_with_the_hessian_are_those_of_one_op() -> None:
    scores, d_weights, tangent = (normal(k, 2, 5) for k in range(3))
    _, cache = chain.forward(lambda scores: chain.apply(softmax, scores), {"scores": scores})
    found = hessian_vector_product(chain, d_weights, cache, scores=tangent)["scores"]
    _, of_op = softmax.forward(scores)
    assert_same_bits(found, hessian_vector_product(softmax, d_weights, of_op, scores=tangent).scores)


def hidden(x: Any, y: Any) -> Any:
    """Padding is hidden from attention, behind products with numbers of both signs."""
    key = x * y / (1 + y * y) @ np.eye(3)
    return chain.apply(dot_product, chain.apply(layer_norm, x), key, key + x, mask=np.arange(4) < 3)


@each("spoiled", [np.nan, np.inf])
def test_what_a_mask_hides_stays_hidden_through_a_chain(spoiled: float) -> None:
    inputs = {"x": normal(0, 2, 4, 3), "y": normal(1, 3)}
    padded = {"x": inputs["x"].copy(), "y": inputs["y"]}
    padded["x"][:, 3] = spoiled
    d_output = normal(2, 2, 4, 3) * (np.arange(4) < 3)[:, None]
    tangents = {"x": normal(3, 2, 4, 3), "y": normal(4, 3)}
    (_, cache), (_, of_padded) = (chain.forward(hidden, x) for x in (inputs, padded))
    expected, found = chain.backward(d_output, cache), chain.backward(d_output, of_padded)
    twice, found_twice = (chain.double_backward(tangents, d_output, x)[1] for x in (cache, of_padded))
    for one, other in ((expected, found), (twice, found_twice)):
        assert_close(other["y"], one["y"], 1e-14)
        assert_close(other["x"][:, :3], one["x"][:, :3], 1e-14)
        assert not other["x"][:, 3].any()
    assert_close(chain.jvp(of_padded, **tangents)[:, :3], chain.jvp(cache, **tangents)[:, :3], 1e-14)


def test_a_sample_without_a_gradient_poisons_no_other() -> None:
    inputs = inputs_of(arithmetic)
    spoiled = inputs | {"x": np.where(np.arange(2)[:, None, None] == 1, np.nan, inputs["x"])}
    layer = lambda x, y, w, v: (x * y / (1 + y * y) - y / (x * x + 1)).reshape(2, 3, 2, 2) @ w @ v  # noqa: E731
    tangents = {name: normal(k, *x.shape) for k, (name, x) in enumerate(inputs.items())}
    (_, cache), (_, of_spoiled) = (chain.forward(layer, x) for x in (inputs, spoiled))
    d_output = normal(9, 2, 3, 2) * np.array([1.0, 0.0])[:, None, None]
    for one, other in zip(
        (chain.backward(d_output, cache), chain.double_backward(tangents, d_output, cache)[1]),
        (chain.backward(d_output, of_spoiled), chain.double_backward(tangents, d_output, of_spoiled)[1]),
        strict=True,
    ):
        for name in inputs:
            assert_same_bits(other[name], one[name])


def test_a_layer_may_return_inputs_and_several_outputs_and_leave_inputs_out() -> None:
    inputs = {name: normal(k, 2, 3) for k, name in enumerate("xyz")}
    outputs, cache = chain.forward(lambda x, y, z: (x, x * y, y), inputs)
    assert_same_bits(outputs[0], inputs["x"])
    assert not np.may_share_memory(outputs[0], inputs["x"])
    d = [normal(5, 2, 3), normal(6, 2, 3)]
    gradients = chain.backward((d[0], d[1], None), cache)
    assert_same_bits(gradients["x"], d[0] + d[1] * inputs["y"])
    assert_same_bits(gradients["y"], d[1] * inputs["x"])
    assert gradients["z"] is None
    moved = chain.jvp(cache, x=d[0], z=d[1])
    assert_same_bits(moved[1], d[0] * inputs["y"])
    assert moved[2] is None
    _, curved = chain.double_backward({"y": d[0], "x": None}, (None, d[1], None), cache)
    assert_same_bits(curved["x"], d[1] * d[0])
    assert not curved["y"].any()
    assert curved["z"] is None


def test_numbers_without_axes_have_gradients_without_axes() -> None:
    output, cache = chain.forward(lambda x, y: x * y + x / y, {"x": 2.0, "y": np.float32(4)})
    gradients, moved = chain.backward(1.0, cache), chain.jvp(cache, x=1.0)
    for x, expected in ((output, 8.5), (gradients["x"], 4.25), (gradients["y"], 1.875), (moved, 4.25)):
        assert isinstance(x, np.ndarray)
        assert (x.shape, x) == ((), expected)


def test_a_loss_without_axes_is_an_array_in_what_follows() -> None:
    layer = lambda x: 3 * chain.apply(cross_entropy, x[0], 1)  # noqa: E731
    output, cache = chain.forward(layer, X)
    assert isinstance(output, np.ndarray)
    assert_close(output, np.array(3 * np.log(3.0)), 1e-15)
    assert_close(chain.backward(1.0, cache)["x"], np.array([[1.0, -2.0, 1.0], [0.0, 0.0, 0.0]]), 1e-15)
    gradcheck.check_op(chain, {"x": normal(0, 2, 3)}, layer=layer).raise_if_failed()


def test_constants_are_joined_and_chosen_as_arrays() -> None:
    def layer(x: Any) -> Any:
        joined = chain.concatenate([np.zeros((1, 3)), np.ones((1, 3))], axis=0)
        chosen = chain.where(np.arange(3) > 0, 2.0, joined)
        assert isinstance(chosen, np.ndarray)
        return x * chosen + chain.where(np.arange(3) > 0, 0, 0.0)

    assert_same_bits(chain.forward(layer, X)[0], np.array([[0.0, 2.0, 2.0], [1.0, 2.0, 2.0]]))


def test_numbers_that_do_not_fit_are_infinite_without_a_warning() -> None:
    output, _ = chain.forward(lambda x: 1e300 * x, {"x": np.ones(3, np.float32)})
    assert_same_bits(output, np.full(3, np.inf, np.float32))


def test_gradients_have_memory_of_their_own() -> None:
    d_output = normal(0, 2, 3)
    _, cache = chain.forward(lambda x, y: x + y, {"x": normal(1, 2, 3), "y": normal(2, 2, 3)})
    gradients = chain.backward(d_output, cache)
    gradients["x"] += 1
    assert_same_bits(gradients["y"], normal(0, 2, 3))
    assert_same_bits(d_output, normal(0, 2, 3))
    _, cache = chain.forward(lambda x: x, {"x": normal(1, 2, 3)})
    assert not np.may_share_memory(chain.jvp(cache, x=d_output), d_output)


@each("dtype", [np.float16, np.float32])
def test_numbers_never_upcast_and_arrays_do(dtype: Any) -> None:
    x = normal(0, 2, 3).astype(dtype)
    layer = lambda x: (2 * x + np.float64(1) - x / 3.0) @ np.ones(3, dtype)  # noqa: E731
    output, cache = chain.forward(layer, {"x": x})
    assert output.dtype == chain.jvp(cache, x=x).dtype == chain.backward(output, cache)["x"].dtype == dtype
    output, cache = chain.forward(lambda x: x * np.ones(3), {"x": x})
    assert output.dtype == np.result_type(dtype, float)
    assert chain.forward(lambda x: x * 1j, {"x": x})[0].dtype == np.complex64
    assert chain.backward(output, cache)["x"].dtype == dtype


def test_an_output_that_nothing_reads_has_no_gradient() -> None:
    def layer(x: Any) -> Any:
        return chain.apply(linear_attention, x, x, x, outputs=("output", "final_state"))[1]

    gradcheck.check_op(chain, {"x": normal(0, 3, 2)}, method="complex-step", layer=layer).raise_if_failed()


def test_an_input_that_nothing_reads_has_a_gradient_of_zero_for_a_checker() -> None:
    report = gradcheck.check_op(chain, {"x": normal(0, 3), "y": normal(1, 2)}, layer=lambda x, y: x * x)
    report.raise_if_failed()
    assert report["y"].ok


def test_an_input_may_have_any_name_and_if_it_is_checked_that_of_an_argument() -> None:
    def layer(**inputs: Any) -> Any:
        return inputs["cache"] * inputs["self"] * inputs.get("block.0.w", 1.0)

    inputs = {"cache": normal(0, 3), "self": normal(1, 3)}
    gradcheck.check_op(chain, inputs, method="complex-step", layer=layer).raise_if_failed()
    inputs["block.0.w"] = normal(2, 3)
    output, cache = chain.forward(layer, inputs)
    np.testing.assert_allclose(chain.jvp(cache, **inputs), 3 * output, rtol=1e-15)
    with pytest.raises(ValueError, match="names of arguments, not 'block"):
        gradcheck.check_op(chain, inputs, layer=layer)


def test_a_check_of_a_chain_is_of_a_layer() -> None:
    with pytest.raises(
        TypeError, match=r"layer must be a function of variables, as check_op\(chain, inputs, layer=lay"
    ):
        gradcheck.check_op(chain, X)


class Squares:
    """An op of somebody else's."""

    class Gradients(NamedTuple):
        x: Any

    @staticmethod
    def forward(x: Any) -> Any:
        return x * x, x

    @staticmethod
    def backward(d_output: Any, cache: Any) -> Any:
        return Squares.Gradients(2 * cache * d_output)

    @staticmethod
    def jvp(cache: Any, x: Any) -> Any:
        return 2 * cache * x

    @staticmethod
    def double_backward(d_gradients: Any, d_output: Any, cache: Any) -> Any:
        return 2 * cache * d_gradients.x, Squares.Gradients(2 * d_gradients.x * d_output)


def test_any_object_with_the_functions_of_an_op_is_one() -> None:
    report = gradcheck.check_op(chain, {"x": normal(0, 3)}, layer=lambda x: chain.apply(Squares, x + 1) * x)
    report.raise_if_failed()


def test_the_steps_are_listed_with_their_shapes() -> None:
    def layer(x: Any, state: Any) -> Any:
        output, last = chain.apply(linear_attention, x, x, x, initial_state=state, outputs=("output", "final_state"))
        return output + x, last

    _, cache = chain.forward(layer, {"x": normal(0, 4, 2), "state": normal(1, 2, 2)})
    assert str(cache).splitlines() == [
        "   inputs            x (4, 2), state (2, 2)",
        "1  linear_attention  x, state -> (4, 2), (2, 2)",
        "2  add               step 1, x -> (4, 2)",
        "   output            step 2 (4, 2), step 1 (2, 2)",
    ]


X = {"x": np.ones((2, 3))}


@each(
    ("layer", "error", "said"),
    [
        (
            lambda x: np.exp(x),
            TypeError,
            'np.exp takes no Variable of a chain: use chain.apply(activation, x, kind="exp")',
        ),
        (lambda x: np.concatenate([x, x]), TypeError, "use chain.concatenate([x, y], axis=-1)"),
        (lambda x: x**2, TypeError, "use x * x"),
        (lambda x: float(x), TypeError, "its array, x.value"),
        (lambda x: x if x else -x, TypeError, "a condition takes no Variable"),
        (lambda x: x * (x > 0), TypeError, "np.greater takes no Variable"),
        (lambda x: softmax.forward(x)[0], TypeError, "use an op with chain.apply(op, x)"),
        (lambda x: x[x.value > 0], TypeError, "slices, None, ... and integers"),
        (lambda x: chain.where(1, x, x), TypeError, "mask must be boolean, not int64 (mask.shape=())"),
        (lambda x: chain.apply(rotary, x, positions=x[0]), TypeError, "step 2, rotary: positions takes no Variable"),
        (lambda x: chain.apply(rms_norm, x + 1, np.ones(7)), ValueError, "step 2, rms_norm: gain must broadcast to x"),
        (lambda x: chain.apply(softmax, x, axis=5), ValueError, "step 1, softmax: scores has no axis 5"),
        (lambda x: chain.apply(softmax), TypeError, "step 1, softmax: missing a required argument: 'scores'"),
        (lambda x: x[..., 4], IndexError, "step 1, entries: index 4 is out of bounds"),
        (
            lambda x: chain.apply(softmax, x, outputs=["final_state"])[0],
            ValueError,
            "softmax has no output 'final_state'",
        ),
        (
            lambda x: chain.apply(blockwise, x, x, x, outputs=["executor"])[0],
            ValueError,
            "step 1, blockwise: blockwise has no output 'executor': it has output, logsumexp",
        ),
        (lambda x: chain.apply(softmax, x, outputs="output"), TypeError, "outputs must be a tuple of names of outputs"),
        (
            lambda x: chain.apply(blockwise, x, x, x, outputs=["output", "output"])[0],
            ValueError,
            "step 1, blockwise: outputs must name each once, not output, output",
        ),
        (lambda x: chain.concatenate([x, x], axis=None), TypeError, "axis must be an integer, not NoneType"),
        (lambda x: chain.concatenate([]), ValueError, "parts must be of at least one array"),
        (lambda x: x + None, TypeError, "a constant must hold numbers, not object"),
        (lambda x: x * "2", TypeError, "a constant must hold numbers, not <U1"),
        (lambda x: x.T, AttributeError, "a Variable of a chain has no T: use x.swapaxes(-1, -2)"),
        (lambda x: x.mean(), AttributeError, "has no mean: use x.sum(axis) / count"),
        (lambda x: x.clip(0), AttributeError, "has no clip: use an op with chain.apply(op, x), or"),
        (lambda x: chain.apply(3, x), TypeError, "op must have forward, backward and jvp, as attention_np.rms_norm"),
        (lambda x: x.value, TypeError, "layer must return a Variable of its own, or a tuple of them, not ndarray"),
    ],
)
def test_what_a_layer_cannot_do_is_refused_by_the_step(layer: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as raised:
        chain.forward(layer, X)
    assert said in str(raised.value)


def test_variables_of_two_layers_are_kept_apart() -> None:
    def layer(x: Any) -> Any:
        chain.forward(lambda y: x + y, {"y": np.ones(3)})
        return x

    with pytest.raises(ValueError, match="variables of two chains cannot be combined"):
        chain.forward(layer, X)
    others: list[Any] = []
    chain.forward(lambda x: others.append(x) or x, X)
    with pytest.raises(TypeError, match="layer must return a Variable of its own"):
        chain.forward(lambda x: others[0], X)


@each(
    ("call", "error", "said"),
    [
        (lambda cache: chain.backward(np.ones(3), cache), ValueError, "d_output must have the shape (2, 3)"),
        (
            lambda cache: chain.backward(np.ones((2, 3)), 3),
            TypeError,
            "cache must be the one that chain.forward returned",
        ),
        (lambda cache: chain.jvp(cache, y=np.ones(3)), TypeError, "the chain has no input 'y': it has x"),
        (lambda cache: chain.jvp(cache, x=np.ones(3)), ValueError, "the tangent of x must have the shape (2, 3)"),
        (lambda cache: chain.double_backward([1], X["x"], cache), TypeError, "d_gradients must be a mapping"),
        (lambda cache: chain.forward(lambda x: x, [1.0]), TypeError, "inputs must be a mapping"),
        (lambda cache: chain.forward(lambda x: x, {"x": [1]}), TypeError, "x must hold floating-point numbers"),
    ],
)
def test_arguments_are_refused_by_their_names(call: Any, error: type[Exception], said: str) -> None:
    _, cache = chain.forward(lambda x: -x, X)
    with pytest.raises(error) as raised:
        call(cache)
    assert said in str(raised.value)


def test_a_tuple_of_outputs_wants_a_tuple_of_gradients() -> None:
    _, cache = chain.forward(lambda x: (x, -x), X)
    with pytest.raises(ValueError, match=r"d_output must be a tuple of 2, as the layer returned so many, not ndarray"):
        chain.backward(X["x"], cache)
