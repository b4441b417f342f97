"""Who is believed where two gradients disagree: the steps of a verdict, one by one."""

import math
import re

import numpy as np
import pytest
from helpers import each, some_of

from attention_np.gradcheck import METHODS, GradientError, assert_gradients, check
from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDABLE, UNDECIDED, WRONG
from attention_np.gradcheck.judging.measured import Options
from attention_np.gradcheck.judging.saturation import is_lost
from attention_np.gradcheck.judging.verdicts import (
    OWN_ROUNDING,
    _add_noise,
    _projections,
    decide,
    first_verdict,
    suspects,
    why_not_complex_step,
)

from .programs import back_through_softmax, normal, real_only, softmax, takes_the_memory_for_its_own, with_entry
from .subjects import measured

EPS = float(np.finfo(float).eps)
ALL = np.arange(8)
X = np.linspace(0.5, 1.2, 8)
OPTIONS = Options("auto", 0.0, None, 8, {})


@pytest.fixture(autouse=True)
def _as_in_a_check():
    with np.errstate(all="ignore"):
        yield


def looked_at(forward, backward, x=X, **options):
    found = measured(forward, backward, {"x": x}, **options)
    found.look(np.arange(x.size))
    return found


def sine(factor=1.0, dtype=float):
    """The gradient of a sine, times a factor, or a function of the cotangent, of the first one, and of the input."""
    first = []

    def backward(d, x):
        first.append(d.copy())
        return d * (np.cos(x) * np.asarray(factor(d, first[0], x) if callable(factor) else factor)).astype(x.dtype)

    return looked_at(np.sin, backward, X.astype(dtype))


def test_a_closer_look_is_for_entries_that_are_wrong_or_undecided_where_there_is_a_slope():
    found = sine(np.array([1, 3, 1, 1, 1.1, 1.1, 1, 3]))
    found.errors[4], found.errors[5], found.looked[7] = 1.0, np.inf, False
    np.testing.assert_array_equal(first_verdict(found), [1, 4])
    verdicts = [HOLDS, WRONG, HOLDS, HOLDS, UNDECIDED, UNDECIDED, HOLDS, UNCHECKED]
    np.testing.assert_array_equal(found.verdict, verdicts)


def maybe(found):
    answers = found.candidate.claimed("x").ravel(), found.numerical[0]
    other = found.candidate.cotangents[1]
    return is_lost(found.pair(ALL), *answers, found.candidate.question, other, np.random.default_rng(0))


@each("dtype", ["float32", "float64"])
@each(
    ("factor", "lost"),
    [
        (2.0, False),  # the same multiple everywhere is a bug
        (-1.0, False),
        (1 + 1e-3, False),
        (1 + 1e-8, False),  # so is what is slight
        (0.0, True),
        (lambda d, first, _x: np.where((d == first).all(), 2.0, 3.0), True),
        (lambda d, first, _x: np.where((d == first).all(), -1.0, 3.0), True),
        (lambda d, first, _x: np.where((d == first).all(), 2.0, -2.0), True),
        (lambda _d, _first, x: 2 + x, True),
        (lambda _d, _first, x: np.where(np.isclose(x, X).all(), 2.0, 3.0), True),
        (lambda _d, _first, x: 1 + 1e-8 * x, False),
        (lambda _d, _first, x: 1e3 * (1 + 1e-8 * x), False),
        (lambda _d, _first, x: 1e-3 * (2 + x), True),
    ],
)
def test_what_is_lost_is_gross_and_another_multiple_elsewhere(factor, lost, dtype):
    np.testing.assert_array_equal(maybe(sine(factor, dtype)), np.full(8, lost))


def test_of_an_output_of_one_number_a_fixed_multiple_is_none_that_was_lost():
    found = looked_at(lambda x: np.sin(x).sum(), lambda d, x: 2 * d * np.cos(x))
    assert not maybe(found).any()


@each("size", [1e-12, 1e-17, 1e-30])
def test_what_is_tiny_has_not_saturated(size):
    report = check(softmax, lambda d, x: 0 * d * x, {"x": size * normal(3, 5)})
    assert report["x"].wrong == 15


@each("method", ["complex-step", "central"])
def test_a_backward_that_gives_nothing_in_a_wider_dtype_is_judged_by_what_it_gives(method):
    def backward(d, x):
        return np.where(x.dtype == np.float64, 1.001, np.nan) * d * np.cos(x)

    report = check(np.sin, backward, {"x": X}, method=method)
    assert report["x"].wrong == 8


def partly_conjugate(share):
    """The square of x, its complex slope off by a share."""
    return lambda x: (1 - share) * x * x + share * (x * np.conj(x)).real


@each("scale", [1e-3, 1.0, 1e3])
@each(
    ("share", "claimed", "believed"),
    [
        (1.0, 1.0, True),
        (1.0, 3.0, True),  # they say something else than both, and grossly so
        (0.0, 3.0, False),  # both agree
        (1e-7, 1.0, True),  # slightly so, but two against one
        (1e-7, 1 + 1e-6, False),
        (1e-7, 1 + 5e-8, False),  # between the two, but close to none
        (1e-7, -1.0, False),
        (4e-6, 3.0, True),
        (4e-7, 3.0, False),
    ],
)
def test_differences_contradict_a_complex_step_if_they_are_far_from_it_or_are_what_is_claimed(
    share, claimed, believed, scale
):
    found = looked_at(partly_conjugate(share), lambda d, x: claimed * 2 * d * x, scale * X)
    first_verdict(found)
    reason = why_not_complex_step(found, suspects(found))
    assert (reason is not None) == believed
    if believed:
        assert reason.startswith("the complex step gives the slope ")


def test_a_contradiction_is_put_with_both_slopes_of_the_first_such_entry():
    def forward(x):
        return np.where(ALL >= 3, (x * np.conj(x)).real, x * x)

    found = looked_at(forward, lambda d, x: d * np.where(ALL >= 2, 2 + 0 * x, 2 * x), ALL + 3.0)
    assert first_verdict(found).size
    u = found.candidate.first.cotangent
    assert why_not_complex_step(found, suspects(found)) == (
        f"the complex step gives the slope {0 * u[3]:.9g}, differences {2 * u[3] * 6:.9g}: "
        "forward is not analytic (a cast, an abs, a comparison of complex numbers?), or loses small imaginary parts"
    )


@each(
    ("forward", "claimed", "x"),
    [
        (lambda x: 1e12 + 0 * x + (x * np.conj(x)).real, lambda x: 2 * x, 1e-6 * X),  # whose last bits drown it
        (lambda x: 1 / (1 + np.exp(-x)), lambda x: 2 * np.exp(-x), np.linspace(37.5, 39, 8)),  # where that is saturated
    ],
)
def test_differences_that_see_too_little_of_the_output_contradict_nothing(forward, claimed, x):
    found = looked_at(forward, lambda d, x: d * claimed(x), x)
    first_verdict(found)
    assert (found.verdict == WRONG).all()
    assert why_not_complex_step(found, suspects(found)) is None


def test_differences_that_take_the_place_of_complex_steps_are_judged_with_the_same_tolerance():
    for rtol, verdict in ((0.2, HOLDS), (0.05, WRONG)):
        found = looked_at(partly_conjugate(1.0), lambda d, x: 2.2 * d * x)
        decide(found, OPTIONS._replace(rtol=rtol))
        assert found.method == "central"
        assert (found.verdict == verdict).any()


def test_steps_that_are_too_long_for_a_function_are_replaced_by_the_best_ones():
    found = check(lambda x: np.sin(100 * x), lambda d, x: 100 * d * np.cos(100 * x), {"x": X}, method="central")["x"]
    assert (found.wrong, found.undecidable) == (0, 0)


def in_double_only(backward):
    return lambda d, x: np.float64(1) * backward(d.astype(np.float64), x.astype(np.float64))


@each("method", ["complex-step", "central"])
@each(("factor", "wrong"), [(1.0, 0), (1.001, 8)])
def test_without_a_wider_dtype_larger_moves_show_the_rounding_near_saturation(factor, wrong, method):
    backward = in_double_only(lambda d, x: factor * d * (1 - np.tanh(x) ** 2))
    report = check(np.tanh, backward, {"x": np.linspace(8.5, 9.5, 8)}, method=method)
    assert report["x"].wrong == wrong


@each("wrapped", [in_double_only, lambda backward: backward])
@each(
    ("slope", "ok"),
    [(lambda p, x: p * (1 - p), True), (lambda p, x: 2 * np.exp(-x), False)],  # noqa: ARG005
)
def test_what_saturated_outputs_lose_is_excused_with_and_without_a_wider_dtype(slope, ok, wrapped):
    backward = wrapped(lambda d, x: d * slope(1 / (1 + np.exp(-x)), x))
    report = check(lambda x: 1 / (1 + np.exp(-x)), backward, {"x": np.linspace(38.5, 40, 8)}, method="complex-step")
    assert report.ok == ok


def test_what_both_methods_lose_of_a_weight_that_rounds_to_one_is_excused_in_a_narrow_dtype():
    x = 40 * np.array([[0.90535587, 0.44637457], [-0.53695324, 0.5811181]], np.float32)
    report = check(softmax, back_through_softmax, {"x": x})
    assert report.ok, str(report)


@each("method", METHODS)
def test_a_gross_error_behind_a_steep_pole_is_found(method):
    def backward(d, x):
        return -8 * d / (x - 0.5) ** 8  # a ninth power is right

    report = check(lambda x: 1 / (x - 0.5) ** 8, backward, {"x": np.array([1.0000001, 1.3, 0.9])}, method=method)
    assert report["x"].wrong == 3


def test_the_clearest_wrong_entries_are_looked_at_last_whatever_their_size():
    size = np.where(np.arange(1000) < 950, 1e-20, 1e20)

    def backward(d, x):
        noisy = x * 10001 - x * 10000  # right but for noise
        return d * size * np.where(np.arange(1000) < 950, 2 * x, noisy)

    x = np.linspace(1, 2, 1000)
    found = check(lambda x: size * x * x / 2, backward, {"x": x}, vectorized=["x"], method="complex-step")["x"]
    np.testing.assert_array_equal(found.details.verdict == WRONG, np.arange(1000) < 950)


@each("method", ["auto", "central"])
@each("wrong", *some_of([200, 20, 1], 3))
def test_what_is_wrong_takes_at_most_five_times_as_long_as_what_holds(wrong, method):
    def calls(factor):
        count = 0

        def forward(x):
            nonlocal count
            count += 1
            return np.sin(x)

        def backward(d, x):
            return d * np.cos(x) * np.where(np.arange(x.size) < wrong, factor, 1)

        found = check(forward, backward, {"x": np.linspace(0.1, 1.4, 200)}, method=method)["x"]
        assert found.wrong == (0 if factor == 1 else wrong)
        return count

    assert calls(1.5) <= 5 * calls(1.0)


@each("method", ["auto", "complex-step", "central"])
def test_gradients_at_the_two_ends_of_the_range_disagree_without_a_warning(method):
    slope = np.array([1e308, 1.0])
    report = check(lambda x: slope * x, lambda d, _: -slope * d, {"x": np.array([1e-3, 0.5])}, method=method)
    assert not report.ok


@each("scale", [1e-4, 1.0, 1e4])
@each(("rtol", "ok"), [(1e-6, True), (1e-9, False)])
def test_what_is_allowed_along_directions_grows_with_the_gradient(scale, rtol, ok):
    report = check(
        lambda x: scale * np.sin(x),
        lambda d, x: scale * d * np.cos(x) * (1 + 1e-7),
        {"x": normal(300)},
        max_entries=5,
        directions=4,
        rtol=rtol,
    )
    assert report.ok == ok


def line(claimed, slope=1.0, method="complex-step", dtype=float):
    """A line of the given slopes, all looked at, and what is claimed of it for a cotangent of ones."""
    x = np.linspace(1, 2, np.size(claimed), dtype=dtype)
    found = measured(lambda x: slope * x, lambda d, x: claimed * d / d * np.ones_like(x), {"x": x}, method=method)
    found.look(np.arange(x.size))
    found.numerical[:] = slope
    found.errors[:] = found.floor[:] = 0
    return found


@each(
    ("method", "dtype", "resolution"),
    [
        ("complex-step", "float64", 1e-10),
        ("central", "float64", 1e-7),
        ("complex-step", "float32", 1e3 * 2.0**-23),
        ("central", "float32", 1e3 * 2.0**-23),
    ],
)
def test_an_entry_holds_to_the_resolution_of_the_method_or_of_its_dtype(method, dtype, resolution):
    off = np.array([0.9, 1.1]) * resolution
    found = line((1 + off).astype(dtype), method=method, dtype=dtype)
    _add_noise(found, np.arange(2), np.ones(2))
    np.testing.assert_array_equal(found.verdict, [HOLDS, UNDECIDED])


def test_after_many_doubtful_entries_that_prove_right_the_rest_is_looked_at_all_the_same():
    def backward(d, x):
        return d * (x * 10001 - x * 10000)  # right but for noise

    found = check(lambda x: x * x / 2, backward, {"x": np.linspace(1, 2, 300)}, vectorized=["x"])["x"]
    assert (found.wrong, found.ok) == (0, True)
    assert np.median(found.details.floor) > 100 * EPS


def test_the_closer_look_adds_its_noise_once():
    def backward(d, x):
        return d * (x * 10001 - x * 10000)

    x = np.linspace(1, 2, 40)
    floor = check(lambda x: x * x / 2, backward, {"x": x}, method="complex-step")["x"].details.floor
    assert floor.max() < 12 * 10001 * EPS


@each("factor", [1.0, 1.01])
def test_a_function_of_single_precision_alone_is_not_asked_in_a_wider_dtype(factor):
    def backward(d, x):
        return (factor * takes_the_memory_for_its_own(d) * np.cos(takes_the_memory_for_its_own(x))).astype(x.dtype)

    x = np.linspace(0.5, 1.5, 6, dtype=np.float32)
    found = check(lambda x: np.sin(takes_the_memory_for_its_own(x)), backward, {"x": x}, method="central")["x"]
    assert found.ok == (factor == 1)


def linear(size=200):
    """Outputs that are sums over all entries, and an entrywise line."""
    matrix = normal(6, size, seed=3) / size
    return matrix, lambda x: matrix @ x, lambda d, _: matrix.T @ d


@pytest.mark.parametrize(("error", "fault"), [(0.0, False), (3e-8, True)])
def test_an_error_that_all_entries_share_below_the_noise_of_each_is_found_along_directions(error, fault):
    """Of a sum that is far up, so that no entry alone can be told from its noise."""
    found = check(
        lambda x: x.sum() + 1e6,
        lambda d, x: d * np.ones_like(x) + error,
        {"x": np.ones(2000)},
        method="central",
        max_entries=10,
        directions=6,
    )["x"]
    assert (found.wrong, found.ok) == (0, not fault)
    said = r"along [1-6] of 6 random directions the gradient differs from the slope of forward, yet no single entry .*"
    assert bool(re.fullmatch(said, found.diagnosis or "")) == fault


def test_an_error_that_is_allowed_does_not_decide_what_was_not_looked_at():
    found = check(np.sin, lambda d, x: d * np.cos(x), {"x": normal(30)}, max_entries=10, rtol=1e-3)["x"]
    assert (found.details.verdict == UNCHECKED).sum() == 20
    assert found.checked == 10


@each("method", ["complex-step", "central"])
def test_along_a_direction_the_two_gradients_differ_by_what_the_error_has_of_it(method):
    _, forward, backward = linear()
    error = normal(200, seed=4) * 1e-3
    inputs = {"x": normal(200, seed=5)}
    found = measured(forward, lambda d, x: backward(d, x) + error, inputs, method=method)
    directions = normal(5, 200, seed=6) * np.array([1.0, 1e3, 1e-3, 1.0, 1.0])[:, np.newaxis]
    difference, floor = _projections(found, directions)
    assert difference.shape == floor.shape == (5,)
    assert (abs(difference - directions @ error) <= UNDECIDABLE * floor).all()
    size = np.linalg.norm(directions, axis=1)
    assert (floor <= {"complex-step": 1e-14, "central": 1e-8}[method] * size).all()
    terms = np.linalg.norm(directions * found.candidate.claimed("x"), axis=1)
    assert (floor >= found.slopes_along(directions).errors + OWN_ROUNDING * EPS * terms).all()


def test_what_can_escape_is_measured_by_the_least_size_that_an_entry_has_in_the_directions():
    x = np.array([2.0] * 25 + [1024.0] * 15)

    def forward(x):
        return x**2 / 2

    found = check(forward, lambda d, x: d * x, {"x": x}, max_entries=10, directions=3)["x"]
    gradient = found.details.analytic
    assert found.escape.norm == pytest.approx(2 * np.linalg.norm(gradient), rel=1e-12)
    assert found.escape.entries == 10
    assert 0 < found.escape.threshold < 1e-10 * found.escape.norm


def test_an_error_that_is_allowed_is_allowed_in_very_many_entries():
    x = np.linspace(0.1, 1.4, 600)
    assert check(np.sin, lambda d, x: (1 + 1e-7) * d * np.cos(x), {"x": x}, rtol=1e-6, vectorized=["x"]).ok


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


@each("method", ["auto", *METHODS])
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


@each("method", METHODS)
def test_activations_that_are_kept_from_the_first_call_are_wrong_close_by(method):
    kept = {}

    def backward(d, x):
        return d * (1 - kept.setdefault("y", np.tanh(x)) ** 2)

    report = check(np.tanh, backward, {"x": X}, method=method)
    assert not report.ok
    assert "as if backward did not use x, or kept it from an earlier call" in report["x"].diagnosis


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kept", ["x", "w"])
def test_an_input_that_is_kept_from_the_first_call_is_wrong_where_the_others_move(kept, method):
    first = {}

    def forward(x, w):
        first.setdefault("x", x.copy()), first.setdefault("w", w.copy())
        return np.tanh(x) @ w

    def backward(d, x, w):
        if kept == "x":
            return (d @ w.T) * (1 - np.tanh(x) ** 2), np.tanh(first["x"]).T @ d
        return (d @ first["w"].T) * (1 - np.tanh(x) ** 2), np.tanh(x).T @ d

    report = check(forward, backward, {"x": normal(3, 4), "w": normal(4, 2, seed=1)}, method=method)
    assert [entry.name for entry in report if not entry.ok] == ["w" if kept == "x" else "x"]
    assert f"as if backward did not use {kept}, or kept it from an earlier call" in str(report)


@pytest.mark.parametrize("method", METHODS)
def test_a_bias_that_is_forgotten_shows_though_it_is_zero(method):
    def backward(d, x, w, _):
        d_z = d * (1 - np.tanh(x @ w) ** 2)
        return d_z @ w.T, x.T @ d_z, d_z.sum(axis=0)

    inputs = {"x": normal(3, 4), "w": normal(4, 2, seed=1), "b": np.zeros(2)}
    report = check(lambda x, w, b: np.tanh(x @ w + b), backward, inputs, method=method)
    assert all("as if backward did not use b" in entry.diagnosis for entry in report)


def test_zeros_are_not_moved_to_where_there_are_no_counts():
    first = []

    def forward(x, counts):
        if (counts < 0).any():
            raise ValueError("counts must not be negative")
        first.append(x.copy())
        return counts * np.tanh(x)

    inputs = {"x": normal(4), "counts": np.array([0.0, 2.0, 0.0, 1.0])}
    report = check(
        forward, lambda d, x, counts: (d * counts / np.cosh(first[0]) ** 2, d * np.tanh(x)), inputs, method="central"
    )
    assert "as if backward did not use x, or kept it" in report["x"].diagnosis


@pytest.mark.parametrize("size", [1.0, 1.25])
def test_what_is_made_of_a_mask_is_not_kept_though_it_is_the_same_close_by(size):
    inputs = {"x": normal(3, 4), "mask": size * (normal(3, 4, seed=1) > 0)}

    def backward(d, x, mask):
        return size * d * (mask > 0) / np.cosh(x) ** 2, d * np.tanh(x)

    report = check(lambda x, mask: np.tanh(x) * mask, backward, inputs)
    assert report.ok, str(report)
    assert "is it right by something that is true of this point alone?" in report["x"].note


@each("y", [1.0, 0.0, np.array(1.0), np.zeros(5), np.ones(5), np.array([1.0]), np.array([0.0, 1.0]), np.zeros((2, 3))])
@each("compared", [lambda y: y > 0.5, lambda y: y == 1, lambda y: y != 0])
def test_labels_that_are_all_alike_are_not_kept(y, compared):
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def loss(x, y):
        return -(y * np.log(sigmoid(x)) + (1 - y) * np.log(1 - sigmoid(x)))

    def backward(d, x, y):
        return d * np.where(compared(y), sigmoid(x) - 1, sigmoid(x)), -d * x

    for seed in range(4):
        report = check(loss, backward, {"x": normal(*np.shape(y), seed=seed), "y": np.array(y)}, rng=seed)
        assert report.ok, str(report)


@each(
    "labels",
    [np.eye(3), np.eye(3)[[1]], np.eye(4)[[0, 3, 3, 0]], np.ones((2, 1))],
)
def test_labels_that_are_the_same_backwards_are_not_kept(labels):
    def log_softmax(x):
        return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))

    def backward(d, x, labels):
        chosen = np.arange(x.shape[1]) == labels.argmax(axis=-1)[:, None]
        return d[:, None] * (np.exp(log_softmax(x)) - chosen), -d[:, None] * log_softmax(x)

    inputs = {"x": normal(*labels.shape), "labels": labels}
    report = check(lambda x, labels: -(labels * log_softmax(x)).sum(axis=-1), backward, inputs)
    assert report.ok, str(report)


@each("size", [-1e9, 1.7e9])
def test_what_is_large_elsewhere_excuses_nothing(size):
    def backward(d, x, _):
        y = softmax(x.astype(np.float32))
        d_x = y * (d.astype(np.float32) - (d * y).sum(axis=-1, keepdims=True).astype(np.float32))
        return d_x.astype(float), 0 * x

    inputs = {"x": normal(3, 6), "large": np.full((3, 6), size)}
    report = check(lambda x, large: softmax(x + 0 * large), backward, inputs)
    assert report["x"].wrong > 9
    assert not report["x"].undecided


@each("far", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1])
def test_what_is_wrong_beyond_the_edge_of_a_smooth_piece_is_no_tolerance(far):
    def clamped(x):
        return np.where(x <= -1, -1.0, np.where(x >= 1, 1.0, 1.5 * x - 0.5 * x**3))

    found = check(clamped, lambda d, x: d * 1.5 * (1 - x * x), {"x": np.array([0.2, 0.5, -1 - far])})["x"]
    assert found.wrong == 1
    assert "tolerance of its own" not in str(found.note)


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


@each("method", ["auto"], long=["central"])
@each("name", TRUE_HERE)
def test_a_gradient_that_is_right_at_this_point_holds(name, method):
    forward, backward, inputs = TRUE_HERE[name]
    for seed in range(5):
        report = check(forward, backward, inputs, method=method, rng=seed)
        assert report.ok, str(report)
        assert not (name.startswith("Huber") and "this point alone" in str(report)), str(report)
    if name.startswith("log det"):
        assert "is it right by something that is true of this point alone?" in report["s"].note


def test_rounding_at_other_points_is_no_fault():
    def forward(x):  # the scores and their mean cancel: the gradient is zero
        return x - x.mean() - (x - x.mean())

    for dtype in (np.float32, np.float64):
        for seed in range(3):
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


@each("method", METHODS)
@each("name", REFUSING)
def test_whatever_a_function_raises_at_another_point_the_others_count(name, method):
    forward, backward, x = REFUSING[name]
    report = check(forward, backward, {"x": np.array(x)}, method=method)
    assert report.ok, str(report)
    assert report["x"].undecidable == 0
    assert not check(forward, lambda d, x: 1.001 * backward(d, x), {"x": np.array(x)}, method=method).ok


def logit(p):
    return np.array([math.log(k / (1 - k)) for k in p])


@each(
    ("forward", "slope", "x"),
    [
        (logit, lambda p: 1 / (p * (1 - p)), [0.05, 0.5, 0.999, 1e-6]),
        (lambda x: np.array(math.log(x[1] / x[0])), lambda x: np.array([-1 / x[0], 1 / x[1]]), [0.1, 2e4]),
        (lambda x: np.array([math.sqrt(k) for k in x]), lambda x: 0.5 / np.sqrt(x), [1e-9, 1e-3, 0.5, 2.0]),
    ],
)
def test_an_entry_next_to_the_end_of_the_domain_is_held_against_a_step_that_stays_within(forward, slope, x):
    forward, x = real_only(forward), np.array(x)
    right = check(forward, lambda d, x: d * slope(x), {"x": x})["x"]
    assert right.ok, str(right)
    assert not right.undecidable
    for k in range(x.size):
        wrong = check(forward, lambda d, x, k=k: d * with_entry(slope(x), k, 2 * slope(x)[k]), {"x": x})["x"]
        assert wrong.wrong == 1
        assert wrong.worst_index == (k,)


def test_no_small_entry_beside_larger_ones_is_asked_beyond_zero():
    asked = []

    def root(x):  # of what is negative, the iteration never ends
        asked.append(x.min())
        y = np.maximum(x, 1)
        for _ in range(60):
            y = (y + x / y) / 2
        return y

    for x in ([1e-3, 0.5, 2.0], [1e-4, 0.5, 2.0], [1e-6, 1e6]):
        for times in (1, 1.001, 1.01, 2):
            report = check(real_only(root), lambda d, x, k=times: d * k * 0.5 / np.sqrt(x), {"x": np.array(x)})
            assert report.ok == (times == 1)
    assert min(asked) > 0


@each("limit", [1e-6, 1e-8])
@each("error", [RuntimeError, MemoryError, TypeError])
def test_what_is_small_is_not_asked_far_away(limit, error):
    def decay(t):  # by steps of a size of its own, say: what is far takes for ever, or all memory
        if t.real.max() > limit:
            raise error("too far")
        return np.exp(-1e9 * t)

    t = {"t": np.array([1e-9, 2.3e-9])}
    assert check(decay, lambda d, t: -1e9 * d * np.exp(-1e9 * t), t).ok
    assert not check(real_only(decay), lambda d, t: -1.01e9 * d * np.exp(-1e9 * t), t).ok


def test_inputs_that_only_hold_together_are_not_all_made_small():
    def solved(x, y):
        if (x + y < 1).any():
            raise RuntimeError("did not converge")
        return np.arccosh(x + y)

    def backward(d, x, y, times=1.0):
        return (times * d / np.sqrt((x + y) ** 2 - 1),) * 2

    inputs = {"x": np.array([1.5, 1.7]), "y": np.array([1.5, 1.2])}
    assert check(real_only(solved), backward, inputs).ok
    wrong = check(real_only(solved), lambda *question: backward(*question, times=1.01), inputs)
    assert [entry.wrong for entry in wrong] == [2, 2]


@each("near", [1e-4, 1e-5, 1e-6, 1e-7])
@each(
    ("forward", "slope"),
    [
        (lambda t: math.sqrt(1 - t * t), lambda t: -t / math.sqrt(1 - t * t)),
        (lambda t: math.log(4 - 4 * t * t), lambda t: -2 * t / (1 - t * t)),
        (lambda t: math.sqrt(t - t * t), lambda t: (1 - 2 * t) / (2 * math.sqrt(t - t * t))),
    ],
)
def test_next_to_the_end_of_the_domain_what_cancels_rounds_by_last_bits_of_its_terms(forward, slope, near):
    for seed in range(5):
        x = 1 - near * np.random.default_rng(seed).uniform(0.3, 1, 2)
        function = real_only(lambda x: np.array([forward(t) for t in x]))
        right = check(function, lambda d, x: d * np.array([slope(t) for t in x]), {"x": x}, rng=seed)["x"]
        assert right.ok, str(right)
        wrong = check(function, lambda d, x: d * np.array([1.01 * slope(t) for t in x]), {"x": x}, rng=seed)["x"]
        assert wrong.wrong


@each("t", [1e-6, 1e-7, 1e-8, 1e-10])
@each("beside", [[], [0.5]])
def test_an_output_that_rounding_keeps_where_it_is_may_have_a_slope(t, beside):
    def forward(t):
        return np.stack([np.cos(t), np.sin(t)])

    report = check(real_only(forward), lambda d, t: d[1] * np.cos(t) - d[0] * np.sin(t), {"t": np.array([t, *beside])})
    assert report.ok, str(report)


@each(("a", "b"), [(1e3, 1e-9), (1e3, 1e-7), (1e6, 1e-9), (1e8, 1e-6), (1.7e9, 1e-5)])
def test_a_way_that_rounding_hides_is_not_said_to_hold_without_it(a, b):
    def forward(x):
        return np.array([x[0] + 0.7 * x[1], 0.3 * x[1]])

    inputs = {"x": np.array([a, b])}
    for way in (0.7, 0):
        found = check(real_only(forward), lambda d, x, k=way: np.array([d[0], k * d[0] + 0.3 * d[1]]), inputs)["x"]  # noqa: ARG005
        assert found.ok == (way > 0), str(found)


@each("large", [1e4, 1e5, 1e6])
def test_a_claim_that_agrees_with_what_rounding_leaves_is_held_against_more(large):
    forward = real_only(lambda x: large * (1 + x * x) + x)
    x = np.array([1e-8, 1.0])
    assert check(forward, lambda d, x: d * (2 * large * x + 1), {"x": x}).ok
    wrong = check(forward, lambda d, x: d * (2 * large * np.array([0, x[1]]) + 1), {"x": x})["x"]
    assert (wrong.wrong, wrong.worst_index) == (1, (0,))


@each("hidden", [-30.0, -100.0, -300.0, -1e9])
@each("method", METHODS)
def test_weights_next_to_a_mask_are_not_hidden_by_it(hidden, method):
    mask = np.where(np.arange(4) == 3, hidden, 0) + np.zeros((3, 1))

    def backward(d, s, mask):
        d_s = back_through_softmax(d, s + mask)
        return d_s, d_s

    def attend(s, mask):
        return softmax(s + mask)

    report = check(
        attend, backward, {"s": normal(3, 4), "mask": mask}, method="auto" if method != METHODS[1] else method
    )
    assert report.ok, str(report)


@each("large", [-1e3, -1e9, -np.inf])
def test_a_mask_that_backward_compares_is_used(large):
    def backward(d, s, mask):
        d_s = back_through_softmax(d, np.where(mask < -1, -np.inf, s))
        return d_s, d_s

    mask = np.where(normal(3, 4, seed=2) > 0.7, large, 0.0)
    assert check(lambda s, mask: softmax(s + mask), backward, {"s": normal(3, 4), "mask": mask}).ok


@each("large", [-1e3, -1e5, -1e9])
def test_a_large_mask_hides_nothing_that_is_kept(large):
    first, mask = [], np.where(normal(3, 4, seed=2) > 0.7, large, 0.0)

    def forward(x, mask):
        first.append(x.copy())
        return softmax(3 * np.tanh(x) + mask)

    def backward(d, x, mask):
        d_s = back_through_softmax(d, 3 * np.tanh(x) + mask)
        return d_s * 3 * (1 - np.tanh(first[0]) ** 2), d_s

    report = check(forward, backward, {"x": normal(3, 4), "mask": mask})
    assert "it holds here and not close by" in str(report["x"].note)


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
        for seed in range(4):
            found = check(lambda x, w: x @ w, backward, {"x": x, "w": w}, rng=seed)["x"]
            if not found.ok:
                assert "along the rows" not in found.diagnosis
                named += "not linear in the gradient of the output" in found.diagnosis
        assert named > 1


def rounded(decimal):
    """A sine of a few decimals, as of a table."""

    def forward(x):
        if x.dtype.kind == "c":
            raise TypeError("real numbers alone")
        return np.round(np.sin(x) / decimal) * decimal

    return forward


@each("decimal", [1e-3, 1e-2, 1e-1])
@each("factor", [1.0, 1.5, 0.0, -1.0])
def test_what_is_lost_in_a_noise_of_its_own_size_does_not_pass(decimal, factor):
    x = {"x": np.linspace(-1, 1.3, 9)}
    of_steps = decimal == 1e-1 and factor == 0  # which are too long for any rounding: then zero is right
    assert check(rounded(decimal), lambda d, x: factor * d * np.cos(x), x).ok == of_steps


@each("seed", *some_of(range(12), 3))
@pytest.mark.parametrize("step", [1.0, 0.25])
def test_zero_is_the_gradient_of_a_staircase_also_where_a_step_is_close(step, seed):
    x = 5 * step * np.random.default_rng(seed).standard_normal(20)
    for claimed in (np.zeros_like, np.copy):
        report = check(lambda x: step * np.floor(x.real / step), lambda d, _, claimed=claimed: claimed(d), {"x": x})
        assert report.ok == (claimed is np.zeros_like), str(report)


def log_of_sum(x):
    top = x.real.max(axis=1, keepdims=True)
    return (top + np.log(np.exp(x - top).sum(axis=1, keepdims=True)))[:, 0]


@each("seed", *some_of(range(12), 3))
def test_what_the_last_bit_of_large_numbers_makes_of_their_difference_is_rounding(seed):
    backward = in_double_only(lambda d, x: d[:, None] * np.exp(x - log_of_sum(x)[:, None]))
    x = 300 + 30 * np.random.default_rng(seed).standard_normal((4, 5))
    assert check(log_of_sum, backward, {"x": x}, rng=seed).ok
    assert check(log_of_sum, lambda *a: (1 + 1e-11) * backward(*a), {"x": x}, rng=seed)["x"].wrong


EDGES = {  # a claim that is right on one side of 1 alone, of functions that are smooth there
    "a square": (lambda x: x * x, lambda x: np.where(x < 1, 2 * x, 3 * x)),
    "Huber's loss": (
        lambda x: np.where(np.abs(x.real) <= 1, x * x / 2, np.sign(x.real) * x - 0.5),
        lambda x: np.where(np.abs(x) < 1, x, np.where(np.abs(x) > 1, np.sign(x), 0)),
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", EDGES)
def test_a_claim_that_jumps_where_forward_does_not_is_wrong_at_the_edge_itself(name, method):
    forward, slope = EDGES[name]
    found = looked_at(forward, lambda d, x: d * slope(x), np.array([0.2, 0.5, 1.0]), method=method)
    decide(found, OPTIONS)
    np.testing.assert_array_equal(found.verdict, [HOLDS, HOLDS, WRONG])
    assert found.method == method


@pytest.mark.parametrize("threshold", [1.0, 2.0, 5.0, 100.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gradient_that_is_clipped_is_seen_however_large_it_may_be(threshold, dtype):
    def backward(d, x):
        return np.clip(d * (1 - np.tanh(x) ** 2), -threshold, threshold)

    found = check(np.tanh, backward, {"x": np.linspace(-1, 1, 6, dtype=dtype)})["x"]
    assert not found.ok


@pytest.mark.parametrize("x", [[0.55, 0.22], [1.05, 1.78], [-1.1, -0.73], [-1.02, -1.47]])
def test_beside_a_large_constant_what_differences_cannot_know_is_no_tolerance_of_forward(x):
    def backward(d, x):
        return d * np.cos(x) * [1 + 6e-6, 1]

    found = check(lambda x: 1e7 + np.sin(x).sum(keepdims=True), backward, {"x": np.array(x)}, method="central")["x"]
    assert not found.ok
    assert found.wrong == 1
