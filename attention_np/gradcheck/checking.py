"""Gradients against numerical ones: of a pair of functions, or of an op module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import compare, noise_floor, relative_error
from attention_np.gradcheck.numerical import (
    Forward,
    as_inputs,
    check_mapping,
    error_of_formula,
    evaluate,
    gradient_of,
    resolve_method,
    sizes,
)
from attention_np.gradcheck.report import InputReport, Report

__all__ = ["assert_gradients", "check", "check_op"]

Array = npt.NDArray[Any]
Backward = Callable[..., Any]

TOLERANCES = {"complex-step": 1e-13, "central": 1e-7}
ADJOINT_ULPS = 4.5  # 1e-15 in float64
CLEARLY_APART = 1e-6  # the adjoint error of one input that is to blame
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
    if rtol is not None and not (isinstance(rtol, Real) and rtol >= 0):
        raise ValueError(f"rtol must be a number that is not negative, not {rtol!r}")
    generator = np.random.default_rng(rng)
    output = evaluate(forward, arrays.values())
    cotangent = generator.standard_normal(output.shape).astype(output.dtype)
    chosen = resolve_method(method, forward, arrays, cotangent)
    problem = _Problem(
        forward,
        backward,
        arrays,
        output,
        cotangent,
        _gradients(backward, cotangent, arrays),
        _gradients(backward, cotangent, arrays),
        generator,
        executor,
    )
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
    check_mapping(inputs)
    flat = flatten(inputs)
    functions = _OpFunctions(op, inputs, options)
    report = check(
        functions.forward,
        functions.backward,
        flat,
        method=method,
        rtol=rtol,
        rng=cotangent_rng,
        executor=executor,
    )
    if not hasattr(op, "jvp"):
        return report

    rng = np.random.default_rng(cotangent_rng)
    output, cache = functions.call(*(x.copy() for x in flat.values()))
    u = rng.standard_normal(output.shape).astype(output.dtype)
    tangents = {name: rng.standard_normal(x.shape).astype(x.dtype) for name, x in flat.items()}
    found = op.backward(u, cache)
    gradients = flatten({name: getattr(found, name, None) for name in inputs})

    def both_ways(names: Iterable[str]) -> tuple[float, float, float]:
        """<u, J v>, <J^T u, v> and their relative difference, where only the inputs called `names` move."""
        moving = {name: v if name in names else np.zeros_like(v) for name, v in tangents.items()}
        moved = op.jvp(cache, **unflatten(inputs, moving))
        forwards = _dot(u, moved)
        backwards = float(sum(_dot(gradients[name], tangents[name]) for name in names if name in gradients))
        size = float(np.linalg.norm(u.astype(float).ravel()) * np.linalg.norm(moved.astype(float).ravel()))
        error = abs(forwards - backwards) / size if size else abs(forwards - backwards)
        return forwards, backwards, error

    forwards, backwards, error = both_ways(flat)
    holds = bool(error <= ADJOINT_ULPS * np.finfo(output.dtype).eps)
    diagnosis = None
    if not holds:
        apart = [name for name in flat if not both_ways([name])[2] <= CLEARLY_APART]
        diagnosis = f"forward mode and backward disagree{' for ' + ', '.join(apart) if apart else ''}"
    entry = InputReport("jvp", "adjoint", holds, error, (), backwards, forwards, diagnosis=diagnosis)
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
class _OpFunctions:
    """An op as a pair of functions of its arrays alone, which can be sent to another process."""

    op: Any
    like: Mapping[str, Any]
    options: Mapping[str, Any]

    def call(self, *arrays: Array) -> tuple[Array, Any]:
        """What the op's forward returns: its output and its cache."""
        named = unflatten(self.like, dict(zip(flatten(self.like), arrays, strict=True)))
        result: tuple[Array, Any] = self.op.forward(**named, **copy.deepcopy(dict(self.options)))
        return result

    def forward(self, *arrays: Array) -> Array:
        """The output alone."""
        return self.call(*arrays)[0]

    def backward(self, d_output: Array, *arrays: Array) -> list[Any]:
        """The gradients, in the order of the arrays; None for one that is missing."""
        gradients = self.op.backward(d_output, self.call(*arrays)[1])
        named = flatten({name: getattr(gradients, name, None) for name in self.like})
        return [named.get(name) for name in flatten(self.like)]

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.op, ModuleType):  # which cannot be pickled, but can be imported there
            return _op_functions, (self.op.__name__, self.like, self.options)
        return _OpFunctions, (self.op, self.like, self.options)


def _op_functions(module: str, like: Mapping[str, Any], options: Mapping[str, Any]) -> _OpFunctions:
    return _OpFunctions(import_module(module), like, options)


@dataclass(frozen=True)
class _Problem:
    """The functions at one point, with the gradients that are claimed there."""

    forward: Forward
    backward: Backward
    inputs: dict[str, Array]
    output: Array
    cotangent: Array
    gradients: list[Any]
    repeated: list[Any]  # the gradients, asked for once more
    rng: np.random.Generator
    executor: Executor | None

    def examine(self, name: str, method: str, may_change: bool, rtol: float | None) -> InputReport:
        """The gradient of one input, by another method if it `may_change` and the function proves not analytic."""
        position = list(self.inputs).index(name)
        fault = _strange(self.output, "output") or _fault(
            self.gradients[position], self.repeated[position], self.inputs[name]
        )
        if fault is not None:
            return InputReport(name, method, False, float("inf"), diagnosis=fault)
        numerical = self.numerical(name, method)
        report = self.compare(name, method, numerical, rtol)
        if report.ok or not may_change or method == "central":
            return report
        differences = self.numerical(name, "central")

        def largest_noise() -> Array:
            return np.asarray(self.noise(name, "central").max())

        by_differences = compare(numerical, differences, TOLERANCES["central"], largest_noise, EPS ** (2 / 3))
        return report if by_differences.ok else self.compare(name, "central", differences, rtol)

    def numerical(self, name: str, method: str) -> Array:
        """The numerical gradient of one input."""
        return gradient_of(name, self.forward, self.inputs, self.cotangent, method, self.executor)

    def noise(self, name: str, method: str) -> Array:
        """The noise floor of the difference between the two gradients of one input."""

        def analytic(cotangent: Array, *point: Array) -> Array:
            gradients = _gradients(self.backward, cotangent, dict(zip(self.inputs, point, strict=True)))
            return np.asarray(gradients[list(self.inputs).index(name)])

        def numerical(cotangent: Array, *point: Array) -> Array:
            inputs = dict(zip(self.inputs, point, strict=True))
            return gradient_of(name, self.forward, inputs, cotangent, method, self.executor)

        moving = [self.cotangent, *self.inputs.values()]  # the cotangent is an input of a gradient, too
        floor = noise_floor(analytic, moving, self.rng) + noise_floor(numerical, moving, self.rng, repeats=2)
        floor = floor + error_of_formula(name, self.forward, self.inputs, self.cotangent, method, self.executor)
        x = self.inputs[name]
        last_bit = float(np.finfo(self.output.dtype).eps) * float(np.abs(self.cotangent * self.output).max(initial=0))
        return floor + last_bit / sizes(x)  # saturated: all of x moves the output by less than its last bit

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
    gradients = [
        gradient.copy() if isinstance(gradient, np.ndarray) else gradient  # which backward may use again
        for gradient in (result if isinstance(result, tuple | list) else [result])
    ]
    if len(gradients) != len(inputs):
        raise ValueError(
            f"backward must return one gradient for each of the {len(inputs)} inputs "
            f"({', '.join(inputs)}), not {len(gradients)}"
        )
    return gradients


def _fault(gradient: Any, repeated: Any, x: Array) -> str | None:
    """What is wrong with the form of a gradient, if anything; `repeated` is what the same call gave once more."""
    if gradient is None:
        return "the gradient is missing"
    array = np.asarray(gradient)
    if array.shape != x.shape:
        return f"the gradient has the shape {array.shape}, the input {x.shape}"
    if array.dtype.kind != "f":
        return f"the gradient holds {array.dtype}, not real floating-point numbers"
    strange = _strange(array, "gradient")
    if strange is not None:
        return strange
    if relative_error(array, np.asarray(repeated))[0] > LEAST_ULPS * np.finfo(array.dtype).eps:
        return "backward gives another gradient when it is called again"
    return None


def _strange(array: Array, what: str) -> str | None:
    places = np.argwhere(~np.isfinite(array))
    if not len(places):
        return None
    return f"the {what} is NaN or infinite in {len(places)} of {array.size} entries, first at {places[0].tolist()}"


def _dot(a: Array, b: Array) -> float:
    """The sum of the products, in extended precision: its rounding is not what is checked."""
    return float((a.astype(np.longdouble) * b.astype(np.longdouble)).sum())
