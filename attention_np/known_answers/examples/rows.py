"""The cases of what is done to rows: normalisations and rotary positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Array, Draws, Example, Shape

__all__ = ["examples"]


def _of_rows(op: str, name: str, description: str, *tags: str, shape: Shape = (2, 4, 6), **how: Any) -> Example:
    """A case on `shape`; what is no option in `how` is an array, or a function of the draws that makes one."""
    draws = Draws(op, name)
    inputs: dict[str, Array] = {"x": draws(*shape)}
    options: dict[str, Any] = {}
    for key, value in how.items():
        if callable(value):
            inputs[key] = value(draws, inputs.get(key))
        elif isinstance(value, np.ndarray):
            inputs[key] = value
        else:
            options[key] = value
    return Example(op, name, description, inputs | {"d_output": draws(*shape)}, options, tags)


def _vector(draws: Draws, _: Array | None) -> Array:
    return draws(6)


def _of_norms(op: str) -> list[Example]:
    both: dict[str, Any] = {"gain": _vector} | ({"b": _vector} if op == "layer_norm" else {})
    return [
        _of_rows(op, "plain", "Rows of six features, without a gain."),
        _of_rows(op, "gain", "With a gain, which all rows share.", "broadcast", **both),
        _of_rows(op, "one-row", "One row without leading axes.", shape=(6,), **both),
        _of_rows(op, "large-epsilon", "An epsilon that is seen, where it stands below the root.", epsilon=0.25, **both),
        _of_rows(
            op,
            "zeros",
            "A row of zeros, whose root is that of epsilon.",
            epsilon=0.25,
            x=lambda _, x: x * (np.arange(4) != 1)[:, None],
            **both,
        ),
        _of_rows(op, "large", "Rows whose squares are large.", x=lambda _, x: 64 * x, **both),
    ]


def examples() -> list[Example]:
    """Every case of rms_norm, layer_norm and rotary."""
    places = np.array([3.0, 0.0, 17.0, 40.0])
    return [
        *_of_norms("rms_norm"),
        *_of_norms("layer_norm"),
        _of_rows(
            "rotary", "halves", "Feature a of the first half is turned with feature a of the second, as in Llama."
        ),
        _of_rows("rotary", "neighbours", "Neighbouring features are turned together, as in GPT-J.", interleaved=True),
        _of_rows("rotary", "positions", "Positions that are not in order.", positions=places),
        _of_rows(
            "rotary", "positions-of-each", "Positions of each sample.", positions=places + np.array([[0.0], [5.0]])
        ),
        _of_rows("rotary", "base", "Another base.", base=500.0, positions=places),
        _of_rows("rotary", "first-features", "The first four of six features.", width=4, positions=places),
        _of_rows("rotary", "last-features", "The last four of six.", width=4, trailing=True, positions=places),
        _of_rows(
            "rotary",
            "last-neighbours",
            "The last four of six, neighbours together, as in DeepSeek-V4.",
            width=4,
            trailing=True,
            interleaved=True,
            positions=places,
        ),
        *_scaled(places),
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
            "scaling",
            shape=(2, 4, 8),
            base=500.0,
            positions=places,
            scaling={"kind": name.partition("-")[0], **numbers},
        )
        for name, (description, numbers) in kinds.items()
    ]
