"""A constant factor, and what it is called."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np

from attention_np.gradcheck.agreement import UNDECIDABLE
from attention_np.gradcheck.diagnosis.mistake import ROUGH, Array, Mistake, axes_in_words, in_words, number, subsets
from attention_np.gradcheck.nesting import apart

__all__ = [
    "constant_factor",
    "factor_along_an_axis",
    "is_another_again",
    "is_zero",
    "scalar_fit",
    "times_the_gradient",
    "zero",
]

USUAL_DROPOUT = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
COMMON = (-1.0, 2.0, -2.0, 0.5, -0.5)  # what a slip of the pen makes
OF_NO_SHAPE = {  # what a factor may be besides
    "log(2)": (math.log(2), "as of logarithms or powers to the base 2"),
    "log(10)": (math.log(10), "as of logarithms or powers to the base 10"),
    "pi/180": (math.pi / 180, "as of degrees"),
    "pi": (math.pi, "as of angles"),
    "2 * pi": (2 * math.pi, "as of turns"),
}
LISTED = 2  # so many things that a factor may be are listed
TELLING = 1.0  # an entry tells a factor if the noise leaves it at least so precise

Readings = Iterator[tuple[float, str, str]]  # a number, how it comes about, and what is in it


class Factor(NamedTuple):
    """The claimed gradient as a multiple of the numerical one."""

    value: float
    precision: float  # relative

    @property
    def is_common(self) -> bool:
        """Whether it is one that a slip of the pen explains."""
        off = min(abs(self.value / common - 1) for common in COMMON)
        return off <= min(max(self.precision, 1e-12), 0.02)

    def __str__(self) -> str:
        if self.is_common:
            return number(round(2 * self.value) / 2)
        return number(self.value, precision=self.precision)


def zero(mistake: Mistake) -> str | None:
    """Zero throughout. No estimate is involved, so one entry is evidence enough."""
    if not is_zero(mistake):
        return None
    of_rounding = mistake.claimed[:, mistake.looked_at & ~mistake.hidden].any()
    return f"it is zero {_where(mistake)}{', but for rounding' if of_rounding else ''}"


def _where(mistake: Mistake) -> str:
    """How far a reading goes: it is not known of entries that noise hides, if something is claimed there."""
    return "in every entry that can be decided" if mistake.claimed[:, mistake.hidden].any() else "throughout"


def is_zero(mistake: Mistake) -> bool:
    """Whether the claimed gradient is zero, and the numerical one is evidently not."""
    return mistake.is_explained_by(0 * mistake.right)


def constant_factor(mistake: Mistake) -> str | None:
    """A constant factor: one number explains every entry for every cotangent."""
    factor = _factor(mistake)
    return factor and f"it is {factor} times the numerical gradient {_where(mistake)}{_name(mistake, factor)}"


def times_the_gradient(mistake: Mistake) -> str | None:
    """The same as part of a sentence, of some entries only: "2 times the numerical gradient"."""
    factor = _factor(mistake)
    return factor and f"{factor} times the numerical gradient{_name(mistake, factor)}"


def factor_along_an_axis(mistake: Mistake) -> str | None:
    """A factor of its own for each index of an axis. Two of them at least must each explain two wrong entries."""
    for axis, length in enumerate(mistake.shape):
        others = tuple(k for k in range(mistake.claimed.ndim) if k != axis + 1)
        factors = _fit(mistake, mistake.right, others)
        factors = np.where(np.isfinite(factors), factors, 0)  # where all is zero, so must be what is claimed
        if length < 2 or not mistake.is_explained_by(factors * mistake.right, np.abs(factors)):
            continue
        telling = np.any(mistake.allowed(factors * mistake.right) / np.abs(mistake.right) <= TELLING, axis=0)
        outside = tuple(k - 1 for k in others if k)
        entries, wrong = telling.sum(axis=outside), (telling & mistake.wrong).sum(axis=outside)
        known = factors.ravel()[entries > 0]
        if (wrong >= 2).sum() >= 2:
            low, high = (mistake.number(float(x), 4) for x in (known.min(), known.max()))
            return f"each index of axis {axis} has its own factor, {low} to {high}" if low != high else None
    return None


def is_another_again(mistake: Mistake) -> bool:
    """Whether the factor is evidently another one at another point, in most entries: near a kink any may be off."""
    factor, again = scalar_fit(mistake, mistake.right), mistake.again
    if again is None:
        return False
    other = factor * again.right
    off = (np.abs(again.claimed - other) > again.allowed(other, abs(factor)))[
        :, again.looked_at & (again.right != 0).any(axis=0)
    ]
    return bool(off.sum() > off.size / 2)


def scalar_fit(mistake: Mistake, other: Array) -> float:
    """The multiple of `other`, (3, *shape), that is closest to the claimed gradient."""
    return float(_fit(mistake, other).item())


def _fit(mistake: Mistake, other: Array, axes: tuple[int, ...] | None = None) -> Array:
    """The factors that fit best, in units of the noise, with `axes`, by default all, as axes of length 1."""
    noise = np.where(mistake.noise > 0, mistake.noise, np.inf)  # that of the smallest numbers is lost
    claimed, other = mistake.claimed / noise, np.where(mistake.looked_at, other, np.nan) / noise
    fit: Array = np.nansum(claimed * other, axis=axes, keepdims=True) / np.nansum(other**2, axis=axes, keepdims=True)
    return fit


def _factor(mistake: Mistake) -> Factor | None:
    """One number for all entries. Of a single ratio, which anything has, it takes the same at another point."""
    value = scalar_fit(mistake, mistake.right)
    other = value * mistake.right
    if not mistake.is_explained_by(other, abs(value)):
        return None
    off = mistake.allowed(other, abs(value)) / np.abs(other)
    telling = off <= TELLING
    # With a single output the gradient for one cotangent is a multiple of that for any other, be it right or wrong.
    one_output = mistake.evidence.output.size == 1
    ratios = int(telling.any(axis=0).sum() if one_output else telling.sum())
    alone = telling.any(axis=0).sum() < min(2, mistake.looked_at.sum())  # the others may have any factor, or none
    if alone or ratios < (1 if mistake.is_seen_again else 3 if one_output else 2):
        return None
    return Factor(value, 2 * float(off[telling].min()) / UNDECIDABLE)


def _name(mistake: Mistake, factor: Factor) -> str:
    """What the number may be, if anything: ": sqrt(8), where 8 is the length of the last axis of query"."""
    if factor.precision > ROUGH:
        return ""
    size, sign = abs(factor.value), "-" if factor.value < 0 else ""
    for readings in (_numbers, _products, _guesses):  # the first with any reading that fits
        found: dict[str, str] = {}
        of_a_length = False  # other axes may be as long, or several together
        for value, expression, meaning in readings(mistake):
            if abs(size - value) <= max(3 * factor.precision, 1e-12) * value and value != 1:
                shown = f"-({expression})" if sign and " - " in expression.partition("(")[0] else sign + expression
                found.setdefault(shown, meaning.replace(f"where {shown} is", "which is", 1))
                of_a_length |= "the length" in meaning
        listed = [f"{expression}, {meaning}" for expression, meaning in found.items()][:LISTED]
        if listed and not (factor.is_common and readings is _guesses):
            if abs(size - 1) > ROUGH and factor.is_common:
                listed.append(f"{'a 2' if size > 1 else 'a half'}, as of a square")
            of_a_length &= "a mean" not in listed[0]
            guessed = len(listed) > 1 or factor.is_common or readings is _guesses or of_a_length
            return f": {'perhaps ' if guessed else ''}{'; or '.join(listed)}"
    return ""


def _powers(value: float, shown: str, meaning: str) -> Readings:
    yield value, shown, meaning
    yield 1 / value, f"1/({shown})" if re.search("[ /]", shown) else f"1/{shown}", meaning
    yield from _roots(value, shown, meaning)


def _roots(value: float, shown: str, meaning: str) -> Readings:
    yield math.sqrt(value), f"sqrt({shown})", meaning
    yield 1 / math.sqrt(value), f"1/sqrt({shown})", meaning


def _numbers(mistake: Mistake) -> Readings:
    """A mean in the place of a sum; the root of the length of a last axis; a number of the call; a length."""
    for some in sorted({some for lengths in _repeated(mistake) for some in subsets(lengths)}, key=len):
        n = math.prod(some)
        axes = "axis of length" if len(some) == 1 else "axes of lengths"
        yield 1 / n, f"1/{n}", f"as a mean in the place of the sum over the broadcast {axes} {in_words(some)} gives"
    for n, place in _lengths(mistake).items():
        if "last" in place:
            yield from _roots(n, str(n), f"where {n} is {place}")
    for name, value in _constants(mistake).items():
        shown = number(value, 6)
        yield from _powers(abs(value), number(abs(value), 6), f"where {shown} is {name}")
        if 0 < value < 1:
            yield from _powers(1 - value, f"1 - {shown}", f"where {shown} is {name}")
    for n, place in _lengths(mistake).items():
        yield from _powers(n, str(n), f"where {n} is {place}")


def _repeated(mistake: Mistake) -> Iterator[list[int]]:
    """The lengths of the axes along which this input is repeated, as far as the shapes tell.

    Those that broadcasting adds, of the output or another input; or those of the output beside axes of its own lengths,
    as for a bias of the channels, (3,), of an output (2, 3, 4, 5).
    """
    longest: list[int] = []
    for other in (mistake.evidence.output, *mistake.evidence.inputs.values()):
        missing = other.ndim - len(mistake.shape)
        padded = ((1,) * missing + mistake.shape)[-other.ndim or len(mistake.shape) :]
        found = [n for mine, n in zip(padded, other.shape, strict=True) if mine == 1 and n > 1]
        longest = max(longest, found, key=len)
    yield sorted(longest)
    own, shape = [n for n in mistake.shape if n > 1], mistake.evidence.output.shape
    for axes in combinations(range(len(shape)), len(own)) if own else ():
        if [shape[axis] for axis in axes] == own:
            yield sorted(n for axis, n in enumerate(shape) if axis not in axes and n > 1)


def _products(mistake: Mistake) -> Readings:
    """The features of a head; the number of entries of an array, or of some of its axes."""
    for name, parts in _constants(mistake).items():
        for length, place in _lengths(mistake).items():
            if parts > 1 and length % parts == 0:
                meaning = f"where {length} is {place} and {parts:g} is {name}"
                yield from _powers(length / parts, f"{length}/{parts:g}", meaning)
    for name, x in _arrays(mistake).items():
        for axes in subsets(axis for axis, n in enumerate(x.shape) if n > 1):
            if len(axes) > 1:
                n, product = math.prod(x.shape[k] for k in axes), " * ".join(str(x.shape[k]) for k in axes)
                meaning = f"where {n} = {product} is the length of {axes_in_words(axes)} of {name}"
                yield from _powers(n, str(n), meaning)


def _guesses(mistake: Mistake) -> Readings:
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
    dropped = (right == 0).all(axis=0).any() and not mistake.evidence.constants
    for p in USUAL_DROPOUT if dropped else ():
        meaning = f"as for a dropout probability of {p:g}"
        yield 1 - p, f"1 - {p:g}", meaning
        yield 1 / (1 - p), f"1/(1 - {p:g})", meaning


def _constants(mistake: Mistake) -> dict[str, float]:
    values = {name: float(value) for name, value in mistake.evidence.constants.items()}
    return {name: value for name, value in values.items() if math.isfinite(value) and value != 0}


def _arrays(mistake: Mistake) -> dict[str, Array]:
    output, parts = mistake.evidence.output, mistake.evidence.parts
    return {**mistake.evidence.inputs, **(apart(output, parts) if parts else {"the output": output})}


def _lengths(mistake: Mistake) -> dict[int, str]:
    """For every length of an axis, where it is found first, last axes before others."""
    arrays = _arrays(mistake)
    found = {x.shape[-1]: f"the length of the last axis of {name}" for name, x in reversed(arrays.items()) if x.ndim}
    for name, x in arrays.items():
        for axis, n in enumerate(x.shape):
            found.setdefault(n, f"the length of axis {axis} of {name}")
    return {n: place for n, place in found.items() if n > 1}
