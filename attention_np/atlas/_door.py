"""From a module of transformers to a layer."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any

from attention_np.atlas._known import Tables
from attention_np.atlas._layer import Layer
from attention_np.atlas._mirror import UnknownLayer, as_array, mirror
from attention_np.atlas._printing import described
from attention_np.atlas._source import unwrapped


@lru_cache(maxsize=1)
def tables() -> Tables:
    """All that is known."""
    return Tables()


def read(module: Any) -> Layer:
    """What an attention module computes, as a `Layer` of NumPy; see `attention_np.atlas`."""
    if not hasattr(module, "named_parameters") or not hasattr(module, "forward"):
        raise TypeError(f"module must be a torch.nn.Module, not {type(module).__name__}")
    import torch

    for name in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks"):
        if getattr(torch.nn.modules.module, name, None):
            raise UnknownLayer("torch has global hooks of modules, of which nothing says what they compute")
    parameters = dict(module.named_parameters())
    about = mirror(module, {id(x): name for name, x in parameters.items()}, tables())
    if about.source is None or about.source.digest not in tables().readings:
        raise UnknownLayer(f"{about} is no attention: it has no scores or state of its own")
    if hasattr(about.compute, "check"):
        about.compute.check(about)
    inputs = {name: as_array(x) for name, x in parameters.items()}
    return Layer(about, inputs, inspect.signature(unwrapped(type(module).forward)), described(about))
