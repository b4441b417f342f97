"""Dropout whose draws depend on a seed and on the place in the scores alone.

The draws come from a counter-based generator, Philox [1]_. The draw for the score at row r and column j is number
``r * width + j`` of one stream, where r counts the rows through all leading axes, and the width is the number of
columns rounded up to a multiple of 8. It is the same whatever part of the scores is computed, in which order and by
how many workers.

References
----------
.. [1] J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11, 2011.
"""

from __future__ import annotations

from math import prod
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from attention_np._lib.arguments import as_number
from attention_np._lib.arrays import Array, real_types
from attention_np._lib.text import shortened

Rng: TypeAlias = "int | np.random.Generator"  # a string: NumPy imports its random module on first use only

DRAWS_A_STEP = 8  # one step of Philox's counter gives four 64-bit words, and a draw takes 32 bits
WORDS_A_STEP = 4


def as_probability(dropout_p: float, rng: Rng | None) -> float:
    """`dropout_p` as a number, refused outside [0, 1) or, where it is not zero, without a usable `rng`."""
    probability = float(as_number("dropout_p", dropout_p))
    if not 0 <= probability < 1:
        raise ValueError(f"dropout_p must be at least 0 and less than 1, not {shortened(dropout_p)}")
    if probability and rng is None:
        raise ValueError(f"dropout_p={dropout_p} needs an rng: a seed or a numpy.random.Generator")
    if probability:
        as_generator(rng)
    return probability


def draw_key(rng: Rng | None) -> int:
    """The one integer that is drawn from `rng`, a seed or a generator."""
    return int(as_generator(rng).integers(2**63))


def as_generator(rng: Rng | None) -> np.random.Generator:
    """`rng`, a seed or a generator, as a generator; nothing is drawn from the system."""
    if isinstance(rng, Integral) and not isinstance(rng, bool) and int(rng) >= 0:
        return np.random.default_rng(int(rng))
    if isinstance(rng, np.random.Generator | np.random.BitGenerator | np.random.SeedSequence):
        return np.random.default_rng(rng)
    raise TypeError(f"rng must be a seed or a numpy.random.Generator, not {shortened(rng)}")


def multipliers(key: int, dropout_p: float, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What each weight is multiplied by: 0 with probability `dropout_p`, else 1 / (1 - dropout_p)."""
    *leading, columns = shape
    width = -(-columns // DRAWS_A_STEP) * DRAWS_A_STEP  # each row starts at a step of the counter
    words = np.random.Philox(key=key).random_raw(prod(leading) * width // 2)  # 64-bit
    draws = words.astype("<u8", copy=False).view("<u4").reshape(*leading, width)[..., :columns]
    return _factors(draws, dropout_p, dtype)


def draw(rng: Rng | None, dropout_p: float, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """The multipliers of weights of that `shape`, by one integer that is drawn from `rng`; None without dropout."""
    return multipliers(draw_key(rng), dropout_p, shape, dtype) if dropout_p else None


def drop(weights: Array, dropout: Array | None) -> Array:
    """What the values are multiplied by: `weights`, or what dropout leaves of them."""
    return weights if dropout is None else weights * dropout


class Draws(NamedTuple):
    """The draws of one matrix of scores, of which any block can be had alone."""

    key: int
    dropout_p: float
    row: int  # of all rows of the scores, the one that the matrix begins with
    columns: int  # that the scores have
    column: int  # of them, the one that the matrix begins with

    def within(self, rows: slice, columns: slice) -> Draws:
        """The draws of a part of the matrix."""
        return self._replace(row=self.row + rows.start, column=self.column + columns.start)

    def block(self, rows: slice, columns: slice, dtype: np.dtype[Any]) -> Array:
        """What :func:`multipliers` gives there for all scores."""
        steps_a_row = -(-self.columns // DRAWS_A_STEP)
        first, last = self.column + columns.start, self.column + columns.stop
        start, stop = first // DRAWS_A_STEP, -(-last // DRAWS_A_STEP)
        stream = np.random.Philox(key=self.key)
        stream.advance((self.row + rows.start) * steps_a_row + start)
        words = np.empty((rows.stop - rows.start, (stop - start) * WORDS_A_STEP), np.uint64)
        for row in words:
            row[:] = stream.random_raw(row.size)
            stream.advance(steps_a_row - (stop - start))
        draws = words.astype("<u8", copy=False).view("<u4")[:, first - start * DRAWS_A_STEP :][:, : last - first]
        return _factors(draws, self.dropout_p, dtype)


def _factors(draws: Array, dropout_p: float, dtype: np.dtype[Any]) -> Array:
    kept = draws >= round(dropout_p * 2**32)
    real, extended = real_types(dtype)
    factors: Array = np.where(kept, real(1 / (1 - extended(dropout_p))), real(0))
    return factors
