"""What a layer computes, for people: the lines of its recipe that it goes through."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from attention_np.atlas._mirror import About


def described(about: About) -> str:
    """The recipe of a module, with its options."""
    recipe = getattr(about.compute, "recipe", None)
    absent = about.compute.absent(about) if hasattr(about.compute, "absent") else set()
    shown = about.compute if recipe is None else recipe
    return f"{about.kind}: {shown.__name__}\n{lines_of(shown, absent)}"


def lines_of(recipe: Any, absent: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    """The source of a recipe, without its signature, and without what it does for arguments that are `absent`."""
    text = textwrap.dedent(inspect.getsource(recipe))
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    skipped: set[int] = set()
    for x in ast.walk(node):
        if isinstance(x, ast.If):
            tested = {y.id for y in ast.walk(x.test) if isinstance(y, ast.Name)} & absent
            if tested and not x.orelse:
                skipped |= set(range(x.lineno, (x.end_lineno or x.lineno) + 1))
    first = node.body[1 if ast.get_docstring(node) else 0]
    rows = enumerate(text.splitlines(), 1)
    return textwrap.dedent("\n".join(row for number, row in rows if number >= first.lineno and number not in skipped))
