"""The functions that are checked, called with care: what they take, what they give back, and how they behave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "Backward",
    "Forward",
    "another_answer",
    "as_generator",
    "as_inputs",
    "by_name",
    "call_backward",
    "check_mapping",
    "dtype_of",
    "evaluate",
    "first_call",
    "form_of",
    "in_double_precision",
    "kind_of",
    "on_copies",
    "refuse_masked",
    "wide_dtype",
]

Array = npt.NDArray[Any]
Forward = Callable[..., Array]
Backward = Callable[..., Any]

OURS = 0x67726164  # beside a seed: nobody draws inputs with both
SAME_CALL_ULPS = 50  # what two equal calls may differ by: sums in another order, of several threads
SAME_FUNCTION = 1e-2  # of the largest output: what may change when the inputs are given in double precision


def as_inputs(inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """Copies of `inputs`, as arrays of real floating-point numbers."""
    check_mapping(inputs)
    arrays = {}
    for name, given in inputs.items():
        if not isinstance(name, str):
            raise TypeError(f"the names of inputs must be strings, not {name!r}")
        refuse_masked(f"input {name} must not be", given)
        try:
            x = np.asarray(given)
        except ValueError:
            raise TypeError(f"input {name} must be an array, not a {type(given).__name__} of uneven lists") from None
        if x.dtype.kind == "c":
            raise TypeError(
                f"input {name} is complex: gradients are checked of real functions of real arrays, so pass its real "
                f"and imaginary parts as two inputs ({name}.shape={x.shape}, {x.dtype})"
            )
        if x.dtype.kind != "f":
            raise TypeError(
                f"input {name} must hold real floating-point numbers, not {x.dtype} ({name}.shape={x.shape})"
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
        return np.random.default_rng([OURS, int(rng)])
    raise TypeError(f"rng must be a seed, an integer that is not negative, or a numpy.random.Generator, not {rng!r}")


def check_mapping(inputs: object) -> None:
    """Refuse `inputs` that are not a mapping, or an empty one."""
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs must be a mapping of names to arrays, not {type(inputs).__name__}")
    if not inputs:
        raise ValueError("inputs must hold at least one array: there is nothing to differentiate by")


def evaluate(forward: Forward, inputs: Iterable[Array]) -> Array:
    """The output of `forward`, refused if it is not one array of real floating-point numbers."""
    output = forward(*inputs)
    refuse_masked("forward must not return", output)
    if not isinstance(output, np.ndarray | np.generic | float):
        raise TypeError(f"forward must return one array, not {kind_of(output)}")
    result = np.asarray(output)
    if result.dtype.kind == "c":
        raise TypeError(
            f"forward must return real numbers, not {result.dtype}: return the real and imaginary parts, stacked "
            f"(output.shape={result.shape})"
        )
    if result.dtype.kind != "f":
        raise TypeError(f"forward must return real floating-point numbers, not {result.dtype}")
    return result


def call_backward(backward: Backward, cotangent: Array, inputs: Mapping[str, Array]) -> list[Any]:
    """What `backward` returns, one for each input, copied: it may use its memory again."""
    return [_own(x) for x in by_name(backward(cotangent, *inputs.values()), list(inputs)).values()]


def by_name(gradients: Any, *names: Sequence[str]) -> dict[str, Any]:
    """The gradients that a backward returns by the names of the inputs, the first of those that are as many."""
    if isinstance(gradients, Mapping):
        raise TypeError("backward must return the gradients as a tuple in the order of the inputs, not as a mapping")
    if isinstance(gradients, Iterator):
        raise TypeError(f"backward must return the gradients as a tuple, not as a {type(gradients).__name__}")
    given = gradients if isinstance(gradients, tuple | list) else [gradients]
    for those in names:
        if len(those) == len(given):
            return dict(zip(those, given, strict=True))
    each = f"each of the {len(names[0])} inputs ({', '.join(names[0])})"
    raise ValueError(f"backward must return one gradient for {each}, not {len(given)}")


def kind_of(x: Any) -> str:
    """The name of a type, with the library that it is of: there are several called ndarray."""
    library = type(x).__module__.partition(".")[0]
    return type(x).__name__ if library == "builtins" else f"{library}.{type(x).__name__}"


def _own(gradient: Any) -> Any:
    """A copy of an array, of another library as well, which may have it elsewhere than in memory."""
    if isinstance(gradient, np.ndarray):
        return gradient.copy()
    if isinstance(gradient, np.generic) or not hasattr(gradient, "__array__"):
        return gradient
    try:
        return np.array(gradient)
    except Exception as error:
        raise TypeError(f"backward must return arrays of NumPy, not {kind_of(gradient)}: {error}") from error


class FirstCall(NamedTuple):
    """The functions' answers at the point, and what is wrong with how they came by them."""

    output: Array
    cotangents: Array  # (3, *output.shape), of its dtype
    gradients: list[Any]  # for the first of them
    faults: dict[str, str]  # by input: there is no sense in comparing
    writes: dict[str, str]  # by input: what is written to that should not be; on copies, the values can be compared
    is_view: bool  # whether the output is one of an input, as that of a reshape

    @property
    def cotangent(self) -> Array:
        """The first, for which gradients are compared; the others tell what a wrong one is."""
        return np.asarray(self.cotangents[0])


def first_call(
    forward: Forward, backward: Backward, inputs: Mapping[str, Array], rng: np.random.Generator
) -> FirstCall:
    """Call both functions twice, on copies, and watch them.

    They must not write to their inputs, and must answer alike when they are asked again. A gradient must be no view of
    an input: whoever adds to the one would change the other. The cotangents are drawn from `rng`.
    """
    arrays = {name: x.copy() for name, x in inputs.items()}
    output = evaluate(forward, arrays.values())
    writes, is_view = _written("forward", inputs, arrays), bool(_views("the output", output, arrays))
    output = output.copy()
    of_any_seed = np.random.default_rng(OURS).standard_normal((1, *output.shape))
    cotangents = np.concatenate([rng.standard_normal((2, *output.shape)), of_any_seed]).astype(output.dtype)
    cotangent = np.array(cotangents[0])  # an array, also where it is a single number

    arrays = {name: x.copy() for name, x in inputs.items()}
    result = backward(given := cotangent.copy(), *arrays.values())
    writes = _written("backward", inputs, arrays) | writes
    if not np.array_equal(given, cotangent):
        writes = dict.fromkeys(inputs, "backward writes to the gradient of the output that it is given") | writes
    for gradient in result if isinstance(result, tuple | list) else [result]:
        writes = _views("a gradient", gradient, arrays) | writes
    gradients = call_backward(lambda *_: result, cotangent, inputs)

    faults = {}
    if not _same(output, evaluate(forward, _copies(inputs))):
        faults = dict.fromkeys(inputs, "forward gives another output when it is called again")
    again = call_backward(backward, cotangent.copy(), dict(zip(inputs, _copies(inputs), strict=True)))
    for name, gradient, repeated in zip(inputs, gradients, again, strict=True):
        another = another_answer(gradient, repeated)
        if another is not None:
            faults.setdefault(name, another)
    strange = _strange(output, "output")
    faults = dict.fromkeys(inputs, strange) if strange else faults
    return FirstCall(output, cotangents, gradients, faults, writes, is_view)


def form_of(gradient: Any, x: Array) -> str | None:
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


def dtype_of(gradient: Any, x: Array, inputs: Iterable[Array], output: Array) -> str | None:
    """What is wrong with the dtype of a gradient that can be compared.

    It is that of `x`, or of all inputs together; or of the cotangent with them, if the output has a wider one.
    """
    if not isinstance(gradient, np.ndarray):
        return None
    together = np.result_type(*(y.dtype for y in inputs))
    fitting = (x.dtype, together, np.result_type(together, output.dtype))
    return (
        None
        if gradient.dtype.newbyteorder("=") in fitting
        else f"the gradient is {gradient.dtype}, the input {x.dtype}"
    )


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Double precision, or `dtype` where that is wider."""
    return np.result_type(dtype, np.float64)


def in_double_precision(forward: Forward, inputs: Sequence[Array], output: Array) -> list[Array]:
    """`inputs` in double precision, or as they are if `forward` does not compute the same with those.

    A kernel that is compiled for one dtype refuses others, or takes their memory for its own.
    """
    wide = [x.astype(wide_dtype(x.dtype)) for x in inputs]
    if all(x.dtype == y.dtype for x, y in zip(wide, inputs, strict=True)):
        return wide
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(forward(*(x.copy() for x in wide)))
            change = np.abs(found - output).max(initial=0)
    except Exception:
        return list(inputs)
    same = found.shape == output.shape and change <= SAME_FUNCTION * np.abs(output).max(initial=0)
    return wide if same else list(inputs)


def on_copies(forward: Forward, *inputs: Array) -> Array:
    """What a function gives that may write to its inputs."""
    return forward(*(x.copy() for x in inputs))


def _copies(inputs: Mapping[str, Array]) -> list[Array]:
    return [x.copy() for x in inputs.values()]


def _written(who: str, before: Mapping[str, Array], after: Mapping[str, Array]) -> dict[str, str]:
    return {
        name: f"{who} writes to this input"
        for name, x in before.items()
        if not np.array_equal(x, after[name], equal_nan=True)
    }


def _views(what: str, result: Any, arrays: Mapping[str, Array]) -> dict[str, str]:
    if not isinstance(result, np.ndarray):
        return {}
    return {
        name: f"{what} is a view of this input: whoever changes one changes the other"
        for name, x in arrays.items()
        if np.may_share_memory(result, x)  # each of them has its own memory, so that this is exact
    }


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
        return True  # no array at all, as form_of says
    if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind != "f":
        return a.shape == b.shape and a.dtype == b.dtype
    if np.array_equal(a, b, equal_nan=True):
        return True
    near = SAME_CALL_ULPS * float(np.finfo(a.dtype).eps) if near is None else near
    with np.errstate(all="ignore"):
        return bool(np.abs(a - b).max() <= near * np.abs(a).max())


def _strange(array: Array, what: str) -> str | None:
    places = np.argwhere(~np.isfinite(array))
    if not len(places):
        return None
    return f"the {what} is NaN or infinite in {len(places)} of {array.size} entries, first at {places[0].tolist()}"
