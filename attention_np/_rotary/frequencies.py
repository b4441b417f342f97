"""How fast each pair turns: the plain frequencies, and the scalings of them for longer sequences."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import ceil, floor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib.arguments import as_array, as_flag, as_number
from attention_np._lib.arrays import Array

WIDE = np.longdouble  # of angles: at position 100000 the last bit of a frequency is the sixth last of an angle
PI = 4 * np.arctan(WIDE(1))  # in as many digits


@lru_cache
def plain(base: float, width: int) -> Array:
    """The frequency of each pair: geometric, from 1 down to nearly 1 / base."""
    frequencies: Array = WIDE(base) ** (-np.arange(0, width, 2, dtype=WIDE) / width)  # (width / 2,) (rotary.1)
    frequencies.flags.writeable = False
    return frequencies


class Scaling(NamedTuple):
    """Other frequencies than the plain ones, for longer sequences than a model was trained on.

    Made by :func:`linear`, :func:`dynamic`, :func:`yarn`, :func:`llama3` and :func:`longrope`.
    """

    frequencies: Callable[[float, int], Array]  # of the base and the width, (width / 2,)
    amplitude: Any = 1.0  # what cosine and sine are multiplied by, and so the scores by its square


def linear(factor: float) -> Scaling:
    """Every angle divided by `factor`: position `factor` times p is turned as p was before.

    Parameters
    ----------
    factor : float
        At least 1.

    Returns
    -------
    Scaling

    Examples
    --------
    >>> from attention_np import rotary
    >>> x = np.eye(2)
    >>> same = rotary.forward(x, [0, 4], scaling=rotary.linear(4))[0] == rotary.forward(x, [0, 1])[0]
    >>> bool(same.all())
    True
    """
    return Scaling(partial(_linear, factor=_at_least_one("factor", factor)))


def _linear(base: float, width: int, factor: float) -> Array:
    return plain(base, width) / factor  # (rotary.33)


def dynamic(factor: float, original_length: float, length: float) -> Scaling:
    """Another base, so that the slowest pair turns slower, and the fastest as before; more so, the longer the sequence.

    Parameters
    ----------
    factor : float
        At least 1.
    original_length : float
        Of the sequences that the model was trained on.
    length : float
        Of this sequence. At most `original_length`, and nothing changes.

    Returns
    -------
    Scaling
    """
    factor = _at_least_one("factor", factor)
    original, length = above("original_length", original_length), above("length", length)
    slower = factor * max(length / WIDE(original), WIDE(1)) - (factor - 1)
    return Scaling(partial(_dynamic, slower=slower))


def _dynamic(base: float, width: int, slower: Any) -> Array:
    if width <= 2:  # the one frequency is 1 for every base
        return plain(base, width)
    return plain(base * slower ** (WIDE(width) / (width - 2)), width)  # (rotary.34)


def yarn(
    factor: float,
    original_length: float,
    *,
    beta_fast: float = 32,
    beta_slow: float = 1,
    attention_factor: float | None = None,
    truncate: bool = True,
) -> Scaling:
    """Fast pairs as they were, slow ones divided by `factor`, and a ramp between; and all scores a little larger.

    Parameters
    ----------
    factor : float
        At least 1: how many times longer the sequences are.
    original_length : float
        Of the sequences that the model was trained on.
    beta_fast, beta_slow : float, optional
        The ramp is between the pairs that turn so many times over `original_length`.
    attention_factor : float, optional
        The amplitude, by default ``1 + log(factor) / 10``.
    truncate : bool, optional
        The ends of the ramp are rounded outwards to whole pairs, as in Hugging Face's; gpt-oss does not.

    Returns
    -------
    Scaling

    Notes
    -----
    Peng et al. [1]_.

    References
    ----------
    .. [1] B. Peng et al., "YaRN: efficient context window extension of large language models", arXiv:2309.00071, 2023.
    """
    factor = _at_least_one("factor", factor)
    frequencies = partial(
        _yarn,
        factor=factor,
        original_length=above("original_length", original_length),
        beta_fast=above("beta_fast", beta_fast),
        beta_slow=above("beta_slow", beta_slow),
        truncate=as_flag("truncate", truncate),
    )
    return Scaling(frequencies, _amplitude(attention_factor, 1 + np.log(WIDE(factor)) / 10))


def _yarn(
    base: float, width: int, factor: float, original_length: float, beta_fast: float, beta_slow: float, truncate: bool
) -> Array:
    # the pairs, counted from 0, that turn so many times over the original length (rotary.35)
    start, stop = (
        width * np.log(original_length / (2 * PI * turns)) / (2 * np.log(WIDE(base)))
        for turns in (beta_fast, beta_slow)
    )
    if truncate:
        start, stop = floor(start), ceil(stop)
    start, stop = max(start, 0), min(stop, width - 1)
    pairs = np.arange(width // 2, dtype=WIDE)
    # A ramp of no length is a step behind its pair: of a thousandth, as others have it.
    ramp = np.clip((pairs - start) / (stop - start if stop != start else 0.001), 0, 1)
    frequencies = plain(base, width)
    blended: Array = frequencies * (1 - ramp) + frequencies / factor * ramp  # (rotary.37)
    return blended


def llama3(factor: float, low_freq_factor: float, high_freq_factor: float, original_length: float) -> Scaling:
    """Fast pairs as they were, slow ones divided by `factor`, and between a blend by how often a pair turns.

    Parameters
    ----------
    factor : float
        At least 1.
    low_freq_factor, high_freq_factor : float
        Pairs that turn less often than the first over `original_length` are slow, and more often than the second fast.
    original_length : float
        Of the sequences that the model was trained on.

    Returns
    -------
    Scaling
    """
    low, high = above("low_freq_factor", low_freq_factor), above("high_freq_factor", high_freq_factor)
    if not low < high:
        raise ValueError(f"high_freq_factor must be above low_freq_factor={low}, not {high}")
    original = above("original_length", original_length)
    return Scaling(partial(_llama3, factor=_at_least_one("factor", factor), low=low, high=high, original=original))


def _llama3(base: float, width: int, factor: float, low: float, high: float, original: float) -> Array:
    frequencies = plain(base, width)
    turns = original * frequencies / (2 * PI)
    share = np.clip((turns - low) / (high - low), 0, 1)  # (rotary.40)
    blended: Array = frequencies * share + frequencies / factor * (1 - share)
    return blended


def longrope(
    short_factor: npt.ArrayLike,
    long_factor: npt.ArrayLike,
    original_length: float,
    length: float,
    *,
    maximum_length: float | None = None,
    attention_factor: float | None = None,
) -> Scaling:
    """Each pair divided by a factor of its own, of one list for short sequences and another for long ones.

    Parameters
    ----------
    short_factor, long_factor : array_like of float, (width / 2,)
        The second is for a `length` above `original_length`.
    original_length : float
        Of the sequences that the model was trained on, above 1.
    length : float
        Of this sequence.
    maximum_length : float, optional
        The longest that the model is meant for, by default `length`. How many times longer it is than
        `original_length` says the amplitude, of short sequences too.
    attention_factor : float, optional
        The amplitude, by default ``sqrt(1 + log(maximum_length / original_length) / log(original_length))``, and 1
        where `maximum_length` is not above `original_length`.

    Returns
    -------
    Scaling

    Notes
    -----
    Ding et al. [1]_.

    References
    ----------
    .. [1] Y. Ding et al., "LongRoPE: extending LLM context window beyond 2 million tokens", arXiv:2402.13753, 2024.
    """
    original, length = above("original_length", original_length, 1), above("length", length)
    longer = (length if maximum_length is None else above("maximum_length", maximum_length)) / WIDE(original)
    divisors = {name: _divisors(name, x) for name, x in (("short_factor", short_factor), ("long_factor", long_factor))}
    name = "long_factor" if length > original else "short_factor"
    amplitude = _amplitude(attention_factor, np.sqrt(1 + np.log(max(longer, WIDE(1))) / np.log(WIDE(original))))
    return Scaling(partial(_longrope, name=name, divisors=divisors), amplitude)


def _divisors(name: str, factors: npt.ArrayLike) -> Array:
    array = as_array(name, factors)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"{name} must be a vector of positive numbers ({name}.shape={array.shape}, {array.dtype})")
    return array.astype(WIDE)


def _longrope(base: float, width: int, name: str, divisors: dict[str, Array]) -> Array:
    for each, factors in divisors.items():  # also those that a sequence of this length does not use
        if factors.shape != (width // 2,):
            raise ValueError(
                f"{each} must have a number for each of the {width // 2} pairs that are turned "
                f"({each}.shape={factors.shape})"
            )
    return plain(base, width) / divisors[name]  # (rotary.42)


def _amplitude(attention_factor: float | None, usual: Any) -> Any:
    return usual if attention_factor is None else above("attention_factor", attention_factor)


def _at_least_one(name: str, value: float) -> float:
    number = above(name, value)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
    return number


def above(name: str, value: float, bound: float = 0) -> float:
    """`value` as a finite number above `bound`."""
    number = float(as_number(name, value))
    if not bound < number < np.inf:
        raise ValueError(f"{name} must be finite and above {bound}, not {number}")
    return number
