"""A constant factor, and what it is called; zero."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.problem.nests import parts_of
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.words.reading import VAGUE, Mistake, Reading, axes_in_words, number, spread, subsets


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


MANY = 4096  # entries tell a factor as well as all

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
    known = spread(np.flatnonzero(among & ~mistake.neutral), MANY)
    claimed, other, noise = (x.reshape(3, -1)[:, known] for x in (mistake.claimed, other, mistake.noise))
    claimed, other = claimed / noise, other / noise
    finite = np.isfinite(claimed) & np.isfinite(other)  # the noise of the smallest numbers is lost
    return float(np.divide((claimed * other)[finite].sum(), np.square(other[finite]).sum()))


def _uncertainty(mistake: Mistake, value: float) -> Array:
    """What the noise of each entry may make of the factor, relative, and in units of what counts as an error."""
    noise = mistake.noise if mistake.exact else max(abs(value), 1.0) * mistake.noise
    return np.asarray(UNDECIDABLE * np.maximum(noise / np.abs(value * mistake.right), mistake.precision))


def factor_in_words(mistake: Mistake, among: Array, value: float) -> str:
    """A factor, and what it may be: "2.8 times the numerical gradient: perhaps sqrt(8), where 8 is ..."."""
    precision = 2 * float(np.nanmin(_uncertainty(mistake, value)[:, among])) / UNDECIDABLE
    half = round(2 * value) / 2  # a slip of the pen is seldom another number
    near = half and abs(value / half - 1) <= min(max(precision, 1e-12), 0.02)
    shown = number(half) if near else number(value, precision=precision)
    name = "" if precision > VAGUE else _name(mistake, value, max(3 * precision, 1e-12))
    square = "; or of a square" if name and near and abs(half) in (0.5, 2) else ""
    return f"{shown} times the numerical gradient{name}{square}"


def _name(mistake: Mistake, factor: float, precision: float) -> str:
    """What the number may be, if a length: a mean in the place of a sum, or a number of features and the like."""
    sign = "-" if factor < 0 else ""
    for n in _repeated(mistake):
        if _is_near(factor, 1 / n, precision):
            return f": perhaps {sign}1/{n}, as a mean in the place of the sum over the broadcast axes gives"
    for n, place in _lengths(mistake).items():
        powers = {f"sqrt({n})": math.sqrt(n), f"1/sqrt({n})": 1 / math.sqrt(n), str(n): n, f"1/{n}": 1 / n}
        for shown, value in powers.items():
            if _is_near(factor, value, precision):
                return f": perhaps {sign}{shown}, {'which' if shown == str(n) else f'where {n}'} is {place}"
    return ""


def _is_near(factor: float, value: float, precision: float) -> bool:
    return abs(abs(factor) - value) <= precision * value


def _repeated(mistake: Mistake) -> Iterator[int]:
    """How often this input is repeated, as far as the shapes tell: along some or all axes that broadcasting adds.

    Those of the output or another input; or those of the output beside axes of its own lengths, as for a bias of the
    channels, (3,), of an output (2, 3, 4, 5).
    """
    longest: list[int] = []
    for other in (mistake.output, *mistake.inputs.values()):
        padded = ((1,) * (other.ndim - len(mistake.shape)) + mistake.shape)[-other.ndim or len(mistake.shape) :]
        lengths = [n for mine, n in zip(padded, other.shape, strict=True) if mine == 1 and n > 1]
        longest = max(longest, lengths, key=len)
    yield from map(math.prod, subsets(longest))
    own, shape = [n for n in mistake.shape if n > 1], mistake.output.shape
    for axes in combinations(range(len(shape)), len(own)) if own else ():
        if [shape[axis] for axis in axes] == own:
            yield from map(math.prod, subsets(n for axis, n in enumerate(shape) if axis not in axes and n > 1))


def _lengths(mistake: Mistake) -> dict[int, str]:
    """For every length of an axis, or of several together, where it is found first, last axes before others."""
    outputs = parts_of(mistake.output, mistake.parts) if mistake.parts else {"the output": mistake.output}
    arrays = {**mistake.inputs, **outputs}
    places = {x.shape[-1]: f"the length of the last axis of {name}" for name, x in reversed(arrays.items()) if x.ndim}
    for count in range(1, max(x.ndim for x in arrays.values()) + 1):
        for name, x in arrays.items():
            for axes in combinations(range(x.ndim), count):
                n = math.prod(x.shape[axis] for axis in axes)
                places.setdefault(n, f"the length of {axes_in_words(axes)} of {name}")
    return {n: place for n, place in places.items() if n > 1}
