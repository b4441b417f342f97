"""An op's double backward against numerical derivatives of its forward and backward, along random tangents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import ADJOINT_ULPS, UNDECIDABLE, relative_error
from attention_np.gradcheck.measuring.functions import as_generator
from attention_np.gradcheck.measuring.noise import Pair, noise_floor
from attention_np.gradcheck.measuring.numerical import METHODS, analytic_or_not, measure
from attention_np.gradcheck.measuring.running import Running
from attention_np.gradcheck.measuring.subject import Subject
from attention_np.gradcheck.nesting import Nest
from attention_np.gradcheck.reporting import InputReport

__all__ = ["check_double_backward"]

Array = npt.NDArray[Any]


def check_double_backward(op: Any, functions: Any, inputs: Nest, rng: int) -> tuple[InputReport, InputReport]:
    """What was found for `double_backward`; and whether the Hessian that it gives is symmetric.

    A Hessian is symmetric, so that ``double_backward(v, d_output)`` is how output and gradients move along the tangents
    v: one derivative, of all their entries at once.
    """
    draw, both = as_generator(rng), _Both(op, functions, inputs)
    d_output = draw.standard_normal(both.output.shape).astype(both.output.dtype)
    u, v = draw.standard_normal((2, sum(x.size for x in both.arrays)))
    point = [d_output, *both.arrays]
    method = METHODS[0] if analytic_or_not(both.along(v, point)) is None else METHODS[1]

    def measured(v: Array, point: list[Array]) -> Array:
        slopes: Array = measure(both.along(v, point), np.arange(1), method, Running(None)).values[0]
        return slopes

    pair = Pair(both.double_backward, measured)
    claimed, numerical = pair.at(v, point)
    eps = np.finfo(d_output.dtype).eps
    allowed = UNDECIDABLE * noise_floor(pair, v, point, draw)
    wrong, apart, start = [], np.abs(claimed - numerical), 0
    for name, x in {"d_output": d_output, **inputs.arrays}.items():
        part = slice(start, start := start + x.size)
        allowed[part] += ADJOINT_ULPS * eps * np.abs(numerical[part]).max(initial=0)
        if not (apart[part] <= allowed[part]).all():
            wrong.append(name)
    said = f"double_backward is not the gradient of backward with respect to {', '.join(wrong)}" if wrong else None
    error, worst = relative_error(claimed, numerical)
    found = InputReport(
        "double_backward",
        method,
        not wrong,
        error,
        (),
        float(claimed[worst]),
        float(numerical[worst]),
        float(allowed[worst]) / UNDECIDABLE,
        size=claimed.size,
        checked=claimed.size,
        wrong=int((~(apart <= allowed)).sum()),
        diagnosis=said,
    )

    of_v, of_u = (x[d_output.size :] for x in (claimed, both.double_backward(u, point)))
    one, other, size = float(u @ of_v), float(v @ of_u), float(np.linalg.norm(u) * np.linalg.norm(of_v))
    apart, most = abs(one - other), float(np.abs(u) @ allowed[d_output.size :])
    said = None if apart <= most else "the Hessian is not symmetric: <u, H v> and <v, H u> differ"
    error = apart / size if size else apart
    symmetry = InputReport(
        "symmetry", "adjoint", said is None, error, (), one, other, most / UNDECIDABLE, diagnosis=said
    )
    return found, symmetry


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
        return self._call(self.arrays)[0]

    def along(self, v: Array, point: list[Array]) -> Subject:
        """Output and gradients as a function of how far the arrays have moved along the tangents v."""
        d_output, *arrays = point

        def moved(far: Array) -> Array:
            there = [x + far[0] * along for x, along in zip(arrays, self._split(v), strict=True)]
            output, cache = self._call(there)
            return self._joined(output, self.op.backward(d_output, cache))

        size = v.size + d_output.size
        return Subject(moved, (np.zeros(1),), 0, np.zeros(size), np.eye(size))

    def double_backward(self, v: Array, point: list[Array]) -> Array:
        """What the op says of the product of its gradients and v: the gradients of that."""
        d_output, *arrays = point
        given = self.inputs.filled(self._split(v), alone=True)
        kind = self.op.Gradients
        d_gradients = kind(**{name: given.get(name) for name in kind._fields})
        return self._joined(*self.op.double_backward(d_gradients, d_output, self._call(arrays)[1]))

    def _call(self, arrays: list[Array]) -> tuple[Array, Any]:
        found: tuple[Array, Any] = self.functions.call(*self.inputs.filled(arrays).values())
        return found

    def _split(self, v: Array) -> list[Array]:
        ends = np.cumsum([x.size for x in self.arrays])[:-1]
        return [part.reshape(x.shape).astype(x.dtype) for part, x in zip(np.split(v, ends), self.arrays, strict=True)]

    def _joined(self, of_output: Array, gradients: Any) -> Array:
        of_inputs = self.inputs.gradients(self.functions.named(gradients))
        return np.concatenate([np.ravel(x) for x in (of_output, *of_inputs)])
