"""Mutation testing: change the code in one place, and some test must fail.

    python -m tests.mutation [MODULE ...] [--sample N] [--jobs N] [--log FILE]

Every survivor must stand in `survivors.yaml` with the reason why no test can or need notice it. Exit status 1 says that
there is one which does not, 0 that there is none, 2 that the tests could not be run. The whole takes hours;
`--sample 300` takes minutes, and says how sure the rate is.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import attention_np

from .mutants import Module
from .running import Outcome, Runner
from .score import Score

PACKAGE = Path("attention_np")
OPS = " ".join((*attention_np.OPS, "masks", "rules", "functional"))
ROOMS = "_blockwise _chain _linear_attention _multi_head _rotary _softmax _weightings _lib"
GROUPS = {  # a module belongs to the first group that has it
    "ops": [f"{name}.py" for name in OPS.split()] + [f"{room}/*.py" for room in ROOMS.split()],
    "adapters": [f"gradcheck/{name}.py" for name in ("adapting", "torch", "jax", "autograd")],
    "gradcheck": ["gradcheck/**/*.py"],
}
USUAL = ("ops", "gradcheck")  # the adapters need the libraries that they adapt
PICTURES = PACKAGE / "gradcheck/plot.py"  # how they look, no test sees
ALSO = "arrays corners properties ops"
TESTS = {
    "ops": [
        *(f"tests/test_{name}.py" for name in (OPS + " " + ALSO).split()),
        *("tests/_lib", "tests/_blockwise", "tests/hostile"),
    ],
    "adapters": ["tests/gradcheck/test_adapting.py", "tests/peers/test_gradcheck_*.py"],
    "gradcheck": ["tests/gradcheck", "tests/_lib/test_json.py"],
}
ELSEWHERE = "processes or dask or test_pytest_plugin"  # tests whose work other processes do: those know no mutant
COMMAND = ["-k", f"not ({ELSEWHERE})", "--doctest-modules", "--quiet", "--capture=no", "--tb=native"]
COMMAND += ["-p", "no:cacheprovider", "--no-header"]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    paths = _paths(options.modules)
    mutants = [mutant for path in paths for mutant in Module(path).mutants()]
    if options.sample:
        mutants = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    print(f"{len(mutants)} mutants of {len(paths)} modules. First the tests run without any.", flush=True)
    score = Score(options.log)
    killed = _killed(options.resume) if options.resume else {}
    for mutant in mutants:
        if mutant.key in killed:
            score.add(Outcome(mutant, "killed", killed[mutant.key]))
    rest = [mutant for mutant in mutants if mutant.key not in killed]
    runner = Runner(rest, score.add, jobs=options.jobs, most_seconds=options.most_seconds)
    with TemporaryDirectory() as folder:  # of its own: another pytest would clear what is not kept
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        pytest.main([*COMMAND, "-o", "tmp_path_retention_policy=none", *_tests(paths)], plugins=[runner])
    if not runner.done:
        return 2
    for name in runner.unfit:
        print(f"fails without any mutant, and has no say: {name}")
    return score.show(complete=not options.sample)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Mutation testing.")
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="a file, ops, gradcheck or adapters (default: ops gradcheck)"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (default: 1)")
    parser.add_argument("--most-seconds", type=float, default=60, help="of tests for one mutant (default: 60)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write each outcome there, as a line of JSON")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="what this log of the same code says is killed, is")
    return parser


def _paths(names: Iterable[str]) -> list[Path]:
    paths: list[Path] = []
    for name in names or USUAL:
        if name in GROUPS:
            paths += [path for path, group in _groups().items() if group == name]
        elif Path(name).is_file():
            paths.append(Path(name))
        else:
            raise SystemExit(f"there is no file {name}, and groups are {', '.join(GROUPS)}")
    return paths


def _groups() -> dict[Path, str]:
    """The modules that can be changed, each with its group."""
    found: dict[Path, str] = {}
    for group, patterns in GROUPS.items():
        for path in (path for pattern in patterns for path in sorted(PACKAGE.glob(pattern))):
            if path != PICTURES:
                found.setdefault(path, group)
    return found


def _killed(log: Path) -> dict[tuple[str, int], str]:
    """Who killed which mutants, by their paths and numbers."""
    lines = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines())
    return {(line["path"], line["number"]): line["by"] for line in lines if line["verdict"] == "killed"}


def _tests(paths: Iterable[Path]) -> list[str]:
    groups = sorted({_groups().get(path, "ops") for path in paths})
    tests = [str(test) for group in groups for pattern in TESTS[group] for test in sorted(Path().glob(pattern))]
    return [*tests, *(str(path) for path in paths)]


if __name__ == "__main__":
    sys.exit(main())
