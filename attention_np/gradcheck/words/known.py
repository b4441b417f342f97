"""A factor for each entry that is a known array, as x, 1 - y^2 or 1/gamma: of the gradient, or of the cotangent.

A factor of the chain rule that is left out, or there twice, is one or the other. An elementwise function has it in each
entry of the gradient; behind a matrix or a sum, the claimed gradient is the right one for another cotangent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.words.factors import best_multiple
from attention_np.gradcheck.words.reading import ENOUGH, Mistake, Reading

EXPRESSIONS: dict[str, Callable[[Array], Array]] = {  # the simple ones first: of several that fit, that is named
    "{0}": lambda x: x,
    "{0}^2": np.square,
    "1 - {0}": lambda x: 1 - x,
    "1 + {0}": lambda x: 1 + x,
    "1 - {0}^2": lambda x: 1 - x * x,
    "1 + {0}^2": lambda x: 1 + x * x,
    "{0} * (1 - {0})": lambda x: x * (1 - x),
    "sign({0})": np.sign,
    "exp({0})": np.exp,
}


class Known(NamedTuple):
    """An array that may be a factor, and what it is called."""

    array: Array
    name: str
    inverse: str  # what its inverse is called


def known_factor(mistake: Mistake) -> Iterator[Reading]:
    """Each entry is the numerical one times a known array, perhaps with a number besides.

    Or times a known number, as the determinant is in its own gradient; that it is this one, another point shows.
    """
    telling = mistake.looked & (mistake.right != 0).any(axis=0)
    enough = (np.abs(mistake.error) > mistake.tolerance).any(axis=0).sum() >= ENOUGH
    for known in _known(mistake, mistake.shape) if enough or mistake.is_seen_again else ():
        varies = _varies(known.array, telling)
        if not varies and not (mistake.is_seen_again and known.array[telling].all()):
            continue
        other = known.array * mistake.right
        for times in _multiples(mistake, other, enough) if varies else (1.0, -1.0):
            said = (
                f"it is {_times(mistake, times, known)} times the numerical gradient, entry by entry: {_meaning(known)}"
            )
            scale = np.nan_to_num(np.abs(times * known.array), nan=1, posinf=1)
            yield Reading(f"{known.name}, entries", said, times * other, (times,), scale)


def known_factor_of_the_cotangent(mistake: Mistake) -> Iterator[Reading]:
    """It is the gradient for a known array times the cotangent."""
    u = mistake.cotangents
    if mistake.jacobian is None:
        return
    used = (mistake.jacobian != 0).any(axis=1).reshape(u.shape[1:])
    enough = mistake.looked.sum() >= ENOUGH
    for known in _known(mistake, u.shape[1:]):
        if not np.isfinite(known.array * u).all() or not _varies(known.array, used):
            continue
        (first,) = mistake.as_of("", "", known.array * u)
        for times in _multiples(mistake, first.claim, enough and known.array.size > 1):
            what = f"{_times(mistake, times, known)} times the gradient of the output"
            said = f"it is right for {what} in the place of that: {_meaning(known)}"
            yield Reading(f"{known.name}, cotangent", said, times * first.claim, (times,), np.abs(times) * first.scale)


READINGS = ((50, known_factor), (80, known_factor_of_the_cotangent))


def _multiples(mistake: Mistake, other: Array, enough: bool) -> Iterator[float]:
    """One, and the multiple of `other` that fits best, if entries enough tell it."""
    yield 1.0
    if enough:
        times = best_multiple(mistake, other, mistake.looked)
        yield -1.0 if abs(times + 1) <= max(1e-9, 10 * mistake.precision) else times


def _known(mistake: Mistake, shape: tuple[int, ...]) -> Iterator[Known]:
    """Simple expressions of the inputs and the output that broadcast to `shape`, and their inverses."""
    arrays = {**mistake.inputs, "output": mistake.output}
    given = {name: _as_broadcast(np.asarray(x, np.float64), shape) for name, x in arrays.items()}
    for form, function in EXPRESSIONS.items():
        for name, x in given.items():
            if x is not None:
                array, what = function(x), form.format(name)
                inverse = f"1/({what})" if " " in what else f"1/{what}"
                yield Known(array, what, inverse)
                yield Known(1 / array, inverse, what)


def _as_broadcast(x: Array, shape: tuple[int, ...]) -> Array | None:
    """`x` if it broadcasts to `shape`; or with an axis more, where the function has reduced one."""
    if x.size == 1:
        return np.broadcast_to(x.reshape(()), shape)
    reduced = (np.expand_dims(x, k) for k in range(len(shape)) if x.shape == (*shape[:k], *shape[k + 1 :]))
    for y in (x, *reduced):
        if y.ndim <= len(shape) and all(n in (1, m) for n, m in zip(y.shape[::-1], shape[::-1], strict=False)):
            return np.broadcast_to(y, shape)
    return None


def _varies(x: Array, where: Array) -> bool:
    """Whether an array is more than a number where that tells; a few zeros may be there for another reason."""
    known = x[where & np.isfinite(x)]
    other = known[known != 0]
    if x.size == 1 or min(known.size - other.size, other.size) >= ENOUGH:
        return bool(known.size)
    return bool(other.size and np.ptp(other) > 1e-9 * np.abs(other).max())


def _times(mistake: Mistake, times: float, known: Known) -> str:
    factor = {1.0: "", -1.0: "-"}.get(times, f"{mistake.number(times, 6)} * ")
    return f"{factor}({known.name})" if " " in known.name and "/" not in known.name else f"{factor}{known.name}"


def _meaning(known: Known) -> str:
    missing = known.name.startswith("1/")
    return f"a factor {known.inverse} is missing" if missing else f"a factor {known.name} too many"
