"""The cases: every op, mask and corner that the conventions name, each with a sentence that says what it is."""

from __future__ import annotations

from collections.abc import Callable

from attention_np.known_answers.examples import (
    additive,
    around,
    dot_product,
    latent,
    linear_attention,
    masked,
    multi_head,
    pipeline,
    rows,
    second_order,
    softmax,
)
from attention_np.known_answers.examples.example import TAGS, THREADS, Example
from attention_np.known_answers.examples.kernel import first_examples, kernel_examples
from attention_np.known_answers.signatures import SIGNATURES

__all__ = ["OF_KERNELS", "OPS", "SETS", "TAGS", "THREADS", "Example", "all_examples"]

OF_KERNELS = ("attention", "merge")  # what the package has no op for, of that name
OPS = tuple(op for op in SIGNATURES if op not in OF_KERNELS)


def all_examples() -> list[Example]:
    """Every case of every op."""
    modules = (
        softmax,
        dot_product,
        masked,
        pipeline,
        second_order,
        additive,
        multi_head,
        linear_attention,
        latent,
        rows,
        around,
    )
    return [example for module in modules for example in module.examples()]


SETS: dict[str, Callable[[], list[Example]]] = {
    "standard": all_examples,
    "kernel": kernel_examples,
    "first": first_examples,
}
