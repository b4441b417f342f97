import copy
import itertools
import json
import types
from typing import NamedTuple

import numpy as np
import pytest
from helpers import each

from attention_np import additive, dot_product, softmax
from attention_np.gradcheck import METHODS, NotAnalyticError, check, check_op, checking, ops
from attention_np.gradcheck.checking import check_by

from .programs import Watched, normal

ALL = [*METHODS, "auto"]


# An op for check_op, with parameters in a NamedTuple and an input that may be left out.


class Weights(NamedTuple):
    w: np.ndarray
    b: np.ndarray | None = None


class AffineGradients(NamedTuple):
    x: np.ndarray
    weights: Weights


def affine_op(d_w_factor=1.0, jvp_factor=1.0, *, with_jvp=True, gradients=AffineGradients):
    def forward(x, weights, *, scale=1.0):
        output = (x @ weights.w) * scale + (0 if weights.b is None else weights.b)
        return output, (x, weights, scale)

    def backward(d_output, cache):
        x, weights, scale = cache
        d_b = None if weights.b is None else d_output.sum(axis=0)
        return gradients(scale * d_output @ weights.w.T, Weights(d_w_factor * scale * x.T @ d_output, d_b))

    def jvp(cache, *, x, weights):
        x0, w0, scale = cache
        moved = scale * (x @ w0.w + x0 @ weights.w)
        return jvp_factor * (moved if weights.b is None else moved + weights.b)

    return types.SimpleNamespace(forward=forward, backward=backward, **({"jvp": jvp} if with_jvp else {}))


def affine_inputs(b=True):
    return {"x": normal(4, 3), "weights": Weights(normal(3, 2, seed=1), normal(2, seed=2) if b else None)}


@each("method", ALL)
def test_check_op_reports_nested_arrays_by_dotted_names_and_forward_mode_last(method):
    report = check_op(affine_op(), affine_inputs(), method=method, scale=3.0)
    assert report.ok, str(report)
    assert [entry.name for entry in report] == ["x", "weights.w", "weights.b", "jvp"]
    assert [entry.diagnosis for entry in report] == [None] * 4
    assert (report["jvp"].method, report["jvp"].worst_index) == ("adjoint", ())
    assert report["jvp"].max_relative_error <= 1e-15
    assert report["jvp"].analytic == pytest.approx(report["jvp"].numerical, rel=1e-14)
    json.dumps(report.to_dict(), allow_nan=False)


def test_check_op_leaves_alone_what_is_none_and_does_without_forward_mode():
    assert [entry.name for entry in check_op(affine_op(), affine_inputs(b=False))] == ["x", "weights.w", "jvp"]
    report = check_op(affine_op(with_jvp=False), affine_inputs())
    assert [entry.name for entry in report] == ["x", "weights.w", "weights.b"]


def test_check_op_finds_what_is_wrong_backward_and_forward():
    report = check_op(affine_op(d_w_factor=1 + 1e-12), affine_inputs())
    assert [(entry.name, entry.ok) for entry in report][:3] == [("x", True), ("weights.w", False), ("weights.b", True)]
    report = check_op(affine_op(jvp_factor=1 + 1e-13), affine_inputs())
    assert [entry.ok for entry in report] == [True, True, True, False]
    assert report["jvp"].diagnosis == "forward mode and backward disagree"  # no input is clearly to blame
    report = check_op(affine_op(gradients=lambda x, _: types.SimpleNamespace(x=x)), affine_inputs())
    assert report["weights.w"].diagnosis == "the gradient is missing"


def test_check_op_finds_an_op_that_writes_to_its_inputs_and_lets_it_write_to_copies():
    right = affine_op()

    def forward(x, weights):
        output, (x0, *rest) = right.forward(x, weights)
        cache = x0.copy(), *rest
        x[...] = 0
        return output, cache

    inputs = affine_inputs()
    op = types.SimpleNamespace(forward=forward, backward=right.backward, jvp=right.jvp)
    assert check_op(op, inputs)["x"].diagnosis == "forward writes to this input"
    np.testing.assert_array_equal(inputs["x"], affine_inputs()["x"])


def test_check_op_draws_the_same_dropout_at_every_evaluation():
    inputs = {"query": normal(3, 4), "key": normal(5, 4, seed=1), "value": normal(5, 2, seed=2)}
    generator = np.random.default_rng(8)
    assert check_op(dot_product, inputs, dropout_p=0.5, rng=generator).ok
    assert generator.random() == np.random.default_rng(8).random()


def test_check_op_takes_the_seed_of_the_cotangent_and_of_the_tangents():
    first, again, other = (check_op(affine_op(), affine_inputs(), cotangent_rng=seed) for seed in (1, 1, 2))
    assert first == again
    assert check_op(affine_op(), affine_inputs()) == check_op(affine_op(), affine_inputs(), cotangent_rng=0)
    for name in ("x", "jvp"):
        assert first[name].numerical != other[name].numerical


def test_check_op_names_the_inputs_for_which_forward_mode_is_wrong():
    def op(x_factor, b_factor):
        right = affine_op()

        def jvp(cache, *, x, weights):
            b = None if weights.b is None else b_factor * weights.b
            return right.jvp(cache, x=x_factor * x, weights=Weights(weights.w, b))

        return types.SimpleNamespace(forward=right.forward, backward=right.backward, jvp=jvp)

    report = check_op(op(2, 1), affine_inputs())
    assert [entry.ok for entry in report] == [True, True, True, False]
    assert report["jvp"].diagnosis == "forward mode and backward disagree for x"
    assert check_op(op(1, -1), affine_inputs())["jvp"].diagnosis.endswith(" for weights.b")
    assert check_op(op(2, 2), affine_inputs())["jvp"].diagnosis.endswith(" for x, weights.b")
    assert check_op(op(1, 1), affine_inputs()).ok


def test_check_op_recognises_an_option_in_a_wrong_factor():
    report = check_op(affine_op(d_w_factor=1 / 7.25), affine_inputs(), scale=7.25)
    assert "scale" in report["weights.w"].diagnosis
    assert report["x"].ok


def test_check_op_takes_the_options_of_check(tmp_path, monkeypatch):
    asked, track = [], checking.track
    monkeypatch.setattr(checking, "track", lambda *args: asked.append(args[2]) or track(*args))
    path = tmp_path / "op.json"
    options = {"max_entries": 4, "directions": 3, "checkpoint": path, "method": "central", "progress": False}
    report = check_op(affine_op(), affine_inputs(), **options)
    assert report.ok
    assert report["x"].checked == 4
    assert (report["x"].escape.directions, report["x"].method) == (3, "central")
    assert path.exists()
    assert asked == [False]


def test_check_op_gives_each_evaluation_options_of_its_own():
    def forward(x, *, scales):
        return x * scales.pop(), x

    op = types.SimpleNamespace(
        forward=forward, backward=lambda d, _: types.SimpleNamespace(x=3 * d), jvp=lambda _, x: 3 * x
    )
    scales = [2.0, 3.0]
    assert check_op(op, {"x": normal(4)}, scales=scales).ok
    assert scales == [2.0, 3.0]


@each("dtype", ["float32", "float64"])
def test_an_input_that_takes_another_axis_along_with_another_goes_in_batches_too(dtype):
    """A bias that must not have more axes than what it is added to takes another one along with that alone."""
    calls, inputs = [], {"x": normal(20, 10, dtype=dtype), "b": normal(20, 10, seed=1, dtype=dtype)}

    def forward(x, b):
        calls.append(1)
        if b.ndim > x.ndim:
            raise ValueError("b has more axes than x")
        return np.sin(x + b), x + b

    def backward(d_output, z):
        return types.SimpleNamespace(x=d_output * np.cos(z), b=d_output * np.cos(z))

    op, counts = types.SimpleNamespace(forward=forward, backward=backward, VECTORIZED=("x", "b")), []
    for names in (None, []):
        calls.clear()
        assert check_op(op, inputs, vectorized=names).ok
        counts.append(len(calls))
    assert counts[0] < counts[1] / 3


def test_a_gradient_of_an_op_whose_output_does_not_move_is_held_against_zero():
    def op_with(gradient):
        return types.SimpleNamespace(
            forward=lambda x: (0 * x, x),
            backward=lambda d_output, _: types.SimpleNamespace(x=gradient * d_output),
            jvp=lambda _, x: 0 * x,
        )

    assert check_op(op_with(0.0), {"x": normal(4)})["jvp"].ok
    found = check_op(op_with(1e-3), {"x": normal(4)})["jvp"]
    assert (found.ok, found.numerical) == (False, 0)
    assert found.max_relative_error == abs(found.analytic) > 0
    assert found.diagnosis == "forward mode and backward disagree for x"


@each("dtype", ["float32", "float64"])
def test_an_op_is_given_gradients_and_tangents_of_its_own_dtypes(dtype):
    op, seen = affine_op(), set()

    def jvp(cache, *, x, weights):
        seen.update([x.dtype, weights.w.dtype])
        return op.jvp(cache, x=x, weights=weights)

    watched = Watched(op.backward)
    inputs = {"x": normal(4, 3, dtype=dtype), "weights": Weights(normal(3, 2, seed=1, dtype=dtype))}
    report = check_op(
        types.SimpleNamespace(forward=op.forward, backward=watched, jvp=jvp), inputs, method="complex-step"
    )
    assert report["jvp"].ok
    assert seen | {d_output.dtype for d_output, *_ in watched.seen} == {np.dtype(dtype)}


@each(
    "option",
    [
        {"method": "backward"},
        {"rtol": -1.0},
        {"cotangent_rng": -1},
        {"executor": "threads"},
        {"vectorized": ["y"]},
        {"memory": 0},
        {"max_entries": 0},
        {"directions": 0},
    ],
)
def test_check_op_refuses_the_options_that_check_refuses(option):
    with pytest.raises((TypeError, ValueError), match=f"^{next(iter(option)).removeprefix('cotangent_')} "):
        check_op(affine_op(), affine_inputs(), **option)


@each("op", [dot_product, affine_op()])
def test_the_functions_of_an_op_are_the_same_wherever_they_are_made_again(op):
    inputs = affine_inputs()
    options = {"scale": 3.0}
    if op is dot_product:
        inputs = {"query": normal(3, 4), "key": normal(5, 4, seed=1), "value": normal(5, 2, seed=2)}
    functions = ops._OpFunctions(op, tuple(inputs), options, {})
    again = copy.copy(functions)
    assert again is not functions
    assert (again.op, again.names, again.options, again.makers) == (op, tuple(inputs), options, {})


def test_a_plain_tuple_of_gradients_is_refused_by_its_name():
    op = affine_op()
    op = types.SimpleNamespace(forward=op.forward, backward=lambda *question: tuple(affine_op().backward(*question)))
    with pytest.raises(TypeError, match=r"must return a NamedTuple .* \(x, weights\), not a plain tuple$"):
        check_op(op, affine_inputs())


def test_what_holds_no_floating_point_numbers_is_passed_on():
    def forward(x, rows, nothing):
        assert nothing is None
        return x[rows], (x.shape, rows)

    def backward(d_output, cache):
        d_x = np.zeros(cache[0])
        np.add.at(d_x, cache[1], d_output)
        return types.SimpleNamespace(x=d_x)

    inputs = {"x": normal(3), "rows": np.array([2, 0, 2]), "nothing": None}
    (entry,) = check_op(types.SimpleNamespace(forward=forward, backward=backward), inputs)
    assert (entry.name, entry.ok) == ("x", True)
    with pytest.raises(TypeError, match=r"^input x is complex: ops are checked on real arrays"):
        check_op(types.SimpleNamespace(forward=forward, backward=backward), inputs | {"x": normal(3) + 1j})


def test_the_rounding_of_a_sum_is_not_what_forward_mode_is_checked_for():
    if np.finfo(np.longdouble).nmant < 60:
        pytest.skip("there is no extended precision on this machine")
    ones, terms = np.ones(3), np.array([2.0**60, 1.0, -(2.0**60)])
    assert ops._dot(ones, terms) == ops._dot(terms, ones) == 1


def test_large_numbers_of_single_precision_do_not_hide_that_forward_mode_is_wrong():
    inputs = {
        "x": normal(4, 3, dtype="float32") * np.float32(1e20),
        "weights": Weights(normal(3, 2, seed=1, dtype="float32") * np.float32(1e5)),
    }
    assert not check_op(affine_op(jvp_factor=1.5), inputs)["jvp"].ok


def of_additive(size):
    """Inputs of additive attention, with queries of a size at which its hidden units saturate."""
    query = size * np.random.default_rng(0).uniform(0.5, 1.5, (3, 4))
    inputs = {"query": query, "key": normal(5, 4), "value": normal(5, 2), "w_query": np.abs(normal(4, 3, seed=1))}
    return inputs | {"w_key": normal(4, 3, seed=2), "w_score": normal(3, seed=3)}


def off_by(factor, op, wrong):
    """The op, with one of the results of its double backward times a factor."""

    def double_backward(v, d_output, cache):
        d_d_output, gradients = op.double_backward(v, d_output, cache)
        if wrong == "d_output":
            return factor * d_d_output, gradients
        return d_d_output, gradients._replace(**{wrong: factor * getattr(gradients, wrong)})

    return types.SimpleNamespace(**{**vars(op), "double_backward": double_backward})


SATURATED = [  # and the results of which a wrong factor shows
    *((softmax, {"scores": size * normal(3, 5)}, ("d_output", "scores")) for size in (1e-17, 400)),
    (additive, of_additive(8), ("query",)),
]
AND_MORE = [(softmax, {"scores": 40 * normal(3, 5)}, ("d_output", "scores"))]
AND_MORE += [(additive, of_additive(8), ("d_output", "value"))]
AND_MORE += [(additive, of_additive(size), ("d_output",)) for size in (10, 14, 30)]


@each(("op", "inputs", "shows"), SATURATED, long=AND_MORE)
def test_what_has_saturated_is_no_error_of_a_double_backward(op, inputs, shows):
    assert check_op(op, inputs).ok
    for wrong, factor in itertools.product(shows, (0.0, 1.5)):
        assert not check_op(off_by(factor, op, wrong), inputs)["double_backward"].ok, (wrong, factor)


def test_a_double_backward_that_is_zero_in_single_precision_is_so_times_any_factor():
    scores = 400 * normal(3, 5, dtype="float32")
    _, cache = softmax.forward(scores)
    for result in softmax.double_backward(softmax.Gradients(scores), scores, cache):
        assert not np.any(result)
    assert check_op(off_by(1.5, softmax, "scores"), {"scores": scores})["double_backward"].ok


def test_a_double_backward_that_holds_by_its_last_bits_is_asked_for_its_answers_alone():
    asked = []

    def double_backward(v, d_output, cache):
        asked.append(v)
        return softmax.double_backward(v, d_output, cache)

    op = types.SimpleNamespace(**{**vars(softmax), "double_backward": double_backward})
    assert check_op(op, {"scores": normal(3, 5)}).ok
    assert len(asked) == 3  # along two tangents, and of each input alone


def test_of_both_methods_differences_find_what_the_complex_step_alone_is_suspected_of():
    def forward(x):
        return np.array([1e9 * (x[:-1] ** 2).sum() + (x[-1] * np.conj(x[-1])).real])

    asked = forward, lambda d, x: d * np.append(2e9 * x[:-1], 0), {"x": np.linspace(0.5, 1.2, 8)}
    with pytest.raises(NotAnalyticError, match=r"^input x: the complex step gives the slope 0, differences "):
        check(*asked, method="complex-step")
    assert [report.ok for report in check_by(METHODS, *asked)] == [True, False]
