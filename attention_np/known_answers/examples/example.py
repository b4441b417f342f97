"""What a case is, and the numbers that its arrays are drawn from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers.examples.flags import WENT_WRONG
from attention_np.known_answers.formats import DTYPES, format_of
from attention_np.known_answers.signatures import DESCALES, MADE, SIGNATURES

__all__ = ["TAGS", "THREADS", "Array", "Draws", "Example", "Shape", "attending", "case_of", "filled", "with_tangents"]

Shape: TypeAlias = tuple[int, ...]

TAGS = {
    "mask": "a boolean mask",
    "causal": "is_causal",
    "bias": "a bias that is added to the scores",
    "softcap": "scores s are c tanh(s / c), before bias and mask",
    "sink": "one more logit of each query, without a value",
    "weights by": "weights that are not by softmax; there is no log-sum-exp",
    "position bias": "a bias that is made of a small array by position: slopes, table, embedding or log_f",
    "index": "the rows of a table or an embedding come as an array of whole numbers, (n, m)",
    "scale of each query": "the scale is an array, an input with a gradient",
    "scaling": "rotary positions of other frequencies, for longer sequences",
    "broadcast": "an array that is shared along an axis, so that its gradient is summed over it",
    "large scores": "scores far from zero",
    "ties": "scores that are exactly equal",
    "tile": "sizes that kernels are written for",
    "empty row": "a query that may attend to nothing: zeros, and zero gradient",
    "hidden non-finite": "NaN or infinity where it has no influence on what is finite in the answers",
    "decay": "a state of which some is left at each token",
    "delta rule": "a token writes what its value lacks in what the state says",
    "probe": "a token writes what the state says for its probe under its response",
    "bonus": "a query reads before its token decays and writes, and its own value by a weight of its own",
    "state": "a state before the first token, with its gradient",
    "zero d_output": "a query without incoming gradient that holds NaN, or sees it",
    "tangents": "a tangent v_NAME of each input: Hessian-vector products are among the answers",
    "infinite scores": "plus infinity among the scores, or in the bias: the limit",
    "grouped heads": "heads of keys and values that each serve as many heads of queries, which follow one another",
    "bottom-right": "positions are counted from the last query and the last key",
    "offset": "query i stands where key i + offset does",
    "window": "queries see so many keys before their own position, and so many behind it",
    "key lengths": "each sample has so many keys; what is behind them is padding",
    "packed": "sequences one after the other, which begin and end at cu_seqlens",
    "paged": "keys and values in pages, which a table gives to the samples",
    "selected": "each query is told its keys, and -1 where there are fewer",
    "shared value": "the values are the first features of the keys",
    "dropout": "which weights are kept is given",
    "d_logsumexp": "the log-sum-exp has a gradient of its own",
    "all digits": "inputs with all the digits of their dtype",
    "eight bits": "arrays of eight bits, each with a NAME_descale that it is to be multiplied by",
}
TAGS |= {tag: reason for tag, (reason, _) in WENT_WRONG.items()}
THREADS: dict[
    str, tuple[str, ...]
] = {  # in which kernels were wrong in just what a tag says: owner/repository#number, all on GitHub
    "causal": ("pytorch/pytorch#108108", "onnx/onnx#8054"),
    "softcap": ("onnx/onnx#7865", "onnx/onnx#7867"),
    "sink": ("Dao-AILab/flash-attention#1895",),
    "large scores": ("pytorch/pytorch#196678",),
    "empty row": ("pytorch/pytorch#41508", "pytorch/pytorch#109517", "jax-ml/jax#32242"),
    "tangents": ("pytorch/pytorch#116350",),
    **{tag: threads for tag, (_, threads) in WENT_WRONG.items()},
}
HELD = {  # by cases with these tags: one of these inputs or options
    "mask": {"mask"},
    "causal": {"is_causal"},
    "bias": {"bias"},
    "softcap": {"softcap"},
    "sink": {"sink"},
    "weights by": {"weights_by"},
    "position bias": {*MADE},
    "index": {"index"},
    "scaling": {"scaling"},
    "decay": {"log_decay"},
    "delta rule": {"beta"},
    "probe": {"probe"},
    "bonus": {"bonus"},
    "state": {"initial_state"},
    "tangents": {"v_scores", "v_query"},
    "bottom-right": {"alignment"},
    "offset": {"offset"},
    "window": {"window"},
    "key lengths": {"key_lengths"},
    "packed": {"cu_seqlens_q"},
    "paged": {"block_table"},
    "selected": {"indices"},
    "shared value": {"value_width"},
    "dropout": {"dropout_p"},
    "d_logsumexp": {"d_logsumexp"},
    "eight bits": {*DESCALES},
}


@dataclass(frozen=True)
class Example:
    """The inputs of one case, in float64, before they are rounded to a dtype."""

    op: str
    name: str
    description: str
    inputs: dict[str, Array]
    options: dict[str, Any]
    special: tuple[str, ...]  # what its inputs and options do not tell
    in_float32: tuple[str, ...] = ()  # arrays that are not held in a shorter format
    dtypes: tuple[str, ...] = DTYPES

    def format_of(self, array: str, dtype: str) -> str:
        """The format of one of its arrays, in the case of that dtype."""
        return format_of(array, dtype, self.inputs, self.in_float32)

    @property
    def tags(self) -> tuple[str, ...]:
        """What is special about it."""
        given = self.options | self.options.get("rotary", {})
        holds = {*self.inputs, *(name for name, value in given.items() if value)}
        of_inputs = {"scale of each query"} if "scale" in self.inputs else set()
        return tuple(tag for tag in TAGS if tag in of_inputs or tag in self.special or holds & HELD.get(tag, set()))


class Draws:
    """Standard normal numbers that depend on the name of a case alone."""

    def __init__(self, op: str, name: str) -> None:
        self.op, self.name = op, name
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


def attending(
    draws: Draws,
    positions: tuple[int, int],
    widths: tuple[int, int, int],
    leading: Shape,
    key_leading: Shape | None = None,
    value_leading: Shape | None = None,
) -> tuple[dict[str, Array], Shape]:
    """Query, key and value of these widths, and the leading axes of the output."""
    key_leading = leading if key_leading is None else key_leading
    value_leading = key_leading if value_leading is None else value_leading
    (n, m), (d_query, d_key, d_value) = positions, widths
    inputs = {
        "query": draws(*leading, n, d_query),
        "key": draws(*key_leading, m, d_key),
        "value": draws(*value_leading, m, d_value),
    }
    return inputs, np.broadcast_shapes(leading, key_leading, value_leading)


def case_of(
    draws: Draws,
    description: str,
    special: tuple[str, ...],
    inputs: Mapping[str, Array],
    changes: Mapping[str, Any],
) -> Example:
    """The case of what was drawn and of `changes`: options, arrays, or None for no array.

    In place of an array there may be a function, of what was drawn under its name or, if nothing was, of the draws.
    """
    of_op = SIGNATURES[draws.op].options
    options = {name: x for name, x in changes.items() if name in of_op and not callable(x)}
    arrays = dict(inputs)
    for name, change in changes.items():
        if name not in options:
            arrays[name] = change(arrays.get(name, draws)) if callable(change) else change
    given = {name: array for name, array in arrays.items() if array is not None}
    return Example(draws.op, draws.name, description, given, options, special)


def filled(some: Array, number: float) -> Callable[[Array], Array]:
    """What puts a number in some places of an array."""
    return lambda array: np.where(some, number, array)


def with_tangents(example: Example) -> Example:
    """The same case with a tangent of each input, and the answers of second order."""
    draws = Draws(example.op, f"{example.name}, tangents")
    names = [name for name in example.inputs if name not in ("mask", "d_output")]
    tangents = {f"v_{name}": draws(*example.inputs[name].shape) for name in names}
    return replace(example, inputs=example.inputs | tangents)
