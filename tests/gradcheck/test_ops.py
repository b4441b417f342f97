from types import SimpleNamespace as Op
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import METHODS, check_op

from .programs import normal


class Weights(NamedTuple):
    w: np.ndarray
    b: np.ndarray | None = None


class Gradients(NamedTuple):
    x: Any
    weights: Any


def affine(d_w=1.0, *, jvp=1.0, jvp_of_x=1.0, jvp_of_b=1.0, gradients=Gradients):
    """An op with parameters in a NamedTuple, of which one may be left out, with its mistakes."""

    def forward(x, weights, *, scale=1.0):
        return scale * (x @ weights.w) + (0 if weights.b is None else weights.b), (x, weights, scale)

    def backward(d_output, cache):
        x, weights, scale = cache
        d_b = None if weights.b is None else d_output.sum(axis=0)
        return gradients(scale * d_output @ weights.w.T, Weights(d_w * scale * x.T @ d_output, d_b))

    def move(cache, *, x, weights):
        x0, w0, scale = cache
        moved = scale * (jvp_of_x * x @ w0.w + x0 @ weights.w)
        return jvp * (moved if weights.b is None else moved + jvp_of_b * weights.b)

    return Op(forward=forward, backward=backward, jvp=move)


def arrays(b=True, dtype=float):
    weights = Weights(normal(3, 2, seed=1, dtype=dtype), normal(2, seed=2, dtype=dtype) if b else None)
    return {"x": normal(4, 3, dtype=dtype), "weights": weights}


def without_jvp(op, **changed):
    return Op(**{"forward": op.forward, "backward": op.backward} | changed)


@each("method", [*METHODS, "auto"])
def test_arrays_in_nests_are_reported_by_their_paths_and_forward_mode_last(method):
    report = check_op(affine(), arrays(), method=method, scale=3.0)
    assert report.ok, str(report)
    assert [entry.name for entry in report] == ["x", "weights.w", "weights.b", "jvp"]
    jvp = report["jvp"]
    assert (jvp.method, jvp.worst_index, jvp.diagnosis) == ("adjoint", (), None)
    assert jvp.max_relative_error <= 1e-15
    assert jvp.analytic == pytest.approx(jvp.numerical, rel=1e-14)
    assert [entry.name for entry in check_op(affine(), arrays(b=False))] == ["x", "weights.w", "jvp"]
    assert [entry.name for entry in check_op(without_jvp(affine()), arrays())] == ["x", "weights.w", "weights.b"]


@each(
    ("op", "wrong", "said"),
    [
        (affine(1 + 1e-11), ["weights.w", "jvp"], ""),
        (affine(1 / 7.25), ["weights.w", "jvp"], "it is 0.137931034 times"),
        (affine(gradients=lambda x, _: Op(x=x)), ["weights.w", "weights.b", "jvp"], "the gradient is missing"),
        (affine(jvp=1 + 1e-13), ["jvp"], "forward mode and backward disagree"),  # no input is clearly to blame
        (affine(jvp_of_x=2), ["jvp"], "forward mode and backward disagree for x"),
        (affine(jvp_of_b=-1), ["jvp"], "forward mode and backward disagree for weights.b"),
        (affine(jvp_of_x=2, jvp_of_b=2), ["jvp"], "forward mode and backward disagree for x, weights.b"),
    ],
)
def test_what_is_wrong_backward_or_forward_is_found_and_named(op, wrong, said):
    report = check_op(op, arrays(), scale=7.25)
    assert [entry.name for entry in report if not entry.ok] == wrong
    assert said in report[wrong[0]].diagnosis
    assert wrong != ["jvp"] or said == report["jvp"].diagnosis


def test_a_jacobian_of_zero_is_held_against_zero_and_large_numbers_in_single_precision_hide_nothing():
    for gradient, ok in ((0.0, True), (1e-3, False)):
        op = Op(forward=lambda x: (0 * x, x), backward=lambda d, _, g=gradient: Op(x=g * d), jvp=lambda _, x: 0 * x)
        found = check_op(op, {"x": normal(4)})["jvp"]
        assert (found.ok, found.numerical, found.max_relative_error) == (ok, 0, abs(found.analytic))
        assert (found.analytic != 0) is not ok
    x, weights = arrays(dtype="float32").values()
    large = {"x": x * np.float32(1e20), "weights": Weights(weights.w * np.float32(1e5))}
    assert [check_op(affine(jvp=factor), large)["jvp"].ok for factor in (1, 1.5)] == [True, False]


def test_an_op_writes_to_copies_and_draws_the_same_at_every_evaluation():
    def forward(x, *, scales, rng):
        output = x * scales.pop() * rng.random(x.shape)
        x[...] = 0
        return output, output

    kept, rng = [2.0, 3.0], np.random.default_rng(8)
    inputs, factor = {"x": normal(4)}, 3 * np.random.default_rng(8).random(4)
    op = Op(forward=forward, backward=lambda d, _: Op(x=factor * d), jvp=lambda _, x: factor * x)
    report = check_op(op, inputs, scales=kept, rng=rng)
    assert (report["x"].wrong, report["x"].diagnosis) == (0, "forward writes to this input")
    assert report["jvp"].ok
    assert (kept, rng.random()) == ([2.0, 3.0], np.random.default_rng(8).random())
    np.testing.assert_array_equal(inputs["x"], normal(4))


def test_an_op_takes_the_options_of_check(tmp_path):
    options = {"max_entries": 4, "checkpoint": tmp_path / "op", "method": "central"}
    report = check_op(affine(), arrays(), **options)
    assert report.ok
    assert (report["x"].checked, report["x"].method) == (4, "central")
    assert (tmp_path / "op").exists()
    other = check_op(affine(), arrays(), cotangent_rng=2, method="central")
    assert all(report[name].numerical != other[name].numerical for name in ("x", "jvp"))
    for name, value in {"rtol": -1.0, "cotangent_rng": -1, "executor": "threads", "vectorized": ["y"]}.items():
        with pytest.raises((TypeError, ValueError), match=f"^{name.removeprefix('cotangent_')} "):
            check_op(affine(), arrays(), **{name: value})


def test_what_an_op_calls_vectorized_goes_in_batches_where_a_trial_shows_it():
    calls, inputs = [], {"x": normal(20, 10), "b": normal(20, 10, seed=1)}

    def forward(x, b):
        calls.append(1)
        assert b.ndim <= x.ndim  # b takes another axis along with x alone
        return np.sin(x + b), x + b

    counts = []
    op = Op(forward=forward, backward=lambda d, z: Op(x=d * np.cos(z), b=d * np.cos(z)), VECTORIZED=("x", "b"))
    for names in (None, []):
        calls.clear()
        assert check_op(op, inputs, vectorized=names).ok
        counts.append(len(calls))
    assert counts[0] < counts[1] / 3


def test_what_is_no_gradient_by_names_and_no_real_array_is_refused_and_the_rest_passed_on():
    op = without_jvp(affine(), backward=lambda *question: tuple(affine().backward(*question)))
    with pytest.raises(TypeError, match=r"must return a NamedTuple .* \(x, weights\), not a plain tuple$"):
        check_op(op, arrays())

    op = Op(forward=lambda x, rows, nothing: (x[rows], nothing), backward=lambda d, _: Op(x=d[[1, 2, 0]]))
    inputs = {"x": normal(3), "rows": np.array([2, 0, 1]), "nothing": None}
    assert [(entry.name, entry.ok) for entry in check_op(op, inputs)] == [("x", True)]
    with pytest.raises(TypeError, match=r"^input x is complex: ops are checked on real arrays"):
        check_op(op, inputs | {"x": normal(3) + 1j})
