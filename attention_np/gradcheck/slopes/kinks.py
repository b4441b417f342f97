"""Where a function has no slope: kinks, as of `abs` at zero, and jumps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.slopes.moves import SMALLEST, Subject, entry_directions, flattened
from attention_np.gradcheck.slopes.probes import random_direction

FEW = 5  # that are looked for: more say no more


@dataclass(frozen=True)
class Kink:
    """An entry at which the loss has another slope on each side, or jumps."""

    index: tuple[int, ...]
    below: float  # the slope from below; or by how much it jumps coming from there
    above: float
    jumps: bool

    def __str__(self) -> str:
        place = list(self.index)
        if self.jumps:
            return (
                f"forward is not continuous at {place}: the loss jumps by {self.below:.9g} to the point, and by "
                f"{self.above:.9g} from there"
            )
        sides = f"{self.below:.9g} on one side and {self.above:.9g} on the other"
        return f"forward is not differentiable at {place}: its slope is {sides}"


def kinks(subject: Subject, rng: np.random.Generator) -> list[Kink]:
    """The entries at which the function has a kink or a jump; the first few.

    The second difference (f(x + h v) - 2 f(x) + f(x - h v)) / h tends to zero with h where f is smooth, and to the jump
    of the slope where it is not (gradcheck.61).
    """
    everywhere = random_direction(subject.x, rng)[None]
    if subject.x.size > 4096 or not any(part.any() for part in _breaks(subject, everywhere)):  # too many to look at
        return []
    listed: list[Kink] = []
    for elements in np.array_split(np.arange(subject.x.size), subject.x.size // 64 + 1):
        kinked, jumped = _breaks(subject, entry_directions(subject.x, elements))
        some = np.flatnonzero(kinked | jumped)
        listed += [_one_sided(subject, int(elements[k]), bool(jumped[k])) for k in some[: FEW - len(listed)]]
        if len(listed) == FEW:
            break
    return listed


def _breaks(subject: Subject, directions: Array) -> tuple[Array, Array]:
    """Along which directions an output has a kink, and along which a jump.

    That takes four steps, each a sixteenth of the one before, at which the jump of the slope, or of the output, is the
    same. At an entry that is zero they must be tiny, or the function may be merely steep.
    """
    output, u = subject.output.ravel(), np.abs(subject.weights[:, 0])
    # What is below the last bits of all outputs together is too small to judge.
    noise = np.fmax(UNDECIDABLE * subject.rounding, np.linalg.norm(subject.last_bits) / np.fmax(u, SMALLEST))
    at_zero = flattened((directions != 0) & (subject.x == 0)).any(axis=1, keepdims=True)
    shape = (len(directions), output.size)
    before, over = np.zeros(shape), np.zeros(shape, bool)  # over: the steps have become too short to tell
    kinked, jumped = np.zeros((2, *shape))  # steps in a row at which that was the same
    last = np.ones(shape)  # the shortest step that told something
    with np.errstate(all="ignore"):
        for step in 2.0 ** -np.arange(10, 130, 4):
            raised = subject.x + step * directions
            over |= flattened((raised == subject.x) & (directions != 0)).any(axis=1, keepdims=True)
            if over.all():
                break
            up, down = np.split(subject.values(np.concatenate([raised, subject.x - step * directions])), 2)
            second = up - 2 * output + down  # (gradcheck.61, gradcheck.62, gradcheck.63)
            gone = ~(np.abs(second) > np.fmax(4 * noise, 1e-6 * np.abs(up - down))) & ~over
            over |= gone
            for count, expected in ((kinked, before / 16), (jumped, before)):
                count[gone & (np.abs(expected) > 8 * noise)] = 0  # what is not seen where it should be is elsewhere
                same = np.abs(second - expected) <= 0.05 * np.abs(second) + 0.4 * noise
                count[~over] = np.where(same, count + 1, 0)[~over]
            before, last = second, np.where(over, last, step)
    told = ~at_zero | (last <= 2.0**-26)
    kink, jump = (np.asarray(((count >= 3) & told).any(axis=1)) for count in (kinked, jumped))
    return kink & ~jump, jump


def _one_sided(subject: Subject, element: int, jumps: bool) -> Kink:
    step, direction = 2.0**-22, entry_directions(subject.x, np.array([element]))
    up, down = subject.values(np.concatenate([subject.x + step * direction, subject.x - step * direction]))
    output, u = subject.output.ravel(), subject.weights[:, 0]
    width = 1.0 if jumps else step * float(direction.ravel()[element])
    below, above = u @ (output - down) / width, u @ (up - output) / width
    return Kink(tuple(map(int, np.unravel_index(element, subject.x.shape))), float(below), float(above), jumps)
