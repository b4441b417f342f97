"""What is said of a gradient that is rounded, and what is not."""

import re

import numpy as np
from helpers import each

from ..programs import normal
from .said import said

ROUNDED = r"it is rounded to {}, or computed in it: every entry is such a number, off by at most about \S+ of the .*"
X = normal(6, 8, seed=1)


def slope(x):
    return np.exp(np.sin(x)) * np.cos(x)


def forward(x):
    return np.exp(np.sin(x))


def bfloat16(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32).astype(float)


ROUND = {
    "float16": lambda x: x.astype(np.float16).astype(float),
    "float32": lambda x: x.astype(np.float32).astype(float),
    "bfloat16": bfloat16,
}


@each("dtype", ROUND)
@each("size", [1e-2, 1e2])
@each("options", [{}, {"max_entries": 36, "method": "central"}])
def test_a_gradient_is_rounded_if_its_numbers_have_fewer_bits_than_are_known_of_it(dtype, size, options):
    found = said(lambda x: size * forward(x), lambda d, x: ROUND[dtype](size * d * slope(x)), {"x": X}, **options)
    assert re.fullmatch(ROUNDED.format(dtype), found)


def in_steps(d, x, dtype):
    d, x = d.astype(dtype), x.astype(dtype)
    return (d * np.exp(np.sin(x)) * np.cos(x)).astype(float)


def test_what_keeps_a_small_share_of_a_better_precision_is_not_called_so():
    assert re.fullmatch(ROUNDED.format("float32"), said(forward, lambda d, x: in_steps(d, x, np.float32), {"x": X}))
    assert "float32" not in said(forward, lambda d, x: in_steps(d, x, np.float32) + 1e-12 * d, {"x": X})


def test_what_is_computed_in_half_precision_does_not_seem_to_clip():
    found = said(forward, lambda d, x: in_steps(d, x, np.float16), {"x": X})
    assert re.fullmatch(ROUNDED.format("float16"), found)


FACTORS = 1 + 3e-8 * np.random.default_rng(4).choice([-1, 1], (6, 8))


@each(
    ("function", "wrong"),
    [
        (lambda x: np.sin(np.pi * x), lambda x: np.pi * np.cos(3.1415926 * x)),
        (np.sin, lambda x: np.cos(x) * FACTORS),
        (np.tanh, lambda x: 1 - np.tanh(x) ** 2 + 1e-6 * x**3),
        (np.exp, lambda x: 1 + x + x**2 / 2 + x**3 / 6 + x**4 / 24 + x**5 / 120 + x**6 / 720),
    ],
)
@each("seed", range(3))
def test_an_approximation_that_is_as_good_as_single_precision_is_not_called_so(function, wrong, seed):
    assert "float32" not in said(function, lambda d, x: d * wrong(x), {"x": normal(6, 8, seed=seed) / 4})


@each(
    ("function", "wrong", "x"),
    [
        (np.tanh, lambda x: (1 + 1e-9) * (1 - np.tanh(x) ** 2), normal(3, 4)),
        (np.tanh, lambda x: 1 - np.tanh(x) ** 2 + 1e-6 * x**3, np.full((3, 4), 0.6)),
    ],
)
def test_errors_that_are_all_alike_are_not_those_of_rounding(function, wrong, x):
    assert "float32" not in said(function, lambda d, x: d * wrong(x), {"x": x})
