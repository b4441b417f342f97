"""A function at a point, one of whose inputs moves: the outputs for many moves, and how far an entry can move."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.problem.calls import REFUSALS

LONGEST = 2.0**-7  # relative: the first step of differences
AT_ONCE = 2**16  # entries of what moves, and of the outputs
SMALLEST = 1e-300  # whatever is smaller counts as zero: a fraction of it could not be told from it


@dataclass(frozen=True)
class Subject:
    """A function at a point, to be differentiated with respect to one of its inputs."""

    forward: Callable[..., Any]
    point: tuple[Array, ...]
    position: int  # of the input
    output: Array  # at the point
    cotangents: Array  # (cotangents, *output.shape)
    unit: float  # the last bit of one, in the dtype in which the function is meant to be used
    noise: Array | None = None  # how far rounding moves each output, of its shape; None: by its last bit
    batched: bool = False  # whether this input may carry one more leading axis, and the output then does, too
    with_it: tuple[int, ...] = ()  # other inputs that then must carry it, too
    outermost: tuple[bool, bool] = (True, True)  # of this, of those: before all axes of the output, or before their own

    @property
    def x(self) -> Array:
        """The input that moves."""
        return self.point[self.position]

    @property
    def rows(self) -> int:
        """How many moves go through at once: few of large arrays, for the sake of memory."""
        return max(1, min(256 if self.batched else 16, AT_ONCE // max(1, self.x.size + self.output.size)))

    @property
    def weights(self) -> Array:
        """The cotangents as the columns of a matrix: (outputs, cotangents)."""
        return np.asarray(flattened(self.cotangents).T)

    @property
    def rounding(self) -> Array:
        """How far rounding moves each output where slopes are measured: (outputs,)."""
        last_bit = float(np.finfo(self.output.dtype).eps) * np.abs(self.output)
        return np.ravel(last_bit if self.noise is None else np.fmax(self.noise, last_bit))

    @property
    def last_bits(self) -> Array:
        """The last bit of each output, times its weight in the first cotangent: (outputs,)."""
        return np.abs(self.unit * self.output.ravel() * self.weights[:, 0]).astype(float)

    def outputs(self, places: Array) -> Array:
        """The outputs, one a row, where the input takes each of the values in `places`, (moves, *x.shape)."""
        # Of dtypes, not of arrays: NumPy 1 takes a single number for one of the narrowest dtype that holds it.
        places = places.astype(np.result_type(self.x.dtype, np.complex64) if places.dtype.kind == "c" else self.x.dtype)
        point = [x.astype(np.result_type(x.dtype, places.dtype)) for x in self.point]
        if not self.batched:
            each = (places[k, ...] for k in range(len(places)))  # arrays, also where each is a single number
            rows = [self._output([*point[: self.position], x, *point[self.position + 1 :]]) for x in each]
            return np.array(rows).reshape(len(places), self.output.size)
        if len(places) > self.rows:
            return np.concatenate([self.outputs(places[k : k + self.rows]) for k in range(0, len(places), self.rows)])
        axes, of_others = (max(self.output.ndim, self.x.ndim) if outermost else 0 for outermost in self.outermost)
        point[self.position] = places.reshape(len(places), *(1,) * (axes - self.x.ndim), *self.x.shape)
        for k in self.with_it:
            x = point[k]
            point[k] = np.broadcast_to(x, (len(places), *(1,) * (of_others - x.ndim), *x.shape))
        outputs = np.asarray(self.forward(*point))
        shape = (len(places), *self.output.shape)
        if outputs.shape not in (shape, self.output.shape):  # the output may not depend on this input
            raise ValueError(f"forward must return an array of shape {shape}, not {outputs.shape}")
        return flattened(np.broadcast_to(outputs, shape))

    def values(self, places: Array) -> Array:
        """The same for real moves, some of which may leave the domain of the function: NaN where it says so."""
        try:
            return self.outputs(places)
        except REFUSALS:
            if len(places) == 1:
                return np.full((1, self.output.size), np.nan, self.output.dtype)
            return np.concatenate([self.values(places[k : k + 1]) for k in range(len(places))])

    def with_output(self) -> Subject:
        """The same with the output that it has at its point."""
        return replace(self, output=self._output([x.copy() for x in self.point]).reshape(self.output.shape))

    def _output(self, point: Sequence[Array]) -> Array:
        output = np.array(self.forward(*point))
        if output.shape != self.output.shape:
            raise ValueError(f"forward must return arrays of one shape, not {self.output.shape} and {output.shape}")
        return output.ravel()


def flattened(rows: Array) -> Array:
    """Each of the rows as a flat one: (rows, entries)."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


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
    magnitude = np.abs(x)
    usual = np.isfinite(x) & (magnitude > SMALLEST)
    return np.asarray(magnitude if usual.all() else np.where(usual, magnitude, sizes(x)))


def entry_directions(x: Array, elements: Array) -> Array:
    """The directions in which one entry of `x` moves alone, by its size: (elements, *x.shape)."""
    directions = np.zeros((len(elements), x.size), x.dtype)
    directions[np.arange(len(elements)), elements] = sizes(x).ravel()[elements]
    return directions.reshape(len(elements), *x.shape)


def room(x: Array, directions: Array) -> Array:
    """The magnitude of the entry that moves most for its own, relative to its move; at most 1, a power of two."""
    with np.errstate(all="ignore"):
        moves = np.where((directions != 0) & (np.abs(x) > SMALLEST), np.abs(x / directions), np.inf)
    least = flattened(moves).min(axis=1, initial=1.0)
    return np.asarray(np.ldexp(1.0, np.frexp(least)[1] - 1))


def scaled(directions: Array, scales: Array) -> Array:
    """Each of the directions times a number of its own."""
    return np.asarray(scales.reshape(len(scales), *(1,) * (directions.ndim - 1)) * directions)


def batched(subject: Subject, others: tuple[int, ...]) -> Subject | None:
    """The same with an input that carries one more leading axis; None if it cannot, as a trial shows.

    If it cannot alone, then perhaps together with `others`: a bias must not have more axes than the scores. What has no
    axis for heads, which the output has, may need the new axis before its own axes.
    """
    move = np.random.default_rng(0).uniform(-0.1, 0.1, (1, *subject.x.shape)) * magnitudes(subject.x)
    trial = subject.x + np.concatenate([move, np.zeros_like(move)])  # what comes of the second is known
    with np.errstate(all="ignore"):
        expected = np.concatenate([subject.outputs(trial[:1]), subject.output.reshape(1, -1)])
    far, near = (True, True), (False, False)
    ways = (
        replace(subject, batched=True, with_it=with_it, outermost=outermost)
        for with_it, outermost in (((), far), (others, far), ((), near), (others, (True, False)))
    )
    return next((way for way in ways if _gives(way, trial, expected)), None)


def _gives(in_batches: Subject, trial: Array, expected: Array) -> bool:
    """Whether many moves at once give what is expected."""
    with np.errstate(all="ignore"):
        try:
            rows = in_batches.outputs(trial)
        except Exception:  # what it raises is up to the function
            return False
        largest = np.abs(expected).max(initial=0)
        near = np.abs(rows - expected) <= 1e3 * np.finfo(in_batches.output.dtype).eps * largest  # other orders of sums
    return bool((near | (rows == expected) | (np.isnan(rows) & np.isnan(expected))).all())
