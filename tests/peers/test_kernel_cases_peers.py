"""Attention of PyTorch and JAX runs the first cases as they are stored, and is right in all of their dtypes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, each
from known_answers.sets import written

from attention_np import known_answers
from attention_np.known_answers.examples.kernel import first_examples
from attention_np.known_answers.formats import DTYPES, OF_CASES

from .test_known_answers_peers import from_torch, to_torch, torch

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")]
functional = torch.nn.functional
Kernel = Callable[[dict[str, Array], dict[str, Any]], dict[str, Array]]
LAST = {"alignment": "bottom-right"}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("first"), lambda _: True, OF_CASES, first_examples)


def of_torch(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """By scaled_dot_product_attention, with its gradients."""
    arrays = {"query", "key", "value", "d_output", "mask", "bias"}
    if inputs.keys() - arrays or options.keys() - {"is_causal", "scale"} or "value" not in inputs:
        raise NotImplementedError
    if (options.get("is_causal") and {"mask", "bias"} & inputs.keys()) or len({"mask", "bias"} & inputs.keys()) == 2:
        raise NotImplementedError  # it takes one of them
    tensors = {name: to_torch(x) for name, x in inputs.items()}
    moving = {name: x.requires_grad_() for name, x in tensors.items() if name not in ("mask", "d_output")}
    output = functional.scaled_dot_product_attention(
        *(tensors[name] for name in ("query", "key", "value")),
        attn_mask=tensors.get("mask", tensors.get("bias")),
        is_causal=options.get("is_causal", False),
        scale=options.get("scale"),
        enable_gqa=inputs["query"].shape[1] != inputs["key"].shape[1],
    )
    output.backward(tensors["d_output"])
    return {"output": from_torch(output), **{f"d_{name}": from_torch(x.grad) for name, x in moving.items()}}


def of_flex(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """By flex_attention, which has no backward pass on a CPU: output and log-sum-exp."""
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    arrays = {"query", "key", "value", "d_output", "d_logsumexp", "mask", "bias", "slopes"}
    known = {"is_causal", "scale", "softcap", "window", "alignment", "offset", "key_lengths"}
    if inputs.keys() - arrays or options.keys() - known or "value" not in inputs or inputs["query"].ndim < 4:
        raise NotImplementedError
    tensors = {name: to_torch(x) for name, x in inputs.items()}
    (b, h, n, _), m = inputs["query"].shape, inputs["key"].shape[-2]
    softcap, (left, right) = options.get("softcap"), options.get("window", (None, None))
    lengths = torch.tensor(options.get("key_lengths", (m,) * b))

    def scores(score: Any, sample: Any, head: Any, i: Any, j: Any) -> Any:
        score = score if softcap is None else softcap * torch.tanh(score / softcap)
        if "slopes" in tensors:
            score = score - tensors["slopes"][head] * abs(i - j)
        if "bias" in tensors:
            score = score + tensors["bias"].expand(b, h, n, m)[sample, head, i, j]
        return score

    def seen(sample: Any, head: Any, i: Any, j: Any) -> Any:
        last = lengths[sample] - n if options.get("alignment") == "bottom-right" else 0
        place = i + options.get("offset", 0) + last
        visible = j < lengths[sample]
        visible = visible & (j <= place) if options.get("is_causal") else visible
        visible = visible if left is None else visible & (j >= place - left)
        visible = visible if right is None else visible & (j <= place + right)
        return visible & tensors["mask"].expand(b, h, n, m)[sample, head, i, j] if "mask" in tensors else visible

    output, beside = flex_attention(
        *(tensors[name] for name in ("query", "key", "value")),
        score_mod=scores,
        block_mask=create_block_mask(seen, b, h, n, m, device="cpu"),
        scale=options.get("scale"),
        enable_gqa=h != inputs["key"].shape[1],
        return_aux=AuxRequest(lse=True),
    )
    return {"output": from_torch(output), "logsumexp": from_torch(beside.lse)}


def of_jax(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """By jax.nn.dot_product_attention, with its gradients; it takes (batch, queries, heads, features)."""
    if inputs["query"].dtype == np.float64:
        raise NotImplementedError  # it computes scores in float32
    jax = pytest.importorskip("jax", reason="the comparison with JAX needs jax: pip install attention-np[peers]")
    arrays, known = (
        {"query", "key", "value", "d_output", "mask", "bias"},
        {"is_causal", "scale", "window", "key_lengths"},
    )
    if inputs.keys() - arrays or options.keys() - known or "value" not in inputs or inputs["query"].ndim < 4:
        raise NotImplementedError
    if inputs["value"].shape[-1] != inputs["key"].shape[-1]:
        raise NotImplementedError  # of it both are as wide as each other
    swapped = {name: x.swapaxes(1, 2) if name in ("query", "key", "value") else x for name, x in inputs.items()}
    names = [name for name in ("query", "key", "value", "bias") if name in inputs]

    def attention(*given: Any) -> Any:
        arrays = dict(zip(names, given, strict=True))
        lengths = options.get("key_lengths")
        return jax.nn.dot_product_attention(
            *(arrays[name] for name in ("query", "key", "value")),
            bias=arrays.get("bias"),
            mask=inputs.get("mask"),
            scale=options.get("scale"),
            is_causal=options.get("is_causal", False),
            local_window_size=options.get("window"),
            key_value_seq_lengths=None if lengths is None else np.array(lengths, np.int32),
        )

    output, backward = jax.vjp(attention, *(jax.numpy.asarray(swapped[name]) for name in names))
    gradients = backward(jax.numpy.asarray(inputs["d_output"].swapaxes(1, 2)))
    found = {f"d_{name}": np.asarray(x) for name, x in zip(names, gradients, strict=True)}
    found |= {"output": np.asarray(output)}
    return {name: x if name == "d_bias" else x.swapaxes(1, 2) for name, x in found.items()}


KERNELS: dict[str, Kernel] = {
    "scaled_dot_product_attention": of_torch,
    "flex_attention": of_flex,
    "jax.nn.dot_product_attention": of_jax,
}


@each("dtype", DTYPES)
@each("name", KERNELS)
def test_what_a_kernel_runs_as_it_is_stored_it_gives_right(first: Path, name: str, dtype: str) -> None:
    if name == "jax.nn.dot_product_attention" and dtype == "float64":
        pytest.skip("it computes scores in float32")
    report = known_answers.verify(KERNELS[name], first, op="attention", dtypes=[dtype], skip=["empty row"])
    report.raise_if_failed()


def test_nine_tenths_of_the_first_cases_run_as_they_are_stored(first: Path) -> None:
    cases = {case.name: case for case in known_answers.load(first, dtypes=["float32"])}
    run = {
        name: [kernel for kernel, function in KERNELS.items() if runs(function, case)] for name, case in cases.items()
    }
    assert len(cases) == 40
    assert sum(map(bool, run.values())) >= 0.9 * len(cases), [name for name, kernels in run.items() if not kernels]


def runs(function: Kernel, case: known_answers.KnownAnswer) -> bool:
    if case.op != "attention":
        return False
    try:
        function(dict(case.inputs), dict(case.options))
    except NotImplementedError:
        return False
    return True
