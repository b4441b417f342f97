"""What is true of attention whatever its input."""

from typing import Any

import numpy as np
import pytest
from helpers import (
    Array,
    Case,
    assert_alike,
    assert_close,
    assert_same_bits,
    each,
    leaves,
    map_arrays,
    normal,
    random_parameters,
    reference,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from attention_np import additive, dot_product, masks, multi_head, softmax
from attention_np.cases import OPS
from attention_np.multi_head import Parameters

lengths = st.integers(1, 6)
widths = st.integers(1, 5)
batches = st.lists(st.integers(0, 3), max_size=2).map(tuple)
seeds = st.integers(0, 2**32 - 1)


class Problem:
    """Queries, keys and values of drawn shapes and sizes, and a mask that may leave rows without a key."""

    def __init__(self, n: int, m: int, d_k: int, d_v: int, batch: tuple[int, ...], size: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.rng, self.n, self.m, self.batch = rng, n, m, batch
        self.query = size * rng.standard_normal((*batch, n, d_k))
        self.key = rng.standard_normal((*batch, m, d_k))
        self.value = rng.standard_normal((*batch, m, d_v))
        self.mask = rng.random((*batch, n, m)) < rng.random()
        self.weights = [rng.standard_normal(shape) for shape in ((d_k, 3), (d_k, 3), (3,), (3,))]

    def dot_product(self, **options: Any) -> tuple[Array, Any]:
        return dot_product.forward(self.query, self.key, self.value, **options)

    def additive(self, **options: Any) -> tuple[Array, Any]:
        return additive.forward(self.query, self.key, self.value, *self.weights, **options)

    @property
    def attentions(self) -> tuple[Any, Any]:
        return self.dot_product, self.additive

    def of_tokens(self, query: Array, key: Array, mask: Any = None) -> list[Array]:
        """The output of each attention whose values are its keys, in the dtype of those."""
        weights = [w.astype(key.dtype) for w in self.weights]
        parameters = map_arrays(lambda w: w.astype(key.dtype), random_parameters(0, *[key.shape[-1]] * 3))
        return [
            dot_product.forward(query, key, key, mask=mask)[0],
            additive.forward(query, key, key, *weights, mask=mask)[0],
            multi_head.forward(query, key, key, parameters, num_heads=2, mask=mask)[0],
        ]


problems = st.builds(Problem, lengths, lengths, widths, widths, batches, st.sampled_from([0.0, 1e-3, 1.0, 30.0]), seeds)


@given(problems)
def test_rows_of_weights_sum_to_one_or_to_zero_and_are_not_negative(problem: Problem) -> None:
    for attention in problem.attentions:
        weights = attention(mask=problem.mask)[1].weights
        assert (weights >= 0).all()
        sums = problem.mask.any(axis=-1).astype(float)
        assert np.abs(weights.sum(axis=-1) - sums).max(initial=0) <= problem.m * np.finfo(float).eps
        assert (weights.sum(axis=-1)[sums == 0] == 0).all()
        assert (weights[~problem.mask] == 0).all()


@given(problems, st.integers(-1000, 1000))
def test_softmax_is_unchanged_by_a_shift_of_each_row(problem: Problem, shift: int) -> None:
    scores = problem.rng.integers(-50, 50, problem.mask.shape).astype(float)  # so that adding is exact
    shifts = shift + problem.rng.integers(-9, 9, (*problem.mask.shape[:-1], 1))
    weights, cache = softmax.forward(scores, mask=problem.mask)
    shifted, shifted_cache = softmax.forward(scores + shifts, mask=problem.mask)
    assert_same_bits(shifted, weights)
    d_weights = problem.rng.standard_normal(scores.shape)
    gradient = softmax.backward(d_weights, cache).scores
    assert_same_bits(softmax.backward(d_weights, shifted_cache).scores, gradient)
    assert np.abs(gradient.sum(axis=-1)).max(initial=0) <= 1e-15 * np.abs(d_weights).max(initial=1)
    sums = softmax.logsumexp(scores, mask=problem.mask) + shifts[..., 0]
    np.testing.assert_allclose(softmax.logsumexp(scores + shifts, mask=problem.mask), sums, rtol=1e-14, atol=1e-13)


@given(problems)
def test_self_attention_is_equivariant_under_permutation(problem: Problem) -> None:
    x, order = problem.key, problem.rng.permutation(problem.m)
    moved = x[..., order, :]
    for output, permuted in zip(problem.of_tokens(x, x), problem.of_tokens(moved, moved), strict=True):
        assert_close(permuted, output[..., order, :], 5e-15)


def test_self_attention_is_not_invariant_under_permutation_but_attention_is_under_one_of_the_keys() -> None:
    x, order = normal(0, 5, 3), np.array([1, 2, 3, 4, 0])
    output, _ = dot_product.forward(x, x, x)
    assert np.abs(dot_product.forward(x[order], x[order], x[order])[0] - output).max() > 0.1
    assert_close(dot_product.forward(x, x[order], x[order])[0], output, 1e-15)


@given(problems)
def test_the_output_lies_in_the_convex_hull_of_the_values_it_attends_to(problem: Problem) -> None:
    d_v = problem.value.shape[-1]
    directions = np.concatenate([np.eye(d_v), problem.rng.standard_normal((20, d_v))])
    for attention in problem.attentions:
        along = attention(mask=problem.mask)[0] @ directions.T  # (..., n, directions)
        corners = (problem.value @ directions.T)[..., None, :, :]  # (..., 1, m, directions)
        seen = problem.mask[..., None]
        room = 1e-14 * (1 + np.abs(corners).max(initial=0))
        highest = np.where(seen, corners, -np.inf).max(axis=-2) + room
        lowest = np.where(seen, corners, np.inf).min(axis=-2) - room
        some = problem.mask.any(axis=-1)
        assert (along <= highest)[some].all()
        assert (along >= lowest)[some].all()
        assert (along[~some] == 0).all()


@given(problems, st.integers(-20, 20), st.integers(-20, 20))
def test_the_output_is_linear_in_the_values(problem: Problem, a: int, b: int) -> None:
    one, other = problem.value, problem.rng.standard_normal(problem.value.shape)
    outputs = []
    for value in (one, other, a * one + b * other):
        problem.value = value
        outputs.append([attention(mask=problem.mask)[0] for attention in problem.attentions])
    for first, second, combined in zip(*outputs, strict=True):
        scale = (abs(a) + abs(b)) * max(np.abs(one).max(initial=0), np.abs(other).max(initial=0))
        assert np.abs(combined - (a * first + b * second)).max(initial=0) <= 2e-15 * scale


@given(problems)
def test_decoding_token_by_token_gives_the_causal_pass(problem: Problem) -> None:
    x = problem.key
    whole = problem.of_tokens(x, x, masks.causal(problem.m))
    for t in range(problem.m):
        for pass_, step in zip(whole, problem.of_tokens(x[..., t : t + 1, :], x[..., : t + 1, :]), strict=True):
            scale = max(np.abs(pass_).max(initial=0), 1)
            assert np.abs(step - pass_[..., t : t + 1, :]).max(initial=0) <= 3e-15 * scale


@given(problems, st.integers(1, 3))
def test_heads_with_their_own_matrices_equal_the_fused_projection(problem: Problem, num_heads: int) -> None:
    d_in, d_v_in = problem.key.shape[-1], problem.value.shape[-1]
    w = random_parameters(1, d_in, d_in, d_v_in, 2 * num_heads, 3 * num_heads, 4)
    fused, cache = multi_head.forward(
        problem.query, problem.key, problem.value, w, num_heads=num_heads, mask=problem.mask[..., None, :, :]
    )
    total: Any = w.b_output
    for h in range(num_heads):
        a, c = slice(2 * h, 2 * h + 2), slice(3 * h, 3 * h + 3)
        own = dot_product.forward(
            problem.query @ w.w_query[:, a] + w.b_query[a],
            problem.key @ w.w_key[:, a] + w.b_key[a],
            problem.value @ w.w_value[:, c] + w.b_value[c],
            mask=problem.mask,
        )
        assert np.abs(cache.weights[..., h, :, :] - own[1].weights).max(initial=0) <= 1e-13
        total = total + own[0] @ w.w_output[c]
    scale = max(np.abs(fused).max(initial=0), 1)
    assert np.abs(fused - total).max(initial=0) <= 1e-13 * scale


@given(problems)
def test_one_head_with_identity_matrices_is_dot_product_attention(problem: Problem) -> None:
    identity = np.eye(problem.key.shape[-1])
    w = Parameters(identity, identity, np.eye(problem.value.shape[-1]), np.eye(problem.value.shape[-1]))
    output, _ = multi_head.forward(problem.query, problem.key, problem.value, w, num_heads=1)
    assert_same_bits(output, problem.dot_product()[0])


@given(problems)
def test_as_scores_are_scaled_up_the_weights_go_to_the_hard_choice(problem: Problem) -> None:
    scores = problem.rng.integers(-4, 5, problem.mask.shape).astype(float)  # so that there are ties
    largest = np.where(problem.mask, scores, -np.inf).max(axis=-1, keepdims=True)
    chosen = problem.mask & (scores == largest)
    shares = chosen / np.maximum(chosen.sum(axis=-1, keepdims=True), 1)
    before = np.inf
    for factor in (0.5, 1, 2, 4, 8, 16, 32):
        distance = np.abs(softmax.forward(factor * scores, mask=problem.mask)[0] - shares).max(initial=0)
        assert distance <= before
        assert distance <= problem.m * np.exp(-factor)  # the others are at least 1 behind
        before = distance
    for factor in (1e3, 1e100, 1e307):
        assert_same_bits(softmax.forward(factor * scores, mask=problem.mask)[0], shares)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(problem=problems)
def test_changing_the_future_changes_nothing_before_it_bit_for_bit(problem: Problem, dtype: Any) -> None:
    x, causal = problem.key.astype(dtype), masks.causal(problem.m)
    expected = problem.of_tokens(x, x, causal)
    for t in range(1, problem.m):
        for future in (0.0, -7.0, np.finfo(dtype).max / 1e8, np.inf, np.nan):
            changed = x.copy()
            changed[..., t:, :] = future
            for one, other in zip(problem.of_tokens(changed, changed, causal), expected, strict=True):
                assert_same_bits(one[..., :t, :], other[..., :t, :])


@given(problems)
def test_no_gradient_flows_to_the_future(problem: Problem) -> None:
    x = problem.key
    output, cache = dot_product.forward(x, x, x, is_causal=True)
    for t in range(problem.m):
        d_output = problem.rng.standard_normal(output.shape)
        d_output[..., t + 1 :, :] = 0
        gradients = dot_product.backward(d_output, cache)
        assert (gradients.key[..., t + 1 :, :] == 0).all()
        assert (gradients.value[..., t + 1 :, :] == 0).all()
        assert (gradients.query[..., t + 1 :, :] == 0).all()


@given(problems)
def test_a_batch_gives_what_its_samples_give_alone(problem: Problem) -> None:
    whole = [attention(mask=problem.mask) for attention in problem.attentions]
    d_output = problem.rng.standard_normal(whole[0][0].shape)
    shared = [additive.backward(d_output, whole[1][1]), [0.0] * 4]
    gradients = [dot_product.backward(d_output, whole[0][1]), shared[0]]
    query, key, value, mask = problem.query, problem.key, problem.value, problem.mask
    for index in np.ndindex(*problem.batch):
        problem.query, problem.key, problem.value = query[index], key[index], value[index]
        for k, (op, attention) in enumerate(zip((dot_product, additive), problem.attentions, strict=True)):
            output, cache = attention(mask=mask[index])
            assert_close(output, whole[k][0][index], 2e-15)
            alone = op.backward(d_output[index], cache)
            for name in ("query", "key", "value"):
                one, other = getattr(alone, name), getattr(gradients[k], name)[index]
                assert one.shape == other.shape
                assert np.abs(one - other).max(initial=0) <= 1e-14 * max(np.abs(other).max(initial=0), 1)
            if op is additive:
                shared[1] = [total + x for total, x in zip(shared[1], alone[3:], strict=True)]
    if 0 not in problem.batch:
        for gradient, total in zip(shared[0][3:], shared[1], strict=True):
            scale = max(np.abs(gradient).max(), 1)
            assert np.abs(gradient - total).max() <= 1e-13 * scale


@given(problems)
def test_a_bias_that_is_the_same_for_all_keys_changes_nothing(problem: Problem) -> None:
    output, _ = problem.dot_product(mask=problem.mask)
    bias = problem.rng.standard_normal((problem.n, 1))
    shifted, cache = problem.dot_product(mask=problem.mask, bias=bias)
    scale = 1 + np.abs(cache.scores).max(initial=0)
    assert np.abs(shifted - output).max(initial=0) <= 1e-14 * scale
    d_bias = dot_product.backward(problem.rng.standard_normal(output.shape), cache).bias
    assert d_bias.shape == bias.shape
    assert np.abs(d_bias).max() <= 1e-14


@given(problems)
def test_a_hidden_key_is_as_one_that_is_not_there(problem: Problem) -> None:
    columns = problem.rng.random(problem.m) < 0.5
    for k in range(2):
        output, _ = problem.attentions[k](mask=columns)
        key, value = problem.key, problem.value
        problem.key, problem.value = key[..., columns, :], value[..., columns, :]
        without, _ = problem.attentions[k]()
        problem.key, problem.value = key, value
        scale = max(np.abs(value).max(initial=0), 1)
        assert np.abs(output - without).max(initial=0) <= 2e-15 * scale


@each("d_k", [1, 4, 64])
def test_products_of_standard_normal_queries_and_keys_have_variance_d_k_and_one_after_scaling(d_k: int) -> None:
    samples = 20_000
    query, key = normal(0, samples, 1, d_k), normal(1, samples, 1, d_k)
    value = np.zeros((1, 1))
    # A sum of d_k products of normals has the fourth moment 3 d_k^2 + 6 d_k, which gives the spread of its variance.
    spread = np.sqrt((2 + 6 / d_k) / samples)
    raw = dot_product.forward(query, key, value, scale=1.0)[1].scores
    scaled = dot_product.forward(query, key, value)[1].scores
    assert abs(raw.mean()) <= 5 * np.sqrt(d_k / samples)
    assert abs(raw.var() / d_k - 1) <= 5 * spread
    assert abs(scaled.var() - 1) <= 5 * spread


@given(problems, st.sampled_from(["dot_product", "blockwise", "additive", "multi_head"]), st.booleans())
def test_nan_flows_where_the_mathematics_has_it_and_nowhere_else(problem: Problem, op: str, has_mask: bool) -> None:
    assume(0 not in problem.batch)
    rng, d_k, d_v = problem.rng, problem.key.shape[-1], problem.value.shape[-1]
    inputs: dict[str, Any] = {"query": problem.query, "key": problem.key, "value": problem.value}
    for x in inputs.values():
        x[rng.random(x.shape) < rng.choice([0, 0.1])] = np.nan
    options = {"mask": problem.mask} if has_mask else {}
    if op == "additive":
        inputs |= dict(zip(("w_query", "w_key", "w_score", "b"), problem.weights, strict=True))
    elif op == "multi_head":
        inputs["parameters"] = random_parameters(0, d_k, d_k, d_v)
        options = {"num_heads": 2, **{name: mask[..., None, :, :] for name, mask in options.items()}}
    case = Case(OPS[op], inputs, options)
    output, cache = case.forward()
    d_output = rng.standard_normal(output.shape)
    d_output[rng.random(output.shape) < rng.choice([0, 0.3])] = 0
    d_output[rng.random(output.shape[:-1]) < 0.3] = 0
    expected, expected_gradients = reference(case, d_output)
    gradients = dict(leaves(case.op.backward(d_output, cache)))
    for actual, wanted in [(output, expected), *((gradients[n], g) for n, g in expected_gradients.items())]:
        assert_alike(actual, wanted, 1e-13)
