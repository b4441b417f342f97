"""The doors for second derivatives: Hessians and their products with vectors, and an op's double backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.check import check
from attention_np.gradcheck.evidence import Pair, noise_of_pair
from attention_np.gradcheck.problem.calls import as_generator, check_functions, check_mapping
from attention_np.gradcheck.problem.nests import Nest, parts_of
from attention_np.gradcheck.problem.problem import FlatFunctions
from attention_np.gradcheck.report.findings import InputReport
from attention_np.gradcheck.report.reporting import Report
from attention_np.gradcheck.slopes.measuring import CENTRAL, COMPLEX, Running, measured_along
from attention_np.gradcheck.slopes.methods import COMPLEX_STEP, COMPLEX_STEP_IN_SINGLE, TOO_SMALL, UNDECIDABLE
from attention_np.gradcheck.slopes.moves import Subject
from attention_np.gradcheck.slopes.numerical import with_method
from attention_np.gradcheck.verdict.judging import COARSE, GROSS, relative_error, size_of

Array = npt.NDArray[Any]

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
    found = check(functions.forward, functions.backward, inputs, rng=rng, **options)
    result = functions.forward(*nest.filled(x.copy() for x in nest.arrays.values()).values())
    entry = _symmetry(FlatFunctions.of(functions.forward, functions.backward, nest, result), nest, as_generator(rng))
    if found.ok and not entry.ok:
        said = "the products hold, and the Hessian is not symmetric: gradient is the gradient of nothing"
        entry = replace(entry, diagnosis=said)
    return Report((*found, entry))


@dataclass(frozen=True)
class _Gradients:
    """A gradient and its products as a function, and the backward pass of it, which a Hessian is for itself."""

    gradient: Callable[..., Any]
    product: Callable[..., Any]
    inputs: Nest

    def forward(self, *values: Any) -> Any:
        """The gradients by their names."""
        found = self.inputs.by_tree(self.gradient(*values))
        return {name: found[name] for name in self.inputs.moved}

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
    v: one derivative, of all their entries at once.
    """
    draw, twice = as_generator(rng), _Twice(functions, inputs)
    d_output = draw.standard_normal(twice.output.shape).astype(twice.output.dtype)
    v = draw.standard_normal(sum(x.size for x in twice.arrays))
    point, eps = [d_output, *twice.arrays], float(np.finfo(d_output.dtype).eps)
    try:
        claimed = twice.claimed(v, point)
        alone = np.sum([twice.claimed(v, point, [name]) for name in inputs.trees], axis=0)
    except Exception as raised:
        said = f"double_backward raised {type(raised).__name__}: {raised}"
        return InputReport("double_backward", method, False, np.inf, diagnosis=said)
    method = with_method(twice.path(v, point), method)[1]
    measured, errors = twice.measured(v, point, method)
    names = np.repeat(["d_output", *inputs.arrays], [x.size for x in point])
    difference, floor = claimed - measured, errors
    for name in np.unique(names):
        floor[names == name] += eps * np.abs(measured[names == name]).max(initial=0)

    def none_is_zero() -> bool:
        """Whether what is said of all inputs at once is the sum of what is said of each."""
        return bool((np.abs(alone - claimed) <= UNDECIDABLE * floor + len(point) * floor.max(initial=0)).all())

    def in_wider_dtype() -> Array | None:
        narrow = np.result_type(*(x.dtype for x in point))
        wide = np.dtype(np.float64 if narrow.itemsize < 8 else np.longdouble)
        there = v.astype(wide), [x.astype(wide) for x in point]
        try:
            found = twice.claimed(*there)
            return found - twice.measured(*there, method)[0] if found.dtype == wide else None
        except Exception:  # not every op takes every dtype
            return None

    if not ((np.abs(difference) <= UNDECIDABLE * floor).all() and none_is_zero()):
        pair = Pair(twice.claimed, lambda v, point: twice.measured(v, point, method)[0])
        floor = floor + noise_of_pair(pair, (v, point), difference, in_wider_dtype, draw, difference == difference)
    bound = TOO_SMALL * eps * np.abs(measured).max(initial=0)
    off = np.abs(difference) > np.fmax(UNDECIDABLE * floor, bound)
    wrong, said = list(dict.fromkeys(names[off])), ""
    if wrong:
        said = f"double_backward is not the gradient of backward with respect to {', '.join(wrong)}"
    elif not none_is_zero():
        said = "double_backward of a gradient that is None is not that of one that is zero"
    error, worst = relative_error(claimed, measured)
    values, count = (float(claimed[worst]), float(measured[worst]), float(floor[worst])), claimed.size
    return InputReport(
        "double_backward", method, not said, error, (), *values, count, count, int(off.sum()), diagnosis=said or None
    )


@dataclass(frozen=True)
class _Twice:
    """The forward and the backward of an op as one function of its arrays, whose results are a vector."""

    functions: Any
    inputs: Nest

    @cached_property
    def arrays(self) -> list[Array]:
        """Those that are differentiated by."""
        return [np.asarray(x) for x in self.inputs.arrays.values()]

    @cached_property
    def output(self) -> Array:
        """That of the op."""
        output: Array = self._called(self.arrays)[0]
        return output

    def path(self, v: Array, point: list[Array]) -> Subject:
        """Output and gradients, as a function of how far the arrays move along the tangents v."""
        d_output, *arrays = point
        along = self._split(v, arrays)

        def moved(far: Array) -> Array:
            output, cache = self._called([x + far[0] * move for x, move in zip(arrays, along, strict=True)])
            return self._joined(output, self.functions.op.backward(d_output, cache))

        here = moved(np.zeros(1, d_output.dtype))
        weights = np.random.default_rng(0).standard_normal((1, here.size)).astype(here.dtype)
        return Subject(moved, (np.zeros(1, here.dtype),), 0, here, weights, float(np.finfo(d_output.dtype).eps))

    def measured(self, v: Array, point: list[Array], method: str) -> tuple[Array, Array]:
        """How output and gradients move along v, and the method's own errors."""
        path = self.path(v, point)
        if method == COMPLEX:
            step = COMPLEX_STEP if point[0].dtype.itemsize >= 8 else COMPLEX_STEP_IN_SINGLE
            slopes = path.outputs(np.full((1, 1), 1j * step))[0].imag / step
            return np.asarray(slopes), np.zeros(slopes.shape)
        each = replace(path, cotangents=np.eye(path.output.size, dtype=path.output.dtype))
        found = measured_along(each, np.ones((1, 1)), CENTRAL, Running())
        return found.values[0], np.full(path.output.size, found.errors[0])

    def claimed(self, v: Array, point: list[Array], names: Sequence[str] | None = None) -> Array:
        """What the op says of the product of its gradients and v, which is None but for the inputs called `names`."""
        d_output, *arrays = point
        op = self.functions.op
        given = self.inputs.filled(self._split(v, arrays), alone=True)
        asked = {name: given.get(name) if names is None or name in names else None for name in op.Gradients._fields}
        d_d_output, gradients = op.double_backward(op.Gradients(**asked), d_output, self._called(arrays)[1])
        if np.shape(d_d_output) != self.output.shape:
            raise ValueError(f"its d_d_output has the shape {np.shape(d_d_output)}, not {self.output.shape}")
        return self._joined(d_d_output, gradients)

    def _called(self, arrays: list[Array]) -> tuple[Array, Any]:
        found: tuple[Array, Any] = self.functions.call(*self.inputs.filled(arrays).values())
        return found

    def _split(self, v: Array, arrays: list[Array]) -> list[Array]:
        parts = parts_of(v, self.inputs.parts).values()
        return [part.astype(x.dtype) for part, x in zip(parts, arrays, strict=True)]

    def _joined(self, of_output: Array, gradients: Any) -> Array:
        of_inputs = self.inputs.gradients(self.functions.named(gradients))
        for name, x, gradient in zip(self.inputs.arrays, self.arrays, of_inputs, strict=True):
            if np.shape(gradient) != x.shape:
                raise ValueError(f"the gradient of {name} has the shape {np.shape(gradient)}, not {x.shape}")
        return np.concatenate([np.ravel(x) for x in (of_output, *of_inputs)])
