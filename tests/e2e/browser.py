"""A real Chromium for tests of the web page. Tests are skipped, with the reason, where Playwright or the browser is missing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.e2e.conftest import Program

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
AXE = Path(__file__).parents[2] / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"


class OpenPage(Protocol):
    """Opens a page and returns Playwright's object. What it complained about is in `page.complaints`."""

    def __call__(self, url: str, **options: Any) -> Any:
        """options: of Playwright's new_context, such as viewport and color_scheme."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser, for all tests of a module; these must not be asynchronous."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium here; on Debian: apt install chromium")
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[OpenPage]:
    """A function that opens pages, each as a new visitor. At the end: no page asked another host or broke its own policy."""
    opened = []

    def open_one(url: str, **options: Any) -> Any:
        context = chromium.new_context(**options)
        page = context.new_page()
        host = re.match(r"https?://[^/]+/", url)
        assert host is not None
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda said: page.complaints.append(said.text) if said.type == "error" else None)
        page.on("request", lambda asked: None if asked.url.startswith(host[0]) else page.complaints.append(asked.url))
        page.goto(url)
        opened.append((context, page))
        return page

    yield open_one
    complaints = [complaint for _, page in opened for complaint in page.complaints]
    for context, _ in opened:
        context.close()
    assert [each for each in complaints if "ERR_CONNECTION_REFUSED" not in each and "404" not in each and "401" not in each] == []


def url_said(process: Program) -> str:
    """The address of the page that a program prints on stderr."""
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"page is at (http://\S+)", line)
        if found is not None:
            return found[1]

    pytest.fail(f"it never said where its page is, and ended with {process.wait()}")


def axe_violations(page: Any) -> list[str]:
    """What axe-core finds wrong with a page: rule, and the elements. Skips the test where axe-core is not installed."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed; `make setup` with npm does it")
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run()).violations")
    return [f"{each['id']}: {[node['html'][:200] for node in each['nodes']]}" for each in found]
