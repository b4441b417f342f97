"""Hessians, their products with vectors, and the double backward of ops."""

import itertools
from types import SimpleNamespace as Op

import numpy as np
from helpers import each

from attention_np import additive, softmax
from attention_np.gradcheck import check_hessian, check_op

from .programs import normal

A, X = normal(3, 3, seed=3), {"x": normal(3)}
BOTH = {"x": normal(3), "y": normal(2, 3, seed=1)}


def gradient(x):  # of sum(sin(A x))
    return A.T @ np.cos(A @ x)


def product(v, x):
    return -A.T @ (np.sin(A @ x) * (A @ v))


def gradients(x, y, power=2):  # of sum(x**2 y)
    return power * x * y.sum(axis=0), np.broadcast_to(x**power, y.shape)


def products(v, w, x, y, power=2):
    return power * (v * y.sum(axis=0) + x * w.sum(axis=0)), np.broadcast_to(power * x * v, y.shape)


def quartic(x):
    return 4 * x**3 + 0.2 * x


@each(
    ("first", "second", "inputs", "names"),
    [
        (gradient, product, X, ["x"]),
        (gradient, lambda v, x: -A.T @ np.diag(np.sin(A @ x)) @ A @ v, X, ["x"]),
        (gradients, products, BOTH | {"power": 2}, ["x", "y"]),
        (lambda z: {"w": z["w"] ** 3}, lambda v, z: {"w": 3 * z["w"] ** 2 * v["w"]}, {"z": {"w": normal(2)}}, ["z.w"]),
        # what is taken besides is no tangent
        (quartic, lambda v, x, damping=0.1: (np.diag(12 * x**2) + 2 * damping * np.eye(x.size)) @ v, X, ["x"]),
        (quartic, lambda v, *others, scale=1: scale * (12 * others[0] ** 2 + 0.2) * v, X, ["x"]),
    ],
)
def test_second_derivatives_that_are_right_hold(first, second, inputs, names):
    report = check_hessian(first, second, inputs)
    assert report.ok, str(report)
    assert report["symmetry"].max_relative_error < 1e-14
    assert [entry.name for entry in report] == [*names, "symmetry"]


def of_y_wrong(v, w, x, y):
    return products(v, w, x, y)[0], 0.5 * products(v, w, x, y)[1]


def of_x_without(v, w, x, y):
    return products(v, 0 * w, x, y)[0], products(v, w, x, y)[1]


@each(
    ("first", "second", "inputs", "wrong", "said"),
    [
        (gradients, of_y_wrong, BOTH, ["y", "symmetry"], None),
        (gradients, of_x_without, BOTH, ["x", "symmetry"], "the gradient of output.y is left out"),
        (gradient, lambda v, x: 1.5 * product(v, x), X, ["x"], "1.5 times"),  # as symmetric as the right one
        # gradients that are those of nothing, and the right product, and their own
        (lambda x: A @ np.cos(A @ x), product, X, ["x"], None),
        (lambda x: A @ np.cos(A @ x), lambda v, x: -A.T @ (np.sin(A @ x) * (A.T @ v)), X, ["symmetry"], None),
    ],
)
def test_what_is_wrong_is_found_where_it_is(first, second, inputs, wrong, said):
    report = check_hessian(first, second, inputs)
    assert [entry.name for entry in report if not entry.ok] == wrong
    assert said is None or said in report[wrong[0]].diagnosis
    if "symmetry" in wrong:
        none = "the products hold, and the Hessian is not symmetric: gradient is the gradient of nothing"
        lacks = "the Hessian is not symmetric: <u, H v> and <v, H u> differ"
        assert report["symmetry"].diagnosis == (lacks if first is gradients else none)


def cancelling(v, x):
    return (1e8 * v + 12 * x**2 * v) - 3 * (1e8 / 3 * v) + 0.2 * v


def on_a_grid(v, x):
    return (1e8 * v + 12 * x**2 * v) - 1e8 * v + 0.2 * v


@each("rounded", [cancelling, on_a_grid])
def test_rounding_of_a_product_is_not_taken_for_a_lack_of_symmetry(rounded):
    assert check_hessian(quartic, rounded, X)["symmetry"].ok


def of_additive(size):
    """Inputs of additive attention, with queries of a size at which its hidden units saturate."""
    query = size * np.random.default_rng(0).uniform(0.5, 1.5, (3, 4))
    inputs = {"query": query, "key": normal(5, 4), "value": normal(5, 2), "w_query": np.abs(normal(4, 3, seed=1))}
    return inputs | {"w_key": normal(4, 3, seed=2), "w_score": normal(3, seed=3)}


def with_double_backward(op, change):
    """The op, with what its double backward gives, both, changed."""
    return Op(**{**vars(op), "double_backward": lambda v, *rest: change(v, *op.double_backward(v, *rest))})


def off_by(factor, op, wrong):
    def change(_, d_d_output, gradients):
        if wrong == "d_output":
            return factor * d_d_output, gradients
        return d_d_output, gradients._replace(**{wrong: factor * getattr(gradients, wrong)})

    return with_double_backward(op, change)


SATURATED = [(softmax, {"scores": size * normal(3, 5)}, ("d_output", "scores")) for size in (1e-17, 1)]
SATURATED += [(softmax, {"scores": 400 * normal(3, 5)}, ())]  # where all is too small to judge beside the output
SATURATED += [(additive, of_additive(8), ("query",))]  # the results of which a wrong factor shows
AND_MORE = [(softmax, {"scores": 40 * normal(3, 5)}, ())]
AND_MORE += [(additive, of_additive(size), ("d_output",)) for size in (8, 10, 14, 30)]


@each(("op", "inputs", "shows"), SATURATED, long=AND_MORE)
def test_what_has_saturated_is_no_error_of_a_double_backward(op, inputs, shows):
    assert check_op(op, inputs).ok
    for wrong, factor in itertools.product(shows, (0.0, 1.5)):
        found = check_op(off_by(factor, op, wrong), inputs)["double_backward"]
        assert not found.ok, (wrong, factor)
        assert found.diagnosis.startswith("double_backward is not the gradient of backward with respect to ")
        assert wrong in found.diagnosis


CALLS = itertools.count(1)  # the third is the second at the point: the first has but one tangent
WRONG = {
    "raised ValueError: its d_d_output has the shape (2, 5), not (3, 5)": lambda _, d, g: (d[:2], g),
    "the gradient of scores has the shape (2, 5), not (3, 5)": lambda _, d, g: (d, g._replace(scores=g.scores[:2])),
    "is not the gradient of backward": lambda _, d, g: (d + (next(CALLS) == 3), g),
    "with respect to scores": lambda v, d, g: (d, g._replace(scores=g.scores + 1e-9 * v.scores[0])),
}


@each(("said", "change"), WRONG.items())
def test_what_is_wrong_with_a_double_backward_is_said(said, change):
    report = check_op(with_double_backward(softmax, change), {"scores": normal(3, 5)})
    assert said in report["double_backward"].diagnosis


def test_a_tangent_that_is_none_is_one_that_is_zero():
    op = with_double_backward(additive, lambda v, d, g: (d + (v.query is None), g))
    said = "double_backward of a gradient that is None is not that of one that is zero"
    assert check_op(op, of_additive(1))["double_backward"].diagnosis == said
