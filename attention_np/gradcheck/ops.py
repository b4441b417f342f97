"""The door for ops: modules with ``forward``, ``backward``, ``jvp`` and ``double_backward``."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.check import check_by
from attention_np.gradcheck.evidence import neighbor_in_last_bits
from attention_np.gradcheck.problem.calls import as_generator, check_mapping
from attention_np.gradcheck.problem.nests import Nest
from attention_np.gradcheck.report.findings import InputReport
from attention_np.gradcheck.report.reporting import Report
from attention_np.gradcheck.second_order import ADJOINT, check_double_backward
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.verdict.judging import GROSS

NEARBY = 8  # points at which forward mode and backward are compared once more: enough to tell a bug from rounding


def check_op(
    op: Any,
    inputs: Mapping[str, Any],
    *,
    method: str = "auto",
    rtol: float | None = None,
    cotangent_rng: int = 0,
    vectorized: Sequence[str] | None = None,
    executor: Any = None,
    max_entries: Any = "auto",
    checkpoint: Any = None,
    **options: Any,
) -> Report:
    """Check an op: a module with ``forward``, ``backward`` and, if it has them, ``jvp`` and ``double_backward``.

    Parameters
    ----------
    op : module
        ``op.forward(**inputs, **options) -> (output, cache)``, ``op.backward(d_output, cache) ->`` a NamedTuple with
        the names of the inputs, ``op.jvp(cache, **tangents)``. With ``op.double_backward(d_gradients, d_output, cache)
        -> (d_d_output, gradients)`` that NamedTuple must be ``op.Gradients``; it is called with None for some, too.
    inputs : mapping of str to array_like of float, NamedTuple of them, or anything else
        In the names of `forward`. The arrays of a NamedTuple are reported as ``parameters.w_query`` and so on. What
        holds no floating-point numbers is passed on as it is, as for :func:`check`; what holds one array, its `array`,
        and gives the same of another, ``with_array(x)``, is differentiated by that, also in a list.
    method, rtol, executor, max_entries, checkpoint
        As for :func:`check`.
    vectorized : sequence of str, optional
        As for :func:`check`; by default those of ``op.VECTORIZED``, if it has that, for which a trial shows it.
    cotangent_rng : int, optional
        Seed of the cotangent and of the tangents.
    **options
        Passed on to `forward` at every evaluation as they are now, so that a generator draws the same again.

    Returns
    -------
    Report
        One entry per array; and, if the op has forward mode, one called "jvp": the difference between <u, J v> and
        <J^T u, v> over ``|u| |J v|`` for random u and v, allowed to be 1e-15, or what the dtype can hold. If it has a
        double backward, one called "double_backward": along random tangents, how output and gradients move by numerical
        derivatives, entry by entry.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck, softmax
    >>> print(gradcheck.check_op(softmax, {"scores": np.array([1.0, 2.0, 4.0])}, axis=0).ok)
    True
    """
    how = {"rtol": rtol, "executor": executor, "max_entries": max_entries, "checkpoint": checkpoint}
    return check_op_by([method], op, inputs, options, rng=cotangent_rng, vectorized=vectorized, **how)[0]


def check_op_by(
    methods: Sequence[str],
    op: Any,
    inputs: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    rng: int = 0,
    vectorized: Sequence[str] | None = None,
    **how: Any,
) -> list[Report]:
    """A report by each method, as :func:`check_op` gives it; what does not depend on the method is measured once."""
    check_mapping(inputs)
    if hasattr(op, "as_op"):  # of which each layer is an op
        options = dict(options)
        op = op.as_op(options.pop("layer", None), tuple(inputs))
    makers = {name: x for name, x in inputs.items() if _holds_arrays(x)}
    inputs = {name: _held(x) if name in makers else x for name, x in inputs.items()}
    nest = Nest.of_arguments(inputs)
    for name, kind in nest.kinds.items():
        if kind == "c":
            raise TypeError(f"input {name} is complex: ops are checked on real arrays, and continued from there")
    functions = OpFunctions(op, tuple(inputs), options, makers)
    reports = check_by(
        methods,
        functions.forward,
        functions.backward,
        inputs,
        rng=rng,
        vectorized=getattr(op, "VECTORIZED", ()) if vectorized is None else vectorized,
        if_possible=vectorized is None,  # not with dropout, whose draws go by the place
        stateless=True,
        **how,
    )
    further: list[InputReport] = []
    if hasattr(op, "jvp"):
        further.append(_adjoint(functions, nest, as_generator(rng)))
    if hasattr(op, "double_backward"):
        further.append(check_double_backward(functions, nest, rng, methods[0]))
    return [Report((*report.inputs, *further)) for report in reports]


@dataclass(frozen=True)
class OpFunctions:
    """An op as a pair of functions of its arrays alone, which can be sent to another process."""

    op: Any
    names: tuple[str, ...]  # of the inputs
    options: Mapping[str, Any]
    makers: Mapping[str, Any] = field(default_factory=dict)  # of inputs that hold an array, or lists with some

    def call(self, *inputs: Any) -> tuple[Array, Any]:
        """What the op's forward returns: its output and its cache."""
        named = dict(zip(self.names, inputs, strict=True))
        named |= {name: _made(maker, named[name]) for name, maker in self.makers.items()}
        result: tuple[Array, Any] = self.op.forward(**named, **{name: _fresh(x) for name, x in self.options.items()})
        return result

    def forward(self, *inputs: Any) -> Array:
        """The output alone."""
        return self.call(*inputs)[0]

    def backward(self, d_output: Array, *inputs: Any) -> list[Any]:
        """The gradients, in the order of the inputs; None for one that is missing."""
        return self.named(self.op.backward(d_output, self.call(*inputs)[1]))

    def named(self, gradients: Any) -> list[Any]:
        """The gradients of the inputs, of what the op's backward returns."""
        if isinstance(gradients, np.ndarray | list) or type(gradients) is tuple:
            raise TypeError(
                f"backward of the op must return a NamedTuple with the names of the inputs ({', '.join(self.names)}), "
                f"not a plain {type(gradients).__name__}"
            )
        return [getattr(gradients, name, None) for name in self.names]

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.op, ModuleType):  # which cannot be pickled, but can be imported there
            return _of_module, (self.op.__name__, self.names, self.options, self.makers)
        return OpFunctions, (self.op, self.names, self.options, self.makers)


def _holds_arrays(x: Any) -> bool:
    """Whether an input holds an array in its place, or is a list in which one does."""
    return any(map(_holds_arrays, x)) if isinstance(x, list) else hasattr(x, "with_array")


def _held(maker: Any) -> Any:
    """The array that an input holds; of a list, that of each."""
    if isinstance(maker, list):
        return [_held(x) for x in maker]
    return maker.array if hasattr(maker, "with_array") else maker


def _made(maker: Any, held: Any) -> Any:
    """The input that holds an array; of a list, each."""
    if isinstance(maker, list):
        return [_made(*both) for both in zip(maker, held, strict=True)]
    return maker.with_array(held) if hasattr(maker, "with_array") else held


def _of_module(module: str, *rest: Any) -> OpFunctions:
    return OpFunctions(import_module(module), *rest)


def _fresh(option: Any) -> Any:
    """A copy of an option: a generator draws the same again, and a call that writes to an array changes no other."""
    if isinstance(option, bool | int | float | str | type(None)):
        return option
    if type(option) is np.ndarray and not option.dtype.hasobject:
        return option.copy("K")
    if hasattr(option, "_make"):  # a NamedTuple of parameters, of which deepcopy takes as long as the op
        return option._make(map(_fresh, option))
    return copy.deepcopy(option)


def _adjoint(functions: OpFunctions, inputs: Nest, rng: np.random.Generator) -> InputReport:
    """Forward mode against backward, for random cotangents and tangents."""
    output = functions.forward(*inputs.filled(x.copy() for x in inputs.arrays.values()).values())
    eps = float(np.finfo(output.dtype).eps)
    u = rng.standard_normal(output.shape).astype(output.dtype)
    tangents = {name: rng.standard_normal(x.shape).astype(x.dtype) for name, x in inputs.arrays.items()}

    def both_ways(names: Iterable[str], arrays: Iterable[Array]) -> tuple[float, float, float]:
        """<u, J v>, <J^T u, v> and their relative difference at a point, where only the inputs called `names` move."""
        _, cache = functions.call(*inputs.filled(x.copy() for x in arrays).values())
        gradients = inputs.gradients(functions.named(functions.op.backward(u, cache)))
        some_tangents = [v if name in names else np.zeros_like(v) for name, v in tangents.items()]
        d_output = functions.op.jvp(cache, **inputs.filled(some_tangents, alone=True))
        forwards = _dot(u, d_output)
        pairs = zip(tangents.items(), gradients, strict=True)
        backwards = float(sum(_dot(d, v) for (name, v), d in pairs if d is not None and name in names))
        size = float(np.linalg.norm(u.astype(float)) * np.linalg.norm(d_output.astype(float)))
        error = (forwards - backwards) / size if size else backwards  # (gradcheck.8)
        return forwards, backwards, error

    def noise() -> float:
        """How far rounding moves the difference, as seen at points in the last bits around."""
        points = [[neighbor_in_last_bits(x, rng) for x in inputs.arrays.values()] for _ in range(NEARBY)]
        return float(np.std([both_ways(inputs.arrays, point)[2] for point in points]))

    forwards, backwards, error = both_ways(inputs.arrays, inputs.arrays.values())
    holds = abs(error) <= ADJOINT * eps or abs(error) <= UNDECIDABLE * noise()
    diagnosis = None
    if not holds:
        arrays = inputs.arrays
        disagreeing = [name for name in arrays if not abs(both_ways([name], arrays.values())[2]) <= GROSS]
        diagnosis = f"forward mode and backward disagree{' for ' + ', '.join(disagreeing) if disagreeing else ''}"
    return InputReport("jvp", "adjoint", holds, abs(error), (), backwards, forwards, diagnosis=diagnosis)


def _dot(a: Array, b: Array) -> float:
    """The sum of the products, in extended precision: its rounding is not what is checked."""
    return float((a.astype(np.longdouble) * b).sum())
