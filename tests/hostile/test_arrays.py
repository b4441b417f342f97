"""Whatever arrays look like, the numbers are those of plain ones, nothing is written to, and nothing is shared."""

from typing import Any

import numpy as np
import pytest
from helpers import OPS, Array, Case, each, leaves, map_arrays, normal, plain_case, takes
from hypothesis import given
from hypothesis import strategies as st

import attention_np as anp
from attention_np import masks, multi_head, rules

from .strategies import COMPLEX, DRESSES, REAL, Everything, cases, dressed, hostile

EPS = {"e": 1e-3, "f": 1e-6}


def close(actual: Array, expected: Array) -> None:
    """Equal but for the order in which a BLAS sums arrays of another layout."""
    assert type(actual) is np.ndarray
    assert actual.shape == expected.shape
    wide = np.result_type(expected.dtype, np.float32) if expected.dtype.kind != "V" else np.float32
    digits = 2e-2 if expected.dtype.itemsize == 2 else 3e4 * np.finfo(wide).eps / 1000
    one, other = actual.astype(wide), expected.astype(wide)
    np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))
    scale = max(np.abs(other[np.isfinite(other)]).max(initial=0), 1)
    with np.errstate(all="ignore"):
        assert np.nanmax(np.abs(one - other), initial=0) <= digits * scale


@pytest.mark.parametrize("op", OPS)
@each("dress", DRESSES)
def test_an_array_in_any_dress_gives_the_numbers_of_a_plain_one(op: str, dress: Any) -> None:
    case = plain_case(op, batch=(2,))
    expected = Everything(case)
    for name, x in Everything(case.map(dress), like=case, dress=dress).results.items():
        close(x, expected.results[name])


@given(cases(dtypes=REAL + COMPLEX), st.data())
@hostile
def test_how_an_array_lies_in_memory_and_what_class_it_is_makes_no_difference(case: Case, data: Any) -> None:
    expected = Everything(case)
    dress = data.draw(st.sampled_from(DRESSES))
    actual = Everything(dressed(case, data), like=case, dress=dress)
    for name, x in expected.results.items():
        close(actual.results[name], x)
    assert actual.output.dtype == expected.output.dtype


@pytest.mark.parametrize("op", OPS)
def test_a_masked_array_is_refused_since_its_mask_would_be_lost(op: str) -> None:
    case = plain_case(op)
    for name, _ in leaves(case.inputs):
        names = iter([other for other, _ in leaves(case.inputs)])
        changed = case.map(lambda x, names=names, name=name: np.ma.masked_array(x) if next(names) == name else x)
        with pytest.raises(TypeError, match=rf"^{name} must not be a masked array"):
            case.op.forward(**changed.inputs, **changed.options)
    if takes(op, "mask"):
        with pytest.raises(TypeError, match=r"^mask must not be a masked array"):
            case.op.forward(**case.inputs, **case.options, mask=np.ma.masked_array(np.ones((4, 5), bool)))
    output, cache = case.op.forward(**case.inputs, **case.options)
    with pytest.raises(TypeError, match=r"must not be a masked array"):
        case.op.backward(np.ma.masked_array(output), cache)
    tangents = map_arrays(np.ma.masked_array, case.inputs)
    with pytest.raises(TypeError, match=r"must not be a masked array"):
        case.op.jvp(cache, **tangents)


@each(
    "call",
    [
        lambda x: masks.padding(x, 3),
        lambda x: masks.padding_from_tokens(x, 0),
        masks.packed,
        lambda x: masks.packed([0, 1], x),
        lambda x: masks.multi_level_causal(3, x),
        lambda x: masks.as_mask(x, true_means="allowed"),
        lambda x: masks.selected(x[None], 3),
        rules.padding,
        lambda x: rules.selected(x[None]),
        rules.packed,
        lambda x: rules.packed([0, 1], x),
        lambda x: rules.whole(x == 1),
        lambda x: multi_head.split_heads(x[None], 1),
        lambda x: multi_head.combine_heads(x[None, None]),
        lambda x: anp.scaled_dot_product_attention(np.ones((2, 1)), np.ones((2, 1)), np.ones((2, 1)), x / 1.0),
        lambda x: anp.dot_product.forward(np.ones((2, 1)), np.ones((2, 1)), np.ones((2, 1)), scale=x[0]),
    ],
)
def test_masks_rules_and_helpers_refuse_masked_arrays_too(call: Any) -> None:
    with pytest.raises(TypeError, match="must not be a masked array"):
        call(np.ma.masked_array([1, 0], mask=[True, False]))


@each("dress", DRESSES)
def test_masks_and_rules_take_integers_and_booleans_of_any_dress(dress: Any) -> None:
    tokens, lengths = np.array([[1, 2, 0], [3, 0, 0]]), np.array([[2], [1]])
    pairs = [
        (masks.padding(dress(lengths), 3), masks.padding(lengths, 3)),
        (masks.padding_from_tokens(dress(tokens), 0), tokens[:, None] != 0),
        (masks.packed(dress(tokens)), tokens[:, :, None] == tokens[:, None]),
        (masks.as_mask(dress(tokens > 0), true_means="hidden"), tokens == 0),
        (masks.selected(dress(tokens), 4), np.array([[1, 1, 1, 0], [1, 0, 0, 1]], bool)),
        (rules.selected(dress(tokens)).mask(2, 4), masks.selected(tokens, 4)),
        (rules.padding(dress(lengths)).mask(2, 3), np.broadcast_to(masks.padding(lengths, 3), (2, 1, 2, 3))),
        (rules.packed(dress(tokens)).mask(3, 3), masks.packed(tokens)),
        (rules.whole(dress(tokens > 0)).mask(2, 3), tokens > 0),
        (multi_head.split_heads(dress(tokens), 3), tokens.T[:, :, None]),
        (multi_head.combine_heads(dress(tokens[:, None])), tokens.reshape(1, 6)),
    ]
    for actual, expected in pairs:
        assert type(actual) is np.ndarray
        np.testing.assert_array_equal(actual, expected)


def test_a_rule_does_not_lend_the_mask_that_it_was_given() -> None:
    mask = np.array([[True, False]])
    part = rules.whole(mask).block(slice(0, 1), slice(0, 2))
    assert not part.flags.writeable
    assert mask.flags.writeable
    whole = rules.whole(mask).mask(1, 2)
    assert not np.shares_memory(whole, mask)
    for made in (masks.as_mask(mask, true_means="allowed"), masks.as_mask(mask, true_means="hidden")):
        assert not np.shares_memory(made, mask)


@each("orders", [("<", ">"), (">", ">")])
@each("dtype", ["f2", "f4", "f8"])
def test_arrays_of_either_byte_order_have_one_dtype_together(dtype: str, orders: tuple[str, str]) -> None:
    x, y = (normal(0, 3, 2).astype(order + dtype) for order in orders)
    output, cache = anp.dot_product.forward(x, y, y)
    assert output.dtype == np.dtype(dtype)
    assert [g.dtype for g in anp.dot_product.backward(output, cache)[:3]] == [x.dtype, y.dtype, y.dtype]
