"""An op's double backward against numerical derivatives of its forward and backward, along random tangents."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import UNDECIDABLE, relative_error
from attention_np.gradcheck.hessian import asymmetry
from attention_np.gradcheck.judging.saturation import is_lost
from attention_np.gradcheck.measuring.functions import as_generator
from attention_np.gradcheck.measuring.noise import Pair, noise_floor, unsteadiness, wider_difference
from attention_np.gradcheck.measuring.numerical import METHODS, chosen
from attention_np.gradcheck.measuring.reach import lost_of_each, reach_of
from attention_np.gradcheck.measuring.slopes import COMPLEX_STEP, COMPLEX_STEP_IN_SINGLE, extrapolated
from attention_np.gradcheck.measuring.subject import SCALES, Subject
from attention_np.gradcheck.nesting import Nest, apart
from attention_np.gradcheck.reporting import InputReport

__all__ = ["check_double_backward"]

Array = npt.NDArray[Any]


def check_double_backward(
    op: Any, functions: Any, inputs: Nest, rng: int, method: str = "auto"
) -> tuple[InputReport, InputReport]:
    """What was found for `double_backward`; and whether the Hessian that it gives is symmetric.

    A Hessian is symmetric, so that ``double_backward(v, d_output)`` is how output and gradients move along the tangents
    v: one derivative, of all their entries at once.
    """
    draw, both = as_generator(rng), _Both(op, functions, inputs)
    d_output = draw.standard_normal(both.output.shape).astype(both.output.dtype)
    u, v = draw.standard_normal((2, sum(x.size for x in both.arrays)))
    point = [d_output, *both.arrays]
    method = chosen(method, both.along(v, point))

    def measured(v: Array, point: list[Array]) -> Array:
        return both.slopes(v, point, method)[0]

    said: str | None
    try:
        claimed, alone = both.double_backward(v, point), both.double_backward_of_each(v, point)
    except Exception as raised:
        said = f"double_backward raised {type(raised).__name__}: {raised}"
        return InputReport("double_backward", method, False, np.inf, diagnosis=said), asymmetry(
            np.nan, np.nan, 1.0, 0.0
        )
    of_u = both.double_backward(u, point)[d_output.size :]
    numerical, errors = both.slopes(v, point, method)
    pair, apart, eps = Pair(both.double_backward, measured), np.abs(claimed - numerical), np.finfo(d_output.dtype).eps
    start, parts, floor = 0, {}, errors
    for name, x in {"d_output": d_output, **inputs.arrays}.items():
        parts[name] = part = slice(start, start := start + x.size)
        floor[part] += eps * np.abs(numerical[part]).max(initial=0)

    def as_one(floor: Array) -> bool:
        """Whether what is said of all inputs at once is the sum of what is said of each."""
        near = UNDECIDABLE * floor + len(both.arrays) * floor.max(initial=0)
        return bool((np.abs(alone - claimed) <= near).all())

    def symmetry(floor: Array) -> InputReport:
        of_v, most = claimed[d_output.size :], float(np.abs(u) @ (UNDECIDABLE * floor)[d_output.size :])
        size = float(np.linalg.norm(u) * np.linalg.norm(of_v))
        return asymmetry(float(u @ of_v), float(v @ of_u), size, most, most / UNDECIDABLE)

    if not ((apart <= UNDECIDABLE * floor).all() and as_one(floor) and symmetry(floor).ok):
        # The rounding inside the functions, which takes calls to see: most hold without it.
        floor = floor + noise_floor(pair, v, point, draw, numerical)
    if (apart > UNDECIDABLE * floor).any():  # rounding that no small move of the inputs shows
        wider = wider_difference(pair, v, point)
        if wider is None:
            floor += unsteadiness(pair, v, point, draw)
        else:
            floor += np.abs(wider - (claimed - numerical))
    if (apart > UNDECIDABLE * floor).any():
        lost = both.lost(v, point, numerical)
        differences = partial(both.slopes, v, point, METHODS[1]) if method == METHODS[0] else None
        saturated = is_lost(pair, claimed, numerical, (v, point), u, draw, differences)
        floor = np.where(saturated & (apart <= UNDECIDABLE * (floor + lost)), floor + lost, floor)
    allowed = UNDECIDABLE * floor
    wrong = [name for name, part in parts.items() if not (apart[part] <= allowed[part]).all()]
    said = f"double_backward is not the gradient of backward with respect to {', '.join(wrong)}" if wrong else None
    if said is None and not as_one(floor):
        said = "double_backward of a gradient that is None is not that of one that is zero"
    error, worst = relative_error(claimed, numerical)
    found = InputReport(
        "double_backward",
        method,
        said is None,
        error,
        (),
        float(claimed[worst]),
        float(numerical[worst]),
        float(floor[worst]),
        size=claimed.size,
        checked=claimed.size,
        wrong=int((~(apart <= allowed)).sum()),
        diagnosis=said,
    )
    return found, symmetry(floor)


@dataclass(frozen=True)
class _Both:
    """The forward and the backward of an op as one function of its arrays, whose results are a vector."""

    op: Any
    functions: Any
    inputs: Nest

    @cached_property
    def arrays(self) -> list[Array]:
        """Those that are differentiated by."""
        return [np.asarray(x) for x in self.inputs.arrays.values()]

    @cached_property
    def output(self) -> Array:
        """That of the op."""
        return self._here[0]

    def moved(self, v: Array, point: list[Array], far: Any) -> Array:
        """Output and gradients where the arrays have moved so far along the tangents v."""
        d_output, *arrays = point
        there = [x + far * along for x, along in zip(arrays, self._split(v), strict=True)]
        output, cache = self._call(there)
        return self._joined(output, self.op.backward(d_output, cache))

    def along(self, v: Array, point: list[Array]) -> Subject:
        """The same, as a function of how far."""
        here = self.moved(v, point, 0.0)
        weights = np.random.default_rng(0).standard_normal((1, here.size))
        return Subject(lambda far: self.moved(v, point, far[0]), (np.zeros(1),), 0, here, weights)

    def slopes(self, v: Array, point: list[Array], method: str) -> tuple[Array, Array]:
        """How output and gradients move along v, and the method's own errors."""
        if method == METHODS[0]:
            step = COMPLEX_STEP
            if point[0].dtype.itemsize < 8:  # where a small slope times a step so short would be lost
                largest = [np.abs(x).max(initial=0) for x in point[1:]]
                step = COMPLEX_STEP_IN_SINGLE * float(min([1.0, *(size for size in largest if size)]))
            slopes = self.moved(v, point, 1j * step).imag / step
            return slopes, np.zeros(slopes.shape)
        columns = (
            [(self.moved(v, point, h) - self.moved(v, point, -h)) / (2 * h) for h in (scale, scale / 2, scale / 4)]
            for scale in SCALES[:4]
        )
        slopes, errors = map(np.array, zip(*map(extrapolated, columns), strict=True))
        best = np.where(np.isnan(errors), np.inf, errors).argmin(axis=0), np.arange(errors.shape[1])
        return slopes[best], errors[best]

    def lost(self, v: Array, point: list[Array], slopes: Array) -> Array:
        """What output and gradients lose of their slopes where an array has saturated them."""
        d_output, *arrays = point
        here, lost = self.moved(v, point, 0.0), np.zeros(slopes.shape)
        subject = Subject(lambda *there: self.moved(v, [d_output, *there], 0.0), tuple(arrays), 0, here, here[None])
        subject = replace(subject, unit=float(np.finfo(d_output.dtype).eps))
        for k, (x, along) in enumerate(zip(arrays, self._split(v), strict=True)):
            by_it, size = replace(subject, position=k), np.abs(x).max(initial=0) or 1.0
            each = lost_of_each(by_it, size * slopes[None], reach_of(by_it, size * along[None]))
            lost = np.fmax(lost, each[0] / size)
        return lost

    def double_backward(self, v: Array, point: list[Array], names: Iterable[str] | None = None) -> Array:
        """What the op says of the product of its gradients and v, which is None but for the inputs called `names`."""
        d_output, *arrays = point
        given = self.inputs.filled(self._split(v), alone=True)
        kind = self.op.Gradients
        asked = {name: given.get(name) if names is None or name in names else None for name in kind._fields}
        d_d_output, gradients = self.op.double_backward(kind(**asked), d_output, self._call(arrays)[1])
        if np.shape(d_d_output) != self.output.shape:
            raise ValueError(f"its d_d_output has the shape {np.shape(d_d_output)}, not {self.output.shape}")
        return self._joined(d_d_output, gradients)

    def double_backward_of_each(self, v: Array, point: list[Array]) -> Array:
        """The sum of what it says where v is None but for one input."""
        whole: Array = np.sum([self.double_backward(v, point, [name]) for name in self.inputs.trees], axis=0)
        return whole

    @cached_property
    def _here(self) -> tuple[Array, Any]:
        return self._called(self.arrays)

    def _call(self, arrays: list[Array]) -> tuple[Array, Any]:
        """What forward returns for these arrays, asked once of those that are differentiated by."""
        return self._here if all(map(operator.is_, arrays, self.arrays)) else self._called(arrays)

    def _called(self, arrays: list[Array]) -> tuple[Array, Any]:
        found: tuple[Array, Any] = self.functions.call(*self.inputs.filled(arrays).values())
        return found

    def _split(self, v: Array) -> list[Array]:
        parts = apart(v, self.inputs.parts).values()
        return [part.astype(x.dtype) for part, x in zip(parts, self.arrays, strict=True)]

    def _joined(self, of_output: Array, gradients: Any) -> Array:
        of_inputs = self.inputs.gradients(self.functions.named(gradients))
        for name, x, gradient in zip(self.inputs.arrays, self.arrays, of_inputs, strict=True):
            if np.shape(gradient) != x.shape:
                raise ValueError(f"the gradient of {name} has the shape {np.shape(gradient)}, not {x.shape}")
        return np.concatenate([np.ravel(x) for x in (of_output, *of_inputs)])
