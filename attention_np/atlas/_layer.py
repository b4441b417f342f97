"""A layer that was read from a module: NumPy passes under the module's own names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from attention_np import chain
from attention_np.atlas._mirror import About, Mirror, UnknownLayer, as_array
from attention_np.atlas._parts import of_identity
from attention_np.atlas._source import CACHES

NO_STATES = (
    "mask", "pos", "bias", "cos", "sin", "freq", "reference", "offset", "rot", "rel", "alibi", "scale", "seqlens",
)  # fmt: skip
XLNET = ("r", "seg_mat", "target_mapping")  # positions, segments and places
# Of what a module hands on to its attention function, what changes no number of the full pass
HANDED_ON = {"position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states", "return_dict"}


class Cache(NamedTuple):
    """What `Layer.forward` leaves for `Layer.backward`, and the reader: ``print(cache)`` lists the steps."""

    chain: chain.Cache

    def __str__(self) -> str:
        return str(self.chain)


class Arguments:
    """The arguments of a call, as attributes; None where there is no such argument."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._given, self._read = dict(values), set[str]()

    def __getattr__(self, name: str) -> Any:
        self._read.add(name)
        return self._given.get(name)


class Layer:
    """What an attention module computes, in NumPy: see `attention_np.atlas.read`."""

    def __init__(self, about: About, inputs: dict[str, Any], signature: inspect.Signature, text: str) -> None:
        self.inputs, self._about, self._signature, self._text = inputs, about, signature, text

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Cache]:
        """The output of the module for its own arguments, arrays in place of tensors."""
        try:
            bound = self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._about.kind}: {error}") from None
        bound.apply_defaults()
        arguments: dict[str, Any] = {}
        further: set[str] = set()  # what the signature does not name, and the module hands on
        for name, value in list(bound.arguments.items())[1:]:
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= {key: plain(x) for key, x in value.items()}
                further = {key for key, x in value.items() if x is not None} - HANDED_ON
            elif kind is not inspect.Parameter.VAR_POSITIONAL:
                arguments[name] = plain(value)
        if any(arguments.get(name) is not None for name in CACHES):
            raise UnknownLayer("the layer is the full pass: it takes no cache of earlier tokens")
        states = {name: x for name, x in arguments.items() if is_state(name, x)}
        if states.keys() & self.inputs.keys():
            raise UnknownLayer(f"{self._about} has a parameter and an argument of one name")
        rest = {name: x for name, x in arguments.items() if name not in states}

        def layer(**variables: Any) -> Any:
            for x in variables.values():  # constants of a reading are in float64, which the layer need not be
                x.tape.dtype = np.result_type(*x.tape.values)
            given = Arguments({**rest, **{name: variables.pop(name) for name in states}})
            output = self._about.compute(Mirror(self._about, variables), given)
            if further - given._read:
                raise UnknownLayer(f"{self._about} is not known with {', '.join(sorted(further - given._read))}")
            if missed := list(overlooked(self._about)):
                raise UnknownLayer(f"{self._about} has parts that its reading does not look at: {', '.join(missed)}")
            return output

        output, cache = chain.forward(layer, {**states, **self.inputs})
        return output, Cache(cache)

    def backward(self, d_output: Any, cache: Cache) -> dict[str, Any]:
        """The gradients of a loss, by the module's names: of each array of states, and of each parameter."""
        return chain.backward(plain(d_output), cache.chain)

    def __str__(self) -> str:
        return self._text


def overlooked(about: About) -> Iterator[str]:
    """Parts of torch without parameters, such as activations, that a source reads and no reading has asked for.

    A part with parameters is left to `check`, which compares their gradients.
    """
    for key, part in about.parts.items():
        if part is None or part.compute is of_identity:
            continue
        if key not in about.read:
            if part.source is None and not part.parameters and not part.parts:
                yield part.path
        elif part.read:
            yield from overlooked(part)


def is_state(name: str, value: Any) -> bool:
    """Whether a gradient of an argument is given: of tokens, not of masks, positions and biases."""
    other = name in XLNET or any(x in name for x in NO_STATES)
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and not other


def plain(value: Any) -> Any:
    """Tensors as arrays, wherever they stand in tuples, lists and dicts."""
    if isinstance(value, tuple | list):
        return (
            type(value)(plain(x) for x in value) if not hasattr(value, "_fields") else type(value)(*map(plain, value))
        )
    if isinstance(value, dict):
        return {key: plain(x) for key, x in value.items()}
    return as_array(value) if hasattr(value, "detach") else value


Reading = Callable[[Mirror, Arguments], Any]
