import gc
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

for profile, examples in {"suite": 40, "quick": 8}.items():
    settings.register_profile(
        profile, deadline=None, derandomize=True, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )

collect_ignore = ["fixtures"]  # what test_new_op adds to a copy of the whole
LONG = ("peers", "plot", "website")  # folders beside this file
ANSWERED = ("tests/known_answers/", "tests/peers/test_known_answers_peers.py")
SLOWEST = ("tests/website/", *ANSWERED)  # with these one process would be busy when others have ended
DOTS = count(1)


def is_quick(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "not long")


def pytest_configure(config: pytest.Config) -> None:
    assert "helpers" not in sys.modules, "a conftest has imported helpers before it is known whether long tests run"
    settings.load_profile("quick" if is_quick(config) else "suite")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders that are long as a whole are not even read where long tests are left out."""
    here = collection_path.parent == Path(__file__).parent
    return True if here and collection_path.name in LONG and is_quick(config) else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """Every second process reads the files from the last to the first: so each finds half of them compiled."""
    report = yield
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579" and isinstance(collector, pytest.Directory):
        report.result.reverse()
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (not item.nodeid.startswith(SLOWEST), not item.nodeid.startswith("tests/"), item.path))
    if os.environ.get("PASSED") and not is_quick(config):
        leave_out(passed(), config, items)


def pytest_collection_finish() -> None:
    """The tests themselves stay to the end: to look through all of them for garbage, again and again, takes seconds.

    So does a look for each seven hundred objects, as many as one check makes in a moment.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


def passed() -> set[str]:
    """The tests that have passed in the run of which the file PASSED tells, as `--junitxml` writes it."""
    found = ET.parse(os.environ["PASSED"]).iter("testcase")  # noqa: S314 (it was made here)
    return {f"{x.get('classname', '').replace('.', '/')}.py::{x.get('name')}" for x in found if not len(x)}


def leave_out(names: set[str], config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has passed before, unless it tries more, or may see more, where all tests are run."""
    left = {x for x in items if x.nodeid in names and not x.get_closest_marker("again") and not tries_random(x)}
    config.hook.pytest_deselected(items=[*left])
    items[:] = [item for item in items if item not in left]


def tries_random(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Where tests are left out that have passed before: that the others have been run here."""
    if os.environ.get("PASSED") and not is_quick(config):
        stats = terminalreporter.stats
        of_now = {verdict: {report.nodeid for report in stats.get(verdict, ())} for verdict in ("passed", "failed")}
        seen = (passed() | of_now["passed"]) - of_now["failed"]
        skipped = {report.nodeid for report in stats.get("skipped", ())} - seen
        terminalreporter.write_line(f"{len(seen)} tests have passed, here or before, and {len(skipped)} were skipped.")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Processes take tests by file in this order, but those that share what is slow to make together."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return next((shared[0] for shared in (SLOWEST[:1], ANSWERED) if file.startswith(shared)), file)

    config.option.loadscopereorder = False
    return Scheduling(config, log) if config.option.dist == "loadfile" else None


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The known answers of every case in every precision; it takes a minute."""
    from known_answers.sets import written

    from attention_np.known_answers.formats import DTYPES

    return written(tmp_path_factory.mktemp("whole"), lambda _: True, DTYPES)


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """Where long tests are left out, a dot is fifty that have passed: all of them would fill screens."""
    if is_quick(config) and report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
        return "passed", "" if next(DOTS) % 50 else ".", "PASSED"
    return None
