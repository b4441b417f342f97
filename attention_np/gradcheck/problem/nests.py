"""Arguments and results in nests of tuples, lists and mappings, seen as the arrays that the harness moves.

Of the arguments of a function, the floating-point arrays are moved. Whatever else there is (integers, masks, None,
flags, strings, numbers within a nest) is passed on as it is. An array within a nest is called by its path, as
``layers.0.w``. A complex one is two, ``z.real`` and ``z.imag``, and so its gradient is ``d_real + 1j * d_imag``: that
is PyTorch's convention. JAX gives the complex conjugate.
"""

from __future__ import annotations

import copy
import inspect
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array

Children = Callable[[Any], dict[Any, Any] | None]
Parts = tuple[tuple[str, tuple[int, ...]], ...]  # of arrays that are laid end to end: the path and the shape of each


def children(tree: Any) -> dict[Any, Any] | None:
    """What a tuple, a list or a mapping holds, by key; None for a leaf."""
    if isinstance(tree, np.ndarray):  # most are, and this is asked at every call of the functions
        return None
    if isinstance(tree, Mapping):
        return dict(tree)
    if hasattr(tree, "_asdict"):
        return dict(tree._asdict())
    return dict(enumerate(tree)) if isinstance(tree, tuple | list) else None


def leaves(tree: Any, path: str = "", children: Children = children) -> Iterator[tuple[str, Any]]:
    """The leaves of nested tuples, lists and mappings, each with its path."""
    held = children(tree)
    if held is None:
        yield path, tree
        return
    for key, child in held.items():
        yield from leaves(child, f"{path}.{key}", children)


def filled(tree: Any, leaves: Iterator[Any], children: Children = children) -> Any:
    """The inverse of :func:`leaves`: the same tree with the next of these leaves."""
    held = children(tree)
    if held is None:
        return next(leaves)
    values = {key: filled(child, leaves, children) for key, child in held.items()}
    if isinstance(tree, Mapping):
        return values
    return type(tree)(*values.values()) if hasattr(tree, "_asdict") else type(tree)(values.values())


def by_path(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Leaves by their paths, no two of which may be the same."""
    held: dict[str, Any] = {}
    for path, leaf in pairs:
        if path in held:
            raise ValueError(f"inputs hold two arrays that would both be called {path}")
        held[path] = leaf
    return held


def parts_of(vector: Array, parts: Parts) -> dict[str, Array]:
    """The arrays that are laid end to end in a vector, by path."""
    ends = np.cumsum([math.prod(shape) for _, shape in parts])[:-1]
    pairs = zip(parts, np.split(vector, ends), strict=True)
    return {path: part.reshape(shape) for (path, shape), part in pairs}


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function, if it can be read."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many arguments in order, as far as its signature can be read."""
    signature = signature_of(function)
    try:
        return signature is None or bool(signature.bind(*range(count)))
    except TypeError:
        return False


def arguments_of(inputs: Any, signature: inspect.Signature | None) -> tuple[dict[str, Any], int]:
    """The arguments by name, and how many of them, the first ones, are passed by position."""
    parameters = list(signature.parameters.values()) if signature is not None else []
    if not isinstance(inputs, Mapping):
        values = inputs if isinstance(inputs, tuple | list) else (inputs,)
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        names += [f"input {i}" for i in range(len(names), len(values))]
        return dict(zip(names, values, strict=False)), len(values)
    if signature is not None and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        try:
            bound = signature.bind(**inputs)
        except TypeError:  # the names are not those of the parameters: they are for the report
            return dict(inputs), len(inputs)
        return {**dict(zip(signature.parameters, bound.args, strict=False)), **bound.kwargs}, len(bound.args)
    return dict(inputs), len(inputs)


def by_name(gradients: Any, *names: Sequence[str]) -> dict[str, Any]:
    """The gradients that a backward returns by the names of the inputs, the first of those that are as many."""
    if isinstance(gradients, Mapping | Iterator):
        raise TypeError(f"backward must return a tuple in the order of the inputs, not a {type(gradients).__name__}")
    given = gradients if isinstance(gradients, tuple | list) else [gradients]
    for those in names:
        if len(those) == len(given):
            return dict(zip(those, given, strict=True))
    each = f"each of the {len(names[0])} inputs ({', '.join(names[0])})"
    raise ValueError(f"backward must return one gradient for {each}, not {len(given)}")


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is of floating-point numbers that NumPy does not have, as bfloat16 of ml_dtypes."""
    return dtype.kind == "V" and dtype.names is None and np.can_cast(dtype, np.float64)


class Nest:
    """Nests by name, some of whose leaves are moved: the arrays, and single `numbers`, too, if that is asked for.

    `leaves` are all of them, by path; `kinds` those of the ones that are moved: "f" for an array of real numbers, "c"
    for one of complex numbers.
    """

    def __init__(self, trees: Mapping[str, Any], *, numbers: bool = False) -> None:
        self.trees = dict(trees)
        self.leaves = by_path(pair for name, tree in self.trees.items() for pair in leaves(tree, name))
        kinds = {path: _kind(leaf, numbers) for path, leaf in self.leaves.items()}
        self.kinds = {path: kind for path, kind in kinds.items() if kind}

    @classmethod
    def of_arguments(cls, inputs: Mapping[str, Any]) -> Nest:
        """Those of the arguments of a function, with arrays made of what NumPy makes such of."""
        return cls({name: _as_argument(name, value) for name, value in inputs.items()})

    @property
    def is_complex(self) -> bool:
        """Whether some of the arrays are complex."""
        return "c" in self.kinds.values()

    @property
    def moved(self) -> list[str]:
        """The names of the trees that hold an array that is moved."""
        return [name for name, tree in self.trees.items() if any(path in self.kinds for path, _ in leaves(tree, name))]

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays that are moved, by path."""
        return {name: x for path in self.kinds for name, x in self._halves(path, self.leaves[path])}

    @property
    def parts(self) -> Parts:
        """Of the arrays that are moved, as :meth:`joined` lays them end to end."""
        return tuple((path, np.asarray(x).shape) for path, x in self.arrays.items())

    def filled(self, arrays: Iterable[Any], *, alone: bool = False) -> dict[str, Any]:
        """The trees, by name, with these arrays; if they stand `alone`, None is in the place of all other leaves."""
        given = iter(arrays)
        ready: list[Any] = []
        for path, leaf in self.leaves.items():
            kind = self.kinds.get(path)
            if kind:
                ready.append(next(given) if kind == "f" else np.asarray(next(given) + 1j * next(given)))
            else:
                ready.append(None if alone else copy.deepcopy(leaf) if _is_changed_by_use(leaf) else leaf)
        following = iter(ready)
        return {name: filled(tree, following) for name, tree in self.trees.items()}

    def by_tree(self, result: Any) -> dict[str, Any]:
        """The gradients that a function returns, by the names of the trees.

        There is one for each of the trees, or for each of those that hold an array that is moved. If that is one, then
        its gradient itself will do.
        """
        moved, several = self.moved, isinstance(result, Iterator | tuple | list)
        if len(moved) == 1 and not (several and not _have_one_form(self.trees[moved[0]], result)):
            return {moved[0]: result}
        alone = [x for _, x in leaves(result)]  # as in dX, [dW, db]
        counts = (len(moved), len(self.trees))
        is_nest = isinstance(result, tuple | list) and len(result) not in counts and len(alone) in counts
        return by_name(alone if is_nest else result, moved, list(self.trees))

    def gradients(self, result: Any) -> list[Any]:
        """The gradients by the arrays that are moved, from nests of the same form; None for one that is missing."""
        given: dict[str, Any] = {}
        for name, gradient in self.by_tree(result).items():
            given.update(_gradients_by_path(self.trees[name], gradient, name))
        for path, gradient in given.items():
            if path not in self.kinds:
                _refuse_of_constant(path, self.leaves[path], gradient)
        return [x for path in self.kinds for _, x in self._halves(path, given.get(path))]

    def joined(self, result: Any) -> Array:
        """The arrays of another nest of the same form as one vector; where all carry leading axes, one in each."""
        there = dict(leaves(result, next(iter(self.trees))))
        rows = []
        for path in self.kinds:
            shape = np.shape(self.leaves[path])
            for _, x in self._halves(path, np.asarray(there[path])) if path in there else [("", np.empty(()))]:
                axes = x.ndim - len(shape)
                if path not in there or x.shape[max(axes, 0) :] != shape:
                    now = f"then {x.shape}" if path in there else "then missing"
                    raise ValueError(f"forward must return the same outputs at each call: {path} is {shape}, {now}")
                rows.append(x.reshape(*x.shape[:axes], math.prod(shape)))
        lead = np.broadcast_shapes(*(x.shape[:-1] for x in rows))
        return np.concatenate([np.broadcast_to(x, (*lead, x.shape[-1])) for x in rows], axis=-1)

    def split(self, vector: Array) -> Any:
        """The inverse of :meth:`joined`: the first tree with the parts of a vector, None in the place of other leaves.

        Each part has the dtype of its array, unless the whole has a wider one than all arrays together.
        """
        dtypes = [np.asarray(x).dtype for x in self.arrays.values()]
        wider = vector.dtype != np.result_type(*dtypes)
        pairs = zip(parts_of(vector, self.parts).values(), dtypes, strict=True)
        parts = [part.astype(vector.dtype if wider else dtype, copy=False) for part, dtype in pairs]
        return next(iter(self.filled(parts, alone=True).values()))

    def _halves(self, path: str, leaf: Any) -> list[tuple[str, Any]]:
        """A leaf, or the two parts of a complex one, each with its name."""
        if self.kinds[path] == "f":
            return [(path, leaf)]
        both = (None, None) if leaf is None else (np.real(leaf), np.imag(leaf))
        return list(zip((f"{path}.real", f"{path}.imag"), both, strict=True))


def _is_changed_by_use(leaf: Any) -> bool:
    """Whether a call may leave this otherwise than it was, so that each gets a copy."""
    return isinstance(leaf, np.ndarray | np.random.Generator | np.random.RandomState | random.Random)


def _as_argument(name: str, value: Any) -> Any:
    """A nest, or something that is no array, as it is; what NumPy makes an array of floating-point numbers, as that."""
    is_nest = children(value) is not None and not all(isinstance(leaf, Real) for _, leaf in leaves(value))
    if is_nest or isinstance(value, np.ndarray):
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        raise TypeError(f"input {name} must be an array, not a {type(value).__name__} of uneven lists") from None
    return array if array.dtype.kind in "fc" else value


def _kind(leaf: Any, numbers: bool) -> str:
    """Whether a leaf is moved: "f" if it is real, "c" if it is complex, "" if it is not."""
    if not isinstance(leaf, np.ndarray) and not (numbers and isinstance(leaf, float | complex | np.inexact)):
        return ""
    dtype = np.asarray(leaf).dtype
    return "f" if is_narrow(dtype) else dtype.kind if dtype.kind in "fc" else ""


def _have_one_form(tree: Any, other: Any) -> bool:
    """Whether two nests have the same form; a tuple will do for a NamedTuple."""
    held, there = children(tree), children(other)
    if held is None or there is None:
        return held is there and not isinstance(other, Iterator)
    same = list(held) == list(there) or (not isinstance(tree, Mapping) and len(held) == len(there))
    return same and all(map(_have_one_form, held.values(), there.values()))


def _gradients_by_path(tree: Any, gradient: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The gradient of each leaf of a tree; a tuple will do for a NamedTuple."""
    held, given = children(tree), {} if gradient is None else children(gradient)
    if held is None:
        yield path, gradient
        return
    if isinstance(gradient, tuple | list) and len(gradient) == len(held):
        given = dict(zip(held, gradient, strict=True))
    if given is None or not given.keys() <= held.keys():
        form = f"a {type(tree).__name__} of {', '.join(map(str, held))}"
        raise ValueError(f"the gradient of {path} must be {form}, as it is itself, not a {type(gradient).__name__}")
    for key, child in held.items():
        yield from _gradients_by_path(child, given.get(key), f"{path}.{key}")


def _refuse_of_constant(path: str, leaf: Any, gradient: Any) -> None:
    """Refuse a gradient by something that is not moved, if it says more than zero."""
    is_number = isinstance(leaf, np.ndarray | Real) and np.asarray(leaf).dtype.kind in "iuf"
    if is_number and isinstance(gradient, np.ndarray | float) and np.any(gradient):
        kind = np.asarray(leaf).dtype
        raise TypeError(f"backward returns a gradient for {path}, a constant of {kind}: pass an array of float64")
