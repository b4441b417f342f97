"""Derivatives in lines of NumPy: arrays with names such as ``dL_dS``, which the page has and no line works out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attention_np.derivation import nodes
from attention_np.derivation.identifiers import spelled
from attention_np.derivation.names import Names
from attention_np.derivation.pieces import Unsayable, upright
from attention_np.derivation.values import ONE

__all__ = ["called", "free_indices_of", "indices_of", "pattern", "shape_of"]

PARTS = "name", "text", "function", "kind", "size", "operators", "signs"  # of a node, beside those below it


def indices_of(node: nodes.Node) -> list[str]:
    """All indices in a node, as often as they stand there."""
    return [item.name for item in node.walk if isinstance(item, nodes.IndexRef)]


def free_indices_of(node: nodes.Node, without: frozenset[str] = frozenset()) -> list[str]:
    """The indices in a node that nothing in it binds, in their order."""
    if isinstance(node, nodes.IndexRef):
        return [] if node.name in without else [node.name]
    bound = getattr(node, "bound", None)
    if isinstance(bound, nodes.Bound) and not (isinstance(node, nodes.Call) and node.function == "softmax"):
        without |= frozenset(bound.names)
    return [name for child in node.children for name in free_indices_of(child, without)]


def pattern(node: nodes.Node, names: Mapping[str, int]) -> tuple[Any, ...]:
    """A node with its indices by number: the same for the same entries of the same derivative."""
    if isinstance(node, nodes.IndexRef):
        return ("index", names.get(node.name, node.name))
    own = {part: getattr(node, part, None) for part in PARTS}
    own["signs"] = [sign for sign, _ in own["signs"] or ()]
    return (
        type(node).__name__,
        *map(str, own.values()),
        len(getattr(node, "indices", None) or ()),
        *(pattern(child, names) for child in node.children),
    )


def shape_of(node: nodes.Node, names: Names) -> tuple[str, ...]:
    """The ranges of the anonymous axes of a derivative."""
    if isinstance(node, nodes.Tangent):
        return shape_of(node.top, names)
    if isinstance(node, nodes.Derivative):
        above, below = _axes_of(node.top, names), _axes_of(node.bottom, names)
        return upright((*above, *below))
    return upright(_axes_of(node, names))


def _axes_of(node: nodes.Node, names: Names) -> tuple[str, ...]:
    """The ranges of the axes of a symbol, or of a derivative, that no index stands at."""
    if isinstance(node, (nodes.Derivative, nodes.Tangent)):
        shape = shape_of(node, names)
        return shape[:1] if shape[1:] == (ONE,) else shape
    if not isinstance(node, nodes.Ref):
        return ()  # an expression in index form
    symbol = names.get(node.name)
    if symbol is None or symbol.axes is None:
        raise Unsayable(node.name)
    indices = node.indices or ()
    whole = [axis for index, axis in zip(indices, symbol.axes, strict=False) if isinstance(index, nodes.Slice)]
    return (*whole, *symbol.axes[len(indices) :])


def called(node: nodes.Node) -> str:
    """What a derivative is called: ``dL_dS``; a word stands apart, as in ``d_ell_ds``."""
    if isinstance(node, nodes.Tangent):
        is_derivative = isinstance(node.top, (nodes.Derivative, nodes.Tangent))
        return f"{called(node.top) if is_derivative else 'd' + _apart(called(node.top))}_dt"
    if isinstance(node, nodes.Derivative):
        below = spelled(node.bottom.name)
        if isinstance(node.top, nodes.Derivative):
            return f"d2{_apart(called(node.top.top))}_d{spelled(node.top.bottom.name)}_d{below}"
        return f"d{_apart(called(node.top))}_d{below}"
    if isinstance(node, nodes.Call) and len(node.arguments) == 1 and isinstance(node.arguments[0], nodes.Ref):
        return f"{node.function}_{called(node.arguments[0])}".replace("'", "")
    return spelled(node.name) if isinstance(node, nodes.Ref) else ""


def _apart(name: str) -> str:
    return f"_{name}" if name[:2].isalpha() and name[:2].islower() else name
