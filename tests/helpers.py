"""What several test files need: cases for every op, and references in plain loops that share no code with the package.

The references skip a pair that is masked out and an entry of a gradient that is zero, so they say what the package must
give where arrays hold NaN, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special

from attention_np import additive, dot_product, multi_head, softmax
from attention_np.multi_head import Parameters

Array = npt.NDArray[Any]
COMPLEX_STEP, CENTRAL = 1e-13, 1e-7


class Case(NamedTuple):
    """An op with the arrays that it is differentiated by and its other options."""

    op: ModuleType
    inputs: dict[str, Any]
    options: dict[str, Any]

    def forward(self, **changed: Any) -> tuple[Array, Any]:
        return self.op.forward(**{**self.inputs, **self.options, **changed})

    def map(self, function: Callable[[Array], Array]) -> Case:
        """The same case, with `function` applied to each of its arrays."""
        return self._replace(inputs=map_arrays(function, self.inputs))


def map_arrays(function: Callable[[Array], Array], value: Any) -> Any:
    """`value`, a nest of mappings and tuples, with `function` applied to each array in it."""
    if isinstance(value, Mapping):
        return {name: map_arrays(function, inner) for name, inner in value.items()}
    if hasattr(value, "_asdict"):
        return type(value)(*(map_arrays(function, inner) for inner in value))
    return value if value is None else function(value)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Array]]:
    """The arrays in a nest of mappings, named tuples and plain tuples, with dotted names."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, np.ndarray | np.generic):
        yield name, np.asarray(value)


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def random_parameters(
    seed: int,
    d_query: int = 4,
    d_key: int = 4,
    d_value: int = 4,
    d_qk: int = 4,
    d_v: int = 4,
    d_output: int = 4,
    biases: str = "query key value output",
) -> Parameters:
    """Parameters of any widths, with biases that are not zero."""
    rng = np.random.default_rng(seed)
    shapes = ((d_query, d_qk), (d_key, d_qk), (d_value, d_v), (d_v, d_output))
    weights = [rng.standard_normal(shape) / np.sqrt(max(shape[0], 1)) for shape in shapes]
    names = ("query", "key", "value", "output")
    drawn = [
        rng.standard_normal(shape[1]) if name in biases.split() else None
        for name, shape in zip(names, shapes, strict=True)
    ]
    return Parameters(*weights, *drawn)


def plain_cases(n: int = 4, m: int = 5, batch: tuple[int, ...] = (), seed: int = 0) -> dict[str, Case]:
    """One case of each op, with every array that it takes."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        return rng.standard_normal(shape)

    q, k, v = draw(*batch, n, 4), draw(*batch, m, 4), draw(*batch, m, 4)
    return {
        "softmax": Case(softmax, {"scores": draw(*batch, n, m)}, {}),
        "dot_product": Case(dot_product, {"query": q, "key": k, "value": v, "bias": draw(n, m)}, {}),
        "additive": Case(
            additive,
            {
                "query": q,
                "key": k,
                "value": v,
                "w_query": draw(4, 3),
                "w_key": draw(4, 3),
                "w_score": draw(3),
                "b": draw(3),
            },
            {},
        ),
        "multi_head": Case(
            multi_head,
            {"query": q, "key": k, "value": v, "parameters": random_parameters(seed), "bias": draw(2, n, m)},
            {"num_heads": 2},
        ),
    }


OPS = tuple(plain_cases())


def tangents_of(case: Case, seed: int = 1) -> dict[str, Any]:
    """A random tangent of each array of a case."""
    rng = np.random.default_rng(seed)
    return map_arrays(lambda x: rng.standard_normal(x.shape).astype(x.dtype), case.inputs)


class Results(NamedTuple):
    """All that an op gives."""

    output: Array
    gradients: dict[str, Array]
    jvp: Array
    cache: Any


def run(case: Case, d_output: Array | None = None, tangents: dict[str, Any] | None = None) -> Results:
    """All that an op gives, for a random cotangent and random tangents unless they are given."""
    output, cache = case.forward()
    if d_output is None:
        d_output = np.random.default_rng(2).standard_normal(output.shape).astype(output.dtype)
    gradients = case.op.backward(d_output, cache)
    moved = case.op.jvp(cache, **(tangents_of(case) if tangents is None else tangents))
    return Results(output, dict(leaves(gradients)), moved, cache)


def relative_error(actual: Array, expected: Array) -> float:
    """The largest difference over the largest magnitude; where `expected` is NaN or infinite, `actual` must be too."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(actual), finite)
    np.testing.assert_array_equal(actual[~finite], expected[~finite])
    scale = np.abs(expected[finite]).max(initial=0)
    difference = np.abs(actual[finite] - expected[finite]).max(initial=0)
    return float(difference / scale if scale else difference)


def assert_close(actual: Array, expected: Array, rtol: float) -> None:
    """Assert normwise agreement, NaN where NaN is expected included."""
    error = relative_error(actual, expected)
    assert error <= rtol, f"the relative error is {error:.1e}, not {rtol:.0e}"


def assert_gradients_close(actual: Mapping[str, Array], expected: Mapping[str, Array], rtol: float) -> None:
    """Assert that the gradients agree; one that is zero but for rounding is held to an absolute `rtol`."""
    assert set(actual) == set(expected)
    for name, gradient in expected.items():
        if np.abs(gradient).max(initial=0) > 1e-14 or np.isnan(gradient).any():
            assert_close(actual[name], gradient, rtol)
        else:
            assert actual[name].shape == gradient.shape
            assert np.abs(actual[name]).max(initial=0) <= rtol


def assert_same_bits(actual: Array, expected: Array) -> None:
    """Assert equality to the last bit, where zero has no sign."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(actual, expected, strict=True)


def softmax_row(scores: Array) -> Array:
    """Softmax of one row without -inf; one that holds +inf is shared among those."""
    top = scores.real == np.inf
    if top.any() and not np.isnan(scores).any():
        return top / top.sum()
    if np.iscomplexobj(scores):
        exponentials = np.exp(scores - scores.real.max())
        return exponentials / exponentials.sum()
    if not np.isfinite(scores).all():
        return np.full(scores.shape, np.nan)
    return np.asarray(special.softmax(scores))


class Attended(NamedTuple):
    output: Array
    weights: Array


def reference_attend(scores: Array, value: Array, visible: Array) -> Attended:
    """The weighted mean of the values, row by row, for scores (n, m) of which only the visible ones are looked at."""
    n, m = scores.shape
    dtype = np.result_type(scores, value)
    output, weights = np.zeros((n, value.shape[1]), dtype), np.zeros((n, m), scores.dtype)
    for i in range(n):
        seen = np.flatnonzero(visible[i])
        if seen.size:
            weights[i, seen] = softmax_row(scores[i, seen])
        for j in seen:
            output[i] = output[i] + weights[i, j] * value[j]
    return Attended(output, weights)


def reference_attend_backward(
    d_output: Array, scores: Array, weights: Array, value: Array, visible: Array
) -> tuple[Array, Array]:
    """The gradients of scores and values, of which those of a row without a gradient and of masked pairs are zero."""
    d_scores, d_value = np.zeros(scores.shape), np.zeros(value.shape)
    for i in range(len(scores)):
        seen = np.flatnonzero(visible[i])
        if not (d_output[i] != 0).any():
            continue
        d_weights = np.array([(d_output[i] * value[j]).sum() for j in seen])
        for j in seen:
            d_value[j] += weights[i, j] * d_output[i]
        if (scores[i, seen] == np.inf).any():
            continue
        d_scores[i, seen] = weights[i, seen] * (d_weights - (weights[i, seen] * d_weights).sum())
    return d_scores, d_value


def sum_of_products(d: Array, x: Array) -> Array:
    """``d @ x``, term by term, without the terms in which `d` is zero."""
    result = np.zeros((d.shape[0], x.shape[1]))
    for i, j in np.argwhere(d != 0):
        result[i] += d[i, j] * x[j]
    return result


def reference_dot_product(
    query: Array, key: Array, value: Array, bias: Array, visible: Array, scale: float, d_output: Array | None = None
) -> tuple[Array, dict[str, Array]]:
    """Attention of matrices, and its gradients if `d_output` is given."""
    visible = visible & (np.real(bias) != -np.inf)
    scores = np.zeros((len(query), len(key)), np.result_type(query, key, bias))
    for i, j in np.argwhere(visible):
        scores[i, j] = sum(a * b for a, b in zip(query[i], key[j], strict=True)) * scale + bias[i, j]
    output, weights = reference_attend(scores, value, visible)
    if d_output is None:
        return output, {}
    d_scores, d_value = reference_attend_backward(d_output, scores, weights, value, visible)
    d_query = sum_of_products(d_scores, key) * scale
    d_key = sum_of_products(d_scores.T, query) * scale
    return output, {"query": d_query, "key": d_key, "value": d_value, "bias": d_scores}


def reference_additive(
    query: Array,
    key: Array,
    value: Array,
    w_query: Array,
    w_key: Array,
    w_score: Array,
    b: Array,
    visible: Array,
    d_output: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Additive attention of matrices, and its gradients if `d_output` is given."""
    scores = np.zeros(visible.shape, np.result_type(query, key, w_query, w_key, w_score, b))
    hidden = {}
    for i, j in np.argwhere(visible):
        hidden[i, j] = np.tanh((query[i][:, None] * w_query).sum(0) + (key[j][:, None] * w_key).sum(0) + b)
        scores[i, j] = (w_score * hidden[i, j]).sum()
    output, weights = reference_attend(scores, value, visible)
    if d_output is None:
        return output, {}
    d_scores, d_value = reference_attend_backward(d_output, scores, weights, value, visible)
    d_w_score, d_b = np.zeros(w_score.shape), np.zeros(b.shape)
    d_w_query, d_w_key = np.zeros(w_query.shape), np.zeros(w_key.shape)
    d_query, d_key = np.zeros(query.shape), np.zeros(key.shape)
    for i, j in np.argwhere(d_scores != 0):
        d_w_score += d_scores[i, j] * hidden[i, j]
        d_sum = d_scores[i, j] * w_score * (1 - hidden[i, j] ** 2)
        d_b += d_sum
        d_query[i] += (w_query * d_sum).sum(1)
        d_key[j] += (w_key * d_sum).sum(1)
        d_w_query += np.outer(query[i], d_sum)
        d_w_key += np.outer(key[j], d_sum)
    gradients = (d_query, d_key, d_value, d_w_query, d_w_key, d_w_score, d_b)
    return output, dict(zip(("query", "key", "value", "w_query", "w_key", "w_score", "b"), gradients, strict=True))


def reference_multi_head(
    query: Array,
    key: Array,
    value: Array,
    parameters: Parameters,
    bias: Array,
    num_heads: int,
    visible: Array,
    d_output: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Multi-head attention of matrices, head after head, and its gradients if `d_output` is given."""
    w = parameters
    q, k, v = (
        np.array([(x[:, None] * matrix).sum(0) for x in xs]).reshape(len(xs), -1) + (0 if b is None else b)
        for xs, matrix, b in (
            (query, w.w_query, w.b_query),
            (key, w.w_key, w.b_key),
            (value, w.w_value, w.b_value),
        )
    )
    d_k, d_v = q.shape[1] // num_heads, v.shape[1] // num_heads
    scale = 1 / np.sqrt(max(d_k, 1))
    slices = [(slice(h * d_k, (h + 1) * d_k), slice(h * d_v, (h + 1) * d_v)) for h in range(num_heads)]
    combined = np.zeros((len(query), v.shape[1]), np.result_type(q, k, v, bias))
    for h, (a, c) in enumerate(slices):
        combined[:, c], _ = reference_dot_product(q[:, a], k[:, a], v[:, c], bias[h], visible[h], scale)
    output = np.array([(row[:, None] * w.w_output).sum(0) for row in combined]).reshape(len(query), -1)
    output = output + (0 if w.b_output is None else w.b_output)
    if d_output is None:
        return output, {}

    d_combined = sum_of_products(d_output, w.w_output.T)
    d_q, d_k_, d_v_, d_bias = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape), np.zeros(bias.shape)
    for h, (a, c) in enumerate(slices):
        inner = (q[:, a], k[:, a], v[:, c], bias[h], visible[h], scale, d_combined[:, c])
        _, gradients = reference_dot_product(*inner)
        d_q[:, a], d_k_[:, a], d_v_[:, c], d_bias[h] = gradients.values()
    found = {"bias": d_bias, "parameters.w_output": sum_of_products(d_output.T, combined).T}
    found["parameters.b_output"] = d_output.sum(0)
    for name, d, x, matrix in (
        ("query", d_q, query, w.w_query),
        ("key", d_k_, key, w.w_key),
        ("value", d_v_, value, w.w_value),
    ):
        found[name] = sum_of_products(d, matrix.T)
        found[f"parameters.w_{name}"] = sum_of_products(d.T, x).T
        found[f"parameters.b_{name}"] = d.sum(0)
    return output, found


def reference(case: Case, d_output: Array | None = None) -> tuple[Array, dict[str, Array]]:
    """The output and gradients of a case of an attention: a loop over its leading axes, and gradients summed back."""
    inputs, options = case.inputs, case.options
    single = inputs["query"].ndim == 1
    query, key, value = np.atleast_2d(inputs["query"]), inputs["key"], inputs["value"]
    d_out = d_output if d_output is None or not single else d_output[..., None, :]
    leading = np.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))
    heads = (options["num_heads"],) if case.op is multi_head else ()
    n, m = query.shape[-2], key.shape[-2]
    pair_shape = (*leading, *heads, n, m)

    scores_leading = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])

    def over_pairs(x: Array | None, default: Any) -> Array:
        array = np.asarray(default if x is None else x)
        full = np.broadcast_to(array, (*scores_leading, *heads, n, m))
        return np.broadcast_to(full.reshape((1,) * (len(leading) - len(scores_leading)) + full.shape), pair_shape)

    visible = over_pairs(options.get("mask"), True)
    if options.get("is_causal"):
        visible = visible & (np.arange(m) <= np.arange(n)[:, None])
    bias = over_pairs(inputs.get("bias"), 0.0)
    arrays = [np.broadcast_to(x, (*leading, *x.shape[-2:])) for x in (query, key, value)]

    outputs: list[Array] = []
    gradients: dict[str, Array] = {}
    for index in np.ndindex(*leading):
        at = [x[index] for x in arrays]
        d = None if d_out is None else d_out[index]
        if case.op is dot_product:
            scale = options.get("scale")
            scale = 1 / np.sqrt(max(key.shape[-1], 1)) if scale is None else scale
            out, found = reference_dot_product(*at, bias[index], visible[index], scale, d)
        elif case.op is additive:
            weights = [inputs[name] for name in ("w_query", "w_key", "w_score")]
            b = inputs.get("b")
            b = np.zeros(weights[2].shape) if b is None else b
            out, found = reference_additive(*at, *weights, b, visible[index], d)
        else:
            out, found = reference_multi_head(*at, inputs["parameters"], bias[index], *heads, visible[index], d)
        outputs.append(out)
        for name, gradient in found.items():
            shared = name not in ("query", "key", "value", "bias")
            shape = gradient.shape if shared else (*leading, *gradient.shape)
            total = gradients.setdefault(name, np.zeros(shape))
            total[() if shared else index] += gradient
    width = inputs["parameters"].w_output.shape[1] if case.op is multi_head else value.shape[-1]
    output = np.array(outputs).reshape(*leading, n, width)
    if d_output is None:
        return output[..., 0, :] if single else output, {}
    summed = {
        name: summed_to(gradients[name], x.shape) if name in gradients else np.zeros(x.shape)
        for name, x in leaves(inputs)
    }
    return output[..., 0, :] if single else output, summed


def summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` summed over what an array of the given shape was broadcast along, one axis at a time."""
    while x.ndim > len(shape):
        x = x.sum(axis=0)
    for axis, size in enumerate(shape):
        if size == 1 and x.shape[axis] != 1:
            x = x.sum(axis=axis, keepdims=True)
    return x


def in_child(look: Callable[[], int]) -> int:
    """What `look` gives in a process that is forked here."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, bytes([look()]))
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        return pipe.read()[0]


def forks(test: Any) -> Any:
    warned = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")(test)
    warned = pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")(warned)  # of JAX, if another test imported it
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")(warned)
