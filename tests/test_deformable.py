from typing import Any

import numpy as np
import pytest
from helpers import COMPLEX_STEP, Array, assert_close, assert_same_bits, each, normal

from attention_np import deformable, gradcheck

D = 3
SHAPES = ((4, 3), (1, 2), (5, 1))
PIXELS = 12 + 2 + 5


def inputs(n: int, *leading: int, points: int = 2) -> dict[str, Array]:
    """Values, locations of which one in four is outside of the picture, and weights."""
    locations = 1.3 * np.random.default_rng(1).random((*leading, n, len(SHAPES), points, 2)) - 0.15
    return {
        "value": normal(0, *leading, PIXELS, D),
        "locations": locations,
        "weights": normal(2, *leading, n, len(SHAPES), points),
    }


def hat(t: Any) -> Any:
    return max(0.0, 1 - abs(t))


def sampled(value: Array, x: float, y: float, height: int, width: int) -> Any:
    """A sample of one level, of all of its pixels."""
    near = [[hat(x * width - c - 0.5) * hat(y * height - r - 0.5) for c in range(width)] for r in range(height)]
    return (np.array(near).reshape(-1, 1) * value).sum(axis=0)


@each("n", [1, 5])
@each("points", [1, 3])
@each("leading", [(), (2,)])
def test_gradients_are_numerical_ones(leading: Any, points: int, n: int) -> None:
    given = inputs(n, *leading, points=points)
    report = gradcheck.check_op(deformable, given, method="complex-step", shapes=SHAPES)
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


def test_a_sample_is_the_sum_of_hats_over_all_pixels_of_its_level() -> None:
    value, locations, weights = inputs(20).values()
    output, _ = deformable.forward(value, locations, weights, shapes=SHAPES)
    expected, start = np.zeros_like(output), 0
    for k, (height, width) in enumerate(SHAPES):
        level = value[start : start + height * width]
        start += height * width
        for i, p in np.ndindex(20, 2):
            expected[i] += weights[i, k, p] * sampled(level, *locations[i, k, p], height, width)
    assert_close(output, expected, 1e-14)


def one(x: Any, y: Any, size: tuple[int, int] = (3, 4), value: Any = None) -> tuple[Array, Any]:
    """One point in one picture, by default of the numbers of its pixels."""
    value = np.arange(1.0, size[0] * size[1] + 1)[:, None] if value is None else value
    return deformable.forward(value, np.array([[[[x, y]]]]), np.ones((1, 1, 1)), shapes=(size,))


def test_the_centre_of_a_pixel_is_that_pixel_and_a_middle_is_a_mean() -> None:
    for r, c in np.ndindex(3, 4):
        assert_close(one((c + 0.5) / 4, (r + 0.5) / 3)[0], np.array([[4.0 * r + c + 1]]), 1e-15)
    assert one(0.25, 0.5)[0] == (5 + 6) / 2
    assert one(0.0, 0.5)[0] == 5 / 2  # on the edge of the picture: half of the pixel, and half of nothing
    assert one(0.0, 0.0)[0] == 1 / 4
    assert one(-0.125, 0.5)[0] == one(0.5, 1.2)[0] == 0


@each("far", [-1.0, 2.0, 1e10, -1e300, np.inf, -np.inf])
@each("axis", [0, 1])
@each("dtype", [np.float64, np.float32])
def test_samples_outside_are_zero_and_so_are_their_gradients_however_far(dtype: Any, axis: int, far: float) -> None:
    given = {name: x.astype(dtype) for name, x in inputs(4).items()}
    plain = deformable.forward(**given, shapes=SHAPES)
    d_output = normal(5, 4, D).astype(dtype)
    given["weights"][2, 1, 1] = 0
    expected, cache = deformable.forward(**given, shapes=SHAPES)
    gradients = deformable.backward(d_output, cache)
    with np.errstate(over="ignore"):
        given["locations"][2, 1, 1, axis] = far
    given["weights"][2, 1, 1] = 7
    output, cache = deformable.forward(**given, shapes=SHAPES)
    found = deformable.backward(d_output, cache)
    assert_same_bits(output, expected)
    assert_same_bits(output[[0, 1, 3]], plain[0][[0, 1, 3]])
    assert_close(found.value, gradients.value, 4 * float(np.finfo(dtype).eps))  # other pairs may be added first
    assert (found.locations[2, 1, 1] == 0).all()
    assert found.weights[2, 1, 1] == 0
    along = {"locations": np.ones_like(given["locations"])}
    assert np.isfinite(deformable.jvp(cache, **along)).all()


def test_at_a_kink_the_gradient_is_the_slope_on_the_right() -> None:
    value = np.array([[1.0], [2.0], [4.0], [8.0]])
    for column, slope in ((0, 1), (1, 2), (2, 4), (3, -8)):  # behind the last centre it fades out
        output, cache = one((column + 0.5) / 4, 0.5, (1, 4), value)
        gradients = deformable.backward(np.ones((1, 1)), cache)
        assert output == value[column]
        assert gradients.locations[0, 0, 0, 0] == 4 * slope
        assert_same_bits(gradients.value, np.eye(4)[:, [column]])
        near = 1e-9
        difference = (one((column + 0.5) / 4 + near, 0.5, (1, 4), value)[0] - output) / near
        assert abs(difference - 4 * slope) <= 1e-5
    output, cache = one(-0.125, 0.5, (1, 4), value)  # where it begins to fade in
    assert output == 0
    assert deformable.backward(np.ones((1, 1)), cache).locations[0, 0, 0, 0] == 4
    output, cache = one(1.125, 0.5, (1, 4), value)
    assert deformable.backward(np.ones((1, 1)), cache).locations[0, 0, 0, 0] == 0


def test_the_checker_says_that_it_stands_on_a_kink_and_passes_beside_it() -> None:
    rest = inputs(3)
    given, rest["shapes"] = {"locations": rest.pop("locations")}, SHAPES
    given["locations"][1, 0, 0] = 0.5, 0.3  # x on the middle column of three
    report = gradcheck.check_op(deformable, given, method="central", **rest)
    assert not report["locations"].ok
    assert "forward is not differentiable at [1, 0, 0, 0]: its slope is" in str(report)
    given["locations"][1, 0, 0, 0] = 0.45
    assert gradcheck.check_op(deformable, given, method="central", **rest).ok


@each("axis", [0, 1])
def test_a_location_that_is_nan_has_its_way_in_its_own_query_and_in_the_pixels_of_its_level(axis: int) -> None:
    given, d_output = inputs(4, 2), normal(5, 2, 4, D)
    output, cache = deformable.forward(**given, shapes=SHAPES)
    spoiled = given | {"locations": given["locations"].copy()}
    spoiled["locations"][0, 2, 1, 1, axis] = np.nan
    bad, of_bad = deformable.forward(**spoiled, shapes=SHAPES)
    assert np.isnan(bad[0, 2]).all()
    others = [0, 1, 3]
    assert_same_bits(bad[0, others], output[0, others])
    assert_same_bits(bad[1], output[1])
    found, plain = deformable.backward(d_output, of_bad), deformable.backward(d_output, cache)
    assert np.isnan(found.value[0, 12:14]).all()
    assert_same_bits(np.delete(found.value[0], [12, 13], axis=0), np.delete(plain.value[0], [12, 13], axis=0))
    assert_same_bits(found.value[1], plain.value[1])
    assert np.isnan(found.locations[0, 2, 1, 1]).any()
    assert np.isnan(found.weights[0, 2, 1, 1])
    assert_same_bits(found.locations[0, others], plain.locations[0, others])
    assert np.isfinite(np.delete(found.locations[0, 2].ravel(), [6, 7])).all()
    d_output[0, 2] = 0
    found, plain = deformable.backward(d_output, of_bad), deformable.backward(d_output, cache)
    for name in ("value", "locations", "weights"):
        assert_close(getattr(found, name), getattr(plain, name), 1e-15)


@each("bad", [np.nan, np.inf])
def test_a_pixel_that_is_not_finite_has_its_way_in_the_samples_that_it_is_in(bad: float) -> None:
    value = np.arange(12.0)[:, None]
    value[5] = bad  # row 1, column 1 of 3 x 4
    for r, c in np.ndindex(3, 4):
        output, cache = one((c + 0.5) / 4, (r + 0.5) / 3, value=value)
        found = deformable.backward(np.ones((1, 1)), cache)
        if (r, c) != (1, 1):  # of a neighbour's centre it is a whole pixel away
            assert_close(output, value[[4 * r + c]], 1e-15)
            assert np.isfinite(found.weights).all()
        assert np.isfinite(found.value).all()
        assert np.isfinite(deformable.jvp(cache, value=np.ones_like(value))).all()
    assert not np.isfinite(one(0.4, 0.4, value=value)[0]).any()
    found = deformable.backward(np.zeros((1, 1)), one(0.4, 0.4, value=value)[1])
    assert all((x == 0).all() for x in found)


def test_gradients_of_pixels_that_many_samples_are_in_keep_their_digits() -> None:
    n = 2**15
    locations = np.full((n, 1, 1, 2), np.float32(0.5))
    weights = np.full((n, 1, 1), np.float32(0.1))
    _, cache = deformable.forward(np.ones((4, 1), np.float32), locations, weights, shapes=((2, 2),))
    found = deformable.backward(np.ones((n, 1), np.float32), cache).value
    exact = n * float(np.float32(0.1)) / 4
    assert_close(found.astype(float), np.full((4, 1), exact), 1e-7)


@each("size", [2.0**1000, 2.0**-1000])
def test_sums_whose_terms_leave_the_range_are_found(size: float) -> None:
    given, d_output = inputs(4, 2), normal(5, 2, 4, D)
    along = {name: normal(7, *x.shape) for name, x in given.items()}
    sized = given | {"value": size * given["value"], "weights": given["weights"] / size}
    output, cache = deformable.forward(**given, shapes=SHAPES)
    found, of_sized = deformable.forward(**sized, shapes=SHAPES)
    assert_close(found, output, 1e-14)
    plain, gradients = deformable.backward(d_output, cache), deformable.backward(d_output * size, of_sized)
    assert_close(gradients.value, plain.value, 1e-14)
    of_sizes = along | {"value": size * along["value"], "weights": along["weights"] / size}
    assert_close(deformable.jvp(of_sized, **of_sizes), deformable.jvp(cache, **along), 1e-14)


def test_leading_axes_of_all_arrays_broadcast() -> None:
    given = inputs(4)
    value, locations = normal(3, 2, 1, PIXELS, D), np.stack([given["locations"], given["locations"][::-1]])[:, None]
    weights = normal(4, 3, 4, len(SHAPES), 2)
    output, cache = deformable.forward(value, locations, weights, shapes=SHAPES)
    assert output.shape == (2, 3, 4, D)
    d_output = normal(5, *output.shape)
    found = deformable.backward(d_output, cache)
    assert [x.shape for x in found] == [value.shape, locations.shape, weights.shape]
    full = [np.broadcast_to(x, (2, 3, *x.shape[x.ndim - k :])) for x, k in ((value, 2), (locations, 4), (weights, 3))]
    whole = deformable.forward(*full, shapes=SHAPES)
    assert_same_bits(output, whole[0])
    expected = deformable.backward(d_output, whole[1])
    assert_close(found.value, expected.value.sum(axis=1, keepdims=True), 1e-14)
    assert_close(found.locations, expected.locations.sum(axis=1, keepdims=True), 1e-14)
    assert_close(found.weights, expected.weights.sum(axis=0), 1e-14)


@each(("n", "points", "leading"), [(0, 2, ()), (3, 0, ()), (3, 2, (0,)), (0, 0, (2, 0))])
def test_nothing_to_look_at_gives_zeros_of_the_right_shape(n: int, points: int, leading: Any) -> None:
    given = inputs(n, *leading, points=points)
    output, cache = deformable.forward(**given, shapes=SHAPES)
    assert_same_bits(output, np.zeros((*leading, n, D)))
    found = deformable.backward(output, cache)
    for name, x in given.items():
        assert_same_bits(getattr(found, name), np.zeros(x.shape))
    assert_same_bits(deformable.jvp(cache, **given), output)


@each(
    ("changed", "error", "message"),
    [
        ({"value": np.ones(PIXELS)}, ValueError, r"value must have at least two axes, .* \(value\.shape=\(19,\)\)"),
        ({"value": np.ones((19, 3), int)}, TypeError, "value must hold floating-point numbers, not int64"),
        (
            {"value": np.ones((18, 3))},
            ValueError,
            r"value has 18 pixels, but the levels have 19 together \(shapes=\(\(4, 3\), .* value\.shape=\(18, 3\)\)",
        ),
        (
            {"locations": np.ones((4, 3, 2, 3))},
            ValueError,
            r"locations must have the shape \(\.\.\., n, 3, points, 2\)",
        ),
        (
            {"locations": np.ones((4, 2, 2, 2))},
            ValueError,
            r"locations must have the shape \(\.\.\., n, 3, points, 2\)",
        ),
        ({"locations": np.ones((3, 2, 2))}, ValueError, r"locations must have the shape \(\.\.\., n, 3, points, 2\)"),
        ({"weights": np.ones((4, 3, 1))}, ValueError, r"weights must have the shape \(\.\.\., 4, 3, 2\)"),
        ({"shapes": ()}, ValueError, r"shapes must have the height and the width of each level"),
        ({"shapes": (4, 3)}, ValueError, r"shapes must have the height and the width of each level"),
        ({"shapes": 7}, ValueError, r"shapes must have the height and the width of each level"),
        ({"shapes": ((4, 3, 1),)}, ValueError, r"shapes must have the height and the width of each level"),
        ({"shapes": ((4, 3), (1, 0))}, ValueError, r"shapes\[1\]\[1\] must be at least 1, not 0"),
        ({"shapes": ((4.0, 3),)}, TypeError, r"shapes\[0\]\[0\] must be an integer, not float"),
        (
            {"value": np.ones((2, 19, 3)), "weights": np.ones((3, 4, 3, 2))},
            ValueError,
            r"the leading axes of the arrays do not broadcast together \(value: \(2,\), locations: \(\), .*\(3,\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        deformable.forward(**{**inputs(4), "shapes": SHAPES, **changed})
