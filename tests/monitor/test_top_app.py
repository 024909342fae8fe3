"""`gt top` in a terminal that is not there: every key, the mouse, both sizes, and what is on the screen afterwards."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from monitor_samples import BUSY, GONE, LOST, QUIET, UNKNOWN, many
from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from gt.monitor.snapshot import Snapshot
from gt.monitor.top.app import Top
from gt.monitor.top.display import MIN_SIZE
from gt.monitor.top.ink import Ink
from gt.monitor.top.keys import KEYS, first
from gt.monitor.top.screens import Confirm, Help, Menu
from gt.monitor.top.settings import UNSET_SETTINGS, Settings, read
from gt.monitor.top.table import COLUMN_GAP, LEFT_MARGIN
from gt.monitor.top.view import PANES
from gt.monitor.top.widgets import Canvas, Clicks, Listing

TIMEOUT = 20.0
"""Seconds for what takes an instant, for slow machines."""
SMALL, MIDDLE, LARGE = (80, 24), (120, 40), (200, 60)


class Fixed:
    """A source that hands over one snapshot, until it is given another, and notes what it was asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot
        self.cancelled: list[int] = []

    def snapshot(self) -> Snapshot:
        return self.now

    def cancel(self, client: int) -> None:
        self.cancelled.append(client)

    def close(self) -> None:
        pass


def drive(
    test: Callable[[Top, Pilot[None], Fixed], Awaitable[None]],
    snapshot: Snapshot = BUSY,
    size: tuple[int, int] = MIDDLE,
    ink: Ink | None = None,
    folder: Path | None = None,
    kept: Settings = UNSET_SETTINGS,
    file: Path | None = None,
) -> None:
    """Run the app without a terminal, and a test with it."""
    source = Fixed(snapshot)
    app = Top(source, ink or Ink(), folder, None, kept, file)

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


# keys


def test_help_lists_every_key_and_leaves_out_what_the_service_does_not_take() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        for name in ("f1", "h", "question_mark"):
            await press(app, pilot, name)
            assert isinstance(app.screen, Help)
            text = app.screen.text.plain
            for key in KEYS:
                assert (f"  {key.shown} " in text) is (key.action != "cancel"), key.shown
            await press(app, pilot, "escape")
            assert not isinstance(app.screen, Help)
        assert "F9" not in screen(app)[-1]

    drive(test, replace(BUSY, status=replace(BUSY.status, capabilities=())))


def test_setup_changes_theme_language_and_columns_at_once() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        assert "PID" not in screen(app)[3]
        await press(app, pilot, "f2")
        await choose(app, pilot, "theme gt-light")
        assert app.theme == "gt-light"
        assert not app.ink.dark
        await choose(app, pilot, "workers pid")
        await choose(app, pilot, "workers memory")
        await choose(app, pilot, "language zh")
        await press(app, pilot, "escape")
        await until(app, pilot, "利用率")
        assert "进程号" in seen(app)
        assert "内存" not in screen(app)[3]
        await press(app, pilot, "S")
        assert isinstance(app.screen, Menu)

    drive(test)


def test_theme_and_language_are_kept_when_they_are_chosen_and_nothing_else_is(tmp_path: Path) -> None:
    file = tmp_path / "gt" / "top.json"

    async def choosing(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "f2")
        await choose(app, pilot, "workers held")
        assert not file.exists()
        await choose(app, pilot, "theme gt-light")
        assert read(file) == (Settings("gt-light", ""), ""), "Chinese was asked for this once alone"
        await choose(app, pilot, "language en")
        assert read(file) == (Settings("gt-light", "en"), "")

    async def again(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        assert (app.theme, app.ink.dark) == ("gt-light", False)

    async def unknown(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        assert (app.theme, app.ink.dark) == ("gt-dark", True)

    async def nowhere(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "f2")
        await choose(app, pilot, "theme nord")
        assert app.theme == "nord"
        await until(app, pilot, "cannot be kept")

    drive(choosing, ink=Ink("zh"), file=file)
    drive(again, kept=read(file)[0])
    drive(unknown, kept=Settings("no such theme", ""))
    drive(nowhere, file=file / "below")


def test_search_goes_to_the_row_and_on_to_the_next() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "slash", *"beta")
        assert listing(app, "workers").item.number == 2
        await press(app, pilot, "enter")
        assert app.focused is listing(app, "workers")
        await press(app, pilot, "n")
        assert listing(app, "workers").item.number == 3
        await press(app, pilot, "n")
        assert listing(app, "workers").item.number == 2
        await press(app, pilot, "f3")
        app.query_one(Input).value = "nowhere"
        await press(app, pilot, "enter")
        await until(app, pilot, "Nothing has “nowhere” in it.")

    drive(test)


def test_what_was_typed_is_said_letter_by_letter_whatever_it_looks_like() -> None:
    """A toast reads square brackets as markup, and the app ended where they were none."""

    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        for typed in ("[/x]", "[1"):
            await press(app, pilot, "slash")
            app.query_one(Input).value = typed
            await press(app, pilot, "enter")
            await until(app, pilot, f"Nothing has “{typed}” in it.")
            await press(app, pilot, "n")

    drive(test)


def test_a_filter_shows_what_has_the_text_and_escape_shows_all() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        for key in ("f4", "backslash"):
            await press(app, pilot, key, *"alpha")
            assert [row.key for row in listing(app, "workers").rows] == [0, 1]
            await press(app, pilot, "enter")
            assert "Filter: alpha" in seen(app)
            await press(app, pilot, "escape")
            assert len(listing(app, "workers").rows) == 4
        await press(app, pilot, "f4", *"zzz")
        assert "Nothing matches the filter." in seen(app)
        await press(app, pilot, "escape")
        assert "Nothing matches" not in seen(app)
        assert app.focused is listing(app, "workers")

    drive(test)


def test_rows_leave_room_for_a_scrollbar_from_the_first_frame_that_has_one() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "4")
        listing = app.base.query_one("#tensors", Listing)
        assert taken(listing) == 80
        source.now = replace(BUSY, tensors=BUSY.tensors * 4)
        app.tick()
        assert taken(listing) == 79

    def taken(listing: Listing) -> int:
        return LEFT_MARGIN + sum(width + COLUMN_GAP for _, width in listing.columns) - COLUMN_GAP

    drive(test, size=SMALL)


def test_the_tree_puts_workers_under_their_hosts() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        for key in ("f5", "t"):
            await press(app, pilot, key)
            assert "alpha: 2 workers, 86% busy" in seen(app)
            assert "F5 List" in screen(app)[-1]
            assert listing(app, "workers").item is not None
            await press(app, pilot, "home")
            assert listing(app, "workers").item.number == 0
            await press(app, pilot, "down", "down")
            assert listing(app, "workers").item.number == 2
            await press(app, pilot, "up")
            assert listing(app, "workers").item.number == 1
            await press(app, pilot, key)
            assert "F5 Tree" in screen(app)[-1]

    drive(test)


def test_the_sort_column_is_chosen_turned_and_has_keys_of_its_own() -> None:
    async def order(app: Top) -> list[int]:
        return [row.key for row in listing(app, "workers").rows]

    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        for key in ("f6", "s", "greater_than_sign"):
            app.view.sort["workers"] = "number"
            await press(app, pilot, key)
            await choose(app, pilot, "sent")
            assert app.view.sort["workers"] == "sent"
            assert "SENT/s▾" in seen(app)
        await press(app, pilot, "I")
        assert await order(app) == [3, 2, 1, 0]
        await press(app, pilot, "M")
        assert app.view.sort["workers"] == "memory"
        assert await order(app) == [3, 2, 1, 0]
        await press(app, pilot, "P")
        assert await order(app) == [0, 1, 2, 3]
        await press(app, pilot, "T")
        assert app.view.sort["workers"] == "why"
        assert (await order(app))[0] == 1

    drive(test)


def test_rows_are_marked_and_unmarked() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "space", "space")
        assert app.view.marked["workers"] == {0, 1}
        assert "2 marked" in seen(app)
        assert listing(app, "workers").item.number == 2
        await press(app, pilot, "up", "space")
        assert app.view.marked["workers"] == {0}
        await press(app, pilot, "U")
        assert "marked" not in seen(app)

    drive(test)


def test_a_paused_view_holds_still_but_tells_when_the_service_is_lost() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        for key in ("p", "Z"):
            source.now = BUSY
            app.tick()
            await press(app, pilot, key)
            source.now = replace(GONE, ops_per_s=1.0)
            app.tick()
            await settled(app, pilot)
            assert "PAUSED" in screen(app)[0]
            assert "reconnecting" in screen(app)[0]
            assert "12k ops/s" in screen(app)[1]
            await press(app, pilot, key)
            assert "PAUSED" not in screen(app)[0]
            assert "1 ops/s" in screen(app)[1]

    drive(test)


def test_an_export_is_a_picture_and_the_values_and_says_where(tmp_path: Path) -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "e")
        (picture,) = tmp_path.glob("gt-top-*.svg")
        (values,) = tmp_path.glob("gt-top-*.json")
        assert "matmul" not in picture.read_text()
        assert "UTILISATION" in picture.read_text()
        assert json.loads(values.read_text())["workers"][1]["state"] == "waiting"
        await until(app, pilot, "Written:")
        app.folder = tmp_path / "missing"
        await press(app, pilot, "e")
        await until(app, pilot, "Not written")

    drive(test, folder=tmp_path)


def test_why_speaks_of_the_selected_worker_and_enter_does_the_same() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "down", "w")
        assert "pieces of the all-reduce from worker 2: 3 missing (3.0M)" in seen(app)
        await press(app, pilot, "down")
        await until(app, pilot, "Worker 2 on beta cpu")
        await press(app, pilot, "1", "up", "enter")
        await until(app, pilot, "Worker 1 on alpha cpu")

    drive(test)


def test_enter_shows_all_of_a_row_whose_columns_are_cut_or_left_out() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        for pane, name in (("3", "ops"), ("4", "tensors"), ("5", "log"), ("7", "plans")):
            await press(app, pilot, pane)
            table = listing(app, name)
            table.focus()
            await settled(app, pilot)
            await press(app, pilot, "home", "enter")
            assert isinstance(app.screen, Help)
            text = app.screen.text.plain
            assert [line.split("  ")[1] for line in text.splitlines()] == [
                app.ink.word(column.name) for column in table.table.columns
            ]
            assert "…" not in text
            await press(app, pilot, "escape")

    drive(test, size=SMALL)


def test_every_pane_can_be_chosen_whatever_is_said_beside_them() -> None:
    """Also at 80 cells: then the others have their numbers alone, and what is said is cut at last."""

    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        for chosen in ("1", "3", "5", "7"):
            await press(app, pilot, chosen)
            tabs = app.query_one("#tabs", Clicks)
            assert [action for _, _, action in tabs.spots] == [f"pane('{name}')" for name in PANES]
            assert cell_len(tabs.line.plain) == SMALL[0]
        app.view.having["log"] = "a" * 100
        await press(app, pilot, "5")
        assert len(app.query_one("#tabs", Clicks).spots) == len(PANES)
        assert "5 Log" in seen(app)
        assert "aaa…" in seen(app)

    drive(test, size=SMALL)


def test_one_client_alone_is_chosen_and_let_go() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "tab", "down", "u", "4")
        assert "client 2 alone" in seen(app)
        assert {row.item.client for row in listing(app, "tensors").rows} == {2}
        await press(app, pilot, "u")
        assert app.view.only is None
        await press(app, pilot, "enter")
        assert app.view.only == 2
        await press(app, pilot, "escape")
        assert app.view.only is None

    drive(test)


def test_tab_and_shift_tab_go_round_the_tables() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        around = []
        for _ in range(4):
            assert app.focused is not None
            around.append(app.focused.id)
            await press(app, pilot, "tab")
        assert around == ["workers", "clients", "tasks", "workers"]
        await press(app, pilot, "shift+tab")
        assert app.focused is not None
        assert app.focused.id == "workers"

    drive(test)


def test_panes_are_changed_by_number_by_arrow_and_by_bracket() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        for key, pane in (("5", "log"), ("right", "why"), ("right_square_bracket", "plans"), ("right", "tasks")):
            await press(app, pilot, key)
            assert app.view.pane == pane
        for key, pane in (("left", "plans"), ("left_square_bracket", "why")):
            await press(app, pilot, key)
            assert app.view.pane == pane
        await press(app, pilot, "tab", "tab", "3")
        assert app.focused is listing(app, "ops"), "the focus goes along"

    drive(test)


def test_the_task_stream_shows_more_or_less_time_and_the_log_other_levels() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        assert "-5.0s" in seen(app)
        await press(app, pilot, "minus")
        assert "-10s" in seen(app)
        await press(app, pilot, "plus", "equals_sign")
        assert "-2.0s" in seen(app)
        await press(app, pilot, "l")
        assert "from level info on" in seen(app)
        assert "candidates" in seen(app)
        await press(app, pilot, "l")
        assert "from level warning on" in seen(app)
        assert "candidates" not in seen(app)

    drive(test)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_rows_are_gone_through_by_step_page_and_edge(size: tuple[int, int]) -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        workers = listing(app, "workers")
        await press(app, pilot, "end")
        assert workers.item.number == 299
        assert re.search(r"› +299 ", seen(app))
        await press(app, pilot, "up", "pageup")
        assert workers.item.number == 298 - (workers.size.height - 2)
        await press(app, pilot, "home", "down", "pagedown", "up")
        assert workers.item.number == workers.size.height - 2
        await press(app, pilot, "home")
        assert workers.item.number == 0
        assert re.search(r"› +0 ", seen(app))

    drive(test, many(300), size)


def test_a_drawing_scrolls_when_it_is_higher_than_its_place() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "2", "tab", "tab")
        canvas = app.focused
        assert isinstance(canvas, Canvas)
        before = seen(app)
        await press(app, pilot, "end")
        await pilot.wait_for_scheduled_animations()
        await settled(app, pilot)
        assert seen(app) != before

    drive(test, many(300), SMALL)


def test_work_is_cancelled_after_a_yes_alone() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "f9")
        await until(app, pilot, "Choose a client first")
        await press(app, pilot, "tab", "f9")
        assert isinstance(app.screen, Confirm)
        assert "Cancel the work of client 1?" in seen(app)
        await press(app, pilot, "n")
        assert source.cancelled == []
        await press(app, pilot, "k", "escape")
        assert source.cancelled == []
        await press(app, pilot, "k", "enter")
        assert source.cancelled == [], "no is the first answer"
        await press(app, pilot, "k", "y")
        assert source.cancelled == [1]
        await press(app, pilot, "space", "space", "k")
        assert "clients 1, 2?" in seen(app)
        await press(app, pilot, "down", "enter")
        assert source.cancelled == [1, 1, 2]

    drive(test)


def test_a_service_that_takes_no_orders_is_given_none() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "tab", "f9")
        assert not isinstance(app.screen, Confirm)
        await until(app, pilot, "This service takes no such order")
        assert "Cancel" not in screen(app)[-1]

    drive(test, replace(BUSY, status=replace(BUSY.status, capabilities=())))


@pytest.mark.parametrize("key", ["f10", "q", "ctrl+c"])
def test_three_keys_quit(key: str) -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await pilot.press(key)
        assert app.return_code == 0
        assert app._exit

    drive(test)


@pytest.mark.parametrize("opened", ["slash", "f1", "f2", "tab"])
def test_ctrl_c_quits_whatever_is_open_or_typed(opened: str) -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, opened)
        await pilot.press("ctrl+c")
        assert app._exit
        assert app.return_code == 0

    drive(test)


def test_every_key_of_the_table_is_bound_to_an_action_that_there_is(tmp_path: Path) -> None:
    pressed = set()

    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        for key in KEYS:
            name = key.action.partition("(")[0].removeprefix("app.")
            owner = listing(app, "workers") if key.scope == "table" else app
            assert callable(getattr(owner, f"action_{name}")), key
            if key.action == "quit":
                continue
            for each in key.keys.split(","):
                await press(app, pilot, each)
                pressed.add(each)
                while len(app.screen_stack) > 1:
                    await press(app, pilot, "escape")
                await press(app, pilot, "escape")
                listing(app, "workers").focus()

    drive(test, size=SMALL, folder=tmp_path)
    assert pressed == {name for key in KEYS if key.action != "quit" for name in key.keys.split(",")}


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
