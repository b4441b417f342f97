"""Saturation over the width, and cost over the length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from attention_np import cost as costs
from attention_np import dot_product
from attention_np._arrays import as_integer
from attention_np._dropout import Rng, as_generator
from attention_np._figures import one_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["cost", "saturation"]

# Told apart by the line and the marker, too; the colours are those of Okabe and Ito.
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
)
WIDTHS = tuple(4**power for power in range(6))
LENGTHS = tuple(2**power for power in range(7, 17))
UNITS = {"memory": ("memory of forward and backward", 1024), "flops": ("operations of forward and backward", 1000)}


def saturation(
    widths: Sequence[int] = WIDTHS, *, m: int = 16, samples: int = 256, rng: Rng = 0, ax: Axes | None = None
) -> Axes:
    r"""Plot how much gradient softmax lets through over the width d_k, with and without the factor 1/sqrt(d_k).

    Queries and keys are standard normal, so that the scores have the standard deviation sqrt(d_k) without the factor
    and 1 with it. The curve is the median over many queries, the band reaches from the lower to the upper decile.

    Parameters
    ----------
    widths : sequence of int, optional
        The widths d_k.
    m : int, optional
        The number of keys, at least 2.
    samples : int, optional
        The number of queries for each width.
    rng : int or numpy.random.Generator, optional
    ax : matplotlib.axes.Axes, optional
        Where to plot; by default on a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        If Matplotlib is missing.
    TypeError, ValueError
        If a width or a number is not an integer of at least 1.

    Notes
    -----
    What is plotted is the trace of the Jacobian, :math:`\sum_j \partial A_j / \partial S_j = 1 - \sum_j A_j^2`. As the
    Jacobian has no negative eigenvalue, this bounds all of them. Derived in ``derivations/softmax.md``; why the factor
    is the right one, in ``derivations/scaling.md``.
    """
    widths = [as_integer("each of widths", width, least=1) for width in widths]
    m, samples = as_integer("m", m, least=2), as_integer("samples", samples, least=1)
    generator = as_generator(rng)
    ax = one_axes(ax, 6.5, 4.5)
    passed = np.array(
        [_passed(generator, width, m, samples) for width in widths]
    )  # (widths, with and without, samples)
    for which, label in enumerate((r"with $1/\sqrt{d_k}$", r"without $1/\sqrt{d_k}$")):
        low, median, high = np.quantile(passed[:, which], (0.1, 0.5, 0.9), axis=1)
        ax.plot(widths, median, label=label, **LOOKS[which])
        ax.fill_between(widths, low, high, color=LOOKS[which]["color"], alpha=0.2, lw=0)
    ax.axhline(1 - 1 / m, color="0.5", lw=0.8, ls=":", label=f"equal weights, $1 - 1/{m}$")
    ax.set_xscale("log", base=2)
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.minorticks_off()
    ax.set_ylim(0, 1)
    ax.set_xlabel("width $d_k$")
    ax.set_ylabel(r"gradient that passes, $1 - \Sigma_j A_j^2$")
    ax.grid(alpha=0.25)
    ax.legend(frameon=False)
    return ax


def _passed(generator: np.random.Generator, width: int, m: int, samples: int) -> npt.NDArray[Any]:
    """The trace of the Jacobian for each query, with the factor and without: (2, samples)."""
    query = generator.standard_normal((samples, 1, width))
    key = generator.standard_normal((samples, m, width))
    value = np.zeros((samples, m, 1))
    found = []
    for scale in (None, 1.0):
        _, cache = dot_product.forward(query, key, value, scale=scale)
        found.append(1 - (cache.weights**2).sum(axis=-1)[:, 0])
    return np.array(found)


def cost(
    lengths: Sequence[int] = LENGTHS,
    *,
    sizes: costs.Sizes | None = None,
    quantity: Literal["memory", "flops"] = "memory",
    memory: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot what attention costs over the length of the sequence, plain and blockwise, by :mod:`attention_np.cost`.

    Parameters
    ----------
    lengths : sequence of int, optional
        The numbers of queries, and of keys if `sizes` has no other number.
    sizes : attention_np.cost.Sizes, optional
        All sizes but the length; by default 32 heads of 64 features in single precision.
    quantity : {"memory", "flops"}, optional
        The most memory in use at once, or the operations; of a forward and a backward pass.
    memory : int, optional
        A line at so many bytes: what there is.
    ax : matplotlib.axes.Axes, optional
        Where to plot; by default on a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        If Matplotlib is missing.
    TypeError, ValueError
        If a length is not an integer of at least 1, or `quantity` is unknown.
    """
    if quantity not in UNITS:
        raise ValueError(f"quantity must be 'memory' or 'flops', not {quantity!r}")
    lengths = [as_integer("each of lengths", length, least=1) for length in lengths]
    sizes = costs.Sizes(n=1, heads=32) if sizes is None else sizes
    ax = one_axes(ax, 6.5, 4.5)
    name, base = UNITS[quantity]
    for look, (label, algorithm) in zip(
        LOOKS[::-1], (("plain", costs.dot_product), ("blockwise", costs.blockwise)), strict=True
    ):
        found = [algorithm(replace(sizes, n=length)) for length in lengths]
        ax.plot(lengths, [_number(entry, quantity) for entry in found], label=label, **look)
    from matplotlib.ticker import FuncFormatter

    if memory is not None and quantity == "memory":
        ax.axhline(memory, color="0.3", lw=1, ls=":", label=f"{_with_unit(memory, base)} of memory")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2 if base == 1024 else 10)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda length, _: f"{length:.0f}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _with_unit(value, base)))
    ax.set_xlabel("length of the sequence, n")
    ax.set_ylabel(name)
    ax.grid(alpha=0.25)
    ax.legend(frameon=False)
    return ax


def _number(found: costs.Costs, quantity: str) -> int:
    return found.memory if quantity == "memory" else found.forward.flops + found.backward.flops


def _with_unit(value: float, base: int) -> str:
    prefixes = ("", "Ki", "Mi", "Gi", "Ti", "Pi") if base == 1024 else ("", "k", "M", "G", "T", "P")
    power = min(int(math.log(max(value, 1), base) + 1e-9), len(prefixes) - 1)
    return f"{value / base**power:.3g} {prefixes[power]}{'B' if base == 1024 else 'flop'}"
