"""What the adapters of other libraries do without these libraries."""

import subprocess
import sys

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import autograd, jax, torch

pytestmark = pytest.mark.again


@each(("adapter", "title"), [(torch, "PyTorch"), (jax, "JAX"), (autograd, "autograd")])
def test_a_library_that_is_missing_is_asked_for_and_none_is_imported_before(adapter, title):
    name = adapter.__name__.rpartition(".")[2]
    with pytest.MonkeyPatch.context() as patch:
        for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
            patch.delitem(sys.modules, module)
        patch.setitem(sys.modules, name, None)  # which makes the import fail
        with pytest.raises(ImportError, match=rf"^gradcheck\.{name} needs {title}: pip install {name}$"):
            adapter.check(lambda x: x, np.ones(3))
    program = f"import sys; from attention_np.gradcheck import {name}; assert {name!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
