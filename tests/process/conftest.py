"""A browser for the tests of processes that look at pages."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real one, without a window; skips where there is none or no playwright to drive it (`make browser`)."""
    play = pytest.importorskip("playwright.sync_api")
    installed = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    with play.sync_playwright() as driver:
        if installed is None and not Path(driver.chromium.executable_path).exists():
            pytest.skip("no browser is installed")
        chromium = driver.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        yield chromium
        chromium.close()
