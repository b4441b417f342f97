"""What the tests of the site need: whoever imports this is skipped where something is missing that builds the site.

Where ``REQUIRE_BROWSER`` is set, as in ``.ci/run``, what is missing is a failure instead: a site that nobody has looked
at must not pass.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

__all__ = ["DESK", "PHONE", "ROOT", "Built", "chromium", "lack", "page_of"]

ROOT = Path(__file__).parents[2]
PHONE, DESK = 390, 1280  # pixels
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def lack(reason: str) -> NoReturn:
    """Skip because of what is missing, or fail where nothing may be."""
    if os.environ.get("REQUIRE_BROWSER"):
        pytest.fail(f"{reason}, and REQUIRE_BROWSER is set", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def chromium(driver: Any) -> str:
    """Where Chromium is: that of the system, or the one that Playwright has installed."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None) or driver.chromium.executable_path
    if not Path(found).is_file():
        lack("Chromium is missing: install it, or run python -m playwright install chromium")
    return str(found)


for package in ("sphinx", "myst_parser", "furo", "jupytext", "numpydoc", "sphinx-mathjax-offline"):
    if importlib.util.find_spec(package) is None:
        lack(f"{package} is missing, which the site is built with: pip install 'attention-np[site-test]'")
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
