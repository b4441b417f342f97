r"""Numerical gradients, one element of the inputs at a time.

For a function f and a cotangent u, the gradient of :math:`L = \sum_o u_o f_o(x)` with respect to each element of x:

- *complex step* [1]_: :math:`\partial L / \partial x_k \approx \mathrm{Im} L(x + i h e_k) / h`. Nothing is subtracted,
  so h can be tiny and the result is exact to rounding, provided that f is analytic and accepts complex arrays.
- *central differences*: :math:`(L(x + h e_k) - L(x - h e_k)) / 2h` with :math:`h \approx \epsilon^{1/3}`, where the
  error of the formula and that of rounding balance at about :math:`\epsilon^{2/3}`.

References
----------
.. [1] W. Squire, G. Trapp, "Using complex variables to estimate derivatives of real functions", SIAM Review 40(1),
   1998.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["METHODS", "NotAnalyticError", "as_inputs", "evaluate", "numerical_gradient", "resolve_method"]

Array = npt.NDArray[Any]
Forward = Callable[..., Array]

METHODS = ("complex-step", "central")
COMPLEX_STEP = 1e-30
TASK_ELEMENTS = 64  # elements that one task of an executor takes on


class NotAnalyticError(ValueError):
    """The complex step does not apply: the function refuses complex arrays, or loses their imaginary part."""


def numerical_gradient(
    forward: Forward,
    inputs: Mapping[str, npt.ArrayLike],
    cotangent: npt.ArrayLike,
    *,
    method: str = "auto",
    executor: Executor | None = None,
) -> dict[str, Array]:
    """The gradient of ``(cotangent * forward(*inputs)).sum()`` with respect to every element of every input.

    Parameters
    ----------
    forward : callable
        ``forward(*inputs) -> array``.
    inputs : mapping of str to array_like of float
        In the order in which `forward` takes them.
    cotangent : array_like of float
        Of the shape of the output.
    method : {"auto", "complex-step", "central"}, optional
        "auto" takes the complex step where one trial along a random direction says that it works.
    executor : concurrent.futures.Executor, optional
        Where to evaluate; by default here and now.

    Returns
    -------
    dict of str to ndarray
        A float64 array of the shape of each input.

    Raises
    ------
    TypeError
        If an input is not of real floating-point numbers, or `forward` does not return one array of them.
    ValueError
        If `method` is unknown or the cotangent not of the shape of the output.
    NotAnalyticError
        If the complex step is asked for and does not apply.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> gradcheck.numerical_gradient(np.exp, {"x": np.array([0.0, 1.0])}, np.ones(2))["x"].round(6)
    array([1.      , 2.718282])
    """
    arrays = as_inputs(inputs)
    u = np.asarray(cotangent)
    output = evaluate(forward, arrays.values())
    if u.shape != output.shape:
        raise ValueError(f"cotangent must have the shape of the output, {output.shape} (cotangent.shape={u.shape})")
    method = resolve_method(method, forward, arrays, u)
    return {name: gradient_of(name, forward, arrays, u, method, executor) for name in arrays}


def gradient_of(
    name: str,
    forward: Forward,
    inputs: Mapping[str, Array],
    cotangent: Array,
    method: str,
    executor: Executor | None = None,
) -> Array:
    """The numerical gradient with respect to the one input called `name`."""
    position = list(inputs).index(name)
    point = [x.astype(np.result_type(x, np.float64)) for x in inputs.values()]
    u = cotangent.astype(np.result_type(cotangent, np.float64))
    size = point[position].size
    tasks = [range(start, min(start + TASK_ELEMENTS, size)) for start in range(0, size, TASK_ELEMENTS)]
    derivative = partial(_complex_step if method == "complex-step" else _central, forward, point, position, u)
    parts = list(map(derivative, tasks) if executor is None else executor.map(derivative, tasks))
    gradient = np.concatenate([np.zeros(0), *parts])
    return gradient.reshape(point[position].shape)


def _complex_step(forward: Forward, point: list[Array], position: int, u: Array, elements: Iterable[int]) -> Array:
    derivatives = []
    for element in elements:
        moved = [x.copy() for x in point]
        moved[position] = moved[position].astype(complex)
        moved[position].flat[element] += 1j * COMPLEX_STEP
        output = np.asarray(forward(*moved))
        if output.dtype.kind != "c":
            raise NotAnalyticError(
                f"forward turns complex arrays into {output.dtype}, so the complex step does not apply: use central"
            )
        derivatives.append((u * output.imag).sum() / COMPLEX_STEP)
    return np.array(derivatives)


def _central(forward: Forward, point: list[Array], position: int, u: Array, elements: Iterable[int]) -> Array:
    step = float(np.finfo(np.asarray(forward(*(x.copy() for x in point))).dtype).eps) ** (1 / 3)
    derivatives = []
    for element in elements:
        outputs, places = [], []
        for sign in (1, -1):
            moved = [x.copy() for x in point]
            x = moved[position].flat
            x[element] += sign * step * max(1, abs(x[element]))
            places.append(x[element])
            outputs.append(np.asarray(forward(*moved)))
        derivatives.append((u * (outputs[0] - outputs[1])).sum() / (places[0] - places[1]))
    return np.array(derivatives)


def resolve_method(method: str, forward: Forward, inputs: Mapping[str, Array], cotangent: Array) -> str:
    """`method`, or for "auto" the one that fits `forward`."""
    if method in METHODS:
        return method
    if method != "auto":
        raise ValueError(f"method must be 'auto', {' or '.join(map(repr, METHODS))}, not {method!r}")
    return "complex-step" if _is_analytic(forward, inputs, cotangent) else "central"


def _is_analytic(forward: Forward, inputs: Mapping[str, Array], cotangent: Array) -> bool:
    """Whether the complex step along one random direction gives what central differences give."""
    rng = np.random.default_rng(0)
    point = [x.astype(np.result_type(x, np.float64)) for x in inputs.values()]
    direction = [rng.standard_normal(x.shape) for x in point]

    def along(t: Any) -> Array:
        return np.asarray(forward(*(x + t * d for x, d in zip(point, direction, strict=True))))

    try:
        with np.errstate(all="ignore"):
            output = along(1j * COMPLEX_STEP)
    except (TypeError, ValueError, NotImplementedError, np.exceptions.ComplexWarning):
        return False
    if output.dtype.kind != "c":
        return False
    step = float(np.finfo(output.dtype).eps) ** (1 / 3)
    ahead, behind = along(step), along(-step)
    difference = cotangent * (ahead - behind) / (2 * step)
    noise = step**2 * np.abs(cotangent * ahead).max(initial=0)
    agrees = (
        np.abs(cotangent * output.imag / COMPLEX_STEP - difference) <= 1e-4 * np.abs(difference).max(initial=0) + noise
    )
    return bool(agrees.all())


def as_inputs(inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """`inputs` as arrays of real floating-point numbers."""
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs must be a mapping of names to arrays, not {type(inputs).__name__}")
    arrays = {name: np.asarray(x) for name, x in inputs.items()}
    for name, x in arrays.items():
        if x.dtype.kind != "f":
            raise TypeError(
                f"input {name} must hold real floating-point numbers, not {x.dtype} ({name}.shape={x.shape})"
            )
    return arrays


def evaluate(forward: Forward, inputs: Iterable[Array]) -> Array:
    """The output of `forward` on copies of `inputs`."""
    output = forward(*(x.copy() for x in inputs))
    if not isinstance(output, np.ndarray | np.generic | float):
        raise TypeError(f"forward must return one array, not {type(output).__name__}")
    result = np.asarray(output)
    if result.dtype.kind != "f":
        raise TypeError(f"forward must return real floating-point numbers, not {result.dtype}")
    return result
