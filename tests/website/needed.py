"""What the tests of the site need: whoever imports this is skipped where something is missing that builds the site."""

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["DESK", "PHONE", "ROOT", "Built", "page_of"]

ROOT = Path(__file__).parents[2]
PHONE, DESK = 390, 1280  # pixels

for package in ("sphinx", "myst_parser", "furo", "jupytext", "numpydoc", "sphinx-mathjax-offline"):
    pytest.importorskip(package, reason=f"{package} is missing, which the site is built with")
sys.path.insert(0, str(ROOT / "docs" / "_ext"))


class Built(NamedTuple):
    """A site, and what its build said."""

    folder: Path
    warnings: str

    def pages(self) -> list[str]:
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.html"))


def page_of(name: str) -> str:
    """The page of a derivation, by the name that its tags begin with."""
    return f"derivations/{name.replace('-', '_')}.html"
