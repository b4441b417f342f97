"""Gradients against numerical ones, entry by entry."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from attention_np.gradcheck.examining import examine
from attention_np.gradcheck.judging.measured import Candidate, Options
from attention_np.gradcheck.measuring.functions import (
    Backward,
    Forward,
    as_generator,
    first_call,
    in_double_precision,
    on_copies,
    wide_dtype,
)
from attention_np.gradcheck.measuring.numerical import METHODS, as_method, batched
from attention_np.gradcheck.measuring.running import MEMORY, Running, track
from attention_np.gradcheck.measuring.subject import Subject, sizes
from attention_np.gradcheck.nesting import flat
from attention_np.gradcheck.reporting import Report
from attention_np.gradcheck.saving import Checkpoint, fingerprint

__all__ = ["assert_gradients", "check", "check_by"]

DIRECTIONS = 8


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
    memory: int = MEMORY,
    max_entries: int | Literal["auto"] | None = "auto",
    directions: int = DIRECTIONS,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    constants: Mapping[str, float] | None = None,
) -> Report:
    """Check the gradients of a function, entry by entry, against numerical ones.

    An entry is wrong if the two differ by more than ten times what rounding and the method can be blamed for, as
    estimated for that entry; see :mod:`attention_np.gradcheck.agreement`. What is wrong is then looked into, and
    said in words.

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
        A normwise relative error that is allowed besides; by default none.
    rng : int or numpy.random.Generator, optional
        Draws the cotangent, a random linear functional of the output, and every other random choice.
    executor : concurrent.futures.Executor, optional
        Where to evaluate `forward`: a pool of threads or processes, Dask's ``client.get_executor()``, mpi4py's
        ``MPIPoolExecutor``. The functions must be picklable if it uses processes. The result is the same to the bit.
    vectorized : sequence of str, optional
        Inputs that may carry one more leading axis, by NumPy's rules of broadcasting: the output then carries it, too.
        Many moves of such an input go through `forward` at once.
    memory : int, optional
        The bytes that may take; by default 256 MiB. They are measured, of what NumPy and Python allocate; libraries
        with memory of their own, as PyTorch and JAX, may take several times as much.
    max_entries : int, "auto" or None, optional
        Of an input with more entries only so many are looked at one by one, drawn at random, and the whole gradient
        along random directions. The report says what can escape. "auto", the default, looks at all of 20 000 entries,
        at 5000 of 100 000, at 500 of a million (if the output is as large), and so on: the time stays the same. None:
        look at all.
    directions : int, optional
        Along how many, by default 8.
    checkpoint : path, optional
        A file that keeps what is done: a saved report (:meth:`Report.load` reads it) and the slopes that were
        measured. The same check with the same file goes on from there.
    progress : bool, optional
        Whether to draw a progress bar; by default if the check is long, and standard error a terminal.
    constants : mapping of str to float, optional
        Numbers that the function was called with, as ``{"num_heads": 4}``, for the diagnosis to recognise.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used; a wrong gradient is reported, not raised.
    NotAnalyticError
        If `method` is "complex-step" and `forward` is not analytic.
    Interrupted
        A KeyboardInterrupt, with the report so far in its attribute `report`.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> report = gradcheck.check(np.tanh, lambda d_y, x: d_y * (1 - np.tanh(x) ** 2), {"x": np.linspace(-1, 1, 5)})
    >>> report.ok, report["x"].max_relative_error < 1e-15
    (True, True)
    """
    (report,) = check_by(
        [method],
        forward,
        backward,
        inputs,
        rtol=rtol,
        rng=rng,
        executor=executor,
        vectorized=vectorized,
        memory=memory,
        max_entries=max_entries,
        directions=directions,
        checkpoint=checkpoint,
        progress=progress,
        constants=constants,
    )
    return report


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
    memory: int = MEMORY,
    max_entries: int | Literal["auto"] | None = "auto",
    directions: int = DIRECTIONS,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    constants: Mapping[str, float] | None = None,
) -> list[Report]:
    """A report by each method, as :func:`check` gives it; what does not depend on the method is measured once.

    `if_possible`: of the inputs that are `vectorized`, those are for which a trial shows it. `stateless`: backward asks
    forward itself for what it needs of it.
    """
    for name, function in (("forward", forward), ("backward", backward)):
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")
    for method in methods:
        as_method(method)
    forward, backward, arrays, numbers, parts = flat(forward, backward, inputs)
    if rtol is not None and (isinstance(rtol, bool) or not (isinstance(rtol, Real) and 0 <= rtol < math.inf)):
        raise ValueError(f"rtol must be a finite number that is not negative, not {rtol!r}")
    if progress not in (None, True, False):
        raise TypeError(f"progress must be True, False or None, not {progress!r}")
    if executor is not None and (isinstance(executor, type) or not callable(getattr(executor, "submit", None))):
        raise TypeError(f"executor must be a concurrent.futures.Executor, not {executor!r}")
    constants = numbers | _as_constants(constants)
    if if_possible:
        vectorized = [name for name in vectorized if name in arrays]
    vectorized = _as_names(vectorized, arrays)
    _as_count("memory", memory)
    _as_count("directions", directions)
    if max_entries not in (None, "auto"):
        _as_count("max_entries", max_entries)
    least = 0.0 if rtol is None else float(rtol)
    witnessed = len(methods) > 1 and METHODS[1] in methods
    asked = [Options(method, least, max_entries, directions, constants, witnessed) for method in methods]

    generator = as_generator(rng)
    first = first_call(forward, backward, arrays, generator)
    if first.writes or first.is_view:
        forward = partial(on_copies, forward)
    point = tuple(in_double_precision(forward, list(arrays.values()), first.output))
    narrow = [name for name, x in zip(arrays, point, strict=True) if x.dtype.itemsize < 4]
    if narrow:
        raise TypeError(
            f"forward computes in {arrays[narrow[0]].dtype} only ({', '.join(narrow)}), in which no small step can be "
            "taken: gradcheck.check_low_precision holds it against a function in double precision"
        )
    cotangents = first.cotangents.astype(wide_dtype(first.output.dtype))
    seed = int(generator.integers(2**63))
    candidate = Candidate(forward, backward, arrays, point, first, cotangents, seed, parts, stateless)
    subjects = {name: candidate.subject(name) for name in arrays}
    positions = [list(arrays).index(name) for name in vectorized]
    for name in vectorized:
        others = tuple(k for k in positions if k != subjects[name].position)
        found = batched(subjects[name], others)
        if isinstance(found, Subject):
            subjects[name] = found
        elif not if_possible:
            raise ValueError(
                f"vectorized names {name}, but forward does not take one more leading axis there: {found} "
                f"({name}.shape={arrays[name].shape})"
            )
    entries = {name: asked[0].most(x.size, candidate.size) for name, x in arrays.items()}
    kept = None
    if checkpoint is not None:
        elsewhere = next(iter(subjects.values())).values(_elsewhere(point[0]))
        question = [*arrays.items(), first.output, elsewhere, cotangents, *asked, sorted(vectorized), seed]
        kept = Checkpoint(checkpoint, fingerprint(question))

    with track(len(methods) * sum(entries.values()), "checking gradients", progress) as advance:
        running = Running(executor, int(memory), kept, advance)
        try:
            with np.errstate(all="ignore"):
                reports = [examine(candidate, subjects, options, running) for options in asked]
        except BaseException:
            if kept is not None:
                kept.save(kept.findings())
            raise
    if kept is not None:
        kept.save(reports[-1].inputs)
    return reports


def assert_gradients(forward: Forward, backward: Backward, inputs: Mapping[str, Any], **options: Any) -> None:
    """Assert that the gradients of a function hold; for tests.

    Parameters
    ----------
    forward, backward, inputs, **options
        As for :func:`check`.

    Raises
    ------
    AssertionError
        If a gradient does not hold; the message is the report.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> gradcheck.assert_gradients(np.exp, lambda d_y, x: d_y * np.exp(x), {"x": np.linspace(-1, 1, 5)})
    """
    check(forward, backward, inputs, **options).raise_if_failed()


def _elsewhere(x: Any) -> Any:
    """Another point, which tells functions apart that agree at the first."""
    return (x + 0.25 * sizes(x))[None]


def _as_names(vectorized: Sequence[str], arrays: Mapping[str, Any]) -> list[str]:
    if not isinstance(vectorized, str | Iterable):
        raise TypeError(f"vectorized must be names of inputs, not {vectorized!r}")
    names = [vectorized] if isinstance(vectorized, str) else list(vectorized)
    for name in names:
        if name not in arrays:
            raise ValueError(f"vectorized names {name!r}, which is not among the inputs: {', '.join(arrays)}")
    return names


def _as_constants(constants: Any) -> dict[str, float]:
    if constants is None:
        return {}
    if not isinstance(constants, Mapping) or not all(isinstance(value, Real) for value in constants.values()):
        raise TypeError(f"constants must be a mapping of names to numbers, not {constants!r}")
    return {str(name): float(value) for name, value in constants.items()}


def _as_count(name: str, number: Any) -> None:
    if not isinstance(number, Integral) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{name} must be a positive integer, not {number!r}")
