"""A sum over a broadcast axis of which not all terms were taken.

The gradient of an input that was broadcast is a sum, and its terms are not among the evidence. But for the usual
functions they can be had from it: the cotangent itself for ``x + b``, the cotangent times x for ``x * b``, the gradient
of x for any function of ``x + b``. If the sum of such terms is the numerical gradient, they are the terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from attention_np.gradcheck.diagnosis.mistake import Array, Mistake, in_words

__all__ = ["part_of_a_sum"]

MOST_TERMS = 5000


def part_of_a_sum(mistake: Mistake) -> str | None:
    """Some of the terms: one, all but one, those up to or from an index on. They equal it for all three cotangents."""
    for terms in _candidates(mistake):
        summed = _summed_axes(mistake, terms)
        total = _sum(mistake, terms, summed)
        noisy = mistake.noisier(1e-14 * _sum(mistake, np.abs(terms), summed))
        off, allowed = np.abs(total - mistake.right), noisy.allowed(total)
        if (off > allowed).any() or not (off <= allowed).any():  # NaN: not known
            continue
        for axis in summed:
            others = tuple(k for k in summed if k != axis)
            partial = np.moveaxis(terms.sum(axis=others, keepdims=True), axis, 0)
            found = _part(noisy, [term.reshape(mistake.claimed.shape) for term in partial[:MOST_TERMS]])
            if found is not None:
                return f"{found} over the broadcast axis {axis - 1} (of {terms.shape[axis]})"
        first = terms[tuple(0 if k in summed else slice(None) for k in range(terms.ndim))]
        if noisy.is_explained_by(first.reshape(mistake.claimed.shape)):
            return "it is only the first term of the sum over all broadcast axes"
    return _a_single_term(mistake)


def _a_single_term(mistake: Mistake) -> str | None:
    """The same where the terms are not known: each entry, or its error, is a fixed multiple of one of the cotangent's.

    A sum of several terms is not: three cotangents give three equations for every entry. Still, two entries must do so.
    """
    u = mistake.evidence.cotangents
    missing = u.ndim - mistake.claimed.ndim
    padded = (1,) * missing + mistake.shape
    if missing < 0 or any(n not in (1, length) for n, length in zip(padded, u.shape[1:], strict=True)):
        return None
    summed = tuple(k + 1 for k, n in enumerate(padded) if n == 1 and u.shape[k + 1] > 1)
    if not summed or math.prod(u.shape[k] for k in summed) > MOST_TERMS:
        return None
    mistake = mistake.noisier(mistake.noise.max(axis=0))
    for index in np.ndindex(*(u.shape[k] for k in summed)):
        where: list[int | slice] = [slice(None)] * u.ndim
        for axis, k in zip(summed, index, strict=True):
            where[axis] = k
        place = u[tuple(where)].reshape(mistake.claimed.shape)
        of = in_words([f"index {k} of axis {axis - 1}" for axis, k in zip(summed, index, strict=True)])
        if mistake.is_explained_by(_multiple(mistake.claimed, place), in_entries=2):
            return _of_one_cotangent(mistake, tuple(where), of)
        if mistake.is_explained_by(mistake.right + _multiple(mistake.error, place), in_entries=2):
            return f"the term at {of} is missing from the sum over the broadcast axes, or wrong: it is all that differs"
    return None


def _of_one_cotangent(mistake: Mistake, where: tuple[int | slice, ...], of: str) -> str:
    """What is known if only the cotangent at `where` matters: perhaps it is the term there, perhaps something else."""
    u, ask = mistake.evidence.cotangents, mistake.evidence.ask
    alone = np.zeros_like(u)
    alone[where] = u[where]
    if ask is not None and mistake.is_explained_by(ask.slopes(alone)):
        return f"it is only the term at {of} of the sum over the broadcast axes: no other cotangent matters"
    return f"it depends on the cotangent at {of} alone, where a sum over the broadcast axes belongs"


def _multiple(x: Array, of: Array) -> Array:
    """For each entry the multiple of `of` that equals `x` where `of` is largest, of the three cotangents."""
    largest = np.abs(of).argmax(axis=0)[np.newaxis]
    multiple: Array = of * np.take_along_axis(x, largest, 0) / np.take_along_axis(of, largest, 0)
    return multiple


def _part(mistake: Mistake, terms: list[Array]) -> str | None:
    for k, term in enumerate(terms):
        if mistake.is_explained_by(term):
            return f"it is only the term of index {k} of the sum"
    for k, term in enumerate(terms):
        if mistake.is_explained_by(mistake.right - term):
            return f"the term of index {k} is missing from the sum"
    so_far = np.zeros_like(mistake.right)
    for k, term in enumerate(terms):
        so_far = so_far + term
        if mistake.is_explained_by(so_far):
            return f"only the terms up to index {k} are in the sum"
        if mistake.is_explained_by(mistake.right - so_far):
            return f"only the terms from index {k + 1} on are in the sum"
    return None


def _summed_axes(mistake: Mistake, terms: Array) -> tuple[int, ...]:
    new = terms.ndim - mistake.claimed.ndim
    return tuple(k + 1 for k, n in enumerate((1,) * new + mistake.shape) if n == 1)


def _sum(mistake: Mistake, terms: Array, axes: tuple[int, ...]) -> Array:
    total: Array = terms.sum(axis=axes).reshape(mistake.claimed.shape)
    return total


def _candidates(mistake: Mistake) -> Iterator[Array]:
    """Arrays, with an axis for the cotangents in front, that may be the terms."""
    for terms in _products(mistake):
        shape = terms.shape[1:]
        try:
            fits = np.broadcast_shapes(shape, mistake.shape) == shape and shape != mistake.shape
        except ValueError:
            continue
        if fits and _summed_axes(mistake, terms):
            yield terms


def _products(mistake: Mistake) -> Iterator[Array]:
    evidence = mistake.evidence
    u, output = evidence.cotangents, evidence.output
    others = {name: np.asarray(y, np.float64) for name, y in evidence.inputs.items()}  # beside others of more precision
    inverse = 1 / others.pop(mistake.name)
    yield u
    yield from _times(u, output, inverse)
    for name, y in others.items():
        yield from _times(u, y)
        yield from _times(u, *_shifted(output, y), inverse)
        if name not in evidence.numerical:
            continue
        yield evidence.numerical[name]
        yield from _times(evidence.numerical[name], y, inverse)
        if y.shape[:-2] and y.shape[:-1] == u.shape[1:-1]:  # a matrix that multiplies a batch
            yield np.swapaxes(y, -1, -2) @ u


def _shifted(output: Array, y: Array) -> tuple[Array, ...]:
    try:
        return (output - y,)
    except ValueError:
        return (np.full(output.shape, np.nan),)


def _times(terms: Array, *factors: Array) -> Iterator[Array]:
    """The product, each broadcast from its last axis as the arrays of a function are."""
    for factor in factors:
        try:
            shape = np.broadcast_shapes(terms.shape[1:], factor.shape)
        except ValueError:
            return
        terms = np.broadcast_to(_with_axes(terms, len(shape)), (3, *shape)) * factor
    yield terms


def _with_axes(terms: Array, ndim: int) -> Array:
    return terms.reshape(3, *[1] * (ndim - terms.ndim + 1), *terms.shape[1:])
