"""All that is published with a set of known answers, and the archive of both: the same bytes whenever it is made."""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attention_np import known_answers
from docs.known_answers import definitions, negative, onnx_nodes

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
EARLIEST = (1980, 1, 1, 0, 0, 0)  # date that a zip file can have: all files have it
READABLE = 0o644 << 16  # by all, as zip has it


def readers() -> dict[str, str]:
    """The programs of the page of readers, by their names as files."""
    page = (ROOT / "docs" / "readers.md").read_text(encoding="utf-8")
    return dict(re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE))


def beside(folder: Path) -> dict[str, bytes]:
    """The files that are published beside those of a set, by their paths in the archive."""
    cases = list(known_answers.load(folder))
    texts = {
        "README.txt": (HERE / "README.txt").read_text(encoding="utf-8"),
        "LICENSE": (ROOT / "LICENSE").read_text(encoding="utf-8"),
        "manifest.schema.json": (HERE / "manifest.schema.json").read_text(encoding="utf-8"),
        **{f"readers/{name}": program for name, program in readers().items()},
        **definitions.files(cases),
    }
    return {
        **{name: text.encode() for name, text in texts.items()},
        **negative.files(cases),
        **onnx_nodes.files(cases),
    }


def zipped(files: Mapping[str, bytes], target: Path) -> None:
    """Write files into an archive, in the order of their paths, without anything of this machine or moment."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            about = zipfile.ZipInfo(name, EARLIEST)
            about.external_attr, about.compress_type, about.create_system = READABLE, zipfile.ZIP_DEFLATED, 3
            archive.writestr(about, files[name])


def published(folder: Path) -> dict[str, bytes]:
    """The files of a set and those beside it."""
    own = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return own | beside(folder)


def make(
    target: Path, cases: str = "standard", ops: Iterable[str] | None = None, dtypes: Iterable[str] | None = None
) -> int:
    """Write a set of known answers and all that belongs to it into one archive; how many files that are."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "set")
        known_answers.write(folder, ops=ops, dtypes=dtypes, cases=cases)
        files = published(folder)
    zipped(files, target)
    return len(files)


def as_text(value: Any) -> str:
    """JSON, with a line for each item of the outermost two levels."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
