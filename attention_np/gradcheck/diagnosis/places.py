"""Wrong only in some places, and how such places are put in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attention_np.gradcheck.diagnosis.factors import is_zero, times_the_gradient
from attention_np.gradcheck.diagnosis.mistake import Array, Mistake, in_words, number

__all__ = ["leak", "name_of", "simply_wrong_in_places", "simply_wrong_somewhere", "wrong_in_places"]

BY_ACCIDENT = math.log(1e-2)  # the logarithm of the chance at which places are no evidence
SEVERAL = 4  # right entries, beside which a wrong one stands out
DIAGONALS: dict[str, Callable[[Array], Array]] = {  # of the last two axes, by column - row
    "on the diagonal": lambda offset: offset == 0,
    "above the diagonal": lambda offset: offset > 0,
    "below the diagonal": lambda offset: offset < 0,
    "on and above the diagonal": lambda offset: offset >= 0,
    "on and below the diagonal": lambda offset: offset <= 0,
    "off the diagonal": lambda offset: offset != 0,
}
SIDES: dict[str, Callable[[Array], Array]] = {  # of a kink at zero or one
    "{} is negative": lambda x: x < 0,
    "{} is positive": lambda x: x > 0,
    "{} is not positive": lambda x: x <= 0,
    "{} is not negative": lambda x: x >= 0,
    "{} is larger than 1": lambda x: x > 1,
    "{} is smaller than -1": lambda x: x < -1,
    "|{}| is larger than 1": lambda x: np.abs(x) > 1,
}


class Place(NamedTuple):
    """Where the wrong entries are."""

    text: str
    chance: float  # the logarithm of how likely as many wrong entries strewn at random make a place with a name


class Indices(NamedTuple):
    """Some of the indices of an axis."""

    text: str
    alike: float  # how many sets of as many indices have a name that is no longer


def leak(mistake: Mistake) -> str | None:
    """Wrong where the numerical gradient is exactly zero, and right wherever it is not.

    That is evidence if all those are wrong, or if as many entries strewn at random would hardly ever be among them.
    """
    zeros = (mistake.right == 0).all(axis=0) & mistake.looked_at
    if (mistake.wrong & ~zeros).any():
        return None
    wrong, count, entries = (int(x.sum()) for x in (mistake.wrong, zeros, mistake.looked_at))
    by_chance = _log_choices(count, wrong) - _log_choices(entries, wrong)
    if by_chance > (BY_ACCIDENT if wrong < count else math.log(0.1)):
        return None
    place = where_wrong(mistake)
    where = f", {place.text}" if place is not None and place.chance <= BY_ACCIDENT else ""
    some = "the only such entry" if count == 1 else f"{'all' if wrong == count else f'{wrong} of'} {count} such entries"
    at_zero = (np.asarray(mistake.evidence.inputs[mistake.name]) == 0)[mistake.wrong].any()  # where x^2 is flat, too
    mask = "" if at_zero else ": is a mask forgotten?"
    return f"it is not zero where the numerical gradient is, in {some}{where}{mask}"


def simply_wrong_in_places(mistake: Mistake) -> str | None:
    """Wrong only in places that have a name, such as an index of an axis, and by something simple there.

    All entries outside are right, and one simple thing explains all that are inside.
    """
    place, inside = where_wrong(mistake), _inside(mistake.among(mistake.wrong))
    if inside is None:
        return None
    if place is not None:
        return f"{_only(mistake, place)}, where it is {inside}"
    right = mistake.looked_at & ~mistake.wrong & ~mistake.neutral
    place = name_of(right, mistake.wrong, mistake.evidence.constants) if right.any() else None
    return None if place is None or place.chance > BY_ACCIDENT else f"right only {place.text}; elsewhere it is {inside}"


def wrong_in_places(mistake: Mistake) -> str | None:
    """Wrong only in places that have a name.

    All entries outside are right, all inside wrong, and as many wrong entries strewn at random would hardly ever do so.
    A single entry has a place anyhow, if it is wrong by so much that errors of others would show, too.
    """
    place = where_wrong(mistake)
    if place is None or (place.chance > BY_ACCIDENT and not _is_a_single_entry(mistake)):
        return None
    return _only(mistake, place)


def simply_wrong_somewhere(mistake: Mistake) -> str | None:
    """Wrong in places without a name, as on one side of other numbers than zero, and by something simple there."""
    wrong, count = int(mistake.wrong.sum()), int(mistake.looked_at.sum())
    inside = _inside(mistake.among(mistake.wrong)) if 1 < wrong < count else None
    return None if inside is None else f"wrong in {wrong} of {count} entries, where it is {inside}"


def _is_a_single_entry(mistake: Mistake) -> bool:
    """Whether one of several entries is wrong, and beyond all noise."""
    others = mistake.looked_at & ~mistake.wrong
    return bool(
        mistake.wrong.sum() == 1
        and others.sum() >= SEVERAL
        and (np.abs(mistake.error) > 100 * mistake.tolerance)[:, mistake.wrong].any()
    )


def _only(mistake: Mistake, place: Place) -> str:
    return f"wrong only {place.text}{'' if mistake.looked_at.all() else ' (of the entries that were looked at)'}"


def _inside(mistake: Mistake) -> str | None:
    """What the gradient is in the entries that were looked at, if that is simple."""
    if is_zero(mistake):
        return "zero"
    factor = times_the_gradient(mistake)
    if factor is not None:
        return factor
    values = mistake.claimed[:, mistake.looked_at]
    if not mistake.right[:, mistake.looked_at].any():
        return "to be zero"
    least = float(values.min())
    return f"{number(least)} whatever the cotangent" if least == values.max() else None


def where_wrong(mistake: Mistake) -> Place | None:
    """The name of the places that are wrong, if all others are right."""
    right = mistake.looked_at & ~mistake.wrong & ~mistake.neutral
    if not right.any():
        return None
    found = name_of(mistake.wrong, right, mistake.evidence.constants), _by_value(mistake, right)
    return min((place for place in found if place is not None), key=lambda place: place.chance, default=None)


def name_of(some: Array, others: Array, constants: Mapping[str, float]) -> Place | None:
    """The name of the places of `some` entries that has none of the `others` in it; both are boolean."""
    strewn = _log_choices(int((some | others).sum()), int(some.sum()))
    return _box(some, others, strewn, constants) or _diagonal(some, others, strewn)


def _by_value(mistake: Mistake, right: Array) -> Place | None:
    """Where the input is on one side of zero, or beyond one, as beside a kink; one entry is called by its index."""
    if mistake.wrong.sum() == 1:
        return None
    x, name = np.asarray(mistake.evidence.inputs[mistake.name]), mistake.name
    strewn = _log_choices(int((mistake.wrong | right).sum()), int(mistake.wrong.sum()))
    for text, side in SIDES.items():
        if not (mistake.wrong & ~side(x)).any() and not (right & side(x)).any():
            return Place(f"where {text.format(name)}", math.log(len(SIDES)) - strewn)
    return None


def _log_choices(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _box(some: Array, others: Array, strewn: float, numbers: Mapping[str, float]) -> Place | None:
    """Certain indices of one axis, and of other axes as far as they are needed."""
    shape = some.shape
    used = {axis: _projected(some | others, axis) for axis in range(some.ndim)}
    bad = {axis: _projected(some, axis) for axis in used}
    limited = list(used)
    if (_within(bad, limited, shape) & others).any():
        return None
    for axis in used:
        fewer = [k for k in limited if k != axis]
        if not (_within(bad, fewer, shape) & others).any():
            limited = fewer
    constants = {name: int(value) for name, value in numbers.items() if 1 < value == value // 1}
    names = []
    for axis in limited:
        inside, all_of_them = np.flatnonzero(bad[axis]).tolist(), np.flatnonzero(used[axis]).tolist()
        indices = _indices(inside, all_of_them, axis, shape[axis], constants)
        if indices is None:
            return None
        names.append(indices)
    # Two axes at once take more to believe.
    chance = sum(math.log(10 * indices.alike) for indices in names) - math.log(10) - strewn
    single = [int(bad[axis].argmax()) for axis in limited if bad[axis].sum() == 1]
    if len(single) == len(shape) > 1:
        return Place(f"at one entry, {single}", chance)
    if len(names) > 1 and chance > BY_ACCIDENT:
        return None  # entries that are few have some indices in any case
    return Place(" and ".join(indices.text for indices in names), chance)


def _projected(entries: Array, axis: int) -> Array:
    """Which indices of `axis` some of the entries have."""
    some: Array = np.any(entries, axis=tuple(k for k in range(entries.ndim) if k != axis))
    return some


def _within(bad: Mapping[int, Array], axes: Sequence[int], shape: tuple[int, ...]) -> Array:
    """All entries whose indices of each of `axes` are `bad` ones."""
    box = np.zeros(shape, bool)
    box[np.ix_(*(bad[k] if k in axes else np.ones(n, bool) for k, n in enumerate(shape)))] = True
    return box


def _indices(
    bad: Sequence[int], used: Sequence[int], axis: int, length: int, constants: Mapping[str, int]
) -> Indices | None:
    first, last = bad[0], bad[-1]
    if len(bad) == 1:
        return Indices(f"at index {first} of axis {axis}", len(used))
    step = bad[1] - bad[0]
    if list(bad) == [k for k in used if first <= k <= last]:
        return _range(first, last, used, axis, length, constants)
    regular = list(bad) == [k for k in used if k >= first and (k - first) % step == 0]
    if len(bad) >= 3 and regular and first < step:
        every = "second" if step == 2 else "third" if step == 3 else f"{step}th"
        return Indices(f"at every {every} index of axis {axis}, from {first} on", len(used) + step)
    if len(bad) <= 4:
        return Indices(f"at the indices {in_words(bad)} of axis {axis}", math.exp(_log_choices(len(used), len(bad))))
    return None


def _range(first: int, last: int, used: Sequence[int], axis: int, length: int, constants: Mapping[str, int]) -> Indices:
    block = _block(first, last, length, constants)
    if last == used[-1]:
        return Indices(f"from index {first} of axis {axis} on (of {length}{block})", 2)
    if first == used[0]:
        return Indices(f"up to index {last} of axis {axis} (of {length}{block})", 2)
    return Indices(f"from index {first} to {last} of axis {axis} (of {length}{block})", len(used))


def _block(first: int, last: int, length: int, constants: Mapping[str, int]) -> str:
    """Which head, or which block, a range is, if it is one."""
    for name, n in constants.items():
        size = length // n
        if length % n == 0 and first % size == 0 and last == first + size - 1:
            return f": number {first // size}, counted from 0, of the {n} parts that {name} makes"
        if first % n == 0 and last == length - 1 and length - first < n:
            return f": the last, partial block of {name}={n}"
    return ""


def _diagonal(some: Array, others: Array, strewn: float) -> Place | None:
    """On one side of the diagonal of the last two axes."""
    if some.ndim < 2:
        return None
    rows, columns = some.shape[-2:]
    offset = np.arange(columns) - np.arange(rows)[:, np.newaxis]
    for text, side in DIAGONALS.items():
        inside = np.broadcast_to(side(offset), some.shape)
        if not (some & ~inside).any() and not (others & inside).any():
            return Place(f"{text} of the last two axes", math.log(len(DIAGONALS)) - strewn)
    return None
