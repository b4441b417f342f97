"""The cases of dot_product with masks, and with what hides behind them."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_np import masks
from attention_np.known_answers.examples.dot_product import of_dot_product
from attention_np.known_answers.examples.example import Example, filled

__all__ = ["examples"]


def examples() -> list[Example]:
    """Every case with a mask, is_causal among them."""
    case, causal = of_dot_product, partial(of_dot_product, is_causal=True)
    padding = masks.padding([6, 4], 6)
    hidden = ~padding.swapaxes(-1, -2)  # (2, 6, 1): the padded keys
    empty = np.array([[[True] * 6, [False] * 6, [True, False] * 3, [False] * 6]])
    last = np.array([True, True, True, False])[:, None]
    return [
        causal("causal", "Each query sees the keys up to its own position.", n=6),
        causal("causal-more-keys", "is_causal with more keys than queries: aligned top-left.", n=3),
        causal("causal-more-queries", "is_causal with more queries than keys: the later queries see all.", n=7, m=3),
        case(
            "causal-aligned-last",
            "4 queries at the end of 6 positions, as in decoding with a cache of keys.",
            mask=masks.causal(4, 6, offset=2),
        ),
        case("padding", "The second sample has 4 keys and 2 of padding.", mask=padding),
        case("padding-causal", "Padding and is_causal together.", n=6, mask=padding, is_causal=True),
        case(
            "sliding-window",
            "Each query sees its own key and two before it.",
            n=6,
            mask=masks.sliding_window(6, left=2),
        ),
        case(
            "sliding-window-both-ways",
            "One key before and two after.",
            n=6,
            mask=masks.sliding_window(6, left=1, right=2),
        ),
        case(
            "packed",
            "Three sequences packed into one row, causal within each.",
            n=6,
            mask=masks.packed([0, 0, 0, 1, 1, 2]) & masks.causal(6),
        ),
        case("block-causal", "Blocks of two see themselves and what came before.", n=6, mask=masks.block_causal(6, 2)),
        case(
            "multi-level-causal",
            "Near keys one by one, far ones at steps of 4.",
            n=8,
            m=8,
            mask=masks.multi_level_causal(8, levels=(1, 4)),
        ),
        case("random-mask", "An arbitrary mask for each sample.", mask=lambda draws: draws.mask(2, 4, 6)),
        case(
            "random-mask-of-heads",
            "An arbitrary mask that differs by head and is shared by the batch.",
            "broadcast",
            leading=(2, 3),
            mask=lambda draws: draws.mask(3, 4, 6),
        ),
        case(
            "key-mask",
            "A mask of the keys alone, for all queries of all samples.",
            mask=np.array([True, False, True, True, False, True]),
        ),
        case("single-keys", "Each query sees exactly one key.", mask=np.eye(6, dtype=np.bool_)[[0, 3, 5, 3]]),
        case("empty-rows", "Two queries may attend to nothing: zeros, and zero gradient.", "empty row", mask=empty),
        case("nothing-visible", "No query may attend to anything.", "empty row", mask=np.zeros((4, 6), np.bool_)),
        case(
            "causal-empty-rows",
            "Aligned so that the first two queries see no key.",
            "empty row",
            mask=masks.causal(4, 6, offset=-2),
        ),
        case(
            "nan-behind-mask",
            "The padded keys and values are NaN.",
            "hidden non-finite",
            mask=padding,
            key=filled(hidden, np.nan),
            value=filled(hidden, np.nan),
        ),
        case(
            "infinity-behind-mask",
            "The padded keys are infinite, the padded values minus infinity.",
            "hidden non-finite",
            mask=padding,
            key=filled(hidden, np.inf),
            value=filled(hidden, -np.inf),
        ),
        case(
            "nan-of-one-pair",
            "The last key and value are NaN, and only the third query sees them: its output is NaN. Its incoming "
            "gradient is zero, so no gradient is NaN.",
            "hidden non-finite",
            "zero d_output",
            mask=np.array([[True] * 5 + [False], [True] * 5 + [False], [True] * 6, [True] * 5 + [False]]),
            key=filled(np.arange(6)[:, None] == 5, np.nan),
            value=filled(np.arange(6)[:, None] == 5, np.nan),
            d_output=filled(np.arange(4)[:, None] == 2, 0),
        ),
        case(
            "nan-in-empty-row",
            "A query of NaN that may attend to nothing.",
            "empty row",
            "hidden non-finite",
            mask=np.broadcast_to(last, (4, 6)).copy(),
            query=filled(~last, np.nan),
        ),
        case(
            "nan-without-gradient",
            "The last query is NaN and its incoming gradient zero: its output is NaN, no gradient is.",
            "hidden non-finite",
            "zero d_output",
            query=filled(~last, np.nan),
            d_output=filled(~last, 0),
        ),
    ]
