"""Check PyTorch's gradients, or those of your own ``torch.autograd.Function``, with one call.

::

    import torch
    from attention_np import gradcheck

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, d_output):
            return d_output * 3 * ctx.saved_tensors[0]  # a square is missing

    print(gradcheck.torch.check(Cube, torch.tensor([0.5, 2.0], dtype=torch.float64)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from threading import RLock
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.adapting import Adapter, Signature, each, library
from attention_np.gradcheck.problem.nests import signature_of
from attention_np.gradcheck.report.reporting import Report

__all__ = ["check"]


_SWAPPING = RLock()  # functional_call puts other parameters into the module for the time of the call


def check(function: Callable[..., Any], inputs: Any, **options: Any) -> Report:
    """Check the gradients that PyTorch takes of a function against numerical ones.

    Parameters
    ----------
    function : callable, torch.autograd.Function subclass, or torch.nn.Module
        A function of tensors. All floating-point tensors that it returns count, nested ones too. Of a module, which is
        not changed, the parameters are checked as well, as ``"parameters.weight"`` and so on, except those that
        require no gradient.
    inputs : mapping of str to tensor, tuple or list of tensors, or tensor
        The arguments: a mapping by name, if the function has parameters of these names, otherwise in order.
        Floating-point tensors and NumPy arrays, nested ones too, are differentiated by, whether or not they require a
        gradient; whatever else there is (integers, None, masks) is passed on as it is.
    **options
        As for :func:`attention_np.gradcheck.check`.

    Returns
    -------
    Report

    Notes
    -----
    The function is evaluated in double precision, and on complex tensors where it takes them; so it should not fix a
    dtype. Tensors that it captures are constants. A gradient that PyTorch does not give (None) counts as zero. Of a
    complex tensor, the real part and the imaginary part are checked, as ``"z.real"`` and ``"z.imag"``.

    A function that draws random numbers, such as a module with dropout in training mode, is not the same function at
    each evaluation, and comes out wrong: call ``module.eval()`` first, or seed the generator within the function.
    """
    return _TorchAdapter(function, inputs).check(**options)


class _TorchAdapter(Adapter):
    def __init__(self, function: Callable[..., Any], inputs: Any) -> None:
        torch = _torch()
        leaves = (leaf for _, leaf in self.flatten(inputs, ""))
        inputs = self.fill(inputs, (torch.tensor(x) if _is_floating_array(x) else x for x in leaves))
        if isinstance(function, torch.jit.ScriptModule):
            raise TypeError(
                "function must not be a scripted module, whose parameters cannot be moved: pass what it was"
            )
        if isinstance(function, torch.nn.Module):
            functional = _Functional(function)
            super().__init__(functional, inputs, signature_of(function.forward), parameters=functional.trainable())
            return
        owner: Any = getattr(function, "__self__", function)  # Function.apply is bound to its class
        is_own_function = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
        if is_own_function:
            super().__init__(owner.apply, inputs, _signature_of_forward(owner))
        else:
            super().__init__(function, inputs, signature_of(function))

    def forward(self, *arrays: Array) -> Any:
        torch = _torch()
        with _refusals(), torch.inference_mode(False), torch.no_grad():
            return self.as_output(self.outputs(self.tensors(arrays)))

    def backward(self, d_output: Any, *arrays: Array) -> list[Array]:
        torch = _torch()
        with _refusals(), torch.inference_mode(False), torch.enable_grad():
            tensors = [x.requires_grad_() for x in self.tensors(arrays)]
            outputs = self.outputs([x.clone() for x in tensors])  # which the function may overwrite
            pairs = [(y, u) for y, u in zip(outputs.values(), each(d_output), strict=True) if y.requires_grad]
            gradients: Any = [None] * len(tensors)
            if pairs:
                cotangents = [torch.from_numpy(np.asarray(u)).to(y) for y, u in pairs]  # which a Function may write to
                gradients = torch.autograd.grad([y for y, _ in pairs], tensors, cotangents, allow_unused=True)
        return [
            np.zeros_like(array) if gradient is None else self.to_numpy(gradient.to_dense())
            for array, gradient in zip(arrays, gradients, strict=True)
        ]

    def tensors(self, arrays: tuple[Array, ...]) -> list[Any]:
        """`arrays` as tensors, each on the device and with the order in memory of the one that was given."""
        given = (self.leaves[name].detach() for name in self.inputs)
        return [_tensor_like(x, array) for x, array in zip(given, arrays, strict=True)]

    def kind(self, leaf: Any) -> str:
        if not isinstance(leaf, _torch().Tensor):
            return ""
        return "f" if leaf.is_floating_point() else "c" if leaf.is_complex() else ""

    def to_numpy(self, leaf: Any) -> Array:
        array: Array = leaf.numpy(force=True)
        return array


class _RefusedError(RuntimeError, ValueError):
    """An argument that PyTorch refuses: it raises a RuntimeError for nearly everything."""


@contextmanager
def _refusals() -> Iterator[None]:
    """What refuses a point that the check has chosen ends no check; what is more special does, as no more memory."""
    try:
        yield
    except RuntimeError as error:
        if type(error) is not RuntimeError:
            raise
        raise _RefusedError(str(error)) from error


class _Functional:
    """A module as a function of its parameters, too."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def trainable(self) -> dict[str, Any]:
        """The parameters to differentiate by."""
        return {name: x for name, x in self.module.named_parameters() if x.requires_grad}

    def __call__(self, *arguments: Any, parameters: dict[str, Any], **named: Any) -> Any:
        torch = _torch()
        with _SWAPPING:
            given = self.trainable()
            wider = any(x.dtype != given[name].dtype for name, x in parameters.items())
            tensors = dict(parameters)
            for name, x in chain(self.module.named_parameters(), self.module.named_buffers()):
                if name not in tensors:
                    dtype = torch.float64 if wider and x.is_floating_point() else x.dtype
                    tensors[name] = x.detach().to(dtype, copy=True)  # because modules write to their buffers
            return torch.func.functional_call(self.module, tensors, arguments, named)


def _torch() -> Any:
    return library("torch", "PyTorch")


def _tensor_like(given: Any, array: Array) -> Any:
    tensor = _torch().from_numpy(np.array(array, order="C"))
    if tensor.shape != given.shape:  # moves of a vectorized input, on one more axis
        return tensor.to(given.device)
    return _torch().empty_like(given, dtype=tensor.dtype).copy_(tensor)


def _is_floating_array(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "fc"


def _signature_of_forward(function: Any) -> Signature | None:
    """That of the forward of a torch.autograd.Function, as `apply` takes its arguments."""
    signature = signature_of(function.forward)
    if signature is None or function.setup_context is not _torch().autograd.Function.setup_context:
        return signature  # beside a setup_context, forward takes no context
    return signature.replace(parameters=list(signature.parameters.values())[1:])
