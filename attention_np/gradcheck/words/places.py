"""Wrong only in some places, and how such places are put in words.

That entries which are wrong have a place with a name is evidence if as many, strewn at random, hardly ever had one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.words.factors import factor_in_words, factor_of
from attention_np.gradcheck.words.reading import CLEARLY, ENOUGH, Mistake, Reading, in_words

BY_ACCIDENT = math.log(1e-2)  # the logarithm of the chance at which places are no evidence
SIDES: dict[str, Callable[[Array], Array]] = {  # of a kink at zero
    "{} is negative": lambda x: x < 0,
    "{} is positive": lambda x: x > 0,
    "{} is not positive": lambda x: x <= 0,
    "{} is not negative": lambda x: x >= 0,
}


class Place(NamedTuple):
    """Where entries are."""

    text: str
    chance: float  # the logarithm of how likely as many entries strewn at random make a place with a name


def leak(mistake: Mistake) -> Iterator[Reading]:
    """Wrong where the numerical gradient is exactly zero, and right wherever it is not."""
    zeros = (mistake.right == 0).all(axis=0) & mistake.looked
    wrong, count, entries = (int(x.sum()) for x in (mistake.wrong, zeros, mistake.looked))
    by_chance = _log_choices(count, wrong) - _log_choices(entries, wrong) if wrong <= count else 0.0
    if (mistake.wrong & ~zeros).any() or by_chance > (BY_ACCIDENT if wrong < count else math.log(0.1)):
        return
    place = _where_wrong(mistake)
    where = f", {place.text}" if place is not None and place.chance <= BY_ACCIDENT else ""
    some = "the only such entry" if count == 1 else f"{'all' if wrong == count else f'{wrong} of'} {count} such entries"
    mask = "" if (mistake.x == 0)[mistake.wrong].any() else ": is a mask forgotten?"  # where x^2 is flat, too
    said = f"it is not zero where the numerical gradient is, in {some}{where}{mask}"
    yield Reading("leak", said, np.where(mistake.wrong, mistake.claimed, mistake.right))


def wrong_by_something_simple(mistake: Mistake) -> Iterator[Reading]:
    """Wrong only in places that have a name, and by something simple there."""
    inside = _inside(mistake)
    if inside is None:
        return
    what, claim, *numbers = inside
    claim, place = np.where(mistake.wrong, claim, mistake.right), _where_wrong(mistake)
    if place is not None:
        yield Reading(f"simply {place.text}", f"{_only(mistake, place)}, where it is {what}", claim, tuple(numbers))


def wrong_in_places(mistake: Mistake) -> Iterator[Reading]:
    """Wrong only in places that have a name, in any way.

    A single entry has a place anyhow, if it is wrong by so much that errors of others would show, too.
    """
    place, others = _where_wrong(mistake), mistake.looked & ~mistake.wrong
    stands_out = (np.abs(mistake.error) > CLEARLY * mistake.tolerance)[:, mistake.wrong].any()
    single = mistake.wrong.sum() == 1 and others.sum() > ENOUGH and stands_out
    if place is not None and (place.chance <= BY_ACCIDENT or single):
        yield Reading(place.text, _only(mistake, place), np.where(mistake.wrong, mistake.claimed, mistake.right))


READINGS = ((10, leak), (130, wrong_by_something_simple), (160, wrong_in_places))


def _only(mistake: Mistake, place: Place) -> str:
    return f"wrong only {place.text}{'' if mistake.looked.all() else ' (of the entries that were looked at)'}"


def _inside(mistake: Mistake) -> tuple[Any, ...] | None:
    """What the gradient is in the entries that are wrong, if that is simple; what claim it comes to; and a factor."""
    wrong = mistake.wrong
    values = mistake.claimed[:, wrong]
    if not values.any():
        return "zero", 0 * mistake.right
    factor = factor_of(mistake, wrong)
    if factor is not None and mistake.is_explained_by(
        Reading("", "", factor * mistake.right, scale=abs(factor), known=wrong)
    ):
        return factor_in_words(mistake, wrong, factor), factor * mistake.right, factor
    return None


def _where_wrong(mistake: Mistake) -> Place | None:
    """The name of the places that are wrong, if all others are right."""
    right = mistake.looked & ~mistake.wrong & ~mistake.neutral
    if not right.any():
        return None
    names = name_of(mistake.wrong, right), _by_value(mistake, right)
    return min((place for place in names if place is not None), key=lambda place: place.chance, default=None)


def _by_value(mistake: Mistake, right: Array) -> Place | None:
    """Where the input is on one side of zero, as beside a kink; one entry is called by its index."""
    strewn = _log_choices(int((mistake.wrong | right).sum()), int(mistake.wrong.sum()))
    for text, side in SIDES.items() if mistake.wrong.sum() > 1 else ():
        if (side(mistake.x) == mistake.wrong)[mistake.wrong | right].all():
            return Place(f"where {text.format(mistake.name)}", math.log(len(SIDES)) - strewn)
    return None


def _log_choices(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def name_of(some: Array, others: Array) -> Place | None:
    """The name of the places of `some` entries that has none of the `others` in it; both are boolean.

    It is certain indices of one axis, and of other axes as far as they are needed.
    """
    strewn = _log_choices(int((some | others).sum()), int(some.sum()))
    used, bad = ([_projected(x, axis) for axis in range(some.ndim)] for x in (some | others, some))
    limited = list(range(some.ndim))
    if (_within(bad, limited) & others).any():
        return None
    for axis in range(some.ndim):
        fewer = [k for k in limited if k != axis]
        limited = limited if (_within(bad, fewer) & others).any() else fewer
    named = [_indices(bad[axis], used[axis], axis) for axis in limited]
    names = [place for place in named if place is not None]
    if len(names) < len(named):
        return None
    # Two axes at once take more to believe.
    chance = sum(math.log(10) + place.chance for place in names) - math.log(10) - strewn
    if some.ndim > 1 and some.sum() == 1:
        return Place(f"at one entry, {np.argwhere(some)[0].tolist()}", chance)
    if len(names) > 1 and chance > BY_ACCIDENT:
        return None  # entries that are few have some indices in any case
    return Place(" and ".join(place.text for place in names), chance)


def _projected(entries: Array, axis: int) -> Array:
    """Which indices of `axis` some of the entries have."""
    return np.asarray(np.any(entries, axis=tuple(k for k in range(entries.ndim) if k != axis)))


def _within(bad: Sequence[Array], axes: Sequence[int]) -> Array:
    """All entries whose indices of each of `axes` are `bad` ones."""
    every = np.ix_(*(x if k in axes else np.ones_like(x) for k, x in enumerate(bad)))
    box = np.zeros([len(x) for x in bad], bool)
    box[every] = True
    return box


def _indices(bad: Array, used: Array, axis: int) -> Place | None:
    """Some of the indices of an axis; the chance is how many sets of as many have a name that is no longer."""
    length, some, every = len(bad), np.flatnonzero(bad).tolist(), np.flatnonzero(used).tolist()
    first, last, count = some[0], some[-1], math.log(len(every))
    if len(some) == 1:
        return Place(f"at index {first} of axis {axis}", count)
    if some == [k for k in every if first <= k <= last]:
        at_an_end = first == every[0] or last == every[-1]
        return Place(f"from index {first} to {last} of axis {axis} (of {length})", math.log(2) if at_an_end else count)
    if len(some) <= 4:
        return Place(f"at the indices {in_words(some)} of axis {axis}", _log_choices(len(every), len(some)))
    return None
