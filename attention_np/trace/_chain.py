"""A chain of ops carried out step by step, forward and backward, and held against the complex step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np import chain
from attention_np._chain.recording import name_of
from attention_np._lib.arrays import Array
from attention_np.trace._inputs import loss_gradient, numbered
from attention_np.trace._paper import Step, Trace

INFIX = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "matmul": "@"}
LETTERS = "ijklmnpq"  # of the axes of an array
STEP = 1e-30  # imaginary: its square is too small to count


def traced(layer: Callable[..., Any], inputs: Mapping[str, npt.ArrayLike], d_output: npt.ArrayLike | None) -> Trace:
    """The trace of a layer with one output on real arrays."""
    arrays = {name: np.asarray(x, float) for name, x in inputs.items()}
    output, cache = chain.forward(layer, arrays)
    if cache.is_tuple:
        raise ValueError("a layer that is traced has one output, not a tuple of them")
    rows, width = (prod(output.shape[:-1]), output.shape[-1]) if output.ndim else (1, 1)
    drawn = loss_gradient(0, numbered(rows), width).reshape(output.shape)
    vector = drawn if d_output is None else np.asarray(d_output, float)
    gradients = {number: d for part in chain.backward_steps(vector, cache) for number, d in part.items()}

    symbols = [*arrays, *(f"y{step.number}{_letter(step, k)}" for step in cache.steps for k in range(len(step.made)))]
    formulas = {number: _formula(step, symbols) for step in cache.steps for number in step.made}
    steps = [_step("given", symbols[number], "", x) for number, x in enumerate(islice(cache.values, len(arrays)))]
    steps += [_step("forward", symbols[number], formulas[number], cache.values[number]) for number in formulas]
    for number in sorted(gradients, reverse=True):
        readers = [step for step in cache.steps if number in step.read]
        terms = [f"backward of step {step.number}, {name_of(step.op)}" for step in readers]
        terms = ["G, the gradient of the output"] * (number in cache.outputs) + terms
        steps.append(_step("backward", f"dL/d{symbols[number]}", " + ".join(terms), gradients[number]))
    error = _error(layer, arrays, vector, {name: gradients.get(number) for number, name in enumerate(arrays)})
    title = f"A chain of {len(cache.steps)} steps"
    introduction = (
        "y1 is what step 1 makes, and so on. A gradient is the sum of what the steps that read the array return."
    )
    check = f"Check: the gradients of all inputs agree with the complex step to a relative error of {error:.1e}."
    return Trace("chain", title, (), tuple(steps), error, "", introduction, check)


def _formula(step: Any, symbols: list[str]) -> str:
    name, read = name_of(step.op), [symbols[number] for number in step.read]
    right = f" {INFIX[name]} ".join(read) if name in INFIX and len(read) > 1 else f"{name}({', '.join(read)})"
    return f"{', '.join(symbols[number] for number in step.made)} = {right}"


def _letter(step: Any, k: int) -> str:
    """What tells several outputs of a step apart."""
    return "abcdefgh"[k] if len(step.made) > 1 else ""


def _step(part: Any, symbol: str, formula: str, array: Array) -> Step:
    return Step(part, "", symbol, LETTERS[: array.ndim], (), formula, "", array)


def _error(layer: Any, arrays: Mapping[str, Array], d_output: Array, gradients: Mapping[str, Array | None]) -> float:
    """How far the gradients are from the complex step along a direction in all inputs, relative to both."""
    rng = np.random.default_rng(0)
    tangents = {name: rng.standard_normal(x.shape) for name, x in arrays.items()}
    perturbed, _ = chain.forward(layer, {name: x + 1j * STEP * tangents[name] for name, x in arrays.items()})
    numerical = (d_output * perturbed.imag / STEP).sum()
    terms = [(d * tangents[name]).sum() for name, d in gradients.items() if d is not None]
    size = max(abs(numerical), *map(abs, terms))
    return float(abs(sum(terms) - numerical) / size) if size else 0.0
