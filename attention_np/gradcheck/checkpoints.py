"""A check that can be interrupted: a saved report that also keeps the slopes measured so far, to go on from."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib import json
from attention_np._lib.text import legible
from attention_np.gradcheck._saved import HEADER, REST, inputs_of
from attention_np.gradcheck.report import Report
from attention_np.gradcheck.slopes import Slopes

__all__ = ["Checkpoint", "Interrupted", "Parts", "fingerprint"]

Array = npt.NDArray[Any]

SAVE_EVERY = 10.0  # seconds
DTYPES = re.compile(r"(float|complex)[0-9]{2,3}")  # of slopes
LONGEST_KEY = 100  # characters, of one that is shown


class Interrupted(KeyboardInterrupt):
    """A check was interrupted; `report` says what was found until then."""

    def __init__(self, report: Report) -> None:
        super().__init__("the check was interrupted: its report is in the attribute called report")
        self.report = report


def fingerprint(parts: Iterable[Any]) -> str:
    """A digest by which a checkpoint is known to belong to the same question."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            padded = part.dtype.itemsize > 8  # extended precision holds bytes that mean nothing
            data = repr(part.ravel().tolist()).encode() if padded else part.tobytes()
            digest.update(data + repr((part.shape, part.dtype.str)).encode())
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()


def _array(kept: Any, size: int) -> Array:
    """The array that was kept, flat; its dtype is a word from a file, and must be that of a number."""
    dtype, numbers = kept
    if not isinstance(dtype, str) or not DTYPES.fullmatch(dtype):
        raise ValueError("it is of no dtype of numbers")
    if not isinstance(numbers, list) or len(numbers) != size or not all(isinstance(x, str) for x in numbers):
        raise ValueError("there is no number for each entry")
    return np.array([np.dtype(dtype).type(x) for x in numbers])


class Parts(NamedTuple):
    """What a check measures, part after part."""

    entries: Mapping[str, int]  # of each input, how many are looked at
    methods: Sequence[str]
    cotangents: int

    def sizes(self, key: str) -> tuple[int, ...]:
        """Of the arrays of the slopes under a key, ``input/method/size/number``; a ValueError if there are none."""
        name, method, *counts = key.rsplit("/", 3)
        most, number = map(int, counts)
        count = min(most, self.entries.get(name, 0) - most * number)
        if key != f"{name}/{method}/{most}/{number}" or method not in self.methods or number < 0 or count < 1:
            raise ValueError("there is no such part")
        return (count * self.cotangents, *[count] * (len(Slopes._fields) - 1))


class Checkpoint:
    """A file that is a saved report and, besides, keeps the slopes that were measured.

    What it holds is looked at before anything is measured. It is written every ten seconds; :meth:`save` writes it at
    the end, and when the check is interrupted.
    """

    def __init__(self, path: str | os.PathLike[str], question: str, parts: Parts) -> None:
        try:
            self.path = Path(path)
        except TypeError:
            raise TypeError(f"checkpoint must be a path, not {path!r}") from None
        self.question = question
        self.slopes: dict[str, list[Array]] = {}
        self.report: Callable[[], Report] = lambda: Report(())
        self.saved = time.monotonic()
        try:
            self._read(parts)
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                raise ValueError(f"checkpoint {self.path}: there is no folder {self.path.parent}") from None

    def _read(self, parts: Parts) -> None:
        """Take over what the file holds: all of it, or nothing."""
        try:
            saved = json.read(self.path)
            inputs_of(saved)
            rest = saved[REST]
            question, slopes = rest["question"], rest["slopes"]
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ValueError(f"checkpoint {self.path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            what = "a folder, not a file" if self.path.is_dir() else "not the checkpoint of a gradient check"
            raise ValueError(f"checkpoint {self.path} is {what}") from None
        if question != self.question or not isinstance(slopes, dict):
            raise ValueError(
                f"checkpoint {self.path} belongs to another check, with other inputs, outputs, seed or options: "
                "remove it, or name another file"
            )
        self.slopes = {key: self._arrays(key, kept, parts) for key, kept in slopes.items()}

    def _arrays(self, key: str, kept: Any, parts: Parts) -> list[Array]:
        try:
            return [_array(x, size) for x, size in zip(kept, parts.sizes(key), strict=True)]
        except (TypeError, ValueError, OverflowError):
            where = legible(key)[:LONGEST_KEY]
            raise ValueError(f"checkpoint {self.path} is damaged at {where}: remove it") from None

    def get(self, key: str, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
        """The arrays that were kept under `key`, or None."""
        if key not in self.slopes:
            return None
        return [x.reshape(shape) for x, shape in zip(self.slopes[key], shapes, strict=True)]

    def put(self, key: str, arrays: Iterable[Array]) -> None:
        """Keep `arrays` under `key`."""
        self.slopes[key] = list(arrays)
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.save(self.report())

    def save(self, report: Report) -> None:
        """Write the file; an older one stays whole until the new one is."""
        slopes = {
            key: [(array.dtype.name, [str(number) for number in array.ravel()]) for array in arrays]
            for key, arrays in self.slopes.items()
        }
        rest = {"question": self.question, "slopes": slopes}
        json.write(self.path, {**HEADER, **report.to_dict(), REST: rest})
        self.saved = time.monotonic()
