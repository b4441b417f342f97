"""Layers as people have them: their gradients are checked as they are, and they stay as they are."""

import ctypes
import functools
import types

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check_layer

from .programs import normal


class Dense:
    """A layer of a weight and a bias, with the names of a custom; what it keeps is added to, call after call."""

    def __init__(self, holder="", gradients="", prefix="d", wrong=None, kept=()):
        self.of(holder).update(W=normal(4, 3), b=normal(3, seed=1))
        self.names, self.wrong, self.xs = (holder, gradients, prefix), wrong, []
        for name in kept:  # buffers that are there before backward
            self.of(gradients)[prefix + name] = np.zeros_like(self.of(holder)[name])

    def of(self, name):
        return vars(self).setdefault(name, {}) if name else vars(self)

    def forward(self, x, keep=True):
        self.xs += [x] * keep
        held = self.of(self.names[0])
        return np.sin(x @ held["W"] + held["b"])

    def backward(self, d_y):
        holder, gradients, prefix = self.names
        (x,), held = self.xs, self.of(holder)
        d_z = d_y * np.cos(x @ held["W"] + held["b"])
        found = {"W": x.T @ d_z, "b": d_z.sum(axis=0), "x": d_z @ held["W"].T}
        if self.wrong:
            found[self.wrong] = found[self.wrong] * (1 + 1e-9)
        for name in ("W", "b"):
            before = self.of(gradients).get(prefix + name, 0)
            self.of(gradients)[prefix + name] = before + found[name]
        return found["x"]


class Lists:
    """Parameters and gradients in lists, and in an attribute that is the same array; backward writes into buffers."""

    def __init__(self, wrong=None):
        self.W, self.wrong = normal(4, 3), wrong
        self.params = [self.W, normal(3, seed=1)]
        self.grads = [np.zeros_like(x) for x in self.params]

    def forward(self, x):
        self.x = x
        return np.sin(x @ self.W + self.params[1])

    def backward(self, d_y):
        d_z = d_y * np.cos(self.x @ self.W + self.params[1])
        self.grads[0][...] = self.x.T @ d_z
        self.grads[1][...] = d_z.sum(axis=0) if self.wrong != "params.1" else d_z[0]
        return d_z @ self.W.T


class Objects:
    """Each parameter is an object of data and gradient."""

    def __init__(self, wrong=None):
        both = [types.SimpleNamespace(data=x, grad=np.zeros_like(x)) for x in (normal(4, 3), normal(3, seed=1))]
        (self.W, self.b), self.wrong = both, wrong

    def forward(self, x):
        self.x = x
        return x @ self.W.data + self.b.data

    def backward(self, d_y):
        self.W.grad += self.x.T @ d_y
        self.b.grad += d_y.sum(axis=0) * (1 if self.wrong != "b.data" else 2)
        return d_y @ self.W.data.T


class Returned(Lists):
    """All gradients are returned, those of the parameters behind that of the input."""

    def __init__(self, wrong=None):
        super().__init__(wrong)
        self.weights = [*self.params]
        del self.params, self.grads, self.W

    def forward(self, x):
        self.x = x
        return x @ self.weights[0] + self.weights[1]

    def backward(self, d_y):
        d_b = d_y.sum(axis=0) if self.wrong != "weights.1" else d_y.mean(axis=0)
        return d_y @ self.weights[0].T, [self.x.T @ d_y, d_b]


class Network:
    """Layers within a layer, one of which knows the whole."""

    def __init__(self, wrong=None):
        self.W = normal(3, 3, seed=9)
        self.layers = {"first": Dense(wrong=wrong and wrong[-1]), "others": [Dense("params", "grads", "")]}
        self.layers["others"][0].params["W"] = normal(3, 3, seed=2)
        self.layers["first"].whole = self

    def forward(self, x):
        self.h = self.layers["others"][0].forward(self.layers["first"].forward(x))
        return self.h @ self.W

    def backward(self, d_y):
        self.dW = self.h.T @ d_y
        return self.layers["first"].backward(self.layers["others"][0].backward(d_y @ self.W.T))


W_B, OF_LISTS = {"W": "dW", "b": "db"}, {"params": "grads"}
OBJECTS = {"W.data": "W.grad", "b.data": "b.grad"}
NETWORK = {"W": "dW", "layers.first.W": "layers.first.dW", "layers.first.b": "layers.first.db"}
NETWORK |= {"layers.others.0.params": "layers.others.0.grads"}
STYLES = {  # a layer, `parameters`, and what is checked besides x
    "W, dW": (Dense, W_B, ["W", "b"]),
    "W, dW in buffers": (functools.partial(Dense, kept="Wb"), W_B, ["W", "b"]),
    "params, grads": (functools.partial(Dense, "params", "grads", ""), OF_LISTS, ["params.W", "params.b"]),
    "lists": (Lists, OF_LISTS, ["params.0", "params.1"]),
    "some": (Dense, {"b": "db"}, ["b"]),
    "none": (Dense, {}, []),
    "W.data, W.grad": (Objects, OBJECTS, ["W.data", "b.data"]),
    "returned": (Returned, {"weights.0": None, "weights.1": None}, ["weights.0", "weights.1"]),
    "returned at once": (Returned, {"weights": None}, ["weights.0", "weights.1"]),
    "a network": (Network, NETWORK, [*list(NETWORK)[:3], "layers.others.0.params.W", "layers.others.0.params.b"]),
}
WRONG = [(style, wrong) for style in ("W, dW", "W, dW in buffers", "a network") for wrong in ("x", "W", "b")]
WRONG += [("some", "b"), ("none", "x")]
WRONG += [(style, STYLES[style][2][1]) for style in ("lists", "W.data, W.grad", "returned", "returned at once")]


def state_of(held, seen=()):
    """Everything that a layer holds, arrays with their identity."""
    if isinstance(held, np.ndarray):
        return id(held), held.dtype, held.tobytes()
    if isinstance(held, list):
        return [state_of(x, seen) for x in held]
    if any(held is x for x in seen):
        return None
    within = held if isinstance(held, dict) else getattr(held, "__dict__", held)
    return {name: state_of(x, (*seen, held)) for name, x in within.items()} if isinstance(within, dict) else held


@each("style", STYLES)
def test_a_layer_that_is_right_holds_by_its_inputs_and_its_parameters_and_stays_as_it_is(style):
    kind, parameters, names = STYLES[style]
    layer = kind()
    before = state_of(layer)
    report = check_layer(layer, {"x": normal(2, 4, seed=5)}, parameters=parameters)
    assert [entry.name for entry in report] == ["x", *names]
    assert report.ok, str(report)
    assert {entry.method for entry in report} == {"complex-step"}
    assert report["x"].note is None
    assert state_of(layer) == before


@each(("style", "wrong"), WRONG)
def test_a_planted_error_is_found_where_it_is(style, wrong):
    kind, parameters, _ = STYLES[style]
    report = check_layer(kind(wrong=wrong), {"x": normal(2, 4, seed=5)}, parameters=parameters)
    name = f"layers.first.{wrong}" if "network" in style and wrong != "x" else wrong
    assert [entry.name for entry in report if not entry.ok] == [name]


@each("style", ["W, dW", "W, dW in buffers", "params, grads", "W.data, W.grad", "a network"])
def test_gradients_in_customary_places_need_not_be_named(style):
    kind, _, names = STYLES[style]
    report = check_layer(kind(), {"x": normal(2, 4, seed=5)}, parameters=None)
    assert {entry.name for entry in report} == {"x", *names}
    assert report.ok, str(report)


def test_a_layer_that_has_been_used_is_checked_as_a_new_one():
    layer = Dense()
    layer.backward(layer.forward(normal(2, 4)))
    layer.xs.clear()
    before = state_of(layer)
    assert check_layer(layer, normal(2, 4, seed=5), parameters=W_B).ok
    assert state_of(layer) == before
    with pytest.raises(ValueError, match="matmul"):
        check_layer(layer, normal(2, 5), parameters=W_B)
    layer.backward = lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        check_layer(layer, normal(2, 4), parameters={})
    del layer.backward
    assert state_of(layer) == before


def test_gradients_in_single_precision_are_checked_in_it():
    layer = Lists()
    layer.params = [x.astype(np.float32) for x in layer.params]
    layer.W, layer.grads = layer.params[0], [np.zeros_like(x) for x in layer.params]
    x = normal(2, 4, seed=5).astype(np.float32)
    report = check_layer(layer, x, parameters=OF_LISTS)
    assert report.ok
    assert max(entry.max_relative_error for entry in report) > 1e-9
    layer.wrong = "params.1"
    assert not check_layer(layer, x, parameters=OF_LISTS)["params.1"].ok


class Loss:
    """The mean of squares; of integers, those at which it is looked up."""

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

    def of_nothing(self):
        return self.backward()


@each("backward", ["backward", "of_nothing"])
def test_a_loss_is_checked_by_its_predictions_and_the_labels_are_passed_on(backward):
    inputs = {"x": normal(3, 4), "t": np.array([1, 3, 0])}
    assert check_layer(Loss(), inputs, backward=backward, parameters={}).ok
    assert "3 times" in str(check_layer(Loss(wrong=True), inputs, backward=backward, parameters={})["x"].diagnosis)


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

    def of_one(self, d_y, d_h):
        return self.one_by_one(d_y, 0 * d_h)


@each(("name", "wrong"), [("one_by_one", []), ("of_a_tuple", []), ("of_one", ["x", "h"])])
def test_several_outputs_come_back_one_by_one_or_as_a_tuple(name, wrong):
    inputs = {"x": normal(2, 3, seed=1), "h": normal(2, 3, seed=2)}
    report = check_layer(Cell(), inputs, backward=name, parameters={"W": "dW"})
    assert [entry.name for entry in report] == ["x", "h", "W"]
    assert [entry.name for entry in report if not entry.ok] == wrong


class Drawing:
    """Draws from a generator of its own and NumPy's, counts calls, gives a view, writes to what it is given."""

    def __init__(self, wrong=False):
        self.rng, self.calls, self.wrong = np.random.default_rng(0), 0, wrong

    def forward(self, x):
        self.calls += 1
        self.mask = (self.rng.random(x.shape) > 0.3) & (np.random.random(x.shape) > 0.3)  # noqa: NPY002
        self.x = x
        return np.where(self.mask, x**2, 0).reshape(-1, 2) / self.calls

    def backward(self, dout):
        dout = dout.reshape(self.x.shape)
        dout *= 2 * self.x
        dout[self.mask == self.wrong] = 0
        return dout


def test_layers_may_draw_give_views_and_write_to_the_gradient_that_they_are_given():
    np.random.seed(5)  # noqa: NPY002
    layer = Drawing()
    report = check_layer(layer, normal(3, 4), parameters={})
    assert report.ok, str(report)
    assert layer.calls == 0
    drawn = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    assert drawn == np.random.random()  # noqa: NPY002
    assert not check_layer(Drawing(wrong=True), normal(3, 4), parameters={}).ok


def affine(x, w, b, options):
    assert options == {"eps": 1e-5}
    return x @ w + b, (x @ w) ** 2, (x, w)


def affine_backward(d_y, d_z, cache, times=1):
    x, w = cache
    d = d_y + 2 * (x @ w) * d_z
    return d @ w.T, [x.T @ d, times * d_y.sum(axis=0)]


@each("times", [1, 2])
def test_functions_with_a_cache_are_checked_as_a_pair_and_by_their_names_in_a_module(times):
    inputs = {"x": normal(3, 4), "w": normal(4, 5, seed=1), "b": normal(5, seed=2), "options": {"eps": 1e-5}}
    module = types.ModuleType("layers")
    module.run, module.back = affine, functools.partial(affine_backward, times=times)
    by_name = check_layer(module, inputs, forward="run", backward="back")
    for report in (by_name, check_layer((affine, module.back), inputs)):
        assert [(entry.name, entry.ok) for entry in report] == [("x", True), ("w", True), ("b", times == 1)]


class Shares(Dense):
    """A pointer cannot be copied."""

    def __init__(self):
        super().__init__()
        self.inner = {"pointer": ctypes.pointer(ctypes.c_double(1.0))}


class Trained(Dense):
    """Its backward takes a step, too."""

    def learn(self, d_y, learning_rate):
        d_x = self.backward(d_y)
        self.W -= learning_rate * self.dW
        return d_x


NONE = {"parameters": None}


@each(
    ("layer", "options", "error", "message"),
    [
        (Returned(), NONE, ValueError, "^Returned holds weights.0, weights.1, and backward leaves no "),
        (Lists(), NONE, ValueError, "^Lists holds W, and backward leaves no gradient in a customary place: say where "),
        (Lists(), {"parameters": {"W": None, "params": "grads"}}, ValueError, "^two of parameters are the same array"),
        (Dense(), {"inputs": {"W": normal(2, 4)}}, ValueError, "^W is the name of an input and of a parameter: name "),
        (Dense(), {"parameters": {"V": "dW"}}, ValueError, "^Dense has no V, a parameter by its path such as"),
        (Dense(), {"forward": "fprop"}, TypeError, "^Dense has no function called fprop: name those that it has"),
        (types.ModuleType("layers"), NONE, TypeError, "^module layers has no function called forward: name"),
        ((np.sin,), NONE, TypeError, "^layer must be an object, a module, or a pair of functions"),
        ((np.sin, np.cos), {"parameters": {"w": "dw"}}, ValueError, "functions take theirs as inputs$"),
        ((np.sin, np.cos), NONE, TypeError, r"^forward must return \(output, cache\), not ndarray: .*$"),
        (Shares(), {}, TypeError, "^layer, of type Shares, cannot be copied, so it would not stay as it is: ")
    ]
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_sentence(layer, options, error, message):
    with pytest.raises(error, match=message) as raised:
        check_layer(layer, **{"inputs": normal(2, 4), "parameters": W_B, **options})
    assert "\n" not in str(raised.value)


def test_a_backward_that_takes_more_is_checked_once_that_is_set():
    layer = Trained()
    layer.learn = functools.partial(layer.learn, learning_rate=0.0)
    assert check_layer(layer, normal(2, 4), backward="learn", parameters=W_B).ok
