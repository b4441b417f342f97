"""Second derivatives: products of a Hessian with vectors, held against numerical derivatives of the gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import ADJOINT_ULPS, CLEARLY_APART, UNDECIDABLE
from attention_np.gradcheck.checking import check
from attention_np.gradcheck.measuring.functions import Backward, Forward, as_generator, check_mapping
from attention_np.gradcheck.measuring.noise import Pair, noise_floor
from attention_np.gradcheck.measuring.numerical import numerical_gradient
from attention_np.gradcheck.nesting import Nest, flat, takes
from attention_np.gradcheck.reporting import InputReport, Report

__all__ = ["asymmetry", "check_hessian"]

Array = npt.NDArray[Any]

TANGENTS = {  # what a Hessian is multiplied by, which as a backward pass it is given as cotangents
    "the gradient of output.": "the tangent of ",
    "the gradient of the output": "the tangent",
    "cotangent": "tangent",
}
NO_GRADIENT = "the Jacobian of gradient is not symmetric: it is the gradient of nothing, so look at it first"


def check_hessian(
    gradient: Callable[..., Any],
    hessian_vector_product: Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    rng: int | np.random.Generator = 0,
    **options: Any,
) -> Report:
    """Check second derivatives: a Hessian, or its products with vectors, against numerical derivatives of the gradient.

    Parameters
    ----------
    gradient : callable
        ``gradient(*inputs) -> one array per input``; for one input, the array itself will do.
    hessian_vector_product : callable
        ``hessian_vector_product(*tangents, *inputs) -> one array per input``, with a tangent for each input that is
        differentiated by. Or the Hessian itself, ``hessian(*inputs)``: of one input, an array of its shape twice, or
        the matrix of it flattened; of several, a tuple of tuples of those, a row for each input.
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
        for random u and v. What is wrong may be `gradient`, too: its Jacobian is not symmetric then, which it says.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used.

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
    for name, function in (("gradient", gradient), ("hessian_vector_product", hessian_vector_product)):
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")
    check_mapping(inputs)
    nest = Nest.of_arguments(inputs)
    functions = _Functions(gradient, hessian_vector_product, nest)
    found = check(functions.forward, functions.backward, inputs, rng=rng, **options)
    report = Report(tuple(replace(x, diagnosis=x.diagnosis and _of_tangents(x.diagnosis)) for x in found))
    run, pull_back, arrays, *_ = flat(functions.forward, functions.backward, inputs)
    entry = _symmetry(run, pull_back, arrays, as_generator(rng))
    if report.ok and not entry.ok:
        return Report((*report.inputs, replace(entry, diagnosis=NO_GRADIENT)))
    if not report.ok and not _is_symmetric(run, arrays, as_generator(rng)):
        entry = replace(entry, ok=False, diagnosis=NO_GRADIENT)
    return Report((*report.inputs, entry))


def _of_tangents(sentence: str) -> str:
    """A sentence on a backward pass as one on a Hessian, whose cotangents are the tangents that it is multiplied by."""
    for word, other in TANGENTS.items():
        sentence = sentence.replace(word, other)
    return sentence


@dataclass(frozen=True)
class _Functions:
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
        tangents = list(d_output.values())
        if takes(self.product, len(tangents) + len(values)) or not takes(self.product, len(values)):
            product = self.as_product(tangents, values)
            if product is not None:
                return product
        rows = self.product(*values)
        if len(tangents) == 1:
            rows = [[rows]]
        return [
            sum((_as_matrix(block, x, y) @ y.ravel()).reshape(x.shape) for block, y in zip(row, tangents, strict=True))
            for row, x in zip(rows, tangents, strict=True)
        ]

    def as_product(self, tangents: list[Any], values: tuple[Any, ...]) -> Any:
        """What it gives if it takes tangents; None if it is a Hessian that has options: then that is no product."""
        if not takes(self.product, len(values)):
            return self.product(*tangents, *values)
        try:
            product = self.product(*tangents, *values)
            found = self.inputs.by_tree(product)
            fits = all(
                np.shape(found[name]) == np.shape(v) for name, v in zip(self.inputs.moved, tangents, strict=True)
            )
        except Exception:  # what it raises is up to the function
            fits = False
        return product if fits else None


def _as_matrix(block: Any, x: Array, y: Array) -> Array:
    if np.size(block) != x.size * y.size:
        raise ValueError(f"the Hessian is of shape {np.shape(block)} where {x.size} x {y.size} entries are needed")
    return np.reshape(block, (x.size, y.size))


def _symmetry(run: Forward, pull_back: Backward, arrays: Mapping[str, Array], rng: np.random.Generator) -> InputReport:
    """<u, H v> against <v, H u>, for random u and v."""
    output = run(*(x.copy() for x in arrays.values()))
    vectors = rng.standard_normal((2, output.size)).astype(output.dtype)

    def product(u: Array, inputs: list[Array]) -> Array:
        gradients = pull_back(u.copy(), *(x.copy() for x in inputs))
        pairs = zip(gradients, inputs, strict=True)
        return np.concatenate([np.zeros(x.size) if d_x is None else np.ravel(d_x) for d_x, x in pairs])

    def across(first: int) -> Callable[[Array, list[Array]], Array]:
        return lambda vectors, inputs: np.array([vectors[first] @ product(vectors[1 - first], inputs)])

    pair, point = Pair(across(0), across(1)), list(arrays.values())
    (one,), (other,) = pair.at(vectors, point)
    size = float(np.linalg.norm(vectors[0]) * np.linalg.norm(product(vectors[1], point)))
    allowed = UNDECIDABLE * noise_floor(pair, vectors, point, rng)[0] + ADJOINT_ULPS * np.finfo(output.dtype).eps * size
    return asymmetry(float(one), float(other), size, float(allowed))


def asymmetry(one: float, other: float, size: float, allowed: float, floor: float = 0.0) -> InputReport:
    """What is found of a Hessian by <u, H v> and <v, H u>, the one and the other, where ``|u| |H v|`` is the size."""
    apart = abs(one - other)
    holds = apart <= allowed
    said = None if holds else "the Hessian is not symmetric: <u, H v> and <v, H u> differ"
    error = apart / size if size else apart
    return InputReport("symmetry", "adjoint", holds, error, (), one, other, floor, diagnosis=said)


def _is_symmetric(run: Forward, arrays: Mapping[str, Array], rng: np.random.Generator) -> bool:
    """Whether the numerical Jacobian of the gradient is, as far as it can be told clearly."""
    size = sum(x.size for x in arrays.values())
    u, v = rng.standard_normal((2, size))

    def product(vector: Array) -> Array:
        return np.concatenate([x.ravel() for x in numerical_gradient(run, arrays, vector).values()])

    of_v = product(v)
    apart = abs(u @ of_v - v @ product(u))
    return bool(apart <= CLEARLY_APART * np.linalg.norm(u) * np.linalg.norm(of_v))
