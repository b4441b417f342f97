"""Check JAX's gradients, or those of your own ``jax.custom_vjp``, with one call.

::

    import jax
    import numpy as np
    from attention_np import gradcheck

    @jax.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (cube(x), x), lambda x, d_output: (d_output * 3 * x,))  # a square is missing

    print(gradcheck.jax.check(cube, np.array([0.5, 2.0])))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.adapting import Adapter, each, library
from attention_np.gradcheck.problem.nests import signature_of
from attention_np.gradcheck.report.reporting import Report

__all__ = ["check"]


def check(function: Callable[..., Any], inputs: Any, **options: Any) -> Report:
    """Check the gradients that JAX takes of a function against numerical ones.

    Parameters
    ----------
    function : callable
        A function of arrays, also a transformed one: by ``jax.jit``, ``jax.custom_vjp``, ``jax.custom_jvp``. All
        floating-point arrays in the pytree that it returns count.
    inputs, **options
        As for :func:`attention_np.gradcheck.torch.check`, with arrays or pytrees of JAX, or NumPy's.

    Returns
    -------
    Report

    Notes
    -----
    Arrays in double precision stay so, without ``jax_enable_x64`` being set: to check in double precision, pass NumPy's
    arrays of float64. Of a complex array, JAX's own gradient is the complex conjugate of what is checked.

    The function is evaluated several times for each entry of its inputs: ``jax.jit`` makes that faster, loops
    above all. One that changes from call to call, by a seed of its own, comes out wrong: pass the key as an argument.
    """
    return _JaxAdapter(function, inputs, signature_of(function)).check(**options)


class _JaxAdapter(Adapter):
    def forward(self, *arrays: Array) -> Any:
        with _precision_of(arrays):
            return self.as_output(self.outputs(self.put(arrays)))

    def backward(self, d_output: Any, *arrays: Array) -> list[Array]:
        with _precision_of(arrays):
            outputs, pull_back = _jax().vjp(lambda *leaves: list(self.outputs(leaves).values()), *self.put(arrays))
            pairs = zip(each(d_output), outputs, strict=True)
            cotangents = [_jax().numpy.asarray(np.conj(u), y.dtype) for u, y in pairs]
            return [np.conj(self.to_numpy(x)) for x in pull_back(cotangents)]

    def put(self, arrays: tuple[Array, ...]) -> list[Any]:
        """`arrays` as arrays of JAX, each where the one that was given is."""
        given = (self.leaves[name] for name in self.inputs)
        return [_jax().device_put(x, getattr(y, "sharding", None)) for x, y in zip(arrays, given, strict=True)]

    def kind(self, leaf: Any) -> str:
        jax = _jax()
        if not isinstance(leaf, jax.Array | np.ndarray):
            return ""
        is_real = jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
        return "f" if is_real else "c" if jax.numpy.issubdtype(leaf.dtype, jax.numpy.complexfloating) else ""

    def flatten(self, tree: Any, path: str) -> Iterator[tuple[str, Any]]:
        tree_util = _jax().tree_util
        for keys, leaf in tree_util.tree_flatten_with_path(tree)[0]:
            yield ".".join([path, *(tree_util.keystr((key,), simple=True) for key in keys)]), leaf

    def fill(self, tree: Any, leaves: Iterator[Any]) -> Any:
        structure = _jax().tree_util.tree_structure(tree)
        return structure.unflatten([next(leaves) for _ in range(structure.num_leaves)])


def _jax() -> Any:
    return library("jax", "JAX")


def _precision_of(arrays: tuple[Array, ...]) -> AbstractContextManager[Any]:
    """Where JAX keeps the precision of `arrays`: it rounds to single precision unless told otherwise.

    Nothing is told for arrays in single precision: there, what the function makes itself stays single, too.
    """
    if not any(x.dtype in (np.float64, np.complex128) for x in arrays):
        return nullcontext()
    enable_x64 = getattr(_jax(), "enable_x64", None)
    if enable_x64 is None:  # in older versions
        enable_x64 = library("jax.experimental", "JAX").enable_x64
    context: AbstractContextManager[Any] = enable_x64(True)
    return context
