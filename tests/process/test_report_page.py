"""The report in a real browser: it draws, it asks for nothing from anywhere, and no text of a recording runs.

Skipped where there is no browser or no playwright to drive it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import event_samples as e
import pytest

from gt.monitor.findings import gather
from gt.monitor.reading import TraceMetadata
from gt.monitor.report import page
from gt.wire import telemetry as t

pytestmark = pytest.mark.process
HOSTILE = (
    "</script><img src=http://evil.example/x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
)


class Tab:
    """A page, and everything that went wrong on it or was asked for from elsewhere."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(viewport={"width": 1200, "height": 900}, **options)
        self.page.on("console", lambda message: self.faults.append(message.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.path = path

    def shown(self) -> dict[str, str]:
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found: dict[str, str] = self.page.evaluate("({ ...document.getElementById('canvas').dataset })")
        return found

    def colours(self) -> int:
        """How many different colours the canvas has."""
        counted: int = self.page.evaluate(
            """() => {
                const canvas = document.getElementById("canvas");
                const data = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
                return new Set(data).size;
            }"""
        )
        return counted

    def close(self) -> None:
        self.page.close()
        assert self.faults == []
        assert self.asked == [self.path.as_uri()]


def written(path: Path, events: list[t.Event]) -> Path:
    path = path / "run.html"
    path.write_text(page(gather(events), TraceMetadata({"host": "here"}, begun=True, cut=False), "run.json"))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_timeline_is_drawn_and_nothing_is_asked_for(browser: Any, tmp_path: Path, scheme: str) -> None:
    events = e.session(30)
    tab = Tab(browser, written(tmp_path, events), color_scheme=scheme)
    assert int(tab.shown()["drawn"]) == sum(map(len, gather(events).tracks.values())) > 200
    assert tab.colours() > 20
    background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 29)"}[scheme]
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.close()


def test_it_zooms_by_keys_buttons_and_the_wheel_and_says_what_is_chosen(browser: Any, tmp_path: Path) -> None:
    tab = Tab(browser, written(tmp_path, e.session(30)))

    def span() -> float:
        shown = tab.shown()
        return float(shown["to"]) - float(shown["from"])

    whole = span()
    tab.page.focus("#canvas")
    tab.page.keyboard.press("+")
    assert span() == pytest.approx(whole / 1.5)
    before = float(tab.shown()["from"])
    tab.page.keyboard.press("ArrowRight")
    assert float(tab.shown()["from"]) > before
    tab.page.keyboard.press("0")
    assert span() == whole
    tab.page.click("[data-do=in]")
    assert span() == pytest.approx(whole / 2)
    tab.page.click("[data-do=all]")
    box = tab.page.locator("#canvas").bounding_box()
    tab.page.mouse.move(box["x"] + 600, box["y"] + 60)
    tab.page.keyboard.down("Control")
    tab.page.mouse.wheel(0, -300)
    tab.page.keyboard.up("Control")
    assert span() < whole
    tab.page.click("[data-do=all]")
    # The first plan there is: down the canvas beside its left edge, whatever rows there are, until one is hit.
    for y in range(30, int(box["height"]), 10):
        tab.page.mouse.click(box["x"] + 205, box["y"] + y)
        said = tab.page.inner_text("#said")
        if "plan 3" in said:
            break
    assert "batch · plan 3" in said
    assert e.SITE in said
    assert tab.page.locator("#tip").is_visible()
    tab.close()


def test_no_text_of_a_recording_runs(browser: Any, tmp_path: Path) -> None:
    tab = Tab(browser, written(tmp_path, e.hostile(HOSTILE)))
    tab.shown()
    for y in range(30, 250, 10):
        tab.page.mouse.move(600, 500 + y)
    assert tab.page.title() == "GT: run.json"
    assert tab.page.evaluate("document.images.length + document.scripts.length") == 2
    assert HOSTILE in tab.page.inner_text("body")
    tab.close()


@pytest.mark.parametrize("width", [400, 1200])
def test_no_file_or_number_of_a_line_is_cut_in_two_however_narrow_the_page(
    browser: Any, tmp_path: Path, width: int
) -> None:
    """A path goes on in the next line behind a slash; a table that is wider than the page scrolls by itself."""
    site = "/home/somebody/work/project/models/classifiers/digits.py:1078"
    events = [event._replace(site=site) if isinstance(event, t.OpSlice) else event for event in e.session()]
    tab = Tab(browser, written(tmp_path, events))
    tab.page.set_viewport_size({"width": width, "height": 900})
    heights = tab.page.evaluate(
        """() => [...document.querySelectorAll("td code")].filter((each) => each.textContent.endsWith(":1078")).map((each) => {
            const range = document.createRange(), last = each.lastChild;
            range.selectNodeContents(last);
            return [last.textContent, range.getClientRects().length];
        })"""
    )
    assert heights
    assert all(each == ["digits.py:1078", 1] for each in heights)
    assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tab.close()


def test_every_picture_has_words_and_every_table_a_heading(browser: Any, tmp_path: Path) -> None:
    tab = Tab(browser, written(tmp_path, e.session(30)))
    assert tab.page.evaluate(
        "[...document.querySelectorAll('[role=img], svg')].every((each) => each.getAttribute('aria-label'))"
    )
    assert tab.page.evaluate(
        "[...document.querySelectorAll('table')].every((each) => each.caption && each.querySelector('th[scope]'))"
    )
    assert tab.page.evaluate("[...document.querySelectorAll('button')].every((each) => each.textContent.trim())")
    assert tab.page.evaluate("document.documentElement.lang") == "en"
    tab.close()
