"""Arguments that are nests or no arrays at all, several outputs, and complex arrays: each is checked as it is."""

import inspect
from typing import NamedTuple

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check
from attention_np.gradcheck.nesting import Nest, filled, leaves, takes

from .programs import Pickling, normal


class Dense(NamedTuple):
    w: np.ndarray
    b: np.ndarray | None = None


class Twice(NamedTuple):
    outer: np.ndarray
    inner: Dense


def test_a_nest_is_taken_apart_and_put_together_again():
    dense = Dense(normal(3, 2))
    trees = {
        "x": normal(4),
        "twice": Twice(normal(2), dense),
        "layers": [{"w": normal(2)}, (1.5, "tanh")],
        "none": None,
    }
    nest = Nest(trees)
    assert list(nest.arrays) == ["x", "twice.outer", "twice.inner.w", "layers.0.w"]
    assert nest.arrays["twice.inner.w"] is dense.w
    assert nest.filled(nest.arrays.values()) == trees
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


def test_nested_inputs_and_several_outputs_are_checked_by_their_paths_and_the_rest_is_passed_on():
    report = check(network, network_backward, network_inputs())
    assert [entry.name for entry in report] == ["x", "layers.0.w", "layers.1.w"]
    assert report.ok, str(report)
    assert {entry.method for entry in report} == {"complex-step"}


def test_a_gradient_for_each_argument_will_do_as_well_as_one_for_each_that_is_moved():
    def backward(*question):
        d_x, d_layers = network_backward(*question)
        return d_x, None, d_layers, None, None

    assert check(network, backward, network_inputs()).ok


@each("wrong", [0, 1])
def test_an_error_in_the_gradient_of_any_output_and_of_any_leaf_is_found(wrong):
    def backward(d_outputs, *inputs):
        d_x, d_layers = network_backward(d_outputs, *inputs)
        d_layers[wrong]["w"] = d_layers[wrong]["w"] * (1 + 1e-10)
        return d_x, d_layers

    def without_the_loss(d_outputs, *inputs):
        return network_backward((0 * d_outputs[0], d_outputs[1]), *inputs)

    report = check(network, backward, network_inputs())
    assert [entry.name for entry in report if not entry.ok] == [f"layers.{wrong}.w"]
    assert not check(network, without_the_loss, network_inputs())["x"].ok


def test_functions_of_nests_go_to_other_processes():
    report = check(network, network_backward, network_inputs(), executor=(executor := Pickling()))
    assert executor.sizes
    assert str(report) == str(check(network, network_backward, network_inputs()))


def test_many_moves_at_once_are_told_apart_in_each_of_several_outputs():
    def forward(x, y):
        return np.sin(x), [x[..., 0] * y, y**2]

    def backward(d_outputs, x, y):
        d_sine, (d_product, d_square) = d_outputs
        d_x = d_sine * np.cos(x)
        d_x[0] += (d_product * y).sum()
        return d_x, d_product * x[0] + 2 * y * d_square

    inputs = {"x": normal(3), "y": np.array(0.7)}
    plain, batched = check(forward, backward, inputs), check(forward, backward, inputs, vectorized=["x"])
    assert batched.ok, str(batched)
    assert [entry.worst for entry in batched] == [entry.worst for entry in plain]


def test_the_gradient_of_one_nest_may_stand_alone():
    inputs = {"sides": [normal(3), normal(3, seed=1)]}

    def forward(sides):
        return sides[0] * sides[1]

    assert check(forward, lambda d, sides: [d * sides[1], d * sides[0]], inputs).ok
    assert check(forward, lambda d, sides: ([d * sides[1], d * sides[0]],), inputs).ok
    pair = {"sides": Twice(*inputs["sides"])}
    assert check(forward, lambda d, sides: (d * sides[1], d * sides[0]), pair).ok
    one = {"sides": [normal(3)]}
    assert check(lambda sides: sides[0] ** 2, lambda d, sides: [2 * d * sides[0]], one).ok
    assert check(lambda sides: sides[0] ** 2, lambda d, sides: ([2 * d * sides[0]],), one).ok


def test_a_tuple_will_do_for_a_named_tuple_and_a_leaf_left_out_is_missing():
    dense = Dense(normal(3, 2), normal(2))

    def forward(x, dense):
        return x @ dense.w + dense.b

    def backward(d_y, x, dense):
        return d_y @ dense.w.T, (x.T @ d_y, d_y.sum(axis=0))

    inputs = {"x": normal(4, 3), "dense": dense}
    assert check(forward, backward, inputs).ok
    report = check(forward, lambda *question: (backward(*question)[0], {"w": backward(*question)[1][0]}), inputs)
    assert (report["dense.w"].ok, report["dense.b"].diagnosis) == (True, "the gradient is missing")
    with pytest.raises(
        ValueError, match=r"^the gradient of dense must be a Dense of w, b, .* not an array of shape \("
    ):
        check(forward, lambda *question: (backward(*question)[0], backward(*question)[1][0]), inputs)
    with pytest.raises(ValueError, match=r"^the gradient of dense must be a Dense of w, b, .* not a dict of v$"):
        check(forward, lambda *question: (backward(*question)[0], {"v": 1}), inputs)


@each(("constant", "said"), [(np.array([1, 2, 3]), "n, which holds int64"), ({"a": 0.5}, "n.a, which is 0.5")])
def test_a_gradient_by_what_is_a_constant_is_refused_unless_it_is_zero(constant, said):
    inputs = {"x": normal(3), "n": constant}

    def backward(d_y, x, n):
        return d_y, {"a": d_y} if isinstance(n, dict) else d_y * x

    with pytest.raises(TypeError, match=f"^backward returns a gradient for {said} and is a constant: pass an array"):
        check(lambda x, _: 1 * x, backward, inputs)
    assert check(lambda x, _: 1 * x, lambda d, *_: (d, {"a": 0.0} if isinstance(constant, dict) else 0 * d), inputs).ok


def test_what_a_call_changes_in_its_constants_is_not_seen_by_the_next():
    def forward(x, rows, rng):
        rows += 1
        return x[rows] * rng.normal(size=2)

    def backward(d_y, x, rows, rng):
        d_x = np.zeros_like(x)
        np.add.at(d_x, rows + 1, d_y * rng.normal(size=2))
        return d_x

    assert check(forward, backward, {"x": normal(4), "rows": np.array([0, 2]), "rng": np.random.default_rng(3)}).ok


@each(
    ("forward", "backward"),
    [
        (lambda z: z**3, lambda d, z: d * np.conj(3 * z**2)),
        (lambda z: np.abs(z) ** 2, lambda d, z: 2 * d * z),
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
    assert "-1 times" in str(conjugate["z.imag"].diagnosis)


def test_a_complex_output_of_real_arrays_has_a_real_gradient():
    x = normal(5)
    assert check(np.fft.fft, lambda d, x: np.fft.ifft(d).real * x.size, {"x": x}).ok
    report = check(np.fft.fft, lambda d, x: np.fft.ifft(d) * x.size, {"x": x})
    assert report["x"].diagnosis == "the gradient holds complex128, not real floating-point numbers"


def test_outputs_that_are_others_at_each_call_are_refused():
    given = iter(range(10))

    def forward(x):
        return [x] * (2 if next(given) < 2 else 1)

    with pytest.raises(ValueError, match=r"^forward must return the same outputs at each call: output\.1 is missing$"):
        check(forward, lambda d, _: d[0] + d[1], {"x": normal(3)})
    sizes = iter(range(2, 10))
    with pytest.raises(
        ValueError, match=r"^forward must return arrays of one shape: output\.0 is \(2,\), then \(3,\)$"
    ):
        check(lambda x: [x[: next(sizes)]], lambda _, x: x, {"x": normal(9)})


class Layer:
    def forward(self, x, w):
        self.x, self.w = x, w
        return x @ w

    def backward(self, d_y):
        return d_y @ self.w.T, self.x.T @ d_y


@each(
    ("arguments", "message"),
    [
        (
            {"forward": lambda x: {"n": x.size}},
            "^forward must return at least one array of real floating-point numbers$",
        ),
        (
            {"inputs": {"x": np.ones(2), "y": [[1.0], [1.0, 2.0]]}},
            "^input y must be an array, not a list of uneven lists$",
        ),
        ({"inputs": {3: np.ones(2)}}, "^the names of inputs must be strings, not 3$"),
        (
            {"backward": lambda d, cache: d * cache},
            r"takes a cache: use gradcheck.check_layer\(\(forward, backward\), ",
        ),
        (
            {
                "forward": Layer().forward,
                "backward": Layer().backward,
                "inputs": {"x": np.ones((2, 2)), "w": np.eye(2)},
            },
            r"^backward\(d_output, \*inputs\) is called with 1 \+ 2 arguments, and the method of Layer does not take "
            r"them: .* use gradcheck.check_layer\(layer, inputs\)$",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(arguments, message):
    usual = {"forward": np.sin, "backward": lambda d, x: d * np.cos(x), "inputs": {"x": normal(3)}}
    with pytest.raises(TypeError, match=message) as raised:
        check(**(usual | arguments))
    assert "\n" not in str(raised.value)


def test_numbers_narrower_than_numpy_has_are_sent_elsewhere():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes: pip install attention-np[answers]")
    x = np.ones(3, ml_dtypes.bfloat16)
    with pytest.raises(TypeError, match=r"^x holds bfloat16, .*: use gradcheck.check_low_precision$"):
        check(lambda x: x, lambda d, _: d, {"x": x})


def test_a_function_whose_signature_cannot_be_read_takes_anything():
    with pytest.raises(ValueError, match="signature"):
        inspect.signature(dict)
    assert takes(dict, 5)
    assert not takes(lambda x: x, 2)
