"""The doors for second derivatives: Hessians and their products with vectors, and an op's double backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.check import check, check_by
from attention_np.gradcheck.problem.calls import as_generator, check_functions, check_mapping
from attention_np.gradcheck.problem.nests import Nest
from attention_np.gradcheck.problem.problem import FlatFunctions
from attention_np.gradcheck.report.findings import InputReport
from attention_np.gradcheck.report.reporting import Report
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.verdict.judging import COARSE, GROSS, size_of

ADJOINT = 4.5  # units in the last place of <u, J v> against <J^T u, v>: 1e-15 in float64


def check_hessian(
    gradient: Callable[..., Any],
    hessian_vector_product: Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    rng: int | np.random.Generator = 0,
    **options: Any,
) -> Report:
    """Check second derivatives: products of a Hessian with vectors against numerical derivatives of the gradient.

    Parameters
    ----------
    gradient : callable
        ``gradient(*inputs) -> one array per input``; for one input, the array itself will do.
    hessian_vector_product : callable
        ``hessian_vector_product(*tangents, *inputs) -> one array per input``, with a tangent for each input that is
        differentiated by. Of a Hessian that is a matrix, ``lambda v, x: hessian(x) @ v``.
    inputs : mapping of str to array_like of float
        As for :func:`check`.
    rng : int or numpy.random.Generator, optional
        Draws the tangents, and every other random choice.
    **options
        As for :func:`check`.

    Returns
    -------
    Report
        One entry per array; and one called "symmetry": the difference between <u, H v> and <v, H u> over ``|u| |H v|``
        for random u and v, allowed to be 1e-6. Products that hold and are not symmetric are those of no gradient.
        What is wrong is put as of a backward pass: the tangents are its gradients of the output.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> report = gradcheck.check_hessian(  # of the sum of sin(x) y
    ...     lambda x, y: (np.cos(x) * y, np.sin(x)),
    ...     lambda u, v, x, y: (-np.sin(x) * y * u + np.cos(x) * v, np.cos(x) * v),  # the last v should be u
    ...     {"x": np.array([0.5, 1.0]), "y": np.array([2.0, 3.0])},
    ... )
    >>> report["x"].ok, report["y"].ok, report["symmetry"].ok
    (True, False, False)
    """
    check_functions(gradient=gradient, hessian_vector_product=hessian_vector_product)
    check_mapping(inputs)
    nest = Nest.of_arguments(inputs)
    functions = _Gradients(gradient, hessian_vector_product, nest)
    report = check(functions.forward, functions.backward, inputs, rng=rng, **options)
    result = functions.forward(*nest.filled(x.copy() for x in nest.arrays.values()).values())
    entry = _symmetry(FlatFunctions.of(functions.forward, functions.backward, nest, result), nest, as_generator(rng))
    if report.ok and not entry.ok:
        said = "the products hold, and the Hessian is not symmetric: gradient is the gradient of nothing"
        entry = replace(entry, diagnosis=said)
    return Report((*report, entry))


@dataclass(frozen=True)
class _Gradients:
    """A gradient and its products as a function, and the backward pass of it, which a Hessian is for itself."""

    gradient: Callable[..., Any]
    product: Callable[..., Any]
    inputs: Nest

    def forward(self, *values: Any) -> Any:
        """The gradients by their names."""
        gradients = self.inputs.by_tree(self.gradient(*values))
        return {name: gradients[name] for name in self.inputs.moved}

    def backward(self, d_output: Mapping[str, Any], *values: Any) -> Any:
        """The products of the Hessian with these tangents."""
        return self.product(*d_output.values(), *values)


def _symmetry(functions: FlatFunctions, inputs: Nest, rng: np.random.Generator) -> InputReport:
    """<u, H v> and <v, H u>, for random u and v."""
    point = [np.array(x) for x in inputs.arrays.values()]
    output = functions.forward(*(x.copy() for x in point))
    u, v = rng.standard_normal((2, output.size)).astype(output.dtype)

    def product(u: Array) -> Array:
        pairs = zip(functions.backward(u.copy(), *(x.copy() for x in point)), point, strict=True)
        return np.concatenate([np.zeros(x.size) if d_x is None else np.ravel(d_x) for d_x, x in pairs])

    of_u, of_v, eps = product(u), product(v), float(np.finfo(output.dtype).eps)
    size = float(np.linalg.norm(u) * np.linalg.norm(of_v))
    # What moves the gradient, along the one and the other, by less than its last bits is too small to judge.
    last_bits = max(eps * float(np.linalg.norm(w * output)) for w in (u, v)) / max(map(size_of, point))
    floor = last_bits + max(GROSS, COARSE * eps) * size / UNDECIDABLE
    one, other = float(u @ of_v), float(v @ of_u)
    apart = abs(one - other)
    said = None if apart <= UNDECIDABLE * floor else "the Hessian is not symmetric: <u, H v> and <v, H u> differ"
    error = apart / size if size else apart
    return InputReport("symmetry", "adjoint", said is None, error, (), one, other, floor, diagnosis=said)


def check_double_backward(functions: Any, inputs: Nest, rng: int, method: str = "auto") -> InputReport:
    """What was found for `double_backward` of an op.

    A Hessian is symmetric, so that ``double_backward(v, d_output)`` is how output and gradients move along the tangents
    v: the derivative of a function of one number.
    """
    draw = as_generator(rng)
    arrays = [np.asarray(x) for x in inputs.arrays.values()]
    output = functions.call(*inputs.filled(arrays).values())[0]
    d_output = draw.standard_normal(output.shape).astype(output.dtype)
    tangents = [draw.standard_normal(x.shape).astype(x.dtype) for x in arrays]
    twice = _Twice(functions, inputs, [d_output, *arrays], tangents)
    step = {"tangent": np.ones((), output.dtype)}
    answers: list[Array] = []  # at the point, where `check` asks twice whether it answers alike

    def claimed(s: Array) -> Array:
        if s != 1:
            return twice.claimed(s)
        if len(answers) < 2:
            answers.append(twice.claimed(s))
        return answers[-1]

    def held(keep: slice) -> InputReport:
        """What is found of some of the entries of output and gradients."""

        def backward(u: Array, s: Array) -> Array:
            return np.asarray(u @ claimed(s)[keep])

        functions = (lambda s: twice.forward(s)[keep]), backward
        return check_by([method], *functions, step, rng=rng, stateless=True)[0]["tangent"]

    try:
        alone = np.sum([twice.claimed(step["tangent"], [name]) for name in inputs.trees], axis=0)
        report = replace(held(slice(None)), name="double_backward")
        whole = claimed(step["tangent"])
    except Exception as raised:
        said = f"double_backward raised {type(raised).__name__}: {raised}"
        return InputReport("double_backward", method, False, np.inf, diagnosis=said)
    if not report.ok:
        ends = np.cumsum([0, *(x.size for x in twice.point)])
        parts = zip(["d_output", *inputs.arrays], map(slice, ends, ends[1:]), strict=False)
        wrong = ", ".join(name for name, part in parts if not held(part).ok)
        said = f"double_backward is not the gradient of backward with respect to {wrong or 'some of the inputs'}"
        return replace(report, diagnosis=said)
    near = max(GROSS, COARSE * float(np.finfo(output.dtype).eps)) * np.abs(whole).max(initial=0)
    if (np.abs(alone - whole) > near).any():
        said = "double_backward of a gradient that is None is not that of one that is zero"
        return replace(report, ok=False, diagnosis=said)
    return report


@dataclass(frozen=True)
class _Twice:
    """Output and gradients of an op, laid end to end, as a function of how far its inputs have moved along tangents."""

    functions: Any
    inputs: Nest
    point: list[Array]  # the cotangent and the arrays
    tangents: list[Array]  # of the arrays

    def forward(self, s: Array) -> Array:
        """Output and gradients where the arrays have moved by (s - 1) times their tangents."""
        d_output, arrays = self._there(s)
        output, cache = self.functions.call(*self.inputs.filled(arrays).values())
        return self._joined(output, self.functions.op.backward(d_output, cache))

    def claimed(self, s: Array, names: Sequence[str] | None = None) -> Array:
        """What the op says of how they move there, of tangents that are None but for the inputs called `names`."""
        d_output, arrays = self._there(s)
        op, tangents = self.functions.op, self.inputs.filled(self.tangents, alone=True)
        parts = {name: tangents.get(name) if names is None or name in names else None for name in op.Gradients._fields}
        cache = self.functions.call(*self.inputs.filled(arrays).values())[1]
        d_d_output, gradients = op.double_backward(op.Gradients(**parts), d_output, cache)
        if np.shape(d_d_output) != d_output.shape:
            raise ValueError(f"its d_d_output has the shape {np.shape(d_d_output)}, not {d_output.shape}")
        return self._joined(d_d_output, gradients)

    def _there(self, s: Array) -> tuple[Array, list[Array]]:
        d_output, *arrays = (x.astype(np.result_type(x.dtype, s.dtype)) for x in self.point)
        if d_output.dtype.kind == "c":
            d_output = d_output.real
        return d_output, [x + (s - 1) * v for x, v in zip(arrays, self.tangents, strict=True)]

    def _joined(self, of_output: Array, gradients: Any) -> Array:
        of_inputs = self.inputs.gradients(self.functions.named(gradients))
        for name, x, gradient in zip(self.inputs.arrays, self.point[1:], of_inputs, strict=True):
            if np.shape(gradient) != x.shape:
                raise ValueError(f"the gradient of {name} has the shape {np.shape(gradient)}, not {x.shape}")
        return np.concatenate([np.ravel(x) for x in (of_output, *of_inputs)])
