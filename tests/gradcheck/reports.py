"""Reports for tests: some of each kind, and those that a check makes of gradients that a test gives."""

import math
from dataclasses import replace

import numpy as np

from attention_np.gradcheck import InputReport, Report
from attention_np.gradcheck.report import findings
from attention_np.gradcheck.report.findings import Details, Entry
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.verdict import judging
from attention_np.gradcheck.verdict.judging import Escape

HOLDS = InputReport("query", "complex-step", True, 3.5e-16, (0, 2), 1.25, 1.25, 2e-16, 12, 12)
WRONG = InputReport("key", "central", False, 0.5, (1, 3), -2.123456789012, 4.25, 3e-11, 12, 12, 1)
MISSING = InputReport("parameters.w", "complex-step", False, math.inf, size=9, diagnosis="the gradient is missing")
FLAT = InputReport("bias", "complex-step", True, 0.1, (1,), 1e-17, -2e-17, 3e-17, 3, 3, 0, 3, 2, ((0,), (1,), (2,)))
SAMPLE = Escape(200, 100_000, 8, 3e-13, 1.0)


def compared(name, analytic, numerical, floor=1e-16, *, looked_at=True, coarse=False, **fields):
    """The report on one input; `looked_at` and `coarse` say of which entries that holds."""
    analytic, numerical = np.array(analytic), np.array(numerical, float)
    floor, looked_at, coarse = (np.broadcast_to(x, analytic.shape) for x in (floor, looked_at, coarse))
    off = np.abs(analytic - numerical) > UNDECIDABLE * floor
    verdict = np.where(off, judging.WRONG, np.where(coarse, judging.UNDECIDED, judging.HOLDS))
    verdict = np.where(looked_at, verdict, judging.UNCHECKED)
    details = Details(analytic, np.where(looked_at, numerical, np.nan), floor, verdict)
    said = "no simple cause" if (verdict == judging.WRONG).any() else None
    return replace(findings.compared(name, "complex-step", details, 2.0**-52, said), **fields)


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
