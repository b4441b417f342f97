"""Correct functions whose entries, slopes or outputs are of very different sizes, and what is not seen of them."""

import numpy as np
import pytest

from attention_np.gradcheck import NotAnalyticError, check, numerical_gradient

from .programs import normal

EPS = float(np.finfo(float).eps)


def l1_norm(x):
    return np.array(np.abs(x).sum())


def relu_sum(x):
    return np.array(np.maximum(x.real, 0).sum())


def leaky(x):
    return np.array(np.where(x.real > 0, x.real, 0.1 * x.real).sum())


def length(x):
    return np.array(np.hypot(x, 1.0).sum())


BENT = {
    "the modulus": (l1_norm, lambda d, x: d * np.sign(x)),
    "max(x, 0)": (relu_sum, lambda d, x: d * (x > 0)),
    "a leaky one": (leaky, lambda d, x: d * np.where(x > 0, 1, 0.1)),
    "hypot, that is smooth": (length, lambda d, x: d * x / np.hypot(x, 1.0)),
}
FROM_ONE = {
    "pseudo-Huber": (lambda x: np.sqrt(1 + x * x) - 1, lambda d, x: d * x / np.sqrt(1 + x * x)),
    "1 - cos": (lambda x: 1 - np.cos(x), lambda d, x: d * np.sin(x)),
    "1 - exp": (lambda x: 1 - np.exp(-x * x), lambda d, x: d * 2 * x * np.exp(-x * x)),
    "log(1 + x^2)": (lambda x: np.log(1 + x * x), lambda d, x: d * 2 * x / (1 + x * x)),
}


@pytest.mark.parametrize("powers", [4, 12])
@pytest.mark.parametrize("name", BENT)
def test_a_step_longer_than_an_entry_sees_a_bend_between_and_does_not_look_past_it(name, powers):
    forward, backward = BENT[name]
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = rng.choice([-1, 1], 6) * 10.0 ** rng.uniform(-powers, powers, 6)
        report = check(forward, backward, {"x": x}, rng=seed)
        assert report.ok, f"{x.tolist()}\n{report}"


def test_what_differences_cannot_tell_beside_a_large_term_is_not_called_known():
    x = np.array([1e-8, 1e6])
    gradient, error = numerical_gradient(l1_norm, {"x": x}, np.ones(()), method="central", return_error=True)
    assert abs(gradient["x"][0] - 1) <= 10 * error["x"][0]
    assert abs(gradient["x"][1] - 1) < 1e-7
    assert error["x"][1] < 1e-7
    report = check(l1_norm, lambda d, x: d * np.sign(x), {"x": x}, method="central")
    assert report["x"].undecided == ((0,),)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", ["auto", "central"])
@pytest.mark.parametrize(
    "name", [*list(FROM_ONE)[:1], *(pytest.param(n, marks=pytest.mark.long) for n in list(FROM_ONE)[1:])]
)
def test_what_is_left_of_one_moves_in_last_bits_of_one(name, method, dtype):
    forward, backward = FROM_ONE[name]
    eps = float(np.finfo(dtype).eps)
    for size in (0.01 * eps, 0.1 * eps**0.5, eps**0.5, 30 * eps**0.5, 1000 * eps**0.5):
        x = (size * normal(4)).astype(dtype)
        report = check(forward, backward, {"x": x}, method=method)
        assert report.ok, f"{x.tolist()}\n{report}"
        assert not (method == "auto" and dtype == np.float64 and report["x"].undecidable)


def test_a_gradient_that_is_grossly_wrong_is_found_though_differences_are_coarse():
    forward, _ = FROM_ONE["pseudo-Huber"]
    found = check(forward, lambda d, _: d, {"x": 1e-9 * normal(4)}, method="central")["x"]
    assert found.wrong == 4
    assert (np.abs(found.details.numerical) <= 10 * found.details.floor).all()  # nothing is known but that it is small


def test_the_slopes_of_what_does_not_move_are_zero_and_known():
    dead = -np.abs(normal(5)) - 0.1
    found = check(lambda x: np.maximum(x.real, 0), lambda d, x: d * (x > 0), {"x": dead})["x"]
    assert (found.ok, found.undecidable, found.method) == (True, 0, "central")
    assert check(lambda x: np.maximum(x.real, 0), lambda d, _: 1e-9 * d, {"x": dead})["x"].wrong == 5
    masked = np.array([1.0, 0.0, 1.0, 0.0, 1.0])
    found = check(lambda x: x.real * masked, lambda d, _: d * masked, {"x": normal(5)})["x"]
    assert (found.ok, found.undecidable) == (True, 0)


BRANCHES = {
    "a modulus": (np.abs, np.sign),
    "the square of a real part": (lambda x: x.real**2, lambda x: 2 * x),
    "half a square": (lambda x: x * np.abs(x) / 2, np.abs),
}


@pytest.mark.parametrize("large", [1e3, 1e9, 1e12])
@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_that_is_not_analytic_is_seen_however_large_the_others_are(name, large):
    branch, slope = BRANCHES[name]
    x = np.array([0.3, -0.7, 1.0, -2.0, 0.5])

    def forward(x):
        return np.concatenate([large * np.sin(x[:2]), branch(x[2:])])

    def backward(d, x, factor=1.0):
        return np.concatenate([d[:2] * large * np.cos(x[:2]), factor * d[2:] * slope(x[2:])])

    by_complex_step = 0.5 if name == "half a square" else 0.0  # times the right gradient
    found = check(forward, lambda d, x: backward(d, x, by_complex_step), {"x": x})["x"]
    assert found.method == "central"
    assert "forward is not analytic" in found.note
    assert found.wrong == 3
    report = check(forward, backward, {"x": x})
    assert report.ok, str(report)


def test_a_function_that_stays_zero_is_not_analytic_if_the_complex_step_says_that_it_moves():
    """log sum exp(x - max x) of a row with one large score: its gradient is p - onehot, and rounds to zero."""

    def weights(x):
        scores = np.exp(x - x.real.max(axis=-1, keepdims=True))
        return scores / scores.sum(axis=-1, keepdims=True)

    def forward(x):  # the complex step leaves the maximum out
        return np.log(np.exp(x - x.real.max(axis=-1, keepdims=True)).sum(axis=-1))

    for seed in range(3):
        x = normal(3, 4, seed=seed) + np.array([50.0, 0, 0, 0])
        largest = x == x.max(axis=-1, keepdims=True)
        report = check(forward, lambda d, x, largest=largest: d[:, None] * (weights(x) - largest), {"x": x}, rng=seed)
        assert report.ok, str(report)
        assert not check(forward, lambda d, x: d[:, None] * weights(x), {"x": x}, rng=seed).ok


def test_what_stays_zero_for_want_of_digits_speaks_against_no_complex_step():
    def forward(x):  # 1e-14 at most, beside one
        return np.log(1 + (1e-6 * x / (1 + x * x)) ** 2)

    def backward(d, x):
        y = 1e-6 * x / (1 + x * x)
        return d * 2 * y / (1 + y * y) * 1e-6 * (1 - x * x) / (1 + x * x) ** 2

    for seed in range(10):
        found = check(forward, backward, {"x": 3 * normal(3, seed=seed).astype(np.float32)}, rng=seed)["x"]
        assert (found.ok, found.method) == (True, "complex-step")


@pytest.mark.parametrize("share", [1e-6, 1e-9])  # which a trial along all entries sees, and does not see
def test_a_term_that_is_not_analytic_is_seen_in_a_sum_with_larger_ones(share):
    def forward(x):
        return np.array(np.sin(x[0]) + share * np.abs(x[1]))

    inputs = {"x": np.array([0.3, 2.0])}
    found = check(forward, lambda d, x: d * np.array([np.cos(x[0]), 0.0]), inputs)["x"]
    assert (found.method, found.worst_index, found.wrong) == ("central", (1,), 1)
    assert found.note.startswith("the complex step gives the slope ")
    assert check(forward, lambda d, x: d * np.array([np.cos(x[0]), share * np.sign(x[1])]), inputs).ok
    with pytest.raises(NotAnalyticError, match=r"^input x: the complex step gives .* use central$"):
        check(forward, lambda d, x: d * np.array([np.cos(x[0]), 0.0]), inputs, method="complex-step")


STAIRS = {
    "a clipped straight-through": (lambda x: np.clip(x.real, -1, 1), lambda d, _: d, [3.0, 0.5], 1),
    "sign": (lambda x: np.sign(x.real), lambda d, x: 0 * d * x, [0.5, -2.0, 3.0], 0),
    "a rounded straight-through": (lambda x: np.round(x.real), lambda d, _: d, [3.2, 0.7], 2),
    "max(-x, 0)": (lambda x: (np.abs(x) - x) / 2, lambda d, x: 0 * d * x, [1.5, 0.3], 0),
}


@pytest.mark.parametrize("unit", [1.0, 1e-12])
@pytest.mark.parametrize("name", STAIRS)
def test_the_verdict_on_what_is_flat_does_not_depend_on_the_unit_of_the_output(name, unit):
    forward, backward, x, wrong = STAIRS[name]
    found = check(lambda x: unit * forward(x), lambda d, x: unit * backward(d, x), {"x": np.array(x)})["x"]
    assert (found.ok, found.wrong, found.undecidable) == (wrong == 0, wrong, 0)
