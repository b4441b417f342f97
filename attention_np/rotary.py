r"""Rotary positions: each pair of features is turned by an angle that grows with the position.

.. math::

    \varphi_{ia} = p_i \theta_a, \qquad
    y_{ia} = x_{ia} \cos \varphi_{ia} - x_{i,w+a} \sin \varphi_{ia}, \qquad
    y_{i,w+a} = x_{ia} \sin \varphi_{ia} + x_{i,w+a} \cos \varphi_{ia}

The product of a turned query and a turned key depends on the difference of their positions alone. Pair a turns at the
frequency :math:`\theta_a = \mathrm{base}^{-2 a / 2w}`, a from 0, or as one of the scalings says. Where a row has a
position on each of several axes, such as time, row and column of a picture, each pair turns by that of one of them. The
derivation is ``derivations/rotary.md`` of the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import as_array, as_flag, as_floating, as_integer, check_broadcasts_to
from attention_np._lib.arrays import Array, is_floating, precision, real_types
from attention_np._lib.passes import Tangent
from attention_np._rotary.frequencies import WIDE, Scaling, above, dynamic, linear, llama3, longrope, plain, yarn

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
KEPT = 2**17  # cosines in a table that is kept, of eight at most: those of 4096 rows of 64 features
ARRANGEMENTS = ("runs", "interleaved")  # of the pairs that turn by the same axis


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


def forward(
    x: npt.ArrayLike,
    positions: npt.ArrayLike | None = None,
    *,
    base: float = 10000.0,
    width: int | None = None,
    interleaved: bool = False,
    trailing: bool = False,
    scaling: Scaling | None = None,
    sections: Sequence[int] | None = None,
    arrangement: str = "runs",
    restart: bool = False,
) -> tuple[Array, Cache]:
    r"""Turn the features of each row by the angles of its position.

    Parameters
    ----------
    x : array_like of float, (..., n, d)
        Queries or keys.
    positions : array_like of int or float, (n,) or (..., n), optional
        Of the rows; leading axes broadcast to those of `x`. By default 0 to n - 1. With `sections` there is an axis
        before these, (axes, n) or (axes, ..., n): the positions on each axis, by default 0 to n - 1 on all.
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
    sections : sequence of int, optional
        How many pairs turn by the position on each axis; they sum to ``width / 2``. By default there is one axis.
    arrangement : str, optional
        Which pairs these are. "runs": the first ``sections[0]`` pairs turn by axis 0, the next ``sections[1]`` by axis
        1, and so on, as in Qwen2-VL. "interleaved": the axes take turns, pair p by axis ``p mod axes``, as long as its
        section has pairs left (``p // axes < sections[p mod axes]``), and else by axis 0, as in Qwen3-VL.
    restart : bool, optional
        For runs: each section has frequencies of its own, those of a width of twice its pairs, as in vision towers. By
        default a pair has the frequency that it has without sections.

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
        more than d, `base` is not above 1, or `scaling` is made for another width; if `sections` do not sum to half of
        `width`, or `arrangement` or `restart` is given without them.

    Notes
    -----
    Su et al. [1]_; several axes as in Wang et al. [2]_. Angles are worked out in extended precision where NumPy has it.

    References
    ----------
    .. [1] J. Su et al., "RoFormer: enhanced transformer with rotary position embedding", arXiv:2104.09864, 2021.
    .. [2] P. Wang et al., "Qwen2-VL: enhancing vision-language model's perception of the world at any resolution",
       arXiv:2409.12191, 2024.

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

    A row at time 1 in the first line, two columns to the right. The first of three pairs turns by the time:

    >>> places = [[1], [0], [2]]  # time, line and column of the one row
    >>> output, _ = rotary.forward(np.array([[1.0, 1, 1, 0, 0, 0]]), places, sections=[1, 1, 1])
    >>> print(output.round(4))
    [[0.5403 1.     1.     0.8415 0.     0.0043]]
    """
    x = as_floating("x", x)
    if x.ndim < 2:
        raise ValueError(f"x must have at least two axes, (..., n, features) (x.shape={x.shape})")
    layout = width, interleaved, trailing, scaling, sections, arrangement, restart
    angles = Angles.of(x.shape[-1], base, *layout)
    cos, sin = angles.at(as_positions("positions", positions, x.shape[:-1], angles.num_axes), precision(x).compute)
    return turn(x=x, cos=cos, sin=sin, first=angles.first, second=angles.second)


@passes.forward
def turn(x: Array, cos: Array, sin: Array, first: slice, second: slice) -> tuple[Array, Cache]:
    """What :func:`forward` computes, of arguments that it has checked."""
    output = turned(x, cos, sin, first, second)  # (..., n, d) (rotary.6)
    return output, Cache(x=x, cos=cos, sin=sin, first=first, second=second, output_shape=output.shape)


def turned(x: Array, cos: Array, sin: Array, first: slice, second: slice) -> Array:
    """Each pair of features turned. For ops."""
    output: Array = x.copy()  # (..., n, d)
    one, other = x[..., first], x[..., second]  # (..., n, width / 2) (rotary.4)
    output[..., first] = one * cos - other * sin  # (rotary.5)
    output[..., second] = one * sin + other * cos  # (rotary.5)
    return output


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> Gradients:
    """The gradient of a loss with respect to `x`, from that of the output, (..., n, d): turned back."""
    # (rotary.13, rotary.14)
    return Gradients(x=turned(d_output, cache.cos, -cache.sin, cache.first, cache.second))  # (..., n, d)


@passes.jvp
def jvp(cache: Cache, *, x: Tangent = None) -> Array:
    """Forward mode: the output is linear in `x`, so its tangent is the turned tangent."""
    return turned(x, cache.cos, cache.sin, cache.first, cache.second)  # (..., n, d) (rotary.17)


double_backward = passes.second_derivative(turn, backward)


class Angles(NamedTuple):
    """Which features are turned, how fast, and by the position on which axis."""

    frequencies: Array  # (width / 2,)
    amplitude: float
    first: slice
    second: slice
    num_axes: int | None = None  # of positions; None: they are of one, and have no axis for it
    axes: Array | None = None  # (width / 2,): whose position each pair turns by

    @classmethod
    def of(
        cls,
        d: int,
        base: float = 10000.0,
        width: int | None = None,
        interleaved: bool = False,
        trailing: bool = False,
        scaling: Scaling | None = None,
        sections: Sequence[int] | None = None,
        arrangement: str = "runs",
        restart: bool = False,
    ) -> Angles:
        """As the options of :func:`forward` say of d features."""
        base = above("base", base, 1)
        width = d if width is None else as_integer("width", width, least=0)
        if width % 2 or width > d:
            raise ValueError(f"width must be even, and at most the {d} features, not {width}")
        if scaling is not None and not isinstance(scaling, Scaling):
            raise TypeError(f"scaling must be a rotary.Scaling, not {type(scaling).__name__}")
        frequencies, amplitude = Scaling(plain) if scaling is None else scaling
        start = d - width if as_flag("trailing", trailing) else 0
        if as_flag("interleaved", interleaved):
            places = slice(start, start + width, 2), slice(start + 1, start + width, 2)  # (rotary.19)
        else:
            places = slice(start, start + width // 2), slice(start + width // 2, start + width)
        sizes = as_sections(sections, arrangement, restart, width)
        if sizes is None:
            return cls(frequencies(base, width), amplitude, *places)
        if restart:
            speeds = np.concatenate([frequencies(base, 2 * size) for size in sizes])  # (width / 2,) (rotary.28)
        else:
            speeds = frequencies(base, width)
        return cls(speeds, amplitude, *places, len(sizes), axes_of_pairs(sizes, arrangement))

    def at(self, positions: Array, compute: np.dtype[Any]) -> tuple[Array, Array]:
        """Cosine and sine of the angles at `positions`, (..., n) or (axes, ..., n), each (..., n, width / 2)."""
        of_pairs = positions[..., None] if self.axes is None else np.moveaxis(positions, 0, -1)[..., self.axes]
        arrays = of_pairs, np.asarray(self.frequencies, WIDE), np.asarray(self.amplitude, WIDE)  # of one's own scaling
        turns = _turns if positions.size * arrays[1].size <= KEPT else _turns.__wrapped__
        real: Any = real_types(compute)[0]
        return turns(real, *[(x.shape, x.dtype, x.tobytes()) for x in arrays])


@lru_cache(maxsize=8)
def _turns(real: Any, *contents: tuple[tuple[int, ...], np.dtype[Any], bytes]) -> tuple[Array, Array]:
    """Cosine and sine, of positions by their content: each layer of a model asks for the same ones again."""
    of_pairs, frequencies, amplitude = (np.ndarray(*content) for content in contents)
    angles = of_pairs.astype(WIDE) * frequencies  # (rotary.3, rotary.23)
    turns = (amplitude * np.cos(angles)).astype(real), (amplitude * np.sin(angles)).astype(real)  # (rotary.39)
    for x in turns:
        x.flags.writeable = False
    return turns


def as_sections(sections: Sequence[int] | None, arrangement: str, restart: bool, width: int) -> tuple[int, ...] | None:
    """How many pairs turn by each axis, if the options of axes fit together."""
    if not isinstance(arrangement, str) or arrangement not in ARRANGEMENTS:
        raise ValueError(f"arrangement must be one of {', '.join(map(repr, ARRANGEMENTS))}, not {arrangement!r}")
    as_flag("restart", restart)
    if sections is None:
        if restart or arrangement != "runs":
            raise ValueError("arrangement and restart are for sections, which are not given")
        return None
    if isinstance(sections, str) or not isinstance(sections, Sequence | np.ndarray):
        raise TypeError(f"sections must be a sequence of integers, not {type(sections).__name__}")
    sizes = tuple([as_integer("each of sections", size, least=0) for size in sections])
    if not sizes or 2 * sum(sizes) != width:
        raise ValueError(f"sections must sum to the {width // 2} pairs that are turned, not to {sum(sizes)}: {sizes}")
    if restart and arrangement != "runs":
        raise ValueError("restart is for sections in runs, not interleaved")
    return sizes


def axes_of_pairs(sizes: tuple[int, ...], arrangement: str) -> Array:
    """Whose position each pair turns by, (width / 2,)."""
    if arrangement == "runs":
        return np.repeat(np.arange(len(sizes)), sizes)  # (rotary.21)
    place, axes = np.divmod(np.arange(sum(sizes)), len(sizes))
    return np.where(place < np.array(sizes)[axes], axes, 0)  # (rotary.29)


def as_positions(
    name: str, positions: npt.ArrayLike | None, rows: tuple[int, ...], num_axes: int | None = None
) -> Array:
    """`positions` as an array that broadcasts to `rows`, (..., n), behind so many axes; by default 0 to n - 1."""
    if positions is None:
        return np.broadcast_to(np.arange(rows[-1]), (rows[-1],) if num_axes is None else (num_axes, rows[-1]))
    array = as_array(name, positions, "numbers")
    if not (array.dtype.kind in "iu" or is_floating(array.dtype)) or array.dtype.kind == "c":
        raise TypeError(f"{name} must hold integers or real numbers, not {array.dtype} ({name}.shape={array.shape})")
    if num_axes is None:
        check_broadcasts_to(name, array, rows, "the rows")
    elif array.ndim < 2 or len(array) != num_axes:
        raise ValueError(
            f"{name} must have the shape ({num_axes}, {rows[-1]}) or ({num_axes}, ..., {rows[-1]}), with the axes of "
            f"the {num_axes} sections first ({name}.shape={array.shape})"
        )
    else:
        check_broadcasts_to(f"{name}[0]", array[0], rows, "the rows")
    if array.ndim < 1 or array.shape[-1] != rows[-1]:
        raise ValueError(f"{name} must have a number for each of the {rows[-1]} rows ({name}.shape={array.shape})")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite ({name}.shape={array.shape})")
    return array
