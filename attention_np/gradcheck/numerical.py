r"""Numerical gradients, one element of the inputs at a time.

For a function f and a cotangent u, the gradient of :math:`L = \sum_o u_o f_o(x)` with respect to each element of x:

- *complex step* [1]_: :math:`\partial L / \partial x_k \approx \mathrm{Im} L(x + i h e_k) / h`. Nothing is subtracted,
  so h can be tiny and the result is exact to rounding, provided that f is analytic and accepts complex arrays.
- *central differences*: :math:`D(h) = (L(x + h e_k) - L(x - h e_k)) / 2h` has an error of order :math:`h^2`, which
  :math:`(4 D(h / 2) - D(h)) / 3` takes off (Richardson). What is left is of order :math:`h^4`, and rounding,
  :math:`\epsilon / h`, with :math:`h \approx \epsilon^{0.3}` relative to the size of x.

References
----------
.. [1] W. Squire, G. Trapp, "Using complex variables to estimate derivatives of real functions", SIAM Review 40(1),
   1998.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import UNDECIDABLE, noise_floor

__all__ = [
    "METHODS",
    "NotAnalyticError",
    "as_inputs",
    "check_mapping",
    "error_of_formula",
    "evaluate",
    "gradient_of",
    "numerical_gradient",
    "resolve_method",
    "sizes",
]

Array = npt.NDArray[Any]
Forward = Callable[..., Array]

METHODS = ("complex-step", "central")
COMPLEX_STEP = 1e-30
TRIAL_STEPS = (1e-5, 1e-7, 1e-9)  # relative; a steep function needs a short one, a flat one a long one
SMALLEST = 1e-290  # whatever is smaller counts as zero: a fraction of it could not be told from it
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
        "auto" takes the complex step unless one trial along a random direction says that it does not work.
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
    stretch: float = 1,
) -> Array:
    """The numerical gradient with respect to the one input called `name`; `stretch` multiplies the step."""
    position = list(inputs).index(name)
    point = _in_double(inputs.values())
    u = cotangent.astype(np.result_type(cotangent, np.float64))
    size = point[position].size
    tasks = [range(start, min(start + TASK_ELEMENTS, size)) for start in range(0, size, TASK_ELEMENTS)]
    differentiate = _complex_step if method == "complex-step" else _central
    derivative = partial(differentiate, forward, point, position, u, stretch)
    parts = list(map(derivative, tasks) if executor is None else executor.map(derivative, tasks))
    gradient = np.concatenate([np.zeros(0), *parts])
    return gradient.reshape(point[position].shape)


def error_of_formula(
    name: str,
    forward: Forward,
    inputs: Mapping[str, Array],
    cotangent: Array,
    method: str,
    executor: Executor | None = None,
) -> Array:
    """How far the method itself is from the gradient with respect to the input called `name`, entry by entry.

    The formula's own error grows with the fourth power of the step (the complex step's with the second), so a step
    twice as long shows it. Central differences divide the rounding of the outputs by the step, too.
    """
    narrow, wide = (gradient_of(name, forward, inputs, cotangent, method, executor, k) for k in (1, 2))
    error: Array = np.abs(wide - narrow) / 3
    if method == "central":
        output = evaluate(forward, _in_double(inputs.values()))
        steps = _relative_step(output.dtype) * sizes(inputs[name].astype(np.float64))
        error = error + 2 * np.finfo(output.dtype).eps * np.abs(cotangent.astype(np.float64) * output).sum() / steps
    return error


def _complex_step(
    forward: Forward, point: list[Array], position: int, u: Array, stretch: float, elements: Iterable[int]
) -> Array:
    step = stretch * COMPLEX_STEP
    derivatives = []
    for element in elements:
        moved = [x.astype(np.result_type(x, np.complex128)) for x in point]
        moved[position].flat[element] += 1j * step
        try:
            output = np.asarray(forward(*moved))
        except Exception as error:
            raise NotAnalyticError(
                f"forward refuses complex arrays, so the complex step does not apply: use central ({error})"
            ) from error
        if output.dtype.kind != "c":
            raise NotAnalyticError(
                f"forward turns complex arrays into {output.dtype}, so the complex step does not apply: use central"
            )
        derivatives.append((u * output.imag).sum() / step)
    return np.array(derivatives)


def _central(
    forward: Forward, point: list[Array], position: int, u: Array, stretch: float, elements: Iterable[int]
) -> Array:
    dtype = np.asarray(forward(*(x.copy() for x in point))).dtype
    steps = (stretch * _relative_step(dtype) * sizes(point[position])).ravel()

    def difference(element: int, step: float) -> Any:
        outputs, places = [], []
        for sign in (1, -1):
            moved = [x.copy() for x in point]
            x = moved[position].flat
            x[element] += sign * step
            places.append(x[element])
            outputs.append(np.asarray(forward(*moved)))
        width = places[0] - places[1] if np.isfinite(places).all() else 2 * step
        return (u * (outputs[0] - outputs[1])).sum() / width

    derivatives = [
        (4 * difference(element, steps[element] / 2) - difference(element, steps[element])) / 3 for element in elements
    ]
    return np.array(derivatives)


def _relative_step(dtype: np.dtype[Any]) -> float:
    """Short enough for a function that changes much faster than its arguments do, and long enough for rounding."""
    return float(np.finfo(dtype).eps ** 0.3)


def sizes(x: Array) -> Array:
    """What a step from each entry of `x` is relative to: its magnitude, or the typical one of `x` if that is larger."""
    magnitude = np.where(np.isfinite(x), np.abs(x), 0)
    nonzero = magnitude[magnitude > SMALLEST]
    return np.maximum(magnitude, np.median(nonzero) if nonzero.size else 1.0)


def _in_double(arrays: Iterable[Array]) -> list[Array]:
    return [x.astype(np.result_type(x, np.float64)) for x in arrays]


def resolve_method(method: str, forward: Forward, inputs: Mapping[str, Array], cotangent: Array) -> str:
    """`method`, or for "auto" the one that fits `forward`."""
    if method in METHODS:
        return method
    if method != "auto":
        raise ValueError(f"method must be 'auto', {' or '.join(map(repr, METHODS))}, not {method!r}")
    return "complex-step" if _is_analytic(forward, inputs, cotangent) else "central"


def _is_analytic(forward: Forward, inputs: Mapping[str, Array], cotangent: Array) -> bool:
    """Whether the complex step along one random direction gives what differences give, for one step of several.

    It takes evidence to say no: differences that agree with each other, and not with the complex step. In doubt the
    complex step is tried, and given up where central differences contradict it.
    """
    rng = np.random.default_rng(0)
    point = _in_double(inputs.values())
    direction = [rng.standard_normal(x.shape) * sizes(x) for x in point]

    def along(t: complex) -> Array:
        return np.asarray(forward(*(np.asarray(x + t * d) for x, d in zip(point, direction, strict=True))))

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        try:
            output = along(1j * COMPLEX_STEP)
        except Exception:
            return False
        if output.dtype.kind != "c":
            return False
        derivative = cotangent * (output.imag / COMPLEX_STEP)
        last_bit = float(np.finfo(output.dtype).eps) * np.abs(output.real)
        noise = np.maximum(noise_floor(lambda *x: np.asarray(forward(*map(np.copy, x))), point, rng, 2), last_bit)
        rounding = UNDECIDABLE * np.abs(cotangent * noise).max(initial=0)
        differences = [cotangent * (along(step) - along(-step)) / (2 * step) for step in TRIAL_STEPS]

        def agree(a: Array, b: Array, step: float) -> bool:
            return bool((np.abs(a - b) <= 1e-4 * np.abs(b).max(initial=0) + rounding / step).all())

        if any(agree(derivative, found, step) for found, step in zip(differences, TRIAL_STEPS, strict=True)):
            return True
        return not any(agree(*pair, step) for pair, step in zip(pairwise(differences), TRIAL_STEPS[1:], strict=True))


def as_inputs(inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """`inputs` as arrays of real floating-point numbers."""
    check_mapping(inputs)
    arrays = {name: np.asarray(x) for name, x in inputs.items()}
    for name, x in arrays.items():
        if x.dtype.kind != "f":
            raise TypeError(
                f"input {name} must hold real floating-point numbers, not {x.dtype} ({name}.shape={x.shape})"
            )
    return arrays


def check_mapping(inputs: object) -> None:
    """Refuse `inputs` that are not a mapping, or an empty one."""
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs must be a mapping of names to arrays, not {type(inputs).__name__}")
    if not inputs:
        raise ValueError("inputs must hold at least one array: there is nothing to differentiate by")


def evaluate(forward: Forward, inputs: Iterable[Array]) -> Array:
    """The output of `forward` on copies of `inputs`."""
    output = forward(*(x.copy() for x in inputs))
    if not isinstance(output, np.ndarray | np.generic | float):
        raise TypeError(f"forward must return one array, not {type(output).__name__}")
    result = np.asarray(output)
    if result.dtype.kind != "f":
        raise TypeError(f"forward must return real floating-point numbers, not {result.dtype}")
    return result
