"""Gradient checkers of several libraries, each put to a forward and a backward function made of NumPy.

Each of them sees the functions through its own library's door for gradients written by hand: `torch.autograd.Function`,
`jax.custom_vjp`, `autograd.extend.defvjp`. What it says is taken as it is: an exception is an alarm, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import gradcheck

Array = npt.NDArray[Any]


class Pair(NamedTuple):
    """A function, its claimed gradients, and where to check them."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    inputs: Mapping[str, Array]

    def output(self, *arrays: Any) -> Array:
        """The output, from arrays of any library."""
        return np.array(self.forward(*map(np.array, arrays)))

    def gradients(self, d_output: Any, *arrays: Any) -> list[Array | None]:
        """One gradient per input, from arrays of any library."""
        result = self.backward(np.array(d_output), *map(np.array, arrays))
        found = result if isinstance(result, tuple | list) else [result]
        return [None if gradient is None else np.array(gradient) for gradient in found]


class Checker(NamedTuple):
    """A gradient checker under the name of its column."""

    name: str
    looks_at: str  # for the reader
    alarm: Callable[[Pair], str | None]  # None if it finds nothing wrong


def ours(pair: Pair) -> str | None:
    """The inputs that do not hold."""
    report = gradcheck.check(pair.forward, pair.backward, pair.inputs)
    return ", ".join(entry.name for entry in report if not entry.ok) or None


def by_torch(**options: Any) -> Callable[[Pair], str | None]:
    """`torch.autograd.gradcheck` with these options."""
    import torch

    def alarm(pair: Pair) -> str | None:
        class Wrapped(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *tensors: Any) -> Any:
                ctx.save_for_backward(*tensors)
                return torch.from_numpy(pair.output(*tensors))

            @staticmethod
            def backward(ctx: Any, d_output: Any) -> Any:
                found = pair.gradients(d_output, *ctx.saved_tensors)
                return tuple(None if gradient is None else torch.from_numpy(gradient) for gradient in found)

        torch.manual_seed(0)
        tensors = [torch.from_numpy(np.array(x)).requires_grad_() for x in pair.inputs.values()]
        return _complaint(lambda: torch.autograd.gradcheck(Wrapped.apply, tensors, **options))

    return alarm


def by_jax() -> Callable[[Pair], str | None]:
    """`jax.test_util.check_grads` with its own tolerances, in double precision."""
    import jax
    from jax.test_util import check_grads

    jax.config.update("jax_enable_x64", True)

    def like(array: Array) -> Any:
        return jax.ShapeDtypeStruct(array.shape, array.dtype)

    def alarm(pair: Pair) -> str | None:
        arrays = list(pair.inputs.values())
        output = pair.output(*arrays)
        gradients = pair.gradients(np.ones_like(output), *arrays)  # for their shapes
        given = [k for k, gradient in enumerate(gradients) if gradient is not None]

        @jax.custom_vjp
        def function(*xs: Any) -> Any:
            return jax.pure_callback(pair.output, like(output), *xs)

        def backward(xs: Any, d_output: Any) -> Any:
            def compute(*args: Any) -> list[Any]:
                found = pair.gradients(*args)
                return [found[k] for k in given]

            computed = jax.pure_callback(compute, [like(np.asarray(gradients[k])) for k in given], d_output, *xs)
            by_place = dict(zip(given, computed, strict=True))
            return tuple(by_place.get(k) for k in range(len(gradients)))

        function.defvjp(lambda *xs: (function(*xs), xs), backward)
        return _complaint(lambda: check_grads(function, arrays, order=1, modes=["rev"]))

    return alarm


def by_autograd() -> Callable[[Pair], str | None]:
    """`autograd.test_util.check_grads` with its own tolerances."""
    from autograd.extend import defvjp, primitive
    from autograd.test_util import check_grads

    def alarm(pair: Pair) -> str | None:
        @primitive
        def function(*xs: Any) -> Any:
            return pair.output(*xs)

        def rule(position: int) -> Any:
            return lambda _output, *xs: lambda d_output: pair.gradients(d_output, *xs)[position]

        places = tuple(range(len(pair.inputs)))
        defvjp(function, *map(rule, places), argnums=places)
        np.random.seed(0)  # noqa: NPY002 (this is what autograd draws from)
        return _complaint(lambda: check_grads(function, places, modes=["rev"], order=1)(*pair.inputs.values()))

    return alarm


def installed(library: str) -> str | None:
    """The version of a library, or None if it cannot be imported."""
    try:
        import_module(library)
    except ImportError:
        return None
    return version(library)


def _complaint(check: Callable[[], object]) -> str | None:
    try:
        check()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None
