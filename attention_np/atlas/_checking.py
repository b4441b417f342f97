"""A module of transformers with its own autograd beside the layer that was read from it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attention_np._lib.text import table
from attention_np.atlas._door import read
from attention_np.atlas._layer import is_state, plain
from attention_np.atlas._mirror import UnknownLayer, as_array

TOLERANCE = 1e-11  # of float64: a hundred thousand roundings


@dataclass(frozen=True)
class Report:
    """What :func:`check` saw: the largest error of the output and of each gradient, relative to its entries."""

    name: str
    errors: dict[str, float] = field(default_factory=dict)
    tolerance: float = TOLERANCE

    @property
    def ok(self) -> bool:
        """Whether every error is within the tolerance."""
        return all(error <= self.tolerance for error in self.errors.values())

    @property
    def worst(self) -> float:
        """The largest error."""
        return max(self.errors.values())

    def __str__(self) -> str:
        rows = [
            (name, f"{error:.1e}", "" if error <= self.tolerance else "differs") for name, error in self.errors.items()
        ]
        return f"{self.name}\n{table(rows)}"


def check(module: Any, *args: Any, reference: Any = None, dtype: str | None = "float64", **kwargs: Any) -> Report:
    """The output of a module and all its gradients by autograd, held against the layer that `read` makes of it."""
    import torch

    layer = read(module if reference is None else reference)
    try:
        twin = copy.deepcopy(module)
    except RuntimeError as failure:
        kept = f"{type(module).__name__} keeps tensors of an earlier call, with their graph: it cannot be copied"
        raise UnknownLayer(kept) from failure
    twin.train(not module.training)
    twin.train(module.training)  # which makes LeViT forget what it keeps of earlier calls
    if dtype is not None:
        twin = twin.to(getattr(torch, dtype))
    if dtype == "float64":
        layer.inputs = {name: x.astype(np.float64) for name, x in layer.inputs.items()}
    tensors = _prepared(layer, args, kwargs, None if dtype is None else getattr(torch, dtype))
    with _exactly(dtype):
        result = first_floating(twin(*tensors[0], **tensors[1]))
        cotangent = torch.randn(result.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        cotangent = cotangent.to(result.dtype).to(result.device)
        wanted = dict(twin.named_parameters()) | _states(layer, *tensors)
        reached = {name: x for name, x in wanted.items() if x.requires_grad}
        gradients = torch.autograd.grad(result, list(reached.values()), cotangent, allow_unused=True)
    output, cache = layer.forward(*map(plain, tensors[0]), **plain(tensors[1]))
    ours = layer.backward(as_array(cotangent), cache)
    errors = {"output": error(output, as_array(result))}
    for name, gradient in zip(reached, gradients, strict=True):
        theirs = np.zeros(tuple(reached[name].shape)) if gradient is None else as_array(gradient)
        errors[name] = error(np.zeros(theirs.shape) if ours.get(name) is None else ours[name], theirs)
    return Report(type(module).__name__, errors, TOLERANCE if dtype == "float64" else _floor(result.dtype))


def error(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest entry or 1; infinite for a wrong shape."""
    if ours.shape != theirs.shape:
        return float("inf")
    if not theirs.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        largest = np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max())
    return float("inf") if np.isnan(largest) else float(largest)


def first_floating(value: Any) -> Any:
    """The first floating tensor of what a module returns, depth first."""
    if hasattr(value, "is_floating_point"):
        return value if value.is_floating_point() else None
    values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return next((x for x in map(first_floating, values) if x is not None), None)


def _prepared(layer: Any, args: Any, kwargs: Any, dtype: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments in the dtype, each tensor of states a leaf of its own."""
    import torch

    def ready(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if isinstance(value, tuple | list):
            return type(value)(map(ready, value))
        if isinstance(value, dict):
            return {key: ready(x) for key, x in value.items()}
        if isinstance(value, torch.Tensor):
            value = value.detach().clone()
            if dtype is not None and (value.is_floating_point() or value.is_complex()):
                value = value.to(dtype.to_complex() if value.is_complex() else dtype)
        return value

    made = [ready(x) for x in args], {key: ready(x) for key, x in kwargs.items()}
    for x in _states(layer, *made).values():
        x.requires_grad_()
    return made


def _states(layer: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = list(layer._signature.parameters)[1:]
    given = dict(zip(names, args, strict=False)) | kwargs
    return {name: x for name, x in given.items() if hasattr(x, "detach") and is_state(name, as_array(x))}


@contextmanager
def _exactly(dtype: str | None) -> Iterator[None]:
    """While it lasts, float32 and half inside of a module mean float64."""
    import torch

    if dtype != "float64":
        yield
        return
    lesser = {torch.float32, torch.float16, torch.bfloat16}

    def raised(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float64 if value in lesser else torch.complex128 if value == torch.complex64 else value
        return value

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = {key: raised(x) for key, x in (kwargs or {}).items()}
            if function in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
                return args[0].to(torch.float64)
            return function(*map(raised, args), **kwargs)

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Mode():
            yield
    finally:
        torch.set_default_dtype(default)


def _floor(dtype: Any) -> float:
    """What a dtype's roundings may come to, in a layer of some hundred terms a sum."""
    import torch

    return 100 * float(torch.finfo(dtype).eps)


__all__ = ["Report", "UnknownLayer", "check", "error", "first_floating"]
