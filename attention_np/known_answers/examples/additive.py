"""The cases of additive attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import masks
from attention_np.known_answers.examples.example import Draws, Example, Shape, attending, case_of, filled

__all__ = ["examples", "of_additive"]


def of_additive(
    name: str,
    description: str,
    *tags: str,
    n: int = 4,
    m: int = 6,
    leading: Shape = (2,),
    key_leading: Shape | None = None,
    value_leading: Shape | None = None,
    **changes: Any,
) -> Example:
    """A case on arrays of the given sizes."""
    draws = Draws("additive", name)
    inputs, output_leading = attending(draws, (n, m), (5, 4, 3), leading, key_leading, value_leading)
    inputs |= {"w_query": draws(5, 7) / 2, "w_key": draws(4, 7) / 2, "w_score": draws(7), "b": draws(7) / 2}
    inputs["d_output"] = draws(*output_leading, n, 3)
    return case_of(draws, description, tags, inputs, changes)


def examples() -> list[Example]:
    """Every case of additive."""
    case = of_additive
    padding = masks.padding([6, 4], 6)
    padded = ~padding.swapaxes(-1, -2)  # (2, 6, 1)
    return [
        case("plain", "4 queries of 5 features, 6 keys of 4, values of 3, 7 hidden units, a batch of 2."),
        case("without-b", "Without the bias of the hidden units.", b=None),
        case("no-leading-axes", "No batch.", leading=()),
        case("heads", "A batch of 2, 3 heads.", leading=(2, 3)),
        case("one-query", "A single query.", n=1),
        case("one-key", "A single key: its weight is one.", m=1),
        case("shared-keys", "One set of keys for the batch.", "broadcast", key_leading=(1,), value_leading=(2,)),
        case("shared-values", "Values without a batch axis.", "broadcast", value_leading=()),
        case(
            "saturated",
            "Hidden units near 1 and -1, where tanh is flat.",
            w_query=lambda w: 8 * w,
            w_key=lambda w: 8 * w,
        ),
        case("large-scores", "Scores up to about 100.", "large scores", w_score=lambda w: 32 * w),
        case("equal-keys", "Every key is the same.", "ties", key=lambda x: np.repeat(x[:, :1], 6, axis=1)),
        case("padding", "The second sample has 4 keys and 2 of padding.", mask=padding),
        case("causal", "Each query sees the keys up to its own position.", mask=masks.causal(4, 6)),
        case(
            "sliding-window", "One key before its own, and one after.", mask=masks.sliding_window(4, 6, left=1, right=1)
        ),
        case(
            "empty-rows",
            "Aligned so that the first query sees no key.",
            "empty row",
            mask=masks.causal(4, 6, offset=-1),
        ),
        case(
            "nan-behind-mask",
            "The padded keys are NaN, the padded values infinite.",
            "hidden non-finite",
            mask=padding,
            key=filled(padded, np.nan),
            value=filled(padded, np.inf),
        ),
    ]
