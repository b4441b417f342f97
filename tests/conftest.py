from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

collect_ignore = ["fixtures"]  # what test_new_op adds to a copy of the whole
LONG = ("hostile", "mutation", "peers", "plot", "website")  # folders beside this file


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders that are long as a whole are not even read where long tests are left out."""
    here = collection_path.parent == Path(__file__).parent
    return True if here and collection_path.name in LONG and config.option.markexpr == "not long" else None
