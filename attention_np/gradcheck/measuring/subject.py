"""A function at a point, one of whose inputs moves: the outputs for many moves, and how far an entry can move."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.measuring.functions import Forward, wide_dtype

__all__ = [
    "REFUSALS",
    "SCALES",
    "AnotherShapeError",
    "Subject",
    "along",
    "flattened",
    "magnitudes",
    "moves_zero",
    "room",
    "rows_at_once",
    "rows_in",
    "sizes",
    "steps_along",
    "summed",
]

Array = npt.NDArray[Any]

SCALES = tuple(2.0**-k for k in (7, 12, 17, 22, 27, 32, 37, 42, 4, 47, 52, 57))  # relative steps, as they are tried
SMALLEST = 1e-300  # whatever is smaller counts as zero: a fraction of it could not be told from it
# What a function raises that is asked outside its domain, as for the Cholesky factor of an indefinite matrix, or for a
# place beyond the end of a table. Anything else, such as no more memory or no more workers, is an error.
REFUSALS = (ArithmeticError, AssertionError, LookupError, ValueError, np.linalg.LinAlgError)


class AnotherShapeError(ValueError):
    """Many moves at once do not give as many outputs."""


@dataclass(frozen=True)
class Subject:
    """A function at a point, to be differentiated with respect to one of its inputs."""

    forward: Forward
    point: tuple[Array, ...]
    position: int  # of the input
    output: Array  # at the point
    cotangents: Array  # (cotangents, *output.shape)
    batched: bool = False  # whether this input may carry one more leading axis, and the output then does, too
    with_it: tuple[int, ...] = ()  # other inputs that then must carry it, too
    rows: int = 1 << 30  # how many moves may go through at once
    noise: Array | None = None  # how far rounding moves each output, of its shape; by default by its last bit
    unit: float = float(np.finfo(np.float64).eps)  # the last bit of one, in the dtype in which gradients are claimed

    @property
    def x(self) -> Array:
        """The input that moves."""
        return self.point[self.position]

    @property
    def weights(self) -> Array:
        """The cotangents as the columns of a matrix."""
        wide = self.cotangents.astype(wide_dtype(self.cotangents.dtype))
        return np.asarray(flattened(wide).T)  # (outputs, cotangents)

    @property
    def loudness(self) -> Array:
        """How far rounding moves each output, times its weight in the first cotangent: (outputs,)."""
        eps = float(np.finfo(self.output.dtype).eps)
        noise = eps * np.abs(self.output) if self.noise is None else self.noise
        loudness: Array = np.abs(noise.ravel() * self.weights[:, 0])
        return loudness

    def outputs(self, moved: Array) -> Array:
        """The outputs, one a row, where the input takes each of the values in `moved`, (moves, *x.shape)."""
        # Of dtypes, not of arrays: NumPy 1 takes a single number for one of the narrowest dtype that holds it.
        moved = moved.astype(np.result_type(self.x.dtype, np.complex64) if moved.dtype.kind == "c" else self.x.dtype)
        point = [x.astype(np.result_type(x.dtype, moved.dtype)) for x in self.point]
        if not self.batched:
            each = (moved[k, ...] for k in range(len(moved)))  # arrays, also where each is a single number
            rows = [self._output([*point[: self.position], x, *point[self.position + 1 :]]) for x in each]
            return np.array(rows).reshape(len(moved), self.output.size)
        if len(moved) > self.rows:
            return np.concatenate([self.outputs(moved[k : k + self.rows]) for k in range(0, len(moved), self.rows)])
        axes = max(self.output.ndim, self.x.ndim)  # so that the new axis comes before all others
        point[self.position] = moved.reshape(len(moved), *(1,) * (axes - self.x.ndim), *self.x.shape)
        for k in self.with_it:
            x = point[k]
            point[k] = np.broadcast_to(x, (len(moved), *(1,) * (axes - x.ndim), *x.shape))
        found = np.asarray(self.forward(*point))
        shape = (len(moved), *self.output.shape)
        if found.shape not in (shape, self.output.shape):  # the output may not depend on this input
            raise AnotherShapeError(f"it returns an array of shape {found.shape}, where {shape} is needed")
        return flattened(np.broadcast_to(found, shape))

    def _output(self, point: Sequence[Array]) -> Array:
        found = np.array(self.forward(*point))
        if found.shape != self.output.shape:
            raise ValueError(f"forward must return arrays of one shape, not {self.output.shape} and {found.shape}")
        return found.ravel()

    def values(self, moved: Array) -> Array:
        """The same for real moves, some of which may leave the domain of the function: NaN where it says so."""
        try:
            return self.outputs(moved)
        except REFUSALS:
            if len(moved) == 1:
                return np.full((1, self.output.size), np.nan, self.output.dtype)
            return np.concatenate([self.values(moved[k : k + 1]) for k in range(len(moved))])

    def at(self, point: Sequence[Array], cotangents: Array) -> Subject:
        """The same function at another point, with the output as it was at the first."""
        return replace(self, point=tuple(point), cotangents=cotangents)

    def with_its_output(self) -> Subject:
        """The same, with the output as it is at this point."""
        return replace(self, output=self._output([x.copy() for x in self.point]).reshape(self.output.shape))


def flattened(rows: Array) -> Array:
    """Each of the rows as a flat one: (rows, entries)."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


def summed(rows: Array, weights: Array) -> Array:
    """``rows @ weights``, so that the bits of no row depend on how many there are."""
    return np.asarray((rows * weights).sum(axis=1))  # (gradcheck.5)


def sizes(x: Array) -> Array:
    """What a step from each entry of `x` is relative to: its magnitude, or the typical one of `x` if that is larger.

    A power of two, so that nothing is rounded when a step or a slope is multiplied by it.
    """
    magnitude = np.where(np.isfinite(x), np.abs(x), 0)
    nonzero = np.sort(magnitude[magnitude > SMALLEST])
    middle = nonzero[(nonzero.size - 1) // 2 : nonzero.size // 2 + 1]  # np.median takes longer than all the rest here
    size = np.maximum(magnitude, middle.mean() if nonzero.size else 1.0)
    powers: Array = np.ldexp(np.ones_like(size), np.frexp(size)[1] - 1)
    return powers


def magnitudes(x: Array) -> Array:
    """How large each entry of `x` is; the typical one where it is zero, or not finite."""
    return np.asarray(np.where(np.isfinite(x) & (np.abs(x) > SMALLEST), np.abs(x), sizes(x)))


def along(x: Array, elements: Array) -> Array:
    """The directions in which one entry of `x` moves alone, by its size: (elements, *x.shape)."""
    directions = np.zeros((len(elements), x.size), x.dtype)
    directions[np.arange(len(elements)), elements] = sizes(x).ravel()[elements]
    return directions.reshape(len(elements), *x.shape)


def moves_zero(subject: Subject, directions: Array) -> Array:
    """Which directions move an entry that is zero, of which nothing tells the scale: (moves,)."""
    return np.asarray(flattened((directions != 0) & (subject.x == 0)).any(axis=1))


def room(subject: Subject, directions: Array) -> Array:
    """The magnitude of the entry that moves most for its own, relative to its move; at most 1, a power of two."""
    with np.errstate(all="ignore"):
        moves = np.where((directions != 0) & (np.abs(subject.x) > SMALLEST), np.abs(subject.x / directions), np.inf)
    least = flattened(moves).min(axis=1, initial=1.0)
    return np.asarray(np.ldexp(1.0, np.frexp(least)[1] - 1))


def steps_along(directions: Array, scales: Array) -> Array:
    """Each of the directions times a number of its own."""
    return np.asarray(scales.reshape(len(scales), *(1,) * (directions.ndim - 1)) * directions)


def rows_in(memory: int, subject: Subject) -> int:
    """How many moves fit in `memory` bytes at once: a power of two, from what one call of forward takes."""
    least = 64 * (subject.x.size + subject.output.size)  # four complex arrays
    if not subject.batched:
        return _power_of_two(memory / max(least, 1))
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        subject.outputs(subject.x[None] + 0j)
        peak = tracemalloc.get_traced_memory()[1] - before
    except Exception:
        peak = 0
    finally:
        if not tracing:
            tracemalloc.stop()
    return _power_of_two(memory / max(peak, least, 1))


def rows_at_once(memory: int, subject: Subject) -> int:
    """The same for a subject that already knows it if it goes in batches."""
    return subject.rows if subject.batched else rows_in(memory, subject)


def _power_of_two(number: float) -> int:
    return 1 << max(0, min(30, int(np.log2(max(1.0, number)))))
