"""What shows that a gradient that holds is right for one cotangent at one point, and keeps to that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.evidence import Question, elsewhere, neighbor_differences
from attention_np.gradcheck.problem.calls import REFUSALS, NotAnalyticError, wide_dtype
from attention_np.gradcheck.problem.problem import Problem
from attention_np.gradcheck.slopes.measuring import CENTRAL, directional_slopes
from attention_np.gradcheck.slopes.probes import random_direction
from attention_np.gradcheck.verdict.judging import COARSE, GROSS, HOLDS, Verdict, usual_size

FAR_OFF = 100  # noise floors: no rounding comes so far


def fault_elsewhere(verdict: Verdict) -> str | None:
    """What shows that backward is right for one cotangent at one point, and keeps to that."""
    evidence, problem = verdict.evidence, verdict.evidence.problem
    holding = verdict.entries == HOLDS
    if not holding.any():
        return None
    if evidence.claimed[holding].any() and not is_linear(
        problem, evidence.name, max(verdict.bound, float(verdict.floor.max(initial=0)))
    ):
        return (
            "it is right for one cotangent, but backward is not linear in the gradient of the output: for a sum it "
            "does not give the sum, as if it clipped something or kept something from call to call"
        )
    u, inputs = problem.question
    nearby = problem.once("nearby", lambda: elsewhere(inputs, np.random.default_rng(problem.seed)))
    if _is_wrong_at(verdict, (u, nearby), "elsewhere"):
        unused = _unused(verdict, nearby)
        if unused is not None:
            return (
                f"it is right at this point and the same where {unused} moves a little, though forward has other "
                f"slopes there: as if backward did not use {unused}, or kept it from an earlier call"
            )
        said = "it holds here and not close by: is it right by something that is true of this point alone?"
        evidence.note = said if evidence.note is None else f"{evidence.note}; {said}"
    return None


def is_linear(problem: Problem, name: str, floor: float = 0.0, near: float = GROSS) -> bool:
    """Whether what is claimed for the sum of two cotangents is the sum of what is claimed for each, but for `near`.

    Both are a thousand times as large: what clips at a few units or hundreds clips there.
    """
    large = 2.0**10

    def ask() -> tuple[Any, ...]:
        u, v, _ = (large * np.asarray(cotangent) for cotangent in problem.cotangents)
        return tuple(problem.claim(w) for w in (v, u + v))

    with np.errstate(all="ignore"):
        other, of_sum = (np.asarray(claimed[name]) for claimed in problem.once("sum", ask))
        each = large * np.asarray(problem.claims[name])
        left = np.abs(of_sum - each - other)  # not finite where a narrow dtype has no such large numbers
        unit = max(problem.unit, float(np.finfo(each.dtype).eps))
        largest = (np.abs(each) + np.abs(other)).max(initial=0, where=np.isfinite(left))
        off = np.isfinite(left) & (left > max(near, COARSE * unit) * largest + FAR_OFF * large * floor)
    return not off.any()


def _is_wrong_at(verdict: Verdict, question: Question, key: str) -> bool:
    """Whether the whole gradient is grossly wrong there, along one direction, and next door to there.

    The finding holds for every method, and `key` names the question: it is asked again only where one method refused.
    """
    evidence = verdict.evidence
    try:
        return evidence.problem.once((evidence.name, key), lambda: _wrongness(verdict, question, key))
    except (*REFUSALS, NotAnalyticError):
        return False


def _wrongness(verdict: Verdict, question: Question, key: str) -> bool:
    evidence, rng = verdict.evidence, verdict.evidence.rng("elsewhere")
    direction = random_direction(evidence.subject.x, rng)[None]
    there = evidence.there(*question)
    claims, output = evidence.problem.once(key, lambda: (evidence.problem.claim(*question), there.with_output().output))
    there = replace(there, output=output)
    claimed = float(direction.ravel() @ np.ravel(claims[evidence.name]).astype(wide_dtype(direction.dtype)))
    measured = float(directional_slopes(there, direction, evidence.method, evidence.running).values[0, 0])
    usual = usual_size(there) * np.abs(direction).sum()
    size = max(np.abs(evidence.claimed) @ np.abs(direction.ravel()), abs(claimed), abs(measured), usual)
    near = max(GROSS, COARSE * evidence.unit, 4 * verdict.rtol) * size
    if not abs(claimed - measured) > near:
        return False
    pair = evidence.directional_pair(direction)
    noise = np.abs(neighbor_differences(pair, question, rng)[:, 0] - (claimed - measured))
    if not abs(claimed - measured) > near + FAR_OFF * np.nanmax(noise):
        return False
    slopes = directional_slopes(there, direction, CENTRAL, evidence.running)  # the complex step may not apply there
    return bool(abs(claimed - slopes.values[0, 0]) > near + FAR_OFF * slopes.errors[0])


def _unused(verdict: Verdict, nearby: list[Array]) -> str | None:
    """An input that moves the slopes, but not the claim, bit by bit.

    What is made of a mask, or of labels, is the same close to them, too; but not where all are zeros or ones, or are
    strewn and half zero.
    """
    evidence, problem = verdict.evidence, verdict.evidence.problem
    (u, inputs), rng = problem.question, evidence.rng("unused")

    def is_same(there: list[Array]) -> bool:
        try:
            claims, name = problem.claim(u, there), evidence.name
            return np.array_equal(np.ravel(claims[name]), np.ravel(problem.claims[name]))
        except REFUSALS:
            return False

    for k, name in enumerate(problem.inputs):
        x = inputs[k]
        strewn = (np.where(rng.random(x.shape) < 0.5, rng.permuted(x.ravel()).reshape(x.shape), 0) for _ in range(4))
        others = ([*inputs[:k], y, *inputs[k + 1 :]] for y in (nearby[k], 0 * x, 0 * x + 1, *strewn))
        moved = u, [*inputs[:k], nearby[k], *inputs[k + 1 :]]
        if all(map(is_same, others)) and _is_wrong_at(verdict, moved, f"unused {name}"):
            return name
    return None
