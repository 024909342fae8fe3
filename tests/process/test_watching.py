"""Watching real services: what a watcher sees agrees with the service's own counters, and it comes back when the service does."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from daemons import TIMEOUT, Machine, left_by_kill

import gt
from gt.client.session import sessions
from gt.errors import ConnectionFailed, SessionError
from gt.monitor.reducer import Reducer
from gt.monitor.snapshot import LIVE, RECONNECTING, Snapshot
from gt.monitor.stream import Stream
from gt.wire import telemetry as t

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


def until(stream: Stream, reducer: Reducer, holds: Callable[[Snapshot], bool], events: list[t.Event]) -> Snapshot:
    """Read until a snapshot is as it should be."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        read = stream.read(0.2)
        events += read
        reducer.feed(read)
        snapshot = reducer.snapshot(stream.status)
        if holds(snapshot):
            return snapshot
    raise AssertionError(f"it never was so: {reducer.snapshot(stream.status)}")


def work(steps: int) -> None:
    """A small training loop on two workers, with a fetch in each step."""
    images, labels = gt.from_numpy(np.ones((64, 64), np.float32)), gt.from_numpy(np.zeros(64, np.int64))
    with gt.signal.context("net"):
        model = gt.nn.Sequential(gt.nn.Linear(64, 32), gt.nn.ReLU(), gt.nn.Linear(32, 10))
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        with gt.signal.context("net"):
            loss = gt.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()


@pytest.mark.parametrize("level", [t.SUMMARY, t.TRACE])
def test_what_a_watcher_sees_is_what_the_service_counts(machine: Machine, level: int) -> None:
    """Runs, fetches and puts are those of `gt.stats()`; the slices of each worker add up to its counters, whatever collapsed."""
    address, _, _ = machine.service(2)
    with Stream(address, level=level) as stream:
        reducer, events = Reducer(), list[t.Event]()
        until(stream, reducer, lambda seen: len([w for w in seen.workers if w.counters]) == 2, events)
        gt.connect(address, config={"sharding_config": {"net": {"strategy": "data_parallel"}}})
        work(60)
        gt.synchronize()
        said = gt.stats()
        stats = said["service"]

        def settled(seen: Snapshot) -> bool:
            return seen.service is not None and seen.service.runs == stats["runs"] and all(
                worker.counters is not None and worker.counters.plans == stats["runs"] for worker in seen.workers
            )  # fmt: skip

        seen = until(stream, reducer, settled, events)
        assert seen.status.dropped == 0
        assert seen.service is not None
        assert (seen.service.fetches, seen.service.puts) == (stats["fetches"], stats["puts"])
        assert seen.service.instructions == stats["instructions"]
        assert seen.service.plan_hits == said["plan_hits"]
        assert sum(event.times for event in events if isinstance(event, t.RunIssued)) == stats["runs"]
        assert sum(event.times for event in events if isinstance(event, t.Fetched)) == stats["fetches"]
        for worker in seen.workers:
            slices = [event for event in events if isinstance(event, t.PlanSlice) and event.worker == worker.number]
            counters = worker.counters
            assert counters is not None
            assert counters.instructions == stats["instructions"]
            assert sum(event.times for event in slices) == counters.plans
            for state in ("compute", "communication", "waiting"):
                assert sum(getattr(event, state) for event in slices) == getattr(counters, state)
            moves = [event for event in events if isinstance(event, t.Collective) and event.worker == worker.number]
            assert sum(event.sent for event in moves) == sum(seen.matrix.total[worker.number])
        assert {hot.name for hot in seen.hot_signals} >= {"net"}
        (client,) = seen.clients
        assert client.state is not None
        assert client.state.runs == stats["runs"]


def test_what_was_used_is_told_before_the_dispatcher_ends(machine: Machine) -> None:
    """Whoever adds up what dispatchers have counted misses nothing of one that ends in order."""
    address, dispatcher, _ = machine.service(1)
    with Stream(address) as stream:
        reducer, events = Reducer(), list[t.Event]()
        until(stream, reducer, lambda seen: seen.service is not None, events)
        gt.connect(address)
        with gt.signal.context("net"):
            for _ in range(3):
                (gt.ones(4) * 2.0).sum().item()
        runs = gt.usage()["net"]["runs"]
        dispatcher.signal(signal.SIGTERM)
        until(stream, reducer, lambda seen: seen.status.state == RECONNECTING, events)
    told = [event.runs for event in events if isinstance(event, t.Used) and event.signal == "net"]
    assert told[-1:] == [runs]


def test_a_watcher_comes_back_with_its_service(machine: Machine) -> None:
    """While the dispatcher is gone the stream says 'reconnecting' and how old its last word is; a new one is seen at once."""
    dispatcher = machine.command("dispatcher", "--address", "tcp://127.0.0.1:*", "--log-level", "info")
    address = dispatcher.expect("listening at").split()[-1]
    with Stream(address) as stream:
        reducer, events = Reducer(), list[t.Event]()
        first = until(stream, reducer, lambda seen: seen.service is not None, events)
        assert first.service is not None
        dispatcher.signal(signal.SIGKILL)
        gone = until(stream, reducer, lambda seen: seen.status.state == RECONNECTING, events)
        assert gone.status.age is not None
        machine.command("dispatcher", "--address", address, "--log-level", "info").expect("listening at")
        started = first.service.started
        again = until(stream, reducer, lambda seen: seen.service is not None and seen.service.started > started, events)
        assert again.status.state == LIVE


def test_a_reader_is_called_by_what_comes_beside_the_service(machine: Machine) -> None:
    """Who waits for events is back as soon as there is something to be read elsewhere, also while the service is gone."""
    dispatcher = machine.command("dispatcher", "--address", "tcp://127.0.0.1:*", "--log-level", "info")
    address = dispatcher.expect("listening at").split()[-1]
    inside, outside = os.pipe()
    with Stream(address, level=t.OFF) as stream, os.fdopen(inside, "rb"), os.fdopen(outside, "wb"):
        stream.listen(inside)
        for state in (LIVE, RECONNECTING):
            threading.Timer(0.1, os.write, (outside, b"x")).start()
            began = time.monotonic()
            assert stream.read(TIMEOUT) == []
            assert time.monotonic() - began < TIMEOUT / 2
            assert stream.status.state == state
            assert os.read(inside, 1) == b"x"
            dispatcher.signal(signal.SIGKILL)
            while stream.status.state == LIVE:
                stream.read(0.2)
        os.write(outside, b"x")
        stream.listen(None)
        assert stream.read(0.01) == []


def test_a_lost_worker_and_a_stopped_watcher(machine: Machine) -> None:
    """A killed worker is told of; when the last watcher has gone the workers record nothing, and work goes on."""
    address, _, workers = machine.service(2)
    with Stream(address) as stream:
        reducer, events = Reducer(), list[t.Event]()
        until(stream, reducer, lambda seen: len([w for w in seen.workers if w.counters]) == 2, events)
        workers[1].signal(signal.SIGKILL)
        until(stream, reducer, lambda seen: [w.state for w in seen.workers][1:] == ["lost"], events)
        workers[1].wait()
        left_by_kill(machine, workers[1])
    gt.connect(address)
    assert gt.ones(3).sum().item() == 3


def test_nobody_to_watch(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that does not answer, and a host without a service, are one line each; a service here is found."""
    with pytest.raises(ConnectionFailed, match=r"no dispatcher answered at tcp://127\.0\.0\.1:9 within 0\.5 s"):
        Stream("tcp://127.0.0.1:9", timeout=0.5)
    monkeypatch.setenv("XDG_RUNTIME_DIR", machine.environment["XDG_RUNTIME_DIR"])
    with pytest.raises(ConnectionFailed, match="no service runs on this host"):
        Stream()
    address, dispatcher, _ = machine.service(1)
    with Stream() as stream:
        assert stream.address == address
    dispatcher.signal(signal.SIGKILL)
    dispatcher.wait()
    with pytest.raises(ConnectionFailed, match="no service runs on this host"):
        Stream()


def test_a_pipeline_is_cancelled_and_others_on_its_workers_go_on(machine: Machine) -> None:
    """A program that trains through stages gets `Cancelled` in its line, and trains anew as if nothing had been;
    another program on the same workers computes all the while, and each of its values is right."""
    pipe = {"strategy": "pipeline_parallel", "stages": [[0], [1]], "microbatches": 4}
    gt.init(workers=2, config={"sharding_config": {"net": pipe}})
    address, number = sessions.current().name, sessions.current().facts["number"]
    data = gt.from_numpy(np.random.default_rng(0).standard_normal((32, 16), np.float32))

    def train(steps: int) -> list[np.ndarray[Any, Any]]:
        gt.manual_seed(0)
        with gt.signal.context("net"):
            model = gt.nn.Sequential(gt.nn.Linear(16, 16), gt.nn.Tanh(), gt.nn.Linear(16, 16))
        optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            with gt.signal.context("net"):
                loss = (model(data) ** 2).mean()
            loss.backward()
            optimizer.step()
            assert loss.item() > 0
            begun.set()
        return [value.numpy() for value in model.parameters()]

    begun, found = threading.Event(), list[BaseException]()
    expected = train(3)
    other = machine.program(
        """
        x = gt.ones(64, 64)
        for turn in range(100_000):
            assert ((x + turn % 7) @ x).sum().item() == 64**3 * (1 + turn % 7), turn
            if not turn % 20:
                say("turn", turn)
        """,
        address,
    )
    other.expect("turn 20")

    def loop() -> None:
        try:
            train(1_000_000)
        except gt.GTError as error:
            found.append(error)

    begun.clear()
    thread = threading.Thread(target=loop)
    with Stream(address) as stream:
        thread.start()
        assert begun.wait(TIMEOUT)
        stream.cancel(number)
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert [type(error) for error in found] == [gt.Cancelled]
    said = int(other.expect("turn").split()[-1])
    again = train(3)
    assert all(np.array_equal(one, two) for one, two in zip(expected, again, strict=True))
    other.expect(f"turn {said + 100}")


def test_a_client_in_a_loop_is_cancelled_and_goes_on() -> None:
    """A program that computes and fetches without end gets `Cancelled` in its line, and then computes as before."""
    gt.init(workers=1)
    address, number = sessions.current().name, sessions.current().facts["number"]
    x = gt.ones(64, 64)
    begun = threading.Event()
    found: list[BaseException] = []

    def loop() -> None:
        try:
            for _ in range(1_000_000):
                (x @ x).sum().item()
                begun.set()
        except gt.GTError as error:
            found.append(error)

    thread = threading.Thread(target=loop)
    with Stream(address) as stream:
        assert "cancel" in stream.status.capabilities
        thread.start()
        assert begun.wait(TIMEOUT)
        assert set(stream.cancel(number)) == {"runs", "puts", "fetches"}
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        assert [type(error) for error in found] == [gt.Cancelled]
        assert (x @ x).sum().item() == 64**3
        with pytest.raises(SessionError, match="client 99 is not there"):
            stream.cancel(99)
        decisions = [event for event in stream.read(TIMEOUT) if isinstance(event, t.Decision)]
        reducer, events = Reducer(), list[t.Event](decisions)
        until(
            stream, reducer, lambda _: any(isinstance(e, t.Decision) and e.what == "cancelled" for e in events), events
        )
