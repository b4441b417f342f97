"""The mutants that may survive, each with the reason: `survivors.yaml`."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

FILE = Path(__file__).with_name("survivors.yaml")


class Survivor(NamedTuple):
    """A mutant, as people see it: the lines that it changes, and into what."""

    path: str
    function: str
    before: str
    after: str


@cache
def listed() -> set[Survivor]:
    """All survivors that have a reason."""
    reasons = yaml.safe_load(FILE.read_text(encoding="utf-8")) or {}
    return {
        Survivor(path, function, changed["code"], changed["mutant"])
        for path, functions in reasons.items()
        for function, groups in functions.items()
        for group in groups
        for changed in group["mutants"]
        if group["reason"].strip()
    }


def one_line(lines: Iterable[str]) -> str:
    """Lines of code as one, without comments."""
    return " ".join(filter(None, (re.sub(r"(^|  )# .*", "", line).strip() for line in lines)))
