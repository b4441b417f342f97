"""What a diagnosis may ask of the functions beyond the evidence, where that would not tell causes apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.judging.measured import Measured
from attention_np.gradcheck.measuring.noise import moved_relatively
from attention_np.gradcheck.measuring.numerical import measure
from attention_np.gradcheck.measuring.subject import along

__all__ = ["Asked"]

Array = npt.NDArray[Any]

NEARBY = 1e-5  # relative: many a unit in the last place of single precision, and next to nothing for a formula
MOST_MOVES = 20  # entries that are moved to see whether they have an effect
FINITE = 0.125  # parts of the size of an entry, by which it then moves


@dataclass(frozen=True)
class Asked:
    """The answers for one input; arrays are NaN in the entries that were not looked at."""

    found: Measured

    def slopes(self, cotangents: Array) -> Array:
        """The numerical gradients for other cotangents, (cotangents, *shape)."""
        found, elements = self.found, self._elements
        subject = replace(found.subject, cotangents=cotangents)
        measured = measure(subject, elements, found.method, found.aside, scales=found.scales[elements])
        return self._placed(measured.values.T)

    def nearby(self) -> tuple[Array, Array]:
        """The claimed and the numerical gradient for the three cotangents, at a point very close by."""
        found, pair = self.found, self.found.pair(self._elements)
        rng = found.rng("nearby")
        inputs = [moved_relatively(x, rng, NEARBY) for x in found.candidate.inputs.values()]
        cotangents = [moved_relatively(u, rng, NEARBY) for u in found.candidate.cotangents]
        answers = np.stack([np.broadcast_arrays(*pair.at(u, inputs), self._elements)[:2] for u in cotangents], axis=1)
        return self._placed(answers[0]), self._placed(answers[1])

    @property
    def is_linear(self) -> bool:
        """Whether the claimed gradient is linear in the cotangent."""
        return self.found.is_linear

    def have_an_effect(self, entries: Array) -> bool:
        """Whether any output changes when one of `entries`, a boolean array, moves alone, by a part of its size."""
        elements = np.flatnonzero(entries)
        if len(elements) > MOST_MOVES:
            elements = np.sort(self.found.rng("effect").choice(elements, MOST_MOVES, replace=False))
        subject = self.found.subject
        with np.errstate(all="ignore"):
            for element in elements:
                move = FINITE * along(subject.x, np.array([element]))
                outputs = subject.values(np.concatenate([subject.x + move, subject.x - move]))
                if not (outputs == subject.output.ravel()).all():
                    return True
        return False

    @property
    def _elements(self) -> Array:
        return np.flatnonzero(self.found.looked)

    def _placed(self, rows: Array) -> Array:
        x = self.found.subject.x
        placed = np.full((len(rows), x.size), np.nan)
        placed[:, self._elements] = rows
        return placed.reshape(len(rows), *x.shape)
