"""The cases of softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Draws, Example, Shape, case_of

__all__ = ["examples", "of_softmax"]


def of_softmax(name: str, description: str, *tags: str, shape: Shape = (3, 5), **changes: Any) -> Example:
    """A case on scores of the given shape."""
    draws = Draws("softmax", name)
    return case_of(draws, description, tags, {"scores": draws(*shape), "d_output": draws(*shape)}, changes)


def examples() -> list[Example]:
    """Every case of softmax."""
    case = of_softmax
    some = np.array([[True, False, True, True, False], [False] * 5, [True] * 5])
    infinite = np.array([[0.5, -np.inf, 1.0], [-np.inf] * 3, [1.0, np.inf, 2.0], [np.inf, 0.0, np.inf]])
    hidden = np.array([[1.0, np.nan, 0.5, np.inf], [np.nan] * 4, [-np.inf, np.inf, 2.0, 1.0]])
    hidden_mask = np.array([[True, False, True, False], [False] * 4, [False, False, True, True]])
    return [
        case("rows", "Three rows of five scores."),
        case("columns", "The softmax along the first of two axes.", axis=0),
        case("batch", "Two leading axes, softmax along the middle one.", shape=(2, 4, 3), axis=1),
        case("one-score", "Rows of a single score: the weight is one, the gradient zero.", shape=(3, 1)),
        case("long", "A row of 1000 scores.", shape=(1, 1000)),
        case(
            "far-from-zero", "Scores near 600, whose exponentials overflow.", "large scores", scores=lambda x: x + 600
        ),
        case(
            "far-below-zero", "Scores near -600, whose exponentials vanish.", "large scores", scores=lambda x: x - 600
        ),
        case(
            "one-far-ahead",
            "One score of each row is 30 above the others: the weights are nearly 0 and 1.",
            "large scores",
            scores=lambda x: x + np.array([0, 0, 30, 0, 0]),
        ),
        case("ties", "Rows with several largest scores, all equal.", "ties", scores=np.tile([2.0, 1, 2, 2, 0], (3, 1))),
        case("all-equal", "Every score is the same: the weights are equal.", "ties", scores=np.full((3, 5), 4.0)),
        case("mask", "A mask whose second row hides every score.", "empty row", mask=some),
        case(
            "infinite-scores",
            "Minus infinity has no weight; a row of nothing else has none at all; plus infinity shares all of it.",
            "empty row",
            "infinite scores",
            shape=(4, 3),
            scores=infinite,
        ),
        case(
            "hidden-non-finite",
            "NaN and infinity behind a mask.",
            "empty row",
            "hidden non-finite",
            shape=(3, 4),
            scores=hidden,
            mask=hidden_mask,
        ),
    ]
