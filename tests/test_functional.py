from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, each, normal, random_parameters
from scipy import special

import attention_np as anp
from attention_np import functional, rules

BATCH = {"query": normal(0, 2, 4, 3), "key": normal(1, 2, 5, 3), "value": normal(2, 2, 5, 6)}
SOME_HIDDEN = np.arange(20).reshape(4, 5) % 3 > 0


WEIGHTS = (*BATCH.values(), normal(3, 3, 4), normal(4, 3, 4), normal(5, 4))
PARAMETERS = (*BATCH.values(), random_parameters(0, 3, 3, 6))
DROPOUT = {"dropout_p": 0.5, "rng": 3}
CONVENIENCES: list[tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = [
    *(
        (anp.scaled_dot_product_attention, anp.dot_product, tuple(BATCH.values()), options)
        for options in ({}, {"scale": 0.3}, {"is_causal": True}, DROPOUT)
    ),
    *(
        (anp.additive_attention, anp.additive, (*WEIGHTS, b), options)
        for b in (None, normal(6, 4))
        for options in ({}, {"mask": SOME_HIDDEN})
    ),
    *(
        (anp.multi_head_attention, anp.multi_head, PARAMETERS, {"num_heads": 2, **options})
        for options in ({}, {"mask": SOME_HIDDEN}, {"bias": normal(3, 4, 5)}, {"is_causal": True}, DROPOUT)
    ),
]


@each(("convenience", "op", "arrays", "options"), CONVENIENCES)
def test_a_convenience_is_the_output_of_its_op(
    convenience: Any, op: Any, arrays: tuple[Any, ...], options: dict[str, Any]
) -> None:
    assert_same_bits(convenience(*arrays, **options), op.forward(*arrays, **options)[0])


def test_a_boolean_attn_mask_hides_and_a_float_one_is_added() -> None:
    scores = BATCH["query"] @ BATCH["key"].swapaxes(-1, -2) / np.sqrt(3)
    hidden = special.softmax(np.where(SOME_HIDDEN, scores, -np.inf), axis=-1) @ BATCH["value"]
    np.testing.assert_allclose(anp.scaled_dot_product_attention(**BATCH, attn_mask=SOME_HIDDEN), hidden, rtol=1e-13)
    bias = normal(3, 4, 5)
    added = special.softmax(scores + bias, axis=-1) @ BATCH["value"]
    np.testing.assert_allclose(anp.scaled_dot_product_attention(**BATCH, attn_mask=bias), added, rtol=1e-13)


def test_the_arguments_have_pytorchs_order() -> None:
    bias = normal(3, 4, 5)
    expected, _ = anp.dot_product.forward(**BATCH, bias=bias, dropout_p=0.5, is_causal=True, scale=0.3, rng=1)
    actual = anp.scaled_dot_product_attention(*BATCH.values(), bias, 0.5, True, 0.3, False, rng=1)
    assert_same_bits(actual, expected)


@each(("key_heads", "value_heads"), [(1, 1), (2, 2), (3, 3), (6, 6), (2, 3)])
def test_with_enable_gqa_each_key_head_serves_query_heads_that_follow_one_another(
    key_heads: int, value_heads: int
) -> None:
    query, key, value = normal(0, 2, 6, 4, 3), normal(1, 2, key_heads, 5, 3), normal(2, 2, value_heads, 5, 2)
    output = anp.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    shared = anp.scaled_dot_product_attention(query[0], key[0], value[0], is_causal=True, enable_gqa=True)
    assert_same_bits(shared, output[0])  # without a batch too
    for h in range(6):
        alone = anp.scaled_dot_product_attention(
            query[:, h], key[:, h * key_heads // 6], value[:, h * value_heads // 6], is_causal=True
        )
        np.testing.assert_allclose(output[:, h], alone, rtol=1e-14)


@each(("name", "shape"), [("key", (2, 4, 5, 3)), ("key", (5, 3)), ("key", (2, 0, 5, 3))])
def test_heads_that_do_not_divide_are_refused(name: str, shape: tuple[int, ...]) -> None:
    arrays = {"query": normal(0, 2, 6, 4, 3), "key": normal(1, 2, 6, 5, 3), "value": normal(2, 2, 6, 5, 2)}
    message = r"enable_gqa the heads of key.*must divide those of query.*query\.shape=\(2, 6, 4, 3\)"
    with pytest.raises(ValueError, match=message):
        anp.scaled_dot_product_attention(**{**arrays, name: np.zeros(shape)}, enable_gqa=True)
    with pytest.raises(ValueError, match="leading axes"):
        anp.scaled_dot_product_attention(**{**arrays, "key": np.zeros((2, 3, 5, 3))})


@each("attn_mask", [0.5, np.float64(0.5), np.float32(0.5)])
def test_an_attn_mask_that_is_a_number_does_not_upcast(attn_mask: Any) -> None:
    single = {name: x.astype(np.float32) for name, x in BATCH.items()}
    output = anp.scaled_dot_product_attention(**single, attn_mask=attn_mask)
    expected = anp.scaled_dot_product_attention(**single, attn_mask=np.full((4, 5), 0.5, np.float32))
    assert_same_bits(output, expected)
    wide = anp.scaled_dot_product_attention(**single, attn_mask=np.array(0.5))
    assert wide.dtype == np.float64


@each(
    ("heads", "n", "m", "chosen"),
    [
        (2, 4, 5, "dot_product"),
        (2, 1, 4096, "dot_product"),
        (1, 127, 2048, "dot_product"),  # hardly more scores than numbers in the keys and values
        (1, 2048, 127, "dot_product"),
        (2, 512, 256, "blockwise"),
        (2, 128, 1024, "blockwise"),
        (127, 128, 256, "dot_product"),
        (128, 128, 256, "blockwise"),  # small heads, but many
    ],
)
def test_large_scores_are_computed_blockwise(
    heads: int, n: int, m: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in functional.ALGORITHMS:
        monkeypatch.setitem(functional.ALGORITHMS, name, lambda *_, name=name, **__: (name, None))
    query, key, value = np.zeros((heads, n, 3)), np.zeros((heads, m, 3)), np.zeros((heads, m, 4))
    assert anp.scaled_dot_product_attention(query, key, value) == chosen
    for name in functional.ALGORITHMS:
        assert anp.scaled_dot_product_attention(query, key, value, algorithm=name) == name


@each(("heads", "n", "m"), [(2, 4, 5), (1, 128, 300)], long=[(2, 512, 256), (1, 2048, 127), (128, 128, 256)])
def test_both_algorithms_take_all_options_and_give_the_same(heads: int, n: int, m: int) -> None:
    query, key, value = normal(0, heads, n, 3), normal(1, heads, m, 3), normal(2, heads, m, 4)
    options = {"attn_mask": normal(3, n, m), "is_causal": True, "scale": 0.3, "dropout_p": 0.4, "rng": 5}
    results = [
        anp.scaled_dot_product_attention(query, key, value, **options, algorithm=a) for a in functional.ALGORITHMS
    ]
    np.testing.assert_allclose(*results, rtol=1e-12, atol=1e-13)


def test_a_rule_is_a_mask() -> None:
    query, key, value = normal(0, 2, 5, 3), normal(1, 2, 6, 3), normal(2, 2, 6, 4)
    rule = rules.sliding_window(left=1) & rules.padding([2, 6])
    expected = anp.scaled_dot_product_attention(query, key, value, attn_mask=rule.mask(5, 6))
    for algorithm in ("auto", *functional.ALGORITHMS):
        found = anp.scaled_dot_product_attention(query, key, value, attn_mask=rule, algorithm=algorithm)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match=r"^lengths must be from 0 to m=6, not 7"):
        anp.scaled_dot_product_attention(query, key, value, attn_mask=rules.padding([7, 6]))
    with pytest.raises(TypeError, match=r"^mask must be an array here: a rule gives its own by rule.mask\(n, m\)$"):
        anp.dot_product.forward(query, key, value, mask=rule)


def test_another_algorithm_is_refused() -> None:
    with pytest.raises(ValueError, match=r'^algorithm must be "auto", "dot_product" or "blockwise", not \'flash\'$'):
        anp.scaled_dot_product_attention(**BATCH, algorithm="flash")


@each("enable_gqa", [False, True])
@each("name", ["query", "key", "value"])
def test_an_array_that_is_no_array_is_refused_by_name(name: str, enable_gqa: bool) -> None:
    arrays = {"query": np.zeros((4, 3, 2)), "key": np.zeros((2, 3, 2)), "value": np.zeros((2, 3, 2))}
    with pytest.raises(ValueError, match=rf"^{name} must be an array of floating-point numbers: "):
        anp.scaled_dot_product_attention(**{**arrays, name: [[1.0], [1.0, 2.0]]}, enable_gqa=enable_gqa)


READ = r"^attn_mask must hold booleans.*u?int.*masks\.as_mask.*\(attn_mask\.shape={}\)$"


@each(
    ("attn_mask", "error", "message"),
    [
        ([[True], [True, False]], ValueError, r"^attn_mask must be an array of booleans or floating-point numbers: "),
        (np.ones(4, bool), ValueError, r"^attn_mask must broadcast to the scores"),
        (np.ones(4), ValueError, r"^attn_mask must broadcast to the scores"),
        (np.ones(3, object), TypeError, r"^attn_mask must hold floating-point numbers"),
        *(([1, 1, 0], TypeError, READ.format(r"\(3,\)")), (np.ones(3, int), TypeError, READ.format(r"\(3,\)"))),
        *((1, TypeError, READ.format(r"\(\)")), (np.uint8(1), TypeError, READ.format(r"\(\)"))),
    ],
)
def test_what_is_no_attn_mask_is_refused_by_name(attn_mask: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        anp.scaled_dot_product_attention(*np.zeros((3, 3, 2)), attn_mask=attn_mask)
