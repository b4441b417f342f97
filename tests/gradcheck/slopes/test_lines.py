from math import comb

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck.slopes.lines import ORDER, POINTS, high_differences, noise_of


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
