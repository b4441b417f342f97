"""What becomes of the gradient of the output: parts of it left out, or used otherwise than they should be.

With what each entry does to each output, J, the right gradient for a cotangent u is J^T u. What is claimed may be the
same of a part of J.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.problem.nests import parts_of
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.verdict.judging import GROSS
from attention_np.gradcheck.words.places import name_of
from attention_np.gradcheck.words.reading import Mistake, Reading, axes_in_words, number, subsets

LAST = ": does = stand in the place of +=?"  # said where only one of several terms counts


def same_whatever_the_cotangent(mistake: Mistake) -> Iterator[Reading]:
    """Equal for all three, and not zero. One entry is evidence only if it is so exactly."""
    same = np.stack(3 * [mistake.claimed[0]])
    exactly = bool(((mistake.claimed == same) | ~mistake.looked).all())
    if (np.abs(mistake.at_zero) > mistake.tolerance[0]).any():
        ones = mistake.as_of("", "", np.ones_like(mistake.cotangents))
        of_a_sum = any(mistake.is_explained_by(reading) for reading in ones)
        why = ", as if the loss were a plain sum of the output" if of_a_sum else ""
        yield Reading("same", f"it is the same whatever the cotangent{why}", same, entries=1 if exactly else 2)


def part_of_the_slopes(mistake: Mistake) -> Iterator[Reading]:
    """It is the gradient of some of the paths from the entries to the outputs, or of those the other way round."""
    slopes, u, shape = mistake.jacobian, mistake.cotangents, mistake.output.shape
    if slopes is None or u.ndim == 1 or mistake.parts:
        return
    if shape == mistake.shape and mistake.looked.all():
        said = (
            "it is the derivative times the gradient of the output, and not the transposed derivative: "
            "a transpose is missing, or the reverse of an order"
        )
        yield from mistake.as_of("transposed", said, u, slopes.T)
    effect = np.abs(slopes) > GROSS * np.abs(slopes).max(axis=0)
    for what, paths in (*_paths(mistake), *_one_of_several(effect, shape)):
        yield from mistake.as_of(what, what, u, np.where(paths, slopes, 0))


def left_out(mistake: Mistake) -> Iterator[Reading]:
    """All paths from the entries to the outputs are right, but for some that are left out, or count several times."""
    slopes, claims = mistake.jacobian, mistake.claimed_jacobian
    if slopes is None or claims is None:
        return
    largest, known = np.abs(slopes).max(axis=0), max(GROSS, UNDECIDABLE * mistake.precision)
    told = np.abs(slopes) > known * largest
    wrong = told & (np.abs(claims - slopes) > known * np.maximum(np.abs(claims), largest))
    if not wrong.any():
        return
    relative, whole = (claims / largest)[wrong], (slopes / largest)[wrong]
    times = float(relative @ whole / np.square(whole).sum())
    times = round(2 * times) / 2 if abs(2 * times - round(2 * times)) <= 2 * known else times
    other, right = (paths.any(axis=1).reshape(mistake.output.shape) for paths in (wrong, told & ~wrong))
    if not other.all():
        parts = mistake.parts or (("the output", mistake.output.shape),)
        pairs = zip(parts_of(other.ravel(), parts).items(), parts_of(right.ravel(), parts).values(), strict=True)
        said = [_left_out(path, some, kept, times) for (path, some), kept in pairs if some.any()]
        u = np.where(other, times, 1) * mistake.cotangents
        yield from mistake.as_of("outputs", "; ".join(said), u, numbers=(times,))


def leak_of_the_cotangent(mistake: Mistake) -> Iterator[Reading]:
    """It is right without what comes in where no entry has an effect on the output, as on the flat side of a ReLU."""
    u, ask = mistake.cotangents, mistake.ask
    if mistake.jacobian is None or ask is None or not ask.is_linear or not mistake.looked.all():
        return
    dead = (mistake.jacobian == 0).all(axis=1).reshape(u.shape[1:])
    if dead.any() and not dead.all():
        said = (
            f"the gradient of the output passes where {mistake.name} has no effect on it, in some or all of "
            f"{dead.sum()} of its {dead.size} entries: is a mask forgotten, as that of a ReLU?"
        )
        yield Reading("leak", said, mistake.right + ask.claims(np.where(dead, u, 0)))


READINGS = ((20, same_whatever_the_cotangent), (70, part_of_the_slopes), (140, left_out), (145, leak_of_the_cotangent))

Paths = Iterator[tuple[str, Array]]  # what they are called, and which of the slopes they are


def _paths(mistake: Mistake) -> Paths:
    """Those to the same index of an axis; those that do not go around the end of one."""
    looked, shape, there = mistake.looked.ravel(), mistake.shape, mistake.output.shape
    entries, outputs = (np.indices(s).reshape(len(s), math.prod(s)) for s in (shape, there))
    if shape == there:
        diagonal = np.eye(looked.size, dtype=bool)[:, looked]
        yield "only the diagonal of the derivative is there: what each entry does to its own output", diagonal
    for axis, other in ((a, b) for a in range(len(shape)) for b in range(len(there)) if shape[a] == there[b] > 1):
        where = f"axis {axis}" if axis == other else f"axis {axis} of {mistake.name} and axis {other} of the output"
        distance = np.abs(outputs[other][:, np.newaxis] - entries[axis][looked])
        yield f"only what each index does to the same index of {where} is there", distance == 0
        yield f"what goes around the end of {where} is missing: is it wrapped?", distance <= shape[axis] / 2


def _one_of_several(effect: Array, shape: tuple[int, ...]) -> Paths:
    """Of the places along some axes of the output on which an entry has an effect, the last or the first alone."""
    effects = effect.reshape(*shape, -1)
    for axes in subsets(range(len(shape))):
        order = (*axes, *(k for k in range(len(shape)) if k not in axes), len(shape))
        moved = effects.transpose(order)
        length = int(np.prod(moved.shape[: len(axes)]))
        touched = moved.reshape(length, -1, moved.shape[-1]).any(axis=1)  # (places, entries)
        rows = (moved.any(axis=tuple({*range(len(shape))} - {k})).sum(axis=0) for k in range(len(axes)))
        if any((row <= 1).all() for row in rows):
            continue  # along some axis each entry has one place alone
        for what, place in (("last", length - 1 - touched[::-1].argmax(axis=0)), ("first", touched.argmax(axis=0))):
            if np.ptp(place[touched.any(axis=0)]) == 0:
                continue  # it is the same for all: a slice
            one = np.arange(length)[:, np.newaxis] == place
            spread = one.reshape(*moved.shape[: len(axes)], *[1] * (len(shape) - len(axes)), -1)
            paths = np.broadcast_to(spread, moved.shape).transpose(np.argsort(order)).reshape(effect.shape)
            yield (
                f"of all that an entry does along {axes_in_words(axes)} of the output only the {what} counts{LAST}",
                paths,
            )


def _left_out(output: str, other: Array, right: Array, times: float) -> str:
    """In words, that of an output some entries count otherwise."""
    done = "left out" if times == 0 else f"used {number(times, precision=GROSS)} times"
    if not right.any():
        return f"the gradient of {output} is {done}"
    lost, kept = (name_of(some, others) for some, others in ((other, right), (right, other)))
    if times == 0 and kept is not None and (lost is None or 2 * other.sum() > other.size):
        last = right.flat[-1] and right.sum() * max(other.shape) == other.size
        return f"the gradient of {output} is used only {kept.text}{', the last' + LAST if last else ''}"
    if lost is not None:
        return f"the gradient of {output} is {done} {lost.text}"
    least = "" if (other | right).all() else "at least "
    return f"the gradient of {output} is {done} in {least}{other.sum()} of {other.size} entries"
