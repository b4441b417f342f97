"""What three cotangents tell that one does not."""

import numpy as np
from helpers import each

from ..programs import normal
from .said import said, said_of_numbers

SAME = "it is the same whatever the cotangent"
X = normal(3, 4, seed=1)


@each(
    ("backward", "expected"),
    [
        (lambda d, x: 3 * x**2 + 0 * d, f"{SAME}, as if the loss were a plain sum of the output"),
        (lambda d, x: x**2 + 0 * d, SAME),
    ],
)
@each("options", [{}, {"method": "central"}, {"max_entries": 11, "rng": 1}])
def test_of_a_cube_it_is_said(backward, expected, options):
    assert said(lambda x: x**3, backward, {"x": X}, **options) == expected


@each(
    ("claimed", "floor", "is_said"),
    [
        ([[1.0], [1.001], [0.999]], 1e-3, False),  # one entry only if it is so exactly
        ([[1.0], [1.0], [1.0]], 1e-3, True),
        ([[1.7], [1.7 + 1e-7], [1.7 - 1e-7]], 1e-6, False),
        ([[1.7, -2.9], [1.7 + 1e-7, -2.9], [1.7 - 1e-7, -2.9 + 1e-7]], 1e-6, True),  # two by no accident
        ([[1.7, -2.9], [1.7 + 1e-4, -2.9], [1.7, -2.9 + 1e-4]], 1e-6, False),
    ],
)
def test_what_is_about_the_same_for_every_cotangent_takes_two_entries(claimed, floor, is_said):
    claimed = np.array(claimed)
    right = normal(3, claimed.shape[1], seed=5)
    found = said_of_numbers(right, claimed, floor, at_zero=claimed[0])
    assert (found == SAME) == is_said
