"""The cases of multi-head attention."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from attention_np import masks
from attention_np.known_answers.examples.example import Array, Draws, Example, Shape
from attention_np.known_answers.signatures import SIGNATURES

__all__ = ["examples", "of_multi_head"]


def of_multi_head(
    name: str,
    description: str,
    *tags: str,
    n: int = 4,
    m: int = 6,
    widths: tuple[int, int, int] = (6, 6, 6),
    d_k: int = 3,
    d_v: int = 3,
    d_output: int = 6,
    num_heads: int = 2,
    num_kv_heads: int | None = None,
    leading: Shape = (2,),
    key_leading: Shape | None = None,
    biases: bool = True,
    alike: bool = False,
    **changes: Any,
) -> Example:
    """A case on arrays of the given sizes; `alike`: query, key and value are one array. `changes` as elsewhere."""
    draws = Draws("multi_head", name)
    key_leading = leading if key_leading is None else key_leading
    shapes = {"query": (*leading, n), "key": (*key_leading, m), "value": (*key_leading, m)}
    inputs: dict[str, Array] = {
        part: draws(*shape, width) for (part, shape), width in zip(shapes.items(), widths, strict=True)
    }
    if alike:
        inputs = dict.fromkeys(inputs, inputs["query"])
    few = num_heads if num_kv_heads is None else num_kv_heads
    inner = {"query": num_heads * d_k, "key": few * d_k, "value": few * d_v, "output": d_output}
    sizes = dict(zip(inner, (*widths, num_heads * d_v), strict=True))
    for part, size in inner.items():
        inputs[f"w_{part}"] = draws(sizes[part], size) / sqrt(sizes[part])
        if biases:
            inputs[f"b_{part}"] = draws(size) / 2
    inputs["d_output"] = draws(*np.broadcast_shapes(leading, key_leading), n, d_output)
    options: dict[str, Any] = {"num_heads": num_heads}
    options |= {} if num_kv_heads is None else {"num_kv_heads": num_kv_heads}
    options |= {key: changes.pop(key) for key in SIGNATURES["multi_head"].options if key in changes}
    for key, change in changes.items():
        inputs[key] = change(draws, inputs.get(key)) if callable(change) else change
    return Example("multi_head", name, description, inputs, options, tags)


def examples() -> list[Example]:
    """Every case of multi_head."""
    case = of_multi_head

    def itself(name: str, description: str, *tags: str, n: int = 6, **changes: Any) -> Example:
        return of_multi_head(name, description, *tags, n=n, alike=True, **changes)

    padding = masks.padding([6, 4], 6, heads=True)  # (2, 1, 1, 6)
    padded = ~padding[:, 0].swapaxes(-1, -2)  # (2, 6, 1)
    return [
        itself("self-attention", "One array as query, key and value, 2 heads."),
        itself("without-biases", "Without any bias of a projection, 3 heads.", biases=False, num_heads=3, d_k=2, d_v=2),
        case(
            "cross-attention",
            "Queries, keys and values of different widths, heads of other widths still.",
            widths=(5, 4, 3),
            d_k=2,
            d_v=4,
            d_output=7,
        ),
        case("one-head", "A single head.", num_heads=1, d_k=4, d_v=5),
        case("no-leading-axes", "No batch.", leading=()),
        case("one-query", "A single query.", n=1),
        case("one-key", "A single key: the gradients of query and key projections are zero but for rounding.", m=1),
        case(
            "shared-memory",
            "3 samples attend to the same keys and values.",
            "broadcast",
            leading=(3,),
            key_leading=(1,),
        ),
        itself("causal", "is_causal.", "causal", is_causal=True),
        itself(
            "grouped-heads",
            "Six heads of queries in two groups: head h has the keys and values of head h // 3.",
            "causal",
            num_heads=6,
            num_kv_heads=2,
            is_causal=True,
        ),
        case("one-head-of-keys", "Four heads of queries share one of keys and values.", num_heads=4, num_kv_heads=1),
        itself("padding", "The second sample has 4 keys and 2 of padding.", "mask", mask=padding),
        itself("padding-causal", "Padding and is_causal together.", "mask", "causal", mask=padding, is_causal=True),
        itself("packed", "Three sequences packed into one row.", "mask", mask=masks.packed([0, 0, 0, 1, 1, 2])),
        itself(
            "sliding-window",
            "Each query sees its own key and two before it.",
            "mask",
            mask=masks.sliding_window(6, left=2),
        ),
        case(
            "mask-of-each-head",
            "An arbitrary mask for each head of each sample.",
            "mask",
            mask=lambda draws, _: draws.mask(2, 2, 4, 6),
        ),
        case(
            "empty-rows",
            "The first two queries see no key: their output is the bias of the last projection.",
            "mask",
            "empty row",
            mask=masks.causal(4, 6, offset=-2),
        ),
        case(
            "bias-of-each-head",
            "A bias of each head, shared by the batch.",
            "bias",
            "broadcast",
            bias=lambda draws, _: draws(2, 4, 6),
        ),
        case(
            "large-scores",
            "Scores up to about 50.",
            "large scores",
            w_query=lambda _, w: 8 * w,
            w_key=lambda _, w: 2 * w,
        ),
        case("equal-keys", "Every key is the same.", "ties", key=lambda _, x: np.repeat(x[:, :1], 6, axis=1)),
        case(
            "nan-behind-mask",
            "The padded keys are NaN, the padded values infinite.",
            "mask",
            "hidden non-finite",
            mask=padding,
            key=lambda _, x: np.where(padded, np.nan, x),
            value=lambda _, x: np.where(padded, np.inf, x),
        ),
        itself(
            "wide",
            "32 features in 4 heads, 17 positions.",
            "tile",
            n=17,
            m=17,
            widths=(32, 32, 32),
            d_k=8,
            d_v=8,
            d_output=32,
            num_heads=4,
            leading=(),
        ),
        *_layers_of_today(),
    ]


def _layers_of_today() -> list[Example]:
    """The attention layers of some models, by what distinguishes them."""

    def layer(name: str, description: str, *tags: str, **changes: Any) -> Example:
        given = {"n": 6, "d_k": 4, "biases": False, "is_causal": True, **changes}
        return of_multi_head(name, description, *tags, alike=True, **given)

    def gain(draws: Draws, _: Array | None) -> Array:
        return 1 + draws(4) / 4

    gains: dict[str, Any] = {"query_gain": gain, "key_gain": gain}
    grouped: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2}
    yarn = {"kind": "yarn", "factor": 4.0, "original_length": 64.0, "truncate": False}
    return [
        layer(
            "llama",
            "Grouped heads, and rotary positions that begin at 9.",
            rotary={"base": 500.0},
            **grouped,
            positions=np.arange(6.0) + 9,
        ),
        layer(
            "llama-3",
            "Frequencies scaled as in Llama 3.",
            rotary={
                "base": 500.0,
                "scaling": {
                    "kind": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_length": 32.0,
                },
            },
            **grouped,
        ),
        layer(
            "qwen-3",
            "Queries and keys of each head are normalised, with gains, and then turned.",
            rotary={},
            **grouped,
            **gains,
        ),
        layer(
            "hunyuan",
            "They are turned, and then normalised, with gains.",
            qk_norm_after_rotary=True,
            rotary={},
            **grouped,
            **gains,
        ),
        layer(
            "llama-4",
            "They are turned, and then brought to the length of one, without a gain.",
            qk_norm="l2",
            qk_norm_after_rotary=True,
            qk_norm_epsilon=0.0625,
            rotary={"interleaved": True},
            **grouped,
        ),
        layer(
            "gemma-2",
            "A softcap, a scale of its own, and a window: each token sees itself and two before it.",
            "softcap",
            softcap=1.5,
            scale=0.4,
            window=(2, 0),
            rotary={},
            **grouped,
        ),
        layer(
            "gpt-oss",
            "A sink for each head, a window, biases of projections, and YaRN without rounding.",
            "sink",
            sink=lambda draws, _: draws(4),
            window=(2, 0),
            biases=True,
            rotary={"base": 500.0, "scaling": yarn},
            **grouped,
        ),
        layer(
            "bloom",
            "ALiBi, and biases of projections.",
            "position bias",
            slopes=np.array([0.0625, 0.00390625]),
            biases=True,
        ),
        layer(
            "t5",
            "A table of buckets in both directions, and no scale.",
            "position bias",
            is_causal=False,
            scale=1.0,
            table=lambda draws, _: draws(8, 2),
            max_distance=5,
        ),
        of_multi_head(
            "turned-apart",
            "Queries at positions of their own, behind the keys; a part of the features.",
            d_k=6,
            rotary={"width": 4, "trailing": True},
            positions=np.arange(4.0) + 2,
            key_positions=np.arange(6.0),
        ),
    ]
