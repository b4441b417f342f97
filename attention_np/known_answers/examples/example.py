"""What a case is, and the numbers that its arrays are drawn from."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["TAGS", "Array", "Draws", "Example", "Shape", "with_tangents"]

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]

TAGS = {
    "mask": "a boolean mask",
    "causal": "is_causal",
    "bias": "a bias that is added to the scores",
    "softcap": "scores s are c tanh(s / c), before bias and mask",
    "sink": "one more logit of each query, without a value",
    "position bias": "a bias that is made of a small array by position: slopes, table, embedding or log_f",
    "scaling": "rotary positions of other frequencies, for longer sequences",
    "broadcast": "an array that is shared along an axis, so that its gradient is summed over it",
    "large scores": "scores far from zero",
    "ties": "scores that are exactly equal",
    "tile": "sizes that kernels are written for",
    "empty row": "a query that may attend to nothing: zeros, and zero gradient",
    "hidden non-finite": "NaN or infinity where it has no influence on what is finite in the answers",
    "decay": "a state of which some is left at each token",
    "delta rule": "a token writes what its value lacks in what the state says",
    "state": "a state before the first token, with its gradient",
    "zero d_output": "a query without incoming gradient that holds NaN, or sees it",
    "tangents": "a tangent v_NAME of each input: Hessian-vector products are among the answers",
    "infinite scores": "plus infinity among the scores, or in the bias: the limit",
}


@dataclass(frozen=True)
class Example:
    """The inputs of one case, in float64, before they are rounded to a dtype."""

    op: str
    name: str
    description: str
    inputs: dict[str, Array]
    options: dict[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


def with_tangents(example: Example) -> Example:
    """The same case with a tangent of each input, and the answers of second order."""
    draws = Draws(example.op, f"{example.name}, tangents")
    names = [name for name in example.inputs if name not in ("mask", "d_output")]
    tangents = {f"v_{name}": draws(*example.inputs[name].shape) for name in names}
    return replace(example, inputs=example.inputs | tangents, tags=(*example.tags, "tangents"))


class Draws:
    """Standard normal numbers that depend on the name of a case alone."""

    def __init__(self, op: str, name: str) -> None:
        self.rng = np.random.default_rng(zlib.crc32(f"{op}/{name}".encode()))

    def __call__(self, *shape: int) -> Array:
        """An array of them."""
        return self.rng.standard_normal(shape)

    def mask(self, *shape: int) -> Array:
        """Each query sees about half of the keys, and one for certain."""
        mask = self.rng.random(shape) < 0.5
        some = self.rng.integers(shape[-1], size=shape[:-1])
        seen: Array = mask | (np.arange(shape[-1]) == some[..., None])
        return seen
