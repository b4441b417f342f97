"""The door for numerical gradients alone: of one array with respect to others, every element of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from attention_np._lib.arguments import as_array
from attention_np._lib.arrays import Array
from attention_np.gradcheck.flow import measured_gradients
from attention_np.gradcheck.problem.calls import (
    Forward,
    as_inputs,
    check_functions,
    evaluate,
    in_double_precision,
    on_copies,
    refuse_masked,
)
from attention_np.gradcheck.problem.problem import Problem
from attention_np.gradcheck.slopes.measuring import as_method


def numerical_gradient(
    forward: Forward, inputs: Mapping[str, npt.ArrayLike], cotangent: npt.ArrayLike, *, method: str = "auto"
) -> dict[str, Array]:
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

    Returns
    -------
    dict of str to ndarray
        A float64 array of the shape of each input.

    Raises
    ------
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
    check_functions(forward=forward)
    arrays = as_inputs(inputs)
    output = evaluate(forward, [x.copy() for x in arrays.values()])
    refuse_masked("cotangent must not be", cotangent)
    u = as_array("cotangent", cotangent)
    if u.dtype.kind not in "fiu":
        raise TypeError(f"cotangent must hold real numbers, not {u.dtype} (cotangent.shape={u.shape})")
    if u.shape != output.shape:
        raise ValueError(f"cotangent must have the shape of the output, {output.shape} (cotangent.shape={u.shape})")
    problem = Problem(
        partial(on_copies, forward),
        lambda *_: (),
        arrays,
        tuple(in_double_precision(forward, list(arrays.values()), output)),
        output,
        u.astype(np.result_type(output.dtype, np.float64))[None],
        {},
        seed=0,
        dtype=output.dtype,
        unit=float(np.finfo(output.dtype).eps),
    )
    with np.errstate(all="ignore"):
        known = measured_gradients(problem, as_method(method))
    return {name: np.asarray(evidence.measured.reshape(evidence.shape), np.float64) for name, evidence in known.items()}
