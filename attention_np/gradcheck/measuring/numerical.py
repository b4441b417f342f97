"""Numerical gradients of one array with respect to others, every element of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.measuring.functions import (
    Forward,
    as_inputs,
    evaluate,
    in_double_precision,
    on_copies,
    refuse_masked,
)
from attention_np.gradcheck.measuring.probes import rounding_of, why_not_analytic
from attention_np.gradcheck.measuring.reach import reach_of
from attention_np.gradcheck.measuring.running import Running, run
from attention_np.gradcheck.measuring.slopes import Array, Slopes, by_complex_step, by_differences
from attention_np.gradcheck.measuring.steps import by_best_differences, by_first_differences
from attention_np.gradcheck.measuring.subject import AnotherShapeError, Subject, along, magnitudes, rows_at_once, sizes

__all__ = [
    "METHODS",
    "as_method",
    "batched",
    "chosen",
    "measure",
    "measure_along",
    "numerical_gradient",
]

METHODS = ("complex-step", "central")
SAME_IN_A_BATCH = 1e3  # units in the last place of the largest output
TASK_ELEMENTS, BATCH_ELEMENTS = 16, 256  # moves that one task takes on, one by one or at once, whoever carries it out


def numerical_gradient(
    forward: Forward,
    inputs: Mapping[str, npt.ArrayLike],
    cotangent: npt.ArrayLike,
    *,
    method: str = "auto",
    executor: Executor | None = None,
    return_error: bool = False,
) -> Any:
    """The gradient of ``(cotangent * forward(*inputs)).sum()`` with respect to every element of every input.

    Parameters
    ----------
    forward : callable
        ``forward(*inputs) -> array``.
    inputs : mapping of str to array_like of float
        In the order in which `forward` takes them.
    cotangent : array_like of float
        Of the shape of the output.
    method : {"auto", "complex-step", "central"}, optional
        "complex-step" is exact to rounding where `forward` is analytic and takes complex arrays; "central" are
        central differences, extrapolated, at the steps that promise the smallest error for each entry. "auto" takes
        the complex step for the inputs for which a trial along a random direction does not speak against it.
        Differences must know how far to step: from an entry that is zero, as far as other entries are large, and then
        by less and less.
    executor : concurrent.futures.Executor, optional
        Where to evaluate; by default here and now.
    return_error : bool, optional
        Return the estimated errors, too.

    Returns
    -------
    gradient : dict of str to ndarray
        A float64 array of the shape of each input.
    error : dict of str to ndarray
        Of the same shapes, only if `return_error`: how far the method and the rounding of the outputs can have carried
        each entry, by its own estimate. Cancellation inside `forward` is not in it.

    Raises
    ------
    TypeError
        If an input is not of real floating-point numbers, or `forward` does not return one array of them.
    ValueError
        If `method` is unknown or the cotangent not of the shape of the output.
    NotAnalyticError
        If the complex step is asked for and does not apply.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> gradcheck.numerical_gradient(np.exp, {"x": np.array([0.0, 1.0])}, np.ones(2))["x"].round(6)
    array([1.      , 2.718282])
    """
    as_method(method)
    arrays = as_inputs(inputs)
    output = evaluate(forward, [x.copy() for x in arrays.values()])
    refuse_masked("cotangent must not be", cotangent)
    u = np.asarray(cotangent)
    if u.dtype.kind not in "fiu":
        raise TypeError(f"cotangent must hold real numbers, not {u.dtype} (cotangent.shape={u.shape})")
    if u.shape != output.shape:
        raise ValueError(f"cotangent must have the shape of the output, {output.shape} (cotangent.shape={u.shape})")
    point = tuple(in_double_precision(forward, list(arrays.values()), output))
    forward = partial(on_copies, forward)
    gradients, errors = {}, {}
    for position, name in enumerate(arrays):
        subject = Subject(forward, point, position, output, u[None])
        subject = replace(subject, noise=rounding_of(subject, np.random.default_rng(0)))
        by = chosen(method, subject)
        found = measure(subject, np.arange(subject.x.size), by, Running(executor), best=by == METHODS[1])
        gradients[name] = np.asarray(found.values[:, 0].reshape(subject.x.shape), np.float64)
        errors[name] = np.asarray(found.errors.reshape(subject.x.shape), np.float64)
    return (gradients, errors) if return_error else gradients


def as_method(method: str) -> str:
    """`method`, refused if it is none."""
    if method not in ("auto", *METHODS):
        raise ValueError(f"method must be 'auto', {' or '.join(map(repr, METHODS))}, not {method!r}")
    return method


def chosen(method: str, subject: Subject) -> str:
    """The method for an input: of "auto" the complex step, if that serves."""
    if method != "auto":
        return method
    return METHODS[0] if why_not_analytic(subject, np.random.default_rng(0)) is None else METHODS[1]


def measure(
    subject: Subject,
    elements: Array,
    method: str,
    running: Running,
    *,
    scales: Array | None = None,
    best: bool = False,
    key: str | None = None,
    keep: Callable[[Array, Slopes], None] | None = None,
) -> Slopes:
    """The slopes with respect to the entries whose flat indices are `elements`.

    Parameters
    ----------
    subject : Subject
    elements : ndarray of int
    method : {"complex-step", "central"}
    running : Running
    scales : ndarray, optional
        The step of each entry, for central differences.
    best : bool, optional
        Look more closely: find out what each entry reaches; try all steps and keep the best, for central differences,
        and see what a shorter step changes, for the complex step.
    key : str, optional
        The name under which a checkpoint keeps the results.
    keep : callable, optional
        Is given the results as they come in, with the entries that they belong to.
    """
    size = min(BATCH_ELEMENTS if subject.batched else TASK_ELEMENTS, rows_at_once(running.memory, subject))
    starts = range(0, len(elements), size)
    chunks = [elements[start : start + size] for start in starts]
    steps = [None if scales is None else scales[start : start + size] for start in starts]
    parts: dict[int, Slopes] = {}

    def take(number: int, slopes: Slopes) -> None:
        parts[number] = slopes
        running.advance(len(chunks[number]))
        if keep:
            keep(chunks[number], slopes)

    kept = running.checkpoint if key else None
    for number, chunk in enumerate(chunks):
        arrays = kept and kept.get(f"{key}/{size}/{number}", _shapes(subject, chunk))
        if arrays:
            take(number, Slopes(*arrays))
    missing = [number for number in range(len(chunks)) if number not in parts]
    tasks = [partial(_slopes_of_entries, subject, chunks[k], method, steps[k], best) for k in missing]
    for done, slopes in run(tasks, running.executor):
        take(missing[done], slopes)
        if kept:
            kept.put(f"{key}/{size}/{missing[done]}", slopes)
    if not chunks:
        return Slopes(*map(np.zeros, _shapes(subject, elements)))
    ordered = [parts[number] for number in range(len(chunks))]
    return Slopes(*(np.concatenate(column) for column in zip(*ordered, strict=True)))


def measure_along(
    subject: Subject, directions: Array, method: str, running: Running, scale: float | None = None
) -> Slopes:
    """The slopes along `directions`, (moves, *x.shape); by differences, at one `scale` or the best."""
    tasks = [partial(_slopes, subject, v[None], method, scale, scale is None) for v in directions]
    parts = dict(run(tasks, running.executor))
    return Slopes(*(np.concatenate(column) for column in zip(*(parts[k] for k in range(len(tasks))), strict=True)))


def _slopes_of_entries(
    subject: Subject, elements: Array, method: str, scales: Array | float | None, best: bool
) -> Slopes:
    found = _slopes(subject, along(subject.x, elements), method, scales, best)
    size = sizes(subject.x).ravel()[elements]
    return Slopes(found.values / size[:, None], found.errors / size, found.scales, found.lost / size)


def _slopes(subject: Subject, directions: Array, method: str, scales: Array | float | None, best: bool) -> Slopes:
    with np.errstate(all="ignore"):  # of a thread of its own, too
        if method == METHODS[1]:
            if scales is not None:
                return by_differences(subject, directions, scales)
            return (by_best_differences if best else by_first_differences)(subject, directions)
        if not best:
            return by_complex_step(subject, directions)
        found = by_complex_step(subject, directions, reach=reach_of(subject, directions))
        shorter = by_complex_step(subject, directions, 0.25 * found.scales)
        errors = found.errors + 2 * np.abs(found.values[:, 0] - shorter.values[:, 0])  # what the step leaves
        return found._replace(errors=errors)


def _shapes(subject: Subject, elements: Sequence[int] | Array) -> list[tuple[int, ...]]:
    one = (len(elements),)
    return [(len(elements), len(subject.cotangents)), one, one, one]


def batched(subject: Subject, others: tuple[int, ...]) -> Subject | str:
    """The same with an input that carries one more leading axis; or why it cannot, as a trial shows.

    If it cannot alone, then perhaps together with `others`: a bias must not have more axes than the scores.
    """
    move = np.random.default_rng(0).uniform(-0.1, 0.1, (1, *subject.x.shape)) * magnitudes(subject.x)
    trial = subject.x + np.concatenate([move, np.zeros_like(move)])  # what comes of the second is known
    with np.errstate(all="ignore"):
        expected = np.concatenate([subject.outputs(trial[:1]), subject.output.reshape(1, -1)])
    alone = replace(subject, batched=True)
    together = replace(alone, with_it=others)
    reason = _refusal(alone, trial, expected)
    if reason is None:
        return alone
    return together if _refusal(together, trial, expected) is None else reason


def _refusal(in_batches: Subject, trial: Array, expected: Array) -> str | None:
    """Why many moves at once do not give what is expected; None if they do."""
    with np.errstate(all="ignore"):
        try:
            found = in_batches.outputs(trial)
        except AnotherShapeError as error:
            return str(error)
        except Exception as error:
            return f"it raises {type(error).__name__}: {error}"
        largest = np.abs(expected).max(initial=0)
        near = np.abs(found - expected) <= SAME_IN_A_BATCH * np.finfo(in_batches.output.dtype).eps * largest
    same = near | (found == expected) | (np.isnan(found) & np.isnan(expected))
    return None if same.all() else "it computes something else then"
