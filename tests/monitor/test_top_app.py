"""The layout of `gt top` at all sizes, the mouse, and pictures of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from driven_top import LARGE, SMALL, Fixed, drive, listing, press, screen, seen, settled, until
from monitor_samples import BUSY, GONE, LOST, QUIET, RECOVERING, UNKNOWN, many
from rich.text import Text
from textual.pilot import Pilot

from gt.monitor.snapshot import Snapshot
from gt.monitor.top.app import Top
from gt.monitor.top.display import MIN_SIZE
from gt.monitor.top.ink import Ink
from gt.monitor.top.keys import KEYS, first
from gt.monitor.top.screens import Help
from gt.monitor.top.view import PANES
from gt.monitor.top.widgets import Clicks

# the layout


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_header_workers_clients_panes_and_keys_are_there_at_both_sizes(size: tuple[int, int]) -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        lines = screen(app)
        assert len(lines) == size[1]
        assert max(map(len, lines)) <= size[0]
        assert "tcp://127.0.0.1:7000" in lines[0]
        assert "live" in lines[0]
        assert "ops/s" in lines[1]
        text = "\n".join(lines)
        for word in (
            "UTILISATION",
            "MEMORY",
            "running",
            "waiting",
            "idle",
            "train.py",
            "evaluate.py",
            "1 Tasks",
            "7 Plans",
        ):
            assert word in text, word
        assert lines[-1].startswith("F1 Help  F2 Setup")
        assert "F10 Quit" in lines[-1]

    drive(test, size=size)


@pytest.mark.parametrize(
    ("snapshot", "size", "language"),
    [
        (BUSY, SMALL, "en"), (BUSY, LARGE, "zh"), (QUIET, SMALL, "zh"), (LOST, SMALL, "en"), (GONE, SMALL, "zh"),
        (UNKNOWN, SMALL, "en"), (many(64), SMALL, "en"), (many(300), LARGE, "zh"),
    ],
    ids=lambda each: each if type(each) is str else "",
)  # fmt: skip
def test_every_pane_can_be_looked_at_in_every_state(snapshot: Snapshot, size: tuple[int, int], language: str) -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        pictures = set()
        for number in range(1, 8):
            await press(app, pilot, str(number))
            assert app.view.pane == PANES[number - 1]
            pictures.add(seen(app))
        assert len(pictures) >= 6, "without workers two panes say the same"

    drive(test, snapshot, size, Ink(language))


def test_a_terminal_too_small_says_so_in_one_line_and_recovers() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        assert [line for line in screen(app) if line] == ["gt top needs 60×16 characters, there are 50×10."]
        await pilot.resize_terminal(*SMALL)
        await until(app, pilot, "UTILISATION")
        await pilot.resize_terminal(MIN_SIZE[0], MIN_SIZE[1] - 1)
        await until(app, pilot, "there are 60×15")

    drive(test, size=(50, 10))


@pytest.mark.parametrize("size", [(20, 5), (12, 8)])
def test_nothing_is_beside_what_a_terminal_much_too_small_is_told(size: tuple[int, int]) -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        assert " ".join(" ".join(screen(app)).split()) == (
            f"gt top needs 60×16 characters, there are {size[0]}×{size[1]}."
        )
        await pilot.resize_terminal(*SMALL)
        await until(app, pilot, "UTILISATION")
        await press(app, pilot, "down")
        assert app.focused is listing(app, "workers")

    drive(test, size=size)


@pytest.mark.parametrize("keys", [("f1",), ("f2",), ("f6",), ("tab", "f9"), ("slash",)])
def test_what_is_open_survives_a_terminal_of_any_size(keys: tuple[str, ...]) -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, *keys)
        before = type(app.screen)
        for size in ((1, 1), (20, 5), (3, 40), SMALL):
            await pilot.resize_terminal(*size)
            await settled(app, pilot)
        assert type(app.screen) is before
        await press(app, pilot, "escape")
        await until(app, pilot, "UTILISATION")
        assert len(app.screen_stack) == 1

    drive(test, size=SMALL)


def test_frames_follow_the_latest_snapshot_and_a_lost_service_is_told() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        source.now = GONE
        app.tick()
        await settled(app, pilot)
        assert "12s old  ● reconnecting: no answer" in screen(app)[0]
        source.now = replace(BUSY, ops_per_s=7.0)
        app.tick()
        await settled(app, pilot)
        assert "live" in screen(app)[0]
        assert re.match(r"\s+7 ops/s", screen(app)[1])

    drive(test)


def test_the_cursor_stays_on_its_row_when_rows_come_and_go() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "down", "down")
        assert listing(app, "workers").item.number == 2
        source.now = replace(BUSY, workers=BUSY.workers[1:])
        app.tick()
        await settled(app, pilot)
        assert listing(app, "workers").item.number == 2
        source.now = replace(BUSY, workers=BUSY.workers[:2])
        app.tick()
        await settled(app, pilot)
        assert listing(app, "workers").item.number == 1

    drive(test)


# the mouse


def test_rows_titles_panes_and_keys_can_be_clicked() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        lines = screen(app)
        assert await pilot.click(offset=(20, lines.index(next(line for line in lines if "› " in line)) + 2))
        assert listing(app, "workers").item.number == 2
        title = next(place for place, line in enumerate(lines) if "UTILISATION" in line)
        assert await pilot.click(offset=(lines[title].index("USED") + 1, title))
        assert app.view.sort["workers"] == "used"
        assert await pilot.click(offset=(lines[title].index("USED") + 1, title))
        assert app.view.turned["workers"]
        tabs = next(place for place, line in enumerate(lines) if "1 Tasks" in line)
        assert await pilot.click(offset=(lines[tabs].index("Log"), tabs))
        assert app.view.pane == "log"
        assert await pilot.click(offset=(lines[-1].index("Help"), len(lines) - 1))
        assert isinstance(app.screen, Help)

    drive(test)


def test_a_second_click_on_a_worker_asks_why() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        spot = listing(app, "workers").content_region.offset
        assert await pilot.double_click(offset=(spot.x + 6, spot.y + 2))
        await settled(app, pilot)
        assert app.view.pane == "why"
        assert "Worker 1 on alpha" in seen(app)

    drive(test)


def test_the_line_of_keys_tells_which_was_clicked() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        foot = app.query_one("#foot", Clicks)
        actions = [action for _, _, action in foot.spots]
        assert actions == [key.action for key in KEYS if key.foot]
        assert isinstance(foot.line, Text)
        assert all(first(key) in foot.line.plain for key in KEYS if key.foot)

    drive(test)


def test_a_table_takes_the_columns_that_have_room_whenever_its_width_changes() -> None:
    """Also when nothing else has the app draw: a pane that is shown gets its width a moment later."""

    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "3")
        ops = listing(app, "ops")
        for width in (30, 110):
            ops.styles.width = width
            for _ in range(100):
                await pilot.pause()
                fits, room = ops.columns, ops.virtual_size.width
                if width - 5 < room <= width:
                    break
            assert room - 20 < sum(taken for _, taken in fits) < room <= width
            app.draw()
            assert ops.columns == fits, "what the app draws next is the same"

    drive(test, size=LARGE)


# pictures

PICTURES = Path(__file__).parent / "pictures"


def painted(picture: str) -> list[tuple[str, ...]]:
    """What an SVG shows: each text with its place and colours, apart from how a version of the library writes it."""
    styles = dict(re.findall(r"\.[\w-]+-(r\d+)\s*{([^}]*)}", picture))
    found = []
    for classes, x, y, text in re.findall(
        r'<text class="([^"]*)" x="([^"]*)" y="([^"]*)"[^>]*>([^<]*)</text>', picture
    ):
        if text.replace("&#160;", "").strip():
            name = classes.rsplit("-", 1)[-1]
            found.append((x, y, text, " ".join(styles.get(name, "").split())))
    return found


def pictured() -> Iterator[tuple[str, Snapshot, tuple[int, int], tuple[str, ...], Ink]]:
    yield "tasks-200x60", BUSY, LARGE, ("1",), Ink()
    yield "tasks-80x24", BUSY, SMALL, ("1",), Ink()
    yield "traffic-light-120x40", BUSY, (120, 40), ("2", "f5"), Ink(dark=False)
    yield "hot-chinese-120x40", BUSY, (120, 40), ("3",), Ink("zh")
    yield "lost-why-80x24", LOST, SMALL, ("down", "w"), Ink()
    yield "no-colour-80x24", BUSY, SMALL, ("1",), Ink(color=False)
    yield "recovering-200x60", RECOVERING, LARGE, ("w",), Ink()
    yield "recovering-80x24", RECOVERING, SMALL, ("w",), Ink()


@pytest.mark.parametrize(
    ("name", "snapshot", "size", "keys", "ink"), list(pictured()), ids=lambda each: each if type(each) is str else ""
)
def test_the_picture_is_as_it_was(
    name: str, snapshot: Snapshot, size: tuple[int, int], keys: tuple[str, ...], ink: Ink, request: pytest.FixtureRequest
) -> None:  # fmt: skip
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, *keys)
        taken.append(app.export_screenshot(simplify=True))

    taken: list[str] = []
    drive(test, snapshot, size, ink)
    place = PICTURES / f"{name}.svg"
    if request.config.getoption("--draw-pictures"):
        PICTURES.mkdir(exist_ok=True)
        place.write_text(taken[0], "utf-8")
    assert painted(taken[0]) == painted(place.read_text("utf-8")), (
        "look at it; when it is right: pytest --draw-pictures"
    )
