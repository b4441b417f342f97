"""What cannot be computed is refused before any work, in one sentence that names the argument."""

from fractions import Fraction
from inspect import signature
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import ATTENTIONS, OPS, Case, each, leaves, plain_cases
from hypothesis import given
from hypothesis import strategies as st

import attention_np as anp
from attention_np import blockwise, gradcheck, indexer, masks, multi_head, rules, softmax
from attention_np.blockwise import Partial

from .strategies import DRESSES, hostile

WRONG = [
    [[1.0], [2.0, 3.0]],
    [[1, 2]],
    "text",
    b"bytes",
    None,
    [[None]],
    [[Fraction(1, 2)]],
    np.ones((4, 4), np.int8),
    np.ones((4, 4), np.bool_),
    np.ones((4, 4), object),
    np.ones((4, 4), ml_dtypes.float8_e5m2),
    np.ones((4, 4), "M8[s]"),
    np.ones((4, 4), "m8[s]"),
    np.zeros((4, 4), "V2"),
    np.zeros((4, 4), [("x", "f8")]),
    np.full((4, 4), "1.0"),
    {"a": 1.0},
    {1.0, 2.0},
    object(),
    lambda: 1.0,
    1 << 200,
    np.ma.masked,
]
BY_NAME = plain_cases()


def assert_a_clear_sentence(error: Exception, name: str) -> None:
    text = str(error)
    assert name.rpartition(".")[2] in text
    assert "\n" not in text
    assert 20 < len(text) < 400


@pytest.mark.parametrize("op", OPS)
@each("wrong", WRONG)
def test_what_is_not_an_array_of_floating_point_numbers_is_refused_by_name(op: str, wrong: Any) -> None:
    case = BY_NAME[op]
    optional = {
        "bias",
        "gain",
        "directions",
        "b",
        "log_decay",
        "beta",
        "initial_state",
        "parameters.b_query",
        "parameters.b_key",
        "parameters.b_value",
        "parameters.b_output",
    }
    _, cache = case.forward()
    for name, _ in leaves(case.inputs):
        if wrong is None and name in optional:
            continue
        if name == "target" and np.asarray(case.inputs[name]).ndim and getattr(wrong, "dtype", None) == np.int8:
            continue  # these are indices
        names = iter([other for other, _ in leaves(case.inputs)])
        changed = case.map(lambda x, names=names, name=name: wrong if next(names) == name else x)
        with pytest.raises((TypeError, ValueError)) as error:
            changed.forward()
        assert_a_clear_sentence(error.value, name)
    with pytest.raises((TypeError, ValueError)) as error:
        case.op.backward(wrong, cache)
    assert_a_clear_sentence(error.value, next(iter(signature(case.op.backward).parameters)))
    if wrong is not None:  # a zero tangent
        name = next(iter(case.inputs))
        with pytest.raises((TypeError, ValueError)) as error:
            case.op.jvp(cache, **{name: wrong})
        assert_a_clear_sentence(error.value, name)


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=3, max_size=3), st.sampled_from(ATTENTIONS))
@hostile
def test_shapes_fit_or_are_refused_with_the_shapes_in_the_sentence(shapes: list[list[int]], op: str) -> None:
    case: Case = BY_NAME[op]
    arrays = {name: np.ones(shape) for name, shape in zip(("query", "key", "value"), shapes, strict=True)}
    inputs = {**case.inputs, **arrays}
    inputs.pop("bias", None)
    try:
        output, cache = case.op.forward(**inputs, **case.options)
    except ValueError as error:
        assert "shape=" in str(error)  # noqa: PT017
        return
    gradients = case.op.backward(output, cache)
    for name, x in arrays.items():
        assert getattr(gradients, name).shape == x.shape


UNUSABLE = ["text", [[1.5], [2, 3]], object(), [object()], {1: 2}, np.ones((2, 2), "V2")]
CALLS: list[tuple[str, Any]] = [
    ("x", lambda x: multi_head.split_heads(x, 1)),
    ("x", multi_head.combine_heads),
    ("lengths", lambda x: masks.padding(x, 3)),
    ("tokens", lambda x: masks.padding_from_tokens(x, 0)),
    ("query_segments", masks.packed),
    ("key_segments", lambda x: masks.packed([0], x)),
    ("levels", lambda x: masks.multi_level_causal(3, x)),
    ("values", lambda x: masks.as_mask(x, true_means="hidden")),
    ("scores", lambda x: indexer.top_k(x, 1)),
    ("k", lambda x: indexer.top_k(np.ones(3), x)),
    ("indices", lambda x: masks.selected(x, 3)),
    ("block_size", lambda x: masks.selected([[0]], 3, block_size=x)),
    ("lengths", rules.padding),
    ("indices", rules.selected),
    ("query_segments", rules.packed),
    ("key_segments", lambda x: rules.packed([0], x)),
    ("mask", rules.whole),
    ("n", masks.causal),
    ("offset", lambda x: masks.causal(2, offset=x)),
    ("left", lambda x: masks.sliding_window(2, left=x)),
    ("right", lambda x: masks.sliding_window(2, left=1, right=x)),
    ("block_size", lambda x: masks.block_causal(2, x)),
    ("pad_id", lambda x: masks.padding_from_tokens([1], x)),
    ("offset", lambda x: rules.causal(offset=x)),
    ("left", lambda x: rules.sliding_window(left=x)),
    ("num_heads", lambda x: multi_head.split_heads(np.ones((2, 2)), x)),
    ("axis", lambda x: softmax.forward(np.ones(2), axis=x)),
    ("scores", softmax.logsumexp),
    ("scores", softmax.jacobian),
    (
        "parameters",
        lambda x: anp.multi_head_attention(np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)), x, num_heads=1),
    ),
    ("query", lambda x: anp.scaled_dot_product_attention(x, np.ones((2, 2)), np.ones((2, 2)))),
    ("attn_mask", lambda x: anp.scaled_dot_product_attention(np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)), x)),
    ("query", lambda x: anp.additive_attention(x, *[np.ones((2, 2))] * 4, np.ones(2))),
    ("first", lambda x: blockwise.merge((x, np.ones(2)), (np.ones((2, 2)), np.ones(2)))),
    ("first", lambda x: blockwise.merge_backward(Partial(np.ones((2, 2)), np.ones(2)), (x, np.ones(2)), Partial(x, x))),
]


@each("wrong", UNUSABLE)
@each(("name", "call"), CALLS)
def test_masks_rules_and_helpers_refuse_what_they_cannot_use(name: str, call: Any, wrong: Any) -> None:
    if name == "x" and not isinstance(wrong, list | str):
        return  # heads are split of arrays of anything
    with pytest.raises((TypeError, ValueError)) as error:
        call(wrong)
    assert_a_clear_sentence(error.value, name)


CHECKED = [
    lambda x: gradcheck.check(np.exp, lambda d, x: d * np.exp(x), {"x": x}),
    lambda x: gradcheck.assert_gradients(np.exp, lambda d, x: d * np.exp(x), {"x": x}),
    lambda x: gradcheck.numerical_gradient(np.exp, {"x": x}, np.ones(2)),
    lambda x: gradcheck.check_op(softmax, {"scores": x}),
]


@each("check", CHECKED)
@each("wrong", WRONG[:-1])
def test_the_gradient_checker_refuses_what_is_not_real_floating_point(check: Any, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        check(wrong)
    assert len(str(error.value)) > 10


@each("check", CHECKED)
def test_the_gradient_checker_takes_arrays_of_any_dress_and_leaves_them_alone(check: Any) -> None:
    x = np.array([[0.5, -1.0], [2.0, 0.25]])[:, 0]
    for dress in DRESSES:
        given = dress(x)
        report = check(given)
        if isinstance(given, np.ndarray):
            np.testing.assert_array_equal(np.asarray(given), x)
        if hasattr(report, "ok"):
            assert report.ok
