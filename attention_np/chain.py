r"""A whole layer as a chain of ops: written forward only, with its other passes from theirs by the chain rule.

.. math::

    \frac{\partial L}{\partial x} = \sum_{k \text{ that reads } x} \left( \frac{\partial y_k}{\partial x} \right)^{\!\top}
    \frac{\partial L}{\partial y_k}, \qquad
    \dot{y}_k = \sum_{x \text{ read by } k} \frac{\partial y_k}{\partial x} \dot{x}

A layer is a function of variables that applies ops to them. :func:`forward` runs it once, and keeps the steps in their
order; :func:`backward` goes through them from the last to the first, :func:`jvp` from the first to the last. The
derivation is ``derivations/chain.md`` of the package.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._chain import arithmetic
from attention_np._chain.recording import Step, Tape, Variable, combined, mapped, name_of, tape_of
from attention_np._lib.arguments import as_array, as_floating, as_vector, check_cache
from attention_np._lib.arrays import Array, as_result, computed_in, quiet

__all__ = ["Cache", "Variable", "apply", "backward", "concatenate", "double_backward", "forward", "jvp", "where"]

Layer = Callable[..., Variable | tuple[Variable, ...]]
Like = tuple[tuple[int, ...], np.dtype[Any]]


class Cache(NamedTuple):
    """What :func:`forward` leaves for the other passes and the reader: ``print(cache)`` lists the steps."""

    inputs: dict[str, Array]
    steps: tuple[Step, ...]
    made: tuple[Like, ...]  # shape and dtype of each variable: of the inputs first, then of what the steps made
    outputs: tuple[int, ...]  # the variables that the layer returned
    is_tuple: bool  # whether it returned a tuple

    def __str__(self) -> str:
        names = [*self.inputs, *(f"step {step.number}" for step in self.steps for _ in step.made)]

        def named(number: int) -> str:
            return f"{names[number]} {self.made[number][0]}"

        rows = []
        for step in self.steps:
            places: list[int] = []
            mapped(lambda place, _: places.append(place.number), list(step.arguments.values()))
            made = ", ".join(str(self.made[number][0]) for number in step.made)
            rows.append(f"{step.number:>4}  {name_of(step.op):<16}  {', '.join(map(named, places))} -> {made}")
        return "\n".join([*rows, f"      output            {', '.join(map(named, self.outputs))}"])


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
       1  multiply          scores (1, 2) -> (1, 2)
       2  softmax           step 1 (1, 2) -> (1, 2)
       3  matmul            step 2 (1, 2), values (2, 2) -> (1, 2)
          output            step 3 (1, 2)
    >>> print(chain.backward(np.array([[1.0, 0.0]]), cache)["scores"].round(4))
    [[ 0.21 -0.21]]
    """
    wanted = ("output",) if outputs is None else tuple(outputs)
    tape = tape_of([*arrays, *options.values()]) or Tape()
    made = tape.record(op, arrays, options, wanted)
    if len(tape.values) == len(made):  # all are constants
        made = tuple(x.value for x in made)
    return made[0] if outputs is None else made


def concatenate(parts: Sequence[Any], axis: int = -1) -> Variable:
    """`parts`, variables and arrays, one behind the other along `axis`."""
    return combined(arithmetic.CONCATENATE, *parts, axis=axis)


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
    made = tuple((x.shape, x.dtype) for x in tape.values)
    numbers = tuple(x.number for x in of_layer)
    cache = Cache(arrays, tuple(tape.steps), made, numbers, isinstance(result, tuple))
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
    d_made = _cotangents(d_output, cache)
    # forward was y = op(x), from the first step to the last
    with quiet():
        for step in reversed(cache.steps):
            if not d_made.keys().isdisjoint(step.made):
                _add(d_made, step.gradients(d_made))  # (chain.5)
    return _of_inputs(d_made, cache)


def jvp(cache: Cache, **tangents: npt.ArrayLike | None) -> Any:
    """Forward mode: how the output moves when the inputs move along a tangent.

    Parameters
    ----------
    cache : Cache
        From :func:`forward`.
    **tangents : array_like of float, optional
        Under the name of each input its tangent, of its shape; one that is left out is zero.

    Returns
    -------
    ndarray or tuple of ndarray
        As :func:`forward` returns the output; in a tuple, None where nothing that it depends on moves.
    """
    check_cache(cache, Cache, "chain")
    return _of_outputs(_pushed(tangents, cache), cache)


def double_backward(
    d_gradients: Mapping[str, Any], d_output: Any, cache: Cache
) -> tuple[Any, dict[str, Array | None]]:
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
    tangents = _pushed(d_gradients, cache)
    d_made, moved = _cotangents(d_output, cache), {}
    with quiet():
        for step in reversed(cache.steps):
            if d_made.keys().isdisjoint(step.made):
                continue
            # how d_x = J(x)^T d_y moves: J moves with x, and d_y moves
            if not moved.keys().isdisjoint(step.made):
                _add(moved, step.gradients(moved))  # (chain.9)
            _add(moved, step.gradients_along(tangents, d_made))  # (chain.9)
            _add(d_made, step.gradients(d_made))
    reached = {n: np.zeros(*cache.made[n]) for n in range(len(cache.inputs)) if n in d_made and n not in moved}
    return _of_outputs(tangents, cache), _of_inputs(moved | reached, cache)


def as_op(layer: Layer, names: Sequence[str]) -> Any:
    """A layer with inputs of these `names` as an object with the functions of an op, for checkers of gradients."""
    return _LayerOp(layer, tuple(names))


class _LayerOp:
    """What :func:`as_op` returns; a tuple of outputs is one long row."""

    def __init__(self, layer: Layer, names: tuple[str, ...]) -> None:
        self.layer, self.name = layer, getattr(layer, "__name__", "layer")
        self.Gradients: Any = namedtuple("Gradients", names)

    def forward(self, **inputs: Any) -> tuple[Array, Cache]:
        output, cache = forward(self.layer, inputs)
        return self._joined(output, cache), cache

    def backward(self, d_output: Any, cache: Cache) -> Any:
        return self.Gradients(**backward(self._apart(d_output, cache), cache))

    def jvp(self, cache: Cache, **tangents: Any) -> Array:
        return self._joined(jvp(cache, **tangents), cache)

    def double_backward(self, d_gradients: Any, d_output: Any, cache: Cache) -> tuple[Array, Any]:
        moved, gradients = double_backward(d_gradients._asdict(), self._apart(d_output, cache), cache)
        return self._joined(moved, cache), self.Gradients(**gradients)

    def _joined(self, outputs: Any, cache: Cache) -> Array:
        if not cache.is_tuple:
            return np.asarray(outputs)
        parts = [np.zeros(*cache.made[n]) if x is None else x for n, x in zip(cache.outputs, outputs, strict=True)]
        return np.concatenate([x.ravel() for x in parts])

    def _apart(self, d_output: Array, cache: Cache) -> Any:
        if not cache.is_tuple:
            return d_output
        shapes = [cache.made[n][0] for n in cache.outputs]
        parts = np.split(d_output, np.cumsum([prod(shape) for shape in shapes])[:-1])
        return tuple(x.reshape(shape) for x, shape in zip(parts, shapes, strict=True))


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
            shape, dtype = cache.made[number]
            _add(d_made, [(number, as_vector(name, d, shape, computed_in(dtype)))])
    return d_made


def _pushed(tangents: Mapping[str, Any], cache: Cache) -> dict[int, Array]:
    """The tangent of each variable that moves along `tangents` of the inputs."""
    numbers = {name: number for number, name in enumerate(cache.inputs)}
    moved: dict[int, Array] = {}
    for name, tangent in tangents.items():
        if name not in numbers:
            raise TypeError(f"the chain has no input {name!r}: it has {', '.join(numbers)}")
        if tangent is not None:
            shape, dtype = cache.made[numbers[name]]
            moved[numbers[name]] = as_vector(f"the tangent of {name}", tangent, shape, computed_in(dtype))
    with quiet():
        for step in cache.steps:
            moved |= step.tangents(moved)  # (chain.7)
    return moved


def _of_outputs(moved: dict[int, Array], cache: Cache) -> Any:
    """The tangents of what the layer returned."""
    tangents = [as_result(moved[n], cache.made[n][1]) if n in moved else None for n in cache.outputs]
    if cache.is_tuple:
        return tuple(None if x is None else x.copy() for x in tangents)
    return np.zeros(*cache.made[cache.outputs[0]]) if tangents[0] is None else tangents[0].copy()


def _of_inputs(d_made: dict[int, Array], cache: Cache) -> dict[str, Array | None]:
    """The gradients of the inputs, each in memory of its own."""
    gradients = enumerate(cache.inputs.items())
    return {name: as_result(d_made[n], x.dtype).copy() if n in d_made else None for n, (name, x) in gradients}
