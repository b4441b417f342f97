"""What `import attention_np` gives."""

import ast
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import attention_np


def imported_by(*statements: str) -> list[set[str]]:
    """What is imported after each of the statements, one after the other."""
    code = "; ".join(["import sys", *(f"{statement}; print(*sys.modules)" for statement in statements)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_every_public_name_is_there() -> None:
    names = [*attention_np.__all__, *attention_np.LATER]
    for name in names:
        assert getattr(attention_np, name).__name__ in {name, f"attention_np.{name}"}
    assert {*names, "OPS", "__version__"} == set(dir(attention_np))
    with pytest.raises(AttributeError, match=r"^module 'attention_np' has no attribute 'flash'$"):
        attention_np.flash  # noqa: B018


def test_tools_that_run_nothing_find_the_same_names() -> None:
    tree = ast.parse(Path(attention_np.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    read = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert read == {*attention_np.__all__, *attention_np.LATER}


@pytest.mark.again
def test_what_is_not_asked_for_is_not_imported() -> None:
    of_numpy, first, modules = imported_by("import numpy", "import attention_np", "from attention_np import *")
    assert {name for name in first if name.startswith("attention_np")} == {"attention_np"}
    assert {f"attention_np.{op}" for op in attention_np.OPS} <= modules
    assert modules.isdisjoint(f"attention_np.{name}" for name in attention_np.LATER)
    slow = {"concurrent.futures", "logging", "secrets"}  # they take longer than all ops
    assert slow & modules <= of_numpy


def test_the_types_of_every_public_function_are_tested() -> None:
    text = Path(__file__).with_name("typed.py").read_text(encoding="utf-8")
    others = ("masks", "rules", "biases", "positions", "cost", "trace", "plot", "known_answers", "conventions")
    modules = [*attention_np.OPS, *others]
    for module in (attention_np, *(getattr(attention_np, name) for name in (*modules, "gradcheck"))):
        public = getattr(module, "__all__", None) or vars(module)
        functions = [name for name in public if isinstance(getattr(module, name), FunctionType) and name[0] != "_"]
        for name in functions:
            if getattr(module, name).__module__.startswith("attention_np"):
                prefix = "anp" if module is attention_np else module.__name__.removeprefix("attention_np.")
                assert f"{prefix}.{name}(" in text
