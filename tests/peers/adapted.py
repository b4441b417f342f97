"""What the adapters of all libraries are asked: functions with planted errors, and calls, each in the library's way."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import normal


class Library(NamedTuple):
    """A library, and functions of which the first or last entry of the gradient is wrong by a relative amount."""

    adapter: Any  # the module of `gradcheck`
    array: Callable[[Any], Any]
    scaled: Callable[[float], Any]  # analytic, of an array and a number that is kept; the last entry is wrong
    softplus: Callable[[float], Any]  # that is checked by differences; the first entry is wrong
    attention: Any
    digits: float  # to which that holds
    sine: Any
    argmax: Any
    constant: Callable[[Any], Any]  # an array, cut off from what it was computed from


def _torch() -> Library:
    torch = pytest.importorskip("torch", reason="the adapter for PyTorch needs torch: pip install attention-np[peers]")

    class ScaledExp(torch.autograd.Function):
        """By NumPy, which takes complex arrays."""

        @staticmethod
        def forward(ctx: Any, x: Any, scale: float, wrong_by: float) -> Any:
            output = torch.from_numpy(np.exp(x.numpy() * scale))
            ctx.save_for_backward(output)
            ctx.constants = scale, wrong_by
            return output

        @staticmethod
        def backward(ctx: Any, d_output: Any) -> Any:
            scale, wrong_by = ctx.constants
            d_x = d_output * ctx.saved_tensors[0] * scale
            d_x[-1] *= 1 + wrong_by
            return d_x, None, None

    class Softplus(torch.autograd.Function):
        """Of functions that take no complex tensors."""

        @staticmethod
        def forward(x: Any, wrong_by: float) -> Any:  # noqa: ARG004
            return torch.nn.functional.softplus(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
            ctx.save_for_backward(inputs[0])
            ctx.wrong_by = inputs[1]

        @staticmethod
        def backward(ctx: Any, d_output: Any) -> Any:
            d_x = d_output * torch.sigmoid(ctx.saved_tensors[0])
            d_x[0] *= 1 + ctx.wrong_by
            return d_x, None

    return Library(
        importlib.import_module("attention_np.gradcheck.torch"),
        torch.tensor,
        lambda wrong_by: lambda x, scale: ScaledExp.apply(x, scale, wrong_by),
        lambda wrong_by: lambda x: Softplus.apply(x, wrong_by),
        lambda query, key, value: torch.nn.functional.scaled_dot_product_attention(query, key, value),
        1e-8,
        torch.sin,
        torch.argmax,
        lambda x: x.detach(),
    )


def _jax() -> Library:
    jax = pytest.importorskip("jax", reason="the adapter for JAX needs jax: pip install attention-np[peers]")
    numpy = jax.numpy

    def scaled_sine(wrong_by: float) -> Any:
        def forward(x: Any, scale: float) -> Any:
            return numpy.sin(x * scale), (x, scale)

        def backward(residuals: Any, d_output: Any) -> Any:
            x, scale = residuals
            return (d_output * numpy.cos(x * scale) * scale).at[-1].multiply(1 + wrong_by), None

        function = jax.custom_vjp(lambda x, scale: forward(x, scale)[0])
        function.defvjp(forward, backward)
        return function

    def softplus(wrong_by: float) -> Any:
        function = jax.custom_jvp(lambda x: numpy.log1p(numpy.exp(-abs(x))) + numpy.maximum(x.real, 0))

        @function.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            (x,), (d_x,) = primals, tangents
            return function(x), (jax.nn.sigmoid(x) * d_x).at[0].multiply(1 + wrong_by)

        return function

    def attention(query: Any, key: Any, value: Any) -> Any:
        return jax.nn.softmax(query @ numpy.swapaxes(key, -1, -2) / 2, axis=-1) @ value

    adapter = importlib.import_module("attention_np.gradcheck.jax")
    cut_off = jax.lax.stop_gradient
    return Library(
        adapter, np.array, scaled_sine, softplus, jax.jit(attention), 1e-13, numpy.sin, numpy.argmax, cut_off
    )


def _autograd() -> Library:
    reason = "the adapter for autograd needs autograd: pip install attention-np[peers]"
    autograd = pytest.importorskip("autograd", reason=reason)
    numpy = pytest.importorskip("autograd.numpy", reason=reason)
    extend = pytest.importorskip("autograd.extend", reason=reason)

    def scaled_exp(wrong_by: float) -> Any:
        @extend.primitive
        def function(x: Any, scale: float) -> Any:
            return np.exp(x * scale)

        def pull_back(output: Any, x: Any, scale: float) -> Any:
            factor = np.where(np.arange(x.size) == x.size - 1, 1 + wrong_by, 1)
            return lambda d_output: d_output * output * scale * factor

        extend.defvjp(function, pull_back, None)
        return lambda x, scale: function(x, scale)

    def softplus(wrong_by: float) -> Any:
        function = extend.primitive(lambda x: np.log1p(np.exp(-abs(x))) + np.maximum(x.real, 0))

        def pull_back(output: Any, x: Any) -> Any:  # noqa: ARG001
            return lambda d_output: d_output / (1 + np.exp(-x)) * np.where(np.arange(x.size) == 0, 1 + wrong_by, 1)

        extend.defvjp(function, pull_back)
        return lambda x: function(x)

    def attention(query: Any, key: Any, value: Any) -> Any:
        weights = numpy.exp(numpy.einsum("...ia,...ja->...ij", query, key) / 2)
        return (weights / numpy.sum(weights, axis=-1, keepdims=True)) @ value

    adapter = importlib.import_module("attention_np.gradcheck.autograd")
    cut_off = autograd.tracer.getval
    return Library(adapter, np.array, scaled_exp, softplus, attention, 1e-13, numpy.sin, numpy.argmax, cut_off)


LIBRARIES = {"torch": _torch, "jax": _jax, "autograd": _autograd}


def inputs_of_attention(library: Library) -> dict[str, Any]:
    arrays = {"query": normal(0, 2, 3, 4), "key": normal(1, 2, 5, 4), "value": normal(2, 2, 5, 2)}
    return {name: library.array(x) for name, x in arrays.items()}
