"""Draws docs/img/report.png: the report of the digits example on four workers, as a browser shows it.

make docs-images
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from playwright.sync_api import sync_playwright

import gt
from gt.cli import main

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
EXAMPLE = "examples/digits.py"


def record(path: Path) -> None:
    """Train for two epochs under `gt.profile`, after one that finds everything new."""
    from rich.console import Console

    module = ModuleType("digits")
    sys.modules["digits"] = module
    # Compiled here, so that lines are named as in the repository and not by a folder of this machine.
    exec(compile((ROOT / EXAMPLE).read_text(), EXAMPLE, "exec"), vars(module))
    gt.init(workers=4, config=str(ROOT / "configs" / "digits.yaml"))
    console = Console(quiet=True)
    module.train(1, "", console)
    with gt.profile(path):
        module.train(2, "", console)
    gt.disconnect()


def draw(page: Path, image: Path) -> None:
    """The head of the page, by the browser of this machine or playwright's own."""
    browser = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    with sync_playwright() as play, play.chromium.launch(executable_path=browser, args=["--no-sandbox"]) as chromium:
        tab = chromium.new_page(viewport={"width": 1180, "height": 1300}, color_scheme="light")
        tab.goto(page.as_uri())
        for _ in range(6):
            tab.locator("#canvas").press("+")
        tab.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        tab.wait_for_timeout(200)
        tab.screenshot(path=image)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "digits.json"
        record(trace)
        sys.argv = ["gt", "report", str(trace)]
        try:
            main()
        except SystemExit as done:
            if done.code:
                raise
        draw(trace.with_suffix(".html"), HERE / "report.png")
