"""What the tests of pictures draw, and what they look at."""

from typing import Any

import numpy as np
import pytest

from attention_np import masks, trace

font_manager = pytest.importorskip("matplotlib.font_manager", reason="pip install 'attention-np[plot]'")

ENGLISH, CHINESE = ["The", "cat", "sat", "on", "the", "mat"], list("猫坐在垫子上")
A = trace.dot_product("The cat sat on the mat", is_causal=True)["A"].array  # (6, 6)
CAUSAL = masks.causal(6)
CHINESE_FONT = any("CJK" in font.name for font in font_manager.fontManager.ttflist)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def drawn(ax: Any) -> None:
    """The whole figure is drawn; a warning would be an error."""
    ax.figure.canvas.draw()


def image_of(ax: Any) -> np.ndarray:
    return np.ma.filled(ax.images[0].get_array().astype(float), np.nan)


def ticks(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def legend_of(ax: Any) -> list[str]:
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def overlap(texts: list[Any]) -> list[tuple[str, str]]:
    """Those of the texts that lie on each other, turned as they are."""
    corners = [(text.get_text(), _corners(text)) for text in texts if text.get_text().strip()]
    return [(a, b) for i, (a, one) in enumerate(corners) for b, other in corners[:i] if not _apart(one, other)]


def _corners(text: Any) -> np.ndarray:
    """The corners of the box around a text, in order."""
    turned, angle = text.get_window_extent(), text.get_rotation()
    text.set_rotation(0)
    level = text.get_window_extent()
    text.set_rotation(angle)
    centre = (turned.p0 + turned.p1) / 2
    along = np.array([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))])
    across = np.array([-along[1], along[0]])
    half = level.width / 2 * along, level.height / 2 * across
    return np.array([centre + x * half[0] + y * half[1] for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))])


def _apart(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether a line parallel to a side of one of two boxes divides them."""
    for side in (one[1] - one[0], one[2] - one[1], other[1] - other[0], other[2] - other[1]):
        first, second = one @ side, other @ side
        if first.max() <= second.min() or second.max() <= first.min():
            return True
    return False


def hatched(ax: Any) -> dict[str, np.ndarray]:
    """Which cells of a heat map lie under which hatch."""
    rows, columns = ax.images[0].get_array().shape
    return {
        patch.get_hatch(): np.array(
            [[patch.get_path().contains_point((column, row)) for column in range(columns)] for row in range(rows)]
        )
        for patch in ax.patches
    }
