"""Arguments that are nests or no arrays at all, several outputs, and complex arrays: each is checked as it is."""

from typing import NamedTuple

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check
from attention_np.gradcheck.problem.nests import Nest, filled, leaves

from ..programs import Pickling, normal


class Dense(NamedTuple):
    w: np.ndarray
    b: np.ndarray | None = None


class Twice(NamedTuple):
    outer: np.ndarray
    inner: Dense


def test_a_nest_is_taken_apart_and_put_together_again():
    trees = {
        "x": normal(4),
        "twice": Twice(normal(2), Dense(normal(3, 2))),
        "layers": [{"w": normal(2)}, (1.5, "tanh")],
        "none": None,
    }
    nest = Nest(trees)
    assert list(nest.arrays) == ["x", "twice.outer", "twice.inner.w", "layers.0.w"]
    assert nest.arrays["twice.inner.w"] is trees["twice"].inner.w
    again = nest.filled(nest.arrays.values())
    assert again == trees
    assert [type(x) for x in (again["twice"], again["layers"], again["layers"][1])] == [Twice, list, tuple]
    alone = nest.filled(nest.arrays.values(), alone=True)
    assert (alone["layers"][1], alone["twice"].inner.b) == ((None, None), None)
    assert filled(trees, (leaf for _, leaf in leaves(trees, ""))) == trees


def network(x, labels, layers, activation, nothing=None):
    """The losses of two layers at the places of the labels, and what the second gives."""
    assert nothing is None
    hidden = {"tanh": np.tanh}[activation](x @ layers[0]["w"])
    output = hidden @ layers[1]["w"]
    return output[np.arange(len(labels)), labels].sum(), {"output": output, "labels": labels}


def network_backward(d_outputs, x, labels, layers, activation, nothing=None):
    d_loss, rest = d_outputs
    assert rest["labels"] is nothing
    assert activation == "tanh"
    hidden = np.tanh(x @ layers[0]["w"])
    d_output = rest["output"].copy()
    d_output[np.arange(len(labels)), labels] += d_loss
    d_hidden = d_output @ layers[1]["w"].T * (1 - hidden**2)
    return d_hidden @ layers[0]["w"].T, [{"w": x.T @ d_hidden}, {"w": hidden.T @ d_output}]


def network_inputs():
    layers = [{"w": normal(4, 3), "rate": 0.1}, {"w": normal(3, 2, seed=1)}]
    return {"x": normal(2, 4, seed=2), "labels": np.array([1, 0]), "layers": layers, "activation": "tanh", "last": None}


def for_each_argument(*question):
    d_x, d_layers = network_backward(*question)
    return d_x, None, d_layers, None, None


@each("backward", [network_backward, for_each_argument])
def test_nested_inputs_and_several_outputs_are_checked_by_their_paths_and_the_rest_is_passed_on(backward):
    report = check(network, backward, network_inputs())
    assert [entry.name for entry in report] == ["x", "layers.0.w", "layers.1.w"]
    assert report.ok, str(report)
    assert {entry.method for entry in report} == {"complex-step"}
    elsewhere = check(network, backward, network_inputs(), executor=(executor := Pickling()))
    assert executor.sizes
    assert str(elsewhere) == str(report)


def test_the_gradient_of_one_nest_may_stand_alone_and_a_tuple_will_do_for_a_named_one():
    sides, one = [normal(3), normal(3, seed=1)], {"sides": [normal(3)]}
    for inputs in ({"sides": sides}, {"sides": tuple(sides)}, {"sides": Twice(*sides)}):
        for backward in (lambda d, s: [d * s[1], d * s[0]], lambda d, s: ([d * s[1], d * s[0]],)):
            assert check(lambda sides: sides[0] * sides[1], backward, inputs).ok
    for backward in (lambda d, s: [2 * d * s[0]], lambda d, s: ([2 * d * s[0]],)):
        assert check(lambda sides: sides[0] ** 2, backward, one).ok
    line = {"x": normal(4, 3), "w": normal(3, 2), "b": normal(2), "flag": True}
    assert check(lambda x, w, b, _: x @ w + b, lambda d, x, w, *_: (d @ w.T, [x.T @ d, d.sum(axis=0)]), line).ok


def test_a_leaf_that_is_left_out_is_missing_and_another_form_is_refused():
    def backward(d_y, x, dense):
        return d_y @ dense.w.T, (x.T @ d_y, d_y.sum(axis=0))

    def returning(of):
        return lambda *question: (backward(*question)[0], of(backward(*question)[1]))

    inputs = {"x": normal(4, 3), "dense": Dense(normal(3, 2), normal(2))}

    def checked(backward):
        return check(lambda x, dense: x @ dense.w + dense.b, backward, inputs)

    assert checked(backward).ok
    report = checked(returning(lambda d: {"w": d[0]}))
    assert (report["dense.w"].ok, report["dense.b"].diagnosis) == (True, "the gradient is missing")
    for of, kind in ((lambda d: d[0], "ndarray"), (lambda _: {"v": 1}, "dict"), (lambda d: (*d, 0.0), "tuple")):
        message = rf"^the gradient of dense must be a Dense of w, b, as it is itself, not a {kind}$"
        with pytest.raises(ValueError, match=message):
            checked(returning(of))


@each(("constant", "said"), [(np.arange(3), "n, a constant of int64"), ({"a": 0.5}, "n.a, a constant of float64")])
def test_a_gradient_by_what_is_a_constant_is_refused_unless_it_is_zero(constant, said):
    def backward(factor):
        return lambda d, x, n: (d, {"a": factor * d.sum()} if isinstance(n, dict) else factor * d * x)

    inputs = {"x": normal(3), "n": constant}
    with pytest.raises(TypeError, match=f"^backward returns a gradient for {said}: pass an array of float64$"):
        check(lambda x, _: 1 * x, backward(1.0), inputs)
    assert check(lambda x, _: 1 * x, backward(0.0), inputs).ok


@each(
    ("forward", "backward"),
    [
        (lambda z: z**3, lambda d, z: d * np.conj(3 * z**2)),
        (lambda z: (z.real, np.conj(z)), lambda d, _: d[0] + np.conj(d[1])),
    ],
)
def test_complex_arrays_have_gradients_by_the_convention_of_pytorch(forward, backward):
    z = normal(3) + 1j * normal(3, seed=1)
    report = check(forward, backward, {"z": z})
    assert [entry.name for entry in report] == ["z.real", "z.imag"]
    assert report.ok, str(report)
    conjugate = check(forward, lambda d, z: np.conj(backward(d, z)), {"z": z})
    assert (conjugate["z.real"].ok, conjugate["z.imag"].ok) == (True, False)


@each(
    ("later", "now"),
    [(lambda x: [x], "output.1 is (3,), then missing"), (lambda x: [x, x[:2]], r"output.1 is (3,), then (2,)")],
)
def test_outputs_that_are_others_at_each_call_are_refused(later, now):
    calls = []

    def forward(x):
        calls.append(1)
        return [x, x] if len(calls) < 3 else later(x)

    with pytest.raises(ValueError, match="same outputs") as raised:
        check(forward, lambda d, _: d[0] + d[1], {"x": normal(3)})
    assert str(raised.value) == f"forward must return the same outputs at each call: {now}"


@each(
    ("arguments", "error", "message"),
    [
        (
            {"forward": lambda x: {"n": x.size}},
            TypeError,
            "^forward must return at least one array of real floating-point numbers$",
        ),
        (
            {"inputs": {"x": np.ones(2), "y": [[1.0], [1.0, 2.0]]}},
            TypeError,
            "^input y must be an array, not a list of uneven lists$",
        ),
        (
            {"inputs": {"a": [np.ones(2)], "a.0": np.ones(2)}},
            ValueError,
            r"^inputs hold two arrays that would both be called a\.0$",
        ),
        (
            {"backward": lambda d, cache: d * cache},
            TypeError,
            r"^backward takes a cache: use gradcheck.check_layer\(\(forward, backward\), inputs\)$",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(arguments, error, message):
    usual = {"forward": np.sin, "backward": lambda d, x: d * np.cos(x), "inputs": {"x": normal(3)}}
    with pytest.raises(error, match=message) as raised:
        check(**(usual | arguments))
    assert "\n" not in str(raised.value)
