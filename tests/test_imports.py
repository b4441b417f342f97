"""Imports run one way: the graph of the package's modules has no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

import attention_np

PACKAGE = Path(attention_np.__file__).parent


def modules_of(folder: Path) -> dict[str, Path]:
    """The modules of a package by their dotted names, without the name of the package."""
    names = {path: path.relative_to(folder).with_suffix("").parts for path in folder.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in names.items()}


def statements(block: ast.AST) -> Iterator[ast.AST]:
    """The statements of a block, and those within them: no expression holds one."""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(block, part, ()):
            yield inner
            yield from statements(inner)


def graph_of(folder: Path) -> dict[str, set[str]]:
    """What each module imports of its package, in functions and for the type checker, too."""
    modules = modules_of(folder)

    def imported(name: str, path: Path) -> Iterator[str]:
        package = f"{folder.name}.{name}" if path.stem == "__init__" else f"{folder.name}.{name}".rpartition(".")[0]
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = resolve_name("." * node.level + (node.module or ""), package.rstrip("."))
                inner = [f"{origin}.{alias.name}" for alias in node.names]
                yield from (name if name.partition(".")[2] in modules else origin for name in inner)

    def inside(names: Iterator[str]) -> set[str]:
        return {name.partition(".")[2] for name in names if name.partition(".")[0] == folder.name}

    return {name: inside(imported(name, path)) & {*modules} - {name} for name, path in modules.items()}


def circles_in(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules that can all be reached from one another."""
    reached = {name: set(inner) for name, inner in graph.items()}
    for middle in graph:
        for name in graph:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    return {frozenset(m for m in reached[name] if name in reached[m]) for name in graph if name in reached[name]}


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles_in(graph_of(PACKAGE)) == set()


@pytest.mark.parametrize(
    "import_",
    [
        "from package.{} import x",
        "from package import {}",
        "from .{} import x",
        "def f():\n    import package.{}",
        "try:\n    pass\nexcept Exception:\n    with f:\n        import package.{}",
        "if TYPE_CHECKING:\n    from package.{} import X",
    ],
)
def test_a_circle_is_found_wherever_its_imports_stand(tmp_path: Path, import_: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name, imported in ("ab", "bc", "ca", "da"):
        (package / f"{name}.py").write_text(import_.format(imported))
    (package / "__init__.py").write_text("from package import a, d")
    assert circles_in(graph_of(package)) == {frozenset("abc")}


def test_a_package_and_what_is_in_it_can_make_a_circle(tmp_path: Path) -> None:
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    (inner / "__init__.py").write_text("from .c import x")
    (inner / "c.py").write_text("from .. import inner")
    (inner.parent / "__init__.py").write_text("")
    assert circles_in(graph_of(inner.parent)) == {frozenset({"inner", "inner.c"})}
