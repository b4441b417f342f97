"""Functions that remember, refuse, or break: what is asked of them at other points and for other cotangents."""

import numpy as np
import pytest

from attention_np.gradcheck import METHODS, GradientError, assert_gradients, check

from .programs import normal, softmax

X = normal(3, seed=3)


def tanh_backward(d_output, x):
    return d_output * (1 - np.tanh(x) ** 2)


class Layer:
    """As layers are written: the backward pass uses what the forward pass has kept."""

    def forward(self, x, w):
        self.x, self.w = x, w
        self.hidden = np.tanh(x @ w)
        return self.hidden.copy()

    def backward(self, d_output):
        inside = d_output * (1 - self.hidden**2)
        return inside @ self.w.T, self.x.T @ inside


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_a_layer_that_keeps_its_input_from_forward_to_backward_holds(method):
    layer = Layer()
    inputs = {"x": normal(5, 4), "w": normal(4, 3, seed=1)}
    report = check(layer.forward, lambda d, *_: layer.backward(d), inputs, method=method)
    assert report.ok, str(report)
    assert [entry.undecidable for entry in report] == [0, 0]


def test_a_gradient_that_is_kept_from_the_first_call_is_wrong_for_another_cotangent():
    kept = {}
    report = check(np.tanh, lambda d, x: kept.setdefault("d_x", tanh_backward(d, x)).copy(), {"x": X})
    assert not report.ok
    assert "backward is not linear in the gradient of the output" in report["x"].diagnosis


@pytest.mark.parametrize("method", METHODS)
def test_activations_that_are_kept_from_the_first_call_are_wrong_close_by(method):
    kept = {}

    def backward(d, x):
        return d * (1 - kept.setdefault("y", np.tanh(x)) ** 2)

    report = check(np.tanh, backward, {"x": X}, method=method)
    assert not report.ok
    assert "backward keeps something of an earlier call" in report["x"].diagnosis


SYMMETRIC = np.array([[2.0, 0.5, 0.1], [0.5, 3.0, 0.2], [0.1, 0.2, 1.5]])
TRUE_HERE = {  # right by something that is true of the point, or of the other inputs
    "cross entropy of rows that sum to one": (
        lambda z, t: -(t * np.log(softmax(z))).sum(axis=-1),
        lambda d, z, t: (d[:, None] * (softmax(z) - t), -d[:, None] * np.log(softmax(z))),
        {"z": normal(3, 4), "t": softmax(normal(3, 4, seed=1))},
    ),
    "the square of a symmetric form": (
        lambda x, a: x @ a @ x,
        lambda d, x, a: (2 * d * (a @ x), d * np.outer(x, x) + 0 * a),
        {"x": normal(3), "a": SYMMETRIC},
    ),
    "log det of a symmetric matrix": (
        lambda s: np.log(np.linalg.det(s)),
        lambda d, s: d * np.linalg.inv(s),
        {"s": SYMMETRIC},
    ),
    "Huber's loss at its joint": (
        lambda x: np.where(np.abs(x) <= 1, x * x / 2, np.abs(x) - 0.5),
        lambda d, x: d * np.clip(x, -1, 1),
        {"x": np.array([1.0, -1.0, 0.3, 1.0, -1.0])},
    ),
}


@pytest.mark.parametrize("method", ["auto", "central"])
@pytest.mark.parametrize("name", TRUE_HERE)
def test_a_gradient_that_is_right_at_this_point_holds(name, method):
    forward, backward, inputs = TRUE_HERE[name]
    for seed in range(5):
        report = check(forward, backward, inputs, method=method, rng=seed)
        assert report.ok, str(report)
    if name.startswith("log det"):
        assert "is it right by something that is true of this point alone?" in report["s"].note


def test_rounding_at_other_points_is_no_fault():
    def forward(x):  # the scores and their mean cancel: the gradient is zero
        return x - x.mean() - (x - x.mean())

    for dtype in (np.float32, np.float64):
        for seed in range(5):
            x = normal(6, seed=seed).astype(dtype)
            assert check(forward, lambda d, _: (d - d.mean()) - (d - d.mean()), {"x": x}, rng=seed).ok
            softmax = check(
                lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(),
                lambda d, x: (p := np.exp(x - x.max()) / np.exp(x - x.max()).sum()) * (d - (d * p).sum()),
                {"x": 30 * x},
                rng=seed,
            )
            assert softmax.ok, str(softmax)


def entropy(p):
    if abs(p.sum() - 1) > 1e-15:
        raise ValueError("p must sum to one")
    return -(p * np.log(p)).sum()


P = np.array([0.5, 0.25, 0.25])


def test_a_function_that_refuses_every_point_close_by_cannot_be_checked_and_does_not_pass():
    found = check(entropy, lambda *_: np.full(3, 1e9), {"p": P}, method="central")
    assert not found.ok
    assert found["p"].verdict == "undecidable"
    assert found["p"].diagnosis == "it could not be checked"
    assert "in 3 entries: where one of them moves, it raises ValueError (p must sum to one)" in found["p"].note
    assert np.isnan(found["p"].max_relative_error)
    with pytest.raises(GradientError, match="it could not be checked"):
        assert_gradients(entropy, lambda d, p: -d * (np.log(p) + 1), {"p": P}, method="central")


def test_where_only_real_moves_are_refused_the_complex_step_tells_right_from_wrong():
    assert check(entropy, lambda d, p: -d * (np.log(p) + 1), {"p": P}).ok
    wrong = check(entropy, lambda d, p: -d * np.log(p), {"p": P})["p"]
    assert (wrong.wrong, wrong.method) == (3, "complex-step")


def lookup(x):
    places = np.floor(x.real).astype(int)
    table = np.arange(9.0) ** 2
    return table[places] + (x - places) * (table[places + 1] - table[places])


def picky(x):
    assert np.isfinite(x).all()
    return np.sin(x)


REFUSING = {
    "a table": (lookup, lambda d, x: d * (2 * np.floor(x) + 1), [0.5, 2.3]),
    "an assertion": (picky, lambda d, x: d * np.cos(x), [0.5, 1.3]),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", REFUSING)
def test_whatever_a_function_raises_at_another_point_the_others_count(name, method):
    forward, backward, x = REFUSING[name]
    report = check(forward, backward, {"x": np.array(x)}, method=method)
    assert report.ok, str(report)
    assert report["x"].undecidable == 0
    assert not check(forward, lambda d, x: 1.001 * backward(d, x), {"x": np.array(x)}, method=method).ok


def test_a_kink_does_not_hide_what_is_wrong_beside_it():
    x = np.array([1.0, 2.0, 0.0, -1.0, 3.0])
    found = check(lambda x: np.maximum(x, 0), lambda d, x: -d * (x > 0), {"x": x})["x"]
    assert found.diagnosis.startswith("forward is not differentiable at [2]: its slope is ")
    assert found.diagnosis.endswith("besides, in other entries: it is -1 times the numerical gradient throughout")
    found = check(lambda x: np.maximum(x, 0), lambda d, x: d * (x > 0), {"x": x})["x"]
    assert found.diagnosis.startswith("forward is not differentiable at [2]: its slope is ")
    assert "besides" not in found.diagnosis


def test_clipping_is_not_called_a_missing_normalization():
    x, w = normal(3, 2), normal(2, 2, seed=1)

    def by_rows(d, x, w):
        return (d * np.minimum(1, 1.2 / np.sqrt((d * d).sum(axis=1, keepdims=True)))) @ w.T, x.T @ d

    def by_entries(d, x, w):
        return np.clip(d, -0.5, 0.5) @ w.T, x.T @ d

    for backward in (by_rows, by_entries):
        named = 0
        for seed in range(12):
            found = check(lambda x, w: x @ w, backward, {"x": x, "w": w}, rng=seed)["x"]
            if not found.ok:
                assert "along the rows" not in found.diagnosis
                named += "not linear in the gradient of the output" in found.diagnosis
        assert named > 4


@pytest.mark.parametrize("n", [5, 10, 20])
def test_a_length_less_one_is_a_reading_of_a_factor(n):
    found = check(
        lambda x: ((x - x.mean(axis=0)) ** 2).sum(axis=0) / (n - 1),
        lambda d, x: 2 * d * (x - x.mean(axis=0)) / n,
        {"x": normal(n, 3)},
    )["x"]
    assert f"perhaps {n - 1}/{n}, as of a variance, with n - 1 or n, where n = {n} is the length of" in found.diagnosis
