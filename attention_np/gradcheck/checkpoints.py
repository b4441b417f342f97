"""A check that can be interrupted: a saved report that also keeps the slopes measured so far, to go on from."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck import _json
from attention_np.gradcheck._saved import HEADER, REST
from attention_np.gradcheck.report import Report

__all__ = ["Checkpoint", "Interrupted", "fingerprint"]

Array = npt.NDArray[Any]

SAVE_EVERY = 10.0  # seconds
DTYPES = re.compile(r"(float|complex)[0-9]{2,3}")  # of slopes


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


def _array(dtype: Any, numbers: Any) -> Array:
    """The array that was kept; its dtype is a word from a file, and must be that of a number."""
    if not isinstance(dtype, str) or not DTYPES.fullmatch(dtype) or not isinstance(numbers, list):
        raise ValueError("no array was kept")
    return np.array([np.dtype(dtype).type(number) for number in numbers], dtype)


class Checkpoint:
    """A file that is a saved report and, besides, keeps the slopes that were measured.

    It is written every ten seconds; :meth:`save` writes it at the end, and when the check is interrupted.
    """

    def __init__(self, path: str | os.PathLike[str], question: str) -> None:
        try:
            self.path = Path(path)
        except TypeError:
            raise TypeError(f"checkpoint must be a path, not {path!r}") from None
        if self.path.is_dir():
            raise ValueError(f"checkpoint {self.path} is a folder, not a file")
        self.question = question
        self.slopes: dict[str, Any] = {}
        self.report: Callable[[], Report] = lambda: Report(())
        self.saved = time.monotonic()
        if self.path.exists():
            self._read()
        elif not self.path.parent.is_dir():
            raise ValueError(f"checkpoint {self.path}: there is no folder {self.path.parent}")

    def _read(self) -> None:
        try:
            Report.load(self.path)
            rest = _json.read(self.path)[REST]
            question, slopes = rest["question"], rest["slopes"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"checkpoint {self.path} is not the checkpoint of a gradient check") from None
        if question != self.question or not isinstance(slopes, dict):
            raise ValueError(
                f"checkpoint {self.path} belongs to another check, with other inputs, outputs, seed or options: "
                "remove it, or name another file"
            )
        self.slopes = slopes

    def get(self, key: str, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
        """The arrays that were kept under `key`, or None."""
        if key not in self.slopes:
            return None
        try:
            return [
                _array(dtype, numbers).reshape(shape)
                for (dtype, numbers), shape in zip(self.slopes[key], shapes, strict=True)
            ]
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"checkpoint {self.path} is damaged at {key}: remove it") from None

    def put(self, key: str, arrays: Iterable[Array]) -> None:
        """Keep `arrays` under `key`."""
        self.slopes[key] = [(array.dtype.name, [str(number) for number in array.ravel()]) for array in arrays]
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.save(self.report())

    def save(self, report: Report) -> None:
        """Write the file; an older one stays whole until the new one is."""
        rest = {"question": self.question, "slopes": self.slopes}
        _json.write(self.path, {**HEADER, **report.to_dict(), REST: rest})
        self.saved = time.monotonic()
