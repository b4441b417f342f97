from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

for profile, examples in {"suite": 40, "quick": 8}.items():
    settings.register_profile(
        profile, deadline=None, derandomize=True, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )

collect_ignore = ["fixtures"]  # what test_new_op adds to a copy of the whole
LONG = ("mutation", "peers", "plot", "website")  # folders beside this file
SLOWEST = ("tests/website/", "tests/test_examples.py")  # with these one process would be busy when others have ended
PASSED = count(1)


def is_quick(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "not long")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("quick" if is_quick(config) else "suite")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders that are long as a whole are not even read where long tests are left out."""
    here = collection_path.parent == Path(__file__).parent
    return True if here and collection_path.name in LONG and is_quick(config) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(SLOWEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Processes take tests by file in this order, but those of the site by folder: others would wait for it."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return SLOWEST[0] if file.startswith(SLOWEST[0]) else file

    config.option.loadscopereorder = False
    return Scheduling(config, log) if config.option.dist == "loadfile" else None


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """Where long tests are left out, a dot is fifty that have passed: all of them would fill screens."""
    if is_quick(config) and report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
        return "passed", "" if next(PASSED) % 50 else ".", "PASSED"
    return None
