"""The site, built once for all tests, and a real Chromium. Without them tests are skipped, or fail: see `needed.py`."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .needed import Built


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Built:
    from .needed import ROOT, Built

    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-E", "-a", "-q", "-c", "docs", "-d", folder / "read"]
    done = subprocess.run([*command, ".", folder / "site"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Built(folder / "site", done.stderr)


@pytest.fixture(scope="session")
def soup(site: Built) -> Callable[[str], Any]:
    """A page of the site, parsed."""
    from bs4 import BeautifulSoup

    @functools.cache
    def read(page: str) -> Any:
        return BeautifulSoup((site.folder / page).read_text(encoding="utf-8"), "html.parser")

    return read


@pytest.fixture(scope="session")
def by_id(soup: Callable[[str], Any]) -> Callable[[str], dict[str, Any]]:
    """What has an id in a page: to look for each, which is to walk through the page, would take a minute."""

    @functools.cache
    def read(page: str) -> dict[str, Any]:
        return {tag["id"]: tag for tag in soup(page).find_all(id=True)}

    return read


@pytest.fixture(scope="session")
def address(site: Built) -> Iterator[str]:
    """Where the site is served."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site.folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from .needed import chromium, lack

    try:
        from playwright import sync_api as playwright
    except ModuleNotFoundError:
        lack("Playwright is missing, which drives the browser: pip install 'attention-np[site-test]'")
    playwright.expect.set_options(timeout=30_000)  # ms: a long page is typeset for seconds where two cores are shared
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(driver), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
