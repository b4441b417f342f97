"""Gradients against numerical ones: of a pair of functions, or of an op module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import compare, noise_floor
from attention_np.gradcheck.numerical import Forward, as_inputs, evaluate, gradient_of, resolve_method
from attention_np.gradcheck.report import InputReport, Report

__all__ = ["assert_gradients", "check", "check_op"]

Array = npt.NDArray[Any]
Backward = Callable[..., Any]

TOLERANCES = {"complex-step": 1e-13, "central": 1e-7}
ADJOINT_ULPS = 4.5  # 1e-15 in float64
LEAST_ULPS = 50  # a tolerance is never less than this many units in the last place of the gradient's dtype
EPS = float(np.finfo(np.float64).eps)


def check(
    forward: Forward,
    backward: Backward,
    inputs: Mapping[str, npt.ArrayLike],
    *,
    method: str = "auto",
    rtol: float | None = None,
    rng: int | np.random.Generator = 0,
    executor: Executor | None = None,
) -> Report:
    """Check the gradients of a function, every element of every input, against numerical ones.

    Parameters
    ----------
    forward : callable
        ``forward(*inputs) -> array``.
    backward : callable
        ``backward(d_output, *inputs) -> one gradient per input``; for one input, the gradient itself will do.
    inputs : mapping of str to array_like of float
        In the order in which the functions take them.
    method : {"auto", "complex-step", "central"}, optional
        How to take the numerical gradient; see :func:`numerical_gradient`. With "auto", an input that does not hold by
        the complex step is looked at again by central differences before it is called wrong.
    rtol : float, optional
        The normwise relative error that is allowed, by default 1e-13 for the complex step and 1e-7 for central
        differences, or what the dtype of the gradient can hold.
    rng : int or numpy.random.Generator, optional
        Draws the cotangent, a random linear functional of the output.
    executor : concurrent.futures.Executor, optional
        Where to evaluate `forward`; the functions must be picklable if it uses processes.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used; a wrong gradient is reported, not raised.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> report = gradcheck.check(np.tanh, lambda d_y, x: d_y * (1 - np.tanh(x) ** 2), {"x": np.linspace(-1, 1, 5)})
    >>> report.ok, report["x"].max_relative_error < 1e-15
    (True, True)
    """
    arrays = as_inputs(inputs)
    generator = np.random.default_rng(rng)
    output = evaluate(forward, arrays.values())
    cotangent = generator.standard_normal(output.shape).astype(output.dtype)
    chosen = resolve_method(method, forward, arrays, cotangent)
    gradients = _gradients(backward, cotangent, arrays)

    problem = _Problem(forward, backward, arrays, cotangent, gradients, generator, executor)
    return Report(tuple(problem.examine(name, chosen, method == "auto", rtol) for name in arrays))


def check_op(
    op: Any,
    inputs: Mapping[str, Any],
    *,
    method: str = "auto",
    rtol: float | None = None,
    cotangent_rng: int = 0,
    executor: Executor | None = None,
    **options: Any,
) -> Report:
    """Check an op: a module with ``forward``, ``backward`` and, if it has forward mode, ``jvp``.

    Parameters
    ----------
    op : module
        ``op.forward(**inputs, **options) -> (output, cache)``, ``op.backward(d_output, cache) ->`` a NamedTuple with
        the names of the inputs, ``op.jvp(cache, **tangents)``.
    inputs : mapping of str to array_like of float, or NamedTuple of them
        The arrays to differentiate by, in the names of `forward`. The arrays of a NamedTuple are reported as
        ``parameters.w_query`` and so on; None in it is left alone.
    method, rtol, executor
        As for :func:`check`.
    cotangent_rng : int, optional
        Seed of the cotangent and of the tangents.
    **options
        Passed on to `forward` at every evaluation as they are now, so that a generator draws the same again.

    Returns
    -------
    Report
        One entry per array; and, if the op has forward mode, one called "jvp": the difference between <u, J v> and
        <J^T u, v> over ``|u| |J v|`` for random u and v, allowed to be 1e-15, or what the dtype can hold.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck, softmax
    >>> print(gradcheck.check_op(softmax, {"scores": np.array([1.0, 2.0, 4.0])}, axis=0).ok)
    True
    """
    flat = flatten(inputs)

    def call(*arrays: Array) -> tuple[Array, Any]:
        named = unflatten(inputs, dict(zip(flat, arrays, strict=True)))
        result: tuple[Array, Any] = op.forward(**named, **copy.deepcopy(options))
        return result

    def forward(*arrays: Array) -> Array:
        return call(*arrays)[0]

    def backward(d_output: Array, *arrays: Array) -> list[Any]:
        gradients = op.backward(d_output, call(*arrays)[1])
        named = flatten({name: getattr(gradients, name, None) for name in inputs})
        return [named.get(name) for name in flat]

    report = check(forward, backward, flat, method=method, rtol=rtol, rng=cotangent_rng, executor=executor)
    if not hasattr(op, "jvp"):
        return report

    rng = np.random.default_rng(cotangent_rng)
    output, cache = call(*flat.values())
    u = rng.standard_normal(output.shape).astype(output.dtype)
    tangents = {name: rng.standard_normal(x.shape).astype(x.dtype) for name, x in flat.items()}
    gradients = flatten({name: getattr(op.backward(u, cache), name, None) for name in inputs})
    moved = op.jvp(cache, **unflatten(inputs, tangents))
    forwards = _dot(u, moved)
    backwards = sum(_dot(gradients[name], tangents[name]) for name in flat if name in gradients)
    size = float(np.linalg.norm(u.astype(float).ravel()) * np.linalg.norm(moved.astype(float).ravel()))
    error = abs(forwards - backwards) / size if size else abs(forwards - backwards)
    entry = InputReport(
        "jvp", "adjoint", error <= ADJOINT_ULPS * np.finfo(output.dtype).eps, error, (), backwards, forwards
    )
    return Report((*report.inputs, entry))


def assert_gradients(forward: Forward, backward: Backward, inputs: Mapping[str, npt.ArrayLike], **options: Any) -> None:
    """Assert that the gradients of a function hold; for tests.

    Parameters
    ----------
    forward, backward, inputs, **options
        As for :func:`check`.

    Raises
    ------
    AssertionError
        If a gradient does not hold; the message is the report.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> gradcheck.assert_gradients(np.exp, lambda d_y, x: d_y * np.exp(x), {"x": np.linspace(-1, 1, 5)})
    """
    check(forward, backward, inputs, **options).raise_if_failed()


def flatten(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Nested NamedTuples of arrays as one mapping of dotted names; None is left out."""
    flat: dict[str, Any] = {}
    for name, value in inputs.items():
        if hasattr(value, "_asdict"):
            flat |= {f"{name}.{inner}": x for inner, x in flatten(value._asdict()).items()}
        elif value is not None:
            flat[name] = np.asarray(value)
    return flat


def unflatten(like: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`flatten`: the arrays of `flat` in the structure of `like`."""
    nested: dict[str, Any] = {}
    for name, value in like.items():
        if hasattr(value, "_asdict"):
            inner = {key[len(name) + 1 :]: x for key, x in flat.items() if key.startswith(f"{name}.")}
            nested[name] = type(value)(**unflatten(value._asdict(), inner))
        else:
            nested[name] = flat.get(name)
    return nested


@dataclass(frozen=True)
class _Problem:
    """The functions at one point, with the gradients that are claimed there."""

    forward: Forward
    backward: Backward
    inputs: dict[str, Array]
    cotangent: Array
    gradients: list[Any]
    rng: np.random.Generator
    executor: Executor | None

    def examine(self, name: str, method: str, may_change: bool, rtol: float | None) -> InputReport:
        """The gradient of one input, by another method if it `may_change` and the function proves not analytic."""
        claimed = self.gradients[list(self.inputs).index(name)]
        fault = _fault(claimed, self.inputs[name])
        if fault is not None:
            return InputReport(name, method, False, float("inf"), diagnosis=fault)
        numerical = self.numerical(name, method)
        report = self.compare(name, method, numerical, rtol)
        if report.ok or not may_change or method == "central":
            return report
        differences = self.numerical(name, "central")
        by_differences = compare(
            numerical, differences, TOLERANCES["central"], lambda: self.noise(name, "central"), EPS ** (2 / 3)
        )
        return report if by_differences.ok else self.compare(name, "central", differences, rtol)

    def numerical(self, name: str, method: str, *point: Array) -> Array:
        """The numerical gradient of one input, here or at another `point`."""
        inputs = dict(zip(self.inputs, point, strict=True)) if point else self.inputs
        return gradient_of(name, self.forward, inputs, self.cotangent, method, self.executor)

    def analytic(self, name: str, *point: Array) -> Array:
        """The gradient that is claimed for one input at another `point`."""
        gradients = _gradients(self.backward, self.cotangent, dict(zip(self.inputs, point, strict=True)))
        return np.asarray(gradients[list(self.inputs).index(name)])

    def noise(self, name: str, method: str) -> Array:
        """The noise floor of the difference between the two gradients of one input."""
        point = list(self.inputs.values())
        analytic = noise_floor(partial(self.analytic, name), point, self.rng)
        return analytic + noise_floor(partial(self.numerical, name, method), point, self.rng, repeats=1)

    def compare(self, name: str, method: str, numerical: Array, rtol: float | None) -> InputReport:
        """The claimed gradient of one input against a numerical one."""
        analytic = np.asarray(self.gradients[list(self.inputs).index(name)])
        eps = float(np.finfo(analytic.dtype).eps)
        allowed = max(TOLERANCES[method], LEAST_ULPS * eps) if rtol is None else rtol
        precision = eps if method == "complex-step" else eps ** (2 / 3)
        found = compare(analytic, numerical, allowed, lambda: self.noise(name, method), precision)
        values = (float(analytic[found.worst]), float(numerical[found.worst])) if analytic.size else (0.0, 0.0)
        return InputReport(name, method, found.ok, found.error, found.worst, *values, found.undecidable)


def _gradients(backward: Backward, cotangent: Array, inputs: Mapping[str, Array]) -> list[Any]:
    """What `backward` returns, one for each input."""
    result = backward(cotangent.copy(), *(x.copy() for x in inputs.values()))
    gradients = list(result) if isinstance(result, tuple | list) else [result]
    if len(gradients) != len(inputs):
        raise ValueError(
            f"backward must return one gradient for each of the {len(inputs)} inputs "
            f"({', '.join(inputs)}), not {len(gradients)}"
        )
    return gradients


def _fault(gradient: Any, x: Array) -> str | None:
    """What is wrong with the form of a gradient, if anything."""
    if gradient is None:
        return "the gradient is missing"
    array = np.asarray(gradient)
    if array.shape != x.shape:
        return f"the gradient has the shape {array.shape}, the input {x.shape}"
    if array.dtype.kind != "f":
        return f"the gradient holds {array.dtype}, not real floating-point numbers"
    if not np.isfinite(array).all():
        return f"the gradient holds {int((~np.isfinite(array)).sum())} entries that are NaN or infinite"
    return None


def _dot(a: Array, b: Array) -> float:
    """The sum of the products, in extended precision: its rounding is not what is checked."""
    return float((a.astype(np.longdouble) * b.astype(np.longdouble)).sum())
