"""A rule says of every block what its mask says."""

import re
from typing import Any

import numpy as np
import pytest
from helpers import Array, each
from hypothesis import given
from hypothesis import strategies as st

from attention_np import blockwise, masks, rules
from attention_np.rules import Rule

N, M = 7, 9
SEGMENTS = np.array([0, 0, 1, 1, 1, 3, 3])
KEY_SEGMENTS = np.array([0, 1, 1, 2, 3, 3, 3, 3, 5])
UNSORTED = np.array([2, 0, 1, 2, 0, 0, 1, 1, 2])
SOME = np.random.default_rng(0).random((N, M)) < 0.3
LISTS = np.array([[0, 8, -1], [3, 3, 3], [-1, -1, -1], [8, 7, 6], [0, 1, 2], [5, -1, -1], [4, 0, 4]])
BLOCKS = np.array([[0, -1], [1, 1], [2, 0], [-1, -1], [0, 1], [-1, 2], [2, 2]])  # of four keys, the last of one

PAIRS: dict[str, tuple[Rule, Array]] = {
    "causal": (rules.causal(), masks.causal(N, M)),
    "causal, ahead": (rules.causal(offset=3), masks.causal(N, M, offset=3)),
    "causal, behind": (rules.causal(offset=-4), masks.causal(N, M, offset=-4)),
    "causal, far ahead": (rules.causal(offset=10**30), np.ones((N, M), bool)),
    "window": (rules.sliding_window(left=2), masks.sliding_window(N, M, left=2)),
    "window of both sides": (rules.sliding_window(left=1, right=2), masks.sliding_window(N, M, left=1, right=2)),
    "window without a right": (
        rules.sliding_window(left=1, right=None),
        masks.sliding_window(N, M, left=1, right=None),
    ),
    "window without a left": (rules.sliding_window(left=None, right=1), masks.sliding_window(N, M, left=None, right=1)),
    "window without bounds": (rules.sliding_window(left=None, right=None), np.ones((N, M), bool)),
    "padding": (rules.padding(5), np.broadcast_to(masks.padding(5, M), (N, M))),
    "padding of nothing": (rules.padding(0), np.zeros((N, M), bool)),
    "packed": (rules.packed(SEGMENTS, KEY_SEGMENTS), masks.packed(SEGMENTS, KEY_SEGMENTS)),
    "packed, out of order": (rules.packed(UNSORTED[:N], UNSORTED), masks.packed(UNSORTED[:N], UNSORTED)),
    "selected": (rules.selected(LISTS), masks.selected(LISTS, M)),
    "selected blocks": (rules.selected(BLOCKS, block_size=4), masks.selected(BLOCKS, M, block_size=4)),
    "selected blocks, causal": (
        rules.causal() & rules.selected(BLOCKS, block_size=4),
        masks.causal(N, M) & masks.selected(BLOCKS, M, block_size=4),
    ),
    "nothing selected": (rules.selected(np.full((N, 0), -1)), np.zeros((N, M), bool)),
    "whole": (rules.whole(SOME), SOME),
    "whole, of keys": (rules.whole(SOME[0]), np.broadcast_to(SOME[0], (N, M))),
    "whole, of queries": (rules.whole(SOME[:, :1]), np.broadcast_to(SOME[:, :1], (N, M))),
    "both": (rules.causal() & rules.whole(SOME), masks.causal(N, M) & SOME),
    "all three": (
        rules.sliding_window(left=3) & rules.packed(SEGMENTS, KEY_SEGMENTS) & rules.padding(6),
        masks.sliding_window(N, M, left=3) & masks.packed(SEGMENTS, KEY_SEGMENTS) & masks.padding(6, M),
    ),
}
every_rule = each(("rule", "mask"), PAIRS.values())


def as_array(answer: Any, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(np.asarray(answer), shape)


def parts(length: int) -> list[slice]:
    return [slice(i, j) for i in range(length) for j in range(i + 1, length + 1)]


@every_rule
def test_every_block_is_that_of_the_mask_and_nothing_lies_outside_of_the_columns(rule: Rule, mask: Array) -> None:
    np.testing.assert_array_equal(rule.mask(N, M), mask)
    for rows in parts(N):
        for columns in parts(M):
            expected = mask[rows, columns]
            assert np.array_equal(as_array(rule.block(rows, columns), expected.shape), expected)
            reach = rule.columns(rows, columns)
            assert columns.start <= reach.start <= reach.stop <= columns.stop
            assert not mask[rows, columns.start : reach.start].any()
            assert not mask[rows, reach.stop : columns.stop].any()


@every_rule
@each(("rows", "columns"), [(slice(2, 6), slice(1, 8)), (slice(0, 3), slice(4, 9)), (slice(5, 7), slice(0, 2))])
def test_a_part_of_a_rule_counts_from_its_own_first_query_and_key(
    rule: Rule, mask: Array, rows: Any, columns: Any
) -> None:
    part, expected = rule.within(rows, columns), mask[rows, columns]
    n, m = expected.shape
    for r in parts(n):
        for c in parts(m):
            assert np.array_equal(as_array(part.block(r, c), expected[r, c].shape), expected[r, c])
            reach = part.columns(r, c)
            assert not expected[r, c.start : reach.start].any()
            assert not expected[r, reach.stop : c.stop].any()


@each("name", ["causal", "window", "window of both sides", "padding", "selected", "selected blocks", "whole"])
def test_blocks_that_are_all_visible_or_all_hidden_are_known_without_a_mask(name: str) -> None:
    rule, mask = PAIRS[name]
    for rows in parts(N):
        for columns in parts(M):
            block = mask[rows, columns]
            if block.all() or not block.any():
                assert rule.block(rows, columns) is bool(block.all())


def test_blocks_within_one_segment_and_between_segments_are_known_without_a_mask() -> None:
    rule = rules.packed(SEGMENTS, KEY_SEGMENTS)
    assert rule.block(slice(2, 5), slice(1, 3)) is True
    assert rule.block(slice(0, 2), slice(4, 8)) is False
    assert rule.block(slice(5, 7), slice(0, 4)) is False


def test_a_rule_of_no_queries_or_no_keys_is_empty() -> None:
    for rule in (rules.causal(), rules.padding(0), rules.whole(True)):
        assert rule.mask(0, 3).shape == (0, 3)
        assert rule.mask(3, 0).shape == (3, 0)
    assert rules.packed(np.zeros(0, int)).mask(0, 0).shape == (0, 0)


def test_the_columns_of_a_window_are_as_few_as_it_is_wide() -> None:
    rule = rules.sliding_window(left=256)
    assert rule.columns(slice(5000, 5100), slice(0, 10**6)) == slice(5000 - 256, 5100)
    assert rules.causal().columns(slice(0, 10), slice(0, 10**6)) == slice(0, 10)


def test_the_columns_of_a_selection_are_from_the_first_key_listed_to_the_last() -> None:
    rule = rules.selected(LISTS)
    assert rule.columns(slice(1, 3), slice(0, M)) == slice(3, 4)
    assert rule.columns(slice(2, 3), slice(4, M)) == slice(4, 4)
    assert rule.columns(slice(3, 4), slice(0, 5)) == slice(5, 5)
    assert rules.selected(BLOCKS, block_size=4).columns(slice(1, 2), slice(2, 7)) == slice(4, 7)


def test_the_columns_of_packed_segments_are_those_of_the_rows() -> None:
    rule = rules.packed(SEGMENTS, KEY_SEGMENTS)
    assert rule.columns(slice(0, 2), slice(0, M)) == slice(0, 1)
    assert rule.columns(slice(2, 5), slice(0, M)) == slice(1, 3)
    assert rule.columns(slice(5, 7), slice(0, 4)) == slice(0, 0)


class Shifted(Rule):
    """Of the sample k, query i sees the keys up to i + k."""

    def __init__(self, shift: int | None = None) -> None:
        self.shift, self.leading = shift, (3,) if shift is None else ()

    def at(self, index: tuple[int, ...]) -> Rule:
        return Shifted(index[-1]) if self.leading else self

    def block(self, rows: slice, columns: slice) -> Array:
        i, j = np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop)
        return j <= i[:, None] + self.shift


@each(
    ("rule", "mask"),
    [
        (rules.padding([2, 0, 9]), masks.padding([2, 0, 9], M)),
        (rules.padding([2, 0, 9], heads=True), masks.padding([2, 0, 9], M, heads=True)),
        (rules.packed([SEGMENTS, SEGMENTS[::-1]]), masks.packed([SEGMENTS, SEGMENTS[::-1]])),
        (rules.packed([SEGMENTS], heads=True), masks.packed([SEGMENTS], heads=True)),
        (rules.selected([LISTS, LISTS[::-1]]), np.stack([masks.selected(x, M) for x in (LISTS, LISTS[::-1])])),
        (rules.selected(BLOCKS[None], block_size=4), masks.selected(BLOCKS, M, block_size=4)[None]),
        (
            rules.selected([[BLOCKS], [BLOCKS[::-1]]], block_size=4) & rules.padding([2, 0, 9]),
            masks.selected([[BLOCKS], [BLOCKS[::-1]]], M, block_size=4) & masks.padding([2, 0, 9], M),
        ),
        (rules.whole([SOME, ~SOME]), np.stack([SOME, ~SOME])),
        (rules.whole(masks.padding([2, 4], M)), masks.padding([2, 4], M)),
        (rules.padding([2, 0, 9]) & rules.causal(), masks.padding([2, 0, 9], M) & masks.causal(N, M)),
        (Shifted(), np.stack([masks.causal(N, M, offset=k) for k in range(3)])),
    ],
)
def test_leading_axes_are_those_of_the_mask_and_a_part_keeps_them(rule: Rule, mask: Array) -> None:
    m = mask.shape[-1]
    mask = np.broadcast_to(mask, (*mask.shape[:-2], N, m))
    assert rule.leading == mask.shape[:-2]
    np.testing.assert_array_equal(rule.mask(N, m), mask)
    for rows, columns in ((slice(0, 1), slice(0, 4)), (slice(2, 6), slice(3, m)), (slice(1, 1), slice(0, 2))):
        part, expected = rule.within(rows, columns), mask[..., rows, columns]
        np.testing.assert_array_equal(part.mask(*expected.shape[-2:]), expected)
        for index in np.ndindex(*rule.leading):
            alone = rule.at(index).within(rows, columns)
            np.testing.assert_array_equal(alone.mask(*expected.shape[-2:]), expected[index])


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(1, 12), st.integers(1, 12))
def test_any_band_is_two_causal_masks(lower: int, width: int, n: int, m: int) -> None:
    rule = rules._Band(lower, lower + width)
    expected = masks.causal(n, m, offset=lower + width) & ~masks.causal(n, m, offset=lower - 1)
    np.testing.assert_array_equal(rule.mask(n, m), expected)


class EverySecond(Rule):
    def block(self, rows: slice, columns: slice) -> Array:
        i, j = np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop)
        return (i[:, None] + j) % 2 == 0


def test_a_rule_of_ones_own_needs_its_blocks_alone() -> None:
    rule = EverySecond()
    expected = np.add.outer(np.arange(N), np.arange(M)) % 2 == 0
    np.testing.assert_array_equal(rule.mask(N, M), expected)
    part = rule.within(slice(3, 6), slice(2, 7))
    np.testing.assert_array_equal(part.block(slice(1, 3), slice(0, 4)), expected[4:6, 2:6])
    assert part.columns(slice(1, 3), slice(0, 4)) == slice(0, 4)
    np.testing.assert_array_equal((rule & rules.causal()).mask(N, M), expected & masks.causal(N, M))


@each(
    ("call", "error", "message"),
    [
        (lambda: rules.causal(offset=1.5), TypeError, "^offset must be an integer"),
        (lambda: rules.sliding_window(left=-1), ValueError, "^left must be at least 0, not -1"),
        (lambda: rules.sliding_window(left=1, right=-1), ValueError, "^right must be at least 0, not -1"),
        (lambda: rules.padding([1.0]), TypeError, "^lengths must hold integers, not float64"),
        (lambda: rules.padding([3, -1]), ValueError, "^lengths must not be negative, and one is -1"),
        (lambda: rules.padding([3, 10]).mask(2, 9), ValueError, "^lengths must be from 0 to m=9, not 10"),
        (lambda: rules.packed([0.5]), TypeError, "^query_segments must hold integers"),
        (lambda: rules.packed([0, 1]).mask(2, 3), ValueError, "^there are segments of 2 queries and 2 keys"),
        (lambda: rules.selected([[0.0]]), TypeError, "^indices must hold integers, not float64"),
        (lambda: rules.selected([0]), ValueError, r"^indices must have at least 2 axis \(indices.shape=\(1,\)\)$"),
        (lambda: rules.selected([[0, -2]]), ValueError, "^indices must be from 0 on, or -1 for none, and one is -2$"),
        (lambda: rules.selected([[2**63 + 1]]), ValueError, f"^indices must be from 0 on, .* one is {2**63 + 1}$"),
        (lambda: rules.selected([[0]], block_size=0), ValueError, "^block_size must be at least 1, not 0$"),
        (
            lambda: rules.selected([[3]]).mask(1, 3),
            ValueError,
            r"^indices must be less than 3, the number of keys, and one is 3 \(m=3\)$",
        ),
        (
            lambda: rules.selected([[2]], block_size=2).mask(1, 4),
            ValueError,
            r"^indices must be less than 2, the number of blocks of 2 keys, and one is 2 \(m=4\)$",
        ),
        (lambda: rules.selected([[0]]).mask(2, 3), ValueError, r"^there are lists of 1 queries, but 2 queries"),
        (lambda: rules.whole([1, 0]), TypeError, "^mask must be boolean"),
        (lambda: rules.whole([True, False]).mask(4, 3), ValueError, "^mask must broadcast to 4 queries and 3 keys"),
        (lambda: rules.causal() & True, TypeError, "unsupported operand"),
    ],
)
def test_bad_input_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@each(("n", "m"), [(600, 500), (500, 600)])
def test_a_block_of_any_size_is_that_of_the_mask(n: int, m: int) -> None:
    np.testing.assert_array_equal(rules.causal(offset=7).mask(n, m), masks.causal(n, m, offset=7))


def test_the_leading_axes_of_both_sides_broadcast() -> None:
    queries, keys = np.stack([SEGMENTS, SEGMENTS[::-1]])[:, None], np.stack([KEY_SEGMENTS, UNSORTED, UNSORTED[::-1]])
    expected = masks.packed(queries, keys)
    assert expected.shape == (2, 3, N, M)
    np.testing.assert_array_equal(rules.packed(queries, keys).mask(N, M), expected)
    np.testing.assert_array_equal(rules.packed(keys, queries).mask(M, N), masks.packed(keys, queries))
    few, many = [3, 5], [[2], [4], [9]]
    both = np.broadcast_to(masks.padding(few, M) & masks.padding(many, M), (3, 2, N, M))
    np.testing.assert_array_equal((rules.padding(few) & rules.padding(many)).mask(N, M), both)
    np.testing.assert_array_equal((rules.padding(many) & rules.padding(few)).mask(N, M), both)


class Claims(rules.Rule):
    """All pairs attend, and the columns are whatever it is told to say."""

    def __init__(self, columns: Any) -> None:
        self.given = columns

    def __repr__(self) -> str:
        return "claims"

    def block(self, rows: slice, columns: slice) -> bool:
        del rows, columns
        return True

    def columns(self, rows: slice, columns: slice) -> slice:
        del rows, columns
        return self.given


@each("combine", [lambda rule: rule, lambda rule: rule & rules.causal(offset=M)])
@each(
    ("columns", "error", "message"),
    [
        (slice(-3, M), ValueError, f"must be within those it is asked for, 0 to {M}, not -3 to {M} (claims)"),
        (slice(0, M + 1), ValueError, f"must be within those it is asked for, 0 to {M}, not 0 to {M + 1} (claims)"),
        (slice(0, M, 2), TypeError, f"must be a slice of two integers and no step, not slice(0, {M}, 2) (claims)"),
        (slice(None), TypeError, "must be a slice of two integers and no step, not slice(None, None, None) (claims)"),
        (slice(0.0, 2.0), TypeError, "must be a slice of two integers and no step, not slice(0.0, 2.0, None) (claims)"),
        ((0, M), TypeError, f"must be a slice of two integers and no step, not (0, {M}) (claims)"),
    ],
)
def test_columns_that_are_no_part_of_those_asked_for_are_refused(
    columns: Any, error: type[Exception], message: str, combine: Any
) -> None:
    x = np.ones((M, 2))
    with pytest.raises(error, match=f"^{re.escape('the columns of a rule ' + message)}$"):
        blockwise.forward(x[:N], x, x, mask=combine(Claims(columns)))


@each("nothing", [slice(0, 0), slice(M + 3, M + 3), slice(2, 1)])
def test_columns_may_be_numpy_integers_and_an_empty_slice_anywhere_is_none(nothing: Any) -> None:
    x = np.arange(2.0 * M).reshape(M, 2)
    some, _ = blockwise.forward(x[:N] * 0, x * 0, x, mask=Claims(slice(np.int64(1), np.int64(3), 1)))
    np.testing.assert_allclose(some, np.broadcast_to(x[1:3].mean(axis=0), some.shape))
    output, cache = blockwise.forward(x[:N], x, x, mask=Claims(nothing))
    assert (output == 0).all()
    assert (cache.logsumexp == -np.inf).all()


def test_a_rule_without_a_block_says_what_it_lacks() -> None:
    class Lacking(rules.Rule):
        pass

    with pytest.raises(NotImplementedError, match=r"^Lacking must define block\(rows, columns\)$"):
        blockwise.forward(np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)), mask=Lacking())
