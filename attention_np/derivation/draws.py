"""Random sizes and random tensors: the same for the same seed, whatever else stands on the page."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from attention_np.derivation import limits
from attention_np.derivation.environment import Tensor
from attention_np.derivation.errors import Fault
from attention_np.derivation.header import Free, Header
from attention_np.derivation.values import DRAWN, Arithmetic, Array, top

DRAWS = 4
BOUND_DRAWS = 28  # more of them, for inequalities and for what depends on sizes alone, with other magnitudes
TOGETHER, BOUND_TOGETHER = 2, 4  # so many have the same sizes, and are evaluated at once


def draw_sizes(header: Header, seed: int, number: int) -> dict[str, int]:
    """All ranges of different length, so that a swapped index cannot hide; other ones for another number.

    What is long for an even number is short for the next.
    """
    names = [name for name, factors in header.sizes.items() if not factors and name not in header.fixed]
    multiplied = {factor for factors in header.sizes.values() for factor in factors}
    small = [name for name in names if name in multiplied]
    names = small + [name for name in names if name not in multiplied]
    rng = np.random.default_rng([seed, number // 2, 1])
    turned = slice(None, None, -1 if number % 2 else 1)
    for attempt in range(200):
        spare = attempt // 10
        # Factors of a product are kept small: derivatives by a (D, D) matrix have D to the fourth entries.
        low = rng.permutation(np.arange(2, 3 + len(small) + attempt // 50)[turned])[: len(small)].tolist()
        pool = [k for k in range(3, 3 + max(5, len(names) + 1) + spare) if k not in low][turned]
        chosen = low + rng.permutation(pool)[: len(names) - len(small)].tolist()
        sizes = dict(header.fixed)
        sizes.update({name: int(length) for name, length in zip(names, chosen, strict=True)})
        complete(header, sizes)
        # Sizes that the page fixes may coincide with each other, drawn ones with nothing.
        drawn = [length for name, length in sizes.items() if name not in header.fixed]
        if len(set(drawn)) == len(drawn) and not set(drawn) & set(header.fixed.values()):
            return sizes
    raise Fault("limit", "no sizes found that are all different")


def complete(header: Header, sizes: dict[str, int]) -> None:
    """Fill in the sizes that are products of others."""
    for name, factors in header.sizes.items():
        if factors:
            length = 1
            for factor in factors:
                length *= sizes[factor]
            sizes[name] = length
            if length > 4096:
                raise Fault("limit", f"{name} becomes {length}")


def draw_tensor(
    key: str, free: Free, arithmetic: Arithmetic, seed: int, draws: Sequence[int], magnitudes: bool = False
) -> Tensor:
    """A free tensor; its numbers depend on its name and the draws alone.

    With ``magnitudes``, those of unbounded kinds are in addition scaled by something between 0.1 and 10.
    """
    shape = tuple(arithmetic.size(axis) for axis in free.axes)
    count = math.prod(shape) * len(draws)
    if count > limits.ELEMENTS // 10:
        raise Fault("limit", f"{key} has too many elements")
    arithmetic.account.hold(count)
    arithmetic.account.work(10 * count)  # a random number takes about as long as ten sums
    drawn = [_numbers(key, free.kind, shape, seed, draw, magnitudes) for draw in draws]
    if len(drawn) == 1:
        return Tensor(drawn[0], free.axes, top(drawn[0]))
    data = np.stack(drawn)
    return Tensor(data, free.axes, top(data), lead=(DRAWN,))


def _numbers(key: str, kind: str, shape: tuple[int, ...], seed: int, draw: int, magnitudes: bool) -> Array:
    """A free tensor in one draw."""
    rng = np.random.default_rng([seed, draw, zlib.crc32(key.encode())])
    spread = (1.0, 0.7, 1.4)[draw % 3]
    data: Array
    if kind == "normal":
        # Products of matrices must not grow with the sizes: behind a saturated softmax everything is zero.
        spread *= shape[-1] ** -0.25 if len(shape) > 1 else 1.0
        data = spread * rng.standard_normal(shape)
    elif kind == "positive":
        data = rng.uniform(0.3, 2.0, shape)
    elif kind == "uniform":
        data = rng.uniform(0.05, 0.95, shape)
    elif kind == "probability":
        data = rng.uniform(0.1, 1.0, shape)
        data = data / (data.sum(axis=-1, keepdims=True) if shape else data / 0.5)
    elif kind in ("boolean", "boolean_any"):
        data = _boolean(shape, rng, kind == "boolean")
    elif kind == "permutation":
        # A shift composed with a random order: never symmetric, so transposing is seen.
        length = shape[0]
        order = rng.permutation(length)
        data = np.zeros(shape)
        data[order, np.roll(order, 1)] = 1.0
    else:
        data = np.linalg.qr(rng.standard_normal(shape))[0]
    if magnitudes and kind in ("normal", "positive"):
        data = data * 10.0 ** rng.uniform(-1.0, 1.0)
    return data


def _boolean(shape: tuple[int, ...], rng: np.random.Generator, every_row: bool) -> Array:
    data = (rng.random(shape) < 0.6).astype(float)
    if not shape:
        return data
    rows = data.reshape(-1, shape[-1])
    empty = rows.sum(axis=-1) == 0
    if every_row:
        places = rng.integers(0, shape[-1], len(rows))
        rows[empty, places[empty]] = 1.0
        if rows.all():
            rows[0, int(places[0]) - 1] = 0.0
    else:
        rows[int(rng.integers(0, len(rows)))] = 0.0
    return rows.reshape(shape)
