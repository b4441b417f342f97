"""The cases cover what the conventions name."""

import numpy as np
from helpers import each

from attention_np import known_answers
from attention_np.known_answers.examples import OPS, TAGS, all_examples
from attention_np.known_answers.examples.kernel import kernel_examples
from attention_np.known_answers.formats import DTYPES, dtype_of

from .sets import Sets


def test_the_cases_cover_what_the_conventions_name(answers: Sets) -> None:
    assert {example.op for example in all_examples()} == set(OPS)
    assert {tag for example in [*all_examples(), *kernel_examples()] for tag in example.tags} == set(TAGS)
    loaded = known_answers.load(answers["dot_product"])
    of = {case.name.removeprefix("float32/dot_product/"): case for case in loaded}
    shapes = {name: (x.inputs["query"].shape, x.inputs["key"].shape, x.inputs["value"].shape) for name, x in of.items()}
    assert any(q[-2] == 1 for q, _, _ in shapes.values())
    assert any(k[-2] == 1 for _, k, _ in shapes.values())
    assert any(q[-2] < k[-2] for q, k, _ in shapes.values())
    assert any(q[-2] > k[-2] for q, k, _ in shapes.values())
    assert any(v[-1] != k[-1] for _, k, v in shapes.values())
    assert np.isnan(of["nan-behind-mask"].inputs["key"]).any()
    assert np.isfinite(of["nan-behind-mask"].answers["d_key"]).all()
    assert np.isneginf(of["bias-minus-infinity"].inputs["bias"]).any()
    assert np.isposinf(of["bias-plus-infinity"].answers["logsumexp"]).sum() == 3 * 2
    assert (of["empty-rows"].answers["logsumexp"] == -np.inf).sum() == 4
    products = of["large-scores"].inputs["query"] @ of["large-scores"].inputs["key"].swapaxes(-1, -2) / np.sqrt(5)
    assert 60 < np.abs(products).max() < 200
    ties = of["tied-largest"]
    scores = ties.inputs["query"] @ ties.inputs["key"].swapaxes(-1, -2)
    assert ((scores == scores.max(axis=-1, keepdims=True)).sum(axis=-1) >= 2).all()


def test_the_tags_of_a_case_say_what_it_holds() -> None:
    for example in all_examples():
        options = example.options | example.options.get("rotary", {})
        held = {tag for tag in ("mask", "bias", "sink") if tag in example.inputs}
        held |= {tag for tag in ("softcap", "scaling") if tag in options}
        held |= {"causal"} if options.get("is_causal") else set()
        assert held == {*example.tags} & {"mask", "bias", "sink", "softcap", "scaling", "causal"}


@each("dtype", DTYPES)
def test_no_product_of_an_indexer_is_near_the_kink_of_relu(dtype: str) -> None:
    products = []
    for example in all_examples():
        if example.op == "indexer":
            query, key = (example.inputs[x].astype(dtype_of(dtype)).astype(float) for x in ("query", "key"))
            every = query @ key[..., None, :, :].swapaxes(-1, -2)  # (..., h, n, m)
            shown = np.broadcast_to(example.inputs.get("mask", np.True_), every.shape)
            products += np.abs(every[shown]).tolist()
    assert 1e-4 < min(products) < 0.1  # a sum in float32 is off by 1e-6 here
