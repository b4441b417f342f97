"""Reports for tests: some of each kind, and those that a check makes from gradients that a test gives."""

import math
from dataclasses import replace

import numpy as np

from attention_np.gradcheck import agreement
from attention_np.gradcheck.findings import Details, Entry, Escape
from attention_np.gradcheck.reporting import InputReport, Report

HOLDS = InputReport("query", "complex-step", True, 3.5e-16, (0, 2), 1.25, 1.25, 2e-16, 12, 12)
WRONG = InputReport("key", "central", False, 0.5, (1, 3), -2.123456789012, 4.25, 3e-11, 12, 12, 1)
MISSING = InputReport(
    "parameters.w_query", "complex-step", False, math.inf, size=9, diagnosis="the gradient is missing"
)
FLAT = InputReport("bias", "complex-step", True, 0.1, (1,), 1e-17, -2e-17, 3e-17, 3, 3, 0, 3, ((0,), (1,), (2,)))
SAMPLE = Escape(200, 100_000, 8, 3e-13, 1.0)


def compared(name, analytic, numerical, floor=1e-16, *, looked_at=True, coarse=False, **fields):
    """The report on one input; `looked_at` and `coarse` say of which entries that holds."""
    analytic, numerical = np.asarray(analytic, float), np.asarray(numerical, float)
    shape = analytic.shape
    floor, looked_at, coarse = (np.broadcast_to(x, shape) for x in (floor, looked_at, coarse))
    difference = np.abs(analytic - numerical)
    verdict = np.where(
        difference > agreement.UNDECIDABLE * floor,
        agreement.WRONG,
        np.where(coarse, agreement.UNDECIDED, agreement.HOLDS),
    )
    verdict = np.where(looked_at, verdict, agreement.UNCHECKED)
    numerical = np.where(looked_at, numerical, np.nan)

    def entries(kind):
        found = [tuple(map(int, index)) for index in np.argwhere(verdict == kind)]
        return sorted(found, key=lambda index: -difference[index])

    ranked = [*entries(agreement.WRONG), *entries(agreement.UNDECIDED), *entries(agreement.HOLDS)]
    worst = [Entry(k, float(analytic[k]), float(numerical[k]), float(floor[k])) for k in ranked]
    wrong, undecided = len(entries(agreement.WRONG)), sorted(entries(agreement.UNDECIDED))
    report = InputReport(
        name,
        "complex-step",
        not wrong,
        0.5 if wrong else 2e-16,
        size=analytic.size,
        checked=int(looked_at.sum()),
        wrong=wrong,
        undecidable=len(undecided),
        undecided=tuple(undecided[:10]),
        worst=tuple(worst[:10]),
        details=Details(analytic, numerical, np.array(floor), verdict),
    )
    if worst:
        index, *values = worst[0]
        report = replace(
            report, worst_index=index, **dict(zip(("analytic", "numerical", "floor"), values, strict=True))
        )
    return replace(report, **fields)


def wrong_in(*places, shape=(3, 4), **fields):
    """A report on an input that is wrong in some places, more so in later ones."""
    numerical = np.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    analytic = numerical.copy()
    for k, place in enumerate(places):
        analytic[place] += 1 + k
    return compared("x", analytic, numerical, **fields)


EVERYTHING = Report(
    (
        HOLDS,
        WRONG,
        MISSING,
        FLAT,
        replace(wrong_in((1, 2), (0, 1)), diagnosis='a "cause"\n\N{SNOWMAN}', note="", escape=SAMPLE),
        replace(HOLDS, analytic=-math.inf, numerical=math.inf, floor=math.nan, worst=(Entry((), math.inf, 1, 0.1),)),
    )
)


def equal_to_the_bit(report, other):
    assert report == other
    for entry, another in zip(report, other, strict=True):
        for array, same in zip(entry.details or (), another.details or (), strict=True):
            np.testing.assert_array_equal(array, same, strict=True)
    return True
