import cmath
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import COMPLEX_STEP, Array, assert_close, assert_same_bits, each, normal

from attention_np import gradcheck, multi_head, rms_norm, rotary

SHORT, LONG = [1.0, 1.1, 1.5, 2.0], [1.0, 2.0, 8.0, 20.0]
SCALINGS: dict[str, rotary.Scaling | None] = {
    "plain": None,
    "linear": rotary.linear(4),
    "dynamic": rotary.dynamic(4, 64, 200),
    "yarn": rotary.yarn(8, 64),
    "yarn, not truncated": rotary.yarn(8, 64, truncate=False, beta_fast=4),
    "llama3": rotary.llama3(8, 1, 4, 64),
    "longrope": rotary.longrope(SHORT, LONG, 64, 200),
}
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"interleaved": True},
    {"width": 8},
    {"width": 8, "trailing": True},
    {"width": 8, "trailing": True, "interleaved": True},
    {"width": 0},
]


def turned(x: Array, positions: Array, frequencies: list[float], amplitude: float, layout: dict[str, Any]) -> Array:
    """Pair by pair, as complex numbers."""
    d, output = x.shape[-1], x.copy()
    width = layout.get("width", d)
    start = d - width if layout.get("trailing") else 0
    for i in np.ndindex(*x.shape[:-1]):
        for a, frequency in enumerate(frequencies[: width // 2]):
            pair = (2 * a, 2 * a + 1) if layout.get("interleaved") else (a, a + width // 2)
            one, other = (start + k for k in pair)
            arrow = amplitude * cmath.rect(1, float(positions[i]) * frequency) * complex(x[(*i, one)], x[(*i, other)])
            output[(*i, one)], output[(*i, other)] = arrow.real, arrow.imag
    return output


def plain(width: int, base: float = 10000.0) -> list[float]:
    return [base ** (-2 * a / width) for a in range(width // 2)]


@each("layout", LAYOUTS)
def test_pairs_are_turned_as_complex_numbers_are_and_other_features_stay(layout: dict[str, Any]) -> None:
    x = normal(0, 2, 5, 12)
    for positions in (None, [3, 1, 4, 1, 5], normal(1, 5), np.arange(10).reshape(2, 5), [[7], [9]] * np.ones(5)):
        output, _ = rotary.forward(x, positions, **layout)
        of_rows = np.broadcast_to(np.arange(5) if positions is None else positions, x.shape[:-1])
        expected = turned(x, of_rows, plain(layout.get("width", 12)), 1, layout)
        assert_close(output, expected, 2e-15)


@each("scaling", SCALINGS.values())
@each("layout", LAYOUTS[1:4])
def test_gradients_are_numerical_ones(scaling: rotary.Scaling | None, layout: dict[str, Any]) -> None:
    width = {} if scaling is None else {"width": 8}
    options = {"positions": normal(2, 2, 5) * 9, "scaling": scaling, **layout, **width}
    report = gradcheck.check_op(rotary, {"x": normal(0, 2, 5, 12)}, method="complex-step", **options)
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


def yarn_by_pairs(factor: float, length: float, fast: float, slow: float, round_: bool) -> tuple[list[float], float]:
    low, high = (8 * math.log(length / (2 * math.pi * turns)) / (2 * math.log(10000.0)) for turns in (fast, slow))
    if round_:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 7)
    blended = []
    for a, frequency in enumerate(plain(8)):
        share = min(max((a - low) / (high - low), 0), 1)
        blended.append(frequency * (1 - share) + frequency / factor * share)
    return blended, 0.1 * math.log(factor) + 1


def llama3_by_pairs(factor: float, low: float, high: float, length: float) -> list[float]:
    scaled = []
    for frequency in plain(8):
        wavelength = 2 * math.pi / frequency
        smooth = (length / wavelength - low) / (high - low)
        blend = (1 - smooth) * frequency / factor + smooth * frequency
        scaled.append(
            frequency if wavelength < length / high else frequency / factor if wavelength > length / low else blend
        )
    return scaled


EXPECTED: dict[str, Callable[[], tuple[list[float], float]]] = {
    "plain": lambda: (plain(8), 1.0),
    "linear": lambda: ([f / 4 for f in plain(8)], 1.0),
    "dynamic": lambda: (plain(8, 10000 * (4 * 200 / 64 - 3) ** (8 / 6)), 1.0),
    "yarn": lambda: yarn_by_pairs(8, 64, 32, 1, True),
    "yarn, not truncated": lambda: yarn_by_pairs(8, 64, 4, 1, False),
    "llama3": lambda: (llama3_by_pairs(8, 1, 4, 64), 1.0),
    "longrope": lambda: (
        [f / k for f, k in zip(plain(8), LONG, strict=True)],
        math.sqrt(1 + math.log(200 / 64) / math.log(64)),
    ),
}


@each("name", EXPECTED)
def test_frequencies_and_amplitudes_are_those_of_the_definitions(name: str) -> None:
    frequencies, amplitude = EXPECTED[name]()
    x, positions = normal(0, 5, 8), np.array([0, 1, 7, 50, 199])
    output, _ = rotary.forward(x, positions, scaling=SCALINGS[name])
    assert_close(output, turned(x, positions, frequencies, amplitude, {}), 1e-13)  # angles to 200, in float64
    if name not in ("plain", "linear"):
        other, _ = rotary.forward(x, positions)
        assert np.abs(output - other).max() > 0.1


def test_the_two_roundings_of_yarn_are_two_scalings() -> None:
    one, other = (rotary.yarn(8, 4096, truncate=truncate).frequencies(150000.0, 64) for truncate in (True, False))
    assert np.abs(one / other - 1).max() > 0.1


def test_what_each_scaling_keeps() -> None:
    x, positions = normal(0, 5, 8), np.arange(5)
    output, _ = rotary.forward(x, positions)
    assert_same_bits(rotary.forward(x, 4 * positions, scaling=rotary.linear(4))[0], output)
    assert_same_bits(rotary.forward(x, positions, scaling=rotary.dynamic(4, 64, 64))[0], output)
    assert_same_bits(rotary.forward(x, positions, scaling=rotary.dynamic(4, 64, 10))[0], output)
    assert_same_bits(
        rotary.forward(x[:, :2], positions, scaling=rotary.dynamic(4, 64, 100))[0], rotary.forward(x[:, :2])[0]
    )
    ends = rotary.dynamic(4, 64, 128).frequencies(10000.0, 8) / rotary.plain(10000.0, 8)
    assert_close(ends[[0, -1]].astype(float), np.array([1, 1 / 5]), 1e-15)
    assert_same_bits(rotary.forward(x, scaling=rotary.yarn(1, 64))[0], output)
    short, long = (rotary.longrope(SHORT, LONG, 64, length, maximum_length=200) for length in (64, 65))
    assert_close((rotary.plain(10000.0, 8) / short.frequencies(10000.0, 8)).astype(float), np.array(SHORT), 1e-15)
    assert_close((rotary.plain(10000.0, 8) / long.frequencies(10000.0, 8)).astype(float), np.array(LONG), 1e-15)
    assert short.amplitude == long.amplitude
    assert float(long.amplitude) == math.sqrt(1 + math.log(200 / 64) / math.log(64))
    assert rotary.longrope(SHORT, LONG, 64, 32).amplitude == 1
    assert rotary.longrope(SHORT, LONG, 64, 100, attention_factor=1.5).amplitude == 1.5
    assert rotary.yarn(4, 64, attention_factor=0.5).amplitude == 0.5


@each("scaling", SCALINGS.values())
def test_lengths_are_kept_but_for_the_amplitude_and_scores_see_differences_of_positions_alone(
    scaling: rotary.Scaling | None,
) -> None:
    query, key = normal(0, 5, 8), normal(1, 7, 8)
    amplitude = 1 if scaling is None else scaling.amplitude
    scores = []
    for start in (0, 1000, -37):
        q, _ = rotary.forward(query, np.arange(5) + start, scaling=scaling)
        k, _ = rotary.forward(key, np.arange(7) + start, scaling=scaling)
        assert_close((q**2).sum(axis=-1), amplitude**2 * (query**2).sum(axis=-1), 1e-14)
        scores.append(q @ k.T)
    assert_close(scores[1], scores[0], 1e-14)
    assert_close(scores[2], scores[0], 1e-14)
    normed = rms_norm.forward(rotary.forward(query, scaling=scaling)[0], epsilon=0.0)[0]
    assert_close(amplitude * normed, rotary.forward(rms_norm.forward(query, epsilon=0.0)[0], scaling=scaling)[0], 1e-14)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="NumPy's longdouble has no 64 bits here")
def test_angles_of_distant_positions_keep_the_digits_of_the_dtype() -> None:
    mpmath = pytest.importorskip("mpmath")
    position = 131071
    output, _ = rotary.forward(np.eye(8)[None, 0] + np.eye(8)[None, 1], [position])
    with mpmath.workdps(40):
        for a in (0, 1):
            angle = position * mpmath.mpf(10000) ** (-mpmath.mpf(2 * a) / 8)
            assert abs(output[0, a] - float(mpmath.cos(angle))) <= 1e-14
            assert abs(output[0, a + 4] - float(mpmath.sin(angle))) <= 1e-14


def test_numbers_in_features_that_are_not_turned_may_be_anything() -> None:
    x = normal(0, 3, 6)
    x[:, 4:] = np.nan, np.inf
    output, cache = rotary.forward(x, width=4)
    assert_same_bits(output[:, 4:], x[:, 4:])
    assert np.isfinite(output[:, :4]).all()
    assert (rotary.backward(np.zeros((3, 6)), cache).x == 0).all()


AXES: list[
    tuple[dict[str, Any], list[int], list[float]]
] = [  # options of six pairs, and of each its axis, its exponent
    ({"sections": [1, 2, 3]}, [0, 1, 1, 2, 2, 2], [p / 6 for p in range(6)]),
    ({"sections": [6]}, [0] * 6, [p / 6 for p in range(6)]),
    ({"sections": [3, 0, 3], "restart": True}, [0, 0, 0, 2, 2, 2], [0, 1 / 3, 2 / 3] * 2),
    ({"sections": [2, 4], "restart": True}, [0, 0, 1, 1, 1, 1], [0, 1 / 2, 0, 1 / 4, 2 / 4, 3 / 4]),
    ({"sections": [2, 2, 2], "arrangement": "interleaved"}, [0, 1, 2, 0, 1, 2], [p / 6 for p in range(6)]),
    ({"sections": [3, 1, 2], "arrangement": "interleaved"}, [0, 1, 2, 0, 0, 2], [p / 6 for p in range(6)]),
    ({"sections": [2, 4], "arrangement": "interleaved"}, [0, 1, 0, 1, 0, 1], [p / 6 for p in range(6)]),
]


@each(("options", "axes", "exponents"), AXES)
@each("layout", [{}, {"width": 12, "trailing": True, "interleaved": True, "base": 50.0}])
def test_each_pair_turns_by_the_position_on_its_axis(
    options: dict[str, Any], axes: list[int], exponents: list[float], layout: dict[str, Any]
) -> None:
    x, count = normal(0, 2, 5, 14 if layout else 12), len(options["sections"])
    frequencies = [layout.get("base", 10000.0) ** -e for e in exponents]
    for positions in (9 * normal(1, count, 5), normal(1, count, 2, 5), np.arange(5 * count).reshape(count, 1, 5)):
        output, cache = rotary.forward(x, positions, **options, **layout)
        assert cache.cos.shape == (*positions.shape[1:], 6)
        by_pairs = x.copy()
        for p, axis in enumerate(axes):  # each pair by itself, the others at rest
            alone = [f if q == p else 0.0 for q, f in enumerate(frequencies)]
            by_pairs = turned(by_pairs, np.broadcast_to(positions[axis], (2, 5)), alone, 1, layout)
        assert_close(output, by_pairs, 4e-15)
        report = gradcheck.check_op(rotary, {"x": x}, method="complex-step", positions=positions, **options, **layout)
        report.raise_if_failed()
        assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


@each("scaling", list(SCALINGS.values())[:-1])
@each("options", [options for options, _, _ in AXES if not options.get("restart")])
def test_rows_whose_axes_agree_are_turned_as_without_sections(
    scaling: rotary.Scaling | None, options: dict[str, Any]
) -> None:
    x, count = normal(0, 2, 5, 12), len(options["sections"])
    for positions in (None, np.array([3, 1, 4, 1, 5])):
        expected = rotary.forward(x, positions, scaling=scaling)[0]
        of_axes = None if positions is None else np.broadcast_to(positions, (count, 5))
        assert_same_bits(rotary.forward(x, of_axes, scaling=scaling, **options)[0], expected)


@each("scaling", SCALINGS.values())
def test_a_section_that_restarts_is_a_rotary_embedding_of_its_own_scaling_included(
    scaling: rotary.Scaling | None,
) -> None:
    x, positions = normal(0, 5, 16), 20 * normal(1, 2, 5)
    output, _ = rotary.forward(x, positions, scaling=scaling, sections=(4, 4), restart=True)
    for axis in (0, 1):
        own = [*range(4 * axis, 4 * axis + 4), *range(8 + 4 * axis, 12 + 4 * axis)]
        assert_same_bits(output[:, own], rotary.forward(x[:, own], positions[axis], scaling=scaling)[0])


@each("options", [options for options, _, _ in AXES[:1] + AXES[5:6]])
def test_multi_head_attention_takes_positions_on_several_axes(options: dict[str, Any]) -> None:
    x, w = normal(0, 2, 5, 24), np.eye(24)
    parameters = multi_head.Parameters(w, w, w, w)
    for positions in (9 * normal(1, 3, 5), 9 * normal(1, 3, 2, 5)):
        layer = {"num_heads": 2, "rotary": options, "positions": positions}
        _, cache = multi_head.forward(x, x, x, parameters, **layer)
        heads = multi_head.split_heads(x, 2)
        of_heads, _ = rotary.forward(heads, positions[..., None, :], **options)
        assert_close(cache.attention.scores, of_heads @ of_heads.swapaxes(-1, -2) / np.sqrt(12), 1e-14)


def test_scores_see_the_difference_of_positions_on_each_axis_alone() -> None:
    query, key, start = normal(0, 5, 12), normal(1, 7, 12), np.array([[1000], [-37], [4]])
    at_query, at_key = 9 * normal(2, 3, 5), 9 * normal(3, 3, 7)
    for options, _, _ in AXES:
        if len(options["sections"]) == 3:
            scores = [
                rotary.forward(query, at_query + by, **options)[0] @ rotary.forward(key, at_key + by, **options)[0].T
                for by in (0, start)
            ]
            assert_close(scores[1], scores[0], 1e-13)  # of angles to 1000, in float64


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": np.ones(4)}, ValueError, r"x must have at least two axes, .*\(x\.shape=\(4,\)\)"),
    ({"positions": [1, 2]}, ValueError, r"positions must broadcast to the rows, whose shape is \(3,\) .*shape=\(2,\)"),
    ({"positions": [1]}, ValueError, r"positions must have a number for each of the 3 rows .*shape=\(1,\)"),
    ({"positions": 1}, ValueError, r"positions must have a number for each of the 3 rows .*shape=\(\)"),
    ({"positions": [1, 2, np.nan]}, ValueError, "positions must be finite"),
    ({"positions": [True] * 3}, TypeError, "positions must hold integers or real numbers, not bool"),
    ({"positions": [1j] * 3}, TypeError, "positions must hold integers or real numbers, not complex128"),
    ({"width": 3}, ValueError, "width must be even, and at most the 4 features, not 3"),
    ({"width": 6}, ValueError, "width must be even, and at most the 4 features, not 6"),
    ({"x": np.ones((3, 5))}, ValueError, "width must be even, and at most the 5 features, not 5"),
    ({"base": 1}, ValueError, r"base must be finite and above 1, not 1\.0"),
    ({"base": np.inf}, ValueError, "base must be finite and above 1, not inf"),
    ({"interleaved": 1}, TypeError, "interleaved must be True or False, not 1"),
    ({"trailing": "yes"}, TypeError, "trailing must be True or False, not 'yes'"),
    ({"arrangement": "rows"}, ValueError, "arrangement must be one of 'runs', 'interleaved', not 'rows'"),
    ({"arrangement": ["runs"]}, ValueError, r"arrangement must be one of 'runs', 'interleaved', not \['runs'\]"),
    ({"arrangement": "interleaved"}, ValueError, "arrangement and restart are for sections, which are not given"),
    ({"restart": True}, ValueError, "arrangement and restart are for sections, which are not given"),
    ({"restart": 1, "sections": [1, 1]}, TypeError, "restart must be True or False, not 1"),
    (
        {"sections": [1, 1], "arrangement": "interleaved", "restart": True},
        ValueError,
        "restart is for sections in runs, not interleaved",
    ),
    ({"sections": 2}, TypeError, "sections must be a sequence of integers, not int"),
    ({"sections": [1, 1.0]}, TypeError, "each of sections must be an integer, not float"),
    ({"sections": [3, -1]}, ValueError, "each of sections must be at least 0, not -1"),
    ({"sections": [1, 2]}, ValueError, r"sections must sum to the 2 pairs that are turned, not to 3: \(1, 2\)"),
    ({"sections": [], "width": 0}, ValueError, r"sections must sum to the 0 pairs that are turned, not to 0: \(\)"),
    (
        {"sections": [1, 1], "positions": [0, 1, 2]},
        ValueError,
        r"positions must have the shape \(2, 3\) or \(2, \.\.\., 3\), with the axes of the 2 sections first .*=\(3,\)",
    ),
    ({"sections": [1, 1], "positions": np.ones((3, 3))}, ValueError, r"positions must have the shape \(2, 3\) or"),
    (
        {"sections": [1, 1], "positions": np.ones((2, 5, 3))},
        ValueError,
        r"positions\[0\] must broadcast to the rows, whose shape is \(3,\) \(positions\[0\]\.shape=\(5, 3\)\)",
    ),
    ({"sections": [1, 1], "positions": np.ones((2, 1))}, ValueError, "positions must have a number for each of the 3"),
    ({"scaling": 4.0}, TypeError, r"scaling must be a rotary\.Scaling, not float"),
    (
        {"scaling": rotary.longrope([1] * 3, [1] * 2, 4, 8)},
        ValueError,
        r"short_factor must have a number for each of the 2 pairs .*shape=\(3,\)",
    ),
]


@each(("changed", "error", "message"), REFUSED)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        rotary.forward(**{"x": np.ones((3, 4)), **changed})


@each(
    ("call", "message"),
    [
        (lambda: rotary.linear(0.5), r"factor must be at least 1, not 0\.5"),
        (lambda: rotary.dynamic(2, 0, 4), r"original_length must be finite and above 0, not 0\.0"),
        (lambda: rotary.yarn(np.nan, 4), "factor must be finite and above 0, not nan"),
        (lambda: rotary.yarn(2, 4, attention_factor=-1), r"attention_factor must be finite and above 0, not -1\.0"),
        (lambda: rotary.llama3(2, 4, 4, 8), r"high_freq_factor must be above low_freq_factor=4\.0, not 4\.0"),
        (lambda: rotary.longrope([1], [0], 4, 8), r"long_factor must be a vector of positive numbers"),
        (lambda: rotary.longrope([[1]], [1], 4, 2), r"short_factor must be a vector of positive numbers"),
        (lambda: rotary.longrope([1], [1], 1, 2), r"original_length must be finite and above 1, not 1\.0"),
    ],
)
def test_scalings_that_cannot_be_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_a_scaling_of_ones_own_may_have_an_amplitude_for_each_pair_and_frequencies_for_each_token() -> None:
    x, speeds, amplitude = normal(0, 3, 8), np.arange(12.0).reshape(3, 4), np.array([1.0, 2, 3, 4])
    _, cache = rotary.forward(x, scaling=rotary.Scaling(lambda base, width: speeds, amplitude))
    np.testing.assert_allclose(cache.cos, amplitude * np.cos(np.arange(3)[:, None] * speeds), rtol=1e-15)


def test_the_angles_of_positions_are_kept_and_nobody_can_change_them() -> None:
    x, positions = normal(0, 5, 8), np.arange(5) * 3
    _, cache = rotary.forward(x, positions)
    assert rotary.forward(x, positions.copy())[1].cos is cache.cos
    with pytest.raises(ValueError, match="read-only"):
        cache.cos[0] = 0
    doubles = rotary.Scaling(lambda base, width: np.ones(width // 2))  # in no more digits than a user has
    assert_close(rotary.forward(x, positions, scaling=doubles)[1].cos[:, 3], np.cos(positions), 1e-15)
    positions[0] = 1
    assert rotary.forward(x, positions)[1].cos[0, 0] != cache.cos[0, 0]
