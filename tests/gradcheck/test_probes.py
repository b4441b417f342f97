import warnings
from dataclasses import replace

import numpy as np
import pytest
from helpers import each
from hypothesis import given
from hypothesis import strategies as st

from attention_np.gradcheck.measuring.probes import (
    COMPLEX_STEP,
    KINK_STEPS,
    LOCATED,
    TOGETHER,
    Cusp,
    cusps,
    rounding_of,
    why_not_analytic,
)
from attention_np.gradcheck.measuring.running import MEMORY

from .programs import layer_norm, normal, real_only, softmax
from .subjects import heard, subject_of, watched_subject_of

EPS = float(np.finfo(np.float64).eps)
EPS_IN_SINGLE = float(np.finfo(np.float32).eps)


def rng():
    return np.random.default_rng(0)


ORDINARY = np.array([0.5, -1.5, 2.0])
SEEDS = range(3)


def cusps_of(subject, seed=0, **options):
    return cusps(subject, np.random.default_rng(seed), MEMORY, **options)


def kink(place, below, above):
    return Cusp((place,), below, above, False)


def in_single(x, forward=np.exp):
    """Computed in single precision, the complex numbers too."""
    return forward(x.astype(np.complex64 if x.dtype.kind == "c" else np.float32)).astype(np.result_type(x, float))


def softplus(x):
    return np.where(x.real > 0, x, 0) + np.log1p(np.exp(np.where(x.real > 0, -x, x)))


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


NOT_ANALYTIC_FUNCTIONS = {
    "abs": np.abs,
    "the real part": lambda x: np.real(x) ** 2,
    "a conjugate": lambda x: np.conj(x) * x + x,
    "hypot": lambda x: np.hypot(x, 1.0),
    "a norm": lambda x: np.linalg.norm(x) * x[:1],
    "a standard deviation": lambda x: x / x.std(),
    "a sign of complex numbers": lambda x: x / np.hypot(x.real, x.imag) * x,  # as np.sign is since NumPy 2
    "a cast": lambda x: np.array([float(v) ** 2 for v in x]),
    "floor": np.floor,
    "one entry only": lambda x: np.concatenate([np.sin(x[:2]), np.abs(x[2:])]),
    "one output only": lambda x: np.concatenate([np.exp(x), [np.abs(x[0]) + 0j if x.dtype.kind == "c" else abs(x[0])]]),
    "a comparison of complex numbers": lambda x: np.where(x.imag > 0, 2 * x, x),
    "a fast wave of the conjugate": lambda x: np.sin(3e4 * np.conj(x)),
    "a small part": lambda x: np.exp(x) + 1e-3 * np.abs(x),
    "a part of another dependence": lambda x: x**3 + 1e-4 * np.abs(x[::-1]) * x,
    "an error of its own": refusing(RuntimeError("none")),
}


@each("unit", [1e-12, 1.0, 1e12])
@each("what", NOT_ANALYTIC_FUNCTIONS)
def test_what_is_not_analytic_is_told_at_any_scale_and_along_any_direction(what, unit):
    forward = NOT_ANALYTIC_FUNCTIONS[what]
    if what in ("a cast", "floor", "an error of its own"):
        forward_in_units = forward
    else:

        def forward_in_units(x):
            return forward(x / unit)

    subject = heard(subject_of(forward_in_units, ORDINARY * unit))
    for seed in SEEDS:
        assert why_not_analytic(subject, np.random.default_rng(seed)) is not None


@each(
    ("forward", "message"),
    [
        (refusing(RuntimeError("none here\nand no more lines")), "forward refuses complex arrays (none here)"),
        (refusing(TypeError()), "forward refuses complex arrays (TypeError)"),
        (refusing("no imaginary part"), "forward refuses complex arrays (no imaginary part)"),
        (np.abs, "forward turns complex arrays into float64"),
    ],
)
def test_the_reason_is_said_in_a_sentence_and_no_warning_gets_out(forward, message):
    subject = heard(subject_of(forward, ORDINARY))
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        assert why_not_analytic(subject, rng()) == message


ANALYTIC = {
    "sin": (np.sin, ORDINARY),
    "a line": (lambda x: 3 * x + 1, ORDINARY),
    "a constant": (lambda x: 0 * x + 1, ORDINARY),
    "a matrix product": (lambda x: x @ x.T, normal(3, 4)),
    "softmax": (softmax, normal(3, 4)),
    "layer normalisation": (layer_norm, normal(5)),
    "a steep exponential": (lambda x: np.exp(100 * x), ORDINARY),
    "a fast wave": (lambda x: np.sin(1e6 * x), ORDINARY),
    "a steep wave at zero": (lambda x: np.sin(1e6 * x), np.zeros(3)),
    "a tiny output": (lambda x: 1e-200 * np.sin(x), ORDINARY),
    "a huge output": (lambda x: 1e200 * np.sin(x), ORDINARY),
    "a constant far up": (lambda x: x + 1e12, ORDINARY),
    "outputs of very different size": (lambda x: np.concatenate([1e15 * np.sin(x), 1e-15 * np.exp(x)]), ORDINARY),
    "inputs of very different size": (lambda x: np.sin(x / [1e-9, 1, 1e9]), ORDINARY * [1e-9, 1, 1e9]),
    "tiny inputs": (lambda x: x * x, ORDINARY * 1e-100),
    "a saturated tanh": (lambda x: np.tanh(50 * x), ORDINARY),
    "a saturated softmax": (softmax, np.array([0.0, 60, -800, 3])),
    "a pole nearby": (lambda x: 1 / x, np.array([1e-6, 1.0, 1.0])),
    "the edge of a domain": (np.log, np.array([1e-9, 1.0, 3.0])),
    "a cancellation": (lambda x: (1e10 + x) - 1e10, ORDINARY),
    "relu": (lambda x: np.maximum(x, 0), ORDINARY),
    "a kink nearby": (lambda x: np.where(x.real > 0.5, 2 * x - 0.5, x), np.array([0.5 + 1e-4, -1.0, 0.5 - 1e-7])),
    "a bend of infinite curvature": (lambda x: x + 0.01 * np.maximum(x - 0.5, 0) ** 1.5, np.array([0.5 + 1e-9, 0.7])),
    "jumps nearby": (lambda x: x + np.round(x.real), np.array([0.5 + 1e-4, 1.5 - 1e-7, 2.0])),
    "zero inputs": (lambda x: np.exp(x) * x, np.zeros(3)),
    "a square of zeros": (lambda x: x * x, np.zeros(3)),
    "single precision inside": (in_single, ORDINARY),
    "a polynomial in single precision": (lambda x: in_single(x, lambda y: y**3 - 2 * y), ORDINARY),
    "single precision": (np.sin, ORDINARY.astype(np.float32)),
    "no input": (np.sin, np.zeros(0)),
    "no output": (lambda x: x[:0] * 2, ORDINARY),
    "a NaN that is not looked at": (lambda x: np.sin(x[:2]), np.array([0.5, 1.0, np.nan])),
    "a NaN": (np.sin, np.array([0.5, 1.0, np.nan])),
    "a number": (np.sin, np.array(0.5)),
}


@each("what", ANALYTIC)
def test_nothing_is_said_against_an_analytic_function_however_ill_conditioned(what):
    forward, x = ANALYTIC[what]
    with np.errstate(invalid="ignore"):
        subject = heard(subject_of(forward, x))
    for seed in SEEDS:
        assert why_not_analytic(subject, np.random.default_rng(seed)) is None


@each("batched", [False, True])
@each(
    ("forward", "x", "expected"),
    [
        (np.abs, [1.0, 0.0, -2.0], [kink(1, -1, 1)]),
        (lambda x: np.maximum(x, 0), [1.0, 0.0, -2.0], [kink(1, 0, 1)]),
        (lambda x: np.where(x > 0, x, 0.01 * x), [1.0, 0.0, -2.0], [kink(1, 0.01, 1)]),
        (lambda x: np.abs(x - 0.7), [0.7, 0.1, 0.2], [kink(0, -1, 1)]),
        (lambda x: np.abs(x).sum(axis=-1, keepdims=True), [0.0, 3.0, -2.0], [kink(0, -1, 1)]),
        (lambda x: x.max(axis=-1, keepdims=True), [0.3, 0.8, 0.8], [kink(1, 0, 1), kink(2, 0, 1)]),
        (lambda x: np.clip(x, -1, 1), [0.3, 1.0, -1.0], [kink(1, 1, 0), kink(2, 0, 1)]),
        (lambda x: np.exp(x) + np.abs(x), [0.5, 0.0, 0.4], [kink(1, 0, 2)]),
        (lambda x: np.exp(x) + 0.01 * np.abs(x), [0.5, 0.0, 0.4], [kink(1, 0.99, 1.01)]),
        (lambda x: 1e-6 * np.abs(x), [0.5, 0.0, 0.4], [kink(1, -1e-6, 1e-6)]),
        (lambda x: 1e9 * np.abs(x), [0.5, 0.0, 0.4], [kink(1, -1e9, 1e9)]),
        (lambda x: np.abs(x / 1e12 - 0.5), [0.5e12, 2e11, 3e12], [kink(0, -1e-12, 1e-12)]),
        (lambda x: np.abs(x / 1e-12 - 0.5), [0.5e-12, 2e-13, 3e-12], [kink(0, -1e12, 1e12)]),
        (lambda x: in_single(x, np.abs), [0.5, 0.0, -1.5], [kink(1, -1, 1)]),
    ],
)
def test_a_kink_is_found_with_its_place_and_the_slopes_on_both_sides(forward, x, expected, batched):
    subject = heard(subject_of(forward, np.array(x), batched=batched))
    for seed in SEEDS:
        found = cusps_of(subject, seed)
        assert [(cusp.index, cusp.jumps) for cusp in found] == [(cusp.index, False) for cusp in expected]
        for cusp, known in zip(found, expected, strict=True):
            close = pytest.approx((known.below, known.above), rel=1e-3, abs=1e-3 * known.above)
            assert (cusp.below, cusp.above) == close


def test_no_more_kinks_are_returned_than_asked_for_the_first_ones():
    subject = heard(subject_of(np.abs, np.zeros((10, 20))))
    for most in (1, 5, 7):
        found = cusps_of(subject, most=most)
        assert [cusp.index for cusp in found] == [(0, k) for k in range(most)]
    assert len(cusps_of(subject)) == 5


@pytest.mark.long
def test_a_kink_behind_many_smooth_entries_is_found_up_to_a_size():
    x = np.full(LOCATED, 0.5)
    x[-1] = 0
    (cusp,) = cusps_of(heard(subject_of(np.abs, x, batched=True)))
    assert cusp.index == (LOCATED - 1,)
    assert cusps_of(heard(subject_of(np.abs, np.append(x, 0.0), batched=True))) == []


@each(
    ("forward", "below", "above"),
    [
        (lambda x: np.where(x >= 0.5, 3.0, 1.0), 2, 0),
        (lambda x: np.where(x > 0.5, 3.0, 1.0) + np.sin(x), 0, 2),
        (lambda x: np.where(x >= 0.5, 1e-6, 0.0) + x, 1e-6, 0),
    ],
)
def test_a_jump_is_found_with_its_place_and_its_height(forward, below, above):
    subject = heard(subject_of(forward, np.array([1.2, 0.5, -3.0])))
    for seed in SEEDS:
        (cusp,) = cusps_of(subject, seed)
        assert (cusp.index, cusp.jumps) == ((1,), True)
        assert (cusp.below, cusp.above) == pytest.approx((below, above), abs=1e-5 + 1e-3 * below)


def test_a_cusp_says_where_it_is_and_what_it_is():
    assert (
        str(kink(3, -1, 0.5))
        == "forward is not differentiable at [3]: its slope is -1 on one side and 0.5 on the other"
    )
    assert str(Cusp((0, 2), 2.0, 0.25, True)) == "forward is not continuous at [0, 2]: the loss jumps by 2.25 there"
    for below, above in ((2.0, -2.0), (-1.0, 3.0)):
        assert str(Cusp((4,), below, above, True)) == (
            "forward is not continuous at [4]: the loss there differs from that on either side, "
            f"by {below:.9g} and {-above:.9g}"
        )
    assert str(Cusp((4,), 2.0, -1e-6, True)).endswith("the loss jumps by 1.999999 there")


def test_a_smooth_function_is_not_searched_entry_by_entry():
    subject, seen = watched_subject_of(np.sin, normal(200))
    assert cusps_of(heard(subject)) == []
    assert len(seen) <= 20 + 16 + 2 * len(KINK_STEPS)


SMOOTH = {
    **ANALYTIC,
    "softplus that is steep at zero": (lambda x: softplus(1e12 * x), np.zeros(3)),
    "a logistic step at zero": (lambda x: np.tanh(1e10 * x), np.zeros(2)),
    "a smooth modulus": (lambda x: np.sqrt(x * x + 1e-20), np.zeros(2)),
    "a smooth modulus that ends in rounding": (lambda x: 1 + 1e-7 * np.sqrt(x * x + 1e-16), np.zeros(2)),
    "a Gaussian peak": (lambda x: np.exp(-((1e6 * x) ** 2)), np.zeros(2)),
    "relu beside its kink": (lambda x: np.maximum(x, 0), np.array([1e-3, -1e-3, 1.0, -2.0])),
    "relu close to its kink": (lambda x: np.maximum(x, 0), np.array([1e-7, -1e-7, 1.0, -2.0])),
    "abs beside its kink": (np.abs, np.array([1e-3, -1e-3, 1.0])),
    "max of all but equal numbers": (lambda x: x.max(keepdims=True), np.array([0.8, 0.8 - 1e-3, 0.8 - 1e-6])),
    "x |x|, which has a slope everywhere": (lambda x: x * np.abs(x), np.zeros(3)),
    "a root that has a slope at zero": (lambda x: np.abs(x) ** 1.2, np.zeros(3)),
    "squared relu": (lambda x: np.maximum(x, 0) ** 2, np.zeros(3)),
    "noise of single precision": (lambda x: np.sin(x.astype(np.float32)).astype(float), normal(20)),
    "noise of half precision": (lambda x: np.exp(x.astype(np.float16)).astype(float), normal(20)),
    "noise of a cancellation": (lambda x: (np.exp(x) + 1e9) - 1e9, normal(20)),
    "a variance that cancels": (lambda x: np.atleast_1d(((x + 1e5) ** 2).mean() - (x + 1e5).mean() ** 2), normal(5)),
}


@each("what", SMOOTH)
def test_no_kink_is_seen_in_a_smooth_function_nor_away_from_the_kink(what):
    forward, x = SMOOTH[what]
    with np.errstate(invalid="ignore"):
        subject = heard(subject_of(forward, x))
    for seed in SEEDS:
        assert cusps_of(subject, seed) == []


@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=5),
    st.floats(-9, 9),
    st.sampled_from([np.sin, np.tanh, np.exp, softplus, in_single, np.arctan, np.cbrt]),
)
def test_a_smooth_function_has_no_kink_and_is_analytic_whatever_its_units(numbers, exponent, forward):
    unit = 10.0**exponent
    if forward is np.cbrt:
        numbers = [x for x in numbers if abs(x) > 1e-2] or [1.0]  # it is infinitely steep at zero
    x = np.array(numbers) * unit
    with np.errstate(all="ignore"):  # as in a check: steps from zero go as far as they go
        subject = heard(subject_of(lambda x: forward(x / unit), x))
        assert cusps_of(subject) == []
    reason = why_not_analytic(subject, rng())
    assert reason is None or (forward is np.cbrt and reason.startswith("forward refuses complex arrays"))


@each("batched", [False, True])
@each("unit", [1e-200, 1e-12, 1.0, 1e12, 1e200])
@each("forward", [np.sin, np.exp, lambda x: x * x, lambda x: x / 3 + 1, lambda x: 1 / x])
def test_rounding_is_about_the_last_bit_of_a_plain_function(forward, unit, batched):
    x = np.linspace(0.3, 2.9, 40) * unit
    subject = subject_of(lambda x: forward(x / unit), x, batched=batched)
    for seed in SEEDS:
        noise = rounding_of(subject, np.random.default_rng(seed))
        last_bits = EPS * np.abs(subject.output)
        assert noise.shape == subject.output.shape
        assert (noise >= last_bits).all()
        assert (noise <= 16 * last_bits).all()


@each("beyond", [1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.3])
@each("forward", [lambda x: np.clip(x, 0.8, 1.2), lambda x: 3 - np.maximum(x, 1.2), lambda x: np.fmin(x**3, 1.2**3)])
def test_beyond_the_edge_of_a_plateau_there_is_a_slope_and_no_rounding(forward, beyond):
    subject = subject_of(real_only(forward), 1.2 + beyond * np.array([1.0, -1.0, 1.0, -1.0]))
    for seed in SEEDS:
        assert (rounding_of(subject, np.random.default_rng(seed)) <= 16 * EPS * np.abs(subject.output)).all()


@each(("narrow", "eps"), [(np.float32, EPS_IN_SINGLE), (np.float16, 2.0**-10)])
def test_rounding_shows_a_lower_precision_inside_the_function(narrow, eps):
    subject = subject_of(lambda x: np.exp(x.astype(narrow)).astype(float), np.linspace(0.3, 2.9, 40))
    for seed in SEEDS:
        noise = rounding_of(subject, np.random.default_rng(seed))
        assert (noise >= eps / 100 * subject.output).mean() >= 0.9
        assert (noise <= 16 * eps * subject.output).all()


@each("large", [1e3, 1e6, 1e9])
def test_rounding_shows_a_cancellation_inside_the_function(large):
    subject = subject_of(lambda x: (np.exp(x) + large) - large, np.linspace(0.3, 2.9, 40))
    for seed in SEEDS:
        noise = rounding_of(subject, np.random.default_rng(seed))
        assert (
            noise >= EPS / 100 * large
        ).mean() >= 0.9  # where no point of a few was rounded otherwise, it is not seen
        assert (noise <= 16 * EPS * (large + 20)).all()


def test_the_rounding_of_a_constant_is_its_last_bit_and_of_zero_nothing():
    noise = rounding_of(subject_of(lambda _: np.array([3.0, 0.0]), np.ones(3)), rng())
    np.testing.assert_array_equal(noise, [3 * EPS, 0])


@each("strange", [np.nan, np.inf, -np.inf])
def test_rounding_is_finite_whatever_the_function_returns(strange):
    for forward in (lambda x: np.stack([x[0], strange + 0 * x[1]]), lambda x: np.where(x > 1, strange, x)):
        subject = subject_of(forward, np.array([1.0, 1.0]))
        noise = rounding_of(subject, rng())
        assert np.isfinite(noise).all()
        assert noise[0] >= EPS


def test_a_function_that_warns_is_no_less_analytic():
    def forward(x):
        warnings.warn("slow", UserWarning, stacklevel=2)
        return np.sin(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert why_not_analytic(heard(subject_of(forward, np.array([0.5, 1.0]))), rng()) is None


def test_where_all_entries_are_zero_the_noise_around_zero_is_heard():
    noise = rounding_of(subject_of(in_single, np.zeros(3)), rng())
    assert (noise >= EPS_IN_SINGLE / 100).all()
    assert (noise <= 10 * EPS_IN_SINGLE).all()


@pytest.fixture(autouse=True)
def _as_in_a_check():
    with np.errstate(all="ignore"):
        yield


def steps_of(width, x):
    """The number rounded to multiples of a width."""
    return np.round(x / width) * width


def test_an_output_in_which_no_rounding_was_seen_has_as_much_of_it_as_the_others():
    def forward(x):
        noisy = np.sin(x[:3].astype(np.float32)).astype(float)
        return np.concatenate([noisy, 1e3 * (noisy[:2] - noisy[:2].round(3)) * 0 + 1e3, np.sin(x[:2]) * 0])

    noise = rounding_of(subject_of(forward, np.array([0.3, 0.7, 1.1])), rng())
    typical = np.median(noise[:3] / forward(np.array([0.3, 0.7, 1.1]))[:3])
    assert 1e-9 < typical < 1e-6
    np.testing.assert_allclose(noise[3:5], 1e3 * typical, rtol=1e-12)
    np.testing.assert_array_equal(noise[5:], 0)


def test_the_noise_of_outputs_that_are_zero_says_nothing_of_others():
    def forward(x):
        y = x.astype(np.float32)
        around_zero = (np.sin(y[:2]) - np.sin(np.float32(0.7))).astype(float)
        return np.concatenate([around_zero, np.sin(y[2:]).astype(float), [5.0]])

    x = np.array([0.7, 0.7, 0.9])
    subject = subject_of(forward, x)
    assert not subject.output[:2].any()
    noise = rounding_of(subject, rng())
    assert noise[3] == pytest.approx(5 * noise[2] / subject.output[2], rel=1e-12)
    assert (noise[:2] > 1e-9).all()


@each("x", [[0.0, 1.0, 1.0], [0.0, 0.7, 1.0]])
def test_the_entries_that_are_not_zero_move_and_the_zeros_do_not(x):
    heard_at = rounding_of(subject_of(lambda x: np.exp(x.astype(np.float32)).astype(float), np.array(x)), rng())
    assert (heard_at[1:] > 1e-9).all()
    rough = subject_of(lambda x: x[1:] + np.exp(x[0].astype(np.float32)).astype(float), np.array(x))
    assert (rounding_of(rough, rng()) <= 4 * EPS).all()


def test_what_changes_in_long_steps_only_is_heard_in_those():
    x = np.array([1.0, 2.0])
    noise = rounding_of(subject_of(lambda x: steps_of(1e-3, x), x), rng())
    assert (noise >= 1e-5).all()
    assert (noise <= 2e-3).all()


def test_a_wave_within_the_closest_points_is_not_taken_for_noise():
    for wave in (1e7, 1e9, 1e11):
        for size in (1e-6, 1.0, 1e6):
            subject = subject_of(lambda x, wave=wave, size=size: np.sin(wave / size * x), np.array([0.3]) * size)
            assert rounding_of(subject, rng()) <= 1e3 * EPS * wave
    x = np.array([0.3])
    loud = subject_of(lambda x: np.sin(x.astype(np.float32)).astype(float) + 1e6, x)
    assert 1e-9 < rounding_of(loud, rng()) < 1e-6


def test_a_function_that_is_quiet_close_by_is_asked_nowhere_else():
    subject, seen = watched_subject_of(np.sin, np.array([1.2]))
    assert rounding_of(subject, rng()) == EPS * np.sin(1.2)
    assert len(seen) == 16


def test_a_quiet_output_beside_a_loud_one_stays_quiet():
    def forward(x):
        return np.stack([np.sin(1e9 * x[0]), np.sin(x[1]), np.sin(x[1].astype(np.float32)).astype(float)])

    noise = rounding_of(subject_of(forward, np.array([0.3, 0.7])), rng())
    assert noise[0] < 1e-4
    assert noise[1] < 4 * EPS
    assert noise[2] > 1e-9


def test_a_complex_step_that_depends_on_its_length_is_not_known_well_enough_to_be_contradicted():
    def forward(x):  # a slope of 1; by the complex step, one that falls with the square of its length
        if x.dtype.kind != "c":
            return x * 1.0
        return x.real + 1j * x.imag * (1 + (x.imag / COMPLEX_STEP) ** 2 / 8)

    assert why_not_analytic(heard(subject_of(forward, np.array([1.0]))), rng()) is None


@each("batched", [False, True])
def test_entries_are_looked_at_together_as_memory_allows_and_not_after_enough_were_found(batched):
    moved, alone = [], set()
    x = np.where(np.arange(200) % 20, 1.0, 0.0)

    def forward(y):
        moved.append(y.shape)
        rows, places = np.nonzero(np.atleast_2d(y) != x)
        alone.update(places[np.bincount(rows)[rows] == 1].tolist())  # of the entries, those that moved by themselves
        return np.abs(y)

    subject = replace(heard(subject_of(forward, x, batched=batched)), rows=16)
    for most, memory in ((10, MEMORY), (2, MEMORY), (3, 1)):
        moved.clear()
        alone.clear()
        found = cusps(subject, rng(), memory, most=most)
        assert [cusp.index[0] for cusp in found] == list(range(0, 20 * most, 20))
        assert max(alone) < 20 * (most - 1) + (16 if batched else 64 if memory > 1 else 1)
        if batched:
            assert max(shape[0] for shape in moved if len(shape) == 2) == 16
    assert TOGETHER == 64
