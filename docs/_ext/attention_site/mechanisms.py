"""Diagrams of mechanism, as SVG in the colours of the page: boxes, which are arrays, and arrows between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

__all__ = ["MECHANISMS"]


def _picture(width: int, height: int, said: str, parts: Iterable[str]) -> str:
    """One picture of these parts, and what it says to those who cannot see it."""
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" class="tip"/></marker></defs>'
    )
    view = f'viewBox="0 0 {width} {height}" style="max-width: {width}px"'
    return f'<svg class="mechanism" role="img" aria-label="{escape(said)}" {view}>{marker}{"".join(parts)}</svg>'


def _box(x: int, y: int, width: int, height: int, label: str, below: str = "", kind: str = "") -> str:
    """An array as a box: what it is called, and below it its shape."""
    middle = f'x="{x + width / 2}"'
    text = f'<text {middle} y="{y + height / 2 + 5}">{escape(label)}</text>'
    shape = f'<text {middle} y="{y + height + 15}" class="shape">{escape(below)}</text>' if below else ""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" class="{kind}"/>{text}{shape}'


def _arrow(*points: tuple[int, int], label: str = "") -> str:
    """A line along these points with a tip at its end, and a label above the middle of its first part."""
    path = " L".join(f"{x} {y}" for x, y in points)
    (x, y), (next_x, next_y) = points[:2]
    text = (
        f'<text x="{(x + next_x) / 2}" y="{(y + next_y) / 2 - 7}" class="shape">{escape(label)}</text>' if label else ""
    )
    return f'<path d="M{path}" class="arrow" marker-end="url(#tip)"/>{text}'


def _cell(x: int, y: int, side: int, kind: str) -> str:
    """One number of an array."""
    return f'<rect x="{x}" y="{y}" width="{side}" height="{side}" class="{kind}"/>'


def _attention(said: str) -> str:
    parts = [
        _box(10, 20, 40, 70, "Q", "n x d_k", "query"),
        _box(70, 35, 70, 40, "Kᵀ", "d_k x m", "key"),
        _arrow((145, 55), (195, 55), label="÷ √d_k"),
        _box(200, 20, 70, 70, "S", "n x m"),
        _arrow((275, 55), (335, 55), label="softmax"),
        _box(340, 20, 70, 70, "A", "n x m"),
        _box(425, 20, 40, 70, "V", "m x d_v", "value"),
        _arrow((470, 55), (505, 55)),
        _box(510, 20, 40, 70, "O", "n x d_v"),
    ]
    return _picture(560, 115, said, parts)


def _heads(said: str) -> str:
    parts = []
    for head in range(4):
        parts += [_box(10, 10 + 40 * head, 90, 30, f"query {head + 1}", kind="query")]
        parts += [_arrow((103, 25 + 40 * head), (205, 45 + 80 * (head // 2)))]
        parts += [_arrow((310, 45 + 80 * (head // 2)), (405, 25 + 40 * head))]
        parts += [_box(410, 10 + 40 * head, 90, 30, f"output {head + 1}")]
    parts += [_box(210, 30 + 80 * group, 95, 30, f"key, value {group + 1}", kind="key") for group in range(2)]
    parts += [_arrow((503, 85), (545, 85), label="W^O"), _box(550, 70, 60, 30, "sum")]
    return _picture(620, 175, said, parts)


def _block(said: str) -> str:
    parts = [_box(5, 85, 45, 30, "x")]
    for start, name in ((50, "attention"), (310, "feed-forward")):
        parts += [
            _arrow((start + 2, 100), (start + 238, 100)),
            _arrow((start + 20, 100), (start + 20, 35), (start + 33, 35)),
            _box(start + 35, 20, 55, 30, "norm"),
            _arrow((start + 92, 35), (start + 108, 35)),
            _box(start + 110, 20, 100, 30, name, kind="query" if name == "attention" else "value"),
            _arrow((start + 212, 35), (start + 248, 35), (start + 248, 86)),
            f'<circle cx="{start + 248}" cy="100" r="11"/><text x="{start + 248}" y="105">+</text>',
        ]
    parts += [_arrow((569, 100), (600, 100)), _box(603, 85, 45, 30, "y")]
    return _picture(655, 125, said, parts)


def _score(said: str) -> str:
    parts = [_box(10, 65, 50, 30, "s_j")]
    for row in range(3):
        y = 20 + 45 * row
        parts += [_arrow((62, 80), (155, y + 15)), _box(160, y, 60, 30, f"w_{row + 1}", kind="query")]
        parts += [_arrow((222, y + 15), (315, 80))]
    parts += [_box(320, 65, 50, 30, "o"), _arrow((372, 80), (435, 80)), _box(440, 65, 60, 30, "loss")]
    return _picture(510, 160, said, parts)


def _state(said: str) -> str:
    parts = [_box(10, 60, 70, 40, "S_{t-1}")]
    names = ["decay", "read for k", "correct", "write"]
    for place, name in enumerate(names):
        x = 115 + 110 * place
        parts += [_arrow((x - 33, 80), (x - 5, 80)), _box(x, 62, 78, 36, name, kind="key" if place in (1, 2) else "")]
    parts += [_arrow((525, 80), (550, 80)), _box(553, 60, 55, 40, "S_t")]
    parts += [_arrow((374, 20), (374, 60)), '<text x="374" y="14">v, β</text>']
    parts += [_arrow((154, 20), (154, 60)), '<text x="154" y="14">e^g</text>']
    parts += [_arrow((580, 103), (580, 140)), '<text x="520" y="158">o = scale · Sᵀ q</text>']
    return _picture(620, 170, said, parts)


def _chunks(said: str) -> str:
    parts = []
    for i in range(6):
        for j in range(i + 1):
            parts += [_cell(20 + 34 * j, 15 + 34 * i, 31, "query" if i // 2 == j // 2 else "key")]
    parts += [_cell(175, 45, 18, "query"), '<text x="330" y="60">within a chunk: products of matrices</text>']
    parts += [_cell(175, 75, 18, "key"), '<text x="330" y="90">before it: through the state alone</text>']
    return _picture(480, 235, said, parts)


MECHANISMS: dict[str, Callable[[str], str]] = {
    "attention": _attention,
    "heads": _heads,
    "block": _block,
    "score": _score,
    "state": _state,
    "chunks": _chunks,
}
