"""Attention by several libraries, on the same arrays, with as many threads each as there are cores.

Each contender computes the output, and the output with the gradients of query, key and value, as its own users would.
What its library needs beforehand (its own arrays, its own layout, compilation) is not part of what is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import blockwise, weightings
from benchmarks._timing import cores
from benchmarks.checkers import installed

__all__ = [
    "PEERS",
    "Contender",
    "Inputs",
    "by_jax",
    "by_numpy",
    "by_torch",
    "contenders",
    "differences",
    "ours",
    "ours_again",
    "random_inputs",
]

Array = npt.NDArray[Any]
PEERS = ("torch", "jax")


class Inputs(NamedTuple):
    """What all contenders are given; the arrays are (batch, heads, n, d)."""

    query: Array
    key: Array
    value: Array
    d_output: Array
    is_causal: bool


class Contender(NamedTuple):
    """One way to compute attention, under the name of its column."""

    name: str
    forward: Callable[[], Any]
    both: Callable[[], Any]  # forward and backward: the output and three gradients
    dtype: np.dtype[Any]  # the least precise one that it computes in
    as_numpy: Callable[[Any], Array] = np.asarray  # an array of its library, in the layout of the inputs


def random_inputs(shape: tuple[int, ...], dtype: npt.DTypeLike, is_causal: bool = False) -> Inputs:
    """Standard normal arrays, the same ones each time."""
    rng = np.random.default_rng(0)
    query, key, value, d_output = (rng.standard_normal(shape).astype(dtype) for _ in range(4))
    return Inputs(query, key, value, d_output, is_causal)


def contenders(inputs: Inputs) -> Iterator[Contender]:
    """Ours, straightforward NumPy, and the peers that are installed."""
    yield ours(inputs)
    yield by_numpy(inputs)
    if installed("torch"):
        yield by_torch(inputs)
    if installed("jax"):
        yield by_jax(inputs)


def differences(found: Sequence[Contender]) -> dict[str, float]:
    """How far the results of each contender are from those of the first, relative to the largest entry of each."""
    first, *others = found
    expected = [first.as_numpy(array) for array in first.both()]
    result = {}
    for other in others:
        output, *gradients = (other.as_numpy(array) for array in other.both())
        pairs = [*zip((output, *gradients), expected, strict=True), (other.as_numpy(other.forward()), expected[0])]
        result[other.name] = max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in pairs)
    return result


def ours(inputs: Inputs, op: ModuleType = blockwise, name: str = "ours", **options: Any) -> Contender:
    """An op of this package, with the workers that it takes by itself."""
    query, key, value, d_output, is_causal = inputs

    def attend() -> tuple[Array, Any]:
        found: tuple[Array, Any] = op.forward(query, key, value, is_causal=is_causal, **options)
        return found

    def both() -> tuple[Array, ...]:
        output, cache = attend()
        return output, *op.backward(d_output, cache)[:3]

    return Contender(name, lambda: attend()[0], both, query.dtype)


def ours_weighed(inputs: Inputs) -> list[Contender]:
    """Blockwise attention with weights that are not by softmax."""
    return [ours(inputs, name=by.name, weights_by=by) for by in (weightings.sigmoid(), weightings.silu())]


def ours_again(inputs: Inputs) -> dict[str, Callable[[], Any]]:
    """Backward and double backward of blockwise attention, from one forward pass."""
    query, key, value, d_output, is_causal = inputs
    _, cache = blockwise.forward(query, key, value, is_causal=is_causal)
    gradients = blockwise.backward(d_output, cache)
    return {
        "backward": lambda: blockwise.backward(d_output, cache),
        "double backward": lambda: blockwise.double_backward(gradients, d_output, cache),
    }


def by_numpy(inputs: Inputs) -> Contender:
    """The formulas as one writes them down, with the threads of BLAS."""
    query, key, value, d_output, is_causal = inputs
    n, d = query.shape[-2:]
    scale = float(1 / np.sqrt(d))

    def attend() -> tuple[Array, Array]:
        scores = query @ key.swapaxes(-1, -2) * scale
        if is_causal:
            scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights @ value, weights

    def both() -> tuple[Array, ...]:
        output, weights = attend()
        d_value = weights.swapaxes(-1, -2) @ d_output
        d_weights = d_output @ value.swapaxes(-1, -2)
        d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True)) * scale
        return output, d_scores @ key, d_scores.swapaxes(-1, -2) @ query, d_value

    return Contender("NumPy", lambda: attend()[0], both, query.dtype)


def by_torch(inputs: Inputs) -> Contender:
    """`torch.nn.functional.scaled_dot_product_attention`, which takes its fused kernel for the CPU here."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.set_num_threads(cores())
    query, key, value, d_output = map(torch.from_numpy, inputs[:4])
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]

    def forward() -> Any:
        with torch.no_grad():
            return scaled_dot_product_attention(query, key, value, is_causal=inputs.is_causal)

    def both() -> tuple[Any, ...]:
        output = scaled_dot_product_attention(*leaves, is_causal=inputs.is_causal)
        return output, *torch.autograd.grad(output, leaves, d_output)

    return Contender("PyTorch", forward, both, inputs.query.dtype, lambda tensor: tensor.detach().numpy())


def by_jax(inputs: Inputs) -> Contender:
    """`jax.nn.dot_product_attention`, compiled; its layout is (batch, n, heads, d), and its threads are the cores.

    Its softmax is in float32 for arrays of float64, too.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    query, key, value, d_output = (jax.numpy.asarray(x.swapaxes(1, 2)) for x in inputs[:4])

    @jax.jit
    def attend(*arrays: Any) -> Any:
        return jax.nn.dot_product_attention(*arrays, is_causal=inputs.is_causal)

    @jax.jit
    def differentiate(*arrays: Any) -> tuple[Any, ...]:
        output, pull_back = jax.vjp(attend, *arrays[:3])
        return output, *pull_back(arrays[3])

    return Contender(
        "JAX",
        lambda: jax.block_until_ready(attend(query, key, value)),
        lambda: jax.block_until_ready(differentiate(query, key, value, d_output)),
        np.dtype(np.float32),
        lambda array: np.asarray(array).swapaxes(1, 2),
    )
