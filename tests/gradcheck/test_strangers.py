"""Functions as strangers have them: what they are asked, and what is said of solvers, series and special functions."""

import numpy as np
import pytest
from helpers import each, some_of

from attention_np.gradcheck import check, numerical_gradient, step_errors

ALL = ["auto", "central"]
FACTORS = [1.0, 1.5, 1 + 1e-13]  # right, wrong, and so that it must be looked at more closely


class Questions:
    """A product of two inputs, and what its two functions are called with."""

    def __init__(self, factor=1.0):
        self.factor, self.arrays = factor, []

    def forward(self, x, y):
        self.arrays += [x, y]
        return np.asarray((np.sin(x) * y).sum())

    def backward(self, d_output, x, y):
        self.arrays += [d_output, x, y]
        d_x, d_y = self.factor * d_output * np.cos(x) * y, d_output * np.sin(x)
        return np.asarray(d_x, x.dtype), np.asarray(d_y, y.dtype)


@each("method", ALL)
@each("dtype", ["float32"], long=["float64"])
@each("shape", [()], long=[(3,)])
@each("factor", FACTORS)
def test_everything_that_a_function_is_given_is_an_array(factor, shape, dtype, method):
    inputs = {"x": np.full(shape, 0.7, dtype), "y": np.full(shape, 0.3, dtype)}
    asked = Questions(factor)
    check(asked.forward, asked.backward, inputs, method=method)
    numerical_gradient(asked.forward, inputs, 1.0, method=method)
    step_errors(asked.forward, inputs, entries=2)
    assert all(type(x) is np.ndarray for x in asked.arrays)


@each("method", ALL)
@each("factor", FACTORS)
def test_no_point_is_nan_or_far_away_or_of_another_sign(factor, method):
    inputs = {"x": np.array([0.5, 2.0, 3.0]), "y": -np.array([1.0, 1.5, 0.3])}
    asked = Questions(factor)
    check(asked.forward, asked.backward, inputs, method=method)
    for x in (x for x in asked.arrays if x.shape == (3,)):
        near = [(x.real / start).min() > 0 and np.abs(x.real).max() <= 5 for start in inputs.values()]
        assert any(near), x


def test_a_solver_of_differential_equations_is_checked():
    integrate, start = scipy("integrate"), np.array([1.0, 2.0])

    def forward(k):
        return integrate.solve_ivp(lambda _, y: -k * y, (0, 0.2), start, rtol=1e-9, atol=1e-12).y[:, -1]

    def backward(d_output, k):
        return -0.2 * np.exp(-0.2 * k) * (d_output @ start)

    assert check(forward, backward, {"k": np.array([0.7])}, rtol=1e-6).ok
    assert not check(forward, lambda d, k: 1.01 * backward(d, k), {"k": np.array([0.7])}, rtol=1e-6).ok


@each(
    ("options", "factor", "said"), [({}, 1.0, True)], long=[({"rtol": 1e-6}, 1.0, True), ({"rtol": 1e-6}, 1.5, False)]
)
def test_a_smooth_error_of_a_solver_is_not_told_from_one_of_a_gradient_and_the_report_says_so(options, factor, said):
    integrate, start = scipy("integrate"), np.array([1.0, 0.5])

    def oscillator(frequency, damping):  # its state, and how that moves with both of its parameters
        def rates(_, y):
            q, p = y.reshape(3, 2).T
            forces = -frequency * q - damping * p
            return np.stack([p, forces - np.array([0, q[0], p[0]])], axis=1).ravel()

        return rates

    def forward(x):
        return integrate.solve_ivp(lambda t, y: oscillator(*x)(t, np.pad(y, (0, 4)))[:2], (0, 1), start, **options).y[
            :, -1
        ]

    def backward(d, x):
        exact = integrate.solve_ivp(oscillator(*x), (0, 1), np.pad(start, (0, 4)), rtol=1e-12, atol=1e-12).y[:, -1]
        return factor * exact.reshape(3, 2)[1:] @ d

    found = check(forward, backward, {"x": np.array([2.0, 0.3])})["x"]
    assert found.wrong == 2
    assert ("if forward is a solver, its own error may be as large" in found.diagnosis) == said, found.diagnosis


def scipy(module):
    return pytest.importorskip(f"scipy.{module}", reason="needs SciPy: pip install attention-np[check]")


SPECIAL = {  # whose complex step is rubbish
    "jv(2.5, x)": (lambda s, x: s.jv(2.5, x), lambda s, x: s.jvp(2.5, x)),
    "jv(0, x)": (lambda s, x: s.jv(0, x), lambda s, x: -s.jv(1, x)),
    "jve(1.3, x)": (lambda s, x: s.jve(1.3, x), lambda s, x: s.jvp(1.3, x)),
    "yv(1.5, x)": (lambda s, x: s.yv(1.5, x), lambda s, x: s.yvp(1.5, x)),
}


@each("name", SPECIAL)
def test_what_the_complex_step_cannot_decide_differences_are_asked(name):
    special = scipy("special")
    forward, derivative = SPECIAL[name]
    inputs = {"x": np.linspace(0.5, 3, 5)}

    def checked(claimed, **options):
        return check(lambda x: forward(special, x), claimed, inputs, **options)["x"]

    found = checked(lambda d, x: d * derivative(special, x))
    assert (found.ok, found.method, found.undecidable) == (True, "central", 0)
    for claimed in (lambda d, x: 0 * d * x, lambda d, _: 42 * d, lambda d, x: 1.001 * d * derivative(special, x)):
        assert (checked(claimed).wrong, checked(claimed).method) == (5, "central")


def test_an_input_of_which_no_entry_can_be_decided_is_neither_right_nor_wrong_and_does_not_pass():
    special = scipy("special")
    inputs = {"x": np.linspace(0.5, 3, 5)}
    report = check(lambda x: special.jv(2.5, x), lambda d, x: 0 * d * x, inputs, method="complex-step")
    assert (report.ok, report["x"].verdict, report["x"].wrong) == (False, "undecidable", 0)
    assert report["x"].diagnosis.startswith("it could not be decided: ")
    with pytest.raises(AssertionError, match=r"^the gradient could not be checked for x"):
        report.raise_if_failed()


def hyp2f1():
    special = scipy("special")
    return (
        lambda x: special.hyp2f1(0.5, 1.5, 2.5, x),
        lambda d, x: d * 0.3 * special.hyp2f1(1.5, 2.5, 3.5, x),
        np.linspace(0.1, 0.9, 7),
    )


def by_roots(tolerance):
    optimize = scipy("optimize")

    def solve(slopes, tolerance):
        return np.array([optimize.brentq(lambda t, s=s: np.cos(t) - s * t, 0, 2, xtol=tolerance) for s in slopes])

    def backward(d, x):
        t = solve(x, 1e-14)
        return -d * t / (np.sin(t) + x)

    return lambda x: solve(x, tolerance), backward, np.linspace(0.5, 2, 5)


def kepler():
    optimize = scipy("optimize")

    def forward(mean):
        anomalies = [
            optimize.newton(lambda e, m=m: e - 0.3 * np.sin(e) - m, m, lambda e: 1 - 0.3 * np.cos(e)) for m in mean
        ]
        return np.array(anomalies)

    return forward, lambda d, m: d / (1 - 0.3 * np.cos(forward(m))), np.linspace(0.2, 2.5, 5)


@each("seed", *some_of(range(3), 3))
@each("of", [hyp2f1, kepler, lambda: by_roots(1e-6), lambda: by_roots(1e-12)])
def test_a_series_or_a_solver_with_a_tolerance_of_its_own_is_not_called_wrong(of, seed):
    forward, backward, x = of()
    assert check(forward, backward, {"x": x}, rng=seed).ok
    found = check(forward, lambda d, x: 1.01 * backward(d, x), {"x": x}, rng=seed)["x"]
    assert found.wrong == x.size
    assert found.note is None or "tolerance" not in found.note


@each(("tolerance", "ok", "allowed"), [(1e-6, True, 1e-5), (1e-2, False, 0.1)], long=[(1e-4, False, 1e-3)])
def test_the_report_says_what_tolerance_a_solver_seems_to_have_and_a_coarse_one_does_not_pass(tolerance, ok, allowed):
    forward, backward, x = by_roots(tolerance)
    report = check(forward, backward, {"x": x})
    assert report.ok == ok
    assert "a tolerance of its own" in str(report).replace("\n    ", " ")
    assert not ok or report["x"].undecidable == 2
    found = check(forward, backward, {"x": x}, rtol=allowed)["x"]
    assert (found.ok, found.undecidable) == (True, 0)
    assert not check(forward, lambda d, x: 1.5 * backward(d, x), {"x": x}, rtol=allowed).ok


def test_an_input_that_is_known_to_a_tolerance_only_does_not_pass_until_that_is_allowed():
    def forward(x):  # the angle whose tangent is x, in steps of 1e-3 of the series
        y, term, n = np.zeros_like(x), x.copy(), 1
        while (np.abs(term) > 1e-3).any():
            y, term, n = y + term, -term * x * x * n / (n + 2), n + 2
        return y

    def checked(factor, **options):
        return check(forward, lambda d, x: factor * d / (1 + x * x), {"x": np.array([0.6, 0.7, 0.8])}, **options)

    for factor in (1.0, 1.0001):
        report = checked(factor)
        assert (report.ok, report["x"].verdict, report["x"].undecidable) == (False, "undecidable", 3)
        assert "it could not be decided: no entry is known better than to the tolerance of forward" in str(report)
        assert "allow it by rtol=" in str(report)
        assert checked(factor, rtol=0.01).ok
    assert checked(1.5)["x"].wrong == 3


@each("wave", [10.0, 50.0, 300.0, 3000.0])
@each("method", ALL)
def test_a_smooth_error_is_no_tolerance_however_short_its_wave_is(method, wave):
    def backward(d, x):
        return d * np.cos(x) * (1 + 1e-4 * np.sin(wave * x))

    found = check(np.sin, backward, {"x": np.linspace(0.5, 1.2, 6)}, method=method)["x"]
    assert found.wrong == 6
    assert found.note is None or "tolerance" not in found.note


def until(step, x, *inputs):
    """The limit of a loop that ends close to the point, and where all is smaller."""
    for _ in range(1000):
        y = step(x, *inputs)
        if (np.abs(y - x) <= 1e-12 * np.abs(y)).all():
            return y
        x = y
    pytest.fail(f"it does not end for {inputs}")


def conjugate_gradients(a, b):
    x, r = np.zeros(b.shape, np.result_type(a, b)), b
    p = r
    for _ in range(200):
        along = a @ p
        step = (r @ r) / (p @ along)
        x, last, r = x + step * p, r, r - step * along
        if abs(np.sqrt(r @ r)) <= 1e-10:
            return x
        p = r + (r @ r) / (last @ last) * p
    pytest.fail(f"it does not end for {a}")


def root(x):
    """By Newton's method, which does not end for negative numbers."""
    return until(lambda y, x: (y + x / y) / 2, np.ones_like(x), x)


def geometric(x):
    return until(lambda y, x: 1 + x * y, np.ones_like(x), x)


def values(discount, transitions, rewards):
    return until(lambda v, d, t, r: r + d * (t @ v), np.zeros(3), discount, transitions, rewards)


TRANSITIONS = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]])
SYMMETRIC = np.array([[3.0, 1.0, 0.5, 0.2], [1.0, 4.0, -0.7, 0.3], [0.5, -0.7, 5.0, 1.1], [0.2, 0.3, 1.1, 3.5]])


def values_backward(d, discount, transitions, rewards):
    system = np.eye(3) - discount * transitions
    v, adjoint = np.linalg.solve(system, rewards), np.linalg.solve(system.T, d)
    return np.asarray(adjoint @ transitions @ v), discount * np.outer(adjoint, v), adjoint


def solved_backward(d, a, b):
    adjoint = np.linalg.solve(a.T, d)
    return -np.outer(adjoint, np.linalg.solve(a, b)), adjoint


LOOPS = {
    "a geometric series": (geometric, lambda d, x: (d / (1 - x) ** 2,), {"x": np.array([0.6, 0.4])}),
    "value iteration": (
        values,
        values_backward,
        {"discount": np.array(0.4), "transitions": TRANSITIONS, "rewards": np.array([1.0, -0.5, 2.0])},
    ),
    "conjugate gradients": (conjugate_gradients, solved_backward, {"a": SYMMETRIC, "b": np.array([1.0, 2, -1, 0.5])}),
}


@each("method", ALL)
@each("factor", [1.0, 1.5, 1 + 1e-6])
def test_a_solver_that_ends_only_near_the_point_is_checked(factor, method):
    report = check(root, lambda d, x: factor * d / 2 / np.sqrt(x), {"x": np.array([1.0, 2.0, 5.0])}, method=method)
    assert report.ok == (factor == 1)


@each("method", ["central"], long=["auto"])  # whose steps are the longer
@each("factor", [1.5], long=[1.0, 1 + 1e-7])
@each("name", LOOPS)
def test_no_loop_is_asked_where_it_does_not_end(name, factor, method):
    forward, backward, inputs = LOOPS[name]
    report = check(forward, lambda *question: tuple(factor * g for g in backward(*question)), inputs, method=method)
    if factor == 1.5:
        assert not any(entry.ok for entry in report)
    else:  # a loop may end before its derivative has converged, by 1e-11: that is its own tolerance, and 1e-7 is not
        assert report.ok == (factor == 1), str(report)


@each("factor", [0.0, 0.02])
def test_a_function_with_branches_close_by_has_no_tolerance(factor):
    def branch(x):  # of some vectors the sign is left open
        return np.sign(np.sin(3e3 * x.real.sum()))

    def forward(x):
        return branch(x) * np.exp(x) + factor * (2 + branch(x)) * x**3

    found = check(forward, lambda d, x: d * branch(x) * np.exp(x), {"x": np.linspace(0.5, 1.5, 12)})["x"]
    assert found.wrong == (12 if factor else 0)
    assert found.ok == (factor == 0)
    assert found.note is None or "tolerance" not in found.note
    assert not factor or "forward has other slopes close by" in found.note


@each("small", [1e-3, 1e-6])
@each("method", ALL)
def test_a_kink_close_by_is_no_tolerance(small, method):
    x = np.linspace(0.7, 1.6, 8)
    bends = 0.93 * x[:4]

    def forward(x):
        beyond = x[:4] - bends
        return np.sin(x).sum() + small * np.where(beyond.real > 0, np.sin(beyond), 0 * beyond).sum()

    found = check(forward, lambda d, x: d * np.cos(x), {"x": x}, method=method)["x"]  # as if nothing bent
    assert (found.ok, found.wrong) == (False, 4)
    assert "tolerance of its own" not in str(found.note)


@each("far", [0.03, 0.3])
@each("factor", [1.00001, 1.01])
def test_what_is_wrong_next_to_a_kink_takes_at_most_five_times_the_calls_of_what_holds(factor, far):
    calls = 0

    def forward(x):
        nonlocal calls
        calls += 1
        return np.maximum(x * x, 0.25) + x

    def backward(d, x):
        nonlocal calls
        calls += 1
        return factor * d * (1 + 2 * x * (x * x > 0.25))

    x = np.array([0.5 * (1 + far)])
    found = check(forward, backward, {"x": x}, method="central")
    taken, calls, factor = calls, 0, 1.0
    assert (found.ok, check(forward, backward, {"x": x}, method="central").ok) == (False, True)
    assert taken <= 5 * calls


def test_by_differences_slopes_that_jump_are_said_to_be_those_of_kinks_or_of_a_tolerance():
    rng = np.random.default_rng(3)
    inputs = {"x": rng.normal(size=10), "w": rng.normal(size=3), "b": rng.normal(size=1)}

    def leaky(x, w, b):
        z = np.convolve(x, w[::-1], "valid")[::2] + b
        return np.where(z > 0, z, 0.1 * z)

    def backward(d, x, w, b):  # the leak is forgotten
        d_z = np.zeros(8)
        d_z[::2] = d * (leaky(x, w, b) > 0)
        return np.convolve(d_z, w), np.convolve(x, d_z[::-1], "valid"), d_z.sum(keepdims=True)

    reports = [check(leaky, backward, inputs, method="central", rng=seed) for seed in range(4)]
    notes = [str(entry.note) for report in reports for entry in report]
    assert not any(report.ok for report in reports)
    assert any("forward has kinks there, or is computed to a tolerance of its own" in note for note in notes)
    assert not any("forward seems to be" in note for note in notes)


@each("lost", [False, True])
def test_a_jump_of_what_is_claimed_is_no_tolerance_of_forward(lost):
    ndimage = scipy("ndimage")

    def forward(image, places):
        return ndimage.map_coordinates(image, places, order=1, mode="constant")

    def backward(d, image, places):  # a pixel that several places are near loses all but the last where += is to add
        (i, j), (a, b), d_image = np.floor(places).astype(int), places % 1, np.zeros_like(image)
        x, right, below, both = image[i, j], image[i, j + 1], image[i + 1, j], image[i + 1, j + 1]
        corners = ((0, 0, (1 - a) * (1 - b)), (0, 1, (1 - a) * b), (1, 0, a * (1 - b)), (1, 1, a * b))
        for down, aside, weight in corners:
            if lost:
                d_image[i + down, j + aside] += d * weight
            else:
                np.add.at(d_image, (i + down, j + aside), d * weight)
        d_a, d_b = (1 - b) * (below - x) + b * (both - right), (1 - a) * (right - x) + a * (both - below)
        return d_image, d * np.stack([d_a, d_b])

    places = np.array([[0.3, 2.7, 2.2, 4.4], [1.6, 3.1, 3.4, 0.2]])
    image = np.random.default_rng(21).standard_normal((6, 6))
    report = check(forward, backward, {"image": image, "places": places})
    assert report["places"].ok
    assert report["image"].wrong == (4 if lost else 0), report
    assert "tolerance" not in str(report)


@each("seed", *some_of(range(8), 8))
@each("decimals", [1e-2, 1e-4, 1e-5, 1e-7, 1e-10])
def test_the_gradient_behind_rounding_to_decimals_is_not_called_wrong(decimals, seed):
    def forward(x):
        if x.dtype.kind == "c":
            raise TypeError("real numbers alone")
        return np.round(np.sin(x) / decimals) * decimals

    inputs = {"x": np.random.default_rng(seed).standard_normal(9)}
    found = check(forward, lambda d, x: d * np.cos(x), inputs, rng=seed)["x"]
    assert (found.wrong, found.ok) == (0, decimals < 1e-2)
    assert check(forward, lambda d, x: 1.5 * d * np.cos(x), inputs, rng=seed)["x"].ok is False


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError, IndexError])
@pytest.mark.parametrize("method", ALL)
def test_a_point_that_forward_refuses_is_not_used(error, method):
    def forward(p):
        if p.real.min() < 0 or p.real.max() > 1:
            raise error("p must be in [0, 1]")
        return np.floor(4 * p.real) + p

    inputs = {"p": np.array([0.3, 0.9999])}
    assert check(forward, lambda d, _: d, inputs, method=method).ok
    assert not check(forward, lambda d, _: 1.5 * d, inputs, method=method).ok


def test_what_is_no_refusal_ends_the_check():
    calls = []

    def forward(x):
        calls.append(x)
        if len(calls) > 4:
            raise RuntimeError("a worker has died")
        return np.sin(x)

    with pytest.raises(RuntimeError, match="a worker has died"):
        check(forward, lambda d, x: d * np.cos(x), {"x": np.ones(3)}, method="central")


def test_nothing_is_said_twice():
    names = ("x", "y")
    report = check(lambda x, y: np.hypot(x, y), lambda d, x, y: (d * x, d * y), {name: np.ones(2) for name in names})
    assert str(report).count("forward refuses complex arrays") == 1
    assert "x, y: forward refuses complex arrays" in str(report)


@each("seed", [2, 3, 5, 6])
def test_an_iteration_that_stops_at_a_tolerance_jumps_itself_where_its_slopes_do(seed):
    def fixed_point(w, x, tolerance=1e-10):
        z, before = np.tanh(x), np.full_like(x, np.inf)
        while not np.abs(z - before).max() < tolerance:
            before, z = z, np.tanh(w @ z + x)
        return z

    def backward(d, w, x):
        z = fixed_point(w, x, 1e-15)
        jacobian = (1 - z * z)[:, None] * w
        u = np.linalg.solve((np.eye(3) - jacobian).T, d) * (1 - z * z)
        return np.outer(u, z), u

    rng = np.random.default_rng(seed)
    inputs = {"w": 0.3 * rng.standard_normal((3, 3)), "x": rng.standard_normal(3)}
    assert check(fixed_point, backward, inputs).ok
    report = check(fixed_point, lambda *args: [1.01 * g for g in backward(*args)], inputs)
    assert [entry.ok for entry in report] == [False, False]
