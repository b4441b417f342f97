"""What becomes of the gradient of the output: parts of it left out, other parts taken, or taken in another order.

With what each entry does to each output, J, the right gradient for a cotangent u is J^T u. What is claimed may be the
same of a part of J, or for another u.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from attention_np.gradcheck.agreement import UNDECIDABLE
from attention_np.gradcheck.diagnosis.mistake import Array, Mistake, axes_in_words, number, subsets
from attention_np.gradcheck.diagnosis.orders import named_orders
from attention_np.gradcheck.diagnosis.places import BY_ACCIDENT, name_of
from attention_np.gradcheck.nesting import apart

__all__ = [
    "another_order_of_the_cotangent",
    "leak_of_the_cotangent",
    "part_of_the_derivative",
    "part_of_the_slopes",
    "passed_on",
    "right_for_some_outputs",
]

KNOWN = 1e-6  # of the largest slope of an entry: how well differences know a path, or that there is none


def part_of_the_slopes(mistake: Mistake) -> str | None:
    """It is the gradient of some of the paths from the entries to the outputs, or of those the other way round."""
    slopes, u = mistake.slopes, mistake.evidence.cotangents
    if slopes is None or u.ndim == 1:
        return None
    if u.shape[1:] == mistake.shape and mistake.looked_at.all() and mistake.is_right_for(u, slopes.T):
        return (
            "it is the derivative times the gradient of the output, and not the transposed derivative: "
            "a transpose is missing, or the reverse of an order"
        )
    for what, paths in _paths(mistake, slopes):
        if mistake.is_right_for(u, np.where(paths, slopes, 0)):
            return what
    return None


Paths = Iterator[tuple[str, Array]]  # what they are called, and which of the slopes they are


def _paths(mistake: Mistake, slopes: Array) -> Paths:
    if mistake.evidence.parts:
        return  # the places of several outputs have no axis in common
    name, shape, there = mistake.name, mistake.shape, mistake.evidence.output.shape
    entries, outputs = (np.indices(s).reshape(len(s), math.prod(s)) for s in (shape, there))
    entries = entries[:, mistake.looked_at.ravel()]
    if shape == there:
        diagonal = np.eye(slopes.shape[0], dtype=bool)[:, mistake.looked_at.ravel()]
        yield "only the diagonal of the derivative is there: what each entry does to its own output", diagonal
    for axis, other in ((a, b) for a in range(len(shape)) for b in range(len(there)) if shape[a] == there[b] > 1):
        where = f"axis {axis}" if axis == other else f"axis {axis} of {name} and axis {other} of the output"
        apart = np.abs(outputs[other][:, np.newaxis] - entries[axis])
        yield f"only what each index does to the same index of {where} is there", apart == 0
        yield f"what goes around the end of {where} is missing: is it wrapped?", apart <= shape[axis] / 2
    effect = np.abs(slopes) > KNOWN * np.abs(slopes).max(axis=0)
    for axes in subsets(range(len(there))):
        yield from _one_of_several(effect, there, axes)


def _one_of_several(effect: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Paths:
    """Of the places along some axes of the output on which an entry has an effect, the last or the first alone."""
    rest = tuple(k for k in range(len(shape)) if k not in axes)
    order = (*axes, *rest, len(shape))
    length = int(np.prod([shape[k] for k in axes]))
    moved = effect.reshape(*shape, -1).transpose(order)
    touched = moved.reshape(length, -1, effect.shape[1]).any(axis=1)  # (places, entries)
    if any((moved.any(axis=tuple({*range(len(shape))} - {k})).sum(axis=0) <= 1).all() for k in range(len(axes))):
        return  # along some axis each entry has one place alone
    for what, place in (("last", length - 1 - touched[::-1].argmax(axis=0)), ("first", touched.argmax(axis=0))):
        if np.ptp(place[touched.any(axis=0)]) == 0 or not (touched.sum(axis=0) > 1).any():
            continue  # it is the same for all, a slice, or all that there is
        one = np.arange(length)[:, np.newaxis] == place
        spread = np.broadcast_to(one.reshape(*(shape[k] for k in axes), *[1] * len(rest), -1), moved.shape)
        paths = spread.transpose(np.argsort(order)).reshape(effect.shape)
        all_of_it = f"of all that an entry does along {axes_in_words(axes)} of the output"
        yield f"{all_of_it} only the {what} counts: does = stand in the place of +=?", paths


def leak_of_the_cotangent(mistake: Mistake) -> str | None:
    """It is right without what comes in where no entry has an effect on the output, as on the flat side of a ReLU."""
    u, ask = mistake.evidence.cotangents, mistake.evidence.ask
    if mistake.slopes is None or ask is None or not ask.is_linear or not mistake.looked_at.all():
        return None
    dead = (mistake.slopes == 0).all(axis=1).reshape(u.shape[1:])
    if not dead.any() or dead.all() or not mistake.is_explained_by(mistake.right + ask.claims(np.where(dead, u, 0))):
        return None
    return (
        f"the gradient of the output passes where {mistake.name} has no effect on it, in some or all of {dead.sum()} "
        f"of its {dead.size} entries: is a mask forgotten, as that of a ReLU?"
    )


def passed_on(mistake: Mistake) -> str | None:
    """It is what comes in, or right but for that: of a residual, one path is there alone, or not at all."""
    u = mistake.evidence.cotangents
    if u.shape != mistake.claimed.shape:
        return None
    if mistake.is_explained_by(u):
        return "it is the gradient of the output, passed on as it is"
    if mistake.is_explained_by(mistake.right - u):
        return "the gradient of the output, passed on as it is, is missing in it: is the way around a layer forgotten?"
    return None


def another_order_of_the_cotangent(mistake: Mistake) -> str | None:
    """It is the right gradient for the gradient of the output in another order."""
    u = mistake.evidence.cotangents
    if mistake.slopes is None or mistake.evidence.parts:
        return None
    for what, order in named_orders(u.shape[1:]):
        taken = np.where(order.ravel() >= 0, u.reshape(3, -1)[:, order.ravel()], 0)
        lost = ~np.isin(np.arange(order.size), order)  # where sums alone are used, that is all
        kept = np.where(lost.reshape(u.shape[1:]), 0, u)
        if mistake.is_right_for(taken.reshape(u.shape)) and not (lost.any() and mistake.is_right_for(kept)):
            return f"the gradient of the output is taken in another order: {what}"
    return None


def part_of_the_derivative(mistake: Mistake) -> str | None:
    """All paths from the entries to the outputs are right, but for some that are left out, or count several times.

    Those to one of several outputs, to some slices, or to any entries; or as a matrix, in a place that has a name.
    """
    slopes, claims, u = mistake.slopes, mistake.claims, mistake.evidence.cotangents
    if slopes is None or claims is None:
        return None
    largest, known = np.abs(slopes).max(axis=0), max(KNOWN, UNDECIDABLE * mistake.precision)
    told = np.abs(slopes) > known * largest
    wrong = told & (np.abs(claims - slopes) > known * np.maximum(np.abs(claims), largest))
    if not wrong.any():
        return None
    times = float((claims / largest)[wrong] @ (slopes / largest)[wrong] / np.square((slopes / largest)[wrong]).sum())
    times = round(2 * times) / 2 if abs(2 * times - round(2 * times)) <= 2 * known else times
    outputs, right = (paths.any(axis=1).reshape(u.shape[1:]) for paths in (wrong, told & ~wrong))
    if not outputs.all() and mistake.is_right_for(np.where(outputs, times, 1) * u):
        return _left_out(mistake, outputs, right, number(times, precision=known))
    for path, part in _outputs(mistake, np.arange(len(wrong))) if mistake.looked_at.all() else ():
        if part.ndim == len(mistake.shape) == 1 and wrong.sum() == wrong[part].sum():
            place = name_of(wrong[part].T, (told & ~wrong)[part].T, mistake.evidence.constants)
            if place is not None and mistake.is_right_for(u, np.where(wrong, times, 1) * slopes):
                what = f"{number(times, precision=known)} times what it should be" if times else "zero"
                return f"as a matrix times the gradient of {path}, a row for each entry, it is {what} {place.text}"
    return None


def right_for_some_outputs(mistake: Mistake) -> str | None:
    """All paths to some outputs are right, and among those to each of the others some are wrong, in any way."""
    slopes, claims, shape = mistake.slopes, mistake.claims, mistake.evidence.output.shape
    known = mistake.is_seen_again and mistake.looked_at.all() and not mistake.evidence.parts
    if slopes is None or claims is None or not known:
        return None
    largest = np.maximum(np.abs(slopes), np.abs(claims)).max(axis=0)
    used, wrong = ((np.abs(x) > KNOWN * largest).any(axis=1).reshape(shape) for x in (slopes, claims - slopes))
    right = ~wrong
    what, some, others = ("right", right, wrong) if right.sum() <= wrong.sum() else ("wrong", wrong, right)
    place = name_of(some, others, mistake.evidence.constants) if some.any() and others.any() else None
    if place is None or place.chance > BY_ACCIDENT or place.text.count("axis") > 1:
        return None
    # Of several steps, all of which use it, the first or the last.
    at_an_end = some is right and (right.ravel()[0] or right.ravel()[-1])
    step = at_an_end and any(n > 2 and n not in mistake.shape and n * (used & right).sum() == right.size for n in shape)
    why = ": is what other steps along it bring lost or wrong, as by = in the place of +=?" if step else ""
    return f"it is {what} only for the gradient of the output {place.text}{why}"


def _left_out(mistake: Mistake, other: Array, right: Array, times: str) -> str | None:
    """In words, for each of the outputs in which some entries count otherwise."""
    pairs = zip(_outputs(mistake, other), _outputs(mistake, right), strict=True)
    said = [_left_out_of(path, some, kept, times, mistake) for (path, some), (_, kept) in pairs if some.any()]
    return None if None in said else "; ".join(map(str, said))


def _outputs(mistake: Mistake, whole: Array) -> Iterable[tuple[str, Array]]:
    """What there is of each of the outputs, with its name."""
    shape = mistake.evidence.output.shape
    return apart(whole.ravel(), mistake.evidence.parts or (("the output", shape),)).items()


def _left_out_of(output: str, other: Array, right: Array, times: str, mistake: Mistake) -> str | None:
    none, constants = times == "0", mistake.evidence.constants
    done = "left out" if none else f"used {times} times"
    if not right.any():
        return f"the gradient of {output} is {done}"
    lost, kept = (name_of(some, others, constants) for some, others in ((other, right), (right, other)))
    chance = min((place.chance for place in (lost, kept) if place is not None), default=0.0)
    if chance > BY_ACCIDENT and not mistake.looked_at.all():
        return None  # a few entries tell of the paths to themselves alone
    if none and kept is not None and (lost is None or 2 * other.sum() > other.size):
        last = right.ravel()[-1] and right.sum() * max(other.shape) == other.size
        why = ", the last: does = stand in the place of +=?" if last else ""
        return f"the gradient of {output} is used only {kept.text}{why}"
    if lost is not None:
        return f"the gradient of {output} is {done} {lost.text}"
    first = f", first at {np.argwhere(other)[0].tolist()}" if none else ""
    least = "" if (other | right).all() else "at least "
    return f"the gradient of {output} is {done} in {least}{other.sum()} of {other.size} entries{first}"
