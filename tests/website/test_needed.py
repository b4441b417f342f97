"""Without a browser a student sees a skip that says why, and CI fails."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from . import needed

OUTCOMES = (pytest.fail.Exception, pytest.skip.Exception)  # a skip that got through would skip the test


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Playwright without a Chromium, on a machine without one."""
    monkeypatch.setattr(needed.shutil, "which", lambda _: None)
    return SimpleNamespace(chromium=SimpleNamespace(executable_path=str(tmp_path / "chromium")))


def test_a_browser_that_is_missing_is_a_skip_that_names_it(monkeypatch: pytest.MonkeyPatch, nowhere: Any) -> None:
    monkeypatch.delenv("REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="Chromium is missing: install it"):
        needed.chromium(nowhere)


def test_a_browser_that_is_missing_is_a_failure_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch, nowhere: Any
) -> None:
    monkeypatch.setenv("REQUIRE_BROWSER", "1")
    with pytest.raises(OUTCOMES, match=r"Chromium is missing.*REQUIRE_BROWSER is set") as ended:
        needed.chromium(nowhere)
    assert ended.type is pytest.fail.Exception


def test_the_browser_that_playwright_has_installed_serves_too(nowhere: Any) -> None:
    Path(nowhere.chromium.executable_path).write_text("", encoding="utf-8")
    assert needed.chromium(nowhere) == nowhere.chromium.executable_path


def test_a_driver_that_is_missing_is_a_failure_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    from . import conftest

    monkeypatch.setitem(sys.modules, "playwright", None)
    monkeypatch.setenv("REQUIRE_BROWSER", "1")
    with pytest.raises(OUTCOMES, match=r"Playwright is missing.*REQUIRE_BROWSER is set") as ended:
        next(conftest.browser.__wrapped__())
    assert ended.type is pytest.fail.Exception


def test_ci_requires_the_browser() -> None:
    steps = (needed.ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search("REQUIRE_BROWSER=1 .*make test-all", steps)
