"""What a diagnosis may ask of the functions beyond the evidence, where that would not tell causes apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.judging.measured import Measured
from attention_np.gradcheck.measuring.numerical import measure
from attention_np.gradcheck.measuring.subject import REFUSALS, Subject, flattened

__all__ = ["Asked", "is_quick"]

Array = npt.NDArray[Any]

MOST_OUTPUTS = 2000  # whose slopes are looked at each by itself: as many unit cotangents take 32 MB
WORK = 10**8  # entries looked at, times the outputs, squared: more slopes would take longer than the check


def is_quick(entries: int, outputs: int) -> bool:
    """Whether it takes no longer than a check to measure what each of so many entries does to each output."""
    return outputs <= MOST_OUTPUTS and entries * outputs**2 <= WORK


@dataclass(frozen=True)
class Asked:
    """The answers for one input, at the point or elsewhere; arrays are NaN in entries that were not looked at."""

    found: Measured
    inputs: Mapping[str, Array]

    def moved(self, inputs: Mapping[str, Array]) -> Asked:
        """The same at another point."""
        return Asked(self.found, inputs)

    @cached_property
    def output(self) -> Array:
        """The output at the point; NaN where the function refuses it."""
        try:
            return self._subject.with_its_output().output
        except REFUSALS:
            return np.full_like(self.found.subject.output, np.nan)

    def slopes(self, cotangents: Array) -> Array:
        """The numerical gradients for other cotangents, (cotangents, *shape); NaN where the point is refused."""
        if is_quick(len(self._elements), math.prod(cotangents.shape[1:])):
            return self._placed(flattened(cotangents) @ self._of_each_output)
        return self._placed(self._measured(cotangents))

    @cached_property
    def _of_each_output(self) -> Array:
        """What each entry does to each output, measured once for all cotangents: (outputs, entries)."""
        output = self.found.subject.output
        return self._measured(np.eye(output.size).reshape(-1, *output.shape))

    def _measured(self, cotangents: Array) -> Array:
        found, elements = self.found, self._elements
        try:
            subject = replace(self._subject, cotangents=cotangents)
            measured = measure(subject, elements, found.method, found.aside, scales=found.scales[elements])
        except REFUSALS:
            return np.full((len(cotangents), len(elements)), np.nan)
        return np.asarray(measured.values.T)

    def claims(self, cotangents: Array) -> Array:
        """The claimed gradients for other cotangents, (cotangents, *shape); NaN where the point is refused."""
        candidate, inputs = self.found.candidate, list(self.inputs.values())
        try:
            claimed = [np.ravel(candidate.gradients(u, inputs)[self.found.name])[self._elements] for u in cotangents]
        except REFUSALS:
            return self._placed(np.full((len(cotangents), len(self._elements)), np.nan))
        return self._placed(np.array(claimed))

    @property
    def is_linear(self) -> bool:
        """Whether the claimed gradient is linear in the cotangent."""
        return self.found.is_linear

    @property
    def _subject(self) -> Subject:
        return self.found.there(self.found.candidate.cotangents[0], list(self.inputs.values()))

    @property
    def _elements(self) -> Array:
        return np.flatnonzero(self.found.looked)

    def _placed(self, rows: Array) -> Array:
        x = self.found.subject.x
        placed = np.full((len(rows), x.size), np.nan)
        placed[:, self._elements] = rows
        return placed.reshape(len(rows), *x.shape)
