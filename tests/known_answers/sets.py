"""What tests of known answers share: which cases are written, and how results are told to be right."""

import hashlib
import os
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_np import dot_product, known_answers
from attention_np._lib.arrays import Array
from attention_np.known_answers import writing
from attention_np.known_answers.examples import Example, all_examples

FEW = {
    "softmax": ["rows", "tangents-mask"],
    "dot_product": ["plain", "one-key", "padding", "nothing-visible", "nan-without-gradient", "tangents-plain"],
    "additive": ["plain"],
    "multi_head": ["self-attention"],
    "linear_attention": ["kda", "padding"],
    "latent": ["sink"],
    "rms_norm": ["gain"],
    "layer_norm": ["gain"],
    "rotary": ["positions"],
    "linear": ["bias"],
    "feature_map": ["performer"],
    "activation": ["gelu"],
    "short_conv": ["packed"],
    "cross_entropy": ["mask"],
    "weightings": ["entmax-1-5", "stick-breaking"],
    "pooling": ["gated"],
    "deformable": ["at-the-edge"],
    "indexer": ["mask"],
}
OF_ROWS = ("rms_norm", "layer_norm", "rotary", "linear", "feature_map", "activation", "cross_entropy", "weightings")
OF_ROWS += ("pooling", "deformable", "indexer")  # without scores, and so without a log-sum-exp
BESIDE: dict[str, set[str]] = {x: {"final_state"} for x in ("linear_attention", "short_conv")} | {
    op: set() for op in OF_ROWS
}  # the output
Sets = dict[str, Path]  # of each op


def written(
    folder: Path,
    chosen: Callable[[Any], bool],
    dtypes: Sequence[str],
    of: Callable[[], list[Example]] = all_examples,
) -> Path:
    """A set of some of the cases, each of which one process of a run computes for all of them."""
    shared = next((x for x in folder.parents if re.fullmatch(r"pytest-\d+", x.name)), folder.parent) / "cases"
    own = shared / str(os.getpid())
    own.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)

    def once(target: Path, example: Example, dtype: str, write: Callable[..., Any] = writing._write_case) -> Any:
        kept = shared / hashlib.sha256(pickle.dumps((example, dtype))).hexdigest()
        if not kept.exists():
            entry = write(own, example, dtype)
            (own / kept.name).write_bytes(pickle.dumps((entry, (own / entry.file).read_bytes())))
            (own / entry.file).unlink()
            (own / kept.name).replace(kept)  # whole, or not there
        entry, content = pickle.loads(kept.read_bytes())  # noqa: S301 (it was made here)
        (target / entry.file).parent.mkdir(parents=True, exist_ok=True)
        (target / entry.file).write_bytes(content)
        return entry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "all_examples", lambda: [example for example in of() if chosen(example)])
        patch.setattr(writing, "_write_case", once)
        known_answers.write(folder / "set", dtypes=dtypes)
    return folder / "set"


def finite(values: Array) -> Array:
    return np.isfinite(values.astype(float))


def standard(inputs: dict[str, Array], options: dict[str, Any], **planted: Any) -> dict[str, Array]:
    """Attention from its formulas, with a bug planted."""
    more = {name for name in inputs if name not in ("query", "key", "value", "mask", "d_output") and name[:2] != "v_"}
    if more or options.keys() - {"scale", "is_causal"}:
        raise NotImplementedError
    q, k, v, d_output = (inputs[name] for name in ("query", "key", "value", "d_output"))
    if len({x.shape[:-2] for x in (q, k, v)}) > 1:
        raise NotImplementedError
    rounded, between = planted.get("products_in", q.dtype), planted.get("between", lambda x: x)
    scale = q.dtype.type(options.get("scale", planted.get("scale", q.shape[-1] ** -0.5)))
    visible = np.broadcast_to(inputs.get("mask", np.True_), (*q.shape[:-1], k.shape[-2]))
    if options.get("is_causal"):
        offset = k.shape[-2] - q.shape[-2] if planted.get("causal") == "aligned last" else 0
        visible = visible & np.tri(*visible.shape[-2:], offset, dtype=np.bool_)
    scores = q.astype(rounded).astype(q.dtype) @ k.astype(rounded).astype(q.dtype).swapaxes(-1, -2) * scale
    scores = np.where(visible, scores, q.dtype.type(planted.get("hidden", -np.inf)))
    largest = scores.max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        total = weights.sum(axis=-1, keepdims=True) + q.dtype.type(planted.get("epsilon", 0))
        weights = between(np.where(total > 0, weights / np.where(total > 0, total, 1), 0))
    d_weights = between(d_output @ v.swapaxes(-1, -2))
    mean = (weights * d_weights).sum(axis=-1, keepdims=True) if planted.get("mean", True) else 0
    d_scores = between(weights * (d_weights - mean))
    return {
        "output": weights @ v,
        "logsumexp": np.where(largest > -np.inf, largest + np.log(np.where(total > 0, total, 1)), -np.inf)[..., 0],
        "d_query": d_scores @ k * scale,
        "d_key": d_scores.swapaxes(-1, -2) @ q * planted.get("key_scale", scale),
        "d_value": weights.swapaxes(-1, -2) @ d_output,
    }


def changed(few: Path, change: Callable[[Array], Array], case: str = "plain", dtype: str = "float32") -> Any:
    """The comparison of an output that was changed."""

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        return {"output": change(dot_product.forward(**arguments(inputs), **options)[0])}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attention_np.known_answers.verdict.verdict_of", lambda *_: None)  # of which nobody asks here
        return known_answers.verify(function, few, dtypes=[dtype])[case, "output"]


def arguments(inputs: dict[str, Array]) -> dict[str, Array]:
    return {name: x for name, x in inputs.items() if name != "d_output" and not name.startswith("v_")}
