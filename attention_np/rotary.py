r"""Rotary positions: each pair of features is turned by an angle that grows with the position.

.. math::

    \varphi_{ia} = p_i \theta_a, \qquad
    y_{ia} = x_{ia} \cos \varphi_{ia} - x_{i,w+a} \sin \varphi_{ia}, \qquad
    y_{i,w+a} = x_{ia} \sin \varphi_{ia} + x_{i,w+a} \cos \varphi_{ia}

The product of a turned query and a turned key depends on the difference of their positions alone. Pair a turns at the
frequency :math:`\theta_a = \mathrm{base}^{-2 a / 2w}`, a from 0, or as one of the scalings says. The derivation is
``derivations/rotary.md`` of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, floor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import (
    as_array,
    as_flag,
    as_floating,
    as_integer,
    as_number,
    check_broadcasts_to,
)
from attention_np._lib.arrays import Array, is_floating, precision, real_types
from attention_np._lib.passes import Tangent

__all__ = [
    "Cache",
    "Gradients",
    "Scaling",
    "backward",
    "double_backward",
    "dynamic",
    "forward",
    "jvp",
    "linear",
    "llama3",
    "longrope",
    "yarn",
]

VECTORIZED = ("x",)  # may carry any leading axes: for gradcheck

WIDE = np.longdouble  # of angles: at position 100000 the last bit of a frequency is the sixth last of an angle
PI = 4 * np.arctan(WIDE(1))  # in as many digits


class Gradients(NamedTuple):
    """The gradient of the loss with respect to the array of :func:`forward`."""

    x: Array


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    x: Array  # (..., n, d)
    cos: Array  # (..., n, width / 2), times the amplitude of the scaling
    sin: Array  # likewise
    first: slice  # the features that are the first of their pair
    second: slice
    output_shape: tuple[int, ...]


class Scaling(NamedTuple):
    """Other frequencies than the plain ones, for longer sequences than a model was trained on.

    Made by :func:`linear`, :func:`dynamic`, :func:`yarn`, :func:`llama3` and :func:`longrope`.
    """

    frequencies: Callable[[float, int], Array]  # of the base and the width, (width / 2,)
    amplitude: Any = 1.0  # what cosine and sine are multiplied by, and so the scores by its square


def plain(base: float, width: int) -> Array:
    """The frequency of each pair: geometric, from 1 down to nearly 1 / base."""
    frequencies: Array = WIDE(base) ** (-np.arange(0, width, 2, dtype=WIDE) / width)  # (width / 2,) (rotary.1)
    return frequencies


def forward(
    x: npt.ArrayLike,
    positions: npt.ArrayLike | None = None,
    *,
    base: float = 10000.0,
    width: int | None = None,
    interleaved: bool = False,
    trailing: bool = False,
    scaling: Scaling | None = None,
) -> tuple[Array, Cache]:
    r"""Turn the features of each row by the angles of its position.

    Parameters
    ----------
    x : array_like of float, (..., n, d)
        Queries or keys.
    positions : array_like of int or float, (n,) or (..., n), optional
        Of the rows; leading axes broadcast to those of `x`. By default 0 to n - 1.
    base : float, optional
        Above 1: the slowest pair turns about so many times slower than the first.
    width : int, optional
        How many of the features are turned, an even number; by default all d.
    interleaved : bool, optional
        A pair is two neighbours, (0, 1), (2, 3) and so on, as in GPT-J; by default feature a of the first half is
        paired with feature a of the second, as in Llama.
    trailing : bool, optional
        The last `width` features are turned, and by default the first.
    scaling : Scaling, optional
        From :func:`linear`, :func:`dynamic`, :func:`yarn`, :func:`llama3` or :func:`longrope`.

    Returns
    -------
    output : ndarray, (..., n, d)
        Features that are not turned are as they were.
    cache : Cache
        For :func:`backward` and :func:`jvp`. Refers to `x`, without a copy.

    Raises
    ------
    TypeError
        If an argument is not of its type.
    ValueError
        If `x` has fewer than two axes, `positions` does not broadcast to its rows or is not finite, `width` is odd or
        more than d, `base` is not above 1, or `scaling` is made for another width.

    Notes
    -----
    Su et al. [1]_. Angles are worked out in extended precision where NumPy has it.

    References
    ----------
    .. [1] J. Su et al., "RoFormer: enhanced transformer with rotary position embedding", arXiv:2104.09864, 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import rotary
    >>> output, cache = rotary.forward(np.array([[1.0, 0.0], [1.0, 0.0]]), [0, 1])
    >>> print(output.round(4))
    [[1.     0.    ]
     [0.5403 0.8415]]
    >>> print(rotary.backward(np.array([[1.0, 0.0], [1.0, 0.0]]), cache).x.round(4))
    [[ 1.      0.    ]
     [ 0.5403 -0.8415]]
    """
    x = as_floating("x", x)
    if x.ndim < 2:
        raise ValueError(f"x must have at least two axes, (..., n, features) (x.shape={x.shape})")
    angles = Angles.of(x.shape[-1], base, width, interleaved, trailing, scaling)
    cos, sin = angles.at(as_positions("positions", positions, x.shape[:-1]), precision(x).compute)
    return turn(x=x, cos=cos, sin=sin, first=angles.first, second=angles.second)


@passes.forward
def turn(x: Array, cos: Array, sin: Array, first: slice, second: slice) -> tuple[Array, Cache]:
    """What :func:`forward` computes, of arguments that it has checked."""
    output = turned(x, cos, sin, first, second)  # (..., n, d) (rotary.5)
    return output, Cache(x=x, cos=cos, sin=sin, first=first, second=second, output_shape=output.shape)


def turned(x: Array, cos: Array, sin: Array, first: slice, second: slice) -> Array:
    """Each pair of features turned. For ops."""
    output: Array = x.copy()  # (..., n, d)
    one, other = x[..., first], x[..., second]  # (..., n, width / 2) (rotary.3)
    output[..., first] = one * cos - other * sin  # (rotary.4)
    output[..., second] = one * sin + other * cos  # (rotary.4)
    return output


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> Gradients:
    """The gradient of a loss with respect to `x`, from that of the output, (..., n, d): turned back."""
    # (rotary.12, rotary.31)
    return Gradients(x=turned(d_output, cache.cos, -cache.sin, cache.first, cache.second))  # (..., n, d)


@passes.jvp
def jvp(cache: Cache, *, x: Tangent = None) -> Array:
    """Forward mode: the output is linear in `x`, so its tangent is the turned tangent."""
    return turned(x, cache.cos, cache.sin, cache.first, cache.second)  # (..., n, d) (rotary.15)


double_backward = passes.second_derivative(turn, backward)


class Angles(NamedTuple):
    """Which features are turned, and how fast."""

    frequencies: Array  # (width / 2,)
    amplitude: float
    first: slice
    second: slice

    @classmethod
    def of(
        cls,
        d: int,
        base: float = 10000.0,
        width: int | None = None,
        interleaved: bool = False,
        trailing: bool = False,
        scaling: Scaling | None = None,
    ) -> Angles:
        """As the options of :func:`forward` say of d features."""
        base = _above("base", base, 1)
        width = d if width is None else as_integer("width", width, least=0)
        if width % 2 or width > d:
            raise ValueError(f"width must be even, and at most the {d} features, not {width}")
        if scaling is not None and not isinstance(scaling, Scaling):
            raise TypeError(f"scaling must be a rotary.Scaling, not {type(scaling).__name__}")
        frequencies, amplitude = Scaling(plain) if scaling is None else scaling
        start = d - width if as_flag("trailing", trailing) else 0
        if as_flag("interleaved", interleaved):
            places = slice(start, start + width, 2), slice(start + 1, start + width, 2)  # (rotary.16)
        else:
            places = slice(start, start + width // 2), slice(start + width // 2, start + width)
        return cls(frequencies(base, width), amplitude, *places)

    def at(self, positions: Array, compute: np.dtype[Any]) -> tuple[Array, Array]:
        """Cosine and sine of the angles at `positions`, (..., n), each (..., n, width / 2)."""
        angles = positions[..., None].astype(WIDE) * self.frequencies  # (rotary.2)
        real, _ = real_types(compute)
        amplitude = WIDE(self.amplitude)  # (rotary.24)
        return (amplitude * np.cos(angles)).astype(real), (amplitude * np.sin(angles)).astype(real)


def as_positions(name: str, positions: npt.ArrayLike | None, rows: tuple[int, ...]) -> Array:
    """`positions` as an array that broadcasts to `rows`, (..., n); by default 0 to n - 1."""
    if positions is None:
        return np.arange(rows[-1])
    array = as_array(name, positions, "numbers")
    if not (array.dtype.kind in "iu" or is_floating(array.dtype)) or array.dtype.kind == "c":
        raise TypeError(f"{name} must hold integers or real numbers, not {array.dtype} ({name}.shape={array.shape})")
    check_broadcasts_to(name, array, rows, "the rows")
    if array.ndim < 1 or array.shape[-1] != rows[-1]:
        raise ValueError(f"{name} must have a number for each of the {rows[-1]} rows ({name}.shape={array.shape})")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite ({name}.shape={array.shape})")
    return array


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
    return plain(base, width) / factor  # (rotary.18)


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
    original, length = _above("original_length", original_length), _above("length", length)
    slower = factor * max(length / WIDE(original), WIDE(1)) - (factor - 1)
    return Scaling(partial(_dynamic, slower=slower))


def _dynamic(base: float, width: int, slower: Any) -> Array:
    if width <= 2:  # the one frequency is 1 for every base
        return plain(base, width)
    return plain(base * slower ** (WIDE(width) / (width - 2)), width)  # (rotary.19)


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
        original_length=_above("original_length", original_length),
        beta_fast=_above("beta_fast", beta_fast),
        beta_slow=_above("beta_slow", beta_slow),
        truncate=as_flag("truncate", truncate),
    )
    return Scaling(frequencies, _amplitude(attention_factor, 1 + np.log(WIDE(factor)) / 10))


def _yarn(
    base: float,
    width: int,
    factor: float,
    original_length: float,
    beta_fast: float,
    beta_slow: float,
    truncate: bool,
) -> Array:
    # the pairs, counted from 0, that turn so many times over the original length (rotary.20)
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
    blended: Array = frequencies * (1 - ramp) + frequencies / factor * ramp  # (rotary.22)
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
    low, high = _above("low_freq_factor", low_freq_factor), _above("high_freq_factor", high_freq_factor)
    if not low < high:
        raise ValueError(f"high_freq_factor must be above low_freq_factor={low}, not {high}")
    original = _above("original_length", original_length)
    return Scaling(partial(_llama3, factor=_at_least_one("factor", factor), low=low, high=high, original=original))


def _llama3(base: float, width: int, factor: float, low: float, high: float, original: float) -> Array:
    frequencies = plain(base, width)
    turns = original * frequencies / (2 * PI)
    share = np.clip((turns - low) / (high - low), 0, 1)  # (rotary.25)
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
    original, length = _above("original_length", original_length, 1), _above("length", length)
    longer = (length if maximum_length is None else _above("maximum_length", maximum_length)) / WIDE(original)
    divisors = {name: _divisors(name, x) for name, x in (("short_factor", short_factor), ("long_factor", long_factor))}
    name = "long_factor" if length > original else "short_factor"
    amplitude = _amplitude(attention_factor, np.sqrt(1 + np.log(max(longer, WIDE(1))) / np.log(WIDE(original))))
    return Scaling(partial(_longrope, name=name, divisors=divisors[name]), amplitude)


def _divisors(name: str, factors: npt.ArrayLike) -> Array:
    given = as_array(name, factors)
    if given.ndim != 1 or given.dtype.kind not in "iuf" or not (np.isfinite(given) & (given > 0)).all():
        raise ValueError(f"{name} must be a vector of positive numbers ({name}.shape={given.shape}, {given.dtype})")
    return given.astype(WIDE)


def _longrope(base: float, width: int, name: str, divisors: Array) -> Array:
    if divisors.shape != (width // 2,):
        raise ValueError(
            f"{name} must have a number for each of the {width // 2} pairs that are turned "
            f"({name}.shape={divisors.shape})"
        )
    return plain(base, width) / divisors  # (rotary.27)


def _amplitude(given: float | None, usual: Any) -> Any:
    return usual if given is None else _above("attention_factor", given)


def _at_least_one(name: str, value: float) -> float:
    number = _above(name, value)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
    return number


def _above(name: str, value: float, bound: float = 0) -> float:
    number = float(as_number(name, value))
    if not bound < number < np.inf:
        raise ValueError(f"{name} must be finite and above {bound}, not {number}")
    return number
