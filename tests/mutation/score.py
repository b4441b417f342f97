"""What became of the mutants: counted by module, logged, and held against the list of survivors."""

import json
from collections import Counter, defaultdict
from pathlib import Path

from scipy.stats import binomtest

from .running import Outcome
from .survivors import Survivor, listed


class Score:
    """Counts outcomes by module, and knows which survivors are new."""

    def __init__(self, log: Path | None) -> None:
        self._counts: dict[Path, Counter[str]] = defaultdict(Counter)
        self._new: list[str] = []
        self._listed, self._met = listed(), set[Survivor]()
        self._log = log.open("w", encoding="utf-8") if log else None

    def add(self, outcome: Outcome) -> None:
        mutant, path = outcome.mutant, outcome.mutant.module.path
        verdict = outcome.verdict
        if verdict != "killed":
            before, after = mutant.texts()
            survivor = Survivor(path.as_posix(), mutant.name, before, after)
            if survivor in self._listed:
                self._met.add(survivor)
            elif verdict != "same":
                line = next(mutant.spans()).start
                self._new.append(f"{path}:{line} {mutant.name} ({verdict})\n  - {before}\n  + {after}")
                print(f"{self._new[-1]}", flush=True)
        self._counts[path][verdict] += 1
        self._write(outcome)

    def show(self, *, complete: bool) -> int:
        """Print the table, and return the exit status."""
        total = sum(self._counts.values(), Counter[str]())
        width = max((len(str(path)) for path in self._counts), default=0)
        print(f"\n{'module':{width}}  mutants  killed  survived   rate")
        for name, count in [*((str(path), count) for path, count in sorted(self._counts.items())), ("all", total)]:
            print(f"{name:{width}}  {_row(count)}")
        killed, mutants = total["killed"], total.total() - total["same"]
        if mutants:
            low, high = binomtest(killed, mutants).proportion_ci(method="wilson")
            print(
                f"The rate of all is {killed / mutants:.1%}; a sample like this one puts it in {low:.1%} to {high:.1%}."
            )
        if complete:
            paths = {path.as_posix() for path in self._counts}
            for survivor in sorted(self._listed - self._met):
                if survivor.path in paths:
                    print(f"is listed but did not survive: {survivor}")
        print(f"{len(self._new)} survivors are not in survivors.yaml, {len(self._met)} are.")
        return 1 if self._new else 0

    def _write(self, outcome: Outcome) -> None:
        if not self._log:
            return
        before, after = outcome.mutant.texts() if outcome.verdict != "killed" else ("", "")
        entry = {
            "path": outcome.mutant.module.path.as_posix(),
            "number": outcome.mutant.number,
            "line": next(outcome.mutant.spans()).start,
            "function": outcome.mutant.name,
            "before": before,
            "after": after,
            "verdict": outcome.verdict,
            "by": outcome.by,
            "seconds": round(outcome.seconds, 3),
        }
        self._log.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._log.flush()


def _row(count: Counter[str]) -> str:
    killed, mutants = count["killed"], count.total() - count["same"]
    return f"{mutants:7}  {killed:6}  {mutants - killed:8}  {killed / max(mutants, 1):6.1%}"
