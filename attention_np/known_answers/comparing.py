"""An array is held against a known answer, entry by entry."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers.reading import KnownAnswer
from attention_np.known_answers.report import Comparison

LARGEST = 512  # a length that a factor is named by
SURELY = 1e-5  # relative: numbers so near are the same
CLEAR = 100  # times its bound: an entry so large shows a factor to two digits


def compare(case: KnownAnswer, name: str, found: Array) -> Comparison:
    """The verdict on one array that a function returned."""
    answer, bound = case.answers[name].astype(np.float64), case.bounds[name]
    if found.shape != answer.shape:
        shapes = f"its shape is {found.shape}, and that of the answer is {answer.shape}"
        return _without_numbers(case, name, shapes)
    wide = found.astype(np.result_type(np.float64, found.dtype) if found.dtype.kind == "f" else np.float64)
    with np.errstate(all="ignore"):
        same = (wide == answer) | (np.isnan(wide) & np.isnan(answer))
        difference = np.where(same, 0, np.abs(wide - answer)).astype(np.float64)
        difference = np.where(np.isnan(difference) | (~np.isfinite(answer) & ~same), np.inf, difference)
        ratios = np.where(difference > 0, difference / bound, 0)
    if not ratios.size:
        return Comparison(case.name, name, True, 0.0, (), math.nan, math.nan, math.nan, 0, 0, None)
    flat = int(_worst(ratios, difference))
    index = tuple(map(int, np.unravel_index(flat, ratios.shape)))
    wrong = ratios > 1
    note = _explain(wide.astype(np.float64), answer, bound, wrong) if wrong.any() else None
    values = float(wide[index]), float(answer[index]), float(bound[index])
    ok, ratio, count = not wrong.any(), float(ratios[index]), int(wrong.sum())
    return Comparison(
        case.name, name, ok, ratio, index, *values, count, answer.size, note, case.description, _flags(case)
    )


def failed(case: KnownAnswer, error: Exception) -> Comparison:
    """The verdict on a case in which a function raised."""
    first = (str(error).strip().splitlines() or [""])[0]
    note = f"it raised {type(error).__name__}{f': {first[:90]}' if first else ''}"
    return _without_numbers(case, "output", note)


def _without_numbers(case: KnownAnswer, name: str, note: str) -> Comparison:
    size, none = case.answers[name].size, math.nan
    return Comparison(
        case.name, name, False, math.inf, (), none, none, none, size, size, note, case.description, _flags(case)
    )


def _flags(case: KnownAnswer) -> tuple[str, ...]:
    """The tags of a case, each with its reason."""
    return tuple(f"{tag}: {flag}" for tag, flag in case.flags.items())


def _worst(ratios: Array, difference: Array) -> Any:
    """Where the ratio is largest; of several that are infinite, where the difference is."""
    largest = ratios.max()
    return np.where(ratios == largest, difference, -1.0).argmax()


def _explain(found: Array, answer: Array, bound: Array, wrong: Array) -> str | None:
    """What a wrong array looks like, in a sentence, if the cause is simple."""
    nan = np.isnan(found) & ~np.isnan(answer)
    if nan.any():
        return f"it is NaN in {_entries(nan)} where the answer is not"
    infinite = np.isinf(found) & (found != answer)
    if infinite.any():
        return f"it is infinite in {_entries(infinite)} where the answer is not"
    missing = ~np.isfinite(answer) & (found != answer) & ~np.isnan(found)
    if missing.any():
        return f"it is finite in {_entries(missing)} where the answer is not"
    nothing = wrong & (bound == 0)
    if (nothing | ~wrong).all():
        return f"it is not exactly zero in {_entries(nothing)} that nothing has an influence on"
    finite = np.isfinite(answer) & np.isfinite(found)
    if not found[finite].any():
        return "it is zero throughout"
    some = found[finite], answer[finite]
    return _factor(*some, bound[finite], wrong[finite])


def _factor(found: Array, answer: Array, bound: Array, wrong: Array) -> str | None:
    clear = np.abs(answer) > CLEAR * bound
    if clear.sum() < 3 or not wrong[clear].all():
        return None
    factor = float(np.median(found[clear] / answer[clear]))
    explained = np.abs(found - factor * answer) <= 4 * (abs(factor) + 1) * bound
    return f"it is {_named(factor)} times the answer throughout" if explained.all() else None


def _named(factor: float) -> str:
    """A factor as it would be written: "sqrt(5)", "1/64"."""
    sign, size = ("-" if factor < 0 else ""), abs(factor)
    for name, value in ((name, value) for k in range(1, LARGEST + 1) for name, value in _forms(k)):
        if abs(size - value) <= SURELY * value:
            return f"{sign}{name}"
    return f"{factor:.6g}"


def _forms(k: int) -> list[tuple[str, float]]:
    return [(str(k), k), (f"1/{k}", 1 / k), (f"sqrt({k})", k**0.5), (f"1/sqrt({k})", k**-0.5)]


def _entries(which: Array) -> str:
    count = int(which.sum())
    return f"{count} {'entry' if count == 1 else 'entries'}"
