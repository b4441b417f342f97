"""Keys and values that are made of one short vector for each token, as in DeepSeek."""

from __future__ import annotations

from typing import Any

from attention_np import chain
from attention_np import latent as latent_op
from attention_np.atlas.recipes._registry import recipe
from attention_np.atlas.recipes._steps import activated, in_heads, joined, linear, normed, turned


@recipe(
    x=(2, 5, 6), w_query=(4, 10), w_latent=(6, 5), w_key=(2, 3, 3), w_value=(2, 3, 4), w_output=(8, 6),
    w_query_down=(6, 4), query_gain=(4,), latent_gain=(3,),
)  # fmt: skip
def multi_head_latent(
    x: Any, w_query: Any, w_latent: Any, w_key: Any, w_value: Any, w_output: Any, w_query_down: Any = None,
    query_gain: Any = None, latent_gain: Any = None, rotary_gain: Any = None, b_query: Any = None,
    b_query_down: Any = None, b_latent: Any = None, b_output: Any = None, w_gate: Any = None, b_gate: Any = None,
    sink: Any = None,
    *, cos: Any = None, sin: Any = None, pairs: str = "halves", epsilon: float = 1e-6, rotary_epsilon: float = 1e-6,
    latent_factor: float = 1.0, query_factor: Any = None, query_both: bool = False, scale: Any = None, mask: Any = None,
    bias: Any = None,
) -> Any:  # fmt: skip
    """Keys and values of all heads are made of a latent; positions have features of their own (DeepSeek-V2).

    With `query_both`, queries and the gate are made of what is normalised, and of the same before that.
    """
    d, rank = w_key.shape[-1], w_key.shape[-2]
    compressed = linear(x, w_latent, b_latent)  # (b, n, rank + d_r)
    head = w_query.shape[-1] // w_key.shape[0]  # features of a query: d, and those that are turned
    if w_query_down is not None:
        down = linear(x, w_query_down, b_query_down)
        query = normed(down, query_gain, epsilon=epsilon)  # (rms-norm.3)
        if query_both:
            x = query = chain.concatenate([query, down], axis=-1)
        query = in_heads(linear(query, w_query, b_query), head)  # (b, h, n, d + d_r)
    else:
        query = in_heads(linear(x, w_query, b_query), head)
    if query_factor is not None:
        query = query * query_factor
    latent = normed(compressed[..., :rank], latent_gain, epsilon=epsilon) * latent_factor
    key_rotary, query_rotary = compressed[..., rank:], query[..., d:]
    if rotary_gain is not None:
        key_rotary = normed(key_rotary, rotary_gain, epsilon=rotary_epsilon)
    if cos is not None:
        query_rotary = turned(query_rotary, cos, sin, pairs)  # (rotary.5)
        key_rotary = turned(key_rotary, cos[..., 0, :, :], sin[..., 0, :, :], pairs)
    options = {"scale": scale, "mask": mask, "bias": bias, "sink": sink}
    output = chain.apply(latent_op, query[..., :d], query_rotary, latent, key_rotary, w_key, w_value, **options)
    output = joined(output)  # (b, n, h * d_v) (latent.4)
    if w_gate is not None:
        output = output * activated(linear(x, w_gate, b_gate), "sigmoid")
    return linear(output, w_output, b_output)
