"""Scores that also depend on how far apart two tokens are: Transformer-XL and the conformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import chain
from attention_np.atlas.recipes._registry import recipe
from attention_np.atlas.recipes._steps import attention, in_heads, joined, linear, normed, repeated


@recipe(
    x=(2, 3, 6), distances=(5, 6), w_query=(6, 8), w_key=(6, 8), w_value=(6, 8), w_distance=(6, 8), u=(2, 4), v=(2, 4),
    w_output=(8, 6), gain=(6,),
)  # fmt: skip
def transformer_xl(
    x: Any, distances: Any, w_query: Any, w_key: Any, w_value: Any, w_distance: Any, u: Any, v: Any, w_output: Any,
    b_query: Any = None, b_key: Any = None, b_value: Any = None, b_output: Any = None, gain: Any = None,
    b_norm: Any = None,
    *, d: int = 4, groups: int = 1, places: Any = None, scale: Any = None, mask: Any = None, bias: Any = None,
    lowest: float | None = None, epsilon: float = 1e-12,
) -> Any:  # fmt: skip
    """Queries meet keys and vectors of distances; each head adds u to them for the one, v for the other (Dai, 2019).

    `distances` (..., 2n - 1, features) are those of j - i from 1 - n on, or `places` (n, m) says which belongs to each
    pair. Where the mask hides, `lowest` stands in place of the distance, so that a query that sees no key sees all.
    """
    n = x.shape[-2]
    places = np.arange(n) - np.arange(n)[:, None] + n - 1 if places is None else places
    scale = d**-0.5 if scale is None else scale
    query = in_heads(linear(x, w_query, b_query), d)  # (b, h, n, d)
    key, value = in_heads(linear(x, w_key, b_key), d), in_heads(linear(x, w_value, b_value), d)
    far = (query + v[:, None]) @ in_heads(linear(distances, w_distance), d).swapaxes(-2, -1)  # (b, h, n, 2n - 1)
    far = scale * far[..., np.arange(n)[:, None], places]  # (b, h, n, n) (biases.6, biases.7)
    if lowest is not None:
        far, mask = chain.where(mask, far, lowest), None
    bias = far if bias is None else [far, bias]
    key, value = repeated(key, groups), repeated(value, groups)
    output = attention(query + u[:, None], key, value, scale=scale, mask=mask, bias=bias)  # (dot-product.5)
    output = linear(joined(output), w_output, b_output)
    return output if gain is None else normed(x + output, gain, b_norm, kind="layer", epsilon=epsilon)
