"""Where the derivation pages and the stored measurements are."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
PAGES = PACKAGE / "derivations"  # where they are installed
if not PAGES.is_dir():
    PAGES = PACKAGE.parent / "derivations"  # beside the package, as in a clone

MEASURED = PACKAGE / "measured"  # where they are installed
if not MEASURED.is_dir():
    MEASURED = PACKAGE.parent / "docs/measured"


def where_it_is(page: str) -> str:
    """A page as its reader finds it: by its name in the clone, and where the pages are installed by its whole path."""
    file = PAGES / f"{page}.md"
    return str(file) if PAGES.parent == PACKAGE else file.relative_to(PACKAGE.parent).as_posix()
