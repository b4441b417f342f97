"""What the adapters of other libraries do without these libraries."""

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from attention_np.gradcheck import autograd, jax, torch

pytestmark = pytest.mark.again
ADAPTERS = [(torch, "PyTorch"), (jax, "JAX"), (autograd, "autograd")]


@pytest.mark.parametrize(("adapter", "title"), ADAPTERS, ids=[title for _, title in ADAPTERS])
def test_a_library_that_is_missing_is_asked_for(
    adapter: ModuleType, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = adapter.__name__.rpartition(".")[2]
    monkeypatch.setitem(sys.modules, name, None)  # which makes the import fail
    for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImportError, match=rf"^gradcheck\.{name} needs {title}: pip install {name}$"):
        adapter.check(lambda x: x, np.ones(3))


def test_the_adapters_import_no_library_before_they_need_it() -> None:
    program = """
import sys
from attention_np.gradcheck import autograd, jax, torch
print({"autograd", "jax", "torch"} & set(sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "set()"
