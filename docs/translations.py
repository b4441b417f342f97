"""Which translations are behind the pages that they translate: ``python -m docs.translations``.

A translation names its original and the digest of it in its first line. When the original has changed, somebody
compares the two; ``python -m docs.translations FILE ...`` then writes the digest of these translations again.
"""

from __future__ import annotations

import re
import sys
from hashlib import sha256
from pathlib import Path

__all__ = ["TRANSLATIONS", "behind", "original_of", "stamp"]

ROOT = Path(__file__).resolve().parents[1]
TRANSLATIONS = sorted((ROOT / "docs" / "zh").rglob("*.zh.md"))
STAMP = re.compile(r"\A<!-- translates (\S+), digest ([0-9a-f]{12}) -->\n")


def original_of(translation: Path) -> Path:
    """The page that a translation says it translates.

    Raises
    ------
    ValueError
        If the first line does not say it.
    """
    match = STAMP.match(translation.read_text(encoding="utf-8"))
    if match is None:
        raise ValueError(f"{translation.name} does not begin with <!-- translates PAGE, digest ... -->")
    return ROOT / match[1]


def stamp(page: Path) -> str:
    """The first line of a translation that has been compared with its page as it is now, with the digest of that."""
    digest = sha256(page.read_bytes()).hexdigest()[:12]
    return f"<!-- translates {page.relative_to(ROOT)}, digest {digest} -->\n"


def behind(translation: Path) -> bool:
    """Whether the original has changed since the translation was compared with it."""
    return not translation.read_text(encoding="utf-8").startswith(stamp(original_of(translation)))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name).resolve()
        file.write_text(STAMP.sub(stamp(original_of(file)), file.read_text(encoding="utf-8")), encoding="utf-8")
    for file in TRANSLATIONS:
        if behind(file):
            print(f"{file.relative_to(ROOT)}: compare it with {original_of(file).relative_to(ROOT)}")  # noqa: T201
