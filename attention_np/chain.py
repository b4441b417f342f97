r"""A whole layer as a chain of ops: written forward only, with its other passes from theirs by the chain rule.

.. math::

    \frac{\partial L}{\partial x} = \sum_{k \text{ reads } x}
    \left( \frac{\partial y_k}{\partial x} \right)^{\!\top} \frac{\partial L}{\partial y_k}, \qquad
    \dot{y}_k = \sum_{x \text{ read by } k} \frac{\partial y_k}{\partial x} \dot{x}

A layer is a function of variables that applies ops to them. :func:`forward` runs it once, and keeps the steps in their
order; :func:`backward` goes through them from the last to the first, :func:`jvp` from the first to the last. The
derivation is ``derivations/chain.md`` of the package.
"""

from __future__ import annotations

from collections import deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._chain import arithmetic
from attention_np._chain.recording import Step, Tape, Variable, combined, name_of, tape_of
from attention_np._lib.arguments import as_array, as_floating, as_integer, as_vector, check_cache
from attention_np._lib.arrays import Array, as_result, computed_in, quiet

__all__ = ["Cache", "Variable", "apply", "backward", "concatenate", "double_backward", "forward", "jvp", "where"]

Gradients = dict  # of each input, by its name
Layer = Callable[..., Variable | tuple[Variable, ...]]


class Cache(NamedTuple):
    """What :func:`forward` leaves for the other passes and the reader: ``print(cache)`` lists the steps."""

    names: tuple[str, ...]  # of the inputs
    values: tuple[Array, ...]  # of all variables: of the inputs first, then of what the steps made
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]  # the variables that the layer returned
    is_tuple: bool  # whether it returned a tuple

    def __str__(self) -> str:
        names = [*self.names, *(f"step {step.number}" for step in self.steps for _ in step.made)]
        rows = [
            ("", "inputs", ", ".join(f"{name} {x.shape}" for name, x in zip(self.names, self.values, strict=False)))
        ]
        for step in self.steps:
            read = ", ".join(dict.fromkeys(names[number] for number in step.read))
            made = ", ".join(str(self.values[number].shape) for number in step.made)
            rows.append((str(step.number), name_of(step.op), f"{read} -> {made}"))
        rows.append(
            ("", "output", ", ".join(f"{names[number]} {self.values[number].shape}" for number in self.outputs))
        )
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{number:>{widths[0]}}  {name:<{widths[1]}}  {text}" for number, name, text in rows)


def apply(op: Any, *arrays: Any, outputs: Sequence[str] | None = None, **options: Any) -> Any:
    """An op as a step of a layer.

    Parameters
    ----------
    op : module or object
        Any that has ``forward``, ``backward``, ``jvp``, ``double_backward`` and ``Gradients``, as the ops do.
    *arrays : Variable, array_like, or what holds some
        What ``op.forward`` takes, by position or by name. A variable may stand wherever an array may, and in a list, a
        `Parameters` or a bias object.
    outputs : sequence of str, optional
        Names of what is wanted: "output", and what ``op.backward`` takes a gradient of, such as "final_state".
    **options
        As ``op.forward`` takes them.

    Returns
    -------
    Variable or tuple of Variable
        The op's output; a tuple in the order of `outputs`, where they are given. Of constants alone, an array.

    Raises
    ------
    TypeError, ValueError
        What the op raises, behind the number of the step and the name of the op.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import chain, softmax
    >>> def layer(scores, values):
    ...     return chain.apply(softmax, 2 * scores) @ values
    >>> output, cache = chain.forward(layer, {"scores": np.array([[0.0, 1.0]]), "values": np.eye(2)})
    >>> print(cache)
       inputs    scores (1, 2), values (2, 2)
    1  multiply  scores -> (1, 2)
    2  softmax   step 1 -> (1, 2)
    3  matmul    step 2, values -> (1, 2)
       output    step 3 (1, 2)
    >>> print(chain.backward(np.array([[1.0, 0.0]]), cache)["scores"].round(4))
    [[ 0.21 -0.21]]
    """
    if not hasattr(op, "forward"):
        raise TypeError(f"op must have forward, backward and jvp, as attention_np.rms_norm, unlike {op!r}")
    names = ("output",) if outputs is None else outputs
    tape = tape_of([*arrays, *options.values()]) or Tape()
    made = tape.record(op, arrays, options, names)
    of_constants = len(tape.values) == len(made)
    results: tuple[Any, ...] = tuple(x.value for x in made) if of_constants else made
    return results[0] if outputs is None else results


def concatenate(parts: Sequence[Any], axis: int = -1) -> Variable:
    """`parts`, variables and arrays, one behind the other along `axis`; of arrays alone, an array."""
    if not len(parts):
        raise ValueError("parts must be of at least one array")
    return combined(arithmetic.CONCATENATE, *parts, axis=as_integer("axis", axis))


def where(mask: npt.ArrayLike, x: Any, y: Any) -> Variable:
    """`x` where the boolean `mask` is True, else `y`; no gradient flows to the entries of the other."""
    mask = as_array("mask", mask)
    if mask.dtype.kind != "b":
        raise TypeError(f"mask must be boolean, not {mask.dtype} (mask.shape={mask.shape})")
    return combined(arithmetic.WHERE, x, y, mask=mask)


def forward(layer: Layer, inputs: Mapping[str, npt.ArrayLike]) -> tuple[Any, Cache]:
    """Run a layer, and keep its steps.

    Parameters
    ----------
    layer : callable
        ``layer(**variables)`` returns a `Variable`, or a tuple of them. It applies ops by :func:`apply`; variables know
        ``+ - * / @``, ``reshape``, ``swapaxes``, ``sum`` and ``[...]``. Numbers and arrays are constants.
    inputs : mapping of str to array_like of float
        What to differentiate by, under the names of the layer's arguments.

    Returns
    -------
    output : ndarray or tuple of ndarray
    cache : Cache
        Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If `inputs` is no mapping of floating-point arrays, or the layer returns anything else than variables.
    """
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs must be a mapping of names to arrays, not {type(inputs).__name__}")
    arrays = {name: as_floating(name, x) for name, x in inputs.items()}
    tape = Tape()
    result = layer(**{name: tape.variable(x) for name, x in arrays.items()})
    of_layer = result if isinstance(result, tuple) else (result,)
    for x in of_layer:
        if not isinstance(x, Variable) or x.tape is not tape:
            raise TypeError(f"layer must return a Variable of its own, or a tuple of them, not {type(x).__name__}")
    outputs = tuple(x.value.copy() for x in of_layer)  # as one may be an input, or a view of one
    numbers = tuple(x.number for x in of_layer)
    cache = Cache(tuple(arrays), tuple(tape.values), tuple(tape.steps), numbers, isinstance(result, tuple))
    return outputs if cache.is_tuple else outputs[0], cache


def backward(d_output: Any, cache: Cache) -> dict[str, Array | None]:
    """The gradient of a loss with respect to each input.

    Parameters
    ----------
    d_output : array_like of float, or tuple of them
        The gradient of the loss with respect to what :func:`forward` returned first; in a tuple, None is zero. What is
        exactly zero contributes nothing, whatever the layer's arrays hold.
    cache : Cache
        From :func:`forward`.

    Returns
    -------
    dict of str to ndarray
        Of each input, its shape and dtype; None where the output does not depend on it.
    """
    check_cache(cache, Cache, "chain")
    (d_inputs,) = deque(backward_steps(d_output, cache), maxlen=1)  # the last alone: the others need not be kept
    return _of_inputs(d_inputs, cache)


def jvp(cache: Cache, /, **tangents: npt.ArrayLike | None) -> Any:
    """Forward mode: the tangent of the output, from those of the inputs.

    Parameters
    ----------
    cache : Cache
        From :func:`forward`.
    **tangents : array_like of float, optional
        Under the name of each input its tangent, of its shape; one that is left out is zero.

    Returns
    -------
    ndarray or tuple of ndarray
        As :func:`forward` returns the output; in a tuple, None where all that it depends on is a constant.
    """
    check_cache(cache, Cache, "chain")
    return _of_outputs(_tangents(tangents, cache), cache)


def double_backward(d_gradients: Mapping[str, Any], d_output: Any, cache: Cache) -> tuple[Any, dict[str, Array | None]]:
    """The gradients of ``<d_gradients, backward(d_output, cache)>``, by `d_output` and by every input.

    Parameters
    ----------
    d_gradients : mapping of str to array_like of float
        The gradient of a loss with respect to each of the gradients that :func:`backward` returned; None, or a name
        that is left out, is zero.
    d_output, cache
        As for :func:`backward`.

    Returns
    -------
    d_d_output : ndarray or tuple of ndarray
        That with respect to `d_output`: :func:`jvp` of `d_gradients`.
    gradients : dict of str to ndarray
        That with respect to each input, which is the Hessian of ``<d_output, output>`` times `d_gradients`; None where
        the output does not depend on it.
    """
    check_cache(cache, Cache, "chain")
    if not isinstance(d_gradients, Mapping):
        raise TypeError(f"d_gradients must be a mapping of names to arrays, not {type(d_gradients).__name__}")
    tangents = _tangents(d_gradients, cache)
    d_made, d_made_tangents = _cotangents(d_output, cache), dict[int, Array]()
    with quiet():
        for step in reversed(cache.steps):
            # backward was d_x = J^T d_y: both have tangents
            d_step = _taken(d_made, step)
            _add(d_made_tangents, step.gradients(_taken(d_made_tangents, step)))  # (chain.9)
            _add(d_made_tangents, step.gradient_tangents(tangents, d_step))  # (chain.9)
            _add(d_made, step.gradients(d_step))
    for number, d_input in d_made.items():  # which an input may reach by steps that are linear
        d_made_tangents.setdefault(number, np.zeros_like(d_input))
    return _of_outputs(tangents, cache), _of_inputs(d_made_tangents, cache)


def as_op(layer: Layer, names: Sequence[str]) -> Any:
    """A layer with inputs of these `names` as an object with the functions of an op, for checkers of gradients."""
    if not callable(layer):
        raise TypeError(
            f"layer must be a function of variables, as check_op(chain, inputs, layer=layer), not {layer!r}"
        )
    return _LayerOp(layer, tuple(names))


class _LayerOp:
    """What :func:`as_op` returns; a tuple of outputs is one long row."""

    def __init__(self, layer: Layer, names: tuple[str, ...]) -> None:
        self.layer, self.name = layer, getattr(layer, "__name__", "layer")
        unfit = [name for name in names if not name.isidentifier() or name.startswith("_")]
        if unfit:
            raise ValueError(f"the inputs of a layer that is checked must have names of arguments, not {unfit[0]!r}")
        self.Gradients: Any = namedtuple("Gradients", names)  # type: ignore[misc]

    def forward(self, /, **inputs: Any) -> tuple[Array, Cache]:
        output, cache = forward(self.layer, inputs)
        return self._joined(output, cache), cache

    def backward(self, d_output: Any, cache: Cache) -> Any:
        return self._gradients(backward(self._apart(d_output, cache), cache), cache)

    def jvp(self, cache: Cache, /, **tangents: Any) -> Array:
        return self._joined(jvp(cache, **tangents), cache)

    def double_backward(self, d_gradients: Any, d_output: Any, cache: Cache) -> tuple[Array, Any]:
        d_d_output, gradients = double_backward(d_gradients._asdict(), self._apart(d_output, cache), cache)
        return self._joined(d_d_output, cache), self._gradients(gradients, cache)

    def _gradients(self, gradients: dict[str, Array | None], cache: Cache) -> Any:
        """As a NamedTuple, with zeros of what the output does not depend on."""
        pairs = zip(gradients.values(), cache.values, strict=False)
        return self.Gradients._make(np.zeros_like(x) if d_x is None else d_x for d_x, x in pairs)

    def _joined(self, outputs: Any, cache: Cache) -> Array:
        if not cache.is_tuple:
            return np.asarray(outputs)
        values = [cache.values[number] for number in cache.outputs]
        parts = [np.zeros_like(value) if x is None else x for value, x in zip(values, outputs, strict=True)]
        return np.concatenate([x.ravel() for x in parts])

    def _apart(self, d_output: Array, cache: Cache) -> Any:
        if not cache.is_tuple:
            return d_output
        shapes = [cache.values[number].shape for number in cache.outputs]
        parts = np.split(d_output, np.cumsum([prod(shape) for shape in shapes])[:-1])
        return tuple(x.reshape(shape) for x, shape in zip(parts, shapes, strict=True))


def backward_steps(d_output: Any, cache: Cache) -> Iterator[dict[int, Array]]:
    """The gradients of what each step made, from the last step to the first; and at the end those of the inputs."""
    d_made = _cotangents(d_output, cache)
    # forward was y = op(x), from the first step to the last
    for step in reversed(cache.steps):
        d_step = _taken(d_made, step)
        yield d_step
        with quiet():
            _add(d_made, step.gradients(d_step))  # (chain.5)
    yield d_made


def _taken(d_made: dict[int, Array], step: Step) -> dict[int, Array]:
    """The gradients of what a step made, which nothing else needs."""
    return {number: d_made.pop(number) for number in step.made if number in d_made}


def _add(sums: dict[int, Array], terms: Iterable[tuple[int, Array]]) -> None:
    """A variable that several steps read has the sum of what comes from each."""
    for number, term in terms:
        sums[number] = sums[number] + term if number in sums else term  # (chain.5)


def _cotangents(d_output: Any, cache: Cache) -> dict[int, Array]:
    """The gradient of each variable that the layer returned."""
    if cache.is_tuple and (not isinstance(d_output, tuple | list) or len(d_output) != len(cache.outputs)):
        count = f"not {len(d_output)}" if isinstance(d_output, tuple | list) else f"not {type(d_output).__name__}"
        raise ValueError(f"d_output must be a tuple of {len(cache.outputs)}, as the layer returned so many, {count}")
    d_made: dict[int, Array] = {}
    for k, (number, d) in enumerate(zip(cache.outputs, d_output if cache.is_tuple else [d_output], strict=True)):
        if d is not None:
            name = f"d_output[{k}]" if cache.is_tuple else "d_output"
            value = cache.values[number]
            _add(d_made, [(number, as_vector(name, d, value.shape, computed_in(value.dtype)))])
    return d_made


def _tangents(of_inputs: Mapping[str, Any], cache: Cache) -> dict[int, Array]:
    """The tangent of each variable that depends on an input that has one."""
    numbers = {name: number for number, name in enumerate(cache.names)}
    tangents: dict[int, Array] = {}
    for name, tangent in of_inputs.items():
        if name not in numbers:
            raise TypeError(f"the chain has no input {name!r}: it has {', '.join(numbers)}")
        if tangent is not None:
            value = cache.values[numbers[name]]
            vector = as_vector(f"the tangent of {name}", tangent, value.shape, computed_in(value.dtype))
            tangents[numbers[name]] = vector
    with quiet():
        for step in cache.steps:
            tangents |= step.tangents(tangents)  # (chain.8)
    return tangents


def _of_outputs(tangents: dict[int, Array], cache: Cache) -> Any:
    """The tangents of what the layer returned."""
    values = [(number, cache.values[number]) for number in cache.outputs]
    outputs = [np.array(as_result(tangents[n], x.dtype)) if n in tangents else None for n, x in values]
    if cache.is_tuple:
        return tuple(outputs)
    return np.zeros_like(values[0][1]) if outputs[0] is None else outputs[0]


def _of_inputs(d_made: dict[int, Array], cache: Cache) -> dict[str, Array | None]:
    """The gradients of the inputs, each in memory of its own."""
    inputs = enumerate(zip(cache.names, cache.values, strict=False))
    return {name: np.array(as_result(d_made[n], x.dtype)) if n in d_made else None for n, (name, x) in inputs}
