"""A module of transformers with its own autograd beside the layer that was read from it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from attention_np import chain, conventions, gradcheck
from attention_np._lib.text import table
from attention_np.atlas._door import read
from attention_np.atlas._layer import is_state, plain
from attention_np.atlas._mirror import UnknownLayer, as_array
from attention_np.atlas._source import unwrapped
from attention_np.atlas.recipes._steps import attention as attention_of
from attention_np.atlas.recipes._steps import repeated
from attention_np.known_answers.formats import dtype_of

TOLERANCE = 1e-11  # of float64: a hundred thousand roundings


@dataclass(frozen=True)
class Report:
    """What :func:`check` saw: the largest error of the output and of each gradient, relative to its entries.

    In a module's own precision `findings` holds what the harness says of each, and decides.
    """

    name: str
    errors: dict[str, float] = field(default_factory=dict)
    tolerance: float = TOLERANCE
    findings: gradcheck.Report | None = None

    @property
    def ok(self) -> bool:
        """Whether every error is within the tolerance, or what rounding explains."""
        if self.findings is not None:
            return all(x.verdict != "wrong" for x in self.findings)
        return all(error <= self.tolerance for error in self.errors.values())

    @property
    def worst(self) -> float:
        """The largest error."""
        return max(self.errors.values())

    @property
    def causes(self) -> dict[str, str]:
        """What the harness says of the output and the gradients that differ, in a module's own precision."""
        return {x.name: str(x.diagnosis) for x in self.findings or () if x.verdict == "wrong"}

    def __str__(self) -> str:
        wrong = self.causes if self.findings else {name for name, x in self.errors.items() if not x <= self.tolerance}
        rows = [(name, f"{error:.1e}", "differs" if name in wrong else "") for name, error in self.errors.items()]
        return "\n".join([self.name, table(rows), *dict.fromkeys(self.causes.values())])


def check(module: Any, *args: Any, reference: Any = None, dtype: str | None = "float64", **kwargs: Any) -> Report:
    """The output of a module and all its gradients by autograd, held against the layer that `read` makes of it.

    Parameters
    ----------
    module : torch.nn.Module
    *args, **kwargs
        As it is called. Floating-point numbers are converted to its dtype, and taken to its device.
    reference : torch.nn.Module, optional
        What a patched or fused module should compute: one that `read` knows, with parameters of the same names, whose
        values are those of `module`.
    dtype : str, optional
        "float64", of a copy. None: the module's own, on its own device; then
        :func:`attention_np.gradcheck.check_low_precision` says what its rounding explains, and names causes.

    Returns
    -------
    Report
        ``report.ok``, ``report.errors``; printed, a table.

    Raises
    ------
    UnknownLayer
        If it is not known what the module, or its reference, computes.
    ValueError
        If the parameters of the two are not the same, or the module has no floating-point output.
    """
    import torch

    if dtype not in (None, "float64"):
        raise ValueError(f"dtype must be 'float64' or None, the module's own, not {dtype!r}")
    layer = read(module if reference is None else reference)
    try:
        twin = copy.deepcopy(module)
    except RuntimeError as failure:
        kept = f"{type(module).__name__} keeps tensors of an earlier call, with their graph: it cannot be copied"
        raise UnknownLayer(kept) from failure
    twin.train(not module.training)
    twin.train(module.training)  # which makes LeViT forget what it keeps of earlier calls
    twin = twin if dtype is None else twin.double()
    own = {name: as_array(x) for name, x in twin.named_parameters()}
    if {name: x.shape for name, x in own.items()} != {name: x.shape for name, x in layer.inputs.items()}:
        odd = ", ".join(sorted(own.keys() ^ layer.inputs.keys())) or "some of other shapes"
        raise ValueError(f"module and reference must have the same parameters: {odd}")
    layer.inputs = _wide(own)
    given = _prepared(layer, twin, args, kwargs)
    states = _states(layer, *given)
    if dtype is None:
        return _in_own_precision(layer, twin, given, states)
    with _exactly():
        try:
            result = _floating(twin(*given[0], **given[1]), layer)
        except RuntimeError as failure:
            raise UnknownLayer(f"{layer._about} does not run in double precision: {failure}") from failure
        cotangent = torch.randn(result.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        gradients = _gradients(twin, states, result, cotangent.to(result.device))
    output, cache = layer.forward(*map(plain, given[0]), **plain(given[1]))
    ours = layer.backward(cotangent.numpy(), cache)
    errors = {"output": error(output, as_array(result))}
    for name, theirs in gradients.items():
        errors[name] = error(np.zeros(theirs.shape) if ours.get(name) is None else ours[name], theirs)
    return Report(type(module).__name__, errors)


def _in_own_precision(layer: Any, twin: Any, given: Any, states: dict[str, Any]) -> Report:
    """The same where a module rounds: its answers are held against those of the layer in float64, entry by entry."""
    import torch

    leaves = dict(twin.named_parameters()) | states

    def run(arrays: Any) -> Any:
        with torch.no_grad():
            for x, array in zip(leaves.values(), arrays, strict=True):
                x.copy_(_as_tensor(array))
        return _floating(twin(*given[0], **given[1]), layer)

    def kernel(*arrays: Any) -> Any:
        with torch.no_grad():
            return _as_narrow(run(arrays))

    def kernel_backward(d_output: Any, *arrays: Any) -> Any:
        result = run(arrays)
        return tuple(_gradients(twin, states, result, _as_tensor(d_output).to(result), narrow=True).values())

    def call(arrays: Any) -> Any:
        of = dict(zip(leaves, arrays, strict=True))
        layer.inputs = {name: of[name] for name in layer.inputs}
        bound = layer._signature.bind(None, *given[0], **given[1])
        rest = _wide(plain(dict(bound.kwargs)))
        values = [_wide(plain(x)) for x in bound.args[1:]]
        names = list(layer._signature.parameters)[1:]
        values = [of.get(name, x) if name in states else x for name, x in zip(names, values, strict=False)]
        return layer.forward(*values, **{name: of[name] if name in states else x for name, x in rest.items()})

    def right(*arrays: Any) -> Any:
        return call(arrays)[0]

    def right_backward(d_output: Any, *arrays: Any) -> Any:
        gradients = layer.backward(d_output, call(arrays)[1])
        zeros = dict(zip(leaves, map(np.zeros_like, arrays), strict=True))
        return tuple(zeros[name] if gradients.get(name) is None else gradients[name] for name in leaves)

    findings = gradcheck.check_low_precision(
        kernel,
        kernel_backward,
        {name: _as_narrow(x) for name, x in leaves.items()},
        (right, right_backward),
        explain=lambda report: _explained(twin, of_output=bool(report["output"].wrong)),
    )
    errors = {x.name: x.max_relative_error for x in findings}
    return Report(type(twin).__name__, errors, float(torch.finfo(_dtype_of(twin)).eps), findings)


def _explained(module: Any, *, of_output: bool) -> str | None:
    try:
        return _cause_of(module, of_output=of_output)
    except Exception as error:  # of somebody's function, which may take no such arrays
        return f"{module.config._attn_implementation} could not be asked by itself: {error}"


def _cause_of(module: Any, *, of_output: bool) -> str | None:
    """What is said of the function that a configuration names, asked as transformers calls it; None if nothing.

    `conventions.identify` says whose its output is, and the harness what is wrong with its gradients.
    """
    import torch

    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    registered = unwrapped(type(module).forward).__globals__.get("ALL_ATTENTION_FUNCTIONS", {})
    if name in (None, "eager", "sdpa") or name not in registered:
        return None
    stand, device = copy.copy(module), next(module.parameters(), torch.zeros(())).device

    def attended(query: Any, key: Any, value: Any, scale: float | None = None) -> Any:
        stand.num_key_value_groups, stand.is_causal = query.shape[1] // key.shape[1], False
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return registered[name](stand, query, key, value, None, scaling=scale, dropout=0.0)[0].transpose(1, 2)

    def attention(*arrays: Any, **options: Any) -> Any:
        with torch.no_grad():
            return _as_narrow(attended(*(_as_tensor(x).to(device) for x in arrays), **options))

    def backward(d_output: Any, *arrays: Any) -> Any:
        leaves = [_as_tensor(x).to(device).requires_grad_() for x in arrays]
        output = attended(*leaves)
        return tuple(map(_as_narrow, torch.autograd.grad(output, leaves, _as_tensor(d_output).to(device))))

    if of_output:
        return f"{name}: {conventions.identify(attention, options=['scale']).sentence}"
    rng, layer = np.random.default_rng(0), partial(grouped, groups=2)
    shapes = {"query": (1, 4, 5, 4), "key": (1, 2, 5, 4), "value": (1, 2, 5, 4)}
    arrays = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}

    def right(*arrays: Any) -> Any:
        return chain.forward(layer, dict(zip(shapes, arrays, strict=True)))[0]

    def right_backward(d_output: Any, *arrays: Any) -> Any:
        gradients = chain.backward(d_output, chain.forward(layer, dict(zip(shapes, arrays, strict=True)))[1])
        return tuple(gradients[key] for key in shapes)

    found = gradcheck.check_low_precision(attention, backward, arrays, (right, right_backward))
    return "; ".join(f"{name}, {x.name}: {x.diagnosis}" for x in found if x.wrong) or None


def grouped(query: Any, key: Any, value: Any, *, groups: int) -> Any:
    """Attention of heads that share keys and values."""
    return attention_of(query, repeated(key, groups), repeated(value, groups))


def _gradients(
    twin: Any, states: dict[str, Any], result: Any, cotangent: Any, *, narrow: bool = False
) -> dict[str, Any]:
    """By autograd, of the states and of each parameter: zeros where it does not reach."""
    import torch

    wanted = dict(twin.named_parameters()) | states
    reached = {name: x for name, x in wanted.items() if x.requires_grad}
    found = torch.autograd.grad(result, list(reached.values()), cotangent, allow_unused=True)
    slopes = {name: x.to_dense() if x is not None else x for name, x in zip(reached, found, strict=True)}
    as_numbers = _as_narrow if narrow else as_array
    zeros = {name: torch.zeros_like(x) for name, x in wanted.items() if slopes.get(name) is None}
    return {name: as_numbers(zeros.get(name, slopes.get(name))) for name in wanted}


def _floating(value: Any, layer: Any) -> Any:
    result = first_floating(value)
    if result is None:
        raise ValueError(f"{layer._about} returns no floating-point numbers")
    return result


def _wide(value: Any) -> Any:
    """Arrays in double precision, wherever they stand."""
    if isinstance(value, tuple | list):
        return type(value)(map(_wide, value))
    if isinstance(value, dict):
        return {key: _wide(x) for key, x in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        return value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
    return value


def _as_narrow(tensor: Any) -> Any:
    """A tensor as an array of its own dtype."""
    import torch

    array = as_array(tensor)
    return array.astype(dtype_of("bfloat16")) if tensor.dtype == torch.bfloat16 else array


def _as_tensor(array: Any) -> Any:
    import torch

    exact = array.astype(np.float32) if array.dtype.itemsize < 4 else array
    return torch.from_numpy(np.ascontiguousarray(exact))


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


def _dtype_of(twin: Any) -> Any:
    """That of the first parameter; without one, double."""
    import torch

    return next((x.dtype for x in twin.parameters() if x.is_floating_point()), torch.float64)


def _prepared(layer: Any, twin: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments in the dtype and on the device of the module, each tensor of states a leaf of its own.

    Numbers beyond the dtype, as a mask may have them, become its largest.
    """
    import torch

    dtype, parameter = _dtype_of(twin), next(twin.parameters(), torch.zeros(()))

    def ready(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if isinstance(value, tuple | list):
            return type(value)(map(ready, value))
        if isinstance(value, dict):
            return {key: ready(x) for key, x in value.items()}
        if isinstance(value, torch.Tensor):
            value = value.detach().clone().to(parameter.device)
            if value.is_complex():
                return value.to(dtype.to_complex())
            if value.is_floating_point():
                most = min(torch.finfo(dtype).max, torch.finfo(value.dtype).max)
                return torch.where(value.isinf(), value, value.clamp(-most, most)).to(dtype)
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
def _exactly() -> Iterator[None]:
    """While it lasts, float32 and half inside of a module mean float64."""
    import torch

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


__all__ = ["Report", "UnknownLayer", "check", "error", "first_floating"]
