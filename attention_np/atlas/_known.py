"""All that the atlas knows, by digests: readings of attention modules, parts, and functions that they call."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from attention_np.atlas import _parts
from attention_np.atlas._mirror import About, UnknownLayer
from attention_np.atlas._source import unwrapped, whole_digest

# The modules in `classes`, each with READINGS, and PARTS and FUNCTIONS where it has some
FAMILIES = (
    *("arranged", "reductions"),
    *("llama", "bert", "vit", "compressed", "pictures", "states", "tables", "points", "decoders", "learned"),
    *("encoders", "relative", "sparse", "chosen"),
)


class Tables:
    """The tables of all families together."""

    def __init__(self) -> None:
        self.torch = _parts.TORCH
        self.readings: dict[str, Any] = {}
        self.parts: dict[str, Any] = {}
        self.functions: dict[str, Any] = {}
        for family in (_parts, *(import_module(f"attention_np.atlas.classes.{name}") for name in FAMILIES)):
            for table, name in ((self.readings, "READINGS"), (self.parts, "PARTS"), (self.functions, "FUNCTIONS")):
                for digests, value in getattr(family, name, {}).items():
                    table.update(dict.fromkeys(digests.split(), value))

    def known(self, about: About, module: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
        """What computes a module of transformers, and the functions that it calls."""
        source = about.source
        assert source is not None
        compute = self.readings.get(source.digest) or self.parts.get(source.digest)
        if compute is None:
            raise UnknownLayer(f"{about} is not known: there is no reading of its source ({source.digest})")
        functions = {}
        for name, function in source.functions.items():
            functions[name] = self._function(name, function, about)
        if "getattr(ALL_ATTENTION_FUNCTIONS" in source.text:  # which has no such attribute: always the default
            functions["interface"] = functions["eager_attention_forward"]
        elif "get_interface" in source.text:
            functions["interface"] = self._interface(about, module, functions)
        return compute, functions

    def _function(self, name: str, function: Any, about: About) -> Any:
        try:
            digest = whole_digest(function)
        except (OSError, TypeError, SyntaxError) as error:
            raise UnknownLayer(f"{about} calls {name}, whose source cannot be read") from error
        if digest not in self.functions:
            raise UnknownLayer(f"{about} calls {name}, whose source is not known ({digest})")
        return self.functions[digest]

    def _interface(self, about: About, module: Any, functions: dict[str, Any]) -> Any:
        """What the module's configuration chooses among the attention functions."""
        chosen = getattr(module.config, "_attn_implementation", None)
        names = [name for name in functions if "eager_attention" in name]
        registered = unwrapped(type(module).forward).__globals__["ALL_ATTENTION_FUNCTIONS"]
        if chosen in (None, "eager") and len(names) == 1 and chosen not in registered:
            return functions[names[0]]
        if chosen != "sdpa" or "sdpa" not in registered:
            raise UnknownLayer(f"{about} attends by {chosen!r}: only 'eager' and 'sdpa' are known")
        return self._function("sdpa", registered["sdpa"], about)
