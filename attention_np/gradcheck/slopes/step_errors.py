r"""How the error of a numerical gradient depends on the step: long ones suffer from the formula, short ones from noise.

With a step of length h, the formula of order p is off by about :math:`h^p`, and rounding by :math:`\epsilon / h`, so
that the error over the step is a V on logarithmic axes, with the slopes p and -1. The complex step subtracts nothing,
and has no such rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib.arguments import as_array, as_integer
from attention_np.gradcheck.problem.calls import Forward, NotAnalyticError, as_generator
from attention_np.gradcheck.slopes.measuring import Running, measured
from attention_np.gradcheck.slopes.methods import Array, by_complex_step, extrapolated
from attention_np.gradcheck.slopes.moves import Subject, along_entries, flattened, sizes
from attention_np.gradcheck.slopes.numerical import subjects_of, with_method

ORDERS = {  # of each formula: its error grows with this power of the step
    "forward differences": 1,
    "central differences": 2,
    "extrapolated once": 4,
    "extrapolated twice": 6,
    "complex step": 2,
}
REFERENCES = {
    "complex-step": "the complex step",
    "central": "differences at their best steps",
    "claimed": "the claimed gradient",
}
STEPS = np.logspace(-16, 0, 49)


class StepErrors(NamedTuple):
    """The errors of numerical gradients, for several entries and steps."""

    steps: Array  # (steps,), relative to the size of each entry
    errors: dict[str, Array]  # by formula: (steps, entries), NaN where a formula gives no finite number
    places: tuple[tuple[str, tuple[int, ...]], ...]  # (entries,): of which input, and where
    reference: str  # what the errors are taken against


def step_errors(
    forward: Forward,
    inputs: Mapping[str, npt.ArrayLike],
    cotangent: npt.ArrayLike | None = None,
    *,
    gradient: Mapping[str, npt.ArrayLike] | None = None,
    entries: int = 16,
    steps: npt.ArrayLike = STEPS,
    rng: int | np.random.Generator = 0,
) -> StepErrors:
    """The error of the numerical gradient at each step, for a sample of the entries.

    Parameters
    ----------
    forward : callable
        ``forward(*inputs) -> array``.
    inputs : mapping of str to array_like of float
        In the order in which `forward` takes them.
    cotangent : array_like of float, optional
        Of the shape of the output; by default drawn from `rng`, or 1 for an output of one number.
    gradient : mapping of str to array_like of float, optional
        What the errors are taken against, for this `cotangent`: a wrong gradient shows as errors that no step makes
        small. Only the inputs in it are looked at. By default what the harness finds: by the complex step, or by
        differences at the best step for each entry.
    entries : int, optional
        How many entries to look at, drawn from all.
    steps : array_like of float, (steps,), optional
        Relative to the magnitude of each entry, or the typical one of its input if that is larger, both rounded
        down to a power of two.
    rng : int or numpy.random.Generator, optional
        Draws the entries, and the cotangent.

    Returns
    -------
    StepErrors
        Relative to the largest magnitude in the gradient of the same input, among the entries of the sample. The
        complex step is left out where `forward` does not take complex arrays.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np.gradcheck.slopes.step_errors import step_errors
    >>> found = step_errors(np.exp, {"x": np.array([0.5])}, steps=[1e-2, 1e-4])
    >>> for formula in ("forward differences", "central differences"):
    ...     print(formula, [f"{error:.0e}" for error in found.errors[formula][:, 0]])
    forward differences ['3e-03', '3e-05']
    central differences ['4e-06', '4e-10']
    """
    lengths = as_array("steps", steps)
    real = lengths.dtype.kind in "iuf"
    if lengths.ndim != 1 or not lengths.size or not (real and ((lengths > 0) & np.isfinite(lengths)).all()):
        raise ValueError(f"steps must be a list of positive numbers (steps.shape={lengths.shape})")
    lengths, entries = lengths.astype(np.float64), as_integer("entries", entries, least=1)
    generator = as_generator(rng)
    subjects = subjects_of(
        forward, inputs, lambda output: _cotangent(cotangent, output, gradient is not None, generator)
    )
    arrays = {name: subject.x for name, subject in subjects.items()}
    claimed = None if gradient is None else _claimed(gradient, arrays)
    found: dict[str, list[Array]] = {formula: [] for formula in ORDERS}
    places, references = [], set()
    for name, elements in _draw(arrays if claimed is None else claimed, entries, generator).items():
        if claimed is None:
            subject, method = with_method(subjects[name], "auto")
            reference = measured(subject, elements, method, Running(), best=True).values[:, 0]
        else:
            subject, method, reference = subjects[name], "claimed", claimed[name].ravel()[elements]
        scale = np.abs(reference).max() or 1.0
        for formula, estimates in _estimates(subject, elements, lengths).items():
            found[formula].append(np.abs(estimates - reference) / scale)
        places += [(name, tuple(map(int, np.unravel_index(k, subject.x.shape)))) for k in elements]
        references.add(REFERENCES[method])
    errors = {formula: np.concatenate(parts, axis=1) for formula, parts in found.items()}
    finite = {formula: np.where(np.isfinite(error), error, np.nan) for formula, error in errors.items()}
    known = {formula: error for formula, error in finite.items() if not np.isnan(error).all()}
    return StepErrors(lengths, known, tuple(places), " and ".join(sorted(references)))


def _cotangent(given: npt.ArrayLike | None, output: Array, needed: bool, rng: np.random.Generator) -> Any:
    if given is not None or output.size == 1:
        return np.ones(output.shape) if given is None else given
    if needed:
        raise ValueError(f"cotangent must be given with gradient: the one it was computed for, {output.shape}")
    return rng.standard_normal(output.shape)


def _claimed(gradient: Mapping[str, npt.ArrayLike], inputs: Mapping[str, Array]) -> dict[str, Array]:
    claimed = {name: np.asarray(g, np.float64) for name, g in gradient.items()}
    for name, g in claimed.items():
        if name not in inputs:
            raise ValueError(f"gradient has {name!r}, which is not among the inputs: {', '.join(inputs)}")
        if g.shape != inputs[name].shape:
            raise ValueError(f"the gradient of {name} has the shape {g.shape}, the input {inputs[name].shape}")
    return claimed


def _draw(arrays: Mapping[str, Array], count: int, rng: np.random.Generator) -> dict[str, Array]:
    """So many entries of all arrays together, as places in each of the flattened arrays."""
    total = sum(x.size for x in arrays.values())
    if not total:
        raise ValueError("there is no entry to differentiate by")
    if count < 1:
        raise ValueError(f"entries must be at least 1, not {count}")
    drawn, start, chosen = np.sort(rng.choice(total, min(count, total), replace=False)), 0, {}
    for name, x in arrays.items():
        inside = (start <= drawn) & (drawn < start + x.size)
        if inside.any():
            chosen[name] = drawn[inside] - start
        start += x.size
    return chosen


def _estimates(subject: Subject, elements: Array, steps: Array) -> dict[str, Array]:
    """By formula, the derivative at each step with respect to each entry: (steps, entries)."""
    rows: dict[str, list[Array]] = {formula: [] for formula in ORDERS}
    with np.errstate(all="ignore"):
        for step in steps:
            column = [_slope(subject, elements, step / 2**level, -step / 2**level) for level in range(3)]
            rows["forward differences"].append(_slope(subject, elements, step, 0.0))
            rows["central differences"].append(column[0])
            rows["extrapolated once"].append(extrapolated(column[:2])[0])
            rows["extrapolated twice"].append(extrapolated(column)[0])
            rows["complex step"].append(_complex_step(subject, elements, step))
    return {formula: np.array(found) for formula, found in rows.items()}


def _slope(subject: Subject, elements: Array, step: float, other: float) -> Array:
    """The difference quotient between two steps, for each entry."""
    directions = along_entries(subject.x, elements)
    up, down = subject.x + step * directions, subject.x + other * directions
    width = flattened(up - down)[np.arange(len(elements)), elements]  # what rounding made of it
    slope: Array = (subject.outputs(up) - subject.outputs(down)) @ subject.weights[:, 0] / width
    return slope


def _complex_step(subject: Subject, elements: Array, step: float) -> Array:
    """Im f(x + i h) / h for each entry; NaN if `forward` does not take complex arrays."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            found = by_complex_step(subject, along_entries(subject.x, elements), np.full(len(elements), step))
    except NotAnalyticError:
        return np.full(len(elements), np.nan)
    return np.asarray(found.values[:, 0] / sizes(subject.x).ravel()[elements])
