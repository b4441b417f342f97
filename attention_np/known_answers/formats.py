"""The number formats that answers are given in, and rounding to them once."""

from __future__ import annotations

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
}
DTYPES = tuple(FORMATS)


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a format; that of bfloat16 comes from ml_dtypes.

    Raises
    ------
    ImportError
        If ml_dtypes is needed and missing.
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError("bfloat16 needs ml_dtypes: pip install 'attention-np[answers]'") from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


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
