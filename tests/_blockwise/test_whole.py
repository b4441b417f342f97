"""Small heads as a whole: when, and that what forward keeps of them serves blocks, too."""

from typing import Any

import numpy as np
import pytest
from helpers import SOME_HIDDEN, Patch, each, normal

from attention_np import biases, blockwise, dot_product, rules, weightings
from attention_np._blockwise import kernels, whole

INPUTS = {"query": normal(0, 2, 4, 3), "key": normal(1, 1, 5, 3), "value": normal(2, 2, 5, 6)}
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a mask": {"mask": SOME_HIDDEN},
    "a rule of each": {"mask": rules.padding([5, 2])},
    "nobody": {"mask": rules.padding(0)},
    "causal": {"is_causal": True, "mask": rules.sliding_window(left=2)},
    "a softcap": {"softcap": 2.0},
    "a sink": {"sink": normal(3, 2)},
    "a bias": {"bias": [normal(4, 4, 5), biases.alibi([0.5])]},
    "a scale of each": {"scale": np.abs(normal(5, 4, 1))},
    "a negative scale": {"scale": -0.3},
    "sigmoid": {"weights_by": weightings.sigmoid()},
}


@pytest.fixture
def without_blocks(monkeypatch: Patch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("tiles were made")

    for name in ("attend", "differentiate"):
        monkeypatch.setattr(kernels, name, refuse)


@pytest.mark.usefixtures("without_blocks")
@each("name", OPTIONS)
def test_small_heads_are_done_as_dot_product_does_them(name: str) -> None:
    output, cache = blockwise.forward(**INPUTS, **OPTIONS[name])
    options = {**OPTIONS[name]}
    if isinstance(options.get("mask"), rules.Rule):
        options["mask"] = options["mask"].mask(4, 5)
    expected, other = dot_product.forward(**INPUTS, **options)
    np.testing.assert_array_equal(output, expected)
    for found, wanted in zip(blockwise.backward(output, cache), dot_product.backward(output, other), strict=True):
        for x, y in zip(biases.terms_of(found), biases.terms_of(wanted), strict=True):
            np.testing.assert_array_equal(x, y)


@each("name", [name for name in OPTIONS if name != "sigmoid"])
def test_what_is_kept_of_small_heads_serves_blocks(name: str) -> None:
    output, small = blockwise.forward(**INPUTS, **OPTIONS[name])
    _, blocks = blockwise.forward(**INPUTS, **OPTIONS[name], block_size=2)
    np.testing.assert_allclose(small.logsumexp, blocks.logsumexp, rtol=0, atol=1e-14)
    d_logsumexp = normal(7, 2, 4)
    wanted = blockwise.backward(output, blocks, d_logsumexp=d_logsumexp)
    twice = blockwise.double_backward(wanted, output, blocks)
    for cache in (small._replace(block_size=(2, 2)), small):
        assert_alike(blockwise.backward(output, cache, d_logsumexp=d_logsumexp), wanted)
        assert_alike(blockwise.double_backward(wanted, output, cache), twice)


def assert_alike(x: Any, y: Any, atol: float = 1e-13) -> None:
    if isinstance(x, tuple | list):
        for both in zip(x, y, strict=True):
            assert_alike(*both, atol)
    elif x is not None:
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)


@each("size", [1e30, 1e200])
def test_what_is_out_of_range_is_left_to_blocks(size: float) -> None:
    inputs = {**INPUTS, "query": size * INPUTS["query"], "key": size * INPUTS["key"]}
    output, cache = blockwise.forward(**inputs)
    np.testing.assert_allclose(output, dot_product.forward(**inputs)[0], rtol=1e-13)
    assert np.isfinite(blockwise.backward(output, cache).value).all()


def test_heads_are_small_by_their_size_and_together() -> None:
    assert whole.fit(128, 256, 64, 8, 4)
    assert not whole.fit(128, 257, 1, 1, 4)
    assert not whole.fit(128, 256, 1, 1, 8)
    assert not whole.fit(128, 256, 1, 9, 4)
    assert whole.fit(1, 2**12 - 1, 128, 1, 4)
    assert not whole.fit(1, 2**12, 128, 1, 4)
    for n, m, heads in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        assert not whole.fit(n, m, 1, heads, 4)


class OfTheLastAxis(rules.Rule):
    """A rule of a caller's, whose leading axes are fewer than those of the scores."""

    leading = (2,)

    def at(self, index: tuple[int, ...]) -> rules.Rule:
        return rules.causal(offset=index[1])

    def block(self, rows: slice, columns: slice) -> Any:
        raise AssertionError(f"asked for {rows} and {columns} of no head")


STRANGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no queries": ({"query": normal(0, 0, 3)}, {"mask": rules.packed([], [0, 1, 2, 2, 2])}),
    "no keys": ({"key": normal(0, 0, 3), "value": normal(1, 0, 2)}, {"weights_by": weightings.silu()}),
    "no values": ({"query": normal(0, 4, 3), "key": normal(1, 5, 3), "value": normal(0, 0, 5, 2)}, {}),
    "a rule of the last axis": ({"query": normal(0, 3, 2, 4, 3)}, {"mask": OfTheLastAxis()}),
    "an axis of values alone": ({"value": normal(0, 3, 1, 5, 2)}, {"sink": 0.3}),
    "not a number": ({"key": np.where(np.arange(5)[:, None] == 2, np.nan, normal(0, 5, 3))}, {"mask": SOME_HIDDEN}),
    "infinite": ({"value": np.where(np.arange(5)[:, None] == 2, np.inf, normal(0, 5, 3))}, {"is_causal": True}),
    "one heavy weight": ({"query": 30 * normal(0, 4, 3)}, {}),
    "a bias that hides": ({}, {"bias": np.where(SOME_HIDDEN, 0, -np.inf)}),
    "a bias without end": ({}, {"bias": np.where(np.eye(4, 5) > 0, np.inf, 0)}),
}


@each("name", STRANGE)
@each("dtype", [np.float64, np.float32])
def test_small_heads_give_what_blocks_give(name: str, dtype: Any) -> None:
    replaced, options = STRANGE[name]
    inputs = {key: x.astype(dtype) for key, x in {**INPUTS, **replaced}.items()}
    options = {
        key: x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype != bool else x for key, x in options.items()
    }
    results = []
    for how in ({}, {"block_size": 2}):
        output, cache = blockwise.forward(**inputs, **options, **how)
        d_output = np.ones_like(output)
        tangents = {key: np.ones_like(x) for key, x in inputs.items()}
        results.append((output, cache.logsumexp, blockwise.backward(d_output, cache), blockwise.jvp(cache, **tangents)))
    assert_alike(*results, atol=200 * np.finfo(dtype).eps)


@each("options", [{"dropout_p": 0.2, "rng": 1}, {"block_size": 9}])
def test_some_options_want_blocks(options: dict[str, Any], monkeypatch: Patch) -> None:
    monkeypatch.setattr(whole, "attend", None)
    monkeypatch.setattr(whole, "differentiate", None)
    output, cache = blockwise.forward(**INPUTS, **options)
    blockwise.backward(output, cache)
    half = {name: x.astype(np.float16) for name, x in INPUTS.items()}
    blockwise.forward(**half)
