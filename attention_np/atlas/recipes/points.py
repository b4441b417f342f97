"""Queries that look at a few points of a picture: the detection transformers."""

from __future__ import annotations

from typing import Any

from attention_np import chain, deformable, softmax
from attention_np.atlas.recipes._registry import recipe
from attention_np.atlas.recipes._steps import in_heads, joined, linear


@recipe(
    x=(2, 3, 6), memory=(2, 5, 6), w_value=(6, 6), w_offset=(6, 16), w_weight=(6, 8), w_output=(6, 6), b_offset=(16,),
)  # fmt: skip
def sampled(
    x: Any, memory: Any, w_value: Any, w_offset: Any, w_weight: Any, w_output: Any, b_value: Any = None,
    b_offset: Any = None, b_weight: Any = None, b_output: Any = None,
    *, heads: int = 2, shapes: Any = ((1, 2), (1, 3)), reference: Any = 0.5, spread: Any = 0.1, visible: Any = None,
) -> Any:  # fmt: skip
    """Each head looks at points around a `reference`, at each level of a picture (Zhu et al., 2021).

    `memory` has the pixels of all levels, of heights and widths `shapes`; `reference` (b, 1, n, levels, 1, 2), and
    `spread`, by which offsets are multiplied, are in widths and heights; `visible` (b, pixels, 1) ends at the edge.
    """
    value = linear(memory, w_value, b_value)
    value = in_heads(
        value if visible is None else chain.where(visible, value, 0.0), value.shape[-1] // heads
    )  # (b, h, pixels, d)
    weights = linear(x, w_weight, b_weight)
    weights = weights.reshape(*weights.shape[:-1], heads, -1).swapaxes(-3, -2)  # (b, h, n, levels * points)
    weights = chain.apply(softmax, weights)  # (softmax.1)
    weights = weights.reshape(*weights.shape[:-1], len(shapes), -1)  # (b, h, n, levels, points)
    offsets = linear(x, w_offset, b_offset)
    offsets = in_heads(offsets, offsets.shape[-1] // heads)
    offsets = offsets.reshape(*weights.shape, 2)  # (b, h, n, levels, points, 2)
    output = chain.apply(deformable, value, reference + offsets * spread, weights, shapes=shapes)  # (deformable.4)
    return linear(joined(output), w_output, b_output)
