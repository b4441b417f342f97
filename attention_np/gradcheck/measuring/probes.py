"""What a function is like at a point, seen along one random direction: analytic or not, smooth or with a kink.

Every entry of the input takes part in the direction, so that one that spoils the function shows in the outputs that
it touches. All evidence is judged against how far rounding moves each output.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attention_np.gradcheck.agreement import UNDECIDABLE
from attention_np.gradcheck.measuring.reach import reach_of
from attention_np.gradcheck.measuring.slopes import COMPLEX_STEP, LEVELS, Array, NotAnalyticError, extrapolated
from attention_np.gradcheck.measuring.subject import (
    REFUSALS,
    SCALES,
    Subject,
    along,
    flattened,
    magnitudes,
    moves_zero,
    rows_at_once,
)

__all__ = ["NOT_ANALYTIC", "Cusp", "cusps", "refusal_of", "rounding_of", "tells", "why_not_analytic"]

TRIALS = SCALES[:5]  # relative steps of differences, that the complex step is held against
CONVERGED = 1e-2  # relative: what the slopes at two scales may differ by
CLEARLY = 1e-8  # a discrepancy of a slope, relative to the largest, that is not left to rounding
CLOSE = 2.0**-20  # relative: so short that only rounding is left of the differences
# For outputs that those leave a large part of, STEEP, or that are beyond the end of the domain there. Closest, rounding
# may look smooth, as that of 1 - t * t where t is nearly one.
CLOSER = (2.0**-28, 2.0**-36, 2.0**-45)
FAR = 2.0**-9  # for outputs that do not change within those, as in half precision
BEYOND = tuple(2.0**k for k in range(-2, 63, 4))  # for outputs that none of those move
TINY_STEP = 2.0**-10  # parts of the largest that an output comes to; functions that are made of steps take longer ones
STEEP = 1e-8  # parts of the largest: what is left of more is not rounding, as a rule, but slope
POINTS, ORDER = 16, 5  # close by, and coefficients of the polynomial that is taken off there
PLACES = np.arange(1, POINTS + 1) + np.arange(POINTS) * 5**0.5 % 1 / 2  # uneven: no stairs are a straight line there
SMOOTH, _ = np.linalg.qr(np.vander(PLACES / POINTS, ORDER))  # (points, order): polynomials
KINK_STEPS = tuple(2.0**-k for k in range(10, 130, 4))  # relative; the shortest are for entries that are zero
STEPS_AT_ONCE = 5  # after so many, where a function is smooth, its second differences are lost in rounding
KINK, JUMP = 1, 2
SLIGHT = 1e-6  # a jump of a slope, relative to the slope, that is no more than rounding may make
CLOSE_TO_ZERO = 2.0**-26  # relative to other entries: from there on a kink at zero is not merely a steep function
TOGETHER = 64  # entries that are looked at together
CONFIRMED = 4  # steps, one a sixteenth of the other, at which the jump of a slope is the same
NOT_ANALYTIC = (
    "forward is not analytic (a cast, an abs, a comparison of complex numbers?), or loses small imaginary parts"
)
LOCATED = 4096  # entries: where there are more, a kink is not looked for among them


@dataclass(frozen=True)
class Cusp:
    """An entry at which the loss has another slope on each side, or jumps."""

    index: tuple[int, ...]
    below: float  # the slope from below; or by how much it jumps coming from there
    above: float
    jumps: bool

    def __str__(self) -> str:
        place = list(self.index)
        if self.jumps and -min(self.below, self.above) > CONVERGED * max(self.below, self.above) > 0:
            apart = f"{self.below:.9g} and {-self.above:.9g}"
            return f"forward is not continuous at {place}: the loss there differs from that on either side, by {apart}"
        if self.jumps:
            return f"forward is not continuous at {place}: the loss jumps by {self.below + self.above:.9g} there"
        sides = f"{self.below:.9g} on one side and {self.above:.9g} on the other"
        return f"forward is not differentiable at {place}: its slope is {sides}"


def refusal_of(subject: Subject, element: int) -> str | None:
    """What forward raises where an entry moves a little, if it does."""
    try:
        subject.outputs(subject.x + TRIALS[0] * along(subject.x, np.array([element])))
    except REFUSALS as error:
        return f"{type(error).__name__} ({error})"
    return None


def rounding_of(subject: Subject, rng: np.random.Generator) -> Array:
    """How far rounding moves each output: by its last bit at least.

    Besides, by what a polynomial of a low order leaves of the outputs at points close by, where it leaves nothing of
    whatever is smooth [1]_. That sees rounding inside the function, such as single precision. Outputs that stay what
    they are at all those points, as 1 - cos(x) near zero, are asked farther off.

    References
    ----------
    .. [1] J. J. More, S. M. Wild, "Estimating computational noise", SIAM J. Sci. Comput. 33, 2011.
    """
    direction = _direction(subject, rng)
    if (subject.x != 0).any():
        direction = np.where(subject.x != 0, direction, 0)  # nothing tells what is close to a zero
    size = np.abs(subject.output.ravel())
    last_bit = float(np.finfo(subject.output.dtype).eps) * size
    with np.errstate(all="ignore"):
        least, _ = _left_over(subject, CLOSE * direction)
        for closer in CLOSER:
            steep = np.isnan(least) | (np.isfinite(least) & (least > np.fmax(last_bit, STEEP / 2 * size)))
            if steep.any():
                estimate, largest = _left_over(subject, closer * direction)
                least = np.where(steep & ~(least <= STEEP * largest), np.fmin(least, estimate), least)
        if np.isinf(least).any():  # beyond the edge of a landing there is another one, or else a slope
            there, beside = _next_to_each_other(subject, PLACES[-1] * FAR * direction)
            stairs = np.where(there == beside, _left_over(subject, FAR * direction)[0], np.inf)
            least = np.where(np.isinf(least), stairs, least)
        if np.isinf(least).any():
            least = np.where(np.isinf(least), _stairs_beyond(subject, direction), least)
        seen = np.isfinite(least) & (size > 0)
        typical = float(np.median(least[seen] / size[seen])) if seen.any() else 0.0  # relative, of other outputs
        noise = np.fmax(last_bit, np.where(np.isfinite(least), least, typical * size))
    return np.asarray(np.where(np.isfinite(noise), noise, 0), np.float64).reshape(subject.output.shape)


def _left_over(subject: Subject, step: Array) -> tuple[Array, Array]:
    """What a polynomial leaves of each output, infinite if nothing and NaN beyond the domain; and its largest."""
    places = PLACES.reshape(POINTS, *(1,) * subject.x.ndim)
    outputs = np.asarray(subject.values(subject.x + places * step), np.float64)
    from_first = outputs - outputs[0]
    rest = from_first - SMOOTH @ (SMOOTH.T @ from_first)  # (points, outputs)
    left = np.sqrt((rest**2).sum(axis=0) / (POINTS - ORDER))
    stairs = np.abs(np.diff(outputs, axis=0))
    left = np.where(np.median(stairs, axis=0) == 0, stairs.max(axis=0), left)  # of stairs, with a landing here
    return np.where(left == 0, np.inf, left), np.abs(outputs).max(axis=0)  # or the points were too close to differ


def _next_to_each_other(subject: Subject, move: Array) -> Array:
    """The outputs where an input has moved, and where it has moved a little more: (2, outputs)."""
    moves = np.stack([move, (1 + CLOSE) * move])
    return np.asarray(subject.values(subject.x + moves), np.float64)


def _stairs_beyond(subject: Subject, direction: Array) -> Array:
    """The first step that outputs take farther off, if it is flat there, too, and tiny beside what they come to.

    Infinite for others. Only numbers below one are asked, and up to one, whose last bits these may be.
    """
    output = np.asarray(subject.output.ravel(), np.float64)
    step, largest = np.full(output.shape, np.inf), np.abs(output)
    outwards = np.where(subject.x < 0, -1, 1) * np.abs(direction)
    farthest = np.where(direction == 0, 0, np.maximum(1 - np.abs(subject.x), 0))
    for place in BEYOND:
        move = np.clip(place * outwards, -farthest, farthest)
        there, beside = _next_to_each_other(subject, move)
        moved = np.abs(there - output)
        first = np.isinf(step) & (moved > 0) & np.isfinite(moved)
        step = np.where(first, np.where(there == beside, moved, np.nan), step)
        largest = np.fmax(largest, np.where(np.isfinite(there), np.abs(there), 0))
        if (np.abs(move) == farthest).all():
            break
    return np.where(step <= TINY_STEP * largest, step, np.inf)


def why_not_analytic(subject: Subject, rng: np.random.Generator) -> str | None:
    """Why the complex step does not serve for this input; None if nothing speaks against it.

    It takes evidence to say no: an output whose slopes by differences at two scales agree, within their estimates of
    the error, with each other and not with the complex step.
    """
    direction = _direction(subject, rng)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        try:
            steps = [subject.x + length * 1j * COMPLEX_STEP * direction for length in (1, 0.25)]
            output, shorter = subject.outputs(np.stack(steps))
        except NotAnalyticError as error:
            return str(error)
        except Exception as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            return f"forward refuses complex arrays ({why})"
        if output.dtype.kind != "c":
            return f"forward turns complex arrays into {output.dtype}"
        slope, again = output.imag / COMPLEX_STEP, shorter.imag / (0.25 * COMPLEX_STEP)
        return _contradiction(subject, direction, slope, UNDECIDABLE * np.abs(slope - again))


def _contradiction(subject: Subject, direction: Array, slope: Array, error: Array) -> str | None:
    """How differences contradict the complex step in some output, known up to an `error`; None if they do not.

    A function that changes within less than the steps of the differences looks flat to them, at several scales. So
    the complex step is right if it agrees with any of them.
    """
    longest = _slopes(subject, direction, TRIALS[:2])
    if (np.abs(slope - longest[0]) <= CLEARLY * np.abs(slope).max(initial=0)).all() and slope.any():
        return None
    shorter = _slopes(subject, direction, TRIALS[2:])
    found, rounding = (np.concatenate(both) for both in zip(longest, shorter, strict=True))
    larger = np.maximum(np.abs(found[1:]), np.abs(found[:-1]))
    noise = UNDECIDABLE * rounding[1:] + error  # of the shorter steps, which is far larger
    differ = np.abs(found[1:] - found[:-1])
    apart = np.minimum(np.abs(slope - found[1:]), np.abs(slope - found[:-1])) - differ
    enough = CLEARLY * np.maximum(np.abs(slope), larger).max(axis=1, keepdims=True, initial=0)
    wrong = (differ <= CONVERGED * larger + noise) & (apart > enough) & (apart > noise)  # (scales, outputs)
    wrong &= tells(subject, direction[None], larger, rounding[1:], slope)
    if not wrong.any():
        return None
    excess = np.where(wrong, apart, 0).max(axis=0)
    agrees = (np.abs(slope - found) + UNDECIDABLE * rounding < 0.1 * excess).any(axis=0)
    excess = np.where(agrees, 0, excess)
    k = int(excess.argmax())
    if not excess[k]:
        return None
    there = found[wrong[:, k].argmax(), k]
    return f"the complex step gives the slope {slope[k]:.9g}, differences {there:.9g}: {NOT_ANALYTIC}"


def tells(subject: Subject, directions: Array, slopes: Array, errors: Array, expected: Array) -> Array:
    """Whether slopes by differences tell anything of those that are `expected`, (moves, outputs) or (moves,).

    Outputs that are zero, and stay it, may be what is left of terms that cancelled. Then nothing is told; but where
    they do move within two sizes of the input, all there is to see is seen.
    """
    told = (slopes != 0) | (errors > 0)
    if told.all():
        return np.asarray(told)
    reached = reach_of(subject, directions).largest  # (moves, outputs)
    if slopes.ndim == 1:
        reached = reached @ np.abs(subject.weights[:, 0])
    hidden = np.sqrt(float(np.finfo(subject.output.dtype).eps)) * reached
    return np.asarray(told | ((reached > 0) & (np.abs(expected) > hidden)))


def _direction(subject: Subject, rng: np.random.Generator) -> Array:
    """A random direction in which each entry moves by its own size."""
    x = subject.x
    v: Array = magnitudes(x) * rng.choice([-1, 1], x.shape) * rng.uniform(0.5, 1, x.shape)
    return v


def _slopes(subject: Subject, direction: Array, scales: Sequence[float]) -> tuple[Array, Array]:
    """The slope of each output along one direction by differences, and what rounding makes of it: (scales, outputs)."""
    steps = np.divide.outer(scales, 2.0 ** np.arange(LEVELS))  # (scales, levels)
    moves = np.multiply.outer(np.stack([steps, -steps]).ravel(), direction)
    up, down = subject.values(subject.x + moves).reshape(2, *steps.shape, subject.output.size)
    differences = (up - down) / (2 * steps[..., None])
    noise = np.zeros(subject.output.size) if subject.noise is None else subject.noise.ravel()
    best, _ = extrapolated(list(differences.swapaxes(0, 1)))
    return best, 2 * noise / steps[:, -1:]  # of the last, shortest step


def cusps(subject: Subject, rng: np.random.Generator, memory: int, most: int = 5) -> list[Cusp]:
    """The entries at which the function has a kink, as `abs` at zero, or a jump; the first few.

    The second difference (f(x + h v) - 2 f(x) + f(x - h v)) / h tends to zero with h where f is smooth, and to the jump
    of the slope where it is not (gradcheck.59).
    """
    if subject.x.size > LOCATED or not _breaks(subject, _direction(subject, rng)[None]).any():
        return []
    found: list[Cusp] = []
    rows = min(TOGETHER, rows_at_once(memory, subject))
    for start in range(0, subject.x.size, rows):
        elements = np.arange(start, min(start + rows, subject.x.size))
        breaks = _breaks(subject, along(subject.x, elements))  # (moves,)
        for element, kind in zip(elements, breaks, strict=True):
            if kind:
                found.append(_one_sided(subject, int(element), kind == JUMP))
            if len(found) == most:
                return found
    return found


def _breaks(subject: Subject, directions: Array) -> Array:
    """Whether an output has a `KINK` or a `JUMP` along each direction; zero where all are smooth."""
    output = subject.output.ravel()
    floor = np.zeros(()) if subject.noise is None else subject.noise.ravel()
    at_zero = moves_zero(subject, directions)
    floor = np.fmax(floor, float(np.finfo(output.dtype).eps) * np.abs(output))
    noise = UNDECIDABLE * floor
    shape = (len(directions), output.size)
    before, over = np.zeros(shape), np.zeros(shape, bool)  # over: the steps have become too short to tell
    kinked, jumped = np.zeros((2, *shape))  # steps in a row at which that was the same
    last = np.ones(shape)  # the shortest step that told something
    for step, raised, up, down in _on_both_sides(subject, directions):
        over |= flattened((raised == subject.x) & (directions != 0)).any(axis=1, keepdims=True)
        second = up - 2 * output + down  # (gradcheck.59, gradcheck.60, gradcheck.61)
        gone = ~(np.abs(second) > np.fmax(4 * noise, SLIGHT * np.abs(up - down))) & ~over
        over |= gone
        for count, expected in ((kinked, before / 16), (jumped, before)):
            count[gone & (np.abs(expected) > 8 * noise)] = 0  # what is not seen where it should be is elsewhere
            same = np.abs(second - expected) <= 0.05 * np.abs(second) + 0.4 * noise
            count[~over] = np.where(same, count + 1, 0)[~over]
        if over.all():
            break
        before, last = second, np.where(over, last, step)
    told = ~at_zero[:, None] | (last <= CLOSE_TO_ZERO)
    kink, jump = (((count >= CONFIRMED - 1) & told).any(axis=1) for count in (kinked, jumped))
    return np.where(jump, JUMP, np.where(kink, KINK, 0))


def _on_both_sides(subject: Subject, directions: Array) -> Iterator[tuple[float, Array, Array, Array]]:
    """Each of `KINK_STEPS`, the input raised by it, and the outputs there and as far below; a few steps at once."""
    for start in range(0, len(KINK_STEPS), STEPS_AT_ONCE):
        steps = KINK_STEPS[start : start + STEPS_AT_ONCE]
        places = [subject.x + sign * step * directions for step in steps for sign in (1, -1)]
        outputs = np.split(subject.values(np.concatenate(places)), len(places))
        yield from zip(steps, places[::2], outputs[::2], outputs[1::2], strict=True)


def _one_sided(subject: Subject, element: int, jumps: bool) -> Cusp:
    step = KINK_STEPS[CONFIRMED - 1]
    direction = along(subject.x, np.array([element]))
    size = float(direction.ravel()[element])
    up, down = subject.values(np.concatenate([subject.x + step * direction, subject.x - step * direction]))
    output, u = subject.output.ravel(), subject.weights[:, 0]
    width = 1.0 if jumps else step * size
    below, above = u @ (output - down) / width, u @ (up - output) / width
    return Cusp(tuple(map(int, np.unravel_index(element, subject.x.shape))), float(below), float(above), jumps)
