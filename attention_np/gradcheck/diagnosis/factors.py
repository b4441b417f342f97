"""A constant factor, and what it is called."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np

from attention_np.gradcheck.agreement import UNDECIDABLE
from attention_np.gradcheck.diagnosis.mistake import EPS, Array, Mistake, in_words, number

__all__ = ["constant_factor", "factor_along_an_axis", "is_zero", "times_the_gradient", "zero"]

USUAL_DROPOUT = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
COMMON = (2.0, 0.5, 1.0)  # and their negatives: what a factor may be that one entry alone tells
NAMEABLE = 1e-3  # a factor that is known less well could have many a name
LISTED = 3  # so many things that a factor may be are listed
TELLING = 1.0  # an entry tells a factor if the noise leaves it at least so precise


Readings = Iterator[tuple[float, str, str]]  # a number, how it comes about, and what is in it


class Factor(NamedTuple):
    """The claimed gradient as a multiple of the numerical one."""

    value: float
    precision: float  # relative
    entries: int  # how many agree on it

    @property
    def is_common(self) -> bool:
        """Whether it is one that a slip of the pen explains."""
        off = min(abs(abs(self.value) / common - 1) for common in COMMON)
        return off <= min(max(self.precision, 1e-12), 0.02)

    @property
    def is_no_accident(self) -> bool:
        """Whether a single ratio is evidence: it is common, or as round as hardly any number is by chance."""
        return self.is_common or (self.precision <= 1e-8 and _are_round(np.array(self.value), self.precision))


def zero(mistake: Mistake) -> str | None:
    """Zero throughout. No estimate is involved, so one entry is evidence enough."""
    if not is_zero(mistake):
        return None
    return f"it is zero throughout{', but for rounding' if mistake.claimed[:, mistake.looked_at].any() else ''}"


def is_zero(mistake: Mistake) -> bool:
    """Whether the claimed gradient is zero, and the numerical one is evidently not."""
    return mistake.is_explained_by(0 * mistake.right)


def constant_factor(mistake: Mistake) -> str | None:
    """A constant factor: one number explains every entry for every cotangent."""
    factor = _factor(mistake)
    if factor is None:
        return None
    return f"it is {_shown(factor)} times the numerical gradient throughout{_name(mistake, factor)}"


def times_the_gradient(mistake: Mistake) -> str | None:
    """The same as part of a sentence: "2 times the numerical gradient".

    Of some entries only. If that is one, then where it depends on one cotangent any two of its values have some ratio.
    """
    factor = _factor(mistake)
    if factor is None:
        return None
    name = _name(mistake, factor)
    if factor.entries < 2 and not factor.is_no_accident and (not name or "perhaps" in name):
        return None
    return f"{_shown(factor)} times the numerical gradient{name}"


def factor_along_an_axis(mistake: Mistake) -> str | None:
    """A factor of its own for each index of an axis. Two of them at least must each explain two wrong entries."""
    for axis, length in enumerate(mistake.shape):
        others = tuple(k for k in range(mistake.claimed.ndim) if k != axis + 1)
        factors = _fit(mistake, others)
        if length < 2 or not mistake.is_explained_by(factors * mistake.right, np.abs(factors)):
            continue
        telling = np.any(mistake.allowed(factors * mistake.right) / np.abs(mistake.right) <= TELLING, axis=0)
        outside = tuple(k - 1 for k in others if k)
        entries, wrong = telling.sum(axis=outside), (telling & mistake.wrong).sum(axis=outside)
        known = factors.ravel()[entries > 0]
        if (wrong >= 2).sum() >= 2:
            low, high = float(known.min()), float(known.max())
            return f"each index of axis {axis} has its own factor, {number(low, 4)} to {number(high, 4)}"
    return None


def _fit(mistake: Mistake, axes: tuple[int, ...] | None = None) -> Array:
    """The factors that fit best, in units of the noise, with `axes`, by default all, as axes of length 1."""
    noise = np.where(mistake.noise > 0, mistake.noise, np.inf)  # that of the smallest numbers is lost
    claimed, right = mistake.claimed / noise, mistake.right / noise
    fit: Array = np.nansum(claimed * right, axis=axes, keepdims=True) / np.nansum(right**2, axis=axes, keepdims=True)
    return fit


def _factor(mistake: Mistake) -> Factor | None:
    value = float(_fit(mistake).item())
    other = value * mistake.right
    if not mistake.is_explained_by(other, abs(value)):
        return None
    off = mistake.allowed(other, abs(value)) / np.abs(other)
    telling = off <= TELLING
    # With a single output the gradient for one cotangent is a multiple of that for any other, be it right or wrong.
    one_output = mistake.evidence.output.size == 1
    entries = int(telling.any(axis=0).sum())
    ratios = entries if one_output else int(telling.sum())
    if not ratios:
        return None
    precision = max(2 * float(off[telling].min()) / UNDECIDABLE, EPS)
    factor = Factor(value, precision, entries)
    if ratios >= (3 if one_output else 2):
        return factor
    # Round numbers in make round numbers out, of any formula; but hardly ever -1.
    plain = all(_are_round(x, EPS) for x in mistake.evidence.inputs.values())
    return factor if factor.is_no_accident and (not plain or _shown(factor) == "-1") else None


def _are_round(x: Array, precision: float) -> bool:
    """Whether all have at most three significant digits."""
    x = np.asarray(x, np.float64)
    unit = 10.0 ** (np.floor(np.log10(np.where(x == 0, 1, np.abs(x)))) - 2)
    return bool((np.abs(x - np.round(x / unit) * unit) <= 4 * precision * np.abs(x)).all())


def _shown(factor: Factor) -> str:
    if factor.is_common:
        return number(round(2 * factor.value) / 2)
    return number(factor.value, min(9, max(2, int(-math.log10(factor.precision)))))


def _name(mistake: Mistake, factor: Factor) -> str:
    """What the number may be, if anything: ": sqrt(8), where 8 is the length of the last axis of query and key"."""
    means = _that_fit(mistake, factor, _means(mistake))
    lengths = [reading for reading in _that_fit(mistake, factor, _lengths(mistake)) if reading[0] not in dict(means)]
    likely = means + lengths or _that_fit(mistake, factor, _products(mistake))
    if likely:
        return _in_a_sentence(factor, likely)
    ratios = _that_fit(mistake, factor, _degrees(mistake))
    ratios += _that_fit(mistake, factor, _ratios(mistake))[:1]  # of some two lengths, many a number is the ratio
    others = ratios + _that_fit(mistake, factor, _dropouts(mistake, factor))
    listed = "; or ".join(f"{expression}, {meaning}" for expression, meaning in others)
    return f": {'perhaps ' if ratios else ''}{listed}" if others else ""


def _that_fit(mistake: Mistake, factor: Factor, readings: Readings) -> list[tuple[str, str]]:
    """Those whose number the factor is, the likelier ones first."""
    inputs = mistake.evidence.inputs.values()
    if factor.precision > NAMEABLE or all(x.size and (x == x.flat[0]).all() for x in inputs):
        return []  # of equal numbers, any formula makes a constant factor
    size, sign = abs(factor.value), "-" if factor.value < 0 else ""
    found: dict[str, list[str]] = {}
    for value, expression, meaning in readings:
        if abs(size - value) <= max(3 * factor.precision, 1e-12) * value and value != 1:
            found.setdefault(sign + expression, []).append(meaning)
    fitting = [(expression, in_words(list(dict.fromkeys(meanings)))) for expression, meanings in found.items()]
    return sorted(fitting, key=lambda reading: _rank(*reading))


def _rank(expression: str, meaning: str) -> int:
    """First a number of the call, then the root of the length of a last axis, as of scores, then a length."""
    if "length of" not in meaning:
        return 0
    return 3 - 2 * ("sqrt" in expression) - ("last axis" in meaning)


def _in_a_sentence(factor: Factor, readings: list[tuple[str, str]]) -> str:
    shown = _shown(factor)
    if len(readings) == 1 and readings[0][0] == shown:
        return f", and {readings[0][1].removeprefix('where ')}"
    parts = [
        f"{expression}, {meaning.replace(f'where {shown} is', 'which is', 1) if expression == shown else meaning}"
        for expression, meaning in readings[:LISTED]
    ]
    listed = "; or ".join(parts)
    if factor.is_common:
        return f" (also {listed})"
    return f": {'perhaps ' if len(parts) > 1 else ''}{listed}"


def _powers(value: float, shown: str, meaning: str) -> Readings:
    yield value, shown, meaning
    yield 1 / value, f"1/({shown})" if re.search("[ /]", shown) else f"1/{shown}", meaning
    yield math.sqrt(value), f"sqrt({shown})", meaning
    yield 1 / math.sqrt(value), f"1/sqrt({shown})", meaning


def _means(mistake: Mistake) -> Readings:
    """1/N, where the input is repeated along axes of lengths whose product is N."""
    seen: set[tuple[int, ...]] = set()
    for lengths in _repeated(mistake):
        for count in range(1, len(lengths) + 1):
            seen.update(combinations(sorted(lengths), count))
    for some in sorted(seen, key=len):
        n = math.prod(some)
        axes = "axis of length" if len(some) == 1 else "axes of lengths"
        yield 1 / n, f"1/{n}", f"as a mean in the place of the sum over the broadcast {axes} {in_words(some)} gives"


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
    yield longest
    own, shape = [n for n in mistake.shape if n > 1], mistake.evidence.output.shape
    for axes in combinations(range(len(shape)), len(own)) if own else ():
        if [shape[axis] for axis in axes] == own:
            yield [n for axis, n in enumerate(shape) if axis not in axes and n > 1]


def _lengths(mistake: Mistake) -> Readings:
    """A length of an axis, or a number that the function was called with."""
    for length, places in _places(mistake).items():
        yield from _powers(length, str(length), f"where {length} is {places}")
    for name, value in _constants(mistake).items():
        shown = number(value, 6)
        yield from _powers(abs(value), number(abs(value), 6), f"where {shown} is {name}")
        if 0 < value < 1:
            yield from _powers(1 - value, f"1 - {shown}", f"where {shown} is {name}")


def _products(mistake: Mistake) -> Readings:
    """The features of a head; the number of entries of an array."""
    for name, parts in _constants(mistake).items():
        for length, places in _places(mistake).items():
            if parts > 1 and length % parts == 0:
                meaning = f"where {length} is {places} and {parts:g} is {name}"
                yield from _powers(length / parts, f"{length}/{parts:g}", meaning)
    alike: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name, x in _arrays(mistake).items():
        for start, stop in combinations(range(x.ndim + 1), 2):
            lengths = x.shape[start:stop]
            if min(lengths) > 1:
                alike.setdefault((start, lengths), []).append(name)
    for (start, lengths), names in alike.items():
        n, last = math.prod(lengths), start + len(lengths) - 1
        product = " * ".join(map(str, lengths))
        meaning = f"where {n} = {product} is the length of axes {start} to {last} of {_some(names)}"
        yield from _powers(n, str(n), meaning)


def _degrees(mistake: Mistake) -> Readings:
    """A length less one taken for the length, or the other way round."""
    for n, places in _places(mistake).items():
        for value, shown in ((1 - 1 / n, f"{n - 1}/{n}"), (n / (n - 1), f"{n}/{n - 1}")):
            yield value, shown, f"as of a variance, with n - 1 or n, where n = {n} is {places}"


def _ratios(mistake: Mistake) -> Readings:
    """One length taken for another."""
    places = _places(mistake)
    for a, b in combinations(places, 2):
        for n, m in ((a, b), (b, a)):
            meaning = f"where {n} is {places[n]} and {m} is {places[m]}"
            yield n / m, f"{n}/{m}", meaning
            yield math.sqrt(n / m), f"sqrt({n}/{m})", meaning


def _dropouts(mistake: Mistake, factor: Factor) -> Readings:
    """Where nothing is known of the numbers that the function was called with, dropout with a usual probability."""
    if not mistake.evidence.constants and not factor.is_common:
        for p in USUAL_DROPOUT:
            meaning = f"as for a dropout probability of {p:g}"
            yield 1 - p, f"1 - {p:g}", meaning
            yield 1 / (1 - p), f"1/(1 - {p:g})", meaning


def _constants(mistake: Mistake) -> Mapping[str, float]:
    values = {name: float(value) for name, value in mistake.evidence.constants.items()}
    return {name: value for name, value in values.items() if math.isfinite(value) and value != 0}


def _arrays(mistake: Mistake) -> dict[str, Array]:
    return {**mistake.evidence.inputs, "the output": mistake.evidence.output}


def _places(mistake: Mistake) -> dict[int, str]:
    """For every length of an axis, where it is found: "the length of the last axis of query and key"."""
    found: dict[int, list[tuple[str, int]]] = {}
    for name, x in _arrays(mistake).items():
        for axis, length in enumerate(x.shape):
            if length > 1:
                found.setdefault(length, []).append((name, axis))
    return {length: f"the length of {_which(mistake, places)}" for length, places in found.items()}


def _which(mistake: Mistake, places: list[tuple[str, int]]) -> str:
    names = list(dict.fromkeys(name for name, _ in places))
    axes = {axis for _, axis in places}
    if all(axis == _arrays(mistake)[name].ndim - 1 for name, axis in places):
        which = "the last axis"
    elif len(axes) == 1:
        which = f"axis {axes.pop()}"
    else:
        which = "an axis"
    return f"{which} of {_some(names)}"


def _some(names: list[str]) -> str:
    return in_words([*names[:3], "others"] if len(names) > 4 else names)
