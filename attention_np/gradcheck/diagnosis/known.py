"""A factor for each entry that is a known array, as x, 1 - y^2 or 1/gamma: of the gradient, or of the cotangent.

A factor of the chain rule that is left out, or there twice, is one or the other. An elementwise function has it in each
entry of the gradient; behind a matrix or a sum, the claimed gradient is the right one for another cotangent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from attention_np.gradcheck.diagnosis.factors import scalar_fit
from attention_np.gradcheck.diagnosis.mistake import ENOUGH, Array, Mistake

__all__ = ["known_factor", "known_factor_of_the_cotangent"]

ULPS = 2  # that an output may be off
SAME = 1e-9  # relative: an array whose entries are so much alike is no more than a number
FORMS: dict[str, Callable[[Array], Array]] = {  # the simple ones first: of several that fit, that is named
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
    noise: Array  # how far the last bits of what it is made of move it
    name: str
    inverse: str  # what its inverse is called


def known_factor(mistake: Mistake) -> str | None:
    """Each entry is the numerical one times a known array, perhaps with a number besides.

    Or times a known number, as the determinant is in its own gradient; that it is this one, another point shows.
    """
    seen, found = mistake.looked_at, mistake.of_those_looked_at
    telling = (np.abs(found.error) > found.tolerance).any(axis=0).sum()
    for known in _known(mistake, mistake.shape):
        array = known.array[seen]
        other = array * found.right
        used = np.any(found.right != 0, axis=0)
        varies = _varies(array, used)
        if not varies and not (mistake.is_seen_again and array[used].all()):
            continue
        for times in _multiples(found, other, telling) if varies else (1.0, -1.0):
            noisier = found.noisier(known.noise[seen] * np.abs(times * found.right))
            if noisier.is_explained_by(times * other, np.abs(times * array)):
                what = f"{_times(mistake, times, known)} times the numerical gradient"
                return f"it is {what}, entry by entry: {_meaning(known)}"
    return None


def known_factor_of_the_cotangent(mistake: Mistake) -> str | None:
    """It is the gradient for a known array times the cotangent."""
    u = mistake.evidence.cotangents
    if mistake.slopes is None:
        return None
    used = (mistake.slopes != 0).any(axis=1).reshape(u.shape[1:])
    for known in _known(mistake, u.shape[1:]):
        other = known.array * u
        if not np.isfinite(other).all() or not _varies(known.array, used):
            continue
        found = mistake.of_those_looked_at
        entries = found.shape[0] if known.array.size > 1 else 0  # any factor is a multiple of a single number
        for times in _multiples(found, other.reshape(3, -1) @ mistake.slopes, entries):
            if mistake.is_right_for(times * other, noise=times * known.noise * u):
                what = f"{_times(mistake, times, known)} times the gradient of the output"
                return f"it is right for {what} in the place of that: {_meaning(known)}"
    return None


def _multiples(mistake: Mistake, other: Array, entries: int) -> Iterator[float]:
    """One, and the multiple of `other` that fits best, if so many entries tell it."""
    yield 1.0
    if entries >= ENOUGH:
        times = scalar_fit(mistake, other)
        yield -1.0 if abs(times + 1) <= max(SAME, 10 * mistake.precision) else times


def _known(mistake: Mistake, shape: tuple[int, ...]) -> Iterator[Known]:
    """Simple expressions of the inputs and the output that broadcast to `shape`, and their inverses."""
    arrays = {**mistake.evidence.inputs, "output": mistake.evidence.output}
    given = {name: _as_broadcast(np.asarray(x, np.float64), shape) for name, x in arrays.items()}
    for form, function in FORMS.items():
        for name, x in given.items():
            if x is not None:
                array, what = function(x), form.format(name)
                inverse = f"1/({what})" if " " in what else f"1/{what}"
                moved = function(x * (1 + ULPS * np.finfo(arrays[name].dtype).eps))
                yield Known(array, np.abs(moved - array), what, inverse)
                yield Known(1 / array, np.abs(1 / moved - 1 / array), inverse, what)


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
    if x.size == 1 or known.size - other.size >= ENOUGH:
        return bool(known.size)
    return bool(other.size and np.ptp(other) > SAME * np.abs(other).max())


def _times(mistake: Mistake, times: float, known: Known) -> str:
    factor = {1.0: "", -1.0: "-"}.get(times, f"{mistake.number(times, 6)} * ")
    return f"{factor}({known.name})" if " " in known.name and "/" not in known.name else f"{factor}{known.name}"


def _meaning(known: Known) -> str:
    if known.name.startswith("1/"):
        return f"a factor {known.inverse} is missing"
    return f"a factor {known.name} too many"
