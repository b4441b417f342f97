"""The functions that are checked, called with care: what they take, what they give back, and how they behave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib.arrays import Array
from attention_np.gradcheck.problem.nests import by_name

Forward = Callable[..., Array]
Backward = Callable[..., Any]

# What a function raises that is asked outside its domain, as for the Cholesky factor of an indefinite matrix, or for a
# place beyond the end of a table. Anything else, such as no more memory or no more workers, is an error.
REFUSALS = (ArithmeticError, AssertionError, LookupError, ValueError, np.linalg.LinAlgError)
SAME_CALL = 50  # units in the last place that two equal calls may differ by: sums in another order, of several threads


class NotAnalyticError(ValueError):
    """The complex step does not apply: the function refuses complex arrays, or is not analytic."""

    @classmethod
    def at_input(cls, name: str, why: object) -> NotAnalyticError:
        """The error for whoever has asked for the complex step."""
        return cls(f"input {name}: {why}, so the complex step does not apply: use central")


def check_mapping(inputs: object) -> None:
    """Refuse `inputs` that are not a mapping of names, or an empty one."""
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs must be a mapping of names to arrays, not {type(inputs).__name__}")
    if not inputs:
        raise ValueError("inputs must hold at least one array: there is nothing to differentiate by")
    for name in inputs:
        if not isinstance(name, str):
            raise TypeError(f"the names of inputs must be strings, not {name!r}")


def as_inputs(inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """Copies of `inputs`, as arrays of real floating-point numbers."""
    check_mapping(inputs)
    arrays = {}
    for name, given in inputs.items():
        refuse_masked(f"input {name} must not be", given)
        try:
            x = np.asarray(given)
        except ValueError:
            raise TypeError(f"input {name} must be an array, not a {type(given).__name__} of uneven lists") from None
        if x.dtype.kind != "f":
            parts = ": pass its real and imaginary parts as two inputs" if x.dtype.kind == "c" else ""
            raise TypeError(
                f"input {name} must hold real floating-point numbers, not {x.dtype} ({name}.shape={x.shape}){parts}"
            )
        arrays[name] = np.array(x, x.dtype.newbyteorder("="))
    return arrays


def refuse_masked(must_not: str, values: Any) -> None:
    """Refuse a masked array, whose mask would be lost."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(
            f"{must_not} a masked array, whose mask would be lost: pass .data or .filled(...) (shape={values.shape})"
        )


def as_generator(rng: Any) -> np.random.Generator:
    """`rng`, a seed or a generator, as a generator.

    A seed gives other numbers here than elsewhere: whoever draws inputs with the same one must not find the cotangent
    equal to them.
    """
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, Integral) and not isinstance(rng, bool) and int(rng) >= 0:
        return np.random.default_rng([0x67726164, int(rng)])  # nobody draws inputs with both
    raise TypeError(f"rng must be a seed, an integer that is not negative, or a numpy.random.Generator, not {rng!r}")


def check_functions(**functions: Any) -> None:
    """Refuse what cannot be called."""
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")


def as_executor(executor: Any) -> Any:
    """`executor`, which must be one, or None."""
    if executor is not None and (isinstance(executor, type) or not callable(getattr(executor, "submit", None))):
        raise TypeError(f"executor must be a concurrent.futures.Executor, not {executor!r}")
    return executor


def evaluate(forward: Forward, inputs: Iterable[Array]) -> Array:
    """The output of `forward`, refused if it is not one array of real floating-point numbers."""
    output = forward(*inputs)
    refuse_masked("forward must not return", output)
    if not isinstance(output, np.ndarray | np.generic | float):
        raise TypeError(f"forward must return one array, not {kind_of(output)}")
    result = np.asarray(output)
    if result.dtype.kind != "f":
        parts = f": return the real and imaginary parts, stacked (output.shape={result.shape})"
        why = parts if result.dtype.kind == "c" else ""
        raise TypeError(f"forward must return real floating-point numbers, not {result.dtype}{why}")
    return result


def call_backward(backward: Backward, cotangent: Array, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """What `backward` returns, by the names of the inputs, copied: it may use its memory again."""
    gradients = by_name(backward(cotangent, *inputs.values()), list(inputs))
    return {name: _copied(gradient) for name, gradient in gradients.items()}


def kind_of(x: Any) -> str:
    """The name of a type, with the library that it is of: there are several called ndarray."""
    library = type(x).__module__.partition(".")[0]
    return type(x).__name__ if library == "builtins" else f"{library}.{type(x).__name__}"


def on_copies(forward: Forward, *inputs: Array) -> Array:
    """What a function gives that may write to its inputs."""
    return forward(*(x.copy() for x in inputs))


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Double precision, or `dtype` where that is wider."""
    return np.result_type(dtype, np.float64)


def is_same_function(output: Array, expected: Array) -> bool:
    """Whether a function that was given its inputs in a wider dtype still computes the same.

    A kernel that is compiled for one dtype refuses others, or takes their memory for its own.
    """
    if output.shape != expected.shape:
        return False
    change = np.abs(output - expected).max(initial=0)
    return bool(change <= 1e-2 * np.abs(expected).max(initial=0))  # far above half precision's last bit


def in_double_precision(forward: Forward, inputs: Sequence[Array], output: Array) -> list[Array]:
    """`inputs` in double precision, or as they are if `forward` does not compute the same with those."""
    wide = [x.astype(wide_dtype(x.dtype)) for x in inputs]
    if all(x.dtype == y.dtype for x, y in zip(wide, inputs, strict=True)):
        return wide
    try:
        with np.errstate(all="ignore"):
            same = is_same_function(np.asarray(on_copies(forward, *wide)), output)
    except Exception:  # not every function takes every dtype
        same = False
    return wide if same else list(inputs)


class FirstCall(NamedTuple):
    """The functions' answers at the point, and what is wrong with how they came by them."""

    output: Array
    cotangents: Array  # (3, *output.shape), of its dtype
    claims: dict[str, Any]  # for the first of them
    faults: dict[str, str]  # by input: there is no sense in comparing
    writes: dict[str, str]  # by input: what is written to that should not be; on copies, the values can be compared
    is_view: bool  # whether the output is one of an input, as that of a reshape


def first_call(
    forward: Forward, backward: Backward, inputs: Mapping[str, Array], rng: np.random.Generator
) -> FirstCall:
    """Call both functions twice, on copies, and watch them.

    They must not write to their inputs, and must answer alike when they are asked again. The cotangents come of `rng`.
    """
    arrays = _copies(inputs)
    output = evaluate(forward, arrays.values())
    writes = _written("forward", inputs, arrays)
    is_view = any(np.may_share_memory(output, x) for x in arrays.values())
    output = output.copy()
    cotangents = rng.standard_normal((3, *output.shape)).astype(output.dtype)
    cotangent = np.array(cotangents[0])  # an array, also where it is a single number

    arrays = _copies(inputs)
    result = backward(given := cotangent.copy(), *arrays.values())
    writes = _written("backward", inputs, arrays) | writes
    if not np.array_equal(given, cotangent):
        writes = dict.fromkeys(inputs, "backward writes to the gradient of the output that it is given") | writes
    claims = call_backward(lambda *_: result, cotangent, inputs)

    strange = _strange(output, "output")
    if strange is None and not _same(output, evaluate(forward, _copies(inputs).values())):
        strange = "forward gives another output when it is called again"
    if strange is not None:
        return FirstCall(output, cotangents, claims, dict.fromkeys(inputs, strange), writes, is_view)
    again = call_backward(backward, cotangent.copy(), _copies(inputs))
    others = {name: another_answer(claims[name], again[name]) for name in inputs}
    faults = {name: another for name, another in others.items() if another is not None}
    return FirstCall(output, cotangents, claims, faults, writes, is_view)


def fault_of_form(gradient: Any, x: Array) -> str | None:
    """What is wrong with the form of the gradient by `x`, if it cannot be compared."""
    if gradient is None:
        return "the gradient is missing"
    if isinstance(gradient, np.ma.MaskedArray):
        return "the gradient is a masked array, whose mask would be lost"
    try:
        array = np.asarray(gradient)
    except ValueError:
        return f"the gradient is not an array, but a {type(gradient).__name__} of uneven lists"
    if array.shape != x.shape:
        return f"the gradient has the shape {array.shape}, the input {x.shape}"
    if array.dtype.kind != "f":
        return f"the gradient holds {array.dtype}, not real floating-point numbers"
    return _strange(array, "gradient")


def another_answer(first: Any, again: Any, near: float | None = None) -> str | None:
    """What is wrong if backward answers the same question otherwise, by more than `near` of the largest entry."""
    if _same(first, again, near):
        return None
    more = ": by as much again: is a buffer not zeroed?" if _same(2 * np.asarray(first), again, near) else ""
    return f"backward gives another gradient when it is called again{more}"


def _same(first: Any, again: Any, near: float | None = None) -> bool:
    """Whether two answers to the same question are equal, but for the order in which they were summed."""
    try:
        a, b = np.asarray(first), np.asarray(again)
    except ValueError:
        return True  # no array at all, as fault_of_form says
    if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind != "f":
        return a.shape == b.shape and a.dtype == b.dtype
    near = SAME_CALL * float(np.finfo(a.dtype).eps) if near is None else near
    with np.errstate(all="ignore"):
        close = np.abs(a - b).max(initial=0) <= near * np.abs(a).max(initial=0)
    return bool(close or np.array_equal(a, b, equal_nan=True))


def _copied(gradient: Any) -> Any:
    """A copy of an array, of another library as well, which may have it elsewhere than in memory."""
    if isinstance(gradient, np.ndarray):
        return gradient.copy()
    if isinstance(gradient, np.generic) or not hasattr(gradient, "__array__"):
        return gradient
    try:
        return np.array(gradient)
    except Exception as error:
        raise TypeError(f"backward must return arrays of NumPy, not {kind_of(gradient)}: {error}") from error


def _copies(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: x.copy() for name, x in inputs.items()}


def _written(who: str, before: Mapping[str, Array], after: Mapping[str, Array]) -> dict[str, str]:
    changed = [name for name, x in before.items() if not np.array_equal(x, after[name], equal_nan=True)]
    return dict.fromkeys(changed, f"{who} writes to this input")


def _strange(array: Array, what: str) -> str | None:
    places = np.argwhere(~np.isfinite(array))
    if not len(places):
        return None
    return f"the {what} is NaN or infinite in {len(places)} of {array.size} entries, first at {places[0].tolist()}"
