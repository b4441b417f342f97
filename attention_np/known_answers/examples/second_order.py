"""The cases whose answers are of second order: Hessian-vector products, and the output in forward mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attention_np import masks
from attention_np.known_answers.examples.additive import of_additive
from attention_np.known_answers.examples.dot_product import of_dot_product
from attention_np.known_answers.examples.example import Example, filled, with_tangents
from attention_np.known_answers.examples.multi_head import of_multi_head
from attention_np.known_answers.examples.softmax import of_softmax

__all__ = ["examples"]


def examples() -> list[Example]:
    """Every case with tangents."""
    softmax, additive = partial(_with_tangents, of_softmax), partial(_with_tangents, of_additive)
    case = partial(_with_tangents, of_dot_product, leading=())
    multi_head = partial(_with_tangents, of_multi_head, n=3, m=4, leading=())
    some = np.array([[True, False, True, True, False], [False] * 5, [True] * 5])
    padding = masks.padding(4, 6)
    hidden = ~padding.T  # (6, 1): the padded keys
    empty = np.array([[True] * 6, [False] * 6, [True, False] * 3, [False] * 6])
    return [
        softmax("rows", "Three rows of five scores."),
        softmax("columns", "The softmax along the first of two axes.", axis=0),
        softmax("mask", "A mask whose second row hides every score.", "empty row", mask=some),
        softmax(
            "one-far-ahead",
            "One score of each row is 30 above the others: little moves, and less than the terms that it is made of.",
            "large scores",
            scores=lambda x: x + np.array([0, 0, 30, 0, 0]),
        ),
        case("plain", "4 queries, 6 keys, a batch of 2.", leading=(2,)),
        case("causal", "Each query sees the keys up to its own position.", n=6, is_causal=True),
        case("empty-rows", "Two queries may attend to nothing: zeros throughout.", "empty row", mask=empty),
        case(
            "shared-keys-and-bias",
            "One set of keys, and a bias of each key, for 2 samples: their products are sums.",
            "broadcast",
            leading=(2,),
            key_leading=(),
            value_leading=(2,),
            bias=lambda draws: draws(6),
        ),
        case(
            "one-key-far-ahead",
            "The first key wins by about 20: what moves is a small difference of large terms.",
            "large scores",
            query=lambda x: np.abs(x) + 1,
            key=lambda x: np.where(np.arange(6)[:, None] == 0, 9 + x, x / 4),
        ),
        case(
            "nan-behind-mask",
            "The padded keys and values are NaN.",
            "hidden non-finite",
            mask=padding,
            key=filled(hidden, np.nan),
            value=filled(hidden, np.nan),
        ),
        additive("empty-rows", "Two queries may attend to nothing.", "empty row", leading=(), mask=empty),
        additive(
            "without-b",
            "One set of keys for 2 samples.",
            "broadcast",
            n=2,
            m=3,
            key_leading=(1,),
            value_leading=(2,),
            b=None,
        ),
        multi_head("plain", "2 heads, with the biases of projections.", widths=(5, 4, 3), d_v=2, d_output=4),
        multi_head(
            "grouped-heads",
            "Four heads of queries in two groups, without biases, in 2 samples; is_causal.",
            leading=(2,),
            m=3,
            widths=(4, 4, 4),
            d_k=2,
            d_v=2,
            d_output=4,
            num_heads=4,
            num_kv_heads=2,
            biases=False,
            is_causal=True,
        ),
    ]


def _with_tangents(make: Callable[..., Example], name: str, description: str, *tags: str, **changes: Any) -> Example:
    return with_tangents(make(f"tangents-{name}", description, *tags, **changes))
