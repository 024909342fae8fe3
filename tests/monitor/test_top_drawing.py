"""What `gt top` writes, without a terminal: numbers, bars, tables, drawings, the frame of `--once`, the document of `--json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitor_samples import (
    BUSY,
    CREDIT,
    FAMILIES,
    GONE,
    GPUS,
    LOST,
    NOW,
    QUIET,
    RECOVERING,
    SECOND,
    SPLITS,
    UNKNOWN,
    many,
    task,
    waiting,
    worker,
)
from rich.cells import cell_len

from gt.instruction_log.text import tensor_of
from gt.ir.ops import OPS
from gt.monitor import service_health
from gt.monitor.snapshot import Snapshot
from gt.monitor.snapshot_document import VERSION, document
from gt.monitor.top import figures, frame, header, matrix, tasks, why
from gt.monitor.top.ink import GROUP_OF, OP_GROUPS, PLAIN_SIGNS, SIGNS, SPLIT_PARTS, Ink, fit
from gt.monitor.top.keys import KEYS
from gt.monitor.top.table import COLUMN_GAP, LEFT_MARGIN, body, column_at, head
from gt.monitor.top.tables import TABLES, client_hits, shares
from gt.monitor.top.view import PANES, WINDOWS, ViewState
from gt.monitor.top.words import CHINESE, ENGLISH, LANGUAGE_NAMES, LANGUAGES
from gt.wire.telemetry import Graphs, Waiting

INKS = (Ink(), Ink("zh"), Ink(dark=False), Ink(color=False), Ink("zh", color=False), Ink(color=False, unicode=False))
SNAPSHOTS = (BUSY, GPUS, QUIET, LOST, RECOVERING, GONE, UNKNOWN, many(40))


# numbers


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0B"), (17, "17B"), (1023, "1023B"), (1024, "1.0K"), (10_200, "10K"), (340 << 20, "340M"), (5 << 40, "5.0T")],
)
def test_bytes_are_written_in_few_characters(value: int, written: str) -> None:
    assert figures.size(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (7, "7"), (2.5, "2.5"), (940, "940"), (999.6, "1.0k"), (12_400, "12k"), (4_100_000, "4.1M")],
)
def test_counts_are_written_in_few_characters(value: float, written: str) -> None:
    assert figures.count(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0ns"), (3, "3ns"), (12_000, "12µs"), (4_500_000, "4.5ms"), (3_200_000_000, "3.2s"), (59 * SECOND, "59s"),
        (307 * SECOND, "5m07s"), (7_440 * SECOND, "2h04m"), (273_600 * SECOND, "3d04h"),
    ],
)  # fmt: skip
def test_spans_are_written_in_few_characters(value: int, written: str) -> None:
    assert figures.span(value) == written


@given(st.floats(0, 1e18))
def test_no_number_is_wider_than_its_column(value: float) -> None:
    assert len(figures.size(value)) <= 5
    assert len(figures.count(value)) <= 5
    assert len(figures.span(min(value, 9e17))) <= 6


def test_what_is_not_all_is_never_written_as_all() -> None:
    assert [figures.share(value) for value in (0, 0.004, 0.12, 0.998, 1.0)] == ["0%", "0%", "12%", "99%", "100%"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(0, 80))
def test_a_bar_is_as_long_as_its_shares_and_hides_none(values: list[float], cells: int) -> None:
    total = sum(values)
    given_shares = [value / total for value in values] if total > 1 else values
    given_parts = figures.parts(given_shares, cells)
    assert min(given_parts) >= 0
    assert sum(given_parts) == min(cells, round(sum(share * cells for share in given_shares)))
    if cells >= 20 and sum(given_parts) >= len(values):
        assert all(part > 0 for part, share in zip(given_parts, given_shares, strict=True) if share > 0.05)


def test_a_sparkline_has_the_newest_at_the_right() -> None:
    assert figures.sparkline([0.0, 0.5, 1.0], 5) == "  ▁▅█"
    assert figures.sparkline([0.0, 0.5, 1.0], 2) == "▅█"


def test_a_file_and_line_keeps_its_end() -> None:
    assert figures.place("/home/ada/train.py:31", 40) == "/home/ada/train.py:31"
    assert figures.place("/home/ada/train.py:31", 12) == "train.py:31"
    assert figures.place("/home/ada/training.py:31", 8) == "…g.py:31"


# words and signs


def test_all_languages_say_the_same_things() -> None:
    assert set(LANGUAGES) == set(LANGUAGE_NAMES)
    assert list(ENGLISH) == list(CHINESE)
    for key, english in ENGLISH.items():
        assert set(re.findall(r"{\w+}", english)) == set(re.findall(r"{\w+}", CHINESE[key])), key
        assert CHINESE[key]


def test_every_column_pane_key_and_state_has_its_words() -> None:
    needed = {column.name for table in TABLES.values() for column in table.columns} | {t.empty for t in TABLES.values()}
    needed |= {f"pane {name}" for name in PANES} | {f"help {key.words}" for key in KEYS}
    needed |= {f"key {key.foot}" for key in KEYS if key.foot}
    for what in ("pieces", "busy", "workers", "credit", "put", "restore", "mark", "plan"):
        needed |= {f"why {what}", f"short {what}"}
    needed |= {f"recovering {phase}" for phase in ("rewound", "workers", "restoring", "repeating")}
    assert needed - set(ENGLISH) == set()


def test_every_family_of_ops_has_a_colour_and_every_colour_its_sign() -> None:
    assert {op.family for op in OPS.values()} | {"fused"} == set(GROUP_OF)
    assert set(FAMILIES.values()) <= set(GROUP_OF)
    for signs in (SIGNS, PLAIN_SIGNS):
        assert len({signs[part] for part in SPLIT_PARTS}) == len(SPLIT_PARTS)


def test_no_key_is_bound_twice() -> None:
    bound = [name for key in KEYS for name in key.keys.split(",")]
    assert len(bound) == len(set(bound))


@given(st.text("ab计算…", max_size=12), st.integers(0, 12), st.booleans())
def test_a_text_is_fitted_to_cells_not_characters(text: str, width: int, right: bool) -> None:
    assert cell_len(fit(Ink().text(text), width, right).plain) == width


# tables


@pytest.mark.parametrize("ink", INKS)
@pytest.mark.parametrize("name", list(TABLES))
@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_every_table_fills_its_width_and_never_more(name: str, width: int, ink: Ink) -> None:
    view, table = ViewState(level="debug"), TABLES[name]
    columns = table.fitted(width, ink)
    assert sum(wide for _, wide in columns) + COLUMN_GAP * (len(columns) - 1) + LEFT_MARGIN <= width
    assert cell_len(head(columns, ink, view.sort[name]).plain) <= width
    rows = view.rows(name, BUSY)
    assert rows
    widths = {cell_len(body(columns, row, ink).plain) for row in rows}
    assert widths == {cell_len(head(columns, ink).plain)}


def test_a_wider_terminal_never_shows_fewer_columns() -> None:
    for table in TABLES.values():
        counts = [len(table.fitted(width, Ink())) for width in range(60, 240)]
        assert counts == sorted(counts)
        assert counts[-1] == len(table.columns)


def test_columns_are_found_by_where_they_are() -> None:
    columns = TABLES["workers"].fitted(120, Ink())
    line = head(columns, Ink()).plain
    for column, _ in columns:
        assert column_at(columns, line.index(ENGLISH[column.name])) == column.name
    assert column_at(columns, 0) is None


def test_rows_are_sorted_as_people_look_for_them_and_turned_round() -> None:
    view = ViewState()
    view.sort_by("workers", "used")
    assert [row.key for row in view.rows("workers", BUSY)] == [0, 1, 2, 3]
    view.sort_by("workers", "used")
    assert [row.key for row in view.rows("workers", BUSY)] == [3, 2, 1, 0]
    assert [row.item.nbytes for row in ViewState().rows("tensors", BUSY)] == sorted(
        (tensor.nbytes for tensor in BUSY.tensors), reverse=True
    )


def test_a_filter_keeps_rows_with_a_text_and_a_tree_puts_hosts_above() -> None:
    view = ViewState(having={"workers": "BETA"})
    assert [row.key for row in view.rows("workers", BUSY)] == [2, 3]
    view = ViewState(tree=True)
    assert [row.key for row in view.rows("workers", BUSY)] == [("host", "alpha"), 0, 1, ("host", "beta"), 2, 3]
    table = TABLES["workers"]
    for ink, said in (
        (Ink(), "alpha: 2 workers, 86% busy, "),
        (Ink(language="zh"), "alpha：2 个工作进程，忙碌 86%，内存 "),
    ):
        line = body(table.fitted(120, ink), view.rows("workers", BUSY)[0], ink).plain
        assert said in line, "each figure with its word, for who cannot see the columns too"
    assert view.rows("workers", many(1))[0].head == "a host of one"


@pytest.mark.parametrize("height", [5, 12, 20, 40, 90])
def test_lanes_are_as_high_as_there_is_room(height: int) -> None:
    """All the lines of a tall terminal are used, but for less than one for each worker, and none more than there are."""
    drawn = tasks.lines(BUSY, ViewState(), Ink(), 120, height)
    workers = len(BUSY.workers)
    assert height - workers < len(drawn) <= height or height < 2 * workers + 3
    assert all(any(line.plain.startswith(f"{worker.number:>3} ") for line in drawn) for worker in BUSY.workers)


def test_one_client_alone_is_one_client_everywhere() -> None:
    view = ViewState(only=2, level="debug")
    assert {row.item.client for row in view.rows("tensors", BUSY)} == {2}
    assert {row.item.client for row in view.rows("plans", BUSY)} == {2}
    assert {row.item[1].source for row in view.rows("log", BUSY)} == {"client 2"}
    assert tasks.chosen_tasks(BUSY.workers[0].recent, view.chosen(BUSY), moves=False) == []


def test_the_log_is_shown_from_a_level_on_the_newest_first() -> None:
    view = ViewState(level="warning")
    assert [row.item[1].level for row in view.rows("log", BUSY)] == ["error", "warning"]
    view.next_level()
    assert [row.item[1].level for row in view.rows("log", BUSY)] == ["error"]
    view.next_level()
    assert len(view.rows("log", BUSY)) == len(BUSY.log)


def test_the_window_of_the_task_stream_has_ends() -> None:
    view = ViewState()
    for _ in WINDOWS:
        view.longer(1)
    assert view.window == WINDOWS[-1]
    for _ in WINDOWS:
        view.longer(-1)
    assert view.window == WINDOWS[0]


# drawings


@pytest.mark.parametrize("ink", INKS)
@pytest.mark.parametrize("snapshot", SNAPSHOTS)
@pytest.mark.parametrize("size", [(60, 4), (80, 10), (200, 40)])
def test_nothing_is_drawn_wider_than_its_place(snapshot: object, size: tuple[int, int], ink: Ink) -> None:
    assert isinstance(snapshot, type(BUSY))
    drawn = [
        *header.lines(snapshot, ink, size[0]), *tasks.lines(snapshot, ViewState(), ink, *size),
        *frame.lines(snapshot, ink, size[0]), *matrix.lines(snapshot, ink, *size),
    ]  # fmt: skip
    assert drawn
    troubles = service_health.troubles(snapshot)
    assert [line.plain for line in drawn if cell_len(line.plain) > size[0] and line.plain.strip() not in troubles] == []
    if not ink.unicode:
        assert all(line.plain.isascii() for line in frame.lines(snapshot, ink, size[0]))


def test_a_lane_shows_who_fills_most_of_each_cell() -> None:
    first, second = task(1000, 500, "op", "matmul"), task(500, 100, "op", "relu")
    assert tasks.lane([first, second], NOW - 1000, 10, 100) == [0, 0, 0, 0, 0, 1, -1, -1, -1, -1]
    around = task(1000, 1000, "plan", "batch")
    assert tasks.lane([around, first], NOW - 1000, 10, 100) == [1] * 5 + [0] * 5, "an op is seen within its plan"
    assert tasks.lane([task(5000, 10, "op", "add")], NOW - 1000, 4, 250) == [-1] * 4, "what is over is not drawn"


def test_a_lane_without_colours_says_by_signs_what_it_is() -> None:
    plain = Ink(color=False)
    done = [task(1000, 600, "op", "matmul"), task(400, 400, "collective", "all-reduce")]
    line = tasks.draw_lane(done, tasks.lane(done, NOW - 1000, 20, 50), plain).plain
    assert line == "[matmul]mmmm████████"


def test_a_spill_is_orange_among_what_moves() -> None:
    done = [task(1000, 600, "spill", "spill out"), task(400, 400, "fetch", "fetch")]
    filled = tasks.lane(done, NOW - 1000, 20, 50)
    line = tasks.draw_lane(done, filled, Ink())
    assert [
        Ink().style(role) in str(span.style) for role, span in zip(("spill", "communication"), line.spans, strict=True)
    ]
    assert line.plain.startswith(" spill out ")
    assert tasks.draw_lane(done, filled, Ink(color=False)).plain == "[spill out]S[fetch]█"
    assert tasks.chosen_tasks(done, None, moves=True) == done
    told = ["".join(f"{line.plain} " for line in tasks.legend(Ink(), width)) for width in range(50, 140)]
    assert all(
        f"■ {role} " in each for role in ("plan", "communication", "spill", *OP_GROUPS, "other") for each in told
    )
    assert [len(tasks.legend(Ink(), width)) for width in (80, 200)] == [2, 1]
    assert all(cell_len(line.plain) <= width for width in range(50, 140) for line in tasks.legend(Ink(), width))
    assert "▀ communication" in tasks.legend(Ink(color=False), 200)[0].plain


def test_the_matrix_has_sums_and_shades_where_numbers_have_no_room() -> None:
    numbers = [line.plain for line in matrix.lines(BUSY, Ink(), 80, 20)]
    assert re.search(r"0\s+·\s+8\.6M\s+1\.0M\s+0B\s+9\.6M", numbers[2])
    shaded = [line.plain for line in matrix.lines(many(40), Ink(), 80, 50)]
    assert len(shaded) == 42
    assert all(set(line.split()[1]) <= set(matrix.SHADES) for line in shaded[2:])


def test_why_names_the_collective_the_peers_the_line_and_what_they_do() -> None:
    said = "\n".join(line.plain for line in why.lines(BUSY, ViewState(worker=1), Ink(), 120, 20))
    for text in (
        "Worker 1",
        "It waits for pieces of the all-reduce from worker 2: 3 missing (3.0M), for 40ms.",
        "train.py:31",
        "batch/hidden",
    ):
        assert text in said
    assert "worker 2: running" in said
    assert "client 2: Credit: workers 0, 1" in said
    assert "nothing to do" in "\n".join(line.plain for line in why.lines(BUSY, ViewState(worker=3), Ink(), 120, 20))


def test_clients_that_wait_are_told_of_where_no_worker_is_and_a_worker_that_is_busy_is_none() -> None:
    joining = Waiting(9 * SECOND, -1, 2 * SECOND, "workers", 1, -1, -1, "", [], 0, 0, "", "")
    busy = Waiting(9 * SECOND, -1, 2 * SECOND, "busy", 1, 3, 7, "", [0], 0, 0, "", "")
    said = [line.plain for line in why.lines(replace(QUIET, waiting=(joining,)), ViewState(), Ink(), 80, 20)]
    assert said == [
        " No worker has joined.",
        "",
        " Clients that wait",
        "   client 1: Workers have to join first, for 7.0s.",
    ]
    assert "等待" in "".join(
        line.plain for line in why.lines(replace(QUIET, waiting=(joining,)), ViewState(), Ink("zh"), 80, 20)
    )
    stuck = replace(BUSY, workers=(worker(0, SPLITS[0], "busy", busy),), waiting=(busy,))
    text = "\n".join(line.plain for line in why.lines(stuck, ViewState(), Ink(), 80, 20))
    assert "It has told nothing since it began order 7 of plan 3, for 7.0s." in text
    assert "Clients that wait" not in text


def test_whoever_waits_longest_is_spoken_of_first_and_a_ring_of_waits_ends() -> None:
    ring = [worker(0, SPLITS[0], "waiting", waiting(0, [1], 9)), worker(1, SPLITS[1], "waiting", waiting(1, [0], 99))]
    snapshot = replace(BUSY, workers=tuple(ring))
    found = why.selected_worker(snapshot, ViewState())
    assert found is not None
    assert found.number == 1
    assert [each.number for each in why.chain(snapshot, found)] == [1, 0]


def test_a_stream_that_is_not_live_says_so_with_its_age() -> None:
    first = header.title(GONE, Ink(), 120).plain
    assert "12s old" in first
    assert "reconnecting: no answer" in first
    lossy = replace(BUSY, status=replace(BUSY.status, dropped=1200))
    assert "1.2k events lost" in header.title(lossy, Ink(), 120).plain
    assert "PAUSED" in header.title(BUSY, Ink(), 120, paused=True).plain


# frames, documents, health


def test_a_frame_has_header_workers_clients_and_what_takes_time() -> None:
    said = "\n".join(line.plain for line in frame.lines(BUSY, Ink(color=False), 120))
    for text in (
        "tcp://127.0.0.1:7000",
        "up 00:12:34",
        "12k ops/s",
        "99% cache hits",
        "train.py",
        "matmul",
        "batch/hidden",
    ):
        assert text in said
    assert all(len(line.plain) == len(line.plain.rstrip()) for line in frame.lines(BUSY, Ink(), 120))
    assert frame.lines(LOST, Ink(), 120)[-1].plain == " worker 1 on alpha is lost"


def test_health_is_an_exit_status() -> None:
    assert service_health.status(BUSY) == 0
    assert service_health.status(UNKNOWN) == 1
    assert [service_health.status(snapshot) for snapshot in (LOST, GONE, QUIET)] == [3, 3, 3]
    assert service_health.troubles(LOST) == ["worker 0 on alpha has said nothing for 7 s", "worker 1 on alpha is lost"]
    assert service_health.troubles(QUIET) == ["no worker has joined"]
    assert service_health.troubles(replace(UNKNOWN, status=BUSY.status)) == ["nothing was heard of it in time"]
    assert not {"No worker has joined.", "No client is connected."} & {
        line.plain.strip() for line in frame.lines(UNKNOWN, Ink(), 80)
    }
    stuck = replace(BUSY, workers=(worker(0, SPLITS[0], "waiting", waiting(0, [1], 20 * SECOND)),))
    assert service_health.troubles(stuck) == ["worker 0 has waited for pieces of the all-reduce from [1] for 20 s"]


@pytest.mark.parametrize(
    ("phase", "healthy"), [("workers", False), ("restoring", True), ("repeating", True), ("", True)]
)
def test_a_service_in_which_a_session_waits_for_a_worker_is_not_well(phase: str, healthy: bool) -> None:
    """Whoever looks only now has not heard that one was lost."""
    (first, *others) = RECOVERING.clients
    assert first.state is not None
    seen = replace(BUSY, clients=(replace(first, state=first.state._replace(phase=phase)), *others))
    assert service_health.status(seen) == (0 if healthy else 3)
    if not healthy:
        assert service_health.troubles(seen) == [
            f"client {first.number} waits for a worker in the place of one that was lost"
        ]


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
def test_the_document_is_json_with_a_version(snapshot: object) -> None:
    assert isinstance(snapshot, type(BUSY))
    said = json.loads(json.dumps(document(snapshot)))
    assert said["version"] == VERSION
    assert said["healthy"] is (service_health.status(snapshot) == 0)
    assert len(said["workers"]) == len(snapshot.workers)
    assert "recent" not in json.dumps(said)


def test_the_document_says_what_a_snapshot_does() -> None:
    said = document(BUSY)
    assert said["workers"][0]["split"] == {**shares(BUSY.workers[0]), "idle": 0.05}
    assert said["clients"][1]["waiting"]["what"] == CREDIT.what
    assert said["service"]["address"] == "tcp://127.0.0.1:7000"
    assert said["matrix"]["total"][0][1] == 812 << 20
    assert said["plans"]["7"]["moves"] == [["all-reduce", 3 << 20, "batch", "train.py:31"]]


def test_memory_has_a_mark_where_spilling_begins_and_is_orange_while_data_is_out() -> None:
    first = BUSY.workers[0]
    assert first.gauges is not None
    spilling = replace(first, gauges=first.gauges._replace(spilled=1 << 30, pool=8 << 30))
    column = TABLES["workers"].column("memory")
    assert column is not None
    for ink in (Ink(), Ink(color=False), Ink(color=False, unicode=False)):
        calm, marked = column.cell(first, ink, 32), column.cell(spilling, ink, 32)
        assert cell_len(marked.plain) == cell_len(calm.plain) == 32
        assert marked.plain.index("┃" if ink.unicode else "!") == 10, "half of twenty cells"
        assert not {"┃", "!"} & set(calm.plain)
    assert column.cell(spilling, Ink(), 6).style == Ink().style("spill")


def test_the_hits_of_a_client_are_of_its_runs_and_none_where_nothing_ran() -> None:
    state = BUSY.clients[0].state
    assert state is not None
    late = replace(BUSY.clients[0], state=state._replace(runs=1000, plan_hits=940, plans_made=60))
    assert client_hits(late) == 0.94
    assert client_hits(replace(late, state=state._replace(runs=0, plan_hits=0, plans_made=0))) == -1.0
    assert client_hits(replace(late, state=None)) == -1.0
    fresh = replace(late, state=state._replace(runs=0, plan_hits=0, plans_made=0))
    assert not re.search(r"\d%", written("clients", [fresh])[0])


def written(name: str, things: Iterable[object], width: int = 200) -> list[str]:
    """The rows of a table."""
    table = TABLES[name]
    columns = table.fitted(width, INKS[3])
    return [body(columns, row, INKS[3]).plain for row in table.rows(things, "", False)]


def test_tensors_have_the_names_that_they_have_everywhere() -> None:
    tensors = tuple(replace(BUSY.tensors[0], tensor=tensor_of(text)) for text in ("%1p5", "%2.1207"))
    page = written("tensors", tensors)
    assert sum(" %1p5 " in line for line in page) == sum(" %2.1207 " in line for line in page) == 1
    assert "%2.1207" in TABLES["tensors"].words(tensors[1])


def test_what_nobody_needs_of_another_is_no_move() -> None:
    plan = BUSY.plans[7]._replace(moves=[["", 4096, "", ""], ["all-reduce", 1024, "", ""]])
    (line,) = written("plans", [plan])
    assert " all-reduce 1.0K " in line
    assert "4.0K" not in line


def test_temperature_and_power_are_shown_where_a_gpu_tells_them_and_marked_where_they_slow_it_down() -> None:
    def page(snapshot: Snapshot, ink: Ink = INKS[3], width: int = 200) -> list[str]:
        return [line.plain for line in frame.table("workers", snapshot, ViewState(), ink, width)]

    shown = page(GPUS)
    assert all(title in shown[0] for title in ("TEMP", "POWER"))
    assert not any(title in page(BUSY)[0] for title in ("TEMP", "POWER"))
    for row, told in zip(shown[1:], (" 71°C ", " 92°C!", " 55°C ", " – "), strict=True):
        assert told in row
    for row, told in zip(shown[1:], ("312/700W", "698/700W", " – ", " – "), strict=True):
        assert told in row
    assert "TEMP" in page(GPUS, width=80)[0]
    assert any("92C!" in line for line in (each.plain for each in frame.lines(GPUS, INKS[5], 200)))
    slow = [line.plain for line in why.lines(GPUS, ViewState(worker=1), INKS[0], 120, 20)]
    assert "   Its GPU is slowed down: power cap, hardware temperature." in slow
    captured = replace(GPUS.workers[0], graphs=Graphs(NOW, 0, 6, 1200, 3 << 20, ["addresses change"], [7]))
    told = [line.plain for line in why.lines(replace(GPUS, workers=(captured,)), ViewState(worker=0), INKS[0], 120, 20)]
    assert any("6 CUDA graphs of 3.0M" in line and "Without one: addresses change (7)." in line for line in told), told
    assert service_health.troubles(GPUS) == []
    gpu = GPUS.workers[0].gpu
    assert gpu is not None
    broken = replace(GPUS, workers=(replace(GPUS.workers[0], gpu=gpu._replace(errors=2)),))
    assert service_health.troubles(broken) == [
        "the GPU of worker 0 has had 2 memory errors that could not be corrected"
    ]


def test_a_session_s_recovery_is_told_in_its_row_the_header_and_the_reasons() -> None:
    """While it recovers how far it is; afterwards how often it did; marks as well. Where nothing was, no column is."""
    view, ink = ViewState(pane="why"), Ink()
    assert {"recovery", "recovered"} <= view.hidden_in("clients", BUSY)
    assert "marks" in view.hidden_in("clients", QUIET)
    shown = [name for name in ("recovery", "recovered", "marks") if name not in view.hidden_in("clients", RECOVERING)]
    assert shown == ["recovery", "recovered", "marks"]
    for width, said in ((80, " 3 of 4 workers restored "), (200, "recovering: 3 of 4 workers restored")):
        text = "\n".join(line.plain for line in frame.lines(RECOVERING, ink, width))
        assert said in text
        assert "3 recovered" in text or width == 80
    reasons = "\n".join(line.plain for line in why.lines(RECOVERING, view, ink, 100, 40))
    for said in ("recovering: 3 of 4 workers restored", "marks: 12, the last 1.4s ago, written in 8.1ms",
                 "recoveries: 2, the last in 800ms"):  # fmt: skip
        assert said in reasons
