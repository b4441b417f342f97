"""The cases of multi-head attention."""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import Any

import numpy as np

from attention_np import masks
from attention_np.known_answers.examples.example import Draws, Example, Shape, attending, case_of, filled

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
    """A case on arrays of the given sizes; `alike`: query, key and value are one array."""
    draws = Draws("multi_head", name)
    inputs, output_leading = attending(draws, (n, m), widths, leading, key_leading)
    if alike:
        inputs = dict.fromkeys(inputs, inputs["query"])
    few = num_heads if num_kv_heads is None else num_kv_heads
    inner = {"query": num_heads * d_k, "key": few * d_k, "value": few * d_v, "output": d_output}
    sizes = dict(zip(inner, (*widths, num_heads * d_v), strict=True))
    for part, size in inner.items():
        inputs[f"w_{part}"] = draws(sizes[part], size) / sqrt(sizes[part])
        if biases:
            inputs[f"b_{part}"] = draws(size) / 2
    inputs["d_output"] = draws(*output_leading, n, d_output)
    given = {"num_heads": num_heads} | ({} if num_kv_heads is None else {"num_kv_heads": num_kv_heads})
    return case_of(draws, description, tags, inputs, given | changes)


def examples() -> list[Example]:
    """Every case of multi_head."""
    case, itself = of_multi_head, partial(of_multi_head, n=6, alike=True)
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
        itself("causal", "is_causal.", is_causal=True),
        itself(
            "grouped-heads",
            "Six heads of queries in two groups: head h has the keys and values of head h // 3.",
            num_heads=6,
            num_kv_heads=2,
            is_causal=True,
        ),
        case("one-head-of-keys", "Four heads of queries share one of keys and values.", num_heads=4, num_kv_heads=1),
        itself("padding", "The second sample has 4 keys and 2 of padding.", mask=padding),
        itself("padding-causal", "Padding and is_causal together.", mask=padding, is_causal=True),
        itself("packed", "Three sequences packed into one row.", mask=masks.packed([0, 0, 0, 1, 1, 2])),
        itself(
            "sliding-window", "Each query sees its own key and two before it.", mask=masks.sliding_window(6, left=2)
        ),
        case(
            "mask-of-each-head",
            "An arbitrary mask for each head of each sample.",
            mask=lambda draws: draws.mask(2, 2, 4, 6),
        ),
        case(
            "empty-rows",
            "The first two queries see no key: their output is the bias of the last projection.",
            "empty row",
            mask=masks.causal(4, 6, offset=-2),
        ),
        itself(
            "weights-by-sparsemax",
            "Sparsemax in the place of softmax, causal, two heads of queries for each of keys.",
            num_heads=4,
            num_kv_heads=2,
            is_causal=True,
            weights_by={"kind": "sparsemax"},
        ),
        case(
            "bias-of-each-head",
            "A bias of each head, shared by the batch.",
            "broadcast",
            bias=lambda draws: draws(2, 4, 6),
        ),
        case("large-scores", "Scores up to about 50.", "large scores", w_query=lambda w: 8 * w, w_key=lambda w: 2 * w),
        case("equal-keys", "Every key is the same.", "ties", key=lambda x: np.repeat(x[:, :1], 6, axis=1)),
        case(
            "nan-behind-mask",
            "The padded keys are NaN, the padded values infinite.",
            "hidden non-finite",
            mask=padding,
            key=filled(padded, np.nan),
            value=filled(padded, np.inf),
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
    layer = partial(of_multi_head, alike=True, n=6, d_k=4, biases=False, is_causal=True)
    gains: dict[str, Any] = dict.fromkeys(("query_gain", "key_gain"), lambda draws: 1 + draws(4) / 4)
    grouped = partial(layer, num_heads=4, num_kv_heads=2)
    yarn = {"kind": "yarn", "factor": 4.0, "original_length": 64.0, "truncate": False}
    turns = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama_3 = {"kind": "llama3", "factor": 8.0, **turns, "original_length": 32.0}
    return [
        grouped(
            "llama",
            "Grouped heads, and rotary positions that begin at 9.",
            rotary={"base": 500.0},
            positions=np.arange(6.0) + 9,
        ),
        grouped("llama-3", "Frequencies scaled as in Llama 3.", rotary={"base": 500.0, "scaling": llama_3}),
        grouped(
            "qwen-3", "Queries and keys of each head are normalised, with gains, and then turned.", rotary={}, **gains
        ),
        grouped(
            "hunyuan",
            "They are turned, and then normalised, with gains.",
            qk_norm_after_rotary=True,
            rotary={},
            **gains,
        ),
        grouped(
            "llama-4",
            "They are turned, and then brought to the length of one, without a gain.",
            qk_norm="l2",
            qk_norm_after_rotary=True,
            qk_norm_epsilon=0.0625,
            rotary={"interleaved": True},
        ),
        grouped(
            "gemma-2",
            "A softcap, a scale of its own, and a window: each token sees itself and two before it.",
            softcap=1.5,
            scale=0.4,
            window=(2, 0),
            rotary={},
        ),
        grouped(
            "gpt-oss",
            "A sink for each head, a window, biases of projections, and YaRN without rounding.",
            sink=lambda draws: draws(4),
            window=(2, 0),
            biases=True,
            rotary={"base": 500.0, "scaling": yarn},
        ),
        layer("bloom", "ALiBi, and biases of projections.", slopes=np.array([0.0625, 0.00390625]), biases=True),
        layer(
            "t5",
            "A table of buckets in both directions, and no scale.",
            is_causal=False,
            scale=1.0,
            table=lambda draws: draws(8, 2),
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
