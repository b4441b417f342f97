"""What `import attention_np` gives."""

import subprocess
import sys

import pytest

import attention_np


def test_every_public_name_is_there() -> None:
    for name in [*attention_np.__all__, *attention_np.LATER]:
        assert getattr(attention_np, name).__name__ in {name, f"attention_np.{name}"}
        assert name in dir(attention_np)
    with pytest.raises(AttributeError, match=r"^module 'attention_np' has no attribute 'flash'$"):
        attention_np.flash  # noqa: B018


def test_what_is_not_asked_for_is_not_imported() -> None:
    code = "import attention_np, sys; print(set(sys.modules) & {f'attention_np.{name}' for name in attention_np.LATER})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "set()\n"
