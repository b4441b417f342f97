"""What a wrong gradient looks like, in a sentence, if the cause is simple: the only room that speaks.

A reading is a prediction of the claimed gradient and a sentence. It is accepted if it explains every entry for three
cotangents, and does so again, with the same numbers, at another point for other cotangents, which have not suggested
it. The cheapest that is accepted is named; a wrong formula has none, and nothing is said of it. A family of causes is
a module of this folder, whose ``READINGS`` are functions from a mistake to readings, each with its cost: to add one is
to add its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import numpy as np

from attention_np.gradcheck.words.reading import Mistake, Reading

__all__ = ["Mistake", "explain"]

Readings = Callable[[Mistake], Iterator[Reading]]


def explain(mistake: Mistake) -> str | None:
    """What a wrong gradient looks like, without a capital letter and full stop; None if it has no simple cause."""
    with np.errstate(all="ignore"):
        if not mistake.wrong.any() or not np.isfinite(mistake.claimed[:, mistake.looked]).all():
            return None
        for readings in _by_cost():
            for reading in readings(mistake):
                if mistake.is_explained_by(reading) and _is_so_again(reading, readings, mistake):
                    return reading.sentence
    return None


@cache
def _by_cost() -> list[Readings]:
    """All that is known of causes, from the specific to the general."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    known = [pair for module in modules for pair in getattr(module, "READINGS", ())]
    return [readings for _, readings in sorted(known, key=lambda pair: pair[0])]


def _is_so_again(reading: Reading, readings: Readings, mistake: Mistake) -> bool:
    """Whether it is so at another point, too; true where that says it all already, or nothing is known of one."""
    again = None if reading.alone else mistake.again
    if again is None:
        return True
    for other in readings(again) if again.wrong.any() else ():
        if other.kind == reading.kind and again.is_explained_by(other):
            pairs = zip(reading.numbers, other.numbers, strict=True)
            known = 10 * max(mistake.precision, again.precision)  # of numbers close to one, the rest must be the same
            return all(abs(one - x) <= 1e-6 * min(abs(x), abs(x - 1)) + known * abs(x) for one, x in pairs)
    return False
