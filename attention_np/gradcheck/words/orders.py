"""The right entries in the wrong places: swapped with another input's, transposed, reversed, shifted, taken apart.

That many entries equal others, each for three cotangents, does not happen by accident. The orders come from the plain
to the contrived.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.words.reading import Mistake, Reading, axes_in_words, in_words, spread, subsets

FARTHEST = 8  # places, of shifts: more are no slip of an index

Orders = Iterator[tuple[str, Array]]  # what they are called, and for each place in turn where its entry was taken from


def swapped(mistake: Mistake) -> Iterator[Reading]:
    """The gradient of another input, which has this one's, for all three cotangents."""
    for other, (right, claimed) in mistake.others.items():
        if claimed is None or claimed.shape != mistake.right.shape:
            continue
        if np.allclose(claimed, mistake.right, rtol=1e-6):
            said = f"the gradients of {mistake.name} and {other} are swapped: each is the other's"
            yield Reading("swapped", said, right, alone=True)


def another_order(mistake: Mistake) -> Iterator[Reading]:
    """The entries of the numerical gradient in another order."""
    wrong = spread(np.flatnonzero(mistake.wrong), 8)
    claimed, near = mistake.claimed.reshape(3, -1)[:, wrong], 2 * mistake.tolerance.reshape(3, -1).max(axis=1)[:, None]
    for what, order in _orders(mistake):
        few = _taken(mistake.right, order.ravel()[wrong])
        if not (np.abs(claimed - few) <= near + UNDECIDABLE * mistake.precision * np.abs(few)).all():
            continue  # hardly any order is right
        claim, noise = (_taken(x, order) for x in (mistake.right, mistake.noise))
        moved = (np.abs(claim) > mistake.tolerance) & (np.abs(claim - mistake.right) > mistake.tolerance)
        if (moved.any(axis=0) & mistake.looked).sum() >= 2:  # one entry comes from elsewhere in many an order
            known = np.asarray(np.isfinite(claim).all(axis=0))
            yield Reading(what, what, claim, known=known, scale=np.nan_to_num(noise / mistake.noise, nan=1, posinf=1))


def another_order_of_the_cotangent(mistake: Mistake) -> Iterator[Reading]:
    """It is the right gradient for the gradient of the output in another order."""
    if mistake.jacobian is not None and not mistake.parts:
        for what, order in _named(mistake.output.shape):
            said = f"the gradient of the output is taken in another order: {what}"
            yield from mistake.as_of(what, said, _taken(mistake.cotangents, order))


READINGS = ((60, swapped), (61, another_order), (90, another_order_of_the_cotangent))


def _permuted(axes: Sequence[int]) -> str:
    """What has happened to an array whose axes are in the order `axes`."""
    moved = [k for k, axis in enumerate(axes) if axis != k]
    if len(moved) == 2:
        return f"axes {in_words(moved)} are transposed"
    return f"its axes are permuted, to the order {in_words(axes)}"


def _permutations_of(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Those of the axes, without those that only move an axis of length 1."""
    for axes in permutations(range(len(shape))) if len(shape) <= 6 else ():
        long = [axis for axis in axes if shape[axis] > 1]
        if long != sorted(long):
            yield axes


def _taken(several: Array, order: Array) -> Array:
    """Several arrays in another order, with zeros where nothing is taken: there the place is -1."""
    taken = np.where(order.ravel() < 0, 0, several.reshape(len(several), -1)[:, order.ravel()])
    return taken.reshape(len(several), *order.shape)


def _named(shape: tuple[int, ...]) -> Orders:
    """The orders of an array of `shape` that have a name."""
    places = np.arange(math.prod(shape)).reshape(shape)
    for axes in _permutations_of(shape):
        if places.transpose(axes).shape == shape:
            yield _permuted(axes), places.transpose(axes)
    for axes in subsets(axis for axis, length in enumerate(shape) if length > 1):
        yield f"{axes_in_words(axes)} {'is' if len(axes) == 1 else 'are'} reversed", np.flip(places, axes)
    for axis, length in enumerate(shape):
        farthest, index = min(length // 2, FARTHEST), np.arange(length).reshape(-1, *[1] * (len(shape) - axis - 1))
        for shift in sorted((k for k in range(-farthest, farthest + 1) if k and 2 * k != -length), key=abs):
            around, beyond = np.roll(places, shift, axis), (index < shift) | (index >= length + shift)
            what = f"it is shifted by {shift} along axis {axis}"
            yield f"{what}, around the end", around
            yield f"{what}, with zeros from beyond the end", np.where(beyond, -1, around)


def _orders(mistake: Mistake) -> Orders:
    """Those; and what comes of it when an axis is split in two, as into heads, or none, and axes are permuted then."""
    places = np.arange(math.prod(mistake.shape)).reshape(mistake.shape)
    yield from _named(mistake.shape)
    lengths: tuple[int, ...] = places.shape if places.size <= 50_000 else ()
    split = (
        (*places.shape[:axis], parts, length // parts, *places.shape[axis + 1 :])
        for axis, length in enumerate(lengths)
        for parts in range(2, length)
        if length % parts == 0
    )
    for shape in (places.shape, *split):
        for axes in _permutations_of(shape):
            order = f"its axes are permuted to the order {in_words(axes)} before it is reshaped to {places.shape}"
            what = f"a reshape stands where a transpose belongs, or the other way round: as {shape}, {order}"
            yield what, places.reshape(shape).transpose(axes).reshape(places.shape)
