"""Numbers of each dtype: rounded to the nearest, or refused."""

from fractions import Fraction

import numpy as np
import pytest
from helpers import each, normal

from attention_np.known_answers import truth
from attention_np.known_answers.formats import FORMATS, to_format


@each("dtype", FORMATS)
def test_rounding_is_to_the_nearest_and_of_two_to_the_even_one(dtype: str) -> None:
    form = FORMATS[dtype]
    some = normal(0, 200) * 2.0 ** np.random.default_rng(1).integers(form.least // 2, 6, 200)
    tiny = np.arange(0, 9) * 2.0 ** (form.least - 2) if form.least > -1070 else np.arange(0, 9) * 5e-324
    numbers = [Fraction(float(x)) for x in (*some, *tiny)]
    numbers += [x * (1 + Fraction(1, 2**k)) for x in numbers[:20] for k in (form.precision, form.precision + 1, 60, 80)]
    with truth.MP.workdps(400):
        exact = np.array([truth.MP.mpf(x.numerator) / x.denominator for x in numbers], object)
        found = to_format(exact, dtype)
    bits = found.view(f"u{found.itemsize}")
    for x, y, pattern in zip(numbers, found, bits, strict=True):
        steps = [
            np.array([int(pattern) + k], bits.dtype).view(found.dtype)[0] for k in (-1, 1) if int(pattern) + k >= 0
        ]
        near = [abs(Fraction(float(z)) - x) for z in steps if np.isfinite(float(z))]
        off = abs(Fraction(float(y)) - x)
        assert all(off <= other for other in near)
        assert off not in near or int(pattern) % 2 == 0


def test_a_number_that_a_dtype_does_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^an answer is too large for float16$"):
        to_format(np.array([truth.MP.mpf(10) ** 6], object), "float16")
