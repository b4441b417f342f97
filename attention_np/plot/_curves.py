"""Saturation over the width, and cost over the length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from attention_np import cost as costs
from attention_np import dot_product
from attention_np._lib.arguments import as_integer, as_number
from attention_np._lib.arrays import Array
from attention_np._lib.dropout import Rng, as_generator
from attention_np._lib.figures import legend_below, one_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Number = TypeVar("Number", int, float)

# Told apart by the line and the marker, too; the colours are those of Okabe and Ito.
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
)
WIDTHS = tuple(4**power for power in range(6))
LENGTHS = tuple(2**power for power in range(7, 17))
LARGE = 1e4  # numbers from here on are written without a fraction
MARGIN = 0.05  # of the axis, on either side
DIGIT = 0.1  # inches: of a digit beside an axis
UNITS = {"memory": ("memory of forward and backward", 1024), "flops": ("operations of forward and backward", 1000)}


def saturation(
    widths: Iterable[int] | None = None,
    *,
    scales: Iterable[float] | None = None,
    d_k: int = 64,
    m: int = 16,
    samples: int = 256,
    rng: Rng = 0,
    ax: Axes | None = None,
) -> Axes:
    r"""Plot how much gradient softmax lets through, with and without the factor 1/sqrt(d_k).

    Over the width d_k: queries and keys are standard normal, so that the scores have the standard deviation sqrt(d_k)
    without the factor and 1 with it. Or, with `scales`, over the scale of the scores at one width: the queries are
    multiplied by a number, as they may be in the course of learning. The curve is the median over many queries, the
    band reaches from the lower to the upper decile.

    Parameters
    ----------
    widths : iterable of int, optional
        The widths d_k, in any order; by default powers of 4 from 1 to 1024.
    scales : iterable of float, optional
        The standard deviations of the scores before the factor, in the place of `widths`.
    d_k : int, optional
        The width, if `scales` are given.
    m : int, optional
        The number of keys, at least 2.
    samples : int, optional
        The number of queries for each width or scale.
    rng : int or numpy.random.Generator, optional
    ax : matplotlib.axes.Axes, optional
        Where to plot; by default on a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError, ValueError
        If a width or a number is not an integer of at least 1, a scale is not a finite number above 0, there is none,
        or there are both.

    Notes
    -----
    What is plotted is the trace of the Jacobian, :math:`\sum_j \partial A_j / \partial S_j = 1 - \sum_j A_j^2`. As the
    Jacobian has no negative eigenvalue, this bounds all of them. Derived in ``derivations/softmax.md``; why the factor
    is the right one, in ``derivations/scaling.md``.
    """
    if widths is not None and scales is not None:
        raise ValueError("give either widths or scales: each is a horizontal axis of its own")
    d_k, m = as_integer("d_k", d_k, least=1), as_integer("m", m, least=2)
    samples = as_integer("samples", samples, least=1)
    generator = as_generator(rng)
    if scales is None:
        places: list[Any] = _in_order("widths", WIDTHS if widths is None else widths, _size)
        passed = [_passed(*_normal(generator, width, m, samples)) for width in places]
    else:
        places = _in_order("scales", scales, _finite)
        query, key = _normal(generator, d_k, m, samples)  # the same for all scales: the curves are smooth
        passed = [_passed(query * (scale / math.sqrt(d_k)), key) for scale in places]

    ax = one_axes(ax, 6.5, 4.5)
    for which, label in enumerate((r"with $1/\sqrt{d_k}$", r"without $1/\sqrt{d_k}$")):
        low, median, high = np.quantile([pair[which] for pair in passed], (0.1, 0.5, 0.9), axis=1)
        ax.plot(places, median, label=label, **LOOKS[which])
        ax.fill_between(places, low, high, color=LOOKS[which]["color"], alpha=0.2, lw=0)
    ax.axhline(1 - 1 / m, color="0.5", lw=0.8, ls=":", label=f"equal weights, $1 - 1/{m}$")
    if scales is not None:
        ax.axvline(math.sqrt(d_k), color="0.5", lw=0.8, ls="--", label="standard normal queries and keys")
    _logarithmic(ax, places)
    ax.set_ylim(0, 1)
    ax.set_xlabel("width $d_k$" if scales is None else f"standard deviation of $q \\cdot k$, of width $d_k = {d_k}$")
    ax.set_ylabel(r"gradient that passes, $1 - \Sigma_j A_j^2$")
    ax.grid(alpha=0.25)
    legend_below(ax, columns=2)
    return ax


def _in_order(name: str, numbers: Iterable[Any], read: Callable[[str, Any], Number]) -> list[Number]:
    """Distinct numbers, each as `read` has it, from the smallest to the largest; there must be one."""
    if not isinstance(numbers, Iterable):
        raise TypeError(f"{name} must be a list of numbers, not {numbers!r}")
    in_order = sorted({read(f"each of {name}", number) for number in numbers})
    if not in_order:
        raise ValueError(f"{name} must hold at least one number")
    return in_order


def _size(name: str, value: Any) -> int:
    return as_integer(name, value, least=1)


def _finite(name: str, value: Any) -> float:
    number = float(as_number(name, value))
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be finite and above 0, not {value}")
    return number


def _logarithmic(ax: Axes, places: Sequence[float]) -> None:
    """A logarithmic axis with the numbers of `places`, or as many of them as there is room for."""
    ax.set_xscale("log", base=2)
    texts = {place: f"{place:g}" if place < LARGE else str(round(place)) for place in places}
    inches = ax.get_window_extent().width / ax.figure.dpi
    apart = math.log(places[-1] / places[0]) * DIGIT * (max(map(len, texts.values())) + 1) / inches
    shown = [places[0]]
    for place in places[1:]:
        if math.log(place / shown[-1]) >= apart:
            shown.append(place)
    ax.set_xticks(shown, [texts[place] for place in shown])
    room = (places[-1] / places[0]) ** MARGIN if places[1:] else 2
    ax.set_xlim(places[0] / room, places[-1] * room)
    ax.minorticks_off()


def _normal(generator: np.random.Generator, width: int, m: int, samples: int) -> tuple[Array, Array]:
    """Queries (samples, 1, width), each with keys of its own (samples, m, width)."""
    query = generator.standard_normal((samples, 1, width))
    return query, generator.standard_normal((samples, m, width))


def _passed(query: Array, key: Array) -> list[Array]:
    """The trace of the Jacobian for each query, with the factor and without: two of (samples,)."""
    value = np.zeros((*key.shape[:-1], 1))
    traces = []
    for scale in (None, 1.0):
        _, cache = dot_product.forward(query, key, value, scale=scale)
        traces.append(1 - (cache.weights**2).sum(axis=-1)[:, 0])
    return traces


def cost(
    lengths: Iterable[int] = LENGTHS,
    *,
    sizes: costs.Sizes | None = None,
    quantity: Literal["memory", "flops"] = "memory",
    memory: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot what attention costs over the length of the sequence, plain and blockwise, by :mod:`attention_np.cost`.

    Parameters
    ----------
    lengths : iterable of int, optional
        The numbers of queries, and of keys if `sizes` has no other number. In any order.
    sizes : attention_np.cost.Sizes, optional
        All sizes but the length; by default 32 heads of 64 features in single precision.
    quantity : {"memory", "flops"}, optional
        The most memory in use at once, or the operations; of a forward and a backward pass.
    memory : float, optional
        A line at so many bytes: the memory of a machine.
    ax : matplotlib.axes.Axes, optional
        Where to plot; by default on a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError, ValueError
        If a length is not an integer of at least 1, there is none, `memory` is not a finite number above 0, or
        `quantity` is unknown.
    """
    if quantity not in UNITS:
        raise ValueError(f"quantity must be 'memory' or 'flops', not {quantity!r}")
    lengths = _in_order("lengths", lengths, _size)
    limit = None if memory is None else _finite("memory", memory)
    sizes = costs.Sizes(n=1, heads=32) if sizes is None else sizes
    ax = one_axes(ax, 6.5, 4.5)
    name, base = UNITS[quantity]
    for look, (label, algorithm) in zip(
        LOOKS[::-1], (("plain", costs.dot_product), ("blockwise", costs.blockwise)), strict=True
    ):
        entries = [algorithm(replace(sizes, n=length)) for length in lengths]
        ax.plot(lengths, [_number(entry, quantity) for entry in entries], label=label, **look)
    from matplotlib.ticker import FuncFormatter

    if limit is not None and quantity == "memory":
        ax.axhline(limit, color="0.5", lw=1, ls=":", label=f"{_with_unit(limit, base)} of memory")
    _logarithmic(ax, lengths)
    step = 2 if base == 1024 else 10
    ax.set_yscale("log", base=step)
    low, high = (math.log(end, step) for end in ax.get_ylim())
    ax.set_ylim(float(step) ** math.floor(low), float(step) ** math.ceil(high))  # however near the numbers: two ticks
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _with_unit(value, base)))
    ax.set_xlabel("length of the sequence, n")
    ax.set_ylabel(name)
    ax.grid(alpha=0.25)
    ax.legend(frameon=False)
    return ax


def _number(of_algorithm: costs.Costs, quantity: str) -> int:
    return of_algorithm.memory if quantity == "memory" else of_algorithm.forward.flops + of_algorithm.backward.flops


def _with_unit(value: float, base: int) -> str:
    prefixes = ("", "Ki", "Mi", "Gi", "Ti", "Pi") if base == 1024 else ("", "k", "M", "G", "T", "P")
    power = min(int(math.log(max(value, 1), base) + 1e-9), len(prefixes) - 1)
    return f"{value / base**power:.3g} {prefixes[power]}{'B' if base == 1024 else 'flop'}"
