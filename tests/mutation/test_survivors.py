"""The list of survivors is of code that is there."""

import ast
from pathlib import Path

from helpers import each

from .survivors import listed, one_line


def functions(node: ast.AST, within: str = "") -> set[str]:
    """The functions of a module and of its classes, as the list names them."""
    found = [x for x in ast.iter_child_nodes(node) if isinstance(x, ast.FunctionDef | ast.ClassDef)]
    inner = (functions(x, f"{x.name}.") if isinstance(x, ast.ClassDef) else {within + x.name} for x in found)
    return set().union(*inner)


@each("path", sorted({survivor.path for survivor in listed()}))
def test_a_survivor_on_the_list_is_a_change_of_a_function_that_is_there(path: str) -> None:
    text = Path(path).read_text(encoding="utf-8")
    names, code = functions(ast.parse(text)), one_line(text.splitlines())
    of_path = [survivor for survivor in listed() if survivor.path == path]
    assert not [x for x in of_path if x.function not in names or x.before not in code or x.before == x.after]
