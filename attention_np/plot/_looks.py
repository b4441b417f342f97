"""How every picture shows what has no colour and no length of its own: hidden pairs, and NaN."""

from __future__ import annotations

from typing import Any

HIDDEN: dict[str, Any] = {"facecolor": "0.85", "edgecolor": "0.6", "hatch": "////", "linewidth": 0}
NAN: dict[str, Any] = {"facecolor": "white", "edgecolor": "#D55E00", "hatch": "xxxx", "linewidth": 0}


def marks(*, hidden: bool, nan: bool) -> list[Any]:
    """What a legend shows for the marks that a picture has."""
    from matplotlib.patches import Patch

    shown = [(hidden, HIDDEN, "hidden"), (nan, NAN, "NaN")]
    return [Patch(**look, label=label) for there, look, label in shown if there]


def number(value: float, digits: int) -> str:
    """`value` as a picture writes it.

    Examples
    --------
    >>> number(0.25, 2), number(-0.001, 2), number(float("nan"), 2)
    ('0.25', '0.00', 'NaN')
    """
    text = f"{round(value, digits) + 0.0:.{digits}f}"  # adding zero: no minus before a zero
    return text.replace("nan", "NaN").replace("-", "\N{MINUS SIGN}")
