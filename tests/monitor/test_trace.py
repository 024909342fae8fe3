"""A trace is what Perfetto opens, says all that the events say, and is written in bounded memory."""

from __future__ import annotations

import gzip
import io
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import event_samples as e
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.errors import TraceError
from gt.monitor import trace as tracing
from gt.monitor.reading import TraceMetadata, parse, read
from gt.monitor.trace import TraceWriter, microseconds
from gt.monitor.tracing import writing
from gt.wire import telemetry as t

ALL = e.session()
BEGIN = tracing.HEAD_LINE.encode() + b'\n{"ph":"M","name":"gt.origin","pid":1,"args":{"time":5}},'


def written(events: Iterable[t.Event], dropped: int = 0, **facts: Any) -> str:
    parts: list[str] = []
    trace = TraceWriter(parts.append, facts)
    trace.add(events, dropped)
    trace.close()
    return "".join(parts)


def lines(text: str) -> Iterable[str]:
    """As a file has them: a name may hold what Python's `splitlines` takes for the end of a line."""
    return io.StringIO(text, newline="\n")


def drawn(events: Iterable[t.Event]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(written(events))["traceEvents"]
    return found


def begin(event: dict[str, Any]) -> int:
    return int(event["ts"] * 1000.0)


def end(event: dict[str, Any]) -> int:
    return begin(event) + int(event["dur"] * 1000.0)


def threads(found: list[dict[str, Any]]) -> dict[int, str]:
    """The full name of every thread: 'worker 0: cpu (here, pid 100) compute'."""
    processes = {event["pid"]: event["args"]["name"] for event in found if event["name"] == "process_name"}
    return {
        event["tid"]: f"{processes[event['pid']]} {event['args']['name']}"
        for event in found
        if event["name"] == "thread_name"
    }


def test_the_session_has_every_kind_and_the_trace_a_writer_for_each() -> None:
    assert {type(event) for event in ALL} == set(t.KINDS) == set(tracing._WRITERS)


def test_every_line_follows_the_format() -> None:
    document = json.loads(written(ALL))
    assert set(document) == {"traceEvents", "otherData"}
    needed = {
        "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
        "i": {"name", "cat", "pid", "tid", "ts", "s", "args"},
        "C": {"name", "cat", "pid", "ts", "args"},
        "M": {"name", "pid", "args"},
        "s": {"name", "cat", "pid", "tid", "ts", "id"},
        "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
    }
    for event in document["traceEvents"]:
        assert needed[event["ph"]] <= set(event) <= needed[event["ph"]] | {"ph", "tid"}
        assert all(type(event[key]) is int for key in ("pid", "tid", "id") if key in event)
        assert all(type(event[key]) is float and event[key] >= 0 for key in ("ts", "dur") if key in event)
        assert type(event["name"]) is str
        if event["ph"] == "C":
            assert event["args"]
            assert all(type(value) in (int, float) for value in event["args"].values())


def test_slices_of_one_thread_never_overlap_to_the_nanosecond_and_every_thread_has_a_name() -> None:
    found = drawn(ALL)
    names = threads(found)
    slices = defaultdict(list)
    for event in found:
        if event["ph"] == "X":
            slices[event["tid"]].append(event)
    assert set(slices) <= set(names)
    for events in slices.values():
        events.sort(key=begin)
        assert all(end(one) <= begin(other) for one, other in itertools.pairwise(events))


def test_there_is_a_track_for_each_client_the_dispatcher_and_each_stream_of_a_worker() -> None:
    names = set(threads(drawn(ALL)).values())
    for worker in (0, 1):
        for stream in ("compute", "instructions", "communication"):
            assert f"worker {worker}: cpu (here, pid 10{worker}) {stream}" in names
    assert {"client 7: train.py (here, pid 200) runs", "client 7: train.py (here, pid 200) fetches"} <= names
    assert {"dispatcher events", "worker 0: cpu (here, pid 100) transfers 2"} <= names
    assert "worker 0: cpu (here, pid 100) spills" in names


def test_slices_are_named_by_signal_op_and_collective_and_carry_the_line() -> None:
    slices = {event["cat"]: event for event in reversed(drawn(e.session())) if event["ph"] == "X"}
    assert slices["PlanSlice"]["name"] == "batch · plan 3"
    assert slices["RunIssued"]["name"] == "batch · plan 3"
    assert (slices["OpSlice"]["name"], slices["OpSlice"]["args"]["site"]) == ("matmul", e.SITE)
    assert slices["Collective"]["name"] == "all-reduce"
    assert (slices["Spill"]["name"], slices["Spill"]["args"]["nbytes"]) == ("spill: out", 1 << 20)
    assert any(event["name"] == "5 × batch · plan 3" for event in drawn(ALL))


def test_arrows_lead_from_each_run_to_its_plan_on_every_worker_and_on_to_its_collectives() -> None:
    found = drawn(e.session(steps=3))
    names = threads(found)
    slices = [event for event in found if event["ph"] == "X"]

    def bound(event: dict[str, Any]) -> dict[str, Any]:
        inside = [each for each in slices if each["tid"] == event["tid"] and begin(each) <= begin(event) <= end(each)]
        assert len(inside) == 1
        return inside[0]

    starts = {event["id"]: event for event in found if event["ph"] == "s"}
    ends = {event["id"]: event for event in found if event["ph"] == "f"}
    assert set(starts) == set(ends)
    arrows = set()
    for number, start in starts.items():
        out, into = bound(start), bound(ends[number])
        assert out["args"]["order"] == into["args"]["order"]
        assert begin(start) <= begin(ends[number])
        arrows.add((out["args"]["order"], names[out["tid"]].split()[-1], names[into["tid"]]))
    expected = set()
    for order in (1, 2, 3):
        for worker in (0, 1):
            name = f"worker {worker}: cpu (here, pid 10{worker})"
            expected |= {(order, "runs", f"{name} compute"), (order, "compute", f"{name} communication")}
    assert arrows == expected


def test_an_arrow_is_drawn_whether_the_run_or_its_plan_is_told_first() -> None:
    early = drawn([e.plan_slice(e.START + e.MS, order=4), e.run(e.START, order=4)])
    late = drawn([e.run(e.START, order=4), e.plan_slice(e.START + e.MS, order=4)])
    for found in (early, late):
        assert sum(event["ph"] == "s" for event in found) == 1


def test_counters_are_drawn_and_shares_of_time_are_those_between_two_samples() -> None:
    counters = [event for event in drawn(ALL) if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {
        "memory (bytes)", "work", "live", "peers", "time (%)", "GPU (°C)", "GPU (mW)", "GPU (%)", "GPU (bytes)",
        "CUDA graphs", "CUDA graphs (bytes)",
    }  # fmt: skip
    shares = [event["args"] for event in counters if event["name"] == "time (%)"]
    assert shares
    assert all(sum(each.values()) == pytest.approx(100, abs=0.1) and each["compute"] == 60 for each in shares)


def test_what_a_sample_does_not_tell_is_not_drawn() -> None:
    [counter] = [event for event in drawn([e.device(e.START, power=-1, busy=-1, used=-1)]) if event["ph"] == "C"]
    assert (counter["name"], counter["args"]) == ("GPU (°C)", {"temperature": 71})


def test_waiting_that_is_told_again_and_again_is_one_slice() -> None:
    found = [event for event in drawn(ALL) if event.get("cat") == "Waiting"]
    assert {(event["name"], event["dur"]) for event in found} == {
        ("waiting for pieces (all-reduce)", 30_000.0),
        ("waiting: credit", 30_000.0),
    }


def test_the_metadata_has_versions_what_was_lost_and_the_pair_of_clocks() -> None:
    about = json.loads(written(ALL, dropped=3, python="3.11"))["otherData"]
    assert about["dropped"] == 3
    assert about["gt"] == "0.1.0"
    assert about["events_version"] == t.VERSION
    assert about["python"] == "3.11"
    assert about["clock"]["wall_ns"] - about["clock"]["monotonic_ns"] == e.WALL - e.START


def test_a_trace_reads_back_as_the_events_it_was_made_from() -> None:
    recorded = TraceMetadata()
    back = list(parse(lines(written(ALL)), recorded))
    told = [event for event in ALL if not isinstance(event, t.Waiting)]
    assert [event for event in back if not isinstance(event, t.Waiting)] == told
    waited = [event for event in ALL if isinstance(event, t.Waiting)]
    assert [event for event in back if isinstance(event, t.Waiting)] == waited[1:]
    assert not recorded.cut
    assert recorded.facts["events"] == len(ALL)


def test_what_was_there_long_before_does_not_stretch_the_picture_and_keeps_its_time() -> None:
    long = e.START - 86_400_000 * e.MS
    events = [
        e.service(e.START),
        t.WorkerJoined(long, -1, 0, "here", 100, "cpu", "cpu", 2),
        e.fetched(long, 90_000_000 * e.MS),
    ]
    text = written(events)
    found = json.loads(text)["traceEvents"]
    assert [begin(event) for event in found if event["ph"] in "Xi"] == [tracing.CLOCK_LEAD_NS, 0]
    assert list(parse(lines(text), TraceMetadata())) == events


def test_a_trace_of_nothing_is_a_trace() -> None:
    assert json.loads(written([]))["traceEvents"] == []
    assert list(parse(lines(written([])), TraceMetadata())) == []


@pytest.mark.parametrize("where", [0.2, 0.5, 0.9])
def test_a_trace_that_ends_early_is_read_as_far_as_it_goes(where: float) -> None:
    text = written(ALL)
    recorded = TraceMetadata()
    back = list(parse(lines(text[: int(len(text) * where)]), recorded))
    assert recorded.cut
    assert back == [event for event in ALL if not isinstance(event, t.Waiting)][: len(back)]
    assert len(back) > 5


@pytest.mark.parametrize("packed", [False, True])
def test_files_are_read_compressed_or_not(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "run.json"
    data = written(ALL).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    assert sum(1 for _ in read(path, TraceMetadata())) == len(ALL) - 1
    if packed:
        path.write_bytes(gzip.compress(data)[:-200])
        recorded = TraceMetadata()
        assert 0 < sum(1 for _ in read(path, recorded)) < len(ALL)
        assert recorded.cut


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b"\n", tracing.HEAD_LINE.encode() + b"]}\n", tracing.HEAD_LINE.encode() + b'{"ph":"X","name":"f"}]}',
        b"\xff\xfe\x00", b"\x1f\x8bnothing", b'{"events":[]}',
        tracing.HEAD_LINE.encode() + b"\nnonsense\n", BEGIN + b"\nnonsense\n",
        BEGIN + b'\n{"ph":"X","cat":"PlanSlice","ts":1,"dur":1,"args":{}},\n',
        BEGIN + b'\n{"ph":"X","cat":"Unknown","ts":1,"dur":1,"args":{}},\n',
        BEGIN + b'\n{"ph":"M","name":"gt.Gauges","args":{"event":[5,"x"]}},\n',
        tracing.HEAD_LINE.encode() + b'\n],"otherData":7}\n',
        BEGIN + b"\n" + b"[" * 100_000 + b"\n",
    ],
)  # fmt: skip
def test_what_is_no_trace_is_one_line_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"run\.json is no trace that") as caught:
        list(read(path, TraceMetadata()))
    assert "\n" not in str(caught.value)


@given(st.integers(-(1 << 47), 1 << 47))
def test_a_time_as_text_is_exact_for_readers_that_cut_off(time: int) -> None:
    assert int(float(microseconds(time)) * 1000.0) == time
    assert round(float(microseconds(time)) * 1000) == time


@given(st.text(), st.text())
def test_any_names_are_written_as_they_are(op: str, signal: str) -> None:
    event = e.op_slice(e.START, op=op[: t.MAX_TEXT_LENGTH], signal=signal)
    text = written([event])
    assert json.loads(text)["traceEvents"][-1]["name"] == op[: t.MAX_TEXT_LENGTH]
    assert list(parse(lines(text), TraceMetadata())) == [event]


@pytest.mark.parametrize("seed", range(20))
def test_any_numbers_read_back_as_they_were(seed: int) -> None:
    told = e.spoiled(ALL, seed)
    text = written(told)
    json.loads(text)
    back = list(parse(lines(text), TraceMetadata()))
    assert [event for event in back if not isinstance(event, t.Waiting)] == [
        event for event in told if not isinstance(event, t.Waiting)
    ]


def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    """Also where what was written leaves only when the file is closed."""
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"), writing(Path("/dev/full")) as file:
        file.write("[")


def test_letters_stand_as_they_are_since_perfetto_shows_their_escapes(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    halves = [e.op_slice(e.START, op="编码器 · слой", signal="\udc80")]
    with writing(path) as file:
        trace = TraceWriter(file.write)
        trace.add(halves)
        trace.close()
    assert "编码器 · слой".encode() in path.read_bytes()
    assert list(read(path, TraceMetadata())) == halves


def test_what_is_remembered_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MAX_REMEMBERED", 8)
    trace = TraceWriter(lambda _: None)
    for order in range(200):
        at = e.START + 20 * order * e.MS
        trace.add([e.plan_described(order), e.run(at, order=order, plan=order), e.collective(at, order=order)])
        trace.add([e.plan_slice(at + e.MS, order=1000 + order), e.fetched(at, 2000 * e.MS)])
    for known in (trace.names, trace.runs, trace.early, trace.inner):
        assert len(known) == 8
    assert len(trace.ends) < 40
    assert len(trace.waits) == 0


def test_runs_that_begin_at_once_stand_behind_each_other_in_one_stream() -> None:
    """The dispatcher's clock is that of a turn, in which it issues many: streams for each would be all there is to see."""
    many = [e.run(e.START, order=order) for order in range(40)]
    found = [event for event in drawn(many) if event["ph"] == "X"]
    assert len({event["tid"] for event in found}) == 1
    assert found[-1]["ts"] - found[0]["ts"] == 39 * tracing.RUN_MARK_NS / 1000
    assert list(parse(lines(written(many)), TraceMetadata())) == many


def test_what_overlaps_more_often_than_there_are_lanes_keeps_its_length_and_says_when_it_was() -> None:
    many = [e.fetched(e.START + at, 100 * e.MS, request=at) for at in range(40)]
    found = [event for event in drawn(many) if event["ph"] == "X"]
    assert len({event["tid"] for event in found}) == tracing.MAX_LANES
    assert sum(event["dur"] for event in found) == 40 * 100_000.0
    assert list(parse(lines(written(many)), TraceMetadata())) == many
