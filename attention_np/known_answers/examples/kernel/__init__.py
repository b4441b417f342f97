"""The cases that a kernel can run as they are stored: its shapes, its options, its formats.

An id never changes its meaning: a test holds the digest of the inputs and options of each.
"""

from __future__ import annotations

from attention_np.known_answers.examples.example import Example
from attention_np.known_answers.examples.kernel import attention

__all__ = ["FIRST", "first_examples", "kernel_examples"]

FIRST = (  # small, and of what most kernels have
    "attention/kernel-d64",
)


def kernel_examples() -> list[Example]:
    """Every case."""
    return [example for module in (attention,) for example in module.examples()]


def first_examples() -> list[Example]:
    """The cases to begin with."""
    return [example for example in kernel_examples() if f"{example.op}/{example.name}" in FIRST]
