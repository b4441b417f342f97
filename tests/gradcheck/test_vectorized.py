import types

import numpy as np
import pytest
from helpers import each, some_of

import attention_np as anp
from attention_np.gradcheck import METHODS, check, check_op

from .planted import arrays
from .programs import (
    Watched,
    back_through_softmax,
    bilinear,
    bilinear_backward,
    normal,
    real_only,
    softmax,
    square_inputs,
)

ALL = [*METHODS, "auto"]


def same(report, other, within=1e-14):
    """Whether two reports say the same, but for rounding."""
    assert [entry.name for entry in report] == [entry.name for entry in other]
    for entry, another in zip(report, other, strict=True):
        assert (entry.ok, entry.method, entry.diagnosis) == (another.ok, another.method, another.diagnosis)
        assert (entry.wrong, entry.undecidable) == (another.wrong, another.undecidable)
        if entry.details is not None:
            found, expected = entry.details.numerical, another.details.numerical
            np.testing.assert_allclose(found, expected, rtol=0, atol=within * np.abs(expected).max())
            np.testing.assert_array_equal(entry.details.verdict, another.details.verdict)
    return True


def scores_of(query, key, bias):
    return query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1]) + bias


def attention(query, key, value, bias):
    return softmax(scores_of(query, key, bias)) @ value


def attention_backward(d_output, query, key, value, bias):
    """For arrays of any number of leading axes, and a query of no other."""
    q, d = np.atleast_2d(query), d_output if query.ndim > 1 else d_output[..., np.newaxis, :]
    scores = scores_of(q, key, bias)
    d_bias = back_through_softmax(d @ np.swapaxes(value, -1, -2), scores)
    d_scores = d_bias / np.sqrt(q.shape[-1])
    gradients = d_scores @ key, np.swapaxes(d_scores, -1, -2) @ q, np.swapaxes(softmax(scores), -1, -2) @ d, d_bias
    return tuple(summed_to(x.shape, g) for x, g in zip((query, key, value, bias), gradients, strict=True))


def summed_to(shape, gradient):
    aligned = (1,) * (gradient.ndim - len(shape)) + shape
    axes = tuple(k for k, n in enumerate(aligned) if n == 1)
    return gradient.sum(axis=axes, keepdims=True).reshape(shape)


LEADING_AXES = {
    "none": ((3, 4), (5, 4), (5, 2), (3, 5)),
    "two": ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 2), (2, 2, 3, 5)),
    "of the query alone": ((2, 3, 4), (5, 4), (5, 2), (3, 5)),
    "of the bias alone": ((3, 4), (5, 4), (5, 2), (2, 3, 5)),
    "more of the key than of the value": ((3, 4), (2, 1, 5, 4), (3, 5, 2), (3, 5)),
    "a single query": ((4,), (5, 4), (5, 2), (5,)),
    "a bias that is broadcast along the queries": ((2, 3, 4), (2, 5, 4), (2, 5, 2), (1, 5)),
}


def attention_inputs(which):
    shapes = zip(("query", "key", "value", "bias"), LEADING_AXES[which], strict=True)
    return {name: normal(*shape, seed=k) for k, (name, shape) in enumerate(shapes)}


@pytest.mark.parametrize("method", ["complex-step", pytest.param("central", marks=pytest.mark.long)])
@each("which", *some_of(LEADING_AXES, 3))
def test_inputs_that_carry_one_more_leading_axis_give_the_same_report_in_fewer_calls(which, method):
    inputs = attention_inputs(which)

    def wrong(*arrays):
        gradients = attention_backward(*arrays)
        return *gradients[:2], gradients[2] * (1 + 1e-6), gradients[3]

    for backward in (attention_backward, wrong):
        one_by_one, at_once = Watched(attention), Watched(attention)
        report = check(one_by_one, backward, inputs, method=method)
        batched = check(at_once, backward, inputs, method=method, vectorized=iter(inputs))
        assert same(batched, report, 1e-13 if method == "complex-step" else 1e-8)
        assert batched["value"].ok == (backward is attention_backward)
        assert len(at_once.seen) < 0.7 * len(one_by_one.seen)


def test_only_the_inputs_that_are_named_carry_another_axis():
    counted = Watched(lambda x, w: np.tanh(x @ w))
    inputs = {"long name": normal(5, 3), "w": normal(3, 2, seed=1)}

    def backward(d, x, w):
        z = d / np.cosh(x @ w) ** 2
        return z @ w.T, x.T @ z

    assert check(counted, backward, inputs, vectorized="long name").ok
    assert {x.ndim for x, _ in counted.seen} == {2, 3}
    assert {w.ndim for _, w in counted.seen} == {2}


@each("method", METHODS)
def test_the_memory_limit_bounds_what_goes_through_at_once(method):
    inputs = {"x": normal(16, 16)}
    reports, rows = [], []
    for memory in (2**28, 2**18, 1):
        counted = Watched(np.sin)
        options = {"vectorized": ["x"], "memory": memory, "method": method}
        reports.append(check(counted, lambda d, x: d * np.cos(x), inputs, **options))
        rows.append(max(len(arrays[0]) for arrays in counted.seen if arrays[0].ndim == 3))
    assert rows[0] == (256 if method == "complex-step" else 6 * 256)
    assert 1 < rows[1] <= 2**18 // (2 * 16 * 256)
    assert rows[2] <= 3  # of the trial
    assert reports[0].ok
    assert reports[0] == reports[1] == reports[2]


REFUSED = {
    "a sum over everything": (np.sum, "it computes something else then"),
    "a norm of the whole": (lambda x: x / np.sqrt((x**2).sum()), "it computes something else then"),
    "the largest of all": (lambda x: x / x.max(), "it computes something else then"),
    "a mean over the first axis": (lambda x: x - x.mean(axis=0), "it computes something else then"),
    "a reshape": (lambda x: x.reshape(3, 4) * 2, "it raises ValueError: cannot reshape array of size 24 into .*"),
    "a transpose": (lambda x: x.T * x.T, "it returns an array of shape .*, where .* is needed"),
    "einsum": (lambda x: np.einsum("ij->ij", x) * 2, "it raises ValueError: .*einstein sum.*"),
    "a shape that is unpacked": (lambda x: (lambda n, m: x * n / m)(*x.shape), "it raises TypeError: .*"),
}


@each("what", REFUSED)
def test_a_function_that_does_not_take_another_axis_is_refused_in_one_sentence(what):
    forward, reason = REFUSED[what]
    begins = "^vectorized names x, but forward does not take one more leading axis there: "
    with pytest.raises(ValueError, match=begins + reason + r" \(x\.shape=\(3, 4\)\)$") as raised:
        check(forward, lambda _, x: np.zeros_like(x), {"x": normal(3, 4)}, vectorized=["x"])
    assert "\n" not in str(raised.value)


@each("names", ["z", ["x", "z"]])
def test_a_name_that_is_no_input_is_refused(names):
    with pytest.raises(ValueError, match=r"^vectorized names 'z', which is not among the inputs: x, y$"):
        check(bilinear, bilinear_backward, square_inputs(), vectorized=names)


QKV = ("query", "key", "value")
ADDITIVE = arrays(0, query=(3, 4), key=(5, 4), value=(5, 2), w_query=(4, 3), w_key=(4, 3), w_score=(3,))
PARAMETERS = anp.multi_head.Parameters(*(normal(4, 4, seed=k) for k in range(4)))
OPS = {
    "dot-product": (anp.dot_product, attention_inputs("two") | {"bias": normal(3, 5)}, {}),
    "softmax": (anp.softmax, {"scores": normal(3, 4)}, {"axis": -1}),
    "additive": (anp.additive, ADDITIVE, {}),
    "multi-head": (
        anp.multi_head,
        arrays(0, **dict.fromkeys(QKV, (3, 4)), bias=(3, 3)) | {"parameters": PARAMETERS},
        {"num_heads": 2},
    ),
}


@each("name", OPS)
def test_an_op_is_checked_with_the_inputs_that_it_calls_vectorized(name):
    op, inputs, options = OPS[name]
    calls, reports = [], []
    for vectorized in (None, ()):
        counted = Watched(op.forward)
        watched = types.SimpleNamespace(forward=counted, backward=op.backward, jvp=op.jvp, VECTORIZED=op.VECTORIZED)
        reports.append(check_op(watched, inputs, vectorized=vectorized, **options))
        calls.append(len(counted.seen))
    assert reports[0].ok
    assert same(*reports, 1e-13)
    assert calls[1] - calls[0] > 0.8 * sum(inputs[name].size for name in op.VECTORIZED if name in inputs)


def test_an_op_with_dropout_takes_no_other_axis_and_is_checked_one_by_one():
    inputs = attention_inputs("none")
    options = {"dropout_p": 0.5, "rng": 3}
    report = check_op(anp.dot_product, inputs, **options)
    assert report.ok
    assert report == check_op(anp.dot_product, inputs, vectorized=(), **options)
    with pytest.raises(ValueError, match=r"^vectorized names query, but forward does not take one more leading axis"):
        check_op(anp.dot_product, inputs, vectorized=["query"], **options)


def test_a_function_that_refuses_complex_arrays_goes_in_batches_all_the_same():
    counted = Watched(real_only(np.sin))
    report = check(counted, lambda d, x: d * np.cos(x), {"x": normal(3, 4)}, vectorized=["x"])
    assert (report.ok, report["x"].method) == (True, "central")
    assert (12 * 6, 3, 4) in {x.shape for (x,) in counted.seen}
