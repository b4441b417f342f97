"""What NumPy needs of a module: its parameters, its numbers, and what its parts compute.

`mirror` copies a module once, and refuses what it does not know; a `Mirror` then stands for the module, without torch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_np.atlas._source import Source, is_of_models, source_of, whole_digest

PLAIN = (int, float, str, bool, type(None))


class UnknownLayer(ValueError):
    """A module of which nobody has written down what it computes; the message says what is missing."""


class Mirror:
    """A module, or a part of one, as NumPy sees it: ``m.scaling``, ``m.q_proj(x)``, ``m.weight``.

    Its parameters are those of the values that it is bound to: variables of a chain, or arrays.
    """

    def __init__(self, about: About, values: Mapping[str, Any]) -> None:
        self.__dict__["_about"], self.__dict__["_values"] = about, values

    def __getattr__(self, name: str) -> Any:
        about = self._about
        about.read.add(name)
        if name in about.parameters:
            return self._values[about.parameters[name]]
        if name in about.parts:
            part = about.parts[name]
            return None if part is None else Mirror(part, self._values)
        if name in about.fields:
            return about.fields[name]
        raise UnknownLayer(f"{about} has no {name} that is a number, a parameter or a known module")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._about.compute(self, *args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return getattr(self, str(index))

    def __len__(self) -> int:
        return len(self._about.parts)

    def has(self, name: str) -> bool:
        """Whether the module has such an attribute that is not None."""
        about = self._about
        about.read.add(name)
        if name in about.parts:
            return about.parts[name] is not None
        return name in about.parameters or about.fields.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """As ``getattr(module, name, default)``."""
        about = self._about
        known = name in about.parameters or name in about.parts or name in about.fields
        return getattr(self, name) if known else default

    def function(self, name: str) -> Callable[..., Any]:
        """The function of this name that the source of the module calls."""
        function: Callable[..., Any] = self._about.functions[name]
        return function


class About:
    """What a `Mirror` knows, and where the module stands in the whole."""

    def __init__(self, path: str, kind: str) -> None:
        self.path, self.kind = path, kind
        self.parameters: dict[str, str] = {}  # of this module, and their names in the whole
        self.parts: dict[str, About | None] = {}
        self.fields: dict[str, Any] = {}
        self.functions: dict[str, Callable[..., Any]] = {}
        self.read: set[str] = set()  # the names that a reading has asked for
        self.source: Source | None = None
        self.compute: Callable[..., Any] = _uncallable

    def __str__(self) -> str:
        return f"{self.path or 'the module'}, a {self.kind},"


class Fields:
    """The numbers and words of a configuration, as its attributes; the names that were read stand in `read`."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__["_values"], self.__dict__["read"] = values, set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.read.add(name)
        if name not in self._values:
            raise UnknownLayer(f"the configuration has no {name}")
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """As ``getattr(config, name, default)``."""
        self.read.add(name)
        return self._values.get(name, default)


def _uncallable(m: Mirror, *_: Any, **__: Any) -> Any:
    raise UnknownLayer(f"{m._about} is not known as a function")


def mirror(module: Any, names: Mapping[int, str], tables: Any, path: str = "", called: Any = ()) -> About:
    """What is to be known of a module: `names` are those of the parameters by identity, `tables` what is known.

    `called`: attributes that the whole reads; its source has those that are methods.
    """
    kind = type(module)
    about = About(path, kind.__name__)
    _check_untouched(module, about)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in tables.torch:
        if not kind.forward.__module__.startswith("torch.nn."):
            raise UnknownLayer(f"{about} has a forward in place of torch's")
        about.compute = tables.torch[name]
    else:
        about.source = _source(module, about, called)
        about.compute, about.functions = tables.known(about, module)
    for key, parameter in module._parameters.items():
        if parameter is None:
            about.fields[key] = None
            continue
        _check_parameter(parameter, f"{path}.{key}".lstrip("."))
        about.parameters[key] = names[id(parameter)]
    for key, buffer in module._buffers.items():
        about.fields[key] = None if buffer is None else as_array(buffer)
    for key, part in module._modules.items():
        attributes = (key,) if about.source is None else about.source.attributes
        inner = [x.partition(".")[2] for x in attributes if x.partition(".")[0] == key]
        if part is None or not inner:  # what the source never reads
            about.parts[key] = None
        else:
            about.parts[key] = mirror(part, names, tables, f"{path}.{key}".lstrip("."), inner)
    for key, value in vars(module).items():
        if key == "config":
            about.fields[key] = _configuration(value)
        elif not key.startswith("_") and key not in ("training",):
            plain = _plain(value)
            if plain is not Ellipsis:
                about.fields[key] = plain
    return about


def _source(module: Any, about: About, called: Any) -> Source:
    try:
        return source_of(type(module).forward, type(module), called)
    except (OSError, TypeError, SyntaxError) as error:
        raise UnknownLayer(f"{about} has a forward without a source that can be read") from error


def _check_untouched(module: Any, about: About) -> None:
    """Refuse hooks, patches and parametrizations."""
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        if getattr(module, name, None):
            raise UnknownLayer(f"{about} has hooks, of which nothing says what they compute")
    kind = type(module)
    for name, value in vars(module).items():
        method = inspect.getattr_static(kind, name, None)
        if inspect.isfunction(method) and callable(value):
            raise UnknownLayer(f"{about} has a {name} of its own in place of its class's")
    if getattr(kind.__call__, "__qualname__", "") != "Module._wrapped_call_impl":
        raise UnknownLayer(f"{about} is called by a __call__ that is not torch's")
    if module.training:
        dropping = [x for x, p in vars(module).items() if "drop" in x and type(p) in (int, float) and p]
        if dropping or (kind.__name__.startswith("Dropout") and module.p):
            raise UnknownLayer(f"{about} drops out, as it is in training: call eval() on it")
        lines = inspect.getsource(kind).splitlines() if is_of_models(kind) else []
        if any(
            re.search(r"\b(if|and|or) (not )?self\.training", x) and not re.search("drop|checkpoint", x) for x in lines
        ):
            raise UnknownLayer(f"{about} computes something else, as it is in training: call eval() on it")
        if hasattr(module, "running_mean"):
            raise UnknownLayer(f"{about} counts the numbers of its batch, as it is in training: call eval() on it")


def _check_parameter(parameter: Any, path: str) -> None:
    import torch

    if (
        type(parameter) is not torch.nn.Parameter
        or not parameter.is_floating_point()
        or parameter.layout != torch.strided
    ):
        raise UnknownLayer(
            f"{path} is {type(parameter).__name__} of {parameter.dtype}, not a plain parameter of floats"
        )
    if parameter.is_meta:
        raise UnknownLayer(f"{path} is on the meta device, without numbers")


def _plain(value: Any) -> Any:
    """A copy of numbers, words, tensors, and what holds some; of a function its digest; Ellipsis of all else."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, tuple | list):
        parts = [_plain(x) for x in value]
        return (
            Ellipsis
            if any(x is Ellipsis for x in parts)
            else type(value)(parts)
            if type(value) in (tuple, list)
            else parts
        )
    if isinstance(value, dict):
        items = {key: _plain(x) for key, x in value.items()}
        return Ellipsis if any(x is Ellipsis for x in items.values()) else items
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        return as_array(value)
    name = getattr(value, "__name__", None)
    if callable(value) and name in ("silu", "gelu", "relu", "tanh", "sigmoid"):
        return name
    return whole_digest(value) if inspect.isfunction(value) and is_of_models(value) else Ellipsis


def _configuration(config: Any) -> Fields:
    values = {key: _plain(x) for key, x in vars(config).items()}
    for alias, name in getattr(config, "attribute_map", {}).items():
        if name in values:
            values[alias] = values[name]
    values["_attn_implementation"] = getattr(config, "_attn_implementation", None)
    for kind in type(config).__mro__:
        if kind.__module__.startswith("transformers.models."):
            for key, static in vars(kind).items():
                if key not in values and not key.startswith("_") and isinstance(static, (*PLAIN, property)):
                    values[key] = _plain(getattr(config, key, None))
    return Fields({key: x for key, x in values.items() if x is not Ellipsis})


def as_array(tensor: Any) -> Any:
    """A copy of a tensor in NumPy's memory; of bfloat16 in float32."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.array(tensor.numpy())
