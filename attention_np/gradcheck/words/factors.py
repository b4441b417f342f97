"""A constant factor, and what it is called; zero."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import combinations, permutations

import numpy as np

from attention_np.gradcheck.problem.nests import parts_of
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.words.reading import (
    VAGUE,
    Array,
    Mistake,
    Reading,
    axes_in_words,
    in_words,
    number,
    subsets,
)

COMMON = (-1.0, 2.0, -2.0, 0.5, -0.5)  # what a slip of the pen makes
OF_NO_SHAPE = {  # what a factor may be besides
    "log(2)": (math.log(2), "as of logarithms or powers to the base 2"),
    "log(10)": (math.log(10), "as of logarithms or powers to the base 10"),
    "pi/180": (math.pi / 180, "as of degrees"),
    "pi": (math.pi, "as of angles"),
    "2 * pi": (2 * math.pi, "as of turns"),
}

Names = Iterator[tuple[float, str, str]]  # a number, how it comes about, and what is in it


def zero(mistake: Mistake) -> Iterator[Reading]:
    """Zero throughout. No estimate is involved, so one entry is evidence enough."""
    of_rounding = ", but for rounding" if mistake.claimed[:, mistake.wrong].any() else ""
    if of_rounding and factor_of(mistake, mistake.looked) is not None:
        return
    yield Reading("zero", f"it is zero {_throughout(mistake)}{of_rounding}", 0 * mistake.right, alone=True)


def constant_factor(mistake: Mistake) -> Iterator[Reading]:
    """One number explains every entry for every cotangent."""
    value = factor_of(mistake, mistake.looked)
    if value is not None:
        what, of, name = factor_in_words(mistake, mistake.looked, value).partition("the numerical gradient")
        said = f"it is {what}{of} {_throughout(mistake)}{name}"
        yield Reading("factor", said, value * mistake.right, (value,), scale=abs(value))


READINGS = ((0, zero), (40, constant_factor))


def _throughout(mistake: Mistake) -> str:
    """How far a reading goes: it is not known of entries that cannot be decided."""
    if not mistake.looked.all():
        return "in every entry that was looked at"
    return "in every entry that can be decided" if mistake.claimed[:, mistake.neutral].any() else "throughout"


def factor_of(mistake: Mistake, among: Array) -> float | None:
    """The number that the claimed gradient is a multiple by, if enough entries tell it.

    With a single output the gradient for one cotangent is a multiple of that for any other, be it right or wrong: three
    entries must tell. Of a single ratio, which anything has, it takes the same at another point.
    """
    value = best_multiple(mistake, mistake.right, among)
    telling = (_uncertainty(mistake, value) <= 1) & among
    one_output, entries = mistake.output.size == 1, telling.any(axis=0).sum()
    enough = 1 if mistake.is_seen_again else 3 if one_output else 2
    few = entries < min(2, among.sum()) or (entries if one_output else telling.sum()) < enough
    return None if few or not math.isfinite(value) else value


def best_multiple(mistake: Mistake, other: Array, among: Array) -> float:
    """The multiple of `other`, (3, *shape), that is closest to the claimed gradient, in units of the noise."""
    known = among & ~mistake.neutral
    claimed, other, noise = (x[:, known] for x in (mistake.claimed, other, mistake.noise))
    claimed, other = claimed / noise, other / noise
    finite = np.isfinite(claimed) & np.isfinite(other)  # the noise of the smallest numbers is lost
    return float(np.divide((claimed * other)[finite].sum(), np.square(other[finite]).sum()))


def _uncertainty(mistake: Mistake, value: float) -> Array:
    """What the noise of each entry may make of the factor, relative, and in units of what counts as an error."""
    noise = mistake.noise if mistake.exact else max(abs(value), 1.0) * mistake.noise
    return np.asarray(UNDECIDABLE * np.maximum(noise / np.abs(value * mistake.right), mistake.precision))


def factor_in_words(mistake: Mistake, among: Array, value: float) -> str:
    """A factor, and what it may be: "2.8 times the numerical gradient: sqrt(8), where 8 is the length of ..."."""
    precision = 2 * float(np.nanmin(_uncertainty(mistake, value)[:, among])) / UNDECIDABLE
    common = min(abs(value / c - 1) for c in COMMON) <= min(max(precision, 1e-12), 0.02)
    shown = number(round(2 * value) / 2) if common else number(value, precision=precision)
    name = "" if precision > VAGUE else _name(mistake, value, precision, common)
    return f"{shown} times the numerical gradient{name}"


def _name(mistake: Mistake, factor: float, precision: float, common: bool) -> str:
    """What the number may be, if anything: ": sqrt(8), where 8 is the length of the last axis of query"."""
    size, sign = abs(factor), "-" if factor < 0 else ""
    for names in (_numbers, _products, _guesses):  # the first with any that fits
        found: dict[str, list[str]] = {}
        for value, expression, meaning in names(mistake):
            if abs(size - value) <= max(3 * precision, 1e-12) * value and value != 1:
                shown = f"-({expression})" if sign and " - " in expression.partition("(")[0] else sign + expression
                found.setdefault(shown, []).append(meaning.replace(f"where {shown} is", "which is", 1))
        listed = [f"{expression}, {meaning[0]}" for expression, meaning in found.items()][:2]
        if listed and not (common and names is _guesses):
            if common:
                listed.append(f"{'a 2' if size > 1 else 'a half'}, as of a square")
            of_a_length = "length" in listed[0] and "a mean" not in listed[0]  # other axes may be as long
            known = "a mean" in listed[0] or len(next(iter(found.values()))) == 1  # and no other meaning
            certain = len(listed) == 1 and known and names is not _guesses and not of_a_length
            return f": {'' if certain else 'perhaps '}{'; or '.join(listed)}"
    return ""


def _powers(value: float, shown: str, meaning: str) -> Names:
    yield value, shown, meaning
    yield 1 / value, f"1/({shown})" if re.search("[ /]", shown) else f"1/{shown}", meaning
    yield math.sqrt(value), f"sqrt({shown})", meaning
    yield 1 / math.sqrt(value), f"1/sqrt({shown})", meaning


def _numbers(mistake: Mistake) -> Names:
    """A mean in the place of a sum; the root of the length of a last axis; a number of the call; a length."""
    lengths = _lengths(mistake)
    for some in sorted({some for repeated in _repeated(mistake) for some in subsets(repeated)}, key=len):
        axes = f"{'axis of length' if len(some) == 1 else 'axes of lengths'} {in_words(some)}"
        n = math.prod(some)
        yield 1 / n, f"1/{n}", f"as a mean in the place of the sum over the broadcast {axes} gives"
    last = (n for n, place in lengths.items() if "last" in place)
    yield from (found for n in last for found in [*_powers(n, str(n), f"where {n} is {lengths[n]}")][2:])
    for name, value in _constants(mistake).items():
        shown = number(value, 6)
        yield from _powers(abs(value), number(abs(value), 6), f"where {shown} is {name}")
        if 0 < value < 1:
            yield from _powers(1 - value, f"1 - {shown}", f"where {shown} is {name}")
    for n, place in lengths.items():
        yield from _powers(n, str(n), f"where {n} is {place}")


def _repeated(mistake: Mistake) -> Iterator[list[int]]:
    """The lengths of the axes along which this input is repeated, as far as the shapes tell.

    Those that broadcasting adds, of the output or another input; or those of the output beside axes of its own lengths,
    as for a bias of the channels, (3,), of an output (2, 3, 4, 5).
    """
    longest: list[int] = []
    for other in (mistake.output, *mistake.inputs.values()):
        padded = ((1,) * (other.ndim - len(mistake.shape)) + mistake.shape)[-other.ndim or len(mistake.shape) :]
        found = [n for mine, n in zip(padded, other.shape, strict=True) if mine == 1 and n > 1]
        longest = max(longest, found, key=len)
    yield sorted(longest)
    own, shape = [n for n in mistake.shape if n > 1], mistake.output.shape
    for axes in combinations(range(len(shape)), len(own)) if own else ():
        if [shape[axis] for axis in axes] == own:
            yield sorted(n for axis, n in enumerate(shape) if axis not in axes and n > 1)


def _products(mistake: Mistake) -> Names:
    """The features of a head; the number of entries of an array, or of some of its axes."""
    for name, parts in _constants(mistake).items():
        for length, place in _lengths(mistake).items():
            if parts > 1 and length % parts == 0:
                meaning = f"where {length} is {place} and {parts:g} is {name}"
                yield from _powers(length / parts, f"{length}/{parts:g}", meaning)
    for name, x in _arrays(mistake).items():
        for axes in subsets(axis for axis, n in enumerate(x.shape) if n > 1):
            n, product = math.prod(x.shape[k] for k in axes), " * ".join(str(x.shape[k]) for k in axes)
            if len(axes) > 1:
                yield from _powers(n, str(n), f"where {n} = {product} is the length of {axes_in_words(axes)} of {name}")


def _guesses(mistake: Mistake) -> Names:
    """A length less one for it, where the gradient is that of a variance; one length for another; what has no shape."""
    right, lengths = mistake.right, _lengths(mistake)
    for axis, n in enumerate(mistake.shape):
        terms = np.abs(right).sum(axis=axis + 1) + mistake.tolerance.sum(axis=axis + 1)
        if n > 1 and (np.abs(right.sum(axis=axis + 1)) <= n * mistake.precision * terms).all():
            for value, shown in ((1 - 1 / n, f"{n - 1}/{n}"), (n / (n - 1), f"{n}/{n - 1}")):
                yield value, shown, f"as of a variance, with n - 1 or n, where n = {n} is {lengths[n]}"
    for n, m in permutations(lengths, 2):
        meaning = f"where {n} is {lengths[n]} and {m} is {lengths[m]}"
        yield n / m, f"{n}/{m}", meaning
        yield math.sqrt(n / m), f"sqrt({n}/{m})", meaning
    for shown, (value, meaning) in OF_NO_SHAPE.items():
        yield from _powers(value, shown, meaning)
    for p in (
        (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5) if (right == 0).all(axis=0).any() and not mistake.constants else ()
    ):
        yield from [*_powers(1 - p, f"1 - {p:g}", f"as for a dropout probability of {p:g}")][:2]


def _constants(mistake: Mistake) -> dict[str, float]:
    return {name: float(x) for name, x in mistake.constants.items() if math.isfinite(x) and x != 0}


def _arrays(mistake: Mistake) -> dict[str, Array]:
    outputs = parts_of(mistake.output, mistake.parts) if mistake.parts else {"the output": mistake.output}
    return {**mistake.inputs, **outputs}


def _lengths(mistake: Mistake) -> dict[int, str]:
    """For every length of an axis, where it is found first, last axes before others."""
    arrays = _arrays(mistake)
    found = {x.shape[-1]: f"the length of the last axis of {name}" for name, x in reversed(arrays.items()) if x.ndim}
    for name, x in arrays.items():
        for axis, n in enumerate(x.shape):
            found.setdefault(n, f"the length of axis {axis} of {name}")
    return {n: place for n, place in found.items() if n > 1}
