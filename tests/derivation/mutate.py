"""Mutation of derivation pages: a wrong formula must not pass.

Takes every equation of the pages that holds, makes mutants of its LaTeX (see :mod:`.mutants`), and asks the engine
about each. A mutated claim must fail; a mutated definition must break something that uses it, or clash with the op. A
mutant that means the same as the original (both evaluate alike on fresh draws) is listed apart.

    python -m tests.derivation.mutate derivations [--every N] [--jobs N]
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from attention_np.derivation import PageCheck, read_page
from attention_np.derivation.compare import aligned_sides, equality
from attention_np.derivation.environment import LOSS, Environment
from attention_np.derivation.errors import Fault
from attention_np.derivation.evaluate import Evaluator, evaluate
from attention_np.derivation.examples import binds
from attention_np.derivation.names import Names
from attention_np.derivation.operators import check_operator
from attention_np.derivation.page import Equation, Page
from attention_np.derivation.record import Record
from attention_np.derivation.scope import Scope
from attention_np.derivation.statements import Statement, chains, find_target, read_statement
from attention_np.derivation.usage import unused
from attention_np.derivation.values import Value, indices_of

from .mutants import mutants

FRESH_SEED = 4711


@dataclass
class Score:
    """What became of the mutants."""

    killed: int = 0
    equivalent: list[str] = field(default_factory=list)
    survived: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.killed + len(self.survived)

    def add(self, other: Score) -> None:
        self.killed += other.killed
        self.equivalent += other.equivalent
        self.survived += other.survived

    def line(self) -> str:
        share = 100.0 * self.killed / max(1, self.total)
        return f"{self.killed} of {self.total} mutants caught ({share:.2f}%), {len(self.equivalent)} mean the same"

    def __str__(self) -> str:
        lines = ["equivalent: " + item for item in self.equivalent]
        lines += ["SURVIVED: " + item for item in self.survived]
        return "\n".join([*lines, self.line()])


def forked(check: PageCheck, sizes: int | None = None) -> PageCheck:
    """A copy that can go on from here by itself, in draws of some `sizes` or all; what is evaluated is shared."""
    other = copy.copy(check)
    other.drawing = replace(check.drawing, account=copy.copy(check.account))
    copies: dict[int, Scope] = {}

    def branch(scope: Scope) -> Scope:
        if id(scope) not in copies:
            copied = replace(scope, names=scope.names.copy(), definitions=scope.definitions.copy())
            copied.environments, copied.more = (
                [_branched(each, copied, other) for each in group[:sizes]] for group in (scope.environments, scope.more)
            )
            copies[id(scope)] = copied
        return copies[id(scope)]

    other.scope = branch(check.scope)
    other.examples = {key: branch(scope) for key, scope in check.examples.items()}
    return other


def _branched(environment: Environment, scope: Scope, check: PageCheck) -> Environment:
    other = copy.copy(environment)
    other.names, other.definitions = scope.names, scope.definitions
    other.arithmetic = copy.copy(environment.arithmetic)
    other.arithmetic.account = check.account
    other.free, other.values = dict(environment.free), dict(environment.values)
    other.jacobians, other._perturbed = dict(environment.jacobians), {}
    return other


class Mutator:
    """The mutants of one page."""

    def __init__(self, page: Page, op: Any = None) -> None:
        self.page = page
        self.op = op
        self.records: list[Record] = []
        # Where each equation can be judged again: before it if it defines something, else behind it.
        self.places: list[PageCheck] = []
        self.names: list[Names] = []  # that are known behind each equation
        self.defining: list[bool] = []
        check = PageCheck(page)
        for equation in page.equations:
            before = forked(check)
            record = check.equation(equation)
            defining = bool(record.defines) or self._is_binding(check, equation)
            self.records.append(record)
            self.names.append(check.scope_of(equation).names.copy())
            self.defining.append(defining)
            self.places.append(before if defining else forked(check))
        self.idle = set(unused(self.records, page.header))

    @cached_property
    def fresh(self) -> PageCheck:
        """The page at other draws."""
        check = PageCheck(self.page, seed=FRESH_SEED, draws=6)
        check.run()
        return check

    def _is_binding(self, check: PageCheck, equation: Equation) -> bool:
        if equation.mark or equation.fault or check.scope_of(equation) is check.scope:
            return False
        names = check.scope_of(equation).names
        return any(binds(read_statement(chain, names), names) for chain in chains(equation.text))

    def run(self, score: Score, every: int = 1) -> None:
        """Make and judge the mutants of the page, or a sample of one in ``every``."""
        for position, record in enumerate(self.records):
            if record.verdict != "holds":
                continue
            equation = self.page.equations[position]
            for kind, text in mutants(equation.text, self.names[position]):
                if zlib.crc32(f"{record.tag} {text}".encode()) % every:
                    continue
                if self.catches(position, text):
                    score.killed += 1
                    continue
                shown = f"{record.tag} ({kind}): {' '.join(text.split())}"
                (score.equivalent if self._same(equation, text) else score.survived).append(shown)

    def catches(self, position: int, text: str) -> bool:
        """Whether the page with another equation at this position fails."""
        mutant = replace(self.page.equations[position], text=text)
        check = self.places[position]
        if self.defining[position] or self._defines(check, mutant):
            # What fails in some draws fails.
            return any(self._replay(forked(check, sizes), position, mutant) for sizes in (1, None))
        record = check.equation(mutant)
        return record.verdict == "fails" or self._idles(position, record)

    def _defines(self, check: PageCheck, mutant: Equation) -> bool:
        names = check.scope_of(mutant).names
        try:
            return any(find_target(chain, names) is not None for chain in chains(mutant.text))
        except Fault:
            return False

    def _idles(self, position: int, record: Record) -> bool:
        if self.records[position].uses <= record.uses and not record.defines:
            return False
        records = [*self.records[:position], record, *self.records[position + 1 :]]
        return not set(unused(records, self.page.header)) <= self.idle

    def _replay(self, check: PageCheck, position: int, mutant: Equation) -> bool:
        """Judge the mutant and everything behind it that depends on what it defines, then the op."""
        equations = list(self.page.equations)
        equations[position] = mutant
        check.page = replace(self.page, equations=equations)
        start = position
        everything = False
        if mutant.example >= 0:  # an example is set up from all of its equations
            check.examples.pop(mutant.example, None)
            start = min(k for k, item in enumerate(equations) if item.example == mutant.example)
            everything = self.records[position].defines == ()
        changed: set[str] = set(self.records[position].defines)
        records = list(self.records)
        for later in range(start, len(equations)):
            old = self.records[later]
            inside = everything and equations[later].example == mutant.example
            affected = inside or later == position or bool(old.uses & changed)
            if not affected and not self.defining[later]:
                continue
            record = records[later] = check.equation(equations[later])
            if record.verdict != old.verdict:
                return True
            if affected:
                changed |= set(old.defines) | set(record.defines)
                header = self.page.header
                if header.output in changed or header.cotangent in changed:
                    changed.add(LOSS)
        if not set(unused(records, self.page.header)) <= self.idle:
            return True
        if self.op is None or not changed & {self.page.header.output, *self.page.header.code.values()}:
            return False
        return not all(item.ok for item in check_operator(check, self.op))

    def _same(self, original: Equation, text: str) -> bool:
        """Whether the mutant says the same: each side and each condition evaluates alike."""
        scope = forked(self.fresh).scope_of(original)  # with an account of its own
        try:
            for old, new in zip(chains(original.text), chains(text), strict=True):
                one, two = read_statement(old, scope.names), read_statement(new, scope.names)
                for environment in scope.environments:
                    if not _same_statement(environment, one, two):
                        return False
        except (Fault, ValueError, TypeError):
            return False
        return True


def _same_statement(environment: Environment, one: Statement, two: Statement) -> bool:
    if one.relations != two.relations or (one.condition is None) != (two.condition is None):
        return False
    if one.condition is not None and two.condition is not None:
        first, second = (Evaluator(environment).condition(node) for node in (one.condition, two.condition))
        if first.names != second.names or not np.array_equal(first.data, second.data):
            return False
    for left, right in zip(one.sides, two.sides, strict=True):
        if left is None or right is None:
            return False
        a, b = evaluate(environment, left), evaluate(environment, right)
        b = _renamed(b, a)
        pairs = aligned_sides(environment.arithmetic, a, b, None, (0, 0))
        if not all(equality(*pair, a.scale, b.scale, True)[1] for pair in pairs):
            return False
    return True


def _renamed(value: Value, like: Value) -> Value:
    """With its one different free index renamed: what an index is called says nothing."""
    new = [name for name in indices_of(value.names) if name not in like.names]
    old = [name for name in indices_of(like.names) if name not in value.names]
    if len(new) == len(old) == 1:
        return value._replace(names=tuple(old[0] if name == new[0] else name for name in value.names))
    return value


def operator_of(page: Page) -> Any:
    """The op that a page belongs to, if it says which arrays are which."""
    from attention_np.cases import OPS

    return OPS.get(page.header.op or "") if page.header.code else None


def mutate(path: Path | str, every: int = 1) -> tuple[str, Score]:
    """The name of a page and its score."""
    page = read_page(path)
    score = Score()
    Mutator(page, operator_of(page)).run(score, every)
    return page.name, score


def mutate_pages(paths: Iterable[Path], every: int = 1, jobs: int = 1) -> dict[str, Score]:
    """The score of each page."""
    largest_first = sorted(paths, key=lambda path: -path.stat().st_size)
    if jobs == 1:
        return dict(sorted(mutate(path, every) for path in largest_first))
    with ProcessPoolExecutor(jobs) as pool:
        return dict(sorted(pool.map(mutate, largest_first, repeat(every))))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="mutate", description="Mutate derivation pages: every mutant must fail")
    parser.add_argument("pages", nargs="+", type=Path, help="pages, or folders of pages")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="a sample: one mutant in N")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="how many processes; by default as many as cores"
    )
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    paths = [path for item in options.pages for path in (sorted(item.glob("*.md")) if item.is_dir() else [item])]
    scores = mutate_pages(paths, options.every, options.jobs)
    total = Score()
    for name, score in scores.items():
        print(f"{name}\n{score}\n")
        total.add(score)
    for name, score in scores.items():
        print(f"{name:14} {score.line()}")
    print(f"{'all':14} {total.line()}; {time.perf_counter() - started:.1f} s")
    return 1 if total.survived else 0


if __name__ == "__main__":
    sys.exit(main())
