"""What diagrams of mechanism are made of: boxes, which are arrays or steps, cells, arrows and words, as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from math import atan2, degrees

__all__ = ["arrow", "box", "cell", "circle", "flow", "grid", "picture", "text", "width_of"]

SIDE = 26  # of a cell of a grid
HEIGHT = 32  # of a box in a flow
_RAISED = re.compile(r"[_^](?:\{([^}]*)\}|(.))")  # as in d_k, W^Q and S_{t-1}


def picture(width: int, height: int, said: str, parts: Iterable[str]) -> str:
    """One picture of these parts, and what it says to those who cannot see it."""
    view = f'viewBox="0 0 {width} {height}" style="max-width: {width}px; min-width: min({width}px, 26rem)"'
    return f'<svg class="mechanism" role="img" aria-label="{escape(said)}" {view}>{"".join(parts)}</svg>'


def text(x: float, y: float, label: str, kind: str = "") -> str:
    """Words around `x` on the line `y`; what follows _ and ^ is small and stands lower or higher."""
    pieces, behind, level = [], 0, 0
    for match in _RAISED.finditer(label):
        pieces += [_piece(label[behind : match.start()], -level)] if match.start() > behind else []
        level = 0 if match.start() > behind else level
        shift = 4 if match[0][0] == "_" else -6
        pieces.append(_piece(match[1] or match[2], shift - level, "small"))
        level, behind = shift, match.end()
    pieces += [_piece(label[behind:], -level)] if behind < len(label) else []
    return f'<text x="{x:g}" y="{y:g}"{_class(kind)}>{"".join(pieces)}</text>'


def _piece(letters: str, shift: int, kind: str = "") -> str:
    moved = f' dy="{shift}"' if shift else ""
    return f"<tspan{moved}{_class(kind)}>{escape(letters)}</tspan>" if moved or kind else escape(letters)


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def box(x: float, y: float, width: float, height: float, label: str, below: str = "", kind: str = "") -> str:
    """An array or a step as a box: what it is called, and below it its shape."""
    middle = x + width / 2
    shape = text(middle, y + height + 15, below, "shape") if below else ""
    frame = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"{_class(kind)}/>'
    return f"{frame}{text(middle, y + height / 2 + 5, label)}{shape}"


def cell(x: float, y: float, kind: str, side: float = SIDE - 2, label: str = "") -> str:
    """One number of an array."""
    written = text(x + side / 2, y + side / 2 + 4, label, "shape") if label else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}"{_class(kind)}/>{written}'


def circle(x: float, y: float, label: str = "", radius: float = 11) -> str:
    """Where something is added or multiplied."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}"/>{text(x, y + 5, label) if label else ""}'


def grid(x: float, y: float, kinds: Sequence[str], below: str = "", labels: Sequence[Sequence[str]] = ()) -> str:
    """An array of cells: a word for each row, a letter for each cell (query, key, value, hidden, or empty: a dot)."""
    names = {"q": "query", "k": "key", "v": "value", "h": "hidden", ".": ""}
    cells = [
        cell(x + SIDE * j, y + SIDE * i, names[kind], label=labels[i][j].strip() if labels else "")
        for i, row in enumerate(kinds)
        for j, kind in enumerate(row)
    ]
    return "".join(cells) + (text(x + SIDE * len(kinds[0]) / 2, y + SIDE * len(kinds) + 15, below) if below else "")


def arrow(*points: tuple[float, float], label: str = "", kind: str = "arrow") -> str:
    """A line along these points with a tip at its end, and a label above the middle of its first part."""
    path = " L".join(f"{x:g} {y:g}" for x, y in points)
    (x, y), (next_x, next_y) = points[:2]
    (from_x, from_y), (end_x, end_y) = points[-2:]
    turned = degrees(atan2(end_y - from_y, end_x - from_x))
    tip = f'<path d="M0 0 L-8 -4 L-8 4 z" class="tip" transform="translate({end_x:g} {end_y:g}) rotate({turned:.1f})"/>'
    said = text((x + next_x) / 2, (y + next_y) / 2 - 7, label, "shape") if label else ""
    return f'<path d="M{path}" class="{kind}"/>{tip}{said}'


def width_of(label: str) -> float:
    """How wide a box must be for its label."""
    return max(38, 8 * len(_RAISED.sub("i", label)) + 18)


def flow(x: float, y: float, *steps: str | tuple[str, ...], kind: str = "arrow") -> str:
    """Boxes from left to right: a tuple is a box (label, what is below it, its kind), a string the arrow after it."""
    parts = []
    for step in steps:
        if isinstance(step, str):
            length = max(30, 6.5 * len(_RAISED.sub("i", step)) + 16)
            ends = ((x + length - 4, y + HEIGHT / 2), (x + 4, y + HEIGHT / 2))
            parts.append(arrow(*(ends if kind == "back" else ends[::-1]), label=step, kind=kind))
            x += length
        else:
            width = width_of(step[0])
            parts.append(box(x, y, width, HEIGHT, *step))
            x += width
    return "".join(parts)
