from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

for profile, examples in {"suite": 40, "quick": 8}.items():
    settings.register_profile(
        profile, deadline=None, derandomize=True, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )

collect_ignore = ["fixtures"]  # what test_new_op adds to a copy of the whole
LONG = ("mutation", "peers", "website")  # folders beside this file


def is_quick(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "not long")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("quick" if is_quick(config) else "suite")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders that are long as a whole are not even read where long tests are left out."""
    here = collection_path.parent == Path(__file__).parent
    return True if here and collection_path.name in LONG and is_quick(config) else None
