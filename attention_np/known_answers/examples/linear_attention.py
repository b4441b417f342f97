"""The cases of linear attention: every rule, with the gradients of both states."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Draws, Example, Shape, case_of, filled

__all__ = ["examples"]


def _of_linear_attention(
    name: str,
    description: str,
    *tags: str,
    n: int = 6,
    leading: Shape = (2,),
    decays: int = 0,
    delta: bool = False,
    initial: bool = False,
    probe: bool = False,
    bonus: bool = False,
    **changes: Any,
) -> Example:
    """A case of n tokens with so many decays each."""
    draws = Draws("linear_attention", name)
    inputs = {"query": draws(*leading, n, 4), "key": draws(*leading, n, 4) / 2, "value": draws(*leading, n, 3)}
    if decays:
        inputs["log_decay"] = -np.abs(draws(*leading, n, decays))
    if delta:
        inputs["beta"] = 1 / (1 + np.exp(-draws(*leading, n)))
    if initial:
        inputs["initial_state"] = draws(*leading, 4, 3)
    if probe:
        inputs |= {"probe": draws(*leading, n, 4) / 3, "response": draws(*leading, n, 4) / 3}
    if bonus:
        inputs["bonus"] = draws(4)
    inputs |= {"d_output": draws(*leading, n, 3), "d_final_state": draws(*leading, 4, 3)}
    return case_of(draws, description, tags, inputs, changes)


def examples() -> list[Example]:
    """Every case of linear_attention."""
    case = _of_linear_attention
    padding = np.arange(6) < np.array([[6], [4]])  # (2, 6)
    hidden = ~padding[..., None]
    fixed = np.broadcast_to(np.log(1 - 2.0 ** -np.arange(2, 4))[:, None, None], (2, 6, 1)).copy()
    return [
        case("linear", "Linear attention: nothing is forgotten, 6 tokens, a batch of 2."),
        case("retnet", "A decay that is fixed for each head, as in RetNet.", decays=1, log_decay=fixed),
        case("ssd", "A decay for each token, as in Mamba-2.", decays=1, initial=True),
        case("gla", "A decay for each feature: gated linear attention.", decays=4, initial=True),
        case("delta", "The delta rule, as in DeltaNet.", delta=True, initial=True),
        case("gated-delta", "A decay and then the delta rule, as in Qwen3-Next.", decays=1, delta=True, initial=True),
        case(
            "kda",
            "A decay for each feature, and the delta rule: Kimi delta attention.",
            decays=4,
            delta=True,
            initial=True,
        ),
        case("rwkv-6", "A decay for each feature, and a bonus for the own token.", decays=4, initial=True, bonus=True),
        case("rwkv-7", "A decay for each feature, a probe and a response.", decays=4, initial=True, probe=True),
        case("probe", "A probe and a response, and nothing decays.", initial=True, probe=True),
        case(
            "probe-bonus", "One decay, a probe, a response and a bonus.", decays=1, initial=True, probe=True, bonus=True
        ),
        case("one-token", "A step of decoding.", n=1, decays=1, delta=True, initial=True),
        case("scale-1", "Without the scale.", delta=True, scale=1.0),
        case(
            "long", "40 tokens, which chunks of 16 do not divide.", n=40, leading=(), decays=4, delta=True, initial=True
        ),
        case(
            "reset",
            "At the fourth token nothing is left of the state.",
            "hidden non-finite",
            decays=1,
            delta=True,
            initial=True,
            log_decay=filled(np.arange(6)[:, None] == 3, -np.inf),
        ),
        case(
            "padding",
            "The second sample has 4 tokens and 2 of padding, NaN and infinite.",
            "hidden non-finite",
            decays=4,
            delta=True,
            initial=True,
            mask=padding,
            key=filled(hidden, np.nan),
            value=filled(hidden, np.inf),
        ),
    ]
