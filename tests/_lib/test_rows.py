from typing import Any

import numpy as np
from helpers import Array, assert_close, assert_same_bits, each, normal

from attention_np._lib.dual import Dual, dual
from attention_np._lib.rows import gathered, scattered, summed_over_windows, windows_of
from attention_np._lib.wide import Wide

LEADING = [((), ()), ((2,), (2,)), ((2, 3), ()), ((2, 1), (3,)), ((0,), (0,))]  # of the array, and of the numbers


def numbers(size: int, *shape: int) -> Any:
    return np.random.default_rng(3).integers(0, size, shape)


@each(("of_array", "of_index"), LEADING)
@each("t", [0, 1, 2, 50])
def test_each_row_is_taken_by_its_number(t: int, of_array: Any, of_index: Any) -> None:
    x, index = normal(0, *of_array, 7, 3), numbers(7, *of_index, t)
    leading = np.broadcast_shapes(of_array, of_index)
    taken = gathered(x, index)
    assert taken.shape == (*leading, t, 3)
    index, x = np.broadcast_to(index, (*leading, t)), np.broadcast_to(x, (*leading, 7, 3))
    for place in np.ndindex(*leading, t):
        assert_same_bits(taken[place], x[(*place[:-1], index[place])])


@each(("of_array", "of_index"), LEADING)
@each("t", [0, 1, 2, 50])
def test_what_is_put_together_is_the_transpose_of_what_is_taken(t: int, of_array: Any, of_index: Any) -> None:
    leading = np.broadcast_shapes(of_array, of_index)
    x, index, rows = normal(0, *leading, 7, 3), numbers(7, *of_index, t), normal(1, *leading, t, 3)
    total = scattered(rows, index, 7)
    assert total.shape == (*leading, 7, 3)
    assert abs((total * x).sum() - (rows * gathered(x, index)).sum()) <= 1e-12
    expected = np.zeros_like(total)
    for place in np.ndindex(*leading, t):
        expected[(*place[:-1], np.broadcast_to(index, (*leading, t))[place])] += rows[place]
    assert_close(total, expected, 1e-14)


@each(("dtype", "digits"), [(np.float32, 1e-7), (np.float64, 1e-13), (np.longdouble, 1e-13)])
def test_sums_of_a_million_rows_keep_their_digits(dtype: Any, digits: float) -> None:
    rows, index = np.full((2**20, 1), dtype(0.1)), np.arange(2**20) % 2  # one after the other they lose 1e-11
    exact = 2**19 * np.longdouble(rows[0, 0])
    total = scattered(rows, index, 3)
    assert total.dtype == dtype
    assert abs(total / exact - [[1], [1], [0]]).max() <= digits


@each("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_has_its_way_in_its_own_sum(bad: float) -> None:
    rows, index = normal(0, 40, 2), numbers(5, 40)
    plain = scattered(rows, index, 5)
    rows[11, 1] = bad
    total = scattered(rows, index, 5)
    others = np.ones_like(plain, bool)
    others[index[11], 1] = False
    assert_same_bits(total[others], plain[others])
    assert not np.isfinite(total[~others]).any()


def test_numbers_of_other_kinds_are_put_together_likewise() -> None:
    rows, tangent, index = normal(0, 3, 40, 2), normal(1, 3, 40, 2), numbers(5, 3, 40)
    sums: Any = scattered(dual(rows, tangent), index, 5)
    assert isinstance(sums, Dual)
    assert_same_bits(sums.value, scattered(rows, index, 5))
    assert_same_bits(sums.velocity, scattered(tangent, index, 5))
    wide: Array = scattered(Wide.of(2.0**1020 * rows) * 2.0**600, index, 5)  # type: ignore[arg-type]
    assert_close(np.asarray(wide * 2.0**-810 * 2.0**-810), sums.value, 1e-15)
    assert_same_bits(scattered(rows + 1j * tangent, index, 5), sums.value + 1j * sums.velocity)


@each("leading", [(), (2,), (2, 0)])
@each(("width", "stride"), [(1, 1), (3, 3), (3, 1), (5, 2), (5, 3), (2, 5), (9, 9), (9, 1), (9, 20), (10, 1), (20, 7)])
def test_sums_over_windows_are_the_transpose_of_windows(width: int, stride: int, leading: tuple[int, ...]) -> None:
    n, starts = 9, range(0, 9 - width + 1, stride)
    x = normal(0, *leading, n, 3)
    windows = windows_of(x, width, stride)
    assert windows.shape == (*leading, len(starts), width, 3)
    assert np.shares_memory(windows, x) or not windows.size
    d_windows, expected = normal(1, *windows.shape), np.zeros_like(x)
    for window, start in enumerate(starts):
        assert_same_bits(windows[..., window, :, :], x[..., start : start + width, :])
        expected[..., start : start + width, :] += d_windows[..., window, :, :]
    assert_close(summed_over_windows(d_windows, n, stride), expected, 1e-15)


def test_windows_of_numbers_of_other_kinds_are_windows_likewise() -> None:
    x, tangent = normal(0, 9, 3), normal(1, 9, 3)
    d_windows, d_tangent = (windows_of(y, 4, 2) for y in (x, tangent))
    for made in (windows_of(dual(x, tangent), 4, 2), dual(d_windows, d_tangent)):
        both: Any = made
        assert isinstance(both, Dual)
        assert_same_bits(both.value, d_windows)
        assert_same_bits(both.velocity, d_tangent)
        sums: Any = summed_over_windows(made, 9, 2)
        assert_same_bits(sums.value, summed_over_windows(d_windows, 9, 2))
        assert_same_bits(sums.velocity, summed_over_windows(d_tangent, 9, 2))
    wide: Any = Wide.of(2.0**1020 * (x + 1j * tangent)) * 2.0**600
    sums = summed_over_windows(windows_of(wide, 4, 2), 9, 2) * 2.0**-810 * 2.0**-810
    assert_close(np.asarray(sums), summed_over_windows(d_windows + 1j * d_tangent, 9, 2), 1e-15)
