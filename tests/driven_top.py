"""`gt top` in a terminal that is not there: a source with one snapshot, and an app that tests drive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from monitor_samples import BUSY
from textual import events
from textual.pilot import Pilot
from textual.widgets import OptionList

from gt.monitor.snapshot import Snapshot
from gt.monitor.top.app import Top
from gt.monitor.top.ink import Ink
from gt.monitor.top.screens import Menu
from gt.monitor.top.settings import UNSET_SETTINGS, Settings
from gt.monitor.top.widgets import Listing

TIMEOUT = 20.0
"""Seconds for what takes an instant, for slow machines."""
SMALL, MIDDLE, LARGE = (80, 24), (120, 40), (200, 60)


class Fixed:
    """A source that hands over one snapshot, until it is given another, and notes what it was asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot
        self.acts: list[tuple[str, int, str]] = []
        self.refusals: list[str] = []

    def snapshot(self) -> Snapshot:
        return self.now

    def act(self, action: str, number: int, value: str = "") -> None:
        self.acts.append((action, number, value))

    def failed(self) -> list[str]:
        found, self.refusals = self.refusals, []
        return found

    def close(self) -> None:
        pass


class PatientTop(Top):
    """On a machine that is busy five seconds may pass before a test looks at the screen."""

    NOTIFICATION_TIMEOUT = TIMEOUT


def drive(
    test: Callable[[Top, Pilot[None], Fixed], Awaitable[None]],
    snapshot: Snapshot = BUSY,
    size: tuple[int, int] = MIDDLE,
    ink: Ink | None = None,
    folder: Path | None = None,
    kept: Settings = UNSET_SETTINGS,
    file: Path | None = None,
) -> None:
    """Run the app without a terminal, and a test with it. What it notifies of stays until the test has seen it."""
    source = Fixed(snapshot)
    app = PatientTop(source, ink or Ink(), folder, None, kept, file)

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await settled(app, pilot)
            await test(app, pilot, source)

    asyncio.run(run())


async def settled(app: Top, pilot: Pilot[None]) -> None:
    """All that was asked for is done, and drawn: what is shown is laid out, hears of its size, and is drawn in that."""
    for _ in range(3):
        await pilot.pause(0)
    app.draw()
    await pilot.pause(0)


async def until(app: Top, pilot: Pilot[None], text: str) -> None:
    """The text is on the screen, soon."""
    deadline = time.monotonic() + TIMEOUT
    while text not in seen(app):
        assert time.monotonic() < deadline, f"{text!r} is not on the screen:\n{seen(app)}"
        await settled(app, pilot)


async def choose(app: Top, pilot: Pilot[None], name: str) -> None:
    """Choose something of the menu that is open, or that opens now."""
    deadline = time.monotonic() + TIMEOUT
    while not (isinstance(app.screen, Menu) and isinstance(app.focused, OptionList)):
        assert time.monotonic() < deadline, "there is no menu"
        await settled(app, pilot)
    menu, options = app.screen, app.focused
    options.highlighted = options.get_option_index(name)
    await press(app, pilot, "enter")
    while app.screen is menu:
        assert time.monotonic() < deadline, "the menu is still there"
        await settled(app, pilot)


async def press(app: Top, pilot: Pilot[None], *keys: str) -> None:
    for key in keys:
        app.post_message(events.Key(key, key if len(key) == 1 else None))
        await settled(app, pilot)


def screen(app: Top) -> list[str]:
    """What is on the screen, line by line."""
    from io import StringIO

    from rich.console import Console

    width, height = app.size
    console = Console(width=width, height=height, file=StringIO(), color_system=None, legacy_windows=False)
    console.print(app.screen._compositor.render_update(full=True, screen_stack=app._background_screens))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def seen(app: Top) -> str:
    return "\n".join(screen(app))


def listing(app: Top, name: str) -> Listing:
    return app.screen_stack[0].query_one(f"#{name}", Listing)
