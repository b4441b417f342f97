"""The cases of what stands around attention: projections, activations, convolutions, losses, windows and samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_np.activation import KINDS
from attention_np.known_answers.examples.example import Array, Draws, Example, Shape, case_of, filled
from attention_np.known_answers.weighed import KINDS as KINDS_OF_WEIGHTS

__all__ = ["examples"]


def _case(
    op: str, name: str, description: str, *tags: str, of: dict[str, Shape], d_output: Shape, **changes: Any
) -> Example:
    """A case of arrays of these shapes."""
    draws = Draws(op, name)
    made = case_of(draws, description, tags, {key: draws(*shape) for key, shape in of.items()}, changes)
    return replace(made, inputs=made.inputs | {"d_output": draws(*d_output)})


def examples() -> list[Example]:
    """Every case of what stands around attention, of rows and of scores."""
    around = (_weights, _linear, _features, _activations, _convolutions, _losses, _windows, _samples, _choices)
    return [example for of_op in around for example in of_op()]


def _weights() -> list[Example]:
    of: dict[str, Shape] = {"scores": (4, 6)}
    some = np.array([[True, False, True, True, True, True], [False] * 6, [True] * 6, [False, True] * 3])
    kinds: list[dict[str, Any]] = [{"kind": kind} for kind in KINDS_OF_WEIGHTS if kind != "entmax"]
    kinds += [{"kind": "entmax", "alpha": alpha} for alpha in (1.25, 1.5, 3.0)]
    cases = []
    for by in kinds:
        name = "-".join(str(x).replace("_", "-").replace(".", "-") for x in by.values())
        told = f"Weights by {by['kind'].replace('_', '-')}" + (f" with alpha {by['alpha']}" if "alpha" in by else "")
        described = f"{told}; a mask hides some scores, and a row of them."
        steps = np.array([0.0, 0.375, -0.25, 0.125, -5.0, 0.5]) + np.array([[0], [1], [8], [-2]])  # far from a kink
        changes: dict[str, Any] = {"scores": lambda x, steps=steps: steps + 0 * x, "mask": some, "weights_by": by}
        cases.append(_case("weightings", name, described, "empty row", of=of, d_output=(4, 6), **changes))
    return cases


def _linear() -> list[Example]:
    of: dict[str, Shape] = {"x": (2, 4, 6), "w": (6, 3)}
    return [
        _case("linear", "plain", "A projection of rows of six features to three.", of=of, d_output=(2, 4, 3)),
        _case("linear", "bias", "With what is added to each row.", of=of | {"b": (3,)}, d_output=(2, 4, 3)),
        _case("linear", "one-row", "A single row.", of=of | {"x": (1, 6)}, d_output=(1, 3)),
        _case(
            "linear",
            "cancelling",
            "Terms that cancel: the second half of the features is the first, less a little, and so are the weights.",
            of=of | {"x": (4, 6), "b": (3,)},
            d_output=(4, 3),
            x=lambda x: np.concatenate([x[:, :3], x[:, :3] + x[:, 3:] / 1024], axis=1),
            w=lambda w: np.concatenate([w[:3], -w[:3]]),
        ),
    ]


def _features() -> list[Example]:
    performer: dict[str, Shape] = {"x": (2, 4, 3), "directions": (5, 3)}
    return [
        _case(
            "feature_map",
            "elu",
            "The exponential up to zero, and x + 1 above.",
            of={"x": (2, 4, 6)},
            d_output=(2, 4, 6),
        ),
        _case(
            "feature_map",
            "elu-far-below",
            "Numbers from -24 to 8, zero among them: small features keep their digits.",
            of={"x": (4, 8)},
            d_output=(4, 8),
            x=lambda x: np.arange(-24, 8).reshape(4, 8) + 0 * x,
        ),
        _case("feature_map", "performer", "Five directions.", of=performer, d_output=(2, 4, 5)),
        _case(
            "feature_map",
            "performer-one-row",
            "A single row of numbers that are twice as large.",
            of={"x": (1, 3), "directions": (5, 3)},
            d_output=(1, 5),
            x=lambda x: 2 * x,
        ),
    ]


def _activations() -> list[Example]:
    return [
        _case(
            "activation",
            kind.replace("_", "-"),
            f"{kind} of numbers from -8 to 8, zero among them.",
            of={"x": (4, 8)},
            d_output=(4, 8),
            kind=kind,
            x=lambda x: np.linspace(-8, 8, 33)[:-1].reshape(4, 8) + 0 * x,
        )
        for kind in KINDS
    ]


def _convolutions() -> list[Example]:
    of: dict[str, Shape] = {"x": (2, 7, 3), "w": (4, 3), "d_final_state": (2, 3, 3)}
    whole = of | {"b": (3,), "initial_state": (2, 3, 3)}
    packed = (4, 4, 2, 2, 2, 4, 7)
    return [
        _case("short_conv", "plain", "Four taps over seven tokens.", of=of, d_output=(2, 7, 3)),
        _case("short_conv", "state", "With a bias, and tokens before the first.", of=whole, d_output=(2, 7, 3)),
        _case(
            "short_conv",
            "packed",
            "Four sequences in one row, the first and the third of the same number; the state belongs to the first.",
            of=whole,
            d_output=(2, 7, 3),
            segments=packed,
        ),
        _case(
            "short_conv",
            "shorter-than-the-kernel",
            "Two tokens: the last state holds one of the state before.",
            of=whole | {"x": (2, 2, 3)},
            d_output=(2, 2, 3),
        ),
        _case(
            "short_conv",
            "two-taps",
            "A token and the one before it.",
            of=of | {"w": (2, 3), "d_final_state": (2, 1, 3)},
            d_output=(2, 7, 3),
        ),
    ]


def _losses() -> list[Example]:
    of: dict[str, Shape] = {"scores": (3, 5), "target": (3, 5)}
    one_of_each = np.eye(5)[[3, 0, 4]]
    some = np.array([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1], [0, 0, 0, 0, 0]], bool)
    return [
        _case("cross_entropy", "numbers", "Targets that are any numbers.", of=of, d_output=(3,)),
        _case(
            "cross_entropy", "one-of-each", "One entry of each row counts.", of=of, d_output=(3,), target=one_of_each
        ),
        _case(
            "cross_entropy",
            "far-ahead",
            "A score that is far ahead: where the target is that entry, the loss is nearly nothing.",
            "large scores",
            of=of,
            d_output=(3,),
            target=one_of_each,
            scores=lambda x: x + 24 * np.eye(5)[[3, 1, 4]],
        ),
        _case(
            "cross_entropy",
            "mask",
            "Hidden entries, and a row of which nothing counts.",
            "empty row",
            of=of,
            d_output=(3,),
            mask=some,
        ),
        _case(
            "cross_entropy",
            "nan-behind-the-mask",
            "What is hidden holds NaN.",
            "hidden non-finite",
            of=of,
            d_output=(3,),
            mask=some,
            scores=filled(~some, np.nan),
            target=filled(~some, np.nan),
        ),
    ]


def _windows() -> list[Example]:
    of: dict[str, Shape] = {"x": (2, 9, 4)}
    gated = of | {"gate": (2, 9, 4), "b": (3, 4)}
    hidden = (np.arange(9) == 4)[:, None] & (np.arange(4) == 1)

    def case(name: str, description: str, *tags: str, of: dict[str, Shape], windows: int, **changes: Any) -> Example:
        return _case("pooling", name, description, *tags, of=of, d_output=(2, windows, 4), **changes)

    return [
        case("means", "Means of three tokens each.", of=of, windows=3, width=3),
        case("overlapping", "Means of windows that overlap by one token.", of=of, windows=4, width=3, stride=2),
        case("gaps", "Windows between which tokens are in none.", of=of, windows=2, width=2, stride=5),
        case("remainder", "A window of four, and one token that is in none.", of=of, windows=2, width=4),
        case("gated", "Weights by gates and places, windows that overlap.", of=gated, windows=4, width=3, stride=2),
        case("no-places", "Weights by gates alone.", of=of | {"gate": (2, 9, 4)}, windows=3, width=3),
        case("whole", "One window, which is the sequence.", of=of, windows=1, width=9),
        case(
            "hidden",
            "A gate of minus infinity, and NaN where it hides it.",
            "hidden non-finite",
            of=gated,
            windows=4,
            width=3,
            stride=2,
            gate=filled(hidden, -np.inf),
            x=filled(hidden, np.nan),
        ),
    ]


def _samples() -> list[Example]:
    shapes = ((3, 4), (2, 2))
    of: dict[str, Shape] = {"value": (2, 16, 3), "locations": (2, 5, 2, 3, 2), "weights": (2, 5, 2, 3)}

    def spread(low: float, high: float) -> Any:
        """Locations that no rounding takes to a line through centres of pixels: multiples of 1 / 64, and a bit more."""

        def locations(x: Array) -> Array:
            ranks = x.ravel().argsort().argsort() / x.size
            return np.floor((low + (high - low) * ranks.reshape(x.shape)) * 64) / 64 + 3 / 512

        return locations

    def case(name: str, description: str, low: float, high: float, **changes: Any) -> Example:
        made = {"locations": spread(low, high), "shapes": shapes} | changes
        return _case("deformable", name, description, of=of, d_output=(2, 5, 3), **made)

    return [
        case("inside", "Three points on each of two levels, inside of the picture.", 0.2, 0.8),
        case("at-the-edge", "Points on both sides of the edge of the picture.", -0.3, 1.3),
        case("outside", "Points of which most are outside, where all is zero.", -8, 9),
        case(
            "one-level",
            "One level of one row.",
            0,
            1,
            shapes=((1, 16),),
            locations=lambda x: spread(0, 1)(x[:, :, :1]),
            weights=lambda x: x[:, :, :1],
        ),
    ]


def _choices() -> list[Example]:
    of: dict[str, Shape] = {"query": (2, 3, 4, 5), "key": (2, 6, 5), "weights": (2, 3, 4)}
    some = np.tri(4, 6, 1, bool) & np.array([[True], [False], [True], [True]])

    def case(name: str, description: str, *tags: str, of: dict[str, Shape] = of, **changes: Any) -> Example:
        return _case("indexer", name, description, *tags, of=of, d_output=(2, 4, 6), **changes)

    return [
        case("plain", "Three heads of four queries over six keys, in a batch of 2; some weights are negative."),
        case("scale", "A scale of the products.", scale=0.375),
        case("one-head", "One head.", of={"query": (2, 1, 4, 5), "key": (2, 6, 5), "weights": (2, 1, 4)}),
        case("shared-keys", "Keys that the samples of a batch share.", "broadcast", of=of | {"key": (6, 5)}),
        case("mask", "Hidden pairs are minus infinity, and their gradient is ignored.", "empty row", mask=some),
        case(
            "nan-behind-the-mask",
            "The last key holds NaN, and so do queries and weights of a row of which nothing counts.",
            "hidden non-finite",
            mask=some,
            query=filled(~some.any(axis=-1)[:, None], np.nan),
            key=filled(~some.any(axis=0)[:, None], np.nan),
            weights=filled(~some.any(axis=-1), np.nan),
        ),
    ]
