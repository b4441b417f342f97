"""Named inputs for every op: what `check`, the benchmarks and the known answers run on.

Some are random arrays of every shape that the ops take. Some are what a user would feed them: real sentences of
different lengths, English and Chinese, tokenised, padded to a batch, embedded by a fixed table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np import additive, blockwise, dot_product, masks, multi_head, softmax

__all__ = ["ENGLISH", "MIXED", "OPS", "PAD", "Batch", "Case", "all_cases", "batch", "tokenise"]

Array = npt.NDArray[Any]

OPS: dict[str, ModuleType] = {
    "softmax": softmax,
    "dot_product": dot_product,
    "blockwise": blockwise,
    "additive": additive,
    "multi_head": multi_head,
}

ENGLISH = ("The cat sat on the mat", "Thinking strictly is hard", "I love AI", "Deep learning transforms the world")
CHINESE = ("猫坐在垫子上", "严谨地思考很难", "我爱人工智能", "深度学习改变世界")  # the same four sentences
MIXED = ("我爱自然语言处理", "深度学习很有趣", "Transformer改变了AI领域", "The cat sat on the mat")

PAD = 0  # the token that fills a sentence up to the longest of its batch


@dataclass(frozen=True)
class Case:
    """One op on one set of inputs."""

    op: str
    name: str
    inputs: dict[str, Any]  # the arrays to differentiate by
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> ModuleType:
        """The op itself."""
        return OPS[self.op]


@dataclass(frozen=True)
class Batch:
    """Sentences as a user feeds them to attention."""

    tokens: Array  # (sentences, longest)
    embedded: Array  # (sentences, longest, features)


def tokenise(sentence: str) -> list[str]:
    """The words of a sentence, in lower case; each Chinese character is one.

    Examples
    --------
    >>> tokenise("Transformer改变了AI")
    ['transformer', '改', '变', '了', 'ai']
    """
    return re.findall(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+", sentence.lower())


def batch(sentences: Sequence[str], features: int, seed: int = 0) -> Batch:
    """`sentences` padded to one length, and embedded by a table of standard normal numbers drawn with `seed`.

    Examples
    --------
    >>> example = batch(["I love AI", "Thinking strictly is hard"], features=4)
    >>> print(example.tokens)
    [[1 2 3 0]
     [4 5 6 7]]
    >>> example.embedded.shape
    (2, 4, 4)
    """
    words = [tokenise(sentence) for sentence in sentences]
    identity: dict[str, int] = {}
    for word in (word for sentence in words for word in sentence):
        identity.setdefault(word, len(identity) + 1)
    tokens = np.full((len(words), max(map(len, words))), PAD)
    for row, sentence in zip(tokens, words, strict=True):
        row[: len(sentence)] = [identity[word] for word in sentence]
    table = np.random.default_rng(seed).standard_normal((len(identity) + 1, features))
    return Batch(tokens, table[tokens])


def all_cases(ops: Iterable[str] = tuple(OPS)) -> list[Case]:
    """The cases of the given ops, by default of all."""
    wanted = set(ops)
    return [
        case
        for case in (*_softmax(), *_dot_product(), *_blockwise(), *_additive(), *_multi_head())
        if case.op in wanted
    ]


def _normal(seed: int, *shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def _qkv(
    seed: int, n: int = 4, m: int = 6, leading: tuple[int, ...] = (2,), d_k: int = 5, d_v: int = 3
) -> dict[str, Array]:
    query, key, value = _normal(seed, (*leading, n, d_k), (*leading, m, d_k), (*leading, m, d_v))
    return {"query": query, "key": key, "value": value}


def _softmax() -> list[Case]:
    (scores,) = _normal(0, (3, 5))
    mask = np.array([[True, False, True, True, False], [False] * 5, [True] * 5])
    sentences = batch(ENGLISH, 8).embedded
    similarities = sentences @ sentences.swapaxes(-1, -2)
    padding = masks.padding_from_tokens(batch(ENGLISH, 8).tokens, PAD)
    return [
        Case("softmax", "rows", {"scores": scores}),
        Case("softmax", "columns", {"scores": scores}, {"axis": 0}),
        Case("softmax", "far from zero", {"scores": scores + 700.0}),
        Case("softmax", "one far ahead", {"scores": scores + np.array([0, 0, 30, 0, 0])}),
        Case("softmax", "mask with an empty row", {"scores": scores}, {"mask": mask}),
        Case("softmax", "sentences: similarities of words", {"scores": similarities}, {"mask": padding}),
    ]


def _dot_product() -> list[Case]:
    plain = _qkv(1)
    single = {name: array[0] for name, array in plain.items()} | {"query": plain["query"][0, 0]}
    mask = np.random.default_rng(2).random((2, 4, 6)) < 0.6
    mask[0, 1] = False
    english, mixed = batch(ENGLISH, 6), batch(MIXED, 6)
    padding = masks.padding_from_tokens(mixed.tokens, PAD)
    return [
        Case("dot_product", "plain", plain),
        Case("dot_product", "no batch axis", _qkv(3, leading=())),
        Case("dot_product", "a single query", single),
        Case("dot_product", "one key", _qkv(4, m=1)),
        Case("dot_product", "broadcast", plain | {"key": plain["key"][:1], "value": plain["value"][0]}),
        Case("dot_product", "mask with an empty row", plain, {"mask": mask}),
        Case("dot_product", "bias of each pair", plain | {"bias": _normal(5, (2, 4, 6))[0]}),
        Case("dot_product", "bias of each key", plain | {"bias": _normal(6, (6,))[0]}, {"mask": mask}),
        Case("dot_product", "causal", plain, {"is_causal": True}),
        Case("dot_product", "decoding, scale 1", plain, {"mask": masks.causal(4, 6, offset=2), "scale": 1.0}),
        Case("dot_product", "sliding window", _qkv(7, n=6), {"mask": masks.sliding_window(6, left=2)}),
        Case("dot_product", "dropout", plain, {"dropout_p": 0.4, "rng": 8}),
        Case("dot_product", "sentences: self-attention, padding", _self(mixed.embedded), {"mask": padding}),
        Case(
            "dot_product",
            "sentences: self-attention, padding, causal",
            _self(english.embedded),
            {"mask": masks.padding_from_tokens(english.tokens, PAD), "is_causal": True},
        ),
        Case("dot_product", "sentences: packed in one row", _self(_packed(english)[0]), {"mask": _packed(english)[1]}),
    ]


def _blockwise() -> list[Case]:
    """Those of dot_product, in blocks that do not fit them evenly."""
    return [replace(case, op="blockwise", options={**case.options, "block_size": (2, 3)}) for case in _dot_product()]


def _additive() -> list[Case]:
    plain = _qkv(11, d_k=5) | _network(12, 5, 5, 4)
    single = plain | {name: plain[name][0] for name in ("key", "value")} | {"query": plain["query"][0, 0]}
    without_b = {name: array for name, array in plain.items() if name != "b"}
    source, target = batch(ENGLISH, 6), batch(CHINESE, 5, seed=1)
    translation = {"query": target.embedded, "key": source.embedded, "value": source.embedded} | _network(13, 5, 6, 4)
    return [
        Case("additive", "plain", plain),
        Case("additive", "without b", without_b),
        Case("additive", "a single query", single),
        Case("additive", "broadcast", plain | {"query": plain["query"][0], "value": plain["value"][:1]}),
        Case("additive", "mask with an empty row", plain, {"mask": np.arange(4)[:, None] > np.arange(6)}),
        Case(
            "additive",
            "sentences: translation to source",
            translation,
            {"mask": masks.padding_from_tokens(source.tokens, PAD)},
        ),
    ]


def _multi_head() -> list[Case]:
    (x, source, width_3) = _normal(21, (2, 4, 6), (2, 5, 4), (2, 5, 3))
    parameters = _parameters(22, 6)
    some = np.random.default_rng(27).random((2, 1, 4, 4)) < 0.6
    some[0, :, 1] = False
    mixed, english = batch(MIXED, 6), batch(ENGLISH, 6)
    cross = {"query": x, "key": source, "value": width_3, "parameters": _parameters(23, 6, d_key=4, d_value=3)}
    target, from_source = batch(CHINESE, 6, seed=1), masks.padding_from_tokens(english.tokens, PAD, heads=True)
    translation = {"query": target.embedded, "key": english.embedded, "value": english.embedded}
    return [
        Case("multi_head", "self-attention", _self(x, parameters), {"num_heads": 2}),
        Case("multi_head", "without biases", _self(x, _parameters(24, 6, biases=False)), {"num_heads": 3}),
        Case("multi_head", "cross-attention, other widths", cross, {"num_heads": 2}),
        Case("multi_head", "mask with an empty row", _self(x, parameters), {"num_heads": 2, "mask": some}),
        Case("multi_head", "a single query", cross | {"query": x[0, 0]}, {"num_heads": 2}),
        Case(
            "multi_head",
            "bias of each head, dropout",
            _self(x, parameters) | {"bias": _normal(25, (2, 1, 4))[0]},
            {"num_heads": 2, "dropout_p": 0.3, "rng": 26},
        ),
        Case(
            "multi_head",
            "sentences: self-attention, padding, causal",
            _self(mixed.embedded, parameters),
            {"num_heads": 2, "mask": masks.padding_from_tokens(mixed.tokens, PAD, heads=True), "is_causal": True},
        ),
        Case(
            "multi_head",
            "sentences: translation to source",
            translation | {"parameters": parameters},
            {"num_heads": 3, "mask": from_source},
        ),
    ]


def _self(x: Array, parameters: multi_head.Parameters | None = None) -> dict[str, Any]:
    """One array as query, key and value."""
    attended = {"query": x, "key": x, "value": x}
    return attended if parameters is None else attended | {"parameters": parameters}


def _network(seed: int, d_query: int, d_key: int, hidden: int) -> dict[str, Array]:
    w_query, w_key, w_score, b = _normal(seed, (d_query, hidden), (d_key, hidden), (hidden,), (hidden,))
    return {"w_query": w_query, "w_key": w_key, "w_score": w_score, "b": b}


def _parameters(seed: int, d_model: int, **options: Any) -> multi_head.Parameters:
    """Parameters as they are after some training: the biases are no longer zero."""
    parameters = multi_head.Parameters.random(d_model, rng=seed, **options)
    drawn = _normal(seed, *[(d_model,)] * 4)
    biases = [None if b is None else draw for b, draw in zip(parameters[4:], drawn, strict=True)]
    return multi_head.Parameters(*parameters[:4], *biases)


def _packed(sentences: Batch) -> tuple[Array, Array]:
    """The sentences one after another, without padding, and the mask that keeps them and their futures apart."""
    real = sentences.tokens != PAD
    segments = np.nonzero(real)[0]
    return sentences.embedded[real], masks.packed(segments) & masks.causal(len(segments))
