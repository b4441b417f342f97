"""The cases that a kernel can run as they are stored: its shapes, its options, its formats.

An id never changes its meaning: a test holds the digest of the inputs and options of each.
"""

from __future__ import annotations

from attention_np.known_answers.examples.example import Example
from attention_np.known_answers.examples.kernel import attention, eight_bits, second_order, sequences, states

__all__ = ["FIRST", "first_examples", "kernel_examples"]

FIRST = (  # small, and of what most kernels have
    "attention/kernel-d64",
    "attention/kernel-d128",
    "attention/kernel-d256",
    "attention/kernel-d72",
    "attention/kernel-d96",
    "attention/kernel-d104",
    "attention/kernel-d192-128",
    "attention/kernel-cotangents-along-output",
    "attention/kernel-full-cotangents",
    "attention/kernel-causal-63",
    "attention/kernel-causal-64",
    "attention/kernel-causal-65",
    "attention/kernel-causal-128",
    "attention/kernel-causal-129",
    "attention/kernel-63-129",
    "attention/kernel-128-64",
    "attention/kernel-one-query",
    "attention/kernel-groups-of-4",
    "attention/kernel-one-key-head",
    "attention/kernel-groups-in-batch",
    "attention/kernel-causal-more-keys",
    "attention/kernel-causal-more-queries",
    "attention/kernel-causal-bottom-right",
    "attention/kernel-window",
    "attention/kernel-window-both-ways",
    "attention/kernel-window-of-one",
    "attention/kernel-window-bottom-right",
    "attention/kernel-offset",
    "attention/kernel-key-lengths",
    "attention/kernel-mask",
    "attention/kernel-mask-of-heads",
    "attention/kernel-scale",
    "attention/kernel-bias",
    "attention/kernel-bias-large",
    "attention/kernel-softcap",
    "attention/kernel-softcap-low",
    "attention/kernel-sink",
    "attention/kernel-large-scores",
    "attention/kernel-parts-of-keys",
    "attention/kernel-logsumexp-gradient-alone",
)


def kernel_examples() -> list[Example]:
    """Every case."""
    return [
        example for module in (attention, sequences, states, second_order, eight_bits) for example in module.examples()
    ]


def first_examples() -> list[Example]:
    """The cases to begin with."""
    return [example for example in kernel_examples() if f"{example.op}/{example.name}" in FIRST]
