"""What a function is like at a point: whether it is analytic, and how noisy its outputs are."""

import warnings
from math import comb

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check
from attention_np.gradcheck.slopes.probes import ORDER, POINTS, high_differences, noise_of, tried

from ..programs import layer_norm, normal
from ..subjects import noise_at, subject_of

EPS = float(np.finfo(np.float64).eps)
EPS_IN_SINGLE = float(np.finfo(np.float32).eps)
ORDINARY = np.array([0.5, -1.5, 2.0])
SEEDS = range(3)


def trial(subject, seed=0):
    return tried(subject, np.random.default_rng(seed), lambda: noise_at(subject))


def in_single(x, forward=np.exp):
    """Computed in single precision, the complex numbers too."""
    return forward(x.astype(np.complex64 if x.dtype.kind == "c" else np.float32)).astype(np.result_type(x, float))


def refusing(error):
    """A square that refuses complex numbers by an error or a warning."""

    def forward(x):
        if x.dtype.kind == "c":
            if isinstance(error, str):
                warnings.warn(error, np.exceptions.ComplexWarning, stacklevel=2)
            else:
                raise error
        return x**2

    return forward


NOT_ANALYTIC = {
    "abs": np.abs,
    "the real part": lambda x: np.real(x) ** 2,
    "a conjugate": lambda x: np.conj(x) * x + x,
    "a standard deviation": lambda x: x / x.std(),
    "one output only": lambda x: np.concatenate([np.exp(x), [np.abs(x[0]) + 0j if x.dtype.kind == "c" else abs(x[0])]]),
    "a comparison of complex numbers": lambda x: np.where(x.imag > 0, 2 * x, x),
    "a fast wave of the conjugate": lambda x: np.sin(100 * np.conj(x)),
    "a small part": lambda x: np.exp(x) + 1e-3 * np.abs(x),
    "a part of another dependence": lambda x: x**3 + 1e-4 * np.abs(x[::-1]) * x,
    "no finite number": lambda x: x * (np.nan if x.dtype.kind == "c" else 1),
}


@each("unit", [1e-12, 1.0, 1e12])
@each("what", NOT_ANALYTIC)
def test_what_is_not_analytic_is_told_at_any_scale_and_along_any_direction(what, unit):
    subject = subject_of(lambda x: NOT_ANALYTIC[what](x / unit), ORDINARY * unit)
    for seed in SEEDS:
        assert trial(subject, seed).refusal is not None


@each(
    ("forward", "message"),
    [
        (refusing(RuntimeError("none here\nand no more lines")), "forward refuses complex arrays (none here)"),
        (refusing(TypeError()), "forward refuses complex arrays (TypeError)"),
        (refusing("no imaginary part"), "forward refuses complex arrays (no imaginary part)"),
        (np.abs, "forward turns complex arrays into float64"),
        (lambda x: x * (np.nan if x.dtype.kind == "c" else 1), "the complex step gives no finite slope"),
    ],
)
def test_the_reason_is_said_in_a_sentence_and_no_warning_gets_out(forward, message):
    with warnings.catch_warnings(record=True) as warned, np.errstate(all="warn"):
        warnings.simplefilter("always")
        assert trial(subject_of(forward, ORDINARY)).refusal == message
    assert not warned


ANALYTIC = {
    "sin": (np.sin, ORDINARY),
    "layer normalisation": (layer_norm, normal(5)),
    "a steep exponential": (lambda x: np.exp(100 * x), ORDINARY),
    "a fast wave": (lambda x: np.sin(1e6 * x), ORDINARY),
    "a steep wave at zero": (lambda x: np.sin(1e6 * x), np.zeros(3)),
    "a constant far up": (lambda x: x + 1e12, ORDINARY),
    "outputs of very different size": (lambda x: np.concatenate([1e15 * np.sin(x), 1e-15 * np.exp(x)]), ORDINARY),
    "inputs of very different size": (lambda x: np.sin(x / [1e-9, 1, 1e9]), ORDINARY * [1e-9, 1, 1e9]),
    "the edge of a domain": (np.log, np.array([1e-9, 1.0, 3.0])),
    "a cancellation": (lambda x: (1e10 + x) - 1e10, ORDINARY),
    "relu": (lambda x: np.maximum(x, 0), ORDINARY),
    "a kink nearby": (lambda x: np.where(x.real > 0.5, 2 * x - 0.5, x), np.array([0.5 + 1e-4, -1.0, 0.5 - 1e-7])),
    "a bend of infinite curvature": (lambda x: x + 0.01 * np.maximum(x - 0.5, 0) ** 1.5, np.array([0.5 + 1e-9, 0.7])),
    "single precision inside": (in_single, ORDINARY),
    "a NaN that is not looked at": (lambda x: np.sin(x[:2]), np.array([0.5, 1.0, np.nan])),
    "a NaN": (np.sin, np.array([0.5, 1.0, np.nan])),
}


@each("what", ANALYTIC)
def test_nothing_is_said_against_an_analytic_function_however_ill_conditioned(what):
    for seed in SEEDS:
        assert trial(subject_of(*ANALYTIC[what]), seed).refusal is None


@each("seed", SEEDS)
def test_of_a_wave_too_fast_for_differences_a_gradient_that_is_wrong_as_the_complex_step_is_does_not_hold(seed):
    def forward(x):
        return np.sin(3e4 * np.conj(x))

    found = check(forward, lambda d, x: -3e4 * d * np.cos(3e4 * x), {"x": ORDINARY}, rng=seed)["x"]
    assert found.wrong or (10 * found.details.floor >= 2 * np.abs(found.details.analytic)).all()


@each("hidden", [0.0, 1e-12, 1e-11])
def test_what_the_complex_step_loses_and_differences_do_not_see_is_in_what_the_trial_leaves_unseen(hidden):
    def forward(x):
        return np.sin(x) + (0 if x.dtype.kind == "c" else hidden * x)

    found = trial(subject_of(forward, ORDINARY))
    assert found.refusal is None
    assert found.unseen.shape == (3,)
    assert (found.unseen >= hidden / 2).all()
    assert (found.unseen <= 1e-9).all()


def test_no_floor_is_low_because_the_errors_of_the_entries_cancel_for_one_cotangent():
    x = np.random.default_rng(15).standard_normal(6)  # as they do along the direction of this trial
    found = check(lambda x: np.sin(x) + 1e-9 * np.abs(x), lambda d, x: d * np.cos(x), {"x": x})["x"]
    assert not found.ok or (found.details.floor > 1e-9).all()


@each("unit", [1e-200, 1e-12, 1.0, 1e12, 1e200])
@each("forward", [np.sin, np.exp, lambda x: x * x, lambda x: x / 3 + 1, lambda x: 1 / x])
def test_the_noise_of_a_plain_function_is_about_its_last_bit(forward, unit):
    x = np.linspace(0.3, 2.9, 40) * unit
    subject = subject_of(lambda x: forward(x / unit), x)
    for seed in SEEDS:
        noise = noise_at(subject, seed)
        assert noise.shape == subject.output.shape
        assert (noise <= 16 * EPS * np.abs(subject.output)).all()
        assert np.median(noise / np.abs(subject.output)) >= EPS / 16


@each(
    ("forward", "size"),
    [
        (lambda x: np.exp(x.astype(np.float32)).astype(float), lambda y: EPS_IN_SINGLE * y),
        (lambda x: np.exp(x.astype(np.float16)).astype(float), lambda y: 2.0**-10 * y),
        *((lambda x, c=c: (np.exp(x) + c) - c, lambda y, c=c: EPS * (c + y)) for c in (1e3, 1e6, 1e9)),
        (lambda x: np.round(x / 1e-3) * 1e-3, lambda y: 1e-3 + 0 * y),  # moves in long steps only
    ],
)
def test_noise_shows_a_lower_precision_and_a_cancellation_inside_the_function(forward, size):
    subject = subject_of(forward, np.linspace(0.3, 2.9, 40))
    for seed in SEEDS:
        noise = noise_at(subject, seed) / size(subject.output)
        assert (noise >= 1e-2).mean() >= 0.8  # where no point of a few was rounded otherwise, it is not seen
        assert (noise <= 2).all()


@each("power", range(ORDER + 1))
def test_nothing_is_left_over_of_a_polynomial_of_a_lower_degree_and_of_the_next_its_leading_coefficient(power):
    left = high_differences(np.arange(POINTS, dtype=float)[:, None] ** power * [1, -3])
    expected = 120 / np.sqrt(comb(10, 5)) if power == ORDER else 0  # 5!
    np.testing.assert_allclose(left, np.outer(np.ones(POINTS - ORDER), [expected, -3 * expected]), atol=1e-10)


def test_what_is_left_over_of_noise_is_as_large_as_that_of_one_point_whatever_curve_it_is_on():
    sizes = np.array([1e-12, 1.0, 1e6])
    noise = np.random.default_rng(0).standard_normal((POINTS, 40_000, 3)) * sizes
    assert np.square(noise_of(noise)).mean(axis=0) == pytest.approx(sizes**2, rel=2e-2)  # (gradcheck.69)
    curve = np.linspace(0, 1, POINTS)[:, None, None] ** 4 * sizes
    np.testing.assert_allclose(noise_of(noise + 1e3 * curve), noise_of(noise), atol=1e-11 * sizes.max())
