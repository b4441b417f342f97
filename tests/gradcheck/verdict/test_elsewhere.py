"""What holds for one cotangent at one point, and does not keep to that."""

import numpy as np
from helpers import each

from attention_np.gradcheck import METHODS, check
from attention_np.gradcheck.check import check_by
from attention_np.gradcheck.evidence import FAR

from ..programs import normal, softmax

X = np.linspace(0.5, 1.2, 8)
WAYS = each("method", ["auto"], long=["central"])
UNUSED = "as if backward did not use {0}, or kept it from an earlier call"
ONLY_HERE = "it holds here and not close by: is it right by something that is true of this point alone?"
LINEAR = "it is right for one cotangent, but backward is not linear in the gradient of the output"


def sine(claimed, dtype=float, method="auto"):
    return check(np.sin, lambda d, x: claimed(d, x).astype(x.dtype), {"x": X.astype(dtype)}, method=method)["x"]


@each("dtype", ["float32", "float64"])
@WAYS
def test_a_gradient_that_is_clipped_is_seen_however_large_it_may_be(method, dtype):
    for most in (3.0, 30.0, 300.0):
        found = sine(lambda d, x, m=most: np.clip(d * np.cos(x), -m, m), dtype, method)
        assert (found.ok, found.wrong) == (False, 0)
        assert found.diagnosis.startswith(LINEAR)
    assert sine(lambda d, x: np.clip(d * np.cos(x), -1e6, 1e6), dtype, method).ok


def test_a_gradient_that_is_kept_from_the_first_call_is_wrong_for_another_cotangent():
    kept = {}
    found = check(np.tanh, lambda d, x: kept.setdefault("d_x", d / np.cosh(x) ** 2).copy(), {"x": X})["x"]
    assert (found.ok, found.wrong) == (False, 0)
    assert found.diagnosis.startswith(LINEAR)


@WAYS
@each("kept", ["x", "w"])
def test_an_input_that_is_kept_from_the_first_call_is_wrong_where_the_others_move(kept, method):
    first = {}

    def forward(x, w):
        first.setdefault("x", x.copy()), first.setdefault("w", w.copy())
        return np.tanh(x) @ w

    def backward(d, x, w):
        there = {"x": x, "w": w, kept: first[kept]}
        return (d @ there["w"].T) * (1 - np.tanh(x) ** 2), np.tanh(there["x"]).T @ d

    report = check(forward, backward, {"x": normal(3, 4), "w": normal(4, 2, seed=1)}, method=method)
    other = "w" if kept == "x" else "x"
    assert [entry.name for entry in report if not entry.ok] == [other]
    assert UNUSED.format(kept) in report[other].diagnosis


@WAYS
def test_a_bias_that_is_forgotten_shows_though_it_is_zero(method):
    def backward(d, x, w, _):
        d_z = d * (1 - np.tanh(x @ w) ** 2)
        return d_z @ w.T, x.T @ d_z, d_z.sum(axis=0)

    inputs = {"x": normal(3, 4), "w": normal(4, 2, seed=1), "b": np.zeros(2)}
    report = check(lambda x, w, b: np.tanh(x @ w + b), backward, inputs, method=method)
    assert all(UNUSED.format("b") in entry.diagnosis for entry in report)


@each("size", [1.0, 1.25])
def test_what_is_made_of_a_mask_is_not_kept_though_it_is_the_same_close_by(size):
    inputs = {"x": normal(3, 4), "mask": size * (normal(3, 4, seed=1) > 0)}

    def backward(d, x, mask):
        return size * d * (mask > 0.5) / np.cosh(x) ** 2, d * np.tanh(x)

    report = check(lambda x, mask: np.tanh(x) * mask, backward, inputs)
    assert report.ok, str(report)
    assert (report["x"].note, report["mask"].note) == (ONLY_HERE, None)


SYMMETRIC = np.array([[2.0, 0.5, 0.1], [0.5, 3.0, 0.2], [0.1, 0.2, 1.5]])

TRUE_HERE = {  # right by something that is true of the point, or of the other inputs; of which input it is said
    "cross entropy of rows that sum to one": (
        lambda z, t: -(t * np.log(softmax(z))).sum(axis=-1),
        lambda d, z, t: (d[:, None] * (softmax(z) - t), -d[:, None] * np.log(softmax(z))),
        {"z": normal(3, 4), "t": softmax(normal(3, 4, seed=1))},
        "z",
    ),
    "the square of a symmetric form": (
        lambda x, a: x @ a @ x,
        lambda d, x, a: (2 * d * (a @ x), d * np.outer(x, x) + 0 * a),
        {"x": normal(3), "a": SYMMETRIC},
        "x",
    ),
    "log det of a symmetric matrix": (
        lambda s: np.log(np.linalg.det(s)),
        lambda d, s: d * np.linalg.inv(s),
        {"s": SYMMETRIC},
        "s",
    ),
}


@WAYS
@each("name", TRUE_HERE)
def test_a_gradient_that_is_right_at_this_point_holds_and_the_report_says_that_it_may_be_so_here_alone(name, method):
    forward, backward, inputs, where = TRUE_HERE[name]
    for seed in range(3):
        report = check(forward, backward, inputs, method=method, rng=seed)
        assert report.ok, str(report)
        assert [entry.name for entry in report if ONLY_HERE in str(entry.note)] == [where]


def test_a_gradient_that_is_off_close_by_by_less_than_a_millionth_is_right_there():
    """The claim has the slopes of a function with a term that is zero at the point."""
    for size, said in ((1e-8, False), (1e-3, True)):
        found = sine(lambda d, x, c=size: d * (np.cos(x) + c * (x - X) / FAR))
        assert (found.ok, found.note == ONLY_HERE) == (True, said)


def test_where_the_complex_step_refuses_the_other_point_differences_look_there():
    def forward(x):
        if x.dtype.kind == "c" and np.abs(x.real - X).max() > 1e-3:
            raise TypeError
        return np.sin(x)

    reports = check_by(METHODS, forward, lambda d, x: d * (np.cos(x) + (x - X) / FAR), {"x": X})
    assert [report["x"].note for report in reports] == [None, ONLY_HERE]
