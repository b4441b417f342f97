"""Where the derivation pages are."""

from pathlib import Path

__all__ = ["PAGES"]

PACKAGE = Path(__file__).resolve().parents[1]
PAGES = PACKAGE / "derivations"  # where they are installed
if not PAGES.is_dir():
    PAGES = PACKAGE.parent / "derivations"  # beside the package, as in a clone
