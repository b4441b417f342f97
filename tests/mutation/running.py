"""Runs the tests on each mutant, in a process forked from one in which pytest has collected them already."""

import gc
import json
import math
import os
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from coverage import Coverage

from .children import Child
from .mutants import Mutant

MEMORY = 8 << 30  # bytes of address space: some mutants ask for more than any machine has
OUT_OF_TIME = (-9, -24)  # SIGKILL, SIGXCPU


class Outcome(NamedTuple):
    """What became of a mutant: `verdict` is killed, survived, untested (no test comes there) or same (to Python)."""

    mutant: Mutant
    verdict: str
    by: str = ""  # the test that failed, "time" or "crash"
    seconds: float = 0


class Runner:
    """A plugin of pytest that, in the place of running the tests, runs them on mutants, and hands on each outcome."""

    def __init__(
        self, mutants: Iterable[Mutant], report: Callable[[Outcome], None], *, jobs: int, most_seconds: float
    ) -> None:
        self._mutants, self._report, self._jobs, self._most_seconds = list(mutants), report, jobs, most_seconds
        self._kills: dict[tuple[Path, str], Counter[str]] = defaultdict(Counter)
        self._failed = False
        self._items: dict[str, pytest.Item] = {}
        self._seconds: dict[str, float] = {}  # of each test that passes on the code as it is
        self._tests_at: dict[str, dict[int, list[str]]] = {}  # path, line: the tests that come there
        self.unfit: list[str] = []  # tests that fail on the code as it is
        self.done = False

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings  # pytest complains where this comes before its own plugins

        settings.register_profile(
            "mutation",
            settings.get_profile("suite"),
            phases=[Phase.explicit, Phase.generate],
            report_multiple_bugs=False,
            database=None,
        )
        settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure which tests come where, and how long each takes; then run those that may notice each mutant."""
        if session.testsfailed:
            raise session.Interrupted("not all tests could be collected")
        self._items = {item.nodeid: item for item in session.items}
        gc.freeze()  # what is there by now is shared with the forked processes, and collecting it would copy it
        with TemporaryDirectory() as folder:
            child = Child(partial(self._measure, Path(folder)))
            self._seconds, self.unfit, tests_at = json.loads(child.connection.recv_bytes())
            child.end()
        self._tests_at = {path: {int(line): names for line, names in lines.items()} for path, lines in tests_at.items()}
        self._try_all()
        self.done = True
        return True

    def _measure(self, folder: Path, connection: Connection) -> None:
        paths = sorted({str(mutant.module.path.resolve()) for mutant in self._mutants})
        coverage = Coverage(data_file=str(folder / "coverage"), include=paths, config_file=False)
        seconds, unfit = {}, []
        coverage.start()
        items = list(self._items.values())
        for item, after in zip(items, [*items[1:], None], strict=True):
            coverage.switch_context(item.nodeid)
            start = time.process_time()
            if self._fails(item, after):
                unfit.append(item.nodeid)
            else:
                seconds[item.nodeid] = time.process_time() - start
        coverage.stop()
        data = coverage.get_data()
        tests_at = {
            path: {line: [n for n in names if n in seconds] for line, names in data.contexts_by_lineno(path).items()}
            for path in paths
        }
        connection.send_bytes(json.dumps([seconds, unfit, tests_at]).encode())

    def _fails(self, item: pytest.Item, after: pytest.Item | None) -> bool:
        self._failed = False
        item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
        return self._failed

    def _try_all(self) -> None:
        waiting, running = iter(self._mutants), dict[Any, tuple[Mutant, Child]]()
        while True:
            while len(running) < self._jobs and (mutant := next(waiting, None)):
                tests = self._tests(mutant)
                if tests:
                    child = Child(partial(self._try, mutant, tests))
                    running[child.process.sentinel] = mutant, child
                else:
                    self._report(Outcome(mutant, "untested"))
            if not running:
                return
            done = wait(list(running), timeout=1)
            for sentinel, (mutant, child) in list(running.items()):
                if sentinel in done or child.is_stuck():
                    del running[sentinel]
                    self._note(_outcome(mutant, child))

    def _note(self, outcome: Outcome) -> None:
        if outcome.verdict == "killed":
            self._kills[outcome.mutant.module.path, outcome.mutant.name][outcome.by] += 1
        self._report(outcome)

    def _tests(self, mutant: Mutant) -> list[str]:
        """The tests that come where the mutant is, those that are likely to notice it soon first."""
        at = self._tests_at[str(mutant.module.path.resolve())]
        found = ({name for line in span for name in at.get(line, ())} for span in mutant.spans())
        names: Iterable[str] = next(filter(None, found), ())
        kills = self._kills[mutant.module.path, mutant.name]
        # What one case of a test does not notice, its next will hardly.
        cases, costs = Counter[str](), {}
        for name in sorted(names, key=lambda name: (self._seconds[name], name)):
            test = name.partition("[")[0]
            cases[test] += 1
            costs[name] = cases[test] * self._seconds[name]
        ordered, total = [], 0.0
        for name in sorted(costs, key=lambda name: (-kills[name], costs[name])):
            total += self._seconds[name]
            if total > self._most_seconds:
                break
            ordered.append(name)
        return ordered

    def _try(self, mutant: Mutant, tests: list[str], connection: Connection) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        if not mutant.apply():
            connection.send_bytes(b"same")
            return
        for name, after in zip(tests, [*tests[1:], None], strict=True):
            connection.send_bytes(f"by {name}".encode())
            limit = math.ceil(time.process_time() + 2 + 10 * self._seconds[name])
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            if self._fails(self._items[name], None if after is None else self._items[after]):
                os._exit(1)
        connection.send_bytes(b"survived")
        os._exit(0)


def _outcome(mutant: Mutant, child: Child) -> Outcome:
    code = child.end()
    if child.said in ("same", "survived"):
        return Outcome(mutant, child.said, seconds=child.seconds)
    if not child.said:
        raise RuntimeError(f"{mutant.module.path}: {mutant.texts()} could not be put in place")
    by = child.said.removeprefix("by ") if code == 1 else "time" if code in OUT_OF_TIME else "crash"
    return Outcome(mutant, "killed", by, child.seconds)
