"""Named inputs for every op: what `check` and the tests run on.

Those of random numbers are made from the op's page, whose front matter declares its arrays, and from the arguments of
its ``forward``; so a new op has them as soon as it has a page. The others are what a user would feed it: real
sentences of different lengths, English and Chinese, tokenised, padded to a batch, embedded by a fixed table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from itertools import cycle
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import attention_np
from attention_np import biases, masks, rotary, weightings
from attention_np._lib.pages import PAGES
from attention_np._lib.text import tokenise

if TYPE_CHECKING:
    from attention_np.derivation.header import Header

__all__ = ["ENGLISH", "MIXED", "OPS", "PAD", "Batch", "Case", "all_cases", "batch", "drawn", "tokenise"]

Array = npt.NDArray[Any]

OPS: dict[str, ModuleType] = {name: import_module(f"attention_np.{name}") for name in attention_np.OPS}

ENGLISH = ("The cat sat on the mat", "Thinking strictly is hard", "I love AI", "Deep learning transforms the world")
CHINESE = ("猫坐在垫子上", "严谨地思考很难", "我爱人工智能", "深度学习改变世界")  # the same four sentences
MIXED = ("我爱自然语言处理", "深度学习很有趣", "Transformer改变了AI领域", "The cat sat on the mat")

PAD = 0  # the token that fills a sentence up to the longest of its batch


INFINITE = ("indexer",)  # whose hidden outputs are infinite, of which no slope can be taken: no case has a mask
ATTENDING = ("query", "key", "value")
OPTIONS: tuple[dict[str, Any], ...] = (  # a case each, for an op whose `forward` takes them
    {"is_causal": True, "scale": 0.7, "softcap": 0.8},
    {"dropout_p": 0.4, "rng": 8},  # alone: with it, perturbations are tried one by one
    {"absorbed": True},
)
WEIGHTINGS = (
    weightings.sigmoid(),
    weightings.silu(),
    weightings.sparsemax(),
    weightings.entmax(1.2),
    weightings.entmax(1.5),
    weightings.entmax(3),
    weightings.softpick(),
    weightings.stick_breaking(),
)


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
    """The cases of the given ops, by default of all; other names have none.

    Raises
    ------
    ImportError
        If what reads the pages is missing, the extra ``check``.
    FileNotFoundError
        If an op has no page.
    """
    wanted = set(ops)
    return [case for op in OPS if op in wanted for case in (*_random(op), *_written(op), *_of_sentences(op))]


def drawn(op: str, *, optional: bool = True, leading: tuple[int, ...] = (), seed: int = 0, **sizes: int) -> Case:
    """A case of an op with the arrays that its page declares, of normal numbers, or of uniform ones where it says so.

    Parameters
    ----------
    op : str
        The name of an op.
    optional : bool, optional
        Whether the arrays are there that `forward` need not be given.
    leading : tuple of int, optional
        Axes before those of the page. Optional arrays, and those of neither queries nor keys, are shared along them.
    seed : int, optional
        Of the numbers.
    **sizes
        Lengths of ranges by the names of the page, such as ``d_k=4``; the others are small.

    Examples
    --------
    >>> {name: x.shape for name, x in drawn("dot_product", leading=(2,), m=7).inputs.items()}
    {'query': (2, 3, 5), 'key': (2, 7, 5), 'value': (2, 7, 3), 'bias': (3, 7)}
    """
    header, module, rng = _header(op), OPS[op], np.random.default_rng(seed)
    lengths = _lengths(header, {_key(name): size for name, size in sizes.items()})
    takes = signature(module.forward).parameters
    inputs: dict[str, Any] = {}
    groups: dict[str, dict[str, Array]] = {}
    for name, symbol in header.code.items():
        argument, _, part = name.partition(".")
        if argument not in takes:
            continue  # forward makes it
        needed = takes[argument].default is Parameter.empty
        group = getattr(module, argument.capitalize()) if part else None  # parameters are a Parameters
        if not optional and (not needed or (group is not None and part in group._field_defaults)):
            continue
        axes = header.tensors[symbol].axes
        before = leading if needed and {"n", "m"} & set(axes) else ()
        draw = rng.random if header.tensors[symbol].kind == "uniform" else rng.standard_normal
        array = draw((*before, *(lengths[axis] for axis in axes)))
        if group is None:
            inputs[argument] = array
        else:
            groups.setdefault(argument, {})[part] = array / np.sqrt(len(array)) if array.ndim > 1 else array
            inputs[argument] = group  # in its place among the arguments
    for argument, parts in groups.items():
        inputs[argument] = inputs[argument](**parts)
    # An option that is an array of the page is left to the op's own choice.
    options = {name: lengths.get(x, x) for name, x in header.options.items() if x not in header.tensors}
    return Case(op, "every array", inputs, options)


@cache
def _header(op: str) -> Header:
    """What the page of an op declares."""
    try:
        from attention_np.derivation.header import front_matter, read_header
    except ImportError as error:
        needed = f"cases are made from derivation pages, and {error.name} is missing, which reads them"
        raise ImportError(f"{needed}: pip install 'attention-np[check]'") from error
    page = PAGES / f"{op}.md"
    if not page.is_file():
        raise FileNotFoundError(f"there is no page to make cases of {op} from: {page}")
    front, places, _ = front_matter(page.read_text(encoding="utf-8"))
    return read_header(front, places)


def _key(name: str) -> str:
    """What a range that a page calls so is known by."""
    from attention_np.derivation.names import parse_name

    return parse_name(name)


def _lengths(header: Header, chosen: Mapping[str, int]) -> dict[str, int]:
    """A length for each range: those chosen, 2 and 3 for the factors of others, and from 2 to 5 for the rest."""
    factors = {factor for product in header.sizes.values() for factor in product}
    small, other = cycle((2, 3)), cycle((3, 5, 4, 2))
    lengths = {**header.fixed, **chosen}
    for name in (name for name, product in header.sizes.items() if not product):
        lengths.setdefault(name, next(small if name in factors else other))
    for name, product in header.sizes.items():
        lengths.setdefault(name, prod(lengths[factor] for factor in product))
    return lengths


def _random(op: str) -> Iterator[Case]:
    """Every shape, mask and option that an op takes, on random numbers."""
    takes, lengths = signature(OPS[op].forward).parameters, _lengths(_header(op), {})
    plain, alone = drawn(op, optional=False, leading=(2,), seed=1), drawn(op, optional=False, seed=3)
    whole, base = drawn(op, seed=2), _with_fixed_parameters(alone)
    if base.inputs.keys() < alone.inputs.keys():  # what is tried one by one is so once: where its gradients are sums
        plain, whole = _with_fixed_parameters(plain), drawn(op, leading=(2,), seed=2)
    yield replace(plain, name="plain")
    yield whole if len(_arrays(whole)) > len(_arrays(plain)) else replace(alone, name="no leading axes")
    in_batch = {name: x for name, x in _arrays(plain).items() if x.shape != _arrays(alone)[name].shape}
    if len(in_batch) > 1:
        _, second, *rest = in_batch
        shared = {second: in_batch[second][:1]} | {name: in_batch[name][0] for name in rest}
        yield replace(_with_fixed_parameters(replace(plain, inputs=plain.inputs | shared)), name="broadcast")
    if {"n", "m"} <= lengths.keys() and {*ATTENDING} <= takes.keys():
        yield replace(base, name="a single query", inputs=base.inputs | {"query": base.inputs["query"][0]})
    if "m" in lengths:
        yield replace(_with_fixed_parameters(drawn(op, optional=False, seed=4, m=1)), name="one key")
    for options in OPTIONS:
        taken = {name: x for name, x in options.items() if name in takes}
        if taken:
            yield replace(base, name=", ".join(taken), options=base.options | taken)
    if "mask" not in takes or op in INFINITE:
        return
    of_scores = tuple(lengths[name] for name in ("n", "m") if name in lengths)
    some = np.random.default_rng(5).random(of_scores) < 0.6
    some[1] = False
    yield replace(base, name="mask with an empty row", options=base.options | {"mask": some})
    if "bias" in takes:
        n, m = of_scores
        of_keys = _with_fixed_parameters(drawn(op, seed=8))
        inputs, decoding = of_keys.inputs | {"bias": of_keys.inputs["bias"][0]}, masks.causal(n, m, offset=m - n)
        options = of_keys.options | {"mask": decoding}
        yield replace(of_keys, name="bias of each key, decoding", inputs=inputs, options=options)
        case = _with_fixed_parameters(drawn(op, optional=False, seed=10))
        d_k, rng = _width_of_heads(case), np.random.default_rng(11)
        by_position = {
            "T5, causal": biases.t5(rng.standard_normal(4), bidirectional=False, max_distance=3),
            "Shaw": biases.shaw(rng.standard_normal((3, d_k))),
        }
        for name, bias in by_position.items():
            options = case.options | ({"is_causal": True} if "causal" in name else {})
            yield replace(case, name=f"bias: {name}", inputs=case.inputs | {"bias": bias}, options=options)
        index = rng.integers(0, 4, of_scores)
        several = [
            biases.table(rng.standard_normal(4), index),
            biases.products(rng.standard_normal((4, d_k)), index, of="key"),
            rng.standard_normal(m),
        ]
        scales = {"scale": rng.standard_normal((n, 1))} if "scale" in OPS[op].Gradients._fields else {}
        name = "bias: a list, by index" + (", a scale of each query" if scales else "")
        yield replace(case, name=name, inputs=case.inputs | {"bias": several} | scales)
    if "sink" in takes:
        in_batches = _with_fixed_parameters(drawn(op, leading=(2,), seed=2))
        options = in_batches.options | {"softcap": 0.8, "mask": masks.sliding_window(*of_scores, left=2)}
        inputs = in_batches.inputs | {"sink": np.random.default_rng(9).standard_normal(2)}
        yield replace(in_batches, name="sink, softcap, sliding window", inputs=inputs, options=options)


def _width_of_heads(case: Case) -> int:
    """The features that queries and keys are compared in."""
    if "parameters" not in case.options:
        return sum(case.inputs[name].shape[-1] for name in ("query", "query_rotary") if name in case.inputs)
    return int(case.options["parameters"].w_query.shape[1] // case.options["num_heads"])


def _with_fixed_parameters(case: Case) -> Case:
    """A case that is not differentiated by what has neither queries nor keys: without masks and options, others are."""
    header = _header(case.op)
    tensors = {name: header.tensors[symbol] for name, symbol in header.code.items() if symbol in header.tensors}
    free = {name: x for name, x in case.inputs.items() if name in tensors and {"n", "m"} & set(tensors[name].axes)}
    return replace(case, inputs=free, options=case.options | {n: x for n, x in case.inputs.items() if n not in free})


def _arrays(case: Case) -> dict[str, Array]:
    """The arrays of a case, those of its parameters by their own names."""
    parameters = case.inputs.get("parameters")
    fields = {} if parameters is None else parameters._asdict()
    return {name: x for name, x in (case.inputs | fields).items() if isinstance(x, np.ndarray)}


def _written(op: str) -> Iterator[Case]:
    """What no page says."""
    if op == "softmax":
        (scores,) = drawn(op).inputs.values()
        yield Case(op, "columns", {"scores": scores}, {"axis": 0})
        yield Case(op, "far from zero", {"scores": scores + 700.0})
        yield Case(op, "one far ahead", {"scores": scores + 30 * (np.arange(scores.shape[-1]) == 2)})
    if op == "weightings":
        case = drawn(op, leading=(2,), seed=12)
        yield from (replace(case, name=str(kind), options={"weights_by": kind}) for kind in WEIGHTINGS)
    if op in ("dot_product", "blockwise"):
        case = drawn(op, seed=12)
        for kind in (kind for kind in WEIGHTINGS if op == "dot_product" or kind.is_of_each):
            yield replace(case, name=f"weights by {kind}", options={"weights_by": kind, "is_causal": True})
    if op == "linear_attention":
        case = drawn(op, seed=9, d_v=2)  # 3 tokens, in chunks of 2
        alike = case.inputs | {"log_decay": case.inputs["log_decay"][:, :1]}
        yield Case(op, "in chunks", case.inputs, {"chunk_size": 2})
        yield Case(op, "one decay for all features, in chunks", alike, {"chunk_size": 2})
        without = {name: x for name, x in alike.items() if name != "beta"}
        yield Case(op, "no delta rule, in chunks", without, {"chunk_size": 2, "mask": np.arange(3) != 1})
        rng, d_k = np.random.default_rng(10), case.inputs["key"].shape[-1]
        each = {name: x for name, x in case.inputs.items() if name != "beta"}
        each |= {name: rng.standard_normal((3, d_k)) / 2 for name in ("probe", "response")}
        yield Case(op, "a probe and a response", each)
        each["bonus"] = rng.standard_normal(d_k)
        yield Case(op, "a probe, a response and a bonus, in chunks", each, {"chunk_size": 2})
    if op == "linear":
        case = drawn(op, leading=(2,), seed=9)
        of_heads = np.random.default_rng(10).standard_normal((2, 1, *case.inputs["w"].shape))
        yield replace(case, name="several matrices", inputs=case.inputs | {"w": of_heads})
    if op == "cross_entropy":
        (scores, _) = drawn(op).inputs.values()
        far = 30 * (np.arange(scores.shape[-1]) == 2)
        yield Case(op, "indices, one far ahead", {"scores": scores + far}, {"target": np.arange(len(scores)) + 1})
    if op == "activation":
        (x,) = drawn(op, leading=(2,), seed=4).inputs.values()
        yield from (Case(op, kind, {"x": x}, {"kind": kind}) for kind in OPS[op].KINDS)
    if op == "short_conv":
        case = drawn(op, leading=(2,), n=9, seed=9)
        yield replace(case, name="packed segments", options={"segments": np.array([4, 4, 4, 0, 1, 1, 1, 1, 1])})
    if op in ("rms_norm", "layer_norm"):
        case = drawn(op, leading=(2,), seed=3)
        yield replace(case, name="heads and features together", options={"axis": (-2, -1)})
    if op == "rotary":
        case = drawn(op, leading=(2,), w=3)
        layout = {"width": 4, "trailing": True, "interleaved": True, "scaling": rotary.yarn(8, 64, truncate=False)}
        yield replace(case, name="neighbours, YaRN", options={"positions": np.arange(3) + 40, **layout})
        axes = {"sections": (2, 1), "arrangement": "interleaved", "positions": np.array([[3, 3, 4], [0, 7, 2]])}
        yield replace(case, name="positions on two axes", options=axes)
    if op == "latent":
        case = drawn(op, seed=9)
        shaw = biases.shaw(np.random.default_rng(10).standard_normal((3, _width_of_heads(case))))
        sink = np.random.default_rng(11).standard_normal(len(case.inputs["w_key"]))
        inputs = case.inputs | {"bias": shaw, "sink": sink}
        options = {"absorbed": True, "is_causal": True, "softcap": 2.0}
        yield replace(case, name="absorbed, Shaw, sink, softcap, causal", inputs=inputs, options=options)
        unturned = replace(case, inputs={name: None if "rotary" in name else x for name, x in case.inputs.items()})
        yield replace(_with_fixed_parameters(unturned), name="without positions")
        yield replace(unturned, name="without positions, absorbed", options={"absorbed": True})
    if op == "multi_head":
        case = _with_fixed_parameters(drawn(op))
        of_each_head = case.inputs["bias"][:2, None]  # (heads, 1, m)
        yield Case(op, "bias of each head", case.inputs | {"bias": of_each_head}, case.options)
        yield replace(case, name="weights by sparsemax", options=case.options | {"weights_by": weightings.sparsemax()})
        yield _layer_of_today()


def _layer_of_today() -> Case:
    """Two heads of queries for each of keys and values, normalised and turned, with a sink, a softcap and a window."""
    rng = np.random.default_rng(9)
    shapes = ((3, 8), (3, 4), (3, 2), (4, 2))
    projections = [rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in shapes]
    of_heads = dict(zip(("query_gain", "key_gain", "sink"), map(rng.standard_normal, (2, 2, 4)), strict=True))
    x = rng.standard_normal((3, 3))
    inputs = {"query": x, "key": x, "value": x, "parameters": OPS["multi_head"].Parameters(*projections, **of_heads)}
    options = {"num_heads": 4, "num_kv_heads": 2, "rotary": {"base": 50.0}, "softcap": 2.0, "window": (1, 0)}
    return Case("multi_head", "a layer of today", inputs, options | {"positions": np.arange(3) + 7})


def _of_sentences(op: str) -> Iterator[Case]:
    """Real sentences, two a batch: translated, padded, packed in one row; how similar words are; which comes next."""
    takes = signature(OPS[op].forward).parameters
    english, chinese = ENGLISH[1:3], CHINESE[1:3]  # each of another length
    if op in ("softmax", "weightings"):
        of_words = batch(english, 8)
        x, mask = of_words.embedded, masks.padding_from_tokens(of_words.tokens, PAD)
        yield Case(op, "sentences: similarities of words", {"scores": x @ x.swapaxes(-1, -2)}, {"mask": mask})
    if op == "cross_entropy":
        of_words = batch(english, 8)  # each word says which comes next, of all that there are
        x, table = of_words.embedded, np.random.default_rng(6).standard_normal((of_words.tokens.max() + 1, 8))
        options = {"target": of_words.tokens[:, 1:], "mask": (of_words.tokens[:, 1:] != PAD)[..., None]}
        yield Case(op, "sentences: the next word, padding", {"scores": x[:, :-1] @ table.T}, options)
    if op == "latent":
        padded = batch(english, 8).tokens
        n = padded.shape[1]
        case = drawn(op, leading=(2,), seed=6, n=n, m=n)
        words = {"latent": _words(english, case.inputs["latent"])}
        options = {"mask": masks.padding_from_tokens(padded, PAD, heads=True), "is_causal": True}
        case = replace(case, inputs=case.inputs | words, options=options)
        yield replace(_with_fixed_parameters(case), name="sentences: padding, causal")
    if not {*ATTENDING, "mask"} <= takes.keys():
        return
    if "m" not in _header(op).sizes:  # a token has its query, its key and its value
        tokens = batch(english, 8).tokens
        case = drawn(op, leading=(2,), seed=6, n=tokens.shape[1], d_v=2)
        words = {x: _words(english, case.inputs[x]) for x in ATTENDING}
        words["log_decay"] = case.inputs["log_decay"][:, :1]  # one for all features
        yield replace(case, name="sentences: padding", inputs=case.inputs | words, options={"mask": tokens != PAD})
        return
    causal = {"is_causal": True} if "is_causal" in takes else {}
    pairs = {
        "translation to source": (chinese, {}),
        "self-attention, padding" + ", causal" * len(causal): (english, causal),
    }
    for name, (queries, more) in pairs.items():
        n, padded = batch(queries, 8).tokens.shape[1], batch(english, 8).tokens
        case = drawn(op, optional=False, leading=(2,), seed=6, n=n, m=padded.shape[1])
        words = {x: _words(queries if x == "query" else english, case.inputs[x]) for x in ATTENDING}
        options = case.options | more | {"mask": masks.padding_from_tokens(padded, PAD, heads="num_heads" in takes)}
        case = replace(case, inputs=case.inputs | words, options=options)
        yield replace(_with_fixed_parameters(case), name=f"sentences: {name}")
    real = batch(english, 8).tokens != PAD
    segments = np.nonzero(real)[0]
    case = drawn(op, optional=False, seed=7, n=len(segments), m=len(segments))
    words = {x: _words(english, case.inputs[x])[real] for x in ATTENDING}
    mask = masks.packed(segments) & masks.causal(len(segments))
    case = replace(case, inputs=case.inputs | words, options=case.options | {"mask": mask})
    yield replace(_with_fixed_parameters(case), name="sentences: packed in one row")


def _words(sentences: Sequence[str], like: Array) -> Array:
    """Sentences, embedded in as many features as an array has; those in Chinese by a table of their own."""
    return batch(sentences, like.shape[-1], seed=int(sentences[0] in CHINESE)).embedded
