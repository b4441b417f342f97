"""Attention in windows and pictures: biases by places, of a table or of rows and columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import biases
from attention_np.atlas.recipes._registry import recipe
from attention_np.atlas.recipes._steps import activated, attention, clipped, in_heads, joined, linear, normed

PLACES = np.arange(4)[:, None] - np.arange(4) + 3  # of a window of four tokens in a row


@recipe(x=(2, 4, 6), w_query=(6, 8), w_key=(6, 8), w_value=(6, 8), log_scale=(2, 1, 1), table=(7, 2))
def cosine_windowed(
    x: Any, w_query: Any, w_key: Any, w_value: Any, log_scale: Any, table: Any, b_query: Any = None, b_key: Any = None,
    b_value: Any = None,
    *, d: int = 4, places: Any = PLACES, bias: Any = None,
) -> Any:  # fmt: skip
    """Cosines between queries and keys, scaled for each head by at most 100 (Liu et al., 2022)."""
    query, key = in_heads(linear(x, w_query, b_query), d), in_heads(linear(x, w_key, b_key), d)  # (b, h, n, d)
    value = in_heads(linear(x, w_value, b_value), d)
    query, key = (normed(y, np.full(d, d**-0.5), epsilon=0.0) for y in (query, key))
    scale = activated(clipped(log_scale, -np.inf, np.log(100.0)), "exp")
    of_places = 16.0 * activated(table, "sigmoid")
    added = [biases.table(of_places, places)] if bias is None else [biases.table(of_places, places), bias]
    return joined(attention(query, key, value, scale=scale, bias=added))  # (dot-product.5)


@recipe(x=(2, 2, 3, 6), w_query=(6, 8), w_key=(6, 8), w_value=(6, 8), w_output=(8, 6), rows=(3, 4), columns=(5, 4))
def decomposed_places(
    x: Any, w_query: Any, w_key: Any, w_value: Any, w_output: Any, rows: Any = None, columns: Any = None,
    b_query: Any = None, b_key: Any = None, b_value: Any = None, b_output: Any = None,
    *, d: int = 4, scale: float | None = None,
) -> Any:  # fmt: skip
    """A picture (b, height, width, c): queries also meet vectors of distances in rows and columns (Li et al., 2022)."""
    height, width = x.shape[-3:-1]
    x = x.reshape(*x.shape[:-3], height * width, x.shape[-1])
    query, key = in_heads(linear(x, w_query, b_query), d), in_heads(linear(x, w_key, b_key), d)  # (b, h, n, d)
    value = in_heads(linear(x, w_value, b_value), d)
    bias = None
    if rows is not None:
        places = query.reshape(*query.shape[:-2], height, width, d)
        y, x_ = np.arange(height), np.arange(width)
        of_rows = places @ rows[y[:, None] - y + height - 1].swapaxes(-1, -2)  # (b, h, height, width, height)
        of_columns = columns[x_[:, None] - x_ + width - 1].swapaxes(-1, -2)  # (width, d, width)
        of_columns = (places[..., None, :] @ of_columns)[..., 0, :]  # (b, h, height, width, width)
        bias = of_rows[..., :, None] + of_columns[..., None, :]
        bias = bias.reshape(*query.shape[:-1], height * width)
    output = joined(attention(query, key, value, scale=scale, bias=bias))  # (dot-product.5)
    return linear(output, w_output, b_output).reshape(*output.shape[:-2], height, width, w_output.shape[-1])
