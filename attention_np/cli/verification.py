"""All that `check` verifies: ops against numbers, pages against mathematics, ops and pages against each other."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from inspect import signature
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attention_np import cases, softmax
from attention_np._lib import blas, machine
from attention_np._lib.pages import PAGES
from attention_np.gradcheck import METHODS, numerical_gradient
from attention_np.gradcheck.ops import check_op_by
from attention_np.gradcheck.second_order import ADJOINT as ADJOINT_ULPS
from attention_np.gradcheck.slopes.methods import UNDECIDABLE

if TYPE_CHECKING:
    from attention_np.derivation import PageCheck, Verification
    from attention_np.gradcheck import InputReport

FURTHER = {"jvp": "forward mode", "double_backward": "double backward"}  # of all inputs
MOST_PROCESSES = 8  # that have enough to do to be worth beginning
ADJOINT = ADJOINT_ULPS * float(np.finfo(np.float64).eps)
TOLERANCE = 1e-13  # of the functions of softmax that are not an op's three, normwise
PACKAGE = Path(__file__).resolve().parents[1]


class Finding(NamedTuple):
    """One array of an op, in one case, under one method."""

    op: str
    case: str
    input: str
    method: str
    error: float
    ok: bool
    allowed: float  # the error that the method could not tell from its own
    note: str = ""  # what else is known of it

    @property
    def share(self) -> float:
        """The error, as a part of what is allowed."""
        return self.error / self.allowed if self.allowed else math.inf if self.error else 0.0


def check(
    examples: Sequence[cases.Case],
    path: Path,
    names: Sequence[str] | None,
    progress: Callable[[Sequence[Any]], Iterable[Any]],
) -> tuple[list[Finding], Verification]:
    """What :func:`check_ops` and :func:`check_pages` find; all ops together in a process for each core.

    This one takes the pages, then the first of the cases that nobody has begun; the others begin with the last.
    """
    others = min(machine.cores().usable, MOST_PROCESSES) - 1
    if {example.op for example in examples} == {*cases.OPS} and others:
        try:
            with ProcessPoolExecutor(others, get_context("spawn")) as pool:
                try:
                    with _uninterrupted():
                        pending = [pool.submit(check_ops, [example]) for example in reversed(examples)]
                    pages = partial(check_pages, path, names)
                    shared = map(partial, repeat(_done_or_here), examples, reversed(pending))
                    report, *reports = [work() for work in progress([pages, *shared])]
                    return list(chain(*reports)), report
                except KeyboardInterrupt:
                    pool.shutdown(cancel_futures=True)
                    raise
        except BrokenProcessPool:  # where a program without a guard of its own calls this, none can begin
            pass
    return check_ops(progress(examples)), check_pages(path, names)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that begin in here are never interrupted; this one is when it is over.

    The mask is for them, which inherit it; the handler for this one, whose other threads take the signal as well.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


def _done_or_here(example: cases.Case, elsewhere: Future[list[Finding]]) -> list[Finding]:
    """What another process finds, or this one if no other has begun."""
    return check_ops([example]) if elsewhere.cancel() else elsewhere.result()


def check_ops(examples: Iterable[cases.Case]) -> list[Finding]:
    """Every gradient of every case by every method, and forward mode against backward mode."""
    findings = []
    for example in examples:
        threads = {"workers": 1} if "workers" in signature(example.module.forward).parameters else {}
        with blas.one_thread():  # the processes are what runs in parallel
            reports = check_op_by(METHODS, example.module, example.inputs, example.options | threads)
        for number, report in enumerate(reports):
            for entry in report:
                if entry.name in FURTHER and number:
                    continue  # it does not depend on the method
                name = f"all, {FURTHER[entry.name]}" if entry.name in FURTHER else entry.name
                of_entry = entry.max_relative_error, entry.ok, _allowed(entry), entry.diagnosis or ""
                findings.append(Finding(example.op, example.name, name, entry.method, *of_entry))
        if example.op == "softmax":
            findings += _check_softmax(example)
    return findings


def _allowed(entry: InputReport) -> float:
    """The relative error, by the same scale as that of `entry`, that would not be called one where it is largest."""
    if entry.name == "jvp":
        return ADJOINT
    difference, largest = abs(entry.analytic - entry.numerical), max(abs(entry.analytic), abs(entry.numerical))
    error = entry.max_relative_error
    scale = difference / error if 0 < error < math.inf else largest
    return UNDECIDABLE * entry.floor / scale if scale else 0.0


def _normwise_error(actual: Any, expected: Any) -> float:
    """The largest difference over the largest magnitude of either."""
    largest = max(np.abs(actual).max(), np.abs(expected).max())
    return float(np.abs(actual - expected).max() / (largest or 1.0))


def _check_softmax(example: cases.Case) -> list[Finding]:
    """The functions that softmax has besides the three of every op."""
    scores, options = example.inputs["scores"], example.options
    axis = options.get("axis", -1)

    def output(scores: Any) -> Any:
        return softmax.forward(scores, **options)[0]

    weights = output(scores)

    jacobian = np.moveaxis(softmax.jacobian(scores, **options), (-2, -1), (0, 1))  # (n, n, ...)
    d_weights = np.moveaxis(np.random.default_rng(0).standard_normal(weights.shape), axis, 0)  # (n, ...)
    by_matrix = np.moveaxis(np.einsum("i...,ij...->j...", d_weights, jacobian), 0, axis)
    d_output = np.moveaxis(d_weights, 0, axis)
    numerical = numerical_gradient(output, {"scores": scores}, d_output, method="complex-step")
    matrix_error = _normwise_error(by_matrix, numerical["scores"])

    def log_sum(scores: Any) -> Any:
        return softmax.logsumexp(scores, **options)

    d_log_sum = np.random.default_rng(1).standard_normal(log_sum(scores).shape)
    slopes = numerical_gradient(log_sum, {"scores": scores}, d_log_sum, method="complex-step")
    slope_error = _normwise_error(weights * np.expand_dims(d_log_sum, axis), slopes["scores"])
    allowed = TOLERANCE
    return [
        Finding("softmax", example.name, "scores", "jacobian", matrix_error, matrix_error <= allowed, allowed),
        Finding("softmax", example.name, "scores", "logsumexp", slope_error, slope_error <= allowed, allowed),
    ]


def page_names(path: Path) -> list[str]:
    """The pages in a folder, by the names of their files; or the one that `path` is."""
    return [path.stem] if path.is_file() else sorted(file.stem for file in path.glob("*.md"))


def stand_alone(path: Path, names: Sequence[str] | None = None) -> bool:
    """Whether pages are somebody's own: none of them belongs to an op, and no op is among the names.

    They are held against mathematics. The ops, and the lines of code that cite pages, have nothing to do with them.
    """
    if path == PAGES or any(name in cases.OPS for name in names or ()):
        return False
    from attention_np.derivation import read_pages

    return all(page.header.op is None for page in read_pages([path]))


def check_pages(
    path: Path, names: Sequence[str] | None = None, look: Callable[[PageCheck], object] | None = None
) -> Verification:
    """Every equation of the pages in a folder, or of those called `names`; the ops against them; who cites what.

    `look` is called with the check of each page.
    """
    from attention_np.derivation import read_pages, verify

    pages, only = read_pages([path]), None if names is None else {name.replace("_", "-") for name in names}
    if stand_alone(path, names):
        report = verify(pages, only=only, look=look)
    else:
        sources = sorted(PACKAGE.rglob("*.py"))
        report = verify(pages, sources=sources, operators=cases.OPS, root=PACKAGE.parent, only=only, look=look)
        pageless = [op for op in cases.OPS if op not in page_names(path)]
        report.problems += [f"{path / op}.md:1: there is no page for the op {op}" for op in pageless]
    if names is not None:
        report.problems = [problem for problem in report.problems if Path(problem.partition(":")[0]).stem in names]
    return report


def against_pages(report: Verification) -> list[Finding]:
    """What the comparison of ops with pages found, in the form of the other findings on ops."""
    return [
        Finding(field.op, f"page {field.page}", field.name, "page", field.error, bool(field.ok), TOLERANCE)
        for field in report.fields
    ]
