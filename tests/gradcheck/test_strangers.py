"""Functions as strangers have them: what they are asked, and solvers, series, loops and special functions."""

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check

ALL = ["auto", "central"]


def test_a_solver_of_differential_equations_is_checked():
    integrate, start = scipy("integrate"), np.array([1.0, 2.0])

    def forward(k):
        return integrate.solve_ivp(lambda _, y: -k * y, (0, 0.2), start, rtol=1e-9, atol=1e-12).y[:, -1]

    def backward(d_output, k):
        return -0.2 * np.exp(-0.2 * k) * (d_output @ start)

    assert check(forward, backward, {"k": np.array([0.7])}, rtol=1e-6).ok
    assert not check(forward, lambda d, k: 1.01 * backward(d, k), {"k": np.array([0.7])}, rtol=1e-6).ok


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


def by_roots(tolerance):
    optimize = scipy("optimize")

    def solve(slopes, tolerance):
        return np.array([optimize.brentq(lambda t, s=s: np.cos(t) - s * t, 0, 2, xtol=tolerance) for s in slopes])

    def backward(d, x):
        t = solve(x, 1e-14)
        return -d * t / (np.sin(t) + x)

    return lambda x: solve(x, tolerance), backward, np.linspace(0.5, 2, 5)


@each("of", [lambda: by_roots(1e-12), lambda: by_roots(1e-4)])
@each("factor", [1.0, 1.5])
def test_of_a_solver_with_a_tolerance_of_its_own_the_report_says_how_large_it_looks_and_rtol_allows_it(factor, of):
    forward, backward, x = of()
    claimed = lambda d, x: factor * backward(d, x)  # noqa: E731
    assert check(forward, claimed, {"x": x}, rtol=1e-2).ok == (factor == 1)
    found = check(forward, claimed, {"x": x})["x"]
    said = str(found.diagnosis).startswith("no simple cause; all of it is ") and found.diagnosis.endswith("by rtol=")
    assert found.ok or said == (factor == 1)


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
