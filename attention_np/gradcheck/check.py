"""The door for functions: gradients against numerical ones, entry by entry."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from attention_np.gradcheck.evidence import subject_of
from attention_np.gradcheck.flow import Options, report_by
from attention_np.gradcheck.problem.calls import Backward, Forward, as_executor, as_generator, check_functions
from attention_np.gradcheck.problem.problem import Problem, pose
from attention_np.gradcheck.report.reporting import Report
from attention_np.gradcheck.slopes.checkpoint import Checkpoint, fingerprint
from attention_np.gradcheck.slopes.measuring import Running, as_method
from attention_np.gradcheck.slopes.moves import Subject, batched, sizes


def check(
    forward: Forward,
    backward: Backward,
    inputs: Mapping[str, Any],
    *,
    method: str = "auto",
    rtol: float | None = None,
    rng: int | np.random.Generator = 0,
    executor: Executor | None = None,
    vectorized: Sequence[str] = (),
    max_entries: int | Literal["auto"] | None = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
) -> Report:
    """Check the gradients of a function, entry by entry, against numerical ones.

    An entry is wrong if the two differ by more than ten times what rounding and the method can be blamed for there, and
    by more than what is too small to judge; see :mod:`attention_np.gradcheck.verdict`. What is wrong is then looked
    into, and said in words.

    Parameters
    ----------
    forward : callable
        ``forward(*inputs) -> array``; or several arrays, in a tuple, list or mapping.
    backward : callable
        ``backward(d_output, *inputs) -> one gradient per input``; for one input, the gradient itself will do.
        `d_output` has the form of the output, and a gradient that of its input.
    inputs : mapping of str to array_like of float, nests of arrays, or anything else
        In the order in which the functions take them. The arrays of floating-point numbers in tuples, lists and
        mappings count too, and are called by their path, as ``layers.0.w``. What holds none is passed on as it is:
        labels, masks, flags, None. A complex array is its real and its imaginary part, ``z.real`` and ``z.imag``, and
        its gradient by PyTorch's convention ``d_real + 1j * d_imag``.
    method : {"auto", "complex-step", "central"}, optional
        How to take the numerical gradient; see :func:`numerical_gradient`. With "auto" an input gets central
        differences if its complex step proves wrong, and its report says why.
    rtol : float, optional
        A normwise relative error that is allowed besides; by default none. What a solver, a series or an integrator
        stops at is the caller's to allow.
    rng : int or numpy.random.Generator, optional
        Draws the cotangent, a random linear functional of the output, and every other random choice.
    executor : concurrent.futures.Executor, optional
        Where to evaluate `forward`: a pool of threads or processes, Dask's ``client.get_executor()``, mpi4py's
        ``MPIPoolExecutor``. The functions must be picklable if it uses processes. The result is the same to the bit.
    vectorized : sequence of str, optional
        Inputs that may carry one more leading axis, by NumPy's rules of broadcasting: the output then carries it, too.
        Many moves of such an input go through `forward` at once.
    max_entries : int, "auto" or None, optional
        Of an input with more entries only so many are looked at one by one, drawn at random, and the whole gradient
        along eight random directions. The report says what can escape. "auto", the default, looks at all of 20 000
        entries, at 5000 of 100 000, and so on: the time stays the same. None: look at all.
    checkpoint : path, optional
        A file that keeps the slopes that were measured. The same check with the same file goes on from there.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used; a wrong gradient is reported, not raised.
    NotAnalyticError
        If `method` is "complex-step" and `forward` is not analytic.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> report = gradcheck.check(np.tanh, lambda d_y, x: d_y * (1 - np.tanh(x) ** 2), {"x": np.linspace(-1, 1, 5)})
    >>> report.ok, report["x"].max_relative_error < 1e-15
    (True, True)
    """
    how: dict[str, Any] = {"rtol": rtol, "rng": rng, "executor": executor, "checkpoint": checkpoint}
    return check_by([method], forward, backward, inputs, vectorized=vectorized, max_entries=max_entries, **how)[0]


def assert_gradients(forward: Forward, backward: Backward, inputs: Mapping[str, Any], **options: Any) -> None:
    """Raise an AssertionError with the report if a gradient does not hold; the arguments are those of :func:`check`.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> gradcheck.assert_gradients(np.exp, lambda d_y, x: d_y * np.exp(x), {"x": np.linspace(-1, 1, 5)})
    """
    check(forward, backward, inputs, **options).raise_if_failed()


def check_by(
    methods: Sequence[str],
    forward: Forward,
    backward: Backward,
    inputs: Mapping[str, Any],
    *,
    rtol: float | None = None,
    rng: int | np.random.Generator = 0,
    executor: Executor | None = None,
    vectorized: Sequence[str] = (),
    if_possible: bool = False,
    stateless: bool = False,
    max_entries: int | Literal["auto"] | None = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
) -> list[Report]:
    """A report by each method, as :func:`check` gives it; what does not depend on the method is measured once.

    `if_possible`: of the inputs that are `vectorized`, those are for which a trial shows it. `stateless`: backward asks
    forward itself for what it needs of it.
    """
    check_functions(forward=forward, backward=backward)
    for method in methods:
        as_method(method)
    if rtol is not None and (isinstance(rtol, bool) or not (isinstance(rtol, Real) and 0 <= rtol < math.inf)):
        raise ValueError(f"rtol must be a finite number that is not negative, not {rtol!r}")
    if max_entries not in (None, "auto") and (
        not isinstance(max_entries, Integral) or isinstance(max_entries, bool) or max_entries < 1
    ):
        raise ValueError(f"max_entries must be a positive integer, 'auto' or None, not {max_entries!r}")
    executor, generator = as_executor(executor), as_generator(rng)
    problem = pose(forward, backward, inputs, generator, stateless=stateless)
    subjects = _subjects(problem, vectorized, if_possible)
    asked = [Options(method, float(rtol or 0), max_entries) for method in methods]
    kept = None
    if checkpoint is not None:
        first = next(iter(subjects.values()))
        there = first.values((first.x + 0.25 * sizes(first.x))[None])  # tells functions apart that agree at the point
        question = [*problem.inputs.items(), problem.output, there, problem.cotangents, *asked, sorted(vectorized)]
        kept = Checkpoint(checkpoint, fingerprint([*question, problem.seed]))
    try:
        with np.errstate(all="ignore"):
            return [report_by(problem, subjects, options, Running(executor, kept)) for options in asked]
    finally:
        if kept is not None:
            kept.save()


def _subjects(problem: Problem, vectorized: Any, if_possible: bool) -> dict[str, Subject]:
    """The function to be differentiated by each input, in batches where it takes them."""
    if not isinstance(vectorized, str | Iterable):
        raise TypeError(f"vectorized must be names of inputs, not {vectorized!r}")
    names = [vectorized] if isinstance(vectorized, str) else list(vectorized)
    subjects = {name: subject_of(problem, name) for name in problem.inputs}
    unknown = [name for name in names if name not in subjects]
    if unknown and not if_possible:
        raise ValueError(f"vectorized names {unknown[0]!r}, which is not among the inputs: {', '.join(subjects)}")
    names = [name for name in names if name in subjects]
    for name in names:
        own, others = subjects[name], tuple(subjects[other].position for other in names if other != name)
        in_batches = batched(own, others)
        if in_batches is None and not if_possible:
            raise ValueError(
                f"vectorized names {name}, but forward does not take one more leading axis there, or computes "
                f"something else then ({name}.shape={own.x.shape})"
            )
        subjects[name] = in_batches or own
    return subjects
