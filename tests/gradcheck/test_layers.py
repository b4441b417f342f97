"""Layers as people have them: their gradients are checked as they are, and they stay as they are."""

import ctypes
import functools
import types

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check_layer

from .programs import normal


class GradientsInDictionaries:
    """Parameters and gradients in dictionaries; the inputs of all calls are kept, and gradients added up."""

    def __init__(self, is_lazy=False, wrong=None):
        self.parameters, self.gradients, self.xs, self.wrong = {}, {}, [], wrong
        if not is_lazy:
            self.make(4)

    def make(self, width):
        self.parameters = {"W": normal(width, 3), "b": normal(1, 3, seed=1)}
        self.gradients = {name: np.zeros_like(x) for name, x in self.parameters.items()}

    def forward(self, X, keep=True):  # noqa: N803
        if not self.parameters:
            self.make(X.shape[1])
        if keep:
            self.xs.append(X)
        return np.tanh(X @ self.parameters["W"] + self.parameters["b"])

    def backward(self, dLdy):  # noqa: N803
        gradients = []
        for d_y, x in zip([dLdy], self.xs, strict=True):
            y = np.tanh(x @ self.parameters["W"] + self.parameters["b"])
            d_z = d_y * (1 - y**2)
            self.gradients["W"] += x.T @ (d_z if self.wrong != "parameters.W" else d_y)
            self.gradients["b"] += d_z.sum(axis=0, keepdims=True) * (0.5 if self.wrong == "parameters.b" else 1)
            gradients.append((d_z if self.wrong != "X" else d_z * y) @ self.parameters["W"].T)
        return gradients[0]


class GradientsInAttributes:
    """Weights and gradients in attributes, which are there after backward."""

    def __init__(self, wrong=None):
        self.W, self.b, self.wrong = normal(4, 3), normal(3, seed=1), wrong

    def forward(self, x):
        self.x = x
        return x @ self.W + self.b

    def backward(self, dout):
        self.dW = self.x.T @ dout if self.wrong != "W" else self.x.T @ abs(dout)
        self.db = dout.sum(axis=0) if self.wrong != "b" else dout.mean(axis=0)
        return dout @ self.W.T if self.wrong != "x" else -dout @ self.W.T


class GradientsInLists:
    """Parameters and gradients in lists, and in attributes that are the same arrays; backward writes into buffers."""

    def __init__(self, wrong=None):
        self.W, self.wrong = normal(4, 3), wrong
        self.params = [self.W, normal(3, seed=1)]
        self.grads = [np.zeros_like(x) for x in self.params]

    def forward(self, x):
        self.x = x
        return np.sin(x @ self.W + self.params[1])

    def backward(self, dout):
        d_z = dout * np.cos(self.x @ self.W + self.params[1])
        self.grads[0][...] = self.x.T @ d_z
        if self.wrong != "params.1":
            self.grads[1][...] = d_z.sum(axis=0)
        if self.wrong == "params.0":
            self.grads[0][1] = 0
        return d_z @ self.W.T * (1 + 1e-9 * (self.wrong == "x"))


class Linear:
    def __init__(self, inputs, outputs, seed, wrong=False):
        self.params = {"w": normal(inputs, outputs, seed=seed), "b": normal(outputs, seed=seed + 1)}
        self.grads, self.wrong = {}, wrong

    def forward(self, inputs):
        self.inputs = inputs
        return inputs @ self.params["w"] + self.params["b"]

    def backward(self, grad):
        self.grads["b"] = grad.sum(axis=0)
        self.grads["w"] = self.inputs.T @ grad if not self.wrong else self.inputs.T @ grad * np.sign(self.params["w"])
        return grad @ self.params["w"].T


class Tanh:
    def forward(self, inputs):
        self.output = np.tanh(inputs)
        return self.output

    def backward(self, grad):
        return grad * (1 - self.output**2)


class Network:
    """Layers within a layer."""

    def __init__(self, wrong=None):
        self.layers = [Linear(4, 5, 0), Tanh(), Linear(5, 3, 2, wrong == "layers[2].params.w")]

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer.forward(inputs)
        return inputs

    def backward(self, grad):
        for layer in reversed(self.layers):
            grad = layer.backward(grad)
        return grad


OF_LAYERS = {f"layers[{k}].params": f"layers[{k}].grads" for k in (0, 2)}
OF_WEIGHTS = {"layers[0].params.w": "layers[0].grads.w", "layers[2].params['w']": "layers[2].grads['w']"}
STYLES = {
    "dictionaries": (GradientsInDictionaries, None, ["X", "parameters.W", "parameters.b"]),
    "attributes": (GradientsInAttributes, None, ["x", "W", "b"]),
    "attributes, named": (GradientsInAttributes, {"W": "dW", "b": "db"}, ["x", "W", "b"]),
    "lists": (GradientsInLists, None, ["x", "params.0", "params.1"]),
    "lists, at once": (GradientsInLists, {"params": "grads"}, ["x", "params.0", "params.1"]),
    "a network": (Network, OF_LAYERS, ["inputs", *(f"layers[{k}].params.{name}" for k in (0, 2) for name in "wb")]),
    "two of a network": (Network, OF_WEIGHTS, ["inputs", *OF_WEIGHTS]),
    "no parameters": (Network, {}, ["inputs"]),
}
WRONG = [
    *(("dictionaries", name) for name in STYLES["dictionaries"][2]),
    *(("attributes", name) for name in STYLES["attributes"][2]),
    *(("lists, at once", name) for name in STYLES["lists"][2]),
    ("a network", "layers[2].params.w"),
]


def state_of(held):
    """Everything that a layer holds, arrays with their identity."""
    if isinstance(held, np.ndarray):
        return id(held), held.dtype, held.tobytes()
    if isinstance(held, list):
        return [state_of(x) for x in held]
    held = held if isinstance(held, dict) else getattr(held, "__dict__", held)
    return {name: state_of(x) for name, x in held.items()} if isinstance(held, dict) else held


@each("style", STYLES)
def test_a_layer_that_is_right_holds_by_its_inputs_and_its_parameters_and_stays_as_it_is(style):
    kind, parameters, names = STYLES[style]
    layer = kind()
    before = state_of(layer)
    report = check_layer(layer, normal(2, 4, seed=5), parameters=parameters)
    assert [entry.name for entry in report] == names
    assert report.ok, str(report)
    assert {entry.method for entry in report} == {"complex-step"}
    assert state_of(layer) == before


@each(("style", "wrong"), WRONG)
def test_a_planted_error_is_found_where_it_is(style, wrong):
    kind, parameters, _ = STYLES[style]
    report = check_layer(kind(wrong=wrong), normal(2, 4, seed=5), parameters=parameters)
    assert [entry.name for entry in report if not entry.ok] == [wrong]


def test_a_layer_that_has_been_used_is_checked_as_a_new_one():
    layer = GradientsInDictionaries()
    layer.forward(normal(2, 4))
    layer.backward(normal(2, 3))
    layer.xs.clear()
    accumulated = layer.gradients["W"].copy()
    assert check_layer(layer, normal(2, 4, seed=5)).ok
    assert np.array_equal(layer.gradients["W"], accumulated)
    assert not layer.xs


def test_a_layer_stays_as_it_is_if_it_raises():
    layer = GradientsInLists()
    before = state_of(layer)
    with pytest.raises(ValueError, match="matmul"):
        check_layer(layer, normal(2, 5))
    layer.backward = lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        check_layer(layer, normal(2, 4))
    del layer.backward
    assert state_of(layer) == before


def test_gradients_in_single_precision_are_checked_in_it():
    layer = GradientsInLists()
    layer.W = layer.W.astype(np.float32)
    layer.params = [layer.W, layer.params[1].astype(np.float32)]
    layer.grads = [np.zeros_like(x) for x in layer.params]
    x = normal(2, 4, seed=5).astype(np.float32)
    assert check_layer(layer, x).ok
    layer.wrong = "params.0"
    assert not check_layer(layer, x)["params.0"].ok


class Dropout:
    """Draws a mask in training, of a generator of its own, and counts its calls."""

    def __init__(self):
        self.rng, self.calls = np.random.default_rng(0), 0

    def forward(self, x, train_flg=True):
        self.calls += 1
        self.mask = self.rng.random(x.shape) > 0.5 if train_flg else np.ones(x.shape)
        return x * self.mask / self.calls

    def backward(self, dout):
        return dout * self.mask


@each("training", [True, False])
def test_each_call_begins_with_the_state_of_the_first(training):
    layer = Dropout()
    assert check_layer(layer, {"x": normal(3, 4), "train_flg": training}).ok
    assert layer.calls == 0


class DrawsAnywhere:
    """Draws from NumPy's global generator, gives a view, and writes to what it is given."""

    def __init__(self, wrong=False):
        self.wrong = wrong

    def forward(self, x):
        self.mask = np.random.random(x.shape) > 0.5  # noqa: NPY002
        self.x = x
        return np.where(self.mask, x**2, 0).reshape(-1, 2)

    def backward(self, dout):
        dout = dout.reshape(self.x.shape)
        dout *= 2 * self.x
        dout[self.mask == self.wrong] = 0
        return dout


class Reshape:
    def forward(self, x):
        self.shape = x.shape
        return x.reshape(-1)

    def backward(self, dout):
        return dout.reshape(self.shape)


def test_layers_may_draw_give_views_and_write_to_the_gradient_that_they_are_given():
    np.random.seed(5)  # noqa: NPY002
    report = check_layer(DrawsAnywhere(), normal(3, 4))
    assert report.ok, str(report)
    assert "backward writes to the gradient of the output" in str(report["x"].note)
    drawn = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    assert drawn == np.random.random()  # noqa: NPY002
    assert not check_layer(DrawsAnywhere(wrong=True), normal(3, 4)).ok
    report = check_layer(Reshape(), normal(3, 4))
    assert report.ok
    assert report["x"].note is None


class SoftmaxWithLoss:
    def __init__(self, wrong=False):
        self.wrong = wrong

    def forward(self, x, t):
        self.t, e = t, np.exp(x)
        self.y = e / e.sum(axis=-1, keepdims=True)
        return -np.log(self.y[np.arange(t.size), t]).sum() / t.size

    def backward(self, dout=1):
        d_x = self.y.copy()
        d_x[np.arange(self.t.size), self.t] -= 1
        return dout * d_x / (1 if self.wrong else self.t.size)


class LossOfNothing(SoftmaxWithLoss):
    def backward(self):
        return super().backward(1)


@each("kind", [SoftmaxWithLoss, LossOfNothing])
def test_a_loss_is_checked_by_its_predictions_and_the_labels_are_passed_on(kind):
    inputs = {"x": normal(3, 4), "t": np.array([1, 3, 0])}
    assert check_layer(kind(), inputs).ok
    assert "3 times" in str(check_layer(kind(wrong=True), inputs)["x"].diagnosis)


class Embedding:
    def __init__(self, wrong=False):
        self.params, self.wrong = [normal(5, 3)], wrong
        self.grads = [np.zeros_like(self.params[0])]

    def forward(self, idx):
        self.idx = idx
        return self.params[0][idx]

    def backward(self, dout):
        (d_w,) = self.grads
        d_w[...] = 0
        if self.wrong:
            d_w[self.idx] = dout
        else:
            np.add.at(d_w, self.idx, dout)


def test_a_layer_of_integers_is_checked_by_its_parameters_alone():
    report = check_layer(Embedding(), np.array([1, 3, 1]))
    assert [(entry.name, entry.ok) for entry in report] == [("params.0", True)]
    assert not check_layer(Embedding(wrong=True), np.array([1, 3, 1])).ok


class Cell:
    """Two inputs, two outputs."""

    def __init__(self):
        self.W = normal(3, 3)

    def forward(self, x, h):
        self.x, self.h = x, h
        return x @ self.W, x * h

    def one_by_one(self, d_y, d_h):
        self.dW = self.x.T @ d_y
        return d_y @ self.W.T + d_h * self.h, d_h * self.x

    def of_a_tuple(self, d_outputs):
        return self.one_by_one(*d_outputs)


def test_several_outputs_come_back_one_by_one_or_as_a_tuple():
    inputs = {"x": normal(2, 3, seed=1), "h": normal(2, 3, seed=2)}
    for name in ("one_by_one", "of_a_tuple"):
        report = check_layer(Cell(), inputs, backward=name)
        assert [entry.name for entry in report] == ["x", "h", "W"]
        assert report.ok, str(report)


def affine_forward(x, w, b):
    return x.reshape(len(x), -1) @ w + b, (x, w, b)


def affine_backward(dout, cache):
    x, w, _ = cache
    return (dout @ w.T).reshape(x.shape), x.reshape(len(x), -1).T @ dout, dout.sum(axis=0)


def step_forward(x, h, c, options):
    assert options == {"mode": "train", "eps": 1e-5}
    next_c = c * np.tanh(x) + h
    return h * next_c, next_c, (x, h, c, next_c)


def step_backward(dnext_h, dnext_c, cache):
    x, h, c, next_c = cache
    d_c = dnext_c + dnext_h * h
    return d_c * c * (1 - np.tanh(x) ** 2), d_c + dnext_h * next_c, d_c * np.tanh(x)


MODULE = types.ModuleType("layers")
MODULE.affine_forward, MODULE.affine_backward = affine_forward, affine_backward


def test_functions_with_a_cache_are_checked_as_a_pair_and_by_their_names_in_a_module():
    inputs = {"x": normal(3, 2, 2), "w": normal(4, 5, seed=1), "b": normal(5, seed=2)}
    assert check_layer((affine_forward, affine_backward), inputs).ok
    report = check_layer(MODULE, inputs, forward="affine_forward", backward="affine_backward")
    assert [entry.name for entry in report] == ["x", "w", "b"]
    assert report.ok

    def forgets(dout, cache):
        dx, dw, _ = affine_backward(dout, cache)
        return dx, dw, dout.mean(axis=0)

    report = check_layer((affine_forward, forgets), inputs)
    assert [entry.ok for entry in report] == [True, True, False]


def test_functions_with_several_outputs_and_a_cache_are_checked():
    inputs = {"x": normal(3), "h": normal(3, seed=1), "c": normal(3, seed=2), "options": {"mode": "train", "eps": 1e-5}}
    assert check_layer((step_forward, step_backward), inputs).ok
    assert not check_layer((step_forward, lambda d_h, d_c, cache: step_backward(d_h, 0 * d_c, cache)), inputs).ok


class HoldsALibrary(GradientsInAttributes):
    """Something in it cannot be copied."""

    def __init__(self):
        super().__init__()
        self.number = ctypes.c_double(1.0)
        self.inner = {"pointer": ctypes.pointer(self.number), "other": [GradientsInAttributes()]}

    def forward(self, x):
        self.inner["calls"] = self.inner.get("calls", 0) + 1
        return super().forward(x) * self.inner["pointer"][0] / self.inner["calls"]


def test_what_cannot_be_copied_is_shared_and_the_rest_of_the_layer_stays_as_it_is():
    layer = HoldsALibrary()
    before = layer.W.copy()
    assert check_layer(layer, normal(2, 4)).ok
    assert "calls" not in layer.inner
    assert np.array_equal(layer.W, before)


class ReadsGradients(GradientsInAttributes):
    """An array that is only used has the name of a gradient."""

    def __init__(self, named, times=1.0):
        super().__init__()
        self.scale, self.times, self.named = np.array([1.0, 2.0, 3.0]), times, named
        setattr(self, named, np.array([3.0, 1.0, 2.0]))

    def forward(self, x):
        return super().forward(x) * self.scale * getattr(self, self.named)

    def backward(self, d_y):
        return self.times * super().backward(d_y * self.scale * getattr(self, self.named))


@each("named", ["grad_scale", "scale_grad", "d_scale", "gscale", "dscale"])
def test_what_backward_only_reads_is_no_gradient(named):
    assert check_layer(ReadsGradients(named), normal(2, 4)).ok
    report = check_layer(ReadsGradients(named, 3.0), normal(2, 4))
    assert [entry.name for entry in report if not entry.ok] == ["x"]


@each("named", ["grad_scale", "scale_grad", "d_scale", "gscale", "dscale"])
def test_a_gradient_that_backward_forgets_is_wrong_where_there_is_a_place_for_it(named):
    class Forgetting(GradientsInAttributes):
        def __init__(self):
            super().__init__()
            self.scale = np.array([1.0, 2.0, 3.0])
            setattr(self, named, np.zeros(3))

        def forward(self, x):
            return super().forward(x) * self.scale

        def backward(self, d_y):
            return super().backward(d_y * self.scale)

    assert [entry.name for entry in check_layer(Forgetting(), normal(2, 4)) if not entry.ok] == ["scale"]


def test_a_gradient_is_where_backward_leaves_one_first():
    class Moved(GradientsInAttributes):
        """The last update is called as a gradient may be."""

        def __init__(self):
            super().__init__()
            self.dW, self.d_W = np.ones_like(self.W), np.ones_like(self.W)

        def backward(self, d_y):
            kept = self.dW
            d_x = super().backward(d_y)
            self.gW, self.dW = self.dW, kept
            return d_x

    assert check_layer(Moved(), normal(2, 4)).ok


def test_of_two_weights_of_which_one_is_called_as_the_gradient_of_the_other_each_has_its_own():
    class Autoencoder:
        def __init__(self):
            self.W, self.dW, self.grads = normal(4, 3), normal(3, 4, seed=1), {}  # the latter decodes

        def forward(self, x):
            self.x, self.h = x, x @ self.W
            return self.h @ self.dW

        def backward(self, d_y):
            d_h = d_y @ self.dW.T
            self.grads = {"dW": self.h.T @ d_y, "W": self.x.T @ d_h}
            return d_h @ self.W.T

    report = check_layer(Autoencoder(), normal(2, 4))
    assert [entry.name for entry in report] == ["x", "W", "dW"]
    assert report.ok


class Properties(GradientsInAttributes):
    def __init__(self):
        self._weights = {"W": normal(4, 3)}
        self.b, self.wrong = normal(3, seed=1), None

    @property
    def W(self):  # noqa: N802
        return self._weights["W"]


class Transposed(Properties):
    @property
    def W(self):  # noqa: N802
        return self._weights["W"].T.copy().T


def test_a_parameter_behind_a_property_is_moved_where_it_is_held():
    assert check_layer(Properties(), normal(2, 4)).ok
    with pytest.raises(TypeError, match=r"^W of Transposed cannot be set: name the attribute that holds it$"):
        check_layer(Transposed(), normal(2, 4))


class NumbersAsParameters:
    def __init__(self):
        self.b, self.scale = 0.5, np.float64(2.0)

    def forward(self, x):
        self.x = x
        return x * self.scale + self.b

    def backward(self, dout):
        self.db, self.d_scale = dout.sum(), (dout * self.x).sum()
        return dout * self.scale


def test_single_numbers_are_parameters_too():
    report = check_layer(NumbersAsParameters(), normal(3), parameters={"b": "db", "scale": "d_scale"})
    assert [entry.name for entry in report] == ["x", "b", "scale"]
    assert report.ok, str(report)


def test_a_gradient_that_is_left_nowhere_is_missing():
    report = check_layer(GradientsInAttributes(), normal(2, 4), parameters={"W": "dV", "b": "db"})
    assert report["W"].diagnosis == "the gradient is missing"
    assert report["b"].ok


class ReadOnly:
    __slots__ = ("pointer",)

    def __init__(self):
        self.pointer = ctypes.pointer(ctypes.c_double(1.0))

    def forward(self, x):
        return x

    def backward(self, dout):
        return dout


class OfABook:
    """Weights and their gradients by other names than those of papers."""

    def __init__(self, weights="weights"):
        self.names = weights, f"d{weights}" if weights != "_w" else "_dw"
        setattr(self, weights, normal(4, 3, seed=1))

    def forward(self, inputs):
        self.inputs = inputs
        return inputs @ getattr(self, self.names[0])

    def backward(self, dvalues):
        setattr(self, self.names[1], self.inputs.T @ dvalues / 2)
        return dvalues @ getattr(self, self.names[0]).T


class Trained(OfABook):
    """Its backward takes a step, too."""

    def backward(self, dvalues, learning_rate):
        d_inputs = super().backward(dvalues)
        self.weights -= learning_rate * self.dweights
        return d_inputs


def test_a_backward_that_takes_more_is_checked_once_that_is_set():
    layer = Trained()
    layer.backward = functools.partial(layer.backward, learning_rate=0.1)
    report = check_layer(layer, normal(2, 4))
    assert (report["inputs"].ok, report["weights"].ok) == (True, False)


@each(
    ("layer", "options", "error", "message"),
    [
        (GradientsInDictionaries(True), {}, ValueError, "has no parameters.W before forward is called: let it make"),
        (
            GradientsInDictionaries(True),
            {"parameters": {"parameters.W": "gradients.W"}},
            ValueError,
            "has no parameters.W, a parameter by its path such as",
        ),
        (Linear(4, 2, 0), {"parameters": {"params[w": "b"}}, ValueError, r"^'params\[w' is no path such as"),
        (GradientsInLists(), {"parameters": {"x": "grads"}}, ValueError, "has no x, a parameter by its path"),
        (Tanh(), {"forward": "fprop"}, TypeError, "^Tanh has no function called fprop: name those that it has"),
        (MODULE, {}, TypeError, "^module layers has no function called forward: name"),
        (Trained(), {}, TypeError, "^backward of Trained takes more .*: set learning_rate beforehand, as by layer"),
        ((np.sin,), {}, TypeError, "^layer must be an object, a module, or a pair of functions"),
        (
            (affine_forward, affine_backward),
            {"parameters": {"w": "dw"}},
            ValueError,
            "functions take theirs as inputs$",
        ),
        (
            (np.sin, np.cos),
            {},
            TypeError,
            r"^forward must return \(output, cache\), not ndarray: .* use gradcheck.check$",
        ),
        (ReadOnly(), {}, TypeError, "^layer, of type ReadOnly, cannot be copied, so it would not stay as it is$"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(layer, options, error, message):
    with pytest.raises(error, match=message) as raised:
        check_layer(layer, normal(2, 4), **options)
    assert "\n" not in str(raised.value)


def test_parameters_that_no_path_can_name_are_named_all_at_once():
    layer = Linear(4, 2, 0)
    layer.params["a/b"] = normal(2)
    with pytest.raises(
        ValueError, match=r"^params.a/b of Linear is no path: name all at once, as parameters={'params'"
    ):
        check_layer(layer, normal(2, 4))


def test_a_name_of_an_input_and_of_a_parameter_is_refused():
    with pytest.raises(ValueError, match=r"^W is the name of an input and of a parameter: name the input otherwise$"):
        check_layer(GradientsInAttributes(), {"W": normal(2, 4)})


@each("wrong", [0, 1])
def test_gradients_of_parameters_may_be_returned_behind_those_of_the_inputs(wrong):
    def forward(x, w, b):
        return x @ w + b, (x, w)

    def backward(d, cache):
        x, w = cache
        return d @ w.T, [x.T @ d, d.sum(axis=0) * (2 if wrong else 1)]

    class Returning:
        def __init__(self, w, b):
            self.W, self.b = w, b

        def forward(self, x):
            y, self.cache = forward(x, self.W, self.b)
            return y

        def backward(self, d):
            return backward(d, self.cache)

    x, w, b = normal(4, 3), normal(3, 2, seed=1), normal(2, seed=2)
    functions = check_layer((forward, backward), {"x": x, "w": w, "b": b})
    assert [entry.ok for entry in functions] == [True, True, not wrong]
    for parameters in (None, {"W": None, "b": None}):
        layer = check_layer(Returning(w, b), x, parameters=parameters)
        assert {entry.name: entry.ok for entry in layer} == {"x": True, "W": True, "b": not wrong}

    class Masked(Returning):
        def forward(self, x, mask):
            return super().forward(x) * mask[:, None]

        def backward(self, d):
            d_x, d_parameters = super().backward(d * rows[:, None])
            return d_x, None, d_parameters

    rows = np.array([True, False, True, True])
    assert check_layer(Masked(w, b), {"x": x, "mask": rows})["W"].ok


def test_what_is_kept_beside_parameters_and_not_used_is_none():
    layer = Linear(4, 2, 0)
    layer.params["mean"] = np.zeros(2)
    report = check_layer(layer, normal(2, 4))
    assert [entry.name for entry in report] == ["inputs", "params.w", "params.b"]
    assert (report.ok, report["inputs"].note) == (True, None)


class Within:
    """A layer within a layer."""

    def __init__(self, layer):
        self.layers = [layer]

    def forward(self, x):
        return self.layers[0].forward(x)

    def backward(self, d_y):
        return self.layers[0].backward(d_y)


def dense(holder, place, times=1):
    """A layer of a weight and a bias, which leaves the gradient of one at a place, and that of the other beside it."""

    class Dense:
        def __init__(self):
            self.b, self.grads, self.gradients, self.grad = np.zeros(3), {}, {}, {}
            self.of(holder)["W"] = normal(4, 3)

        def of(self, name):
            return vars(self).setdefault(name, {}) if name else vars(self)

        def forward(self, x):
            self.x = x
            return x @ self.of(holder)["W"] + self.b

        def backward(self, d_y):
            self.db = d_y.sum(axis=0)
            if place:
                within, _, name = place.rpartition(".")
                self.of(within)[name] = times * self.x.T @ d_y
            return d_y @ self.of(holder)["W"].T

    return Dense()


BESIDE = ["dW", "d_W", "gW", "dLdW", "dL_dW", "grad_W", "W_grad"]


@each("within", [False, True])
@each(
    ("holder", "place"),
    [
        *((None, place) for place in (*BESIDE, "grads.W", "gradients.W", "grads.dW", "grad.W")),
        *(("params", place) for place in ("grads.W", "grads.dW", "gradients.W")),
        *(("parameters", place) for place in ("gradients.W", "grads.dW")),
    ],
)
def test_a_gradient_is_found_where_people_leave_it(holder, place, within):
    for times in (1, 2):
        layer = dense(holder, place, times)
        report = check_layer(Within(layer) if within else layer, normal(5, 4))
        name = f"{'layers.0.' * within}{f'{holder}.' if holder else ''}W"
        assert report[name].ok is (times == 1), str(report)
        assert report["x"].note is None


@each("within", [False, True])
@each(("holder", "left"), [(None, None), (None, 0), ("params", None), ("params", 0)])
def test_a_parameter_without_a_gradient_is_wrong_and_the_report_says_what_to_do_if_it_is_frozen(holder, left, within):
    layer = dense(holder, None if left is None else f"{'grads.' if holder else 'd'}W", 0)
    report = check_layer(Within(layer) if within else layer, normal(5, 4))
    path = f"{'layers.0.' * within}{f'{holder}.' if holder else ''}W"
    place = f"{'layers.0.' * within}{'grads.' if holder else 'd'}W"
    assert [entry.name for entry in report if not entry.ok] == [path]
    assert report[path].diagnosis == ("the gradient is missing" if left is None else "it is zero throughout")
    assert str(report[path].note).startswith(f"{place} is None or zero after backward: if the gradient is elsewhere")
    assert str(report[path].note).endswith("parameters= says which have one, and where")
    assert check_layer(layer, normal(5, 4), parameters={"b": "db"}).ok


class KeepsItsWeights:
    """Attention that keeps what it computes under a name that parameters have elsewhere."""

    def forward(self, q, k):
        e = np.exp(q @ k.T)
        self.weights, self.q, self.k = e / e.sum(axis=-1, keepdims=True), q, k
        return self.weights @ k

    def backward(self, d_y):
        d_w = d_y @ self.k.T
        self.d_weights = self.weights * (d_w - (self.weights * d_w).sum(axis=-1, keepdims=True))
        return self.d_weights @ self.k, self.d_weights.T @ self.q + self.weights.T @ d_y


@each("ran", [False, True])
def test_what_a_layer_computes_is_no_parameter_whatever_its_name(ran):
    layer, inputs = KeepsItsWeights(), {"q": normal(3, 4), "k": normal(5, 4, seed=1)}
    if ran:
        layer.backward(layer.forward(**inputs))
    report = check_layer(layer, inputs)
    assert [entry.name for entry in report] == ["q", "k"]
    assert (report.ok, report["q"].note) == (True, None)


@each("name", ["weights", "table", "_w"])
def test_what_has_a_gradient_of_its_name_is_a_parameter(name):
    report = check_layer(OfABook(name), normal(5, 4))
    assert (report["inputs"].ok, report[name].ok) == (True, False)


@each("listed", [False, True])
@each("names", [("data", "grad"), ("value", "grad")])
@each("factor", [1, 2])
def test_objects_that_are_a_parameter_each_are_found(names, listed, factor):
    class Dense:
        def __init__(self):
            self.w = types.SimpleNamespace(**dict(zip(names, (normal(4, 3), np.zeros((4, 3))), strict=True)))
            self.w.moment = np.zeros((4, 3))  # of an optimizer
            if listed:
                self.parameters = [self.w]

        def forward(self, x):
            self.x = x
            return x @ getattr(self.w, names[0])

        def backward(self, d_y):
            self.w.grad += factor * self.x.T @ d_y
            return d_y @ getattr(self.w, names[0]).T

    report = check_layer(Dense(), normal(5, 4))
    assert [entry.name for entry in report] == ["x", f"{'parameters.0' if listed else 'w'}.{names[0]}"]
    assert [entry.ok for entry in report] == [True, factor == 1]
    assert report["x"].note is None


class SquaredError:
    """Keeps its targets and the gradient that it returns under names that parameters have elsewhere."""

    def __init__(self):
        self.data = normal(4, 3, seed=1)

    def forward(self, x):
        self.x = x
        return ((x - self.data) ** 2).sum()

    def backward(self):
        self.grad = 2 * (self.x - self.data)
        return self.grad


class Integrated:
    """Has an object of parameters, whose gradients are returned, one called as a gradient of the other might be."""

    def __init__(self):
        self.params = types.SimpleNamespace(t=normal(3), dt=normal(3, seed=1))

    def forward(self, x):
        self.x = x
        return x * self.params.t * self.params.dt

    def backward(self, d_y):
        t, dt = self.params.t, self.params.dt
        return d_y * t * dt, d_y * self.x * dt, d_y * self.x * t


class Product:
    """Keeps its inputs under names that parameters have elsewhere."""

    def forward(self, weights, b):
        self.weights, self.b = weights, b
        return weights * b

    def backward(self, d_y):
        return d_y * self.b, d_y * self.weights


def test_an_input_that_is_kept_is_no_parameter_whatever_its_name():
    report = check_layer(Product(), {"weights": normal(3, 4), "b": normal(3, 4, seed=1)})
    assert ([entry.name for entry in report], report.ok) == (["weights", "b"], True)


class OfATarget:
    """Keeps a target in an object within, and beside it the gradient that it returns."""

    def __init__(self):
        self.target = types.SimpleNamespace(data=normal(4, 3, seed=1), grad=None)

    def forward(self, x):
        self.x = x
        return ((x - self.target.data) ** 2).sum()

    def backward(self):
        self.target.grad = 2 * (self.x - self.target.data)
        return self.target.grad


@each(("layer", "names"), [(SquaredError, ["x"]), (OfATarget, ["x"]), (Integrated, ["x", "params.t", "params.dt"])])
def test_names_of_gradients_elsewhere_are_none_here(layer, names):
    report = check_layer(layer(), normal(3, seed=2) if layer is Integrated else normal(4, 3))
    assert [entry.name for entry in report] == names
    assert report.ok, str(report)


class Scaled:
    """Has a gain without a gradient of its name beside its weights, and keeps what it computes."""

    def __init__(self, factor=1.0, gradient="dgamma"):
        self.W, self.gamma, self.factor, self.gradient = normal(4, 3, seed=1), normal(3, seed=2), factor, gradient

    def forward(self, x):
        self.x = x
        self.z = np.tanh(x @ self.W)
        return self.gamma * self.z

    def backward(self, d_y):
        setattr(self, self.gradient, self.factor * (d_y * self.z).sum(0))
        self.dz = d_y * self.gamma * (1 - self.z**2)
        self.dW, self.dx = self.x.T @ self.dz, self.dz @ self.W.T
        return self.dx


@each("ran", [False, True])
def test_all_arrays_of_a_layer_are_checked_or_named_but_what_it_computes(ran):
    layers = Scaled(), Scaled(7.0), Scaled(gradient="slopes")
    x = normal(5, 4)
    for layer in layers if ran else ():
        layer.backward(layer.forward(x))
    right, wrong, elsewhere = (check_layer(layer, x) for layer in layers)
    assert [entry.name for entry in right] == [entry.name for entry in wrong] == ["x", "W", "gamma"]
    assert right.ok
    assert (wrong["W"].ok, wrong["gamma"].ok) == (True, False)
    assert right["x"].note is None
    assert [entry.name for entry in elsewhere] == ["x", "W"]
    assert elsewhere["x"].note == "gamma of the layer is not checked: parameters= says which have a gradient, and where"


@each("factor", [3], long=[1])
def test_the_parameters_of_layers_within_a_layer_are_found(factor):
    class Linear:
        def __init__(self, n, m):
            self.W, self.b, self.held = normal(n, m, seed=n), normal(m, seed=m), self

        def forward(self, x):
            self.x = x
            return x @ self.W + self.b

        def backward(self, d_y):
            self.dW, self.db = factor * self.x.T @ d_y, d_y.sum(0)
            return d_y @ self.W.T

    class Block:
        def __init__(self):
            self.W, self.layers = normal(2, 2), {"first": Linear(4, 3), "others": [Linear(3, 2)]}

        def forward(self, x):
            self.h = np.tanh(self.layers["others"][0].forward(self.layers["first"].forward(x)))
            return self.h @ self.W

        def backward(self, d_y):
            self.dW = self.h.T @ d_y
            d_h = d_y @ self.W.T * (1 - self.h**2)
            return self.layers["first"].backward(self.layers["others"][0].backward(d_h))

    report = check_layer(Block(), normal(5, 4))
    within = [f"layers.{layer}.{name}" for layer in ("first", "others.0") for name in ("W", "b")]
    assert [entry.name for entry in report] == ["x", "W", *within]
    assert [entry.ok for entry in report] == [True, True, factor == 1, True, factor == 1, True]


def tied():
    """Two layers hold one array, and each has a gradient of its own."""

    class Twice:
        def __init__(self):
            self.first, self.second = Scaled(), Scaled()
            self.first.W = self.second.W = normal(3, 3, seed=4)

        def forward(self, x):
            return self.second.forward(self.first.forward(x))

        def backward(self, d_y):
            return self.first.backward(self.second.backward(d_y))

    return Twice()


def derived():
    """A gain that forward computes, with a gradient, beside what it is computed from."""

    class Normalized(Scaled):
        def forward(self, x):
            self.gamma = self.v / np.sqrt(self.v @ self.v)
            return super().forward(x)

        def backward(self, d_y):
            d_x, v, length = super().backward(d_y), self.v, np.sqrt(self.v @ self.v)
            self.dv = (self.dgamma - self.gamma * (self.gamma @ self.dgamma)) / length
            return d_x if v is self.v else None

    layer = Normalized()
    layer.v = normal(3, seed=3)
    layer.backward(layer.forward(normal(5, 4)))
    return layer


def odd():
    """Keys that no path can name."""
    layer = Scaled()
    layer.table = {"a/b": normal(2), (0, 1): normal(3)}
    return layer


def with_method():
    """What is called parameters is a method, and the gradients are returned."""

    class Returning(Scaled):
        def parameters(self):
            return [self.W]

        def backward(self, d_y):
            d_x = super().backward(d_y)
            d_w = self.dW
            del self.dW, self.dgamma
            return d_x, d_w

    return Returning()


@each(
    ("made", "names", "note"),
    [
        (tied, ["x", "first.gamma", "second.gamma"], "first.W, second.W of the layer are not checked"),
        (derived, ["x", "W", "v"], None),
        (odd, ["x", "W", "gamma"], "table.a/b, table.(0, 1) of the layer are not checked"),
        (with_method, ["x", "W"], "gamma of the layer is not checked"),
    ],
)
def test_a_right_layer_holds_and_what_is_not_checked_is_named(made, names, note):
    report = check_layer(made(), normal(5, 3 if made is tied else 4))
    assert report.ok, report
    assert [entry.name for entry in report] == names
    assert str(report["x"].note).startswith(str(note))


def test_a_forward_that_leaves_its_output_in_the_layer_is_told_to_return_it():
    class Kept(OfABook):
        def forward(self, inputs):
            self.output = super().forward(inputs)

    with pytest.raises(TypeError, match=r"^forward of Kept returns None: it must return the output"):
        check_layer(Kept(), normal(5, 4))


class InPlace:
    def forward(self, x):
        x[x < 0] = 0
        self.y = x
        return x

    def backward(self, dout):
        return dout * (self.y > 0)


def test_an_input_that_forward_writes_to_stays_as_it_is_and_is_told_of():
    x = normal(3, 4)
    before = x.copy()
    assert "forward writes to this input" in check_layer(InPlace(), x)["x"].diagnosis
    np.testing.assert_array_equal(x, before)


@each("wrong", [False, True])
def test_gradients_of_a_list_of_parameters_may_be_returned_behind_those_of_the_inputs(wrong):
    class Returning:
        def __init__(self):
            self.weights = [normal(4, 3), normal(3, seed=1)]

        def forward(self, x):
            self.x = x
            return x @ self.weights[0] + self.weights[1]

        def backward(self, d_y):
            return d_y @ self.weights[0].T, [self.x.T @ d_y, (1 + wrong) * d_y.sum(axis=0)]

    report = check_layer(Returning(), normal(2, 4), parameters={"weights": None})
    assert [entry.name for entry in report if not entry.ok] == ["weights.1"] * wrong


@each("named", [False, True])
def test_a_gradient_may_be_a_property_that_raises_before_backward(named):
    class Lazy(GradientsInAttributes):
        def __init__(self):
            super().__init__()
            self.scale, self.kept = np.ones(3), {}

        @property
        def grad_scale(self):
            return self.kept["scale"]

        def forward(self, x):
            self.y = super().forward(x)
            return self.y * self.scale

        def backward(self, d_y):
            self.kept["scale"] = 3 * (self.y * d_y).sum(axis=0)
            return super().backward(d_y * self.scale)

    parameters = {"W": "dW", "scale": "grad_scale"} if named else None
    report = check_layer(Lazy(), normal(2, 4), parameters=parameters)
    assert [entry.name for entry in report if not entry.ok] == ["scale"]
