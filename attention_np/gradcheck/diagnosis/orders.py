"""The right entries in the wrong places: another input's, transposed, reversed, shifted, in another order.

That many entries equal others, each for three cotangents, does not happen by accident. The first order that fits is
the one that is named, and they come from the plain to the contrived.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np

from attention_np.gradcheck.agreement import UNDECIDABLE
from attention_np.gradcheck.diagnosis.mistake import PROBES, Array, Mistake, axes_in_words, in_words, subsets

__all__ = ["another_order", "named_orders", "of_another_input", "permutations_of", "permuted", "right_in_pairs"]

MOST_ENTRIES = 50_000  # beyond, an axis is not taken apart: there are too many ways to
LONGEST_AXIS = 1000  # beyond, its slices are not compared each with each
LISTED = 12  # so many indices in another order are listed, more are not
MOST_AXES = 6  # beyond, they are not permuted
LEAST = 2  # entries that are neither zero nor what their own place has come from elsewhere: one does in many an order


def of_another_input(mistake: Mistake) -> str | None:
    """The gradient of another input, for all three cotangents."""
    numerical, analytic = mistake.evidence.numerical, mistake.evidence.analytic
    for other, gradient in numerical.items():
        if other == mistake.name or gradient.shape != mistake.claimed.shape or not mistake.is_explained_by(gradient):
            continue
        back = analytic.get(other)
        if back is not None and _equal(back, numerical[mistake.name], max(1e-6, 2 * UNDECIDABLE * mistake.precision)):
            return f"the gradients of {mistake.name} and {other} are swapped: each is the other's"
        if _is_the_cotangent(mistake, gradient):
            continue  # as where a derivative was forgotten, which may be all that the two have in common
        return f"it is the gradient of {other} in the place of its own"
    return None


def right_in_pairs(mistake: Mistake) -> str | None:
    """The entries on both sides of the diagonal of a matrix are right together, and one at least of them is not."""
    if len(mistake.shape) < 2 or mistake.shape[-1] != mistake.shape[-2]:
        return None
    claimed, right = mistake.claimed, mistake.right
    pairs = claimed + (right - claimed + np.swapaxes(right - claimed, -1, -2)) / 2
    transposed = mistake.is_explained_by(np.swapaxes(right, -1, -2))  # too few entries to say so
    if transposed or not mistake.is_explained_by(pairs, in_entries=LEAST):
        return None
    together = np.abs(right + np.swapaxes(right, -1, -2))
    if not (together > mistake.tolerance)[:, mistake.wrong].any():
        return None  # forward does not see what they are together
    why = ""
    for triangle, other in (("lower", np.triu(right, 1)), ("upper", np.tril(right, -1))):
        if not other.any():
            why = f": forward reads the {triangle} triangle alone"
    return (
        f"entries [i, j] and [j, i] of the last two axes are right together, and not each{why}. It is right if "
        f"{mistake.name} is symmetric, and all that moves it keeps it so"
    )


def _is_the_cotangent(mistake: Mistake, gradient: Array) -> bool:
    """Whether a gradient is but the cotangent, or the sum of it over axes that were broadcast."""
    u = mistake.evidence.cotangents
    missing = u.ndim - gradient.ndim
    padded = (1,) * missing + gradient.shape[1:]
    if missing < 0 or any(n not in (1, length) for n, length in zip(padded, u.shape[1:], strict=True)):
        return False
    axes = tuple(k + 1 for k, n in enumerate(padded) if n == 1)
    return _equal(u.sum(axis=axes).reshape(gradient.shape), gradient, max(1e-6, 2 * UNDECIDABLE * mistake.precision))


def _equal(a: Array, b: Array, rtol: float) -> bool:
    known = np.isfinite(a) & np.isfinite(b)
    return bool(known.any() and (np.abs(a - b)[known] <= rtol * np.abs(b[known]).max()).all())


def another_order(mistake: Mistake) -> str | None:
    """The entries of the numerical gradient in another order."""
    return next((what for what, order in _orders(mistake) if _fits(mistake, order.ravel())), None)


def _fits(mistake: Mistake, order: Array) -> bool:
    """Whether the claimed entry at each place is, evidently, the right one of the place that `order` says."""
    found, places = mistake.of_those_looked_at, np.flatnonzero(mistake.looked_at)
    for entries in (np.flatnonzero(found.wrong)[:PROBES], slice(None)):  # some first: hardly any order is right
        source = order[places[entries]]
        right, noise = (np.where(source < 0, 0, x.reshape(3, -1)[:, source]) for x in (mistake.right, mistake.noise))
        spread = np.maximum(np.maximum(found.noise[:, entries], noise), mistake.precision * np.abs(right))
        if (np.abs(found.claimed[:, entries] - right) > UNDECIDABLE * spread).any():  # NaN: not known
            return False
    known = np.all(np.isfinite(right), axis=0, keepdims=True)[0]
    another = (np.abs(right) > found.tolerance) & ~(np.abs(right - found.right) <= found.tolerance)
    elsewhere = known & (source != places) & another.any(axis=0)
    return elsewhere.sum() >= LEAST and found.noisier(np.nan_to_num(noise)).is_explained_by(right, known=known)


Orders = Iterator[tuple[str, Array]]  # what they are called, and for each place in turn where its entry was taken from


def named_orders(shape: tuple[int, ...]) -> Orders:
    """Those of an array of `shape` that have a name; where nothing is taken, the place is -1."""
    places = np.arange(math.prod(shape)).reshape(shape)
    yield from _transposed(places)
    yield from _reversed(places)
    yield from _shifted(places)


def _orders(mistake: Mistake) -> Orders:
    places = np.arange(math.prod(mistake.shape)).reshape(mistake.shape)
    yield from named_orders(mistake.shape)
    listed: list[tuple[str, Array]] = []
    long: list[tuple[str, Array]] = []
    for axis in range(places.ndim):
        order = _match(mistake, axis)
        if order is not None:
            what = _order_in_words(order, axis)
            found = (what or f"the slices along axis {axis} are in another order", np.take(places, order, axis))
            (long if what is None else listed).append(found)
    yield from listed
    yield from _reshaped(places)
    if places.size <= MOST_ENTRIES:
        yield from _taken_apart(places)
    yield from long


def _transposed(places: Array) -> Orders:
    for axes in permutations_of(places.shape):
        if places.transpose(axes).shape == places.shape:
            yield permuted(axes), places.transpose(axes)


def permuted(axes: Sequence[int]) -> str:
    """What has happened to an array whose axes are in the order `axes`."""
    moved = [k for k, axis in enumerate(axes) if axis != k]
    if len(moved) == 2:
        return f"axes {in_words(moved)} are transposed"
    return f"its axes are permuted, to the order {in_words(axes)}"


def permutations_of(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Those of the axes, without those that only move an axis of length 1."""
    for axes in permutations(range(len(shape))) if len(shape) <= MOST_AXES else ():
        long = [axis for axis in axes if shape[axis] > 1]
        if long != sorted(long):
            yield axes


def _reversed(places: Array) -> Orders:
    for axes in subsets(axis for axis, length in enumerate(places.shape) if length > 1):
        yield f"{axes_in_words(axes)} {'is' if len(axes) == 1 else 'are'} reversed", np.flip(places, axes)


def _shifted(places: Array) -> Orders:
    for axis, length in enumerate(places.shape):
        shifts = sorted((k for k in range(-(length // 2), (length + 1) // 2) if k), key=abs)
        for shift in shifts[:LONGEST_AXIS]:
            around = np.roll(places, shift, axis)
            what = f"it is shifted by {shift} along axis {axis}"
            yield f"{what}, around the end", around
            beyond = np.take(np.arange(length), range(shift) if shift > 0 else range(length + shift, length))
            end = np.isin(np.indices(places.shape)[axis], beyond)
            yield f"{what}, with zeros from beyond the end", np.where(end, -1, around)


def _match(mistake: Mistake, axis: int) -> list[int] | None:
    """For each slice of the claimed gradient along `axis`, the slice of the numerical one that it equals."""
    length = mistake.shape[axis]
    if length > LONGEST_AXIS:
        return None
    claimed, right, noise = (
        np.moveaxis(x, axis + 1, 0).reshape(length, -1) for x in (mistake.claimed, mistake.right, mistake.noise)
    )
    probes = np.argsort(-np.abs(claimed).max(axis=0))[:PROBES]
    apart = np.abs(claimed[:, np.newaxis, probes] - right[np.newaxis, :, probes])
    spread = np.maximum(noise[:, np.newaxis, probes], noise[np.newaxis, :, probes])
    spread = np.maximum(spread, mistake.precision * np.abs(right[np.newaxis, :, probes]))
    equal = (apart <= UNDECIDABLE * spread).all(axis=-1)
    order: list[int] = []
    for k in range(length):
        free = [j for j in np.flatnonzero(equal[k]).tolist() if j not in order]
        if not free:
            return None
        order.append(k if k in free else free[0])
    return order


def _order_in_words(order: list[int], axis: int) -> str | None:
    moved = [k for k, source in enumerate(order) if k != source]
    if len(moved) == 2:
        return f"indices {moved[0]} and {moved[1]} of axis {axis} are exchanged"
    for size in sorted((n for n in range(1, len(order)) if len(order) % n == 0), reverse=True):
        blocks = np.array(order).reshape(-1, size)
        if ((blocks - blocks[:, :1] == np.arange(size)) & (blocks[:, :1] % size == 0)).all() and len(blocks) <= LISTED:
            what = "the slices" if size == 1 else f"the blocks of {size}"
            return f"{what} along axis {axis} are in another order: {', '.join(map(str, blocks[:, 0] // size))}"
    return None


def _reshaped(places: Array) -> Orders:
    for axes in permutations_of(places.shape):
        transposed = places.transpose(axes)
        if transposed.shape != places.shape:
            how = f"it is transposed to {transposed.shape} and then reshaped to {places.shape}"
            yield f"{how}: a reshape stands where a transpose belongs", transposed


def _taken_apart(places: Array) -> Orders:
    """As heads are: one axis split in two, the axes transposed, and all reshaped back."""
    for axis, length in enumerate(places.shape):
        for parts in (k for k in range(2, length) if length % k == 0):
            shape = (*places.shape[:axis], parts, length // parts, *places.shape[axis + 1 :])
            whole = places.reshape(shape)
            for axes in permutations_of(shape):
                order = f"its axes are permuted to the order {in_words(axes)} before it is reshaped to {places.shape}"
                what = f"a reshape stands where a transpose belongs, or the other way round: as {shape}, {order}"
                yield what, whole.transpose(axes)
