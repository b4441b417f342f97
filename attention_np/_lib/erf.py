r"""The error function, real and complex, and the normal distribution that is made of it: NumPy has none.

Near zero the error function is its power series. Elsewhere it is one less what is missing, which is

.. math::

    \mathrm{erfc}(z) = e^{-z^2} \frac{g(z)}{1 + 2 z},

where `g`, for numbers from zero on, lies between 1 and 1.29. In :math:`(z - 5) / (z + 5)`, which maps the half plane on
the right to the unit disc, it is a power series of a few dozen terms (J. A. C. Weideman, "Computation of the complex
error function", SIAM J. Numer. Anal. 31, 1994; M. M. Shepherd and J. G. Laframboise, "Chebyshev approximation of
(1 + 2x) exp(x^2) erfc x in 0 <= x < infinity", Math. Comp. 36, 1981).

All is arithmetic and exponentials, so it goes for complex numbers too, as the analytic continuation, and for arrays of
any kind that knows these, such as numbers that carry a slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial, pi, sqrt

import numpy as np

from attention_np._lib.tails import Numbers, bounded, exp_of_minus_square, in_double, modulus

NEAR = 0.65  # up to this modulus the power series loses nothing

# of erf(z) / z in powers of z^2
SERIES = tuple(2 / sqrt(pi) * (-1) ** n / (factorial(n) * (2 * n + 1)) for n in range(14))

# of g in powers of (z - 5) / (z + 5), from its values in 40 digits on the imaginary axis
SCALED = (
    1.217751015063755,
    -0.1325141194695216,
    0.045685727395999305,
    0.023398444435494253,
    -0.06604593786208456,
    0.08189486374284916,
    -0.0771139093785422,
    0.06079923063682435,
    -0.04140591821735453,
    0.024563305058276676,
    -0.012635571141922092,
    0.005538404876334248,
    -0.0019888955093348695,
    0.0005312419614908308,
    -7.09377113615087e-05,
    -1.879869245641084e-05,
    1.4445171725154524e-05,
    -3.4510921499397103e-06,
    -3.4712732994601236e-07,
    4.92343125468652e-07,
    -1.0522742754590892e-07,
    -2.987032867955885e-08,
    2.0334121394048162e-08,
    -8.59022977570829e-10,
    -2.4648538534256083e-09,
    5.772975666867312e-10,
    2.403935988905994e-10,
    -1.172538371215452e-10,
    -1.89884068022135e-11,
    1.9437937966369222e-11,
    9.22121158927655e-13,
    -3.056745720873711e-12,
    6.313306161702045e-14,
    4.836458144724689e-13,
    -2.870968590837969e-14,
    -7.914751636923097e-14,
    5.62661737399559e-15,
    1.3520934203011176e-14,
    -7.545770358674294e-16,
    -2.40053186877032e-15,
    3.515795329107018e-17,
    4.364824650996384e-16,
    2.2095252830312256e-17,
    -7.947741186722622e-17,
)


@in_double
def erf(z: Numbers) -> Numbers:
    """The error function, to two units in the last place."""
    left, missing = _missing(z)
    return np.where(_is_near(z), _series(z), np.where(left, missing - 1, 1 - missing))


@in_double
def erfc(z: Numbers) -> Numbers:
    """One less the error function, to a relative error of 5e-16, until it is below the normal numbers."""
    left, missing = _missing(z)
    return np.where(_is_near(z), 1 - _series(z), np.where(left, 2 - missing, missing))


def normal(x: Numbers) -> tuple[Numbers, Numbers]:
    """How much of the normal distribution lies below `x`, and its density there, both with all their digits.

    Of double precision, to a relative error of 5e-16.
    """
    half_square = exp_of_minus_square(x, 0.5)
    z = x * sqrt(0.5)
    left, right = _to_the_right(z)
    beyond = 0.5 * half_square * _scaled(right)
    below = np.where(_is_near(z), 0.5 * (1 + _series(z)), np.where(left, beyond, 1 - beyond))
    return below, half_square / sqrt(2 * pi)


def _missing(z: Numbers) -> tuple[Numbers, Numbers]:
    """Whether the real part is negative; and the complementary error function of what is then turned over."""
    left, right = _to_the_right(z)
    return left, exp_of_minus_square(right, 1.0) * _scaled(right)


def _to_the_right(z: Numbers) -> tuple[Numbers, Numbers]:
    left = z.real < 0
    return left, bounded(np.where(left, -z, z))


def _is_near(z: Numbers) -> Numbers:
    return modulus(z) < NEAR


def _series(z: Numbers) -> Numbers:
    """The error function near zero."""
    z = np.where(_is_near(z), z, 0)
    return z * _polynomial(SERIES, z * z)


def _scaled(z: Numbers) -> Numbers:
    """``exp(z^2) erfc(z)``, for real parts from zero on."""
    return _polynomial(SCALED, (z - 5) / (z + 5)) / (1 + 2 * z)


def _polynomial(coefficients: Sequence[float], z: Numbers) -> Numbers:
    total = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        total = total * z + coefficient
    return total
