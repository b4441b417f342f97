"""Gradients of which only a sample of the entries was looked at: all of it along random directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.evidence import neighbor_differences
from attention_np.gradcheck.slopes.measuring import directional_slopes
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.slopes.moves import flattened, sizes
from attention_np.gradcheck.verdict.escape import Escape
from attention_np.gradcheck.verdict.judging import OWN_ROUNDING, UNCHECKED, Verdict

Array = npt.NDArray[Any]

DIRECTIONS = 8  # of the whole gradient, beside a sample


def project(verdict: Verdict, settle: Callable[[Verdict], Any]) -> None:
    """Hold the whole gradient against slopes along random directions; look at the entries behind what is off."""
    found = verdict.evidence
    x, claimed = found.subject.x, found.claimed
    size = sizes(x)
    directions = size * found.rng("directions").standard_normal((DIRECTIONS, *x.shape))
    flat = flattened(directions)
    slopes = directional_slopes(found.subject, directions, found.method, found.running)
    difference = flat @ claimed - slopes.values[:, 0]
    noise = np.abs(
        neighbor_differences(found.directional_pair(directions), found.problem.question, found.rng("directions"))
        - difference
    ).max(axis=0)
    noise = np.where(np.isfinite(noise), noise, 0)
    floor = noise + slopes.errors + OWN_ROUNDING * found.unit * np.linalg.norm(flat * claimed, axis=1)
    allowed = verdict.rtol * float(np.abs(claimed).max()) * np.linalg.norm(flat, axis=1)
    threshold = UNDECIDABLE * floor + 4 * allowed
    off = np.flatnonzero(np.abs(difference) > threshold)
    if off.size and not verdict.wrong.size:
        found.look(_hunt(verdict, flat[off[0]]))
        settle(verdict)
    verdict.escape = Escape(
        entries=int((verdict.entries != UNCHECKED).sum()),
        size=x.size,
        directions=DIRECTIONS,
        threshold=float(threshold.max()),
        norm=float(size.min() * np.linalg.norm(claimed)),
    )
    if off.size and not verdict.wrong.size:
        verdict.fault = (
            f"along {off.size} of {DIRECTIONS} random directions the gradient differs from the slope of forward, yet "
            "no single entry stands out"
        )


def _hunt(verdict: Verdict, direction: Array) -> Array:
    """The few entries that make most of the difference of the two gradients along a direction, found by halving."""
    found, elements = verdict.evidence, np.flatnonzero(direction)
    while len(elements) > 64:
        halves = np.array_split(elements, 2)
        parts = np.zeros((2, direction.size))
        for part, half in zip(parts, halves, strict=True):
            part[half] = direction[half]
        slopes = directional_slopes(found.subject, parts.reshape(-1, *found.shape), found.method, found.running)
        elements = halves[int(np.argmax(np.abs(parts @ found.claimed - slopes.values[:, 0])))]
    return elements
