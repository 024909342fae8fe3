"""The reducer: events in, a snapshot out. Shares, rates, states and bounds, with times made up."""

from __future__ import annotations

from typing import Any

from gt.monitor import reducer as r
from gt.monitor.reducer import Reducer
from gt.monitor.snapshot import Snapshot, Split, Status
from gt.monitor.top.view import ViewState
from gt.wire import telemetry as t

S = 1_000_000_000


def service(at: int, *, runs: int = 0, instructions: int = 0, hits: int = 0, started: int = 0) -> t.Service:
    return t.Service(
        at, -1, 10**18 + at, started, "ipc:///a", "1", 2, 1, 1, runs, instructions, 1, hits, 0, 0, 0, 0, 0, 0
    )


def joined(number: int, at: int = 0) -> t.WorkerJoined:
    return t.WorkerJoined(at, -1, number, "here", 100 + number, "cpu", "cpu", 2)


def used(at: int, worker: int, *parts: int) -> t.Utilisation:
    return t.Utilisation(at, worker, *parts, 1, 1, 0)  # type: ignore[call-arg]


def op(at: int, name: str, duration: int, signal: str = "", site: str = "a.py:1", times: int = 1) -> t.OpSlice:
    return t.OpSlice(at, 0, duration, times, 1, 1, 1, 0, name, signal, site, 10, 40)


def reduced(*events: Any) -> Snapshot:
    reducer = Reducer()
    reducer.feed(events)
    return reducer.snapshot(Status("live", "ipc:///a"))


def test_nothing_is_known_at_first() -> None:
    """A snapshot without events says so, and nothing is divided by nothing."""
    empty = reduced()
    assert (empty.service, empty.workers, empty.clients, empty.hit_rate, empty.wall) == (None, (), (), None, 0)


def test_rates_come_from_differences_of_counters() -> None:
    """Runs, instructions and hits a second are differences over time, and the time of day goes with the last event."""
    found = reduced(
        service(0),
        service(S, runs=100, instructions=900, hits=50),
        service(2 * S, runs=300, instructions=2900, hits=200),
    )
    assert (found.runs_per_s, found.ops_per_s, found.hit_rate) == (200, 2000, 0.75)
    assert (found.uptime, found.wall) == (2.0, 10**18 + 2 * S)


def test_a_worker_s_time_is_split_by_its_counters() -> None:
    """Shares over the last second add up to one; each second becomes a point of the history."""
    found = reduced(
        joined(0), used(0, 0, 0, 0, 0, 0, 0), used(S, 0, S // 2, S // 4, S // 4, 0, 0),
        used(2 * S, 0, S // 2, S // 4, S // 4, 0, S), service(2 * S),
    )  # fmt: skip
    (worker,) = found.workers
    assert worker.history == (Split(0.5, 0.25, 0.25), Split(idle=1.0))
    assert worker.split == Split(idle=1.0)
    assert (worker.state, worker.device, worker.pid, worker.age) == ("idle", "cpu", 100, 0)


def test_a_worker_that_records_anew_has_no_negative_shares() -> None:
    """Counters that begin again are a new series; the history stays."""
    found = reduced(
        joined(0), used(0, 0, 0, 0, 0, 0, 0), used(S, 0, S, 0, 0, 0, 0), used(2 * S, 0, 5, 0, 0, 0, 0), service(2 * S)
    )
    (worker,) = found.workers
    assert worker.split == Split()
    assert worker.history == (Split(compute=1.0),)


def test_states_of_workers() -> None:
    """Waiting for pieces, busy, silent and lost are told apart, and a word that something waits holds for a second only."""
    pieces = t.Waiting(9 * S, 0, 8 * S, "pieces", 1, 1, 1, "all-reduce", [1], 1, 4, "net", "a.py:1")
    busy = t.Waiting(9 * S, -1, 7 * S, "busy", 1, 1, 1, "", [1], 0, 0, "", "")
    events = [*map(joined, range(4)), pieces, busy, t.WorkerLost(9 * S, -1, 3, "killed"), service(9 * S)]
    found = reduced(*events)
    assert [worker.state for worker in found.workers] == ["waiting", "busy", "silent", "lost"]
    assert found.workers[0].waiting == pieces
    assert found.waiting == (pieces, busy)
    later = reduced(*events, used(12 * S, 0, 1, 0, 0, 0, 0), service(12 * S))
    assert later.workers[0].state == "idle"
    assert later.waiting == ()
    assert [worker.number for worker in reduced(*events, service(9 * S + r.LOST_SHOWN_NS + S)).workers] == [0, 1, 2]


def test_who_is_not_heard_of_is_not_said_to_work() -> None:
    """What a worker told last is no rate of now when it is lost, or silent; nor its bytes when it is busy for long."""
    told = [joined(0), joined(1), t.Traffic(0, 0, [1], [0]), t.Traffic(S, 0, [1], [500]), used(0, 0, 0, 0, 0, 0, 0)]
    told += [used(S, 0, S, 0, 0, 0, 0), service(S)]
    assert (reduced(*told).workers[0].split, reduced(*told).bytes_per_s) == (Split(compute=1.0), 500.0)
    busy = t.Waiting(9 * S, -1, 7 * S, "busy", 1, 1, 1, "", [0], 0, 0, "", "")
    for more, split in (([busy], Split(compute=1.0)), ([t.WorkerLost(9 * S, -1, 0, "killed")], Split()), ([], Split())):
        later = reduced(*told, *more, service(9 * S))
        assert (later.workers[0].split, later.workers[0].bytes_per_s, later.bytes_per_s) == (split, 0.0, 0.0)


def test_a_worker_s_graphs_are_what_it_said_last() -> None:
    told = [t.Graphs(at * S, 0, at, at, 1, ["addresses change"], [at]) for at in (1, 3)]
    assert [worker.graphs for worker in reduced(joined(0), joined(1), *told).workers] == [told[1], None]


def test_a_worker_s_gpu_is_as_it_said_last() -> None:
    """Nothing is known of a GPU that has told nothing."""
    gpus = [t.Device(at * S, 0, 60 + at, 1, 1, 1, 1, 1, 0, []) for at in (1, 3)]
    assert [worker.gpu for worker in reduced(joined(0), joined(1), *gpus).workers] == [gpus[1], None]


def test_the_matrix_is_who_sent_whom() -> None:
    """Bytes from each worker to each, in all and a second."""
    found = reduced(
        joined(0),
        joined(1),
        t.Traffic(0, 0, [1], [0]),
        t.Traffic(S, 0, [1], [500]),
        t.Traffic(S, 1, [0], [7]),
        service(S),
    )
    assert found.matrix.workers == (0, 1)
    assert found.matrix.total == ((0, 500), (7, 0))
    assert found.matrix.rate == ((0, 500), (0, 0))
    assert found.bytes_per_s == 500


def test_what_is_hot() -> None:
    """Ops and signals by their sampled time, with where most of it is; what is older than a minute is forgotten."""
    events = [
        op(0, "exp", 99 * S), op(100 * S, "matmul", 60, "net/first", "a.py:7"), op(100 * S, "relu", 30, "net/first", "a.py:8"),
        op(101 * S, "add+mul", 10, times=5), service(101 * S),
    ]  # fmt: skip
    found = reduced(joined(0), *events)
    assert [(hot.name, hot.family, hot.share, hot.site) for hot in found.hot_ops] == [
        ("matmul", "matmul", 0.6, "a.py:7"), ("relu", "unary", 0.3, "a.py:8"), ("add+mul", "fused", 0.1, "a.py:1"),
    ]  # fmt: skip
    assert [(hot.name, hot.duration) for hot in found.hot_signals] == [("net/first", 90), ("", 10)]
    assert found.hot_ops[2].times == 5


def test_slices_are_tasks_named_by_what_is_known_of_their_plan() -> None:
    """A plan's slice has its signal and line once the plan was described; all tracks stay bounded."""
    plan = t.PlanDescribed(0, -1, 7, 1, 1, [0], "new", 1, ["", "net"], ["a.py:3"], [["add", 1]], [])
    slices = [t.PlanSlice(n, 0, 5, 1, 7, 1, n, 5, 0, 0) for n in range(2 * r.MAX_TASKS)]
    (worker,) = reduced(plan, *slices, t.PlanSlice(0, 0, 5, 1, 8, 1, 1, 5, 0, 0), service(S)).workers
    assert len(worker.recent) == r.MAX_TASKS
    assert [task.name for task in worker.recent[:1]] == ["plan 8"], "in order of beginning"
    assert (worker.recent[-1].name, worker.recent[-1].site, worker.recent[-1].kind) == ("net", "a.py:3", "plan")


def test_clients_their_fetches_and_their_tensors() -> None:
    """A client's state, runs a second, fetches near a line, and tensors; gone with it. Rows of a wrong form are left out."""
    plan = t.PlanDescribed(0, -1, 7, 1, 1, [0], "new", 1, ["net"], ["a.py:3"], [["add", 1]], [])
    row = [5, "f32[4]", "R", 16, "net", "a.py:3", 9]
    events = [
        plan, t.ClientJoined(0, -1, 1, "here", 5, "train.py"), t.ClientState(0, -1, 1, 1, 16, 0, 0, 0, 1, 0, 0, "", ""),
        t.ClientState(S, -1, 1, 1, 16, 3, 2, 50, 1, 49, 0, "net", "a.py:3"), t.Tensors(S, -1, 1, [row, [1], [*row[:6], "x"]]),
        t.Fetched(S, -1, 5, 1, 1, 7, 1, 16), service(S),
    ]  # fmt: skip
    found = reduced(*events)
    (client,) = found.clients
    assert (client.program, client.runs_per_s) == ("train.py", 50)
    assert client.state is not None
    assert client.state.queued == 3
    assert [task.site for task in client.recent] == ["a.py:3"]
    assert [(tensor.tensor, tensor.nbytes, tensor.age) for tensor in found.tensors] == [(5, 16, 9)]
    gone = reduced(*events, t.ClientLeft(S, -1, 1, "it said goodbye"))
    assert (gone.clients, gone.tensors) == ((), ())
    late = reduced(*events, t.ClientLeft(S, -1, 1, "it said goodbye"), *events[2:])
    assert (late.clients, late.tensors) == ((), ()), "what is told after it left brings nobody back"


def test_the_log_says_each_thing_once() -> None:
    """Failures and decisions are lines; the dispatcher's own line of a failure that was told is left out."""
    found = reduced(
        t.Failure(1, 0, 2, 3, 9, "WorkerError", "boom at a.py:3", "a.py:3"),
        t.Decision(1, -1, 1, -1, "log", "error", "worker 0, client 3: WorkerError: boom at a.py:3"),
        t.Decision(2, -1, 1, 3, "auto", "info", "net: auto is data_parallel"),
        t.CacheMiss(2, -1, 4, 3, "plan", "new", 1, ""), t.CacheMiss(2, -1, 1, 3, "definition", "", -1, ""),
    )  # fmt: skip
    assert [(line.level, line.source, line.times) for line in found.log] == [
        ("error", "worker 0, client 3", 2), ("info", "client 3", 1),
    ]  # fmt: skip
    assert found.misses == {"plan: new": 4, "definition": 1}


def test_a_service_that_was_started_anew_begins_anew() -> None:
    """Numbers of another dispatcher mean other things: all but the log is forgotten."""
    found = reduced(
        service(0), joined(0), t.ClientJoined(0, -1, 1, "", 1, ""), t.Decision(0, -1, 1, -1, "log", "info", "x"),
        service(5 * S, started=4 * S), joined(1, 5 * S),
    )  # fmt: skip
    assert [worker.number for worker in found.workers] == [1]
    assert (found.clients, len(found.log), found.uptime) == ((), 1, 1.0)


def test_memory_is_bounded() -> None:
    """Plans, lines and names without end are forgotten or added up."""
    reducer = Reducer()
    for number in range(2 * r.MAX_PLANS):
        reducer.feed([t.PlanDescribed(0, -1, number, 1, 1, [], "new", 0, [], [], [], [])])
        reducer.feed([t.Decision(0, -1, 1, -1, "log", "info", str(number))])
        reducer.feed([op(0, f"op{number}", 1)])
    found = reducer.snapshot(Status())
    assert (len(found.plans), len(found.log)) == (r.MAX_PLANS, r.MAX_LOG_LINES)
    assert sum(hot.times for hot in found.hot_ops) == 2 * r.MAX_PLANS
    assert len(found.hot_ops) <= r.MAX_HOT_NAMES


def recovering_session() -> list[t.Event]:
    """A client 1 that becomes client 4."""
    state = t.ClientState(0, -1, 1, 1, 16, 0, 0, 10, 1, 9, 0, "net", "a.py:3", 2, 0, 5)
    return [
        service(0), t.ClientJoined(0, -1, 1, "here", 5, "train.py"), t.ClientJoined(0, -1, 2, "here", 6, "b.py"), state,
        t.Fetched(0, -1, 5, 1, 1, 7, 1, 16), t.SessionRewound(S, -1, 4, 1, 0, "worker 0 was lost"),
        t.ClientLeft(S, -1, 1, "worker 0 was lost"), t.ClientJoined(S, -1, 4, "here", 5, "train.py"),
        state._replace(time=2 * S, client=4, runs=30, phase="workers"), service(2 * S),
    ]  # fmt: skip


def test_a_session_that_goes_back_stays_what_it_was() -> None:
    """Its row has another number, at the same place; its history and counters go on, whatever comes late of the old number."""
    found = reduced(*recovering_session(), t.ClientState(2 * S, -1, 1, 1, 16, 0, 0, 10, 1, 9, 0, "", ""))
    assert [client.number for client in found.clients] == [4, 2]
    client = found.clients[0]
    assert (client.key, client.numbers, client.program, client.joined) == (1, (1, 4), "train.py", 0)
    assert (client.runs_per_s, len(client.recent), client.mark_age) == (10, 1, 2 * S)
    assert client.state is not None
    assert client.state.phase == "workers"


def test_a_session_that_goes_back_often_is_remembered_in_bounded_memory() -> None:
    events: list[t.Event] = [t.ClientJoined(0, -1, 1, "", 1, "")]
    events += [t.SessionRewound(number, -1, number + 1, number, 0, "") for number in range(1, 100)]
    (client,) = reduced(*events).clients
    assert (client.number, client.key) == (100, 1)
    assert len(client.numbers) == r.MAX_NUMBERS


def test_one_client_alone_is_so_under_all_its_numbers() -> None:
    """What was chosen, or marked, stays so when the session goes back; the log of before belongs to it."""
    told = [t.Decision(0, -1, 1, number, "log", "info", f"of {number}") for number in (1, 2, 4)]
    found = reduced(*recovering_session(), *told)
    view = ViewState(only=1)
    assert view.chosen(found) == {1, 4}
    assert {row.item[1].text for row in view.rows("log", found)} == {"of 1", "of 4"}
    assert [row.key for row in view.rows("clients", found)] == [1, 2]


def test_an_idle_spare_is_shown_as_one() -> None:
    """Until it takes a place in service."""
    events = [service(0), joined(0), joined(1), t.DutyChanged(0, -1, 1, "spare")]
    assert [worker.state for worker in reduced(*events).workers] == ["idle", "spare"]
    serving = reduced(*events, t.DutyChanged(1, -1, 1, "in service"))
    assert [(worker.state, worker.duty) for worker in serving.workers] == [("idle", "in service")] * 2


def test_a_drained_worker_is_not_lost() -> None:
    """It is shown as leaving, and no longer once it has gone."""
    events = [service(0), joined(0), joined(1), t.DutyChanged(0, -1, 1, "leaving")]
    assert [worker.state for worker in reduced(*events).workers] == ["idle", "leaving"]
    assert [worker.number for worker in reduced(*events, t.WorkerLost(1, -1, 1, "it was drained")).workers] == [0]
