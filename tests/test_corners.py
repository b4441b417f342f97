"""What is not finite, and what is not there: each case, for every op, forward and backward, alone and in a batch.

Hidden things are compared to the last bit with the same problem in which a finite number stands in their place.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import (
    ATTENTIONS,
    BIASED,
    BY_ROW,
    FIRST,
    OPS,
    Array,
    Case,
    Shape,
    as_taken,
    assert_alike,
    assert_close,
    assert_same,
    assert_same_bits,
    each,
    leaves,
    normal,
    of_rows,
    plain_case,
    reference,
    run,
    takes,
    tangents_of,
    weightings_of,
)

from attention_np import additive, multi_head, softmax
from attention_np._lib import products
from attention_np._lib.arrays import quiet
from attention_np.cases import WEIGHTINGS
from attention_np.weightings import Weighting

POISONS = [np.nan, np.inf, -np.inf]
SIZES = [(4, 5), (33, 40)]  # small ones, and such as BLAS blocks differently

SEEN = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 0, 1, 1], [0, 1, 0, 0, 1]], bool)

every_attention = pytest.mark.parametrize("op", ATTENTIONS)
every_op = pytest.mark.parametrize("op", OPS)
every_biased = pytest.mark.parametrize("op", BIASED)
every_poison = each("poison", POISONS[:2], long=POISONS[2:])
alone_and_in_a_batch = each("batch", [(), (2, 2)])
everywhere = each(("batch", "size"), [((), (4, 5)), ((3,), (33, 40))], long=[((2, 2), (4, 5))])


def over_heads(case: Case, mask: Array) -> Array:
    """A mask (..., n, m) as it must be for the scores of a case."""
    return mask[..., None, :, :] if case.op is multi_head else mask


def masked(op: str, mask: Array, size: Shape, batch: Shape, seed: int = 0) -> Case:
    case = plain_case(op, *size, batch=batch, seed=seed)
    return case._replace(
        options={**case.options, "mask": over_heads(case, as_taken(op, mask))} if takes(op, "mask") else case.options
    )


def poisoned(case: Case, poison: float, **where: Any) -> Case:
    """The case with `poison` at the given places of its inputs."""
    inputs = dict(case.inputs)
    for name, place in where.items():
        inputs[name] = inputs[name].copy()
        inputs[name][place] = poison
    return case._replace(inputs=inputs)


def assert_same_results(actual: Case, expected: Case, d_output: Array | None = None) -> None:
    tangents = tangents_of(expected)
    one, other = run(actual, d_output, tangents), run(expected, d_output, tangents)
    assert_same(expected, one.output, other.output)
    assert_same(expected, one.jvp, other.jvp)
    assert np.isfinite(one.output).all()
    for name, gradient in other.gradients.items():
        assert_same(expected, one.gradients[name], gradient)
        assert np.isfinite(gradient).all()


# A query that may attend to nothing


def a_mask(size: Shape, row: int | None = None, column: int | None = None) -> Array:
    """Most pairs, but none of that row and that column; every other row sees the first key."""
    mask = np.random.default_rng(5).random(size) < 0.7
    mask[:, 0] = True
    if row is not None:
        mask[row] = False
    if column is not None:
        mask[:, column] = False
    return mask


@every_attention
@everywhere
def test_a_query_that_may_attend_to_nothing_gets_zero_output_and_gradient(op: str, batch: Shape, size: Shape) -> None:
    case = masked(op, a_mask(size, row=2), size, batch)
    results = run(case)
    assert (results.weights[..., 2, :] == 0).all()
    assert (results.gradients["query"][..., 2, :] == 0).all()
    if op == "multi_head":
        assert (results.cache.combined[..., 2, :] == 0).all()
        b_output = case.inputs["parameters"].b_output
        assert_same(case, results.output[..., 2, :], np.broadcast_to(b_output, (*batch, 4)))
        moved = tangents_of(case)["parameters"].b_output
        assert_same(case, results.jvp[..., 2, :], np.broadcast_to(moved, (*batch, 4)))
    else:
        assert (results.output[..., 2, :] == 0).all()
        assert (results.jvp[..., 2, :] == 0).all()
    if op in BIASED:
        assert (results.gradients["bias"][2] == 0).all()
    others = np.arange(size[0]) != 2
    assert (results.weights[..., others, :].sum(-1) > 0.99).all()
    assert (results.gradients["query"][..., others, :] != 0).all()


@every_attention
@alone_and_in_a_batch
def test_a_query_that_may_attend_to_nothing_leaves_the_other_gradients_as_they_are_without_it(
    op: str, batch: Shape
) -> None:
    size = (4, 5)
    case = masked(op, a_mask(size, row=2), size, batch)
    others = [0, 1, 3]
    d_output = normal(3, *case.forward()[0].shape)
    smaller = {**case.inputs, "query": case.inputs["query"][..., others, :]}
    if "bias" in smaller:
        smaller["bias"] = smaller["bias"][..., others, :]
    mask = case.options["mask"][..., others, :]
    expected = run(Case(case.op, smaller, {**case.options, "mask": mask}), d_output[..., others, :]).gradients
    actual = run(case, d_output).gradients
    for name in set(actual) - {"query", "bias", "parameters.b_output", "parameters.b_key"}:
        assert_close(actual[name], expected[name], 1e-14)


@every_attention
@alone_and_in_a_batch
def test_where_nobody_may_attend_all_is_zero(op: str, batch: Shape) -> None:
    case = masked(op, np.zeros((4, 5), bool), (4, 5), batch)
    for options in (case.options, {**case.options, "mask": np.array(False)}):
        results = run(case._replace(options=options))
        assert (results.weights == 0).all()
        zero = {n: g for n, g in results.gradients.items() if n != "parameters.b_output"}
        assert all((gradient == 0).all() for gradient in zero.values())
        expected = case.inputs["parameters"].b_output if op == "multi_head" else np.zeros(4)
        assert_same(case, results.output, np.broadcast_to(expected, (*batch, 4, 4)))


# A pair that is masked out


ROW, COLUMN, PAIRS = (..., 2, slice(None)), (..., 3, slice(None)), (..., ~a_mask((4, 5), row=2, column=3))
HIDDEN: dict[str, dict[str, Any]] = {  # of a mask that hides query 2 from all, and key 3
    "a query": {"query": ROW},
    "an entry of a query": {"query": (..., 2, 1)},
    "a key": {"key": COLUMN},
    "a value": {"value": COLUMN},
    "a key and its value": {"key": COLUMN, "value": COLUMN},
    "an entry of both": {"key": (..., 3, 2), "value": (..., 3, 2)},
    "all of them": {"query": ROW, "key": COLUMN, "value": COLUMN},
}


@every_attention
@every_poison
@each("where", [*HIDDEN.values()][-2:], long=[*HIDDEN.values()][:-2])
@everywhere
def test_what_is_hidden_contributes_nothing_whatever_it_holds(
    op: str, poison: float, where: dict[str, Any], batch: Shape, size: Shape
) -> None:
    case = masked(op, a_mask(size, row=2, column=3), size, batch)
    assert_same_results(poisoned(case, poison, **where), case)


@every_poison
@everywhere
def test_a_masked_score_contributes_nothing_whatever_it_holds(poison: float, batch: Shape, size: Shape) -> None:
    mask = a_mask(size, row=2, column=3)
    case = masked("softmax", mask, size, batch)
    worst = case.inputs["scores"].copy()
    worst[..., ~mask] = poison
    actual = case._replace(inputs={"scores": worst})
    assert_same_results(actual, case)
    for function in (softmax.jacobian, softmax.logsumexp):
        assert_same(case, function(worst, mask=mask), function(**case.inputs, mask=mask))
    assert (run(actual).gradients["scores"][..., ~mask] == 0).all()


@every_biased
@every_poison
@alone_and_in_a_batch
def test_a_masked_bias_contributes_nothing_whatever_it_holds(op: str, poison: float, batch: Shape) -> None:
    case = masked(op, a_mask((4, 5), row=2, column=3), (4, 5), batch)
    assert_same_results(poisoned(case, poison, bias=PAIRS), case)
    assert (run(case).gradients["bias"][PAIRS] == 0).all()


@every_attention
@every_poison
@everywhere
@each("name", ["key", "value"])
def test_a_query_does_not_see_what_only_another_one_attends_to(
    op: str, poison: float, batch: Shape, size: Shape, name: str
) -> None:
    mask = a_mask(size, column=3)
    mask[1, 3] = True  # query 1 sees key 3, and nobody else does
    case = masked(op, mask, size, batch)
    others = np.arange(size[0]) != 1
    actual, expected = run(poisoned(case, poison, **{name: (..., 3, slice(None))})), run(case)
    for one, other in (
        (actual.output, expected.output),
        (actual.jvp, expected.jvp),
        (actual.gradients["query"], expected.gradients["query"]),
    ):
        assert_same(case, one[..., others, :], other[..., others, :])
        assert np.isfinite(one[..., others, :]).all()
    if op != "additive" or name == "value" or np.isnan(poison):
        assert not np.isfinite(actual.output[..., 1, :]).any()
    unseen = ~mask[1]
    for gradient in ("key", "value"):
        one, other = actual.gradients[gradient], expected.gradients[gradient]
        assert_same(case, one[..., unseen, :], other[..., unseen, :])
        assert np.isfinite(one[..., unseen, :]).all()


@every_attention
@every_poison
def test_what_is_hidden_may_hold_anything_in_half_precision_too(op: str, poison: float) -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        case = masked(op, a_mask((4, 5), column=3), (4, 5), (2,)).map(lambda x, dtype=dtype: x.astype(dtype))
        assert_same_results(poisoned(case, poison, key=COLUMN, value=COLUMN), case)


@every_attention
@every_poison
@each("shared", ["query", "key", "value"])
def test_what_is_hidden_may_hold_anything_where_arrays_broadcast(op: str, poison: float, shared: Any) -> None:
    full = plain_case(op, 4, 5, batch=(2,))
    lengths = np.array([5, 3])
    mask = over_heads(full, np.arange(5) < lengths[:, None, None])
    inputs = {**full.inputs, shared: full.inputs[shared][0]}
    case = Case(full.op, inputs, {**full.options, "mask": mask})
    hidden = {n: (1, slice(3, None), slice(None)) for n in ("key", "value") if n != shared}
    assert_same_results(poisoned(case, poison, **hidden), case)


@every_attention
@every_poison
def test_a_single_query_does_not_see_what_is_hidden_from_it(op: str, poison: float) -> None:
    full = plain_case(op, 1, 5)
    inputs = {**full.inputs, "query": full.inputs["query"][0]}
    case = Case(full.op, inputs, {**full.options, "mask": np.array([True, True, True, False, True])})
    assert_same_results(poisoned(case, poison, key=3, value=3), case)


@pytest.mark.parametrize("op", [op for op in ATTENTIONS if weightings_of(op)])
@each("kind", WEIGHTINGS)
@each("poison", POISONS)
def test_weights_of_no_kind_know_what_is_hidden_or_padded(op: str, kind: Weighting, poison: float) -> None:
    if kind not in weightings_of(op):
        return
    case = masked(op, a_mask((4, 5), row=2, column=3), (4, 5), (2,))
    case = case._replace(options={**case.options, "weights_by": kind})
    assert_same_results(poisoned(case, poison, query=ROW, key=COLUMN, value=COLUMN), case)
    d_output = normal(3, *case.forward()[0].shape) * np.array([1.0, 0.0])[:, None, None]
    expected, padded = run(case, d_output), run(poisoned(case, poison, query=1, key=1, value=1), d_output)
    for name, gradient in expected.gradients.items():
        assert_same(case, padded.gradients[name], gradient)
        assert np.isfinite(gradient).all()
    assert_same(case, padded.output[0], expected.output[0])
    assert_same(case, padded.jvp[0], expected.jvp[0])


# A query whose incoming gradient is exactly zero


@pytest.mark.parametrize("op", BY_ROW)
@every_poison
@everywhere
@each("has_mask", [False, True])
def test_a_query_without_an_incoming_gradient_contributes_nothing_to_any_other(
    op: str, poison: float, batch: Shape, size: Shape, has_mask: bool
) -> None:
    case = masked(op, a_mask(size), size, batch) if has_mask else plain_case(op, *size, batch=batch)
    d_output = normal(3, *case.forward()[0].shape)
    d_output[of_rows(op, 2)] = 0
    name = FIRST[op]
    actual = run(poisoned(case, poison, **{name: (..., 2, slice(None))}), d_output).gradients
    expected = run(case, d_output).gradients
    for gradient in expected:
        assert_same(case, actual[gradient], expected[gradient])
    assert (actual[name][..., 2, :] == 0).all()


@every_op
@every_poison
@each("has_mask", [False, True])
@each("size", SIZES[:1], long=SIZES[1:])
@each("dtype", [np.float32, np.float64])
def test_a_padded_sample_without_an_incoming_gradient_cannot_poison_its_batch(
    op: str, poison: float, has_mask: bool, size: Shape, dtype: Any
) -> None:
    mask = np.random.default_rng(5).random(size) < 0.7
    case = masked(op, mask, size, (3,)) if has_mask else plain_case(op, *size, batch=(3,))
    case = case.map(lambda x: x.astype(dtype))
    d_output = normal(3, *case.forward()[0].shape).astype(dtype)
    d_output[1] = 0
    names = ["query", "key", "value"] if op in ATTENTIONS else [FIRST[op]]
    actual, expected = run(poisoned(case, poison, **dict.fromkeys(names, 1)), d_output), run(case, d_output)
    for name, gradient in expected.gradients.items():
        assert_same(case, actual.gradients[name], gradient)
        assert np.isfinite(gradient).all()
    for name in names:
        assert (actual.gradients[name][1] == 0).all()
    for b in (0, 2):
        assert_same(case, actual.output[b], expected.output[b])
        assert_same(case, actual.jvp[b], expected.jvp[b])


@every_attention
@every_poison
@each("shared", ["query", "key", "value"])
def test_a_padded_sample_contributes_nothing_to_what_the_batch_shares(op: str, poison: float, shared: str) -> None:
    full = plain_case(op, 4, 5, batch=(3,))
    case = full._replace(inputs={**full.inputs, shared: full.inputs[shared][0]})
    d_output = normal(3, *case.forward()[0].shape)
    d_output[1] = 0
    own = dict.fromkeys({"query", "key", "value"} - {shared}, 1)
    actual, expected = run(poisoned(case, poison, **own), d_output), run(case, d_output)
    for name, gradient in expected.gradients.items():
        assert_same(case, actual.gradients[name], gradient)


@every_attention
@alone_and_in_a_batch
def test_a_query_of_whose_incoming_gradient_one_entry_is_not_zero_still_contributes(op: str, batch: Shape) -> None:
    case = masked(op, SEEN, (4, 5), batch)
    for i in (0, 2):
        d_output = np.zeros((*batch, 4, 4))
        d_output[..., i, 1] = normal(3, *batch)
        gradients = run(case, d_output).gradients
        for name, expected in reference(case, d_output)[1].items():
            assert_alike(gradients[name], expected, 1e-14, name)
        assert (gradients["key"][..., SEEN[i], :] != 0).any()


@every_attention
def test_without_any_incoming_gradient_every_gradient_is_zero(op: str) -> None:
    case = plain_case(op, 4, 5, batch=(2,))
    for poison in (0.5, *POISONS):
        bad = poisoned(case, poison, query=0, key=(..., 1, 2), value=(..., 2, 1))
        output, cache = bad.forward()
        for name, gradient in leaves(case.op.backward(np.zeros(output.shape), cache)):
            assert (gradient == 0).all(), name


# NaN or infinity on a pair that attends


@every_attention
@each("poison", [np.inf, -np.inf])
def test_an_infinite_value_gives_infinite_outputs_to_those_who_attend_to_it(op: str, poison: float) -> None:
    case = masked(op, SEEN, (4, 5), ())
    bad = poisoned(case, poison, value=(3, 1))
    output, expected = bad.forward()[0], case.forward()[0]
    if op == "multi_head":  # the projections mix the features
        np.testing.assert_array_equal(np.isfinite(output), np.broadcast_to(~SEEN[:, 3, None], output.shape))
        expected[SEEN[:, 3]] = output[SEEN[:, 3]]
    else:
        expected[SEEN[:, 3], 1] = poison
    assert_same(case, output, expected)


@each("poison", [np.inf, -np.inf])
@each("name", ["query", "key"])
@alone_and_in_a_batch
def test_a_row_whose_largest_product_is_infinite_is_nan_and_no_other_row_is(
    poison: float, name: str, batch: Shape
) -> None:
    case = plain_case("dot_product", 4, 5, batch=batch)
    mask = np.array([[1, 1, 1, 1, 0], [1, 0, 0, 0, 0], [1, 1, 0, 1, 1], [0, 1, 0, 1, 1]], bool)
    for options in ({}, {"mask": mask}):
        for place in ((1, 2), (3, 1)):
            bad = poisoned(case._replace(options=options), poison, **{name: (..., *place)})
            visible = np.broadcast_to(options.get("mask", True), (4, 5))
            with np.errstate(invalid="ignore"):
                products = np.einsum("...ia,...ja->...ij", bad.inputs["query"], bad.inputs["key"])
            largest = np.where(visible, products, -np.inf).max(axis=-1)
            output, _ = bad.forward()
            np.testing.assert_array_equal(np.isnan(output).all(-1), ~np.isfinite(largest) & visible.any(-1))
            np.testing.assert_array_equal(np.isnan(output).any(-1), np.isnan(output).all(-1))
            rest = np.where(np.isneginf(products), -np.inf, 0)
            weightless = case._replace(options=options).forward(bias=case.inputs["bias"] + rest)[0]
            sound = np.isfinite(largest)
            assert_close(output[sound], weightless[sound], 1e-15)


def test_an_infinite_query_saturates_additive_attention_and_leaves_it_finite() -> None:
    case = plain_case("additive", 4, 5)
    bad = poisoned(case, np.inf, query=(1, 2))
    expected, _ = reference(poisoned(case, 1e300, query=(1, 2)), np.zeros((4, 4)))
    assert_close(bad.forward()[0], expected, 1e-15)


def test_an_infinite_weight_of_additive_scores_makes_the_rows_that_attend_nan() -> None:
    query, key, value = np.zeros((3, 1)), np.array([[-1.0], [1.0]]), np.array([[1.0], [2.0]])
    mask = np.array([[True, False], [True, True], [False, False]])
    output, _ = additive.forward(query, key, value, np.eye(1), np.eye(1), np.array([np.inf]), mask=mask)
    np.testing.assert_array_equal(output, [[np.nan], [np.nan], [0.0]])


# One row at a limit, in every precision


def with_mask(case: Case, mask: Array) -> Case:
    return case._replace(options={**case.options, "mask": mask})


def a_row_at_a_limit(case: Case, limit: str) -> tuple[Case, Case]:
    """The case with row 2 at a limit, and the case to which all other rows must be the same."""
    name = next(iter(case.inputs))
    if limit == "an empty row":
        mask = np.ones((4, 5), bool)
        return with_mask(case, mask & (np.arange(4) != 2)[:, None]), with_mask(case, mask)
    if limit == "NaN in a bias":
        return poisoned(case, np.nan, bias=(..., 2, 1)), case
    if limit == "a NaN row":
        return poisoned(case, np.nan, **{name: (..., 2, slice(None))}), case
    return poisoned(case, np.inf, **{"scores" if name == "scores" else "bias": (..., 2, [1, 3])}), case


LIMITS = [
    (op, options, limit)
    for op in OPS
    for options in ({}, {"dropout_p": 0.4, "rng": 1}, *({"weights_by": kind} for kind in weightings_of(op)))
    for limit in ("an empty row", "a NaN row", "plus infinity", "NaN in a bias")
    if "dropout_p" not in options or op in ("dot_product", "multi_head")
    if limit != "an empty row" or FIRST[op] == "scores" or op in ATTENTIONS  # where a row is what one query sees
    if limit != "a NaN row" or op in BY_ROW
    if limit != "plus infinity" or FIRST[op] == "scores" or op in BIASED
    if limit != "NaN in a bias" or op in BIASED
]


@pytest.mark.parametrize(("op", "options", "limit"), LIMITS)
@each("dtype", [np.float16, np.complex128], long=[np.float32, np.float64, np.longdouble, np.complex64])
@each("batch", [(2, 2)], long=[()])
def test_a_row_at_a_limit_changes_no_bit_of_any_other_and_no_dtype(
    op: str, options: dict[str, Any], limit: str, dtype: Any, batch: Shape
) -> None:
    case = plain_case(op, 4, 5, batch=batch)
    if np.dtype(dtype).kind == "c":
        case = case.map(lambda x: x + 0.3j * x[::-1])
    case = case.map(lambda x: x.astype(dtype))
    case = case._replace(options={**case.options, **options})
    tangents = tangents_of(case)
    limited, plain = a_row_at_a_limit(case, limit)
    d_output = normal(3, *case.forward()[0].shape).astype(dtype)
    actual, expected = run(limited, d_output, tangents), run(plain, d_output, tangents)
    others = [0, 1, 3]
    names = {"scores", "query", "x", "bias"} & set(actual.gradients)
    here = of_rows(op, others)
    pairs = [
        (actual.output[here], expected.output[here]),
        (actual.jvp[here], expected.jvp[here]),
        (actual.weights[..., others, :], expected.weights[..., others, :]),
        *((actual.gradients[name][..., others, :], expected.gradients[name][..., others, :]) for name in names),
    ]
    for one, other in pairs:
        assert_same(case, one, other)
    if "NaN" in limit:
        assert np.isnan(actual.output[of_rows(op, 2)]).all()
    compute = {np.dtype(np.float16): np.dtype(np.float32)}.get(np.dtype(dtype), np.dtype(dtype))
    given = {id(x) for _, x in leaves(limited.inputs)}
    for name, x in leaves(actual.cache):
        if x.dtype.kind in "fc" and id(x) not in given:
            real = name.endswith(("dropout", "scale", "epsilon", "cos", "sin"))
            assert x.dtype == (np.finfo(compute).dtype if real else compute), name
    for name, gradient in actual.gradients.items():
        assert gradient.dtype == dtype, name


# Samples of a batch that hold NaN and are hidden


def test_a_nan_row_that_nobody_in_its_own_sample_uses_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    b = rng.standard_normal((3, 40, 2))
    pairs = np.broadcast_to(rng.random((40, 40)) < 0.9, (3, 40, 40)).copy()
    pairs[1] = False  # a sample that is padded throughout
    pairs[2, :, 7:] = False
    a = np.where(pairs, rng.standard_normal(pairs.shape), 0)
    expected = a @ b
    looked_at: list[int] = []

    def spy(x: Array) -> Array:
        found = flatnonzero(x)
        looked_at.extend(found)
        return found

    flatnonzero = np.flatnonzero
    monkeypatch.setattr(np, "flatnonzero", spy)
    padded = b.copy()
    padded[1], padded[2, 7:] = np.nan, np.inf
    with quiet():
        assert_same_bits(products.product(a, padded, pairs), expected)
    assert looked_at == []
    padded[2, 4, 1] = np.nan  # which sample 2 uses, and no other holds
    with quiet():
        result = products.product(a, padded, pairs)
    assert looked_at == [4]
    expected[2, pairs[2, :, 4], 1] = np.nan
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(result), finite)
    assert_close(result[finite], expected[finite], 1e-15)


# Infinity in a bias


@every_biased
@alone_and_in_a_batch
def test_minus_infinity_in_a_bias_is_as_masked_out(op: str, batch: Shape) -> None:
    case = plain_case(op, 4, 5, batch=batch)
    hidden = poisoned(case, -np.inf, bias=(..., ~SEEN))
    by_mask = case._replace(options={**case.options, "mask": SEEN})
    assert_same_results(hidden, by_mask)
    assert (run(hidden).gradients["bias"][..., ~SEEN] == 0).all()
    for poison in POISONS:  # nobody sees key 2 but query 0
        bad = poisoned(hidden, poison, key=(..., 2, slice(None)), value=(..., 2, slice(None)))
        assert_same(case, bad.forward()[0][..., 1:, :], hidden.forward()[0][..., 1:, :])
        nothing = poisoned(hidden, poison, query=(..., 1, slice(None)))
        assert_same_results(nothing, by_mask)


@every_biased
@alone_and_in_a_batch
@each("columns", [[1], [1, 3], [0, 2, 4], [0, 1, 2, 3, 4]])
def test_plus_infinities_in_a_bias_share_the_weights_of_their_row_and_nothing_moves(
    op: str, batch: Shape, columns: list[int]
) -> None:
    case = plain_case(op, 4, 5, batch=batch)
    bad = poisoned(case, np.inf, bias=(..., 2, columns))
    results = run(bad)
    shares = np.zeros(5)
    shares[columns] = 1 / len(columns)
    weights = results.weights[..., 2, :]
    np.testing.assert_array_equal(weights, np.broadcast_to(shares, weights.shape))
    assert (results.gradients["bias"][..., 2, :] == 0).all()
    assert (results.gradients["query"][..., 2, :] == 0).all()
    if op == "dot_product":
        mean = case.inputs["value"][..., columns, :].mean(axis=-2)
        assert_close(results.output[..., 2, :], mean, 1e-15)
        moved = tangents_of(case)["value"][..., columns, :].mean(axis=-2)
        assert_close(results.jvp[..., 2, :], moved, 1e-15)
        d_output = np.random.default_rng(2).standard_normal(results.output.shape)
        only = np.zeros_like(d_output)
        only[..., 2, :] = d_output[..., 2, :]
        d_value = case.op.backward(only, results.cache).value
        expected = shares[:, None] * only[..., 2, None, :]
        assert_close(d_value, expected, 1e-15)
        assert (case.op.backward(only, results.cache).key == 0).all()


@every_biased
@each("shape", [(), (1,), (4, 1), (5,)])
def test_an_infinite_bias_of_any_shape_hides_or_takes_all(op: str, shape: Any) -> None:
    case = plain_case(op, 4, 5, batch=(2,))
    hidden = run(case._replace(inputs={**case.inputs, "bias": np.full(shape, -np.inf)}))
    assert (hidden.weights == 0).all()
    assert (hidden.gradients["bias"] == 0).all()
    limit = run(case._replace(inputs={**case.inputs, "bias": np.full(shape, np.inf)}))
    assert (limit.weights == 1 / 5).all()
    for name in ("bias", "query", "key"):
        assert (limit.gradients[name] == 0).all()


# No key or no query


# What comes back


@every_attention
@every_poison
@alone_and_in_a_batch
def test_an_incoming_gradient_that_is_not_finite_spoils_no_key_that_its_query_may_not_attend_to(
    op: str, poison: float, batch: Shape
) -> None:
    mask = np.ones((4, 5), bool)
    mask[1, 3:] = False
    case = masked(op, mask, (4, 5), batch)
    d_output = normal(7, *run(case).output.shape)
    spoiled, spared = d_output.copy(), d_output.copy()
    spoiled[..., 1, :], spared[..., 1, :] = poison, 0
    one, other = run(case, spoiled).gradients, run(case, spared).gradients
    for name in ("key", "value"):
        assert_same(case, one[name][..., 3:, :], other[name][..., 3:, :])
        assert not np.isfinite(one[name][..., :3, :]).any()
    others = [0, 2, 3]
    assert_same(case, one["query"][..., others, :], other["query"][..., others, :])


@every_attention
def test_a_tangent_of_a_value_that_is_not_finite_moves_no_query_that_may_not_attend_to_it(op: str) -> None:
    mask = np.ones((4, 5), bool)
    mask[1, 3:] = False
    case = masked(op, mask, (4, 5), ())
    _, cache = case.forward()
    tangent = np.zeros_like(case.inputs["value"])
    tangent[3:] = np.nan
    moved = case.op.jvp(cache, value=tangent)
    assert (moved[1] == 0).all()
    assert np.isnan(moved[[0, 2, 3]]).all()
