"""Every key of `gt top`, and what is on the screen afterwards."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from driven_top import LARGE, SMALL, Fixed, choose, drive, listing, press, screen, seen, settled, until
from monitor_samples import BUSY, GONE, many
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import Input

from gt.monitor.top.app import Top
from gt.monitor.top.ink import Ink
from gt.monitor.top.keys import KEYS
from gt.monitor.top.screens import Confirm, Help, Menu
from gt.monitor.top.settings import Settings, read
from gt.monitor.top.table import COLUMN_GAP, LEFT_MARGIN
from gt.monitor.top.view import PANES
from gt.monitor.top.widgets import Canvas, Clicks, Listing


def test_help_lists_every_key_and_leaves_out_what_the_service_does_not_take() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        for name in ("f1", "h", "question_mark"):
            await press(app, pilot, name)
            assert isinstance(app.screen, Help)
            text = app.screen.text.plain
            for key in KEYS:
                assert (f"  {key.shown} " in text) is (key.action not in ("act", "cancel")), key.shown
            await press(app, pilot, "escape")
            assert not isinstance(app.screen, Help)
        assert "F9" not in screen(app)[-1]
        await press(app, pilot, "f9")
        assert "Only an operator" in seen(app)

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
        await press(app, pilot, "k")
        await until(app, pilot, "Choose a client first")
        await press(app, pilot, "tab", "k")
        assert isinstance(app.screen, Confirm)
        assert "Cancel the work of client 1?" in seen(app)
        await press(app, pilot, "n")
        assert source.acts == []
        await press(app, pilot, "k", "escape")
        assert source.acts == []
        await press(app, pilot, "k", "enter")
        assert source.acts == [], "no is the first answer"
        await press(app, pilot, "k", "y")
        assert source.acts == [("cancel", 1, "")]
        await press(app, pilot, "space", "space", "k")
        assert "clients 1, 2?" in seen(app)
        await press(app, pilot, "down", "enter")
        assert source.acts == [("cancel", number, "") for number in (1, 1, 2)]

    drive(test)


def test_a_service_that_takes_no_orders_is_given_none() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "tab", "k")
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
                while len(app.screen_stack) > 1 or isinstance(app.focused, Input):
                    await press(app, pilot, "escape")
                listing(app, "workers").focus()

    drive(test, size=SMALL, folder=tmp_path)
    assert pressed == {name for key in KEYS if key.action != "quit" for name in key.keys.split(",")}


def test_an_operator_acts_after_a_yes_alone() -> None:
    """The menu offers what can be done with the rows at hand; each choice asks first, and no is the first answer."""

    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        await press(app, pilot, "f9")
        assert "drain" in seen(app)
        assert "weight" not in seen(app), "no client is at hand"
        await choose(app, pilot, "drain")
        assert "Drain worker 0?" in seen(app)
        await press(app, pilot, "enter")
        assert source.acts == []
        await press(app, pilot, "f9")
        await choose(app, pilot, "drain")
        await press(app, pilot, "y", "tab", "a")
        assert source.acts.pop() == ("drain", 0, "")
        for name in ("cancel", "pause", "resume", "end", "priority batch", "weight 0.5", "reload"):
            await choose(app, pilot, name)
            assert isinstance(app.screen, Confirm)
            await press(app, pilot, "y")
            action, _, value = name.partition(" ")
            assert source.acts.pop() == (action, -1 if action == "reload" else 1, value)
            await press(app, pilot, "a")
        await press(app, pilot, "enter", "y")
        assert source.acts.pop() == ("pause", 1, ""), "the first of what can be done"
        await press(app, pilot, "a", "escape")
        assert source.acts == []

    drive(test)


def test_whose_sessions_are_is_shown_where_there_are_several_users() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        assert "key anna" in seen(app)
        source.now = BUSY
        app.tick()
        await settled(app, pilot)
        assert "user 1000" not in seen(app)

    first, second = BUSY.clients
    drive(test, replace(BUSY, clients=(first, replace(second, principal="key anna"))), LARGE)


def test_a_paused_session_and_a_weight_are_shown() -> None:
    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        assert "paused" in seen(app)
        assert "batch ×2.5" in seen(app)

    first, second = BUSY.clients
    assert first.state is not None
    assert second.state is not None
    clients = (
        replace(first, state=first.state._replace(paused=1)),
        replace(second, state=second.state._replace(priority="batch", weight=2500)),
    )
    drive(test, replace(BUSY, clients=clients), LARGE)


@pytest.mark.parametrize("weight", [2000, 250])
def test_a_weight_is_never_cut_off(weight: int) -> None:
    """Rather the class is: who weighs a session wants to see that it does."""

    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        assert seen(app).count(f"×{weight / 1000:g} ") == 2
        assert re.search(r"n\w*…? ×2 ", seen(app)) or weight < 1000

    clients = tuple(
        replace(each, principal=f"key {name}", state=each.state._replace(priority=priority, weight=weight))
        for each, name, priority in zip(BUSY.clients, ("anna", "bob"), ("normal", "interactive"), strict=True)
        if each.state is not None
    )
    drive(test, replace(BUSY, clients=clients), (150, 30))


def test_who_orders_what_fails_is_told_why() -> None:
    """Once, whatever is looked at, and verbatim."""

    async def test(app: Top, pilot: Pilot[None], source: Fixed) -> None:
        source.refusals.append("[a.yaml:2] 'urgent' is no priority")
        app.tick()
        await until(app, pilot, "[a.yaml:2] 'urgent' is no priority")
        assert [each.severity for each in app._notifications] == ["error"]
        app.tick()
        await settled(app, pilot)
        assert len(app._notifications) == 1

    drive(test)
