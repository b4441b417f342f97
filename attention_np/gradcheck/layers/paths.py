"""What an object holds, by paths such as ``layers[0].params.W``; and copies of objects, with other arrays in them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from attention_np.gradcheck.nesting import filled, leaves

__all__ = ["absent", "at", "copied", "detached", "put", "same"]

STEP = re.compile(r"\.?(\w+)|\[([^\]]+)\]")


def absent(layer: Any, path: str) -> str:
    """In words, that nothing is there."""
    return f"{type(layer).__name__} has no {path}"


@cache
def _steps(path: str) -> list[str]:
    """The names and indices of a path such as ``layers[0].params.W``."""
    if not re.fullmatch(f"({STEP.pattern})+", path):
        raise ValueError(f"{path!r} is no path such as 'W', 'params.W' or 'layers[0].W'")
    return [(name or index).strip("'\"") for name, index in STEP.findall(path)]


def at(layer: Any, path: str) -> Any:
    """What is at a path; None if nothing is."""
    for step in _steps(path):
        layer = _within(layer, step)
    return layer


def _within(layer: Any, step: str) -> Any:
    if isinstance(layer, np.ndarray):
        return None
    if isinstance(layer, Mapping):
        return layer.get(step, layer.get(int(step)) if step.isdecimal() else None)
    if isinstance(layer, tuple | list) and step.lstrip("-").isdecimal():
        return layer[int(step)] if int(step) < len(layer) else None
    try:
        return getattr(layer, step, None)
    except Exception:  # of a property, as of a gradient before backward has been called
        return None


def put(layer: Any, path: str, value: Any) -> None:
    """Put something at a path of a copy."""
    *before, last = _steps(path)
    owner = layer
    for step in before:
        owner = _within(owner, step)
    try:
        if isinstance(owner, Mapping | list):
            owner[int(last) if last.isdecimal() else last] = value  # type: ignore[index]
        else:
            setattr(owner, last, value)
    except (AttributeError, TypeError):
        raise TypeError(f"{path} of {type(layer).__name__} cannot be set: name the attribute that holds it") from None


def detached(output: Any) -> Any:
    """A nest with copies of its arrays: an output may be a view of what it is computed from, an input be written to."""
    return filled(output, (np.copy(x) if isinstance(x, np.ndarray) else x for _, x in leaves(output, "")))


def same(held: Any, value: Any) -> bool:
    """Whether two nests of one form hold the same arrays."""
    pairs = zip(leaves(held, ""), leaves(value, ""), strict=True)
    return all(x is y or not isinstance(y, np.ndarray) for (_, x), (_, y) in pairs)


def copied(x: Any, known: dict[int, Any]) -> Any:
    """A copy of a layer, with `known` in the place of what has those ids; parts that cannot be copied are shared."""
    try:
        return copy.deepcopy(x, dict(known))
    except Exception:  # what it raises is up to the objects
        if isinstance(x, dict):
            return {key: copied(value, known) for key, value in x.items()}
        if isinstance(x, list):
            return [copied(value, known) for value in x]
        try:
            held = copy.copy(x)
            vars(held).update({name: copied(value, known) for name, value in vars(x).items()})
        except Exception:
            return x
        return held
