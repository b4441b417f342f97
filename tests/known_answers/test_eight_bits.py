"""Arrays of eight bits with their scales: kernels that round as such kernels do are right; a lost scale is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, each

from attention_np import known_answers
from attention_np.known_answers.capabilities import capable
from attention_np.known_answers.examples.kernel import kernel_examples
from attention_np.known_answers.formats import EIGHT_BITS, dtype_of
from attention_np.known_answers.signatures import DESCALES

from . import reference
from .sets import written


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("ml_dtypes", reason="eight bits need ml_dtypes: pip install 'attention-np[answers]'")
    ends = ("bits-per-tensor", "bits-per-block", "bits-softcap-window", "bits-cache-blocks")
    some = [x for x in kernel_examples() if x.name.endswith(ends)]
    return written(tmp_path_factory.mktemp("eight"), lambda _: True, [EIGHT_BITS, "bfloat16"], lambda: some)


def rounded(x: Array, name: str) -> Array:
    return x.astype(dtype_of(name)).astype(np.float32)


def in_eight_bits(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """Attention of heads whose products are of eight bits, as kernels of such tensor cores: sums in float32."""
    if options:
        raise NotImplementedError
    of = reference.dequantised(inputs)
    query, key, value, d_output = (of[x] for x in ("query", "key", "value", "d_output"))
    scores = query @ key.swapaxes(-1, -2) / 8
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total = exponentials.sum(axis=-1, keepdims=True)
    output = rounded(rounded(exponentials, EIGHT_BITS) @ value / total, "bfloat16")
    weights = exponentials / total
    d_scores = weights * (d_output @ value.swapaxes(-1, -2) - (d_output * output).sum(axis=-1, keepdims=True))
    d_products = rounded(d_scores, "float8_e5m2") / 8
    return {
        "output": output,
        "d_query": d_products @ key,
        "d_key": d_products.swapaxes(-1, -2) @ query,
        "d_value": rounded(weights, EIGHT_BITS).swapaxes(-1, -2) @ d_output,
    }


def test_weights_and_gradients_of_scores_may_be_of_eight_bits_in_products(eight: Path) -> None:
    report = known_answers.verify(in_eight_bits, eight, op="attention")
    report.raise_if_failed()
    assert len({x.case for x in report}) == 2


def test_most_of_the_bound_is_reached_where_all_roundings_go_the_same_way(eight: Path) -> None:
    case = next(x for x in known_answers.load(eight) if x.name.endswith("per-tensor"))
    of = reference.dequantised(dict(case.inputs))
    query, key, value, d_output = (of[x.removesuffix("_descale")] for x in DESCALES)
    weights = np.exp(query @ key.swapaxes(-1, -2) / 8 - case.answers["logsumexp"][..., None])
    d_weights, first = d_output @ value.swapaxes(-1, -2), key[..., None, :, 0]
    away = np.sign((weights * first).sum(axis=-1, keepdims=True))  # of the first feature of d_query, all the same way
    mean = (weights * (1 - 2.0**-4 * away * np.sign(d_weights)) * d_weights).sum(axis=-1, keepdims=True)
    mean -= away * 2.0**-8 * np.abs(d_output * (weights @ value)).sum(axis=-1, keepdims=True)
    d_scores = weights * (d_weights - mean)
    d_query = (d_scores * (1 + 2.0**-3 * np.sign(d_scores * first)) * first).sum(axis=-1) / 8
    errors = np.abs(d_query - case.answers["d_query"].astype(float)[..., 0]) / case.bounds["d_query"][..., 0]
    assert 0.6 < errors.max() < 1


def test_the_answers_are_those_of_the_ops_for_arrays_times_their_scales_and_none_is_zero(eight: Path) -> None:
    known_answers.verify(reference.attention, eight, op="attention").raise_if_failed()
    zeros = known_answers.verify(
        lambda x, y: {a: 0 * b for a, b in reference.attention(x, y).items()}, eight, op="attention"
    )
    assert not [x for x in zeros if x.ok]


@each("name", DESCALES)
def test_a_kernel_that_leaves_a_scale_out_is_told_so(eight: Path, name: str) -> None:
    def wrong(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        return reference.attention({x: y for x, y in inputs.items() if x != name}, options)

    assert f"the factor {name}" in (known_answers.verify(wrong, eight, op="attention").verdict or "")


def test_scales_are_laid_out_as_what_they_belong_to(eight: Path) -> None:
    case = next(x for x in known_answers.load(eight) if x.name.endswith("per-block"))
    assert case.inputs["d_output"].dtype == dtype_of("float8_e5m2")
    arrays = capable({"layout": "batch, queries, heads"}).laid_out(case.inputs)
    for name in DESCALES:
        np.testing.assert_array_equal(arrays[name], case.inputs[name].swapaxes(1, 2))
