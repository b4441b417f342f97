"""Check the gradients of HIPS autograd, or those of your own ``defvjp``, with one call.

::

    import numpy as np
    from autograd.extend import defvjp, primitive
    from attention_np import gradcheck

    @primitive
    def cube(x):
        return x**3

    defvjp(cube, lambda output, x: lambda d_output: d_output * 3 * x)  # a square is missing

    print(gradcheck.autograd.check(cube, np.array([0.5, 2.0])))
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.adapting import Adapter, each, library
from attention_np.gradcheck.problem.nests import signature_of
from attention_np.gradcheck.report.reporting import Report

__all__ = ["check"]


def check(function: Callable[..., Any], inputs: Any, **options: Any) -> Report:
    """Check the gradients that autograd takes of a function against numerical ones.

    Parameters
    ----------
    function : callable
        A function made of ``autograd.numpy`` and of primitives. All floating-point arrays and numbers that it returns
        count, nested ones too.
    inputs, **options
        As for :func:`attention_np.gradcheck.torch.check`, with NumPy's arrays.

    Returns
    -------
    Report
    """
    return _AutogradAdapter(function, inputs, signature_of(function)).check(**options)


class _AutogradAdapter(Adapter):
    def forward(self, *arrays: Array) -> Any:
        return self.as_output(self.outputs(arrays))

    def backward(self, d_output: Any, *arrays: Array) -> list[Array]:
        def outputs(*leaves: Any) -> Any:
            return _library("autograd.builtins").list(list(self.outputs(leaves).values()))

        differentiate = _library("autograd").make_vjp(outputs, tuple(range(len(arrays))))
        with warnings.catch_warnings():  # the report will tell
            warnings.filterwarnings("ignore", "Output seems independent of input")
            pull_back, _ = differentiate(*arrays)
        gradients = pull_back([np.conj(u) for u in each(d_output)])  # its convention is that of JAX
        return [np.conj(self.to_numpy(x)) for x in gradients]

    def kind(self, leaf: Any) -> str:
        value = _value(leaf)
        kind = np.asarray(value).dtype.kind if isinstance(value, np.ndarray | float | complex | np.inexact) else ""
        return kind if kind in ("f", "c") else ""

    def children(self, tree: Any) -> dict[Any, Any] | None:
        value = _value(tree)
        if value is tree:
            return super().children(tree)
        if isinstance(value, Mapping):
            return {key: tree[key] for key in value}
        return {i: tree[i] for i in range(len(value))} if isinstance(value, tuple | list) else None


def _value(x: Any) -> Any:
    """What a box of autograd holds while a function is recorded."""
    return _library("autograd.tracer").getval(x)


def _library(name: str) -> Any:
    return library(name, "autograd")
