"""Where layers keep their parameters and the gradients of these, by custom, as calls show.

An array is a parameter if a gradient is at one of the places where layers leave it, or if it is called as parameters
are. What forward makes, or overwrites, is none; nor is what a backward returns as the gradient of an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from numbers import Real
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.layers.methods import Methods
from attention_np.gradcheck.layers.paths import absent, at, detached
from attention_np.gradcheck.measuring.noise import elsewhere
from attention_np.gradcheck.nesting import Nest, leaves

__all__ = ["usual"]

Array = npt.NDArray[Any]

# Names by custom: of what holds parameters, and of the array in an object that is one, with those of their gradients;
HOLDERS = {"params": ("grads", "gradients"), "parameters": ("gradients", "grads")}
VALUES = dict.fromkeys(("data", "value", "array"), ("grad",))
# of what is a parameter, whether or not a gradient is found; and of gradients that are beside it, or kept together.
ASKED_FOR = ("W", "b", "weights", "biases")
BESIDE, TOGETHER = ("d{}", "d_{}", "g{}", "dLd{}", "dL_d{}", "grad_{}", "{}_grad"), ("grads", "gradients", "grad")


class _Held(NamedTuple):
    """An array that a layer holds, or a layer within it."""

    array: Array
    through: tuple[str, ...]  # the attributes that lead to it


class _Used(NamedTuple):
    """A layer after a forward and a backward."""

    layer: Any
    output: Any
    result: Any  # what backward returns


def usual(methods: Methods, arguments: Mapping[str, Any]) -> tuple[dict[str, str | None], list[str]]:
    """Where layers have their parameters and gradients by custom, as calls show; and what else they use."""
    values = tuple(arguments.values())
    used = _used(methods, values)
    layer, output, result = used
    before, after = dict(_arrays(methods.layer)), dict(_arrays(layer))
    asked, returned = _asked_for(after | before), [id(x) for _, x in leaves(result, "")]
    made = _made(methods, values, before, after)
    others = [path for path in made if _place(methods, values, used, path) is not None]
    late = [path for path in others if path in asked]
    if late:
        raise ValueError(f"{absent(layer, late[0])} before forward is called: let it make its parameters first")
    found: dict[str, str | None] = {}
    for path, held in before.items():
        if not _is_at(methods.layer, path, held.array):
            if path in asked:
                all_at_once = "name all at once, as parameters={'params': 'grads'}"
                raise ValueError(f"{path} of {type(layer).__name__} is no path: {all_at_once}")
            others.append(path)
            continue
        there, (stays, matters) = _place(methods, values, used, path), _moved(methods, values, path, output)
        has_one = there is not None and id(at(layer, there)) not in returned  # to the inputs, or behind those
        if (stays and has_one) or (matters and path in asked):
            found[path] = there
        elif stays and matters:
            others.append(path)
    pairs = _each_once(layer, found, before)
    of_arguments = Nest.of_arguments(arguments)
    behind = {len(returned) - len(x) for x in (of_arguments.kinds, of_arguments.leaves)}  # with None for a mask, or not
    if None in pairs.values() and len(pairs) in behind:
        pairs = dict.fromkeys(pairs)
    else:
        pairs = {path: there or _places(path)[0] for path, there in pairs.items()}
    checked = [id(before[path].array) for path in pairs]
    return pairs, [path for path in (*others, *found) if path not in before or id(before[path].array) not in checked]


def _asked_for(arrays: Mapping[str, _Held]) -> list[str]:
    """The paths to what is a parameter by its name: in params, if the layer has that, or else in any layer within."""
    if {held.through[0] for held in arrays.values()}.isdisjoint(HOLDERS):
        return [path for path, held in arrays.items() if not {*HOLDERS, *ASKED_FOR}.isdisjoint(held.through)]
    return [path for path, held in arrays.items() if held.through[0] in HOLDERS]


def _place(methods: Methods, values: tuple[Any, ...], used: _Used, path: str) -> str | None:
    """Where the gradient of what is at a path is by custom: the first of all places in which backward leaves any.

    Or else the first of its shape that nothing reads, as one that backward forgets.
    """
    holding = [there for there in _places(path) if isinstance(at(used.layer, there), np.ndarray | Real | list)]
    idle = None
    for there in holding:
        left, read = _left_and_read(methods, values, used, there)
        if left:
            return there
        if not read and np.shape(at(used.layer, there)) == np.shape(at(used.layer, path)):
            idle = idle or there
    return idle


def _left_and_read(methods: Methods, values: tuple[Any, ...], used: _Used, there: str) -> tuple[bool, bool]:
    """Whether backward leaves something else there than it finds, and whether that changes anything besides."""
    before = at(methods.layer, there)
    if not isinstance(before, np.ndarray | Real):
        return True, True
    other = np.asarray(before + 1.25)
    try:
        found = _used(replace(methods, parameters={there: None}), (*values, other))
    except Exception:  # what it raises is up to the layer
        return True, True
    left, kept = (
        [x for _, x in leaves((each.output, each.result), "")]
        + [held.array for path, held in _arrays(each.layer) if path != there]
        for each in (found, used)
    )
    same = len(left) == len(kept) and all(map(np.array_equal, left, kept))
    return not np.array_equal(at(found.layer, there), other), not same


def _places(path: str) -> list[str]:
    """Where it may be: of params.w in grads.w, and of w.data in w.grad; beside W in dW; or in grads, as W or as dW."""
    steps = path.split(".")
    named = [k for k, step in enumerate(steps) if not step.isdecimal()]
    by_custom = {k: (HOLDERS | VALUES if k else HOLDERS).get(steps[k], ()) for k in named}
    others = [[*steps[:k], name, *steps[k + 1 :]] for k in named for name in by_custom[k]]
    within = [[*steps[:k], name, *steps[k:]] for k in named for name in TOGETHER]
    places = [*others, *_beside(steps), *within]
    places += (there for instead in (*others, *within) for there in _beside(instead))
    return [".".join(there) for there in places]


def _beside(steps: list[str]) -> list[list[str]]:
    """Beside an attribute, under each of the names that its gradient may have: of _w, _dw as well."""
    last = max(k for k, step in enumerate(steps) if not step.isdecimal())
    name = steps[last].lstrip("_")
    lead = steps[last].removesuffix(name)
    return [[*steps[:last], lead + form.format(name), *steps[last + 1 :]] for form in BESIDE]


def _each_once(layer: Any, pairs: Mapping[str, str | None], before: Mapping[str, _Held]) -> dict[str, str | None]:
    """The paths to parameters and their gradients, by the first of several ways to the same array that has one.

    Where each of two ways to it has a gradient of its own, neither is that of the array, and it has none.
    """
    ways: dict[int, list[str]] = {}
    for path in pairs:
        ways.setdefault(id(before[path].array), []).append(path)
    once = {}
    for paths in ways.values():
        first, *_ = [path for path in paths if pairs[path] is not None] or paths
        one, *others = [at(layer, there) for path in paths if (there := pairs[path]) is not None] or [None]
        if all(np.array_equal(one, x) for x in others):
            once[first] = pairs[first]
    return once


def _used(methods: Methods, values: tuple[Any, ...]) -> _Used:
    """The layer after its forward, and its backward of the output itself."""
    layer, output = methods.ran(tuple(map(detached, values)))
    outputs = Nest({"output": detached(output)}, numbers=True)
    d_output = outputs.filled(map(np.array, outputs.arrays.values()), alone=True)["output"]
    return _Used(layer, outputs.trees["output"], methods.pulled(layer, d_output)[0])


def _moved(methods: Methods, values: tuple[Any, ...], path: str, output: Any) -> tuple[bool, bool]:
    """Whether forward leaves an array of the layer as it is, once that has moved, and whether the output has, too."""
    of_it = replace(methods, parameters={path: None})
    (x,) = elsewhere([at(methods.layer, path)], np.random.default_rng(0))
    try:
        layer, there = of_it.ran((*map(detached, values), x))
        pairs = zip(leaves(output, ""), leaves(there, ""), strict=True)
        return _is_at(layer, path, x), not all(np.array_equal(y, z) for (_, y), (_, z) in pairs)
    except Exception:  # what it raises is up to the layer
        return True, True


def _made(
    methods: Methods, values: tuple[Any, ...], before: Mapping[str, _Held], after: Mapping[str, _Held]
) -> list[str]:
    """The paths to arrays that forward makes, but for those that are others where the inputs have moved."""
    known = [id(held.array) for path, held in after.items() if path in before]
    inputs = Nest(dict(zip(methods.names, values, strict=True)))
    there = inputs.filled(elsewhere(inputs.arrays.values(), np.random.default_rng(0)))
    try:
        layer, _ = methods.ran(tuple(there.values()))
    except Exception:  # what it raises is up to the layer
        return []
    made = {path: held.array for path, held in after.items() if path not in before and id(held.array) not in known}
    return [path for path, x in made.items() if _is_at(layer, path, x)]


def _arrays(
    held: Any, path: str = "", through: tuple[str, ...] = (), seen: tuple[Any, ...] = ()
) -> Iterator[tuple[str, _Held]]:
    """The arrays of an object by their paths, and those of the objects that it holds."""
    by_custom = () if path else (*HOLDERS, *ASKED_FOR)  # which may be properties
    slots = (kind.__dict__.get("__slots__", ()) for kind in type(held).__mro__)
    slotted = (name for names in slots for name in ([names] if isinstance(names, str) else names))
    names = dict.fromkeys((*by_custom, *getattr(held, "__dict__", {}), *slotted))
    is_one = bool(path) and "grad" in names and not names.keys().isdisjoint(VALUES)  # a parameter
    if is_one:
        names.pop("grad")
    for name in names:
        led = (name,) if is_one and name not in VALUES else (*through, name)  # to what an optimizer keeps beside it
        for there, leaf in leaves(getattr(held, name, None), name):
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fc":
                yield path + there, _Held(leaf, led)
            elif not (any(leaf is x for x in (held, *seen)) or isinstance(leaf, type | ModuleType)):
                yield from _arrays(leaf, f"{path}{there}.", led, (*seen, held))


def _is_at(layer: Any, path: str, x: Array) -> bool:
    """Whether a path leads to an array: there may be keys that no path can name."""
    try:
        return np.array_equal(at(layer, path), x, equal_nan=True)
    except ValueError:
        return False
