"""The number formats that answers are given in, and rounding to them once."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array


class Format(NamedTuple):
    """A binary floating-point format, and the one that an implementation of it accumulates in at least."""

    precision: int  # bits of a significand
    least: int  # the exponent of the smallest number above zero
    accumulation: int  # bits of a significand in sums
    least_normal: int  # the exponent of the smallest normal number in sums
    code: str  # in files
    steps: str | None = None  # the format that is rounded to between products, if it is a longer one
    gradients: str | None = None  # and the one that gradients are rounded to where they enter a product

    @property
    def unit(self) -> float:
        """The unit roundoff: the largest relative error of rounding to nearest."""
        return 2.0**-self.precision

    @property
    def accumulation_unit(self) -> float:
        """The unit roundoff of sums."""
        return 2.0**-self.accumulation

    @property
    def underflow(self) -> float:
        """The absolute error of a result that is too small: rounded as a subnormal number, or flushed to zero.

        Some implementations keep what they compute a few binary digits away from subnormal numbers, which are slow.
        """
        return max(2.0 ** (self.least - 1), 2.0 ** (self.least_normal + 8))


FORMATS = {
    "float64": Format(53, -1074, 53, -1022, "F64"),
    "float32": Format(24, -149, 24, -126, "F32"),
    "float16": Format(11, -24, 24, -126, "F16"),
    "bfloat16": Format(8, -133, 24, -126, "BF16"),
    "float8_e4m3fn": Format(4, -9, 24, -126, "F8_E4M3", "bfloat16", "float8_e5m2"),
    "float8_e5m2": Format(3, -16, 24, -126, "F8_E5M2"),
}
DTYPES = tuple(FORMATS)[:4]
EIGHT_BITS = "float8_e4m3fn"  # of queries, keys and values, whose scales are among the inputs
OF_CASES = (*DTYPES, EIGHT_BITS)
DESCALE = "_descale"  # behind the name of an array: what its numbers are to be multiplied by


def format_of(array: str, dtype: str, inputs: Container[str], in_float32: Container[str] = ()) -> str:
    """The format that an array is stored in, in a case of a dtype: of few bits if its scale is among the inputs."""
    if array + DESCALE in inputs:
        return "float8_e5m2" if array == "d_output" else EIGHT_BITS
    if array.endswith(DESCALE) or (array in in_float32 and FORMATS[dtype].precision < FORMATS["float32"].precision):
        return "float32"
    return "bfloat16" if dtype == EIGHT_BITS else dtype


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a format; those that NumPy lacks come from ml_dtypes.

    Raises
    ------
    ImportError
        If ml_dtypes is needed and missing.
    """
    if hasattr(np, name):
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(f"{name} needs ml_dtypes: pip install 'attention-np[answers]'") from error
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def to_format(values: Array, name: str) -> Array:
    """An array of mpmath numbers, each rounded once, to nearest with ties to even.

    Raises
    ------
    ValueError
        If a finite number is too large for the format.
    """
    form = FORMATS[name]
    flat = [_rounded(x, form) for x in values.ravel()]
    wide = np.array(flat, np.float64).reshape(values.shape)
    with np.errstate(over="ignore"):
        result: Array = wide.astype(dtype_of(name))  # exact, unless it is too large
    if (np.isfinite(wide) & ~np.isfinite(result.astype(np.float64))).any():
        raise ValueError(f"an answer is too large for {name}")
    return result


def _rounded(x: Any, form: Format) -> float:
    context = x.context
    if x == 0 or not context.isfinite(x):
        return float(x)
    _, exponent = context.frexp(x)
    last = max(exponent - form.precision, form.least)  # the exponent of the last bit that is kept
    return float(context.ldexp(context.nint(context.ldexp(x, -last)), last))
