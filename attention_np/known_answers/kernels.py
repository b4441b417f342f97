"""What kernels compute, in any arithmetic: groups of heads, masks as options, sequences packed and in pages.

From their definitions, without the masks and rules of the package: pair by pair it is said who sees whom.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers.by_position import Arithmetic, Numbers, Options
from attention_np.known_answers.formats import DESCALE
from attention_np.known_answers.program import attention_of_heads, sum_to_groups

AS_GIVEN = ("bias", "sink", "slopes", "mask", "kept", "d_logsumexp")  # by those of heads, as they are


def attention(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    """Attention of (..., h, n, d) queries over (..., h / g, m, d) keys, of which each serves g heads that are next."""
    inputs = dequantised(rules, inputs)
    query, key = inputs["query"], inputs["key"]
    d_v = options.get("value_width")
    value = rules.map(key, lambda a: a[..., :d_v]) if "value" not in inputs else inputs["value"]
    of_own: dict[str, Numbers] = {
        "key": key,
        "value": value,
        **{x: inputs[x] for x in ("v_key", "v_value") if x in inputs},
    }
    if "block_table" in options:
        slots = slots_of(options["block_table"], key.shape[-2])
        of_own = {name: _from_pages(rules, x, slots) for name, x in of_own.items()}
        there = (slots >= 0)[:, None, None]  # (batch, 1, 1, m)
    n, m = query.shape[-2], of_own["key"].shape[-2]
    group = query.shape[-3] // key.shape[-3]
    of_heads = {name: rules.map(x, lambda a: np.repeat(a, group, axis=-3)) for name, x in of_own.items()}
    given = {name: inputs[name] for name in inputs if name in AS_GIVEN or name in ("v_query", "v_bias", "d_output")}
    visible = inputs.get("mask", np.True_) & pairs(options, n, m)
    given |= {"query": query, **of_heads, "mask": visible & there if "block_table" in options else visible}
    taken = {name: x for name, x in options.items() if name in ("scale", "softcap", "dropout_p")}
    answers = attention_of_heads(rules, given, taken)
    for name in ("d_key", "d_value", *(x for x in ("hvp_key", "hvp_value") if x in answers)):
        of_own_heads = sum_to_groups(rules, answers[name], of_own[name.partition("_")[2]].shape)
        if "block_table" in options:
            of_own_heads = _to_pages(rules, of_own_heads, slots, (key if "key" in name else value).shape)
        answers[name] = of_own_heads
    if "value" not in inputs:
        as_value = answers.pop("d_value")
        beyond = rules.zeros((*key.shape[:-1], key.shape[-1] - value.shape[-1]))
        as_value = rules.joined([as_value.swapaxes(-1, -2), beyond.swapaxes(-1, -2)]).swapaxes(-1, -2)
        answers["d_key"] = rules.plus(rules.rounded(answers["d_key"]), rules.rounded(as_value))
    return answers


def dequantised(rules: Arithmetic, inputs: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """The inputs, each times its scale, of which a number is for as many entries along an axis as its length leaves."""
    found = {name: x for name, x in inputs.items() if not name.endswith(DESCALE)}
    for name in found.keys() & {name.removesuffix(DESCALE) for name in inputs.keys() - found.keys()}:
        descale = inputs[name + DESCALE]
        for axis, (size, count) in enumerate(zip(found[name].shape, descale.shape, strict=True)):
            descale = rules.map(descale, lambda a, axis=axis, times=size // count: np.repeat(a, times, axis))
        found[name] = rules.times(found[name], descale)
    return found


def pairs(options: Options, n: int, m: int) -> Array:
    """Who sees whom, all options together: (n, m), or (batch, 1, n, m) where samples differ."""
    if "cu_seqlens_q" in options:
        return _of_packed(options, n, m)
    lengths = options.get("key_lengths")
    each = [_of_one(options, n, m, m if length is None else length) for length in lengths or [None]]
    visible = np.array(each)[:, None] if lengths is not None else each[0]
    if "indices" in options:
        visible = visible & _selected(np.array(options["indices"]), m)
    return visible


def _of_one(options: Options, n: int, m: int, length: int) -> Array:
    """Of one sequence, of whose keys so many count. Query i stands where key i + offset does."""
    offset = options.get("offset", 0) + (length - n if options.get("alignment") == "bottom-right" else 0)
    left, right = options.get("window", (None, None))
    distances = np.arange(m) - np.arange(n)[:, None] - offset
    visible = np.broadcast_to(np.arange(m) < length, (n, m))
    visible = visible & (distances <= 0) if options.get("is_causal") else visible
    visible = visible if left is None else visible & (distances >= -left)
    return visible if right is None else visible & (distances <= right)


def _of_packed(options: Options, n: int, m: int) -> Array:
    """Of sequences one after the other, each by itself."""
    visible = np.zeros((n, m), np.bool_)
    for (start, stop), (first, last) in zip(*(pairwise(options[f"cu_seqlens_{x}"]) for x in "qk"), strict=True):
        visible[start:stop, first:last] = _of_one(options, stop - start, last - first, last - first)
    return visible


def _selected(indices: Array, m: int) -> Array:
    """The keys that each query is told, (n, k) or (batch, n, k); -1 tells none, and to be told twice counts once."""
    visible: Array = (indices[..., None] == np.arange(m)).any(axis=-2)
    return visible if indices.ndim == 2 else visible[:, None]


def slots_of(block_table: Array, page_size: int) -> Array:
    """Where in all pages, one after the other, the keys of each sample are, (batch, m); -1 where there is no page."""
    pages = np.array(block_table)
    slots = pages[..., None] * page_size + np.arange(page_size)
    known: Array = np.where(pages[..., None] < 0, -1, slots).reshape(len(pages), -1)
    return known


def _from_pages(rules: Arithmetic, x: Numbers, slots: Array) -> Numbers:
    """The keys of each sample, (batch, h, m, d), of pages (pages, h, page_size, d); else zeros."""
    rows = rules.map(x, lambda a: a.swapaxes(0, 1).reshape(a.shape[1], -1, a.shape[-1]))
    taken = rules.map(rows, lambda a: a[:, slots].swapaxes(0, 1))
    return rules.where((slots >= 0)[:, None, :, None], taken)


def _to_pages(rules: Arithmetic, d_x: Numbers, slots: Array, shape: tuple[int, ...]) -> Numbers:
    """The gradient of pages, of those of the keys of each sample: a page may be of several."""
    pages, heads, size, d = shape
    total = rules.zeros((heads, d, pages * size))
    for sample, places in enumerate(slots):
        some = np.flatnonzero(places >= 0)
        own = rules.map(d_x, lambda a, sample=sample, some=some: a[sample][:, some].swapaxes(-1, -2))
        total = rules.plus(total, rules.put(rules.zeros(total.shape), places[some], own))
    return rules.map(total, lambda a: a.swapaxes(-1, -2).reshape(heads, pages, size, d).swapaxes(0, 1))


def merge(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    """What attention over parts of the keys puts together: (parts, ..., n, d) outputs and (parts, ..., n) log-sum-exps.

    It is attention once more: each query has its parts for keys, and their log-sum-exps for scores.
    """
    del options  # it has none
    scores = rules.map(inputs["logsumexps"], lambda a: np.moveaxis(a, 0, -1)[..., None, :])  # (..., n, 1, parts)
    values = rules.map(inputs["outputs"], lambda a: np.moveaxis(a, 0, -2))  # (..., n, parts, d)
    d_output = rules.map(inputs["d_output"], lambda a: a[..., None, :])
    d_logsumexp = rules.map(inputs["d_logsumexp"], lambda a: a[..., None]) if "d_logsumexp" in inputs else None
    head = rules.attend(scores, np.ones(scores.shape, np.bool_), values, d_output, None, d_logsumexp)
    return {
        "output": rules.map(head.output, lambda a: a[..., 0, :]),
        "logsumexp": rules.map(head.logsumexp, lambda a: a[..., 0]),
        "d_outputs": rules.map(head.d_value, lambda a: np.moveaxis(a, -2, 0)),
        "d_logsumexps": rules.map(head.d_scores, lambda a: np.moveaxis(a[..., 0, :], -1, 0)),
    }
