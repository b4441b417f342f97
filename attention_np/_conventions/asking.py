"""Somebody's attention is called on a few chosen inputs, and its answers are held against readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attention_np._conventions.readings import AXES, Call, Reading, StepByStep, answers, read_as, seen_by
from attention_np._lib.arrays import Array
from attention_np.known_answers.analysis import Computed
from attention_np.known_answers.bounds import with_rounding
from attention_np.known_answers.formats import FORMATS, Format

Answers = dict[str, Array]
PERMUTED = {
    "batch, heads, queries": (0, 1, 2, 3),
    "batch, queries, heads": (0, 2, 1, 3),
    "queries, batch, heads": (2, 0, 1, 3),
}
TRIED = ("float32", "float64", "float16")  # dtypes of the inputs, until the kernel takes one
GRADIENTS = ("query", "key", "value")


class RefusedError(Exception):
    """The kernel raised, or returned what is no answer."""


class Kernel:
    """Somebody's attention, called with arrays (b, h, n, d) whatever its own layout is."""

    def __init__(
        self, attention: Callable[..., Any], backward: Callable[..., Any] | None, options: Sequence[str]
    ) -> None:
        self.attention, self.gradients_of, self.options = attention, backward, tuple(options)
        self.layout, self.dtype = next(iter(PERMUTED)), TRIED[0]

    def __call__(self, call: Call, output_alone: bool = False) -> Answers:
        """The output, and the log-sum-exp and the gradients if there are any, in float64."""
        inputs, options = call
        axes = PERMUTED[self.layout]
        arrays = {name: inputs[name].astype(self.dtype).transpose(axes) for name in GRADIENTS}
        rest = {name: x if x.dtype == np.bool_ else x.astype(self.dtype) for name, x in _options(call).items()}
        try:
            with np.errstate(all="ignore"):
                returned = self.attention(*(x.copy() for x in arrays.values()), **_copied(rest), **options)
                output, logsumexp = returned if isinstance(returned, tuple | list) else (returned, None)
                observed = {"output": _back(output, axes, inputs["query"].shape[:-1])}
                if output_alone:
                    return observed
                if logsumexp is not None:
                    observed["logsumexp"] = _rows(logsumexp, axes, inputs["query"].shape[:-1])
                if self.gradients_of is not None:
                    d_output = inputs["d_output"].astype(self.dtype).transpose(axes)
                    of_call = self.gradients_of(
                        d_output.copy(), *(x.copy() for x in arrays.values()), **_copied(rest), **options
                    )
                    of_call = of_call.values() if isinstance(of_call, Mapping) else of_call
                    for name, x in zip(GRADIENTS, of_call, strict=False):
                        observed[f"d_{name}"] = _back(x, axes, inputs[name].shape[:-1])
        except Exception as error:  # whatever a kernel does with what it does not take
            raise RefusedError(said(error)) from error
        return observed


def said(error: Exception) -> str:
    """An exception in a few words."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:90]}" if first else type(error).__name__


def _options(call: Call) -> dict[str, Array]:
    return {name: x for name, x in call[0].items() if name not in (*GRADIENTS, "d_output")}


def _copied(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: x.copy() for name, x in arrays.items()}


def _back(x: Any, axes: tuple[int, ...], leading: tuple[int, ...]) -> Array:
    """An array of four axes in our own layout."""
    in_double = np.asarray(x).astype(np.float64)
    if in_double.ndim != 4 or in_double.transpose(np.argsort(axes)).shape[:-1] != leading:
        raise ValueError(f"an array of the shape {in_double.shape} was returned for queries, keys or values {leading}")
    ours: Array = in_double.transpose(np.argsort(axes))
    return ours


def _rows(x: Any, axes: tuple[int, ...], leading: tuple[int, ...]) -> Array:
    """A number for each query, (b, h, n), in whichever layout it came, perhaps with an axis more."""
    in_double = np.asarray(x).astype(np.float64)
    in_double = in_double[..., 0] if in_double.ndim == 4 and in_double.shape[-1] == 1 else in_double
    if in_double.shape != leading and in_double.ndim == 3:
        in_double = in_double.transpose(np.argsort(axes[:3]))
    if in_double.shape != leading:
        raise ValueError(f"a log-sum-exp of the shape {in_double.shape} was returned for queries {leading}")
    return in_double


class Choice(NamedTuple):
    """The value of an axis that explains all answers to its bounds, or None; and how near to the bound it comes."""

    value: str | None
    also: tuple[str, ...]  # others that explain them, with other predictions


def distance(observed: Answers, computed: Mapping[str, Computed], form: Format, names: Iterable[str]) -> float:
    """The largest error of an entry over its bound."""
    worst = 0.0
    for name in names:
        if name not in observed:
            continue
        right, x = computed[name], observed[name]
        bound = with_rounding(right.error, right.value, form)
        with np.errstate(all="ignore"):
            same = (x == right.value) | (np.isnan(x) & np.isnan(right.value))
            off = np.where(same, 0, np.abs(x - right.value) / bound)
        worst = max(worst, float(np.nan_to_num(off, nan=np.inf, posinf=np.inf).max(initial=0)))
    return worst


def chosen(
    axis: str,
    reading: Reading,
    observations: Sequence[tuple[Call, Answers]],
    form: Format,
    names: Sequence[str] = ("output",),
    values: Sequence[str] | None = None,
    most: float = 1.0,
) -> Choice:
    """The value of `axis` that explains the answers to all calls, with the rest of the reading as it is."""
    distances = {}
    for value in values or AXES[axis]:
        of_value, rules = {**reading, axis: value}, StepByStep(form)
        distances[value] = max(
            distance(_but_empty(observed, of_value, call, axis), answers(of_value, *call, rules), form, names)
            for call, observed in observations
        )
    best = min(distances, key=lambda value: distances[value])
    others = tuple(x for x, far in distances.items() if x != best and far <= most)
    return Choice(best if distances[best] <= most else None, others)


def _but_empty(observed: Answers, reading: Reading, call: Call, axis: str) -> Answers:
    """The answers, with zeros as ours for a query without keys, unless that is what is asked."""
    seen = seen_by(read_as(reading, *call)[0]).any(axis=-1, keepdims=True)
    return observed if axis == "empty row" else observed | {"output": np.where(seen, observed["output"], 0)}


def holds_all(form: Format, x: Array) -> bool:
    """Whether an array that has been rounded to the narrowest format that holds it may have come from this one.

    An output of bfloat16 stays one in float32; so what eight bits hold is judged as bfloat16.
    """
    bits = next((bits for bits in (8, 11) if (_rounded(x, bits) == x).all()), 24)
    return form.precision <= bits


def _rounded(x: Array, bits: int) -> Array:
    fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0))
    return np.where(np.isfinite(x), np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits), x)


def operands(
    n: int = 8, m: int = 8, heads: int = 4, few: int | None = None, d_k: int = 16, d_v: int | None = None, seed: int = 0
) -> dict[str, Array]:
    """Inputs of a call: halves of small integers, which every format holds, with scores of about one."""
    rng = np.random.default_rng(seed)
    few = heads if few is None else few
    shapes = {"query": (2, heads, n, d_k), "key": (2, few, m, d_k), "value": (2, few, m, d_v or d_k)}
    arrays = {name: rng.integers(-3, 4, shape) / 2 for name, shape in shapes.items()}
    return arrays | {"d_output": rng.integers(-3, 4, (2, heads, n, d_v or d_k)) / 2}


FORMS = {
    "float32 or better": FORMATS["float32"],
    "11 bits, as float16 and TF32": FORMATS["float16"]._replace(least=-149),
    "8 bits, as bfloat16": FORMATS["bfloat16"],
}
