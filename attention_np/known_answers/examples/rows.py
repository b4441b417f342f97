"""The cases of what is done to rows: normalisations and rotary positions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Array, Draws, Example, Shape, case_of

__all__ = ["examples"]


def _of_rows(op: str, name: str, description: str, *tags: str, shape: Shape = (2, 4, 6), **changes: Any) -> Example:
    """A case on `shape`."""
    draws = Draws(op, name)
    made = case_of(draws, description, tags, {"x": draws(*shape)}, changes)
    return replace(made, inputs=made.inputs | {"d_output": draws(*shape)})


def _of_norms(op: str) -> list[Example]:
    both: dict[str, Any] = dict.fromkeys(("gain", "b") if op == "layer_norm" else ("gain",), lambda draws: draws(6))
    case = partial(_of_rows, op)
    return [
        case("plain", "Rows of six features, without a gain."),
        case("gain", "With a gain, which all rows share.", "broadcast", **both),
        case("one-row", "One row without leading axes.", shape=(6,), **both),
        case("large-epsilon", "An epsilon that is seen, where it stands below the root.", epsilon=0.25, **both),
        case(
            "zeros",
            "A row of zeros, whose root is that of epsilon.",
            epsilon=0.25,
            x=lambda x: x * (np.arange(4) != 1)[:, None],
            **both,
        ),
        case("large", "Rows whose squares are large.", x=lambda x: 64 * x, **both),
    ]


def examples() -> list[Example]:
    """Every case of rms_norm, layer_norm and rotary."""
    places = np.array([3.0, 0.0, 17.0, 40.0])
    case = partial(_of_rows, "rotary")
    return [
        *_of_norms("rms_norm"),
        *_of_norms("layer_norm"),
        case("halves", "Feature a of the first half is turned with feature a of the second, as in Llama."),
        case("neighbours", "Neighbouring features are turned together, as in GPT-J.", interleaved=True),
        case("positions", "Positions that are not in order.", positions=places),
        case("positions-of-each", "Positions of each sample.", positions=places + np.array([[0.0], [5.0]])),
        case("base", "Another base.", base=500.0, positions=places),
        case("first-features", "The first four of six features.", width=4, positions=places),
        case("last-features", "The last four of six.", width=4, trailing=True, positions=places),
        case(
            "last-neighbours",
            "The last four of six, neighbours together, as in DeepSeek-V4.",
            width=4,
            trailing=True,
            interleaved=True,
            positions=places,
        ),
        *_scaled(places),
        *_on_axes(),
    ]


def _on_axes() -> list[Example]:
    """Rotary positions on several axes: times, rows and columns."""
    places = np.array([[3.0, 3.0, 4.0, 4.0], [0.0, 5.0, 0.0, 5.0], [2.0, 0.0, 17.0, 40.0]])
    each = np.stack([places, places + 7], axis=1)  # (axes, batch, n)
    case = partial(_of_rows, "rotary", shape=(2, 4, 12))
    return [
        case("runs", "Three axes, the pairs in runs, as in Qwen2-VL.", positions=places, sections=(1, 2, 3)),
        case(
            "interleaved",
            "The axes take turns, the first has what is over, as in Qwen3-VL; positions of each sample.",
            positions=each,
            sections=(3, 1, 2),
            arrangement="interleaved",
        ),
        case(
            "restart",
            "Rows and columns with frequencies of their own, as in vision towers.",
            positions=places[1:],
            sections=(3, 3),
            restart=True,
        ),
    ]


def _scaled(places: Array) -> list[Example]:
    """Rotary positions of other frequencies, for longer sequences than a model was trained on."""
    lengths = {"factor": 4.0, "original_length": 32.0}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "linear": ("Every angle is a quarter.", {"factor": 4.0}),
        "dynamic": ("Another base, by how long the sequence is.", {**lengths, "length": 41.0}),
        "dynamic-short": (
            "A sequence that is no longer than in training: nothing changes.",
            {**lengths, "length": 9.0},
        ),
        "yarn": (
            "Fast pairs as they were, slow ones a quarter, a ramp from and to whole pairs; an amplitude.",
            lengths,
        ),
        "yarn-unrounded": (
            "A ramp from and to fractions of pairs, as in gpt-oss.",
            {**lengths, "truncate": False, "beta_fast": 4.0, "beta_slow": 0.25},
        ),
        "llama3": ("A blend by how often a pair turns.", {**lengths, "low_freq_factor": 0.25, "high_freq_factor": 2.0}),
        "longrope": (
            "A divisor for each pair, of the list for long sequences, and an amplitude.",
            {
                "short_factor": (1.0, 1.25, 1.5, 1.75),
                "long_factor": (1.0, 1.5, 3.0, 8.0),
                "original_length": 32.0,
                "length": 41.0,
                "maximum_length": 128.0,
            },
        ),
    }
    return [
        _of_rows(
            "rotary",
            name,
            description,
            shape=(2, 4, 8),
            base=500.0,
            positions=places,
            scaling={"kind": name.partition("-")[0], **numbers},
        )
        for name, (description, numbers) in kinds.items()
    ]
