from itertools import product

import numpy as np
import pytest
from helpers import ATTENTIONS, attentions, each, peak_of

from attention_np import KeyValueCache, dot_product, masks, rules

SIZES = (0, 1, 2, 3, 5, 8)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def by_rule(n, m, sees):
    """The mask in which query i sees key j where `sees` says so, pair by pair."""
    mask = np.zeros((n, m), bool)
    for i, j in product(range(n), range(m)):
        mask[i, j] = sees(i, j)
    return mask


def assert_same(actual, expected):
    assert actual.dtype == np.bool_
    np.testing.assert_array_equal(actual, expected, strict=True)


@each("n", SIZES)
@each("m", [None, *SIZES])
def test_causal_shows_the_keys_up_to_the_query_moved_by_the_offset(n, m):
    columns = n if m is None else m
    assert_same(masks.causal(n, m), by_rule(n, columns, lambda i, j: j <= i))
    for offset in (-100, -9, -3, -1, 0, 1, 2, columns - n, 9, 100, 10**30, -(10**30)):
        assert_same(masks.causal(n, m, offset=offset), by_rule(n, columns, lambda i, j, o=offset: j <= i + o))


@each("n", SIZES)
@each("m", [None, *SIZES])
def test_a_sliding_window_shows_the_keys_between_its_bounds(n, m):
    columns = n if m is None else m
    bounds = (None, 0, 1, 2, 7, 10**30)
    for left, right in product(bounds, bounds):
        expected = by_rule(
            n, columns, lambda i, j, a=left, b=right: (a is None or i - a <= j) and (b is None or j <= i + b)
        )
        assert_same(masks.sliding_window(n, m, left=left, right=right), expected)


@each("n", SIZES)
def test_a_sliding_window_is_causal_and_one_wider_than_left_by_default(n):
    assert_same(masks.sliding_window(n, left=2), by_rule(n, n, lambda i, j: 0 <= i - j < 3))


@each("n", [*SIZES, 12, 13])
@each("block_size", [1, 2, 3, 4, 100, 10**30])
def test_block_causal_shows_earlier_blocks_and_the_whole_of_ones_own(n, block_size):
    assert_same(masks.block_causal(n, block_size), by_rule(n, n, lambda i, j: j // block_size <= i // block_size))


def sees_at_levels(levels):
    def sees(i, j):
        d = i - j
        if d < 0:
            return False
        s = max(level for level in levels if level <= max(d, 1))
        return (j + 1) % s == 0

    return sees


@each("n", [*SIZES, 21, 70])
@each("levels", [(1,), (1, 2), (1, 4), (1, 3, 5), (1, 4, 16), (1, 2, 3, 4, 5, 6, 7), (1, 10**9)])
def test_multi_level_causal_takes_coarser_steps_further_away(n, levels):
    mask = masks.multi_level_causal(n, levels)
    assert_same(mask, by_rule(n, n, sees_at_levels(levels)))
    assert not np.triu(mask, 1).any(), "a query sees its future"
    assert mask.diagonal().all(), "a query does not see itself"


def test_the_levels_are_1_4_16_by_default_and_take_any_sequence_of_integers():
    expected = by_rule(50, 50, sees_at_levels((1, 4, 16)))
    for levels in ([1, 4, 16], range(1, 2), np.array([1, 4, 16], np.uint8), np.array([1, 4, 16], np.uint64)):
        if len(levels) == 3:
            assert_same(masks.multi_level_causal(50, levels), expected)
        else:
            assert_same(masks.multi_level_causal(50, levels), masks.causal(50))
    assert_same(masks.multi_level_causal(50), expected)


@each("shape", [(), (0,), (1,), (4,), (2, 3), (2, 0, 3)])
@each("m", [0, 1, 5])
def test_padding_hides_the_keys_from_the_length_on(shape, m):
    lengths = np.random.default_rng(0).integers(0, m, shape, endpoint=True)
    mask = masks.padding(lengths, m)
    expected = np.zeros((*shape, 1, m), bool)
    for index in np.ndindex(*shape):
        expected[index][0, : lengths[index]] = True
    assert_same(mask, expected)
    if lengths.size:  # an empty list does not say its shape
        assert_same(masks.padding(lengths.tolist(), m), expected)
    assert_same(masks.padding(lengths, m, heads=True), expected[..., None, :, :])


@each("shape", [(0,), (1,), (5,), (2, 5), (2, 3, 5), (0, 5), (2, 0)])
@each("pad_id", [-1, 0, 2, 7])
def test_padding_from_tokens_hides_the_padding_token_wherever_it_stands(shape, pad_id):
    tokens = np.random.default_rng(0).integers(-1, 3, shape)
    expected = np.zeros((*shape[:-1], 1, shape[-1]), bool)
    for index in np.ndindex(*shape):
        expected[(*index[:-1], 0, index[-1])] = tokens[index] != pad_id
    assert_same(masks.padding_from_tokens(tokens, pad_id), expected)
    if tokens.size:
        assert_same(masks.padding_from_tokens(tokens.tolist(), pad_id), expected)
    assert_same(masks.padding_from_tokens(tokens, pad_id, heads=True), expected[..., None, :, :])


@each(
    ("query_shape", "key_shape"),
    [
        ((4,), None),
        ((4,), (6,)),
        ((2, 4), None),
        ((2, 4), (6,)),
        ((4,), (2, 6)),
        ((3, 1, 4), (2, 6)),
        ((0,), (5,)),
        ((4,), (0,)),
        ((0, 4), (1, 3)),
    ],
)
def test_packed_shows_the_keys_of_ones_own_segment(query_shape, key_shape):
    rng = np.random.default_rng(0)
    queries = rng.integers(-1, 3, query_shape)
    keys = None if key_shape is None else rng.integers(-1, 3, key_shape)
    own = queries if keys is None else keys
    leading = np.broadcast_shapes(query_shape[:-1], own.shape[:-1])
    q, k = np.broadcast_to(queries, (*leading, query_shape[-1])), np.broadcast_to(own, (*leading, own.shape[-1]))
    expected = np.zeros((*leading, query_shape[-1], own.shape[-1]), bool)
    for index in np.ndindex(*expected.shape):
        expected[index] = q[index[:-1]] == k[(*index[:-2], index[-1])]
    assert_same(masks.packed(queries, keys), expected)
    assert_same(masks.packed(queries, keys, heads=True), expected[..., None, :, :])


@each("kind", INTEGERS)
def test_any_integer_dtype_gives_the_same_mask(kind):
    tokens = np.array([[3, 0, 7], [0, 0, 2]], kind)
    dtype = tokens.dtype.type
    assert_same(masks.padding(np.array([2, 0], kind), dtype(3)), masks.padding([2, 0], 3))
    assert_same(masks.padding_from_tokens(tokens, dtype(0)), masks.padding_from_tokens(tokens.tolist(), 0))
    assert_same(masks.padding_from_tokens(tokens, -1), np.ones((2, 1, 3), bool))
    assert_same(masks.padding_from_tokens(tokens, 300), np.ones((2, 1, 3), bool))
    assert_same(masks.packed(tokens), masks.packed(tokens.tolist()))
    assert_same(masks.packed(tokens, tokens.astype("int64")), masks.packed(tokens.tolist()))
    assert_same(masks.causal(dtype(4), dtype(5), offset=dtype(1)), masks.causal(4, 5, offset=1))
    assert_same(masks.sliding_window(dtype(4), left=dtype(1), right=dtype(2)), masks.sliding_window(4, left=1, right=2))
    assert_same(masks.block_causal(dtype(4), dtype(3)), masks.block_causal(4, 3))
    assert_same(masks.multi_level_causal(dtype(9), np.array([1, 4], kind)), masks.multi_level_causal(9, (1, 4)))


def test_large_lengths_and_tokens_of_unsigned_integers_do_not_wrap_around():
    largest = np.array([2**64 - 1], np.uint64)
    assert not masks.padding_from_tokens(largest, 2**64 - 1).any()
    assert masks.padding_from_tokens(largest, -1).all()
    with pytest.raises(ValueError, match=r"lengths must be from 0 to m=3, not from 18446744073709551615"):
        masks.padding(largest, 3)


def test_masks_combine_and_broadcast_over_batch_and_heads():
    n, lengths, segments = 5, [5, 2, 0], [0, 0, 1, 1, 1]
    combined = masks.causal(n) & masks.padding(lengths, n, heads=True) & masks.packed(segments, heads=True)
    assert combined.shape == (3, 1, n, n)
    per_head = combined & np.stack([masks.sliding_window(n, left=0), masks.sliding_window(n, left=None)])
    assert per_head.shape == (3, 2, n, n)
    for b in range(3):
        seen = by_rule(n, n, lambda i, j, b=b: j <= i and j < lengths[b] and segments[i] == segments[j])
        assert_same(combined[b, 0], seen)
        assert_same(per_head[b, 0], seen & np.eye(n, dtype=bool))
        assert_same(per_head[b, 1], seen)


@each("dtype", ["bool", *INTEGERS, "float16", "float32", "float64", "longdouble"])
def test_as_mask_reads_both_conventions_from_booleans_and_numbers(dtype):
    values = np.array([[1, 0, 0], [0, 1, 1]], dtype)
    assert_same(masks.as_mask(values, true_means="allowed"), np.array([[1, 0, 0], [0, 1, 1]], bool))
    assert_same(masks.as_mask(values, true_means="hidden"), np.array([[0, 1, 1], [1, 0, 0]], bool))
    assert_same(masks.as_mask(values.tolist(), true_means="hidden"), np.array([[0, 1, 1], [1, 0, 0]], bool))
    assert_same(masks.as_mask(values[:0], true_means="hidden"), np.zeros((0, 3), bool))


@each("true_means", ["allowed", "hidden"])
def test_as_mask_returns_a_new_array_and_leaves_the_old_one_alone(true_means):
    values = np.array([True, False])
    values.flags.writeable = False
    mask = masks.as_mask(values, true_means=true_means)
    assert not np.shares_memory(mask, values)
    mask[:] = True  # so it can be written to


@each(
    "make",
    [
        lambda: masks.causal(4),
        lambda: masks.padding(np.array([1, 2]), 3),
        lambda: masks.padding_from_tokens(np.array([1, 2]), 1),
        lambda: masks.sliding_window(3, left=None, right=None),
        lambda: masks.block_causal(4, 2),
        lambda: masks.multi_level_causal(4),
        lambda: masks.packed(np.array([1, 2])),
        lambda: masks.tree([-1, 0]),
    ],
)
def test_each_mask_is_an_array_of_its_own_that_can_be_written_to(make):
    mask, again = make(), make()
    expected = again.copy()
    mask ^= True
    assert_same(make(), expected)


@each("seed", range(5))
@each(("rows", "columns"), [(slice(0, 5), slice(3, 12)), (slice(5, 12), slice(0, 3)), (slice(4, 5), slice(4, 5))])
def test_each_node_of_a_tree_sees_the_path_that_leads_to_it(seed, rows, columns):
    rng, n = np.random.default_rng(seed), 12
    order = rng.permutation(n)  # parents may stand behind their children
    parents = np.full(n, -1)
    for k in range(1, n):
        parents[order[k]] = order[rng.integers(k)] if rng.random() < 0.9 else -1
    expected = np.zeros((n, n), bool)
    for i in range(n):
        node = i
        while node >= 0:
            expected[i, node] = True
            node = parents[node]
    assert_same(masks.tree(parents), expected)
    assert_same(rules.tree(parents).mask(n, n), expected)
    block = rules.tree(parents).block(rows, columns)
    assert_same(np.broadcast_to(block, expected[rows, columns].shape), expected[rows, columns])


def integer_message(name):
    return f"^{name} must (be an integer|hold integers), not "


@each(
    ("call", "name"),
    [
        (lambda: masks.causal(True), "n"),
        (lambda: masks.causal(1, False), "m"),
        (lambda: masks.causal(1, offset=True), "offset"),
        (lambda: masks.sliding_window(1, left=False), "left"),
        (lambda: masks.block_causal(1, True), "block_size"),
        (lambda: masks.padding_from_tokens([1], False), "pad_id"),
        (lambda: masks.padding([1.0], 3), "lengths"),
        (lambda: masks.padding(True, 3), "lengths"),
        (lambda: masks.padding([1], 3.0), "m"),
        (lambda: masks.padding([10**30], 3), "lengths"),
        (lambda: masks.padding_from_tokens([1.0], 0), "tokens"),
        (lambda: masks.padding_from_tokens([True], 0), "tokens"),
        (lambda: masks.sliding_window(2.0, left=1), "n"),
        (lambda: masks.sliding_window(2, 2.0, left=1), "m"),
        (lambda: masks.sliding_window(2, left=1, right=1.0), "right"),
        (lambda: masks.block_causal(2.0, 1), "n"),
        (lambda: masks.multi_level_causal(2.0), "n"),
        (lambda: masks.multi_level_causal(2, (1.0, 2.0)), "levels"),
        (lambda: masks.multi_level_causal(2, (1, 10**30)), "levels"),
        (lambda: masks.packed([0.5]), "query_segments"),
        (lambda: masks.packed([0], [0.5]), "key_segments"),
        (lambda: masks.tree([0.5]), "parents"),
    ],
)
def test_what_is_not_an_integer_is_refused_by_name(call, name):
    with pytest.raises(TypeError, match=integer_message(name)):
        call()


@each(
    ("call", "message"),
    [
        (lambda: masks.causal(-1), "^n must be at least 0, not -1$"),
        (lambda: masks.causal(1, -2), "^m must be at least 0, not -2$"),
        (lambda: masks.padding([1], -1), "^m must be at least 0, not -1$"),
        (lambda: masks.padding([1, 4, 2], 3), "^lengths must be from 0 to m=3, not from 1 to 4$"),
        (lambda: masks.padding([[-1], [2]], 3), "^lengths must be from 0 to m=3, not from -1 to 2$"),
        (lambda: masks.padding_from_tokens(3, 0), r"^tokens must have at least 1 axis \(tokens.shape=\(\)\)$"),
        (lambda: masks.sliding_window(-1, left=1), "^n must be at least 0, not -1$"),
        (lambda: masks.sliding_window(1, -1, left=1), "^m must be at least 0, not -1$"),
        (lambda: masks.sliding_window(1, left=-1), "^left must be at least 0, not -1$"),
        (lambda: masks.sliding_window(1, left=None, right=-1), "^right must be at least 0, not -1$"),
        (lambda: masks.block_causal(-1, 1), "^n must be at least 0, not -1$"),
        (lambda: masks.block_causal(0, 0), "^block_size must be at least 1, not 0$"),
        (lambda: masks.block_causal(3, -2), "^block_size must be at least 1, not -2$"),
        (lambda: masks.multi_level_causal(-1), "^n must be at least 0, not -1$"),
        (lambda: masks.multi_level_causal(3, ()), r"^levels must increase from 1, as .*, not \(\)$"),
        (lambda: masks.multi_level_causal(3, (2, 4)), r"^levels must increase from 1, as .*, not \(2, 4\)$"),
        (lambda: masks.multi_level_causal(3, (0, 1)), "^levels must increase from 1"),
        (lambda: masks.multi_level_causal(3, (1, 4, 4)), "^levels must increase from 1"),
        (lambda: masks.multi_level_causal(3, (1, 16, 4)), "^levels must increase from 1"),
        (lambda: masks.multi_level_causal(3, np.array([1, 16, 4], np.uint8)), "^levels must increase from 1"),
        (lambda: masks.multi_level_causal(3, [[1, 2]]), "^levels must increase from 1"),
        (lambda: masks.multi_level_causal(3, 1), r"^levels must have at least 1 axis \(levels.shape=\(\)\)$"),
        (lambda: masks.packed(1), r"^query_segments must have at least 1 axis \(query_segments.shape=\(\)\)$"),
        (lambda: masks.packed([1], 1), r"^key_segments must have at least 1 axis \(key_segments.shape=\(\)\)$"),
        (
            lambda: masks.packed(np.zeros((2, 4), int), np.zeros((3, 4), int)),
            r"query_segments and key_segments do not broadcast .*_segments.shape=\(2, 4\), key_segments.shape=\(3, 4\)",
        ),
        (lambda: masks.tree([1, 0]), "^parents must not lead back to where they started$"),
        (
            lambda: masks.tree([-1, 2]),
            r"^parents must be a vector of numbers from -1 to n - 1 \(parents.shape=\(2,\)\)$",
        ),
        (lambda: masks.tree([-2]), "^parents must be a vector of numbers"),
        (lambda: masks.tree([[-1]]), "^parents must be a vector of numbers"),
        (lambda: rules.tree([-1, 0]).mask(2, 3), "^there are 2 nodes of a tree, but 2 queries and 3 keys$"),
        (lambda: masks.as_mask([True], true_means="yes"), "^true_means must be .* not 'yes'$"),
        (lambda: masks.as_mask([True], true_means=True), "^true_means must be .* not True$"),
        (lambda: masks.as_mask([0, 2], true_means="allowed"), r"pass them as bias \(values.shape=\(2,\)\)$"),
        (lambda: masks.as_mask([0.0, -np.inf], true_means="hidden"), r"pass them as bias \(values.shape=\(2,\)\)$"),
        (lambda: masks.as_mask([0.0, np.nan], true_means="hidden"), r"pass them as bias \(values.shape=\(2,\)\)$"),
        (lambda: masks.as_mask([-1, 0], true_means="hidden"), "hold other numbers"),
    ],
)
def test_what_makes_no_mask_is_refused_with_the_name_and_the_problem(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@each("values", [None, ["a"], [1j], [None, True]])
def test_as_mask_refuses_what_is_neither_boolean_nor_a_number(values):
    with pytest.raises(TypeError, match=r"^a mask holds booleans or the numbers 0 and 1, not .*values.shape="):
        masks.as_mask(values, true_means="allowed")


@each("integers", INTEGERS)
@each("m", [1, 2, 3, 7])
def test_a_query_sees_the_keys_that_its_row_lists_and_minus_one_is_none(m, integers):
    lists = [[0, -1, -1], [m - 1, 0, m - 1], [-1, -1, -1]]
    indices = np.array(lists if integers.startswith("int") else np.maximum(lists, 0), integers)
    mask = masks.selected(indices, m)
    assert_same(mask, by_rule(3, m, lambda i, j: j in indices[i]))
    assert not (integers.startswith("int") and m > 1 and mask[0, -1]), "-1 was taken as an index from the end"


@each("block_size", [1, 2, 3, 4, 100, 10**30])
def test_a_block_that_is_listed_is_seen_whole_and_the_last_may_be_shorter(block_size):
    m = 10
    indices = np.random.default_rng(0).integers(-1, -(-m // block_size), (2, 4, 3))
    mask = masks.selected(indices, m, block_size=block_size)
    for k, rows in enumerate(indices):
        assert_same(mask[k], by_rule(4, m, lambda i, j, rows=rows: j // block_size in rows[i]))


@each(("shape", "m"), [((2, 0), 3), ((0, 2), 3), ((3, 0, 2), 3), ((2, 0), 0)])
def test_empty_lists_and_no_lists_show_nothing(shape, m):
    assert_same(masks.selected(np.zeros(shape, int), m), np.zeros((*shape[:-1], m), bool))


@each(("indices", "m", "block_size"), [([[3]], 3, 1), ([[0]], 0, 1), ([[2]], 4, 2), ([[1]], 3, 100), ([[2**62]], 3, 1)])
def test_an_index_of_no_key_is_refused(indices, m, block_size):
    with pytest.raises(ValueError, match=r"^indices must be less than \d, the number of .*, and one is \d+ \(m=\d\)$"):
        masks.selected(indices, m, block_size=block_size)


N = 1000
TOKENS = np.arange(N * N).reshape(N, N) % 3


@each(
    ("make", "masks_of_memory"),
    [
        (lambda: masks.causal(N), 1),
        (lambda: masks.sliding_window(N, left=3), 3),
        (lambda: masks.sliding_window(N, left=None, right=3), 2),
        (lambda: masks.block_causal(N, 16), 1),
        (lambda: masks.multi_level_causal(N), 1),
        (lambda: masks.packed(np.arange(N) // 7), 1),
        (lambda: masks.padding(np.arange(N), N), 1),
        (lambda: masks.selected(np.zeros((N, 1), int), N), 2),
        (lambda: masks.padding_from_tokens(TOKENS, 0), 1),
        (lambda: masks.as_mask(np.ones((N, N), np.uint8), true_means="hidden"), 4),
    ],
)
def test_a_mask_takes_memory_in_proportion_to_its_size(make, masks_of_memory):
    assert make().size == N * N
    assert peak_of(make) <= (masks_of_memory + 0.2) * N * N


@each("large", [10**30, 2**63, 10**5000])
def test_a_length_beyond_all_arrays_is_refused_by_its_name(large):
    for name, call in (
        ("n", lambda: masks.causal(large)),
        ("n", lambda: masks.causal(large, 0)),
        ("m", lambda: masks.causal(0, large)),
        ("m", lambda: masks.padding([1], large)),
        ("n", lambda: masks.sliding_window(large, left=1)),
        ("n", lambda: masks.block_causal(large, 2)),
        ("n", lambda: masks.multi_level_causal(large)),
    ):
        with pytest.raises(ValueError, match=rf"^{name} must be at most \d+, the length of an axis, not ") as caught:
            call()
        assert len(str(caught.value)) < 120


def test_a_mask_larger_than_an_array_can_be_is_refused_by_its_lengths():
    for call in (lambda: masks.causal(2**40), lambda: masks.sliding_window(2**40, left=1)):
        with pytest.raises(ValueError, match=rf"^a mask of {2**40} queries and {2**40} keys is larger than an array"):
            call()


@each("op", ATTENTIONS)
def test_a_query_of_every_op_attends_to_the_selected_keys_as_if_there_were_no_others(op):
    lists = [[3, 0, 3], [2, -1, -1], [-1, -1, -1], [1, 4, 2]]
    case = attentions(((4,), (5,), (5,)))[op]
    output, cache = case.forward(mask=masks.selected(lists, 5))
    d_key = np.zeros_like(case.inputs["key"])
    for i, row in enumerate(lists):
        some = sorted({j for j in row if j >= 0})
        keys = {name: case.inputs[name][some] for name in ("key", "value")}
        alone, of_row = case.forward(query=case.inputs["query"][i : i + 1], **keys)
        np.testing.assert_allclose(output[i], alone[0], rtol=1e-14, atol=1e-15)
        d_key[some] += case.op.backward(output[i : i + 1], of_row).key
    np.testing.assert_allclose(case.op.backward(output, cache).key, d_key, rtol=1e-12, atol=1e-14)


def test_a_selection_among_the_keys_of_a_cache_is_that_of_the_whole_pass():
    query, key, value = np.random.default_rng(0).standard_normal((3, 2, 6, 4))
    lists = np.array([[0, -1], [0, 1], [2, 0], [3, 1], [4, -1], [2, 2]])
    whole, _ = dot_product.forward(query, key, value, mask=masks.selected(lists, 6))
    cache = KeyValueCache(6)
    for i in range(6):
        cache.append(key[:, i : i + 1], value[:, i : i + 1])
        row = cache.attend(query[:, i : i + 1], mask=masks.selected(lists[i : i + 1], i + 1))
        np.testing.assert_allclose(row[:, 0], whole[:, i], rtol=1e-14)
