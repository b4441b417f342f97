"""The check of a layer that keeps state, by its inputs and by its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from attention_np.gradcheck.checking import check
from attention_np.gradcheck.layers.methods import Functions, Methods, method
from attention_np.gradcheck.layers.parameters import usual
from attention_np.gradcheck.layers.paths import absent, at, copied
from attention_np.gradcheck.nesting import arguments_of, signature_of
from attention_np.gradcheck.reporting import Report

__all__ = ["check_layer"]


def check_layer(
    layer: Any,
    inputs: Any,
    *,
    forward: str = "forward",
    backward: str = "backward",
    parameters: Mapping[str, str | None] | None = None,
    **options: Any,
) -> Report:
    """Check the gradients of a layer that keeps state, by its inputs and by its parameters.

    Parameters
    ----------
    layer : object, module, or pair of functions
        An object with methods ``forward(*inputs) -> output`` and ``backward(d_output) -> gradients by the inputs``,
        which leaves the gradients of its parameters in attributes, mappings or lists. It is not changed. Or a module,
        or a pair, with functions ``forward(*inputs) -> (output, cache)`` and ``backward(d_output, cache)``.
    inputs : mapping of str to array, tuple or list of arrays, or array
        The arguments of `forward`: a mapping by name, if it has parameters of these names, otherwise in order. As for
        :func:`check`, they may be nests, and what is no array of floating-point numbers is passed on as it is.
    forward, backward : str, optional
        The names of the two. A `backward` that takes nothing is that of a loss, and returns the loss's own gradient.
    parameters : mapping of str to str or None, optional
        Where each parameter is, and where `backward` leaves its gradient: attributes as ``{"W": "dW"}``, entries as
        ``{"params.W": "grads.W"}`` or ``{"params[0]": "grads[0]"}``, those of layers within as
        ``{"layers[0].W": "layers[0].dW"}``, or all at once, ``{"params": "grads"}``; None if `backward` returns it,
        in this order behind those of the inputs, as ``return dX, [dW, db]``. By default those of the layer and of
        layers within it, in params and grads, in parameters and gradients, data with grad, or any W with a gradient
        beside it, as dW, d_W, gW, dLdW, grad_W or W_grad, or in grads; or returned. What is in params, or is called
        W, b, weights or biases, is wrong without a gradient. A note names other arrays for which none is found; lone
        numbers are checked if they are named.
    **options
        As for :func:`check`.

    Returns
    -------
    Report
        One entry for each input and each parameter, which is called by its path.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used: a parameter is not there, or the layer cannot be copied.

    Notes
    -----
    `backward` is given the gradients of several outputs as a tuple, or one by one if it must have as many arguments.
    Whether a layer adds to its gradients or sets them does not matter, nor does it if `backward` writes to the gradient
    that it is given, which is noted. What is drawn from NumPy's global generator is the same at each call.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> class Dense:
    ...     def __init__(self, w):
    ...         self.params, self.grads = {"w": w}, {}
    ...
    ...     def forward(self, x):
    ...         self.x = x
    ...         return x @ self.params["w"]
    ...
    ...     def backward(self, d_y):
    ...         self.grads["w"] = self.x.T @ d_y
    ...         return d_y @ self.params["w"]  # a transpose is missing
    >>> report = gradcheck.check_layer(Dense(np.array([[1.0, 2.0], [3.0, 5.0]])), np.array([[0.5, -1.0]]))
    >>> report["x"].ok, report["params.w"].ok
    (False, True)
    """
    if isinstance(layer, tuple):
        if len(layer) != 2 or not all(map(callable, layer)):
            raise TypeError("layer must be an object, a module, or a pair of functions, (forward, backward)")
        run, pull_back = layer
    else:
        run, pull_back = method(layer, forward), method(layer, backward)
    arguments, positional = arguments_of(inputs, signature_of(run))
    names = tuple(arguments)
    if isinstance(layer, tuple | ModuleType) or getattr(run, "__self__", None) is None:
        if parameters:
            raise ValueError("parameters are those of an object that keeps them: functions take theirs as inputs")
        functions = Functions(names, positional, run, pull_back)
        return functions.noted(check(functions.forward, functions.backward, arguments, **options))
    kept = copied(layer, {})
    if kept is layer:
        raise TypeError(f"layer, of type {type(layer).__name__}, cannot be copied, so it would not stay as it is")
    bare = Methods(names, positional, kept, forward, backward, {})
    pairs, unnamed = usual(bare, arguments) if parameters is None else (dict(parameters), [])
    found = {path: at(kept, path) for path in pairs}
    for path, x in found.items():
        if x is None:
            raise ValueError(f"{absent(layer, path)}, a parameter by its path such as 'W', 'params.W' or 'params[0]'")
        if path in arguments:
            raise ValueError(f"{path} is the name of an input and of a parameter: name the input otherwise")
    methods = replace(bare, parameters=pairs)
    report = methods.noted(check(methods.forward, methods.backward, arguments | found, **options))
    if not unnamed:
        return report
    verb = "is" if len(unnamed) == 1 else "are"
    note = f"{', '.join(unnamed)} of the layer {verb} not checked: parameters= says which have a gradient, and where"
    first, *others = report.inputs
    return Report((first.with_note(note), *others))
