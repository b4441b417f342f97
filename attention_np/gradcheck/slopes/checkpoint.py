"""A file by which a check goes on where it was interrupted: an archive of NumPy, without pickle, of slopes by key."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np._lib.files import write_whole


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


class Checkpoint:
    """The slopes that were measured.

    What the file holds is read before anything is measured. It is written every ten seconds; :meth:`save` writes it at
    the end, and when the check is interrupted.
    """

    def __init__(self, path: str | os.PathLike[str], question: str) -> None:
        try:
            self.path = Path(path)
        except TypeError:
            raise TypeError(f"checkpoint must be a path, not {path!r}") from None
        self.kept: dict[str, Array] = {"question": np.array(question)}
        self.saved = time.monotonic()
        if not self.path.parent.is_dir():
            raise ValueError(f"checkpoint {path}: there is no folder {self.path.parent}")
        if not self.path.exists():
            return
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                kept = {key: np.asarray(archive[key]) for key in archive.files}
            other = str(kept["question"]) != question
        except Exception as error:  # of the system, of zipfile, of NumPy, of the memory that a shape asks for
            raise ValueError(f"checkpoint {path} is not the checkpoint of a gradient check: {error}") from error
        if other:
            raise ValueError(
                f"checkpoint {path} belongs to another check, with other inputs, outputs, seed or options: remove it, "
                "or name another file"
            )
        self.kept = kept

    def get(self, key: str, shape: tuple[int, ...]) -> Array | None:
        """The numbers that were kept under `key`; None if there are none."""
        numbers = self.kept.get(key)
        if numbers is not None and (numbers.shape != shape or numbers.dtype.kind != "f"):
            raise ValueError(f"checkpoint {self.path} is damaged at {key!r:.100}: remove it")
        return numbers

    def put(self, key: str, numbers: Array) -> None:
        """Keep these numbers under `key`."""
        self.kept[key] = numbers
        if time.monotonic() - self.saved > 10:  # seconds
            self.save()

    def save(self) -> None:
        """Write the file; an older one stays whole until the new one is."""
        content = BytesIO()
        np.savez(content, **self.kept)  # type: ignore[arg-type]
        write_whole(self.path, content.getvalue())
        self.saved = time.monotonic()
