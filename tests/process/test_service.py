"""Daemons started by hand: who may listen where, what ends them, and what they do when others end or talk nonsense."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from daemons import Machine, ends, left_by_kill, seconds

import gt
from gt.wire import messages as m
from gt.wire.messages import codec
from gt.wire.reliable_stream import HEADER, HEADER_BYTES, OPEN_NEW

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


def right(factor: float = 2.0) -> None:
    """The current session computes what it should, in both directions and also in bulk."""
    array = np.arange(40_000, dtype=np.float32)
    np.testing.assert_array_equal((gt.tensor(array) * factor).numpy(), array * factor)


# time


def test_a_long_computation_is_no_silence_of_the_dispatcher(machine: Machine) -> None:
    """A worker that computes for longer than it would wait for a word goes on serving, also when bulk data comes next."""
    machine.environment["GT_LEASE"] = "2.5"
    address, _, (worker,) = machine.service(1)
    gt.connect(address)
    array = np.ones((8, 1 << 20), np.float32)
    turns, took = 8, 0.0
    while took < 3:  # of one plan
        began = time.monotonic()
        x = gt.zeros(1 << 20)
        for _ in range(turns):
            x = gt.randn(1 << 20) + x
        gt.flush()
        assert gt.from_numpy(array).sum().item() == array.size
        turns, took = 2 * turns, time.monotonic() - began
    right()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, "it served until it was stopped"


# addresses


@pytest.mark.fresh
def test_a_refused_address_is_one_line(machine: Machine) -> None:
    """Only loopback is bound: any other address is refused in one line that says why, with exit status 1."""
    refused = [
        machine.command("dispatcher", "--address", address)
        for address in ("tcp://0.0.0.0:7999", "tcp://*:7999", "tcp://192.0.2.7:7999", "7999")
    ]
    for process in refused:
        assert process.wait() == 1
        (line,) = process.lines
        assert "refusing to bind" in line or "is no address" in line


@pytest.mark.fresh
def test_a_port_in_use_is_one_line(machine: Machine) -> None:
    """A second dispatcher at the same address says so in one line and ends with status 1; the first goes on."""
    address, dispatcher, _ = machine.service(1)
    second = machine.command("dispatcher", "--address", address)
    assert second.wait() == 1
    (line,) = second.lines
    assert f"{address} is in use by another process" in line
    up = machine.command("up", "--address", address)
    assert up.wait() == 1
    assert len(up.lines) == 1
    gt.connect(address)
    right()
    assert dispatcher.running()


def test_nobody_at_the_address() -> None:
    """A client that finds no dispatcher says within 5 s which address it tried and what would start one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    start = time.monotonic()
    with pytest.raises(gt.ConnectionFailed, match=rf"no dispatcher answered at {address}.*gt up --address {address}"):
        gt.connect(address)
    assert time.monotonic() - start < 7


@pytest.mark.fresh
def test_a_worker_finds_nobody_at_the_address(machine: Machine) -> None:
    """A worker without a dispatcher ends by itself, with status 1 and the command that would start one."""
    worker = machine.command("worker", "--address", f"ipc://{machine.temp}/nobody", "--device", "cpu")
    line = worker.expect("no dispatcher answered")
    assert "gt dispatcher --address" in line
    assert worker.wait() == 1


@pytest.mark.fresh
def test_a_service_on_a_socket_file(machine: Machine) -> None:
    """A dispatcher listens at a path as well; no second one takes it away, and it is removed in the end."""
    address = f"ipc://{machine.temp}/here"
    dispatcher = machine.command("dispatcher", "--address", address, "--log-level", "info")
    dispatcher.expect("listening")
    worker = machine.worker(address)
    worker.expect("worker 0")
    gt.connect(address)
    right()
    second = machine.command("dispatcher", "--address", address)
    assert second.wait() == 1
    assert second.lines[0].endswith(f"{address} is in use by another process; choose another --address")
    right()
    gt.disconnect()
    dispatcher.signal(signal.SIGTERM)
    assert (dispatcher.wait(), worker.wait()) == (0, 0)
    assert machine.left() == []


@pytest.mark.fresh
def test_up_runs_a_service_until_it_is_stopped(machine: Machine) -> None:
    """`gt up` says where it listens once its workers are there; SIGTERM ends all of it with status 0."""
    address = f"ipc://{machine.temp}/up"
    up = machine.command("up", "--workers", "2", "--address", address)
    up.expect(f"2 workers at {address}")
    gt.connect(address)
    right()
    assert gt.stats()["service"]["workers"] == 2
    gt.disconnect()
    up.signal(signal.SIGTERM)
    assert up.wait() == 0
    assert machine.left() == []


# daemons that end


@pytest.mark.fresh
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_dispatcher(machine: Machine, number: signal.Signals) -> None:
    """A dispatcher that is stopped ends with status 0, its workers follow, and clients get an error that says so."""
    address, dispatcher, (worker,) = machine.service(1)
    gt.connect(address)
    x = gt.ones(3)
    x.numpy()
    dispatcher.signal(number)
    assert dispatcher.wait() == 0
    assert worker.wait() == 0
    with pytest.raises(gt.SessionError, match="the dispatcher was stopped"):
        x.numpy()
    gt.disconnect()
    assert machine.left() == []


@pytest.mark.fresh
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_worker(machine: Machine, number: signal.Signals) -> None:
    """A worker that is stopped ends with status 0; who had data on it has them on another, and goes on."""
    address, dispatcher, workers = machine.service(2)
    gt.connect(address)
    x = gt.ones(3)
    x.numpy()
    holder = workers[0]  # the only session that there is gets the first worker
    holder.signal(number)
    assert holder.wait() == 0
    np.testing.assert_array_equal(x.numpy(), np.ones(3))
    right()
    assert dispatcher.running()


def test_a_killed_worker(machine: Machine) -> None:
    """SIGKILL of a worker: a session whose mesh it was in errs within seconds and from then on; another goes on."""
    address, _, workers = machine.service(2)
    program = machine.program(
        """
        config = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
        gt.connect(sys.argv[1], config=config)
        with gt.signal.context("net"):
            x = gt.tensor(np.ones((4, 4), np.float32))
            say("sum", float(x.sum()))
            hear()
            say("going on")
            start = time.monotonic()
            while time.monotonic() - start < 60:
                try:
                    x.sum().item()
                except gt.WorkerLost as error:
                    say("lost:", error)
                    say("took", time.monotonic() - start)
                    break
        for again in range(2):
            try:
                gt.ones(2).numpy()
            except gt.WorkerLost as error:
                say("still:", error)
        gt.disconnect()
        gt.connect(sys.argv[1])
        say("afresh", float(gt.ones(2).sum()))
        """,
        address,
    )
    program.expect("sum 16.0")
    gt.connect(address)  # no mesh of its own: it gets the first of those that serve the fewest
    mine = gt.arange(4).float()
    mine.numpy()
    program.say()
    program.expect("going on")
    workers[1].signal(signal.SIGKILL)
    assert "worker 1 was lost" in program.expect("lost:")
    assert seconds(program.expect("took")) < 15
    for _ in range(2):
        assert "no longer fits" in program.expect("still:")
    assert program.expect("afresh") == "afresh 2.0"
    assert program.wait() == 0
    np.testing.assert_array_equal((mine + 1).numpy(), [1, 2, 3, 4])
    right()
    left_by_kill(machine, workers[1])


def test_a_worker_killed_during_bulk_transfers(machine: Machine) -> None:
    """A worker that dies while large tensors go in and out leaves no put and no fetch waiting."""
    address, _, workers = machine.service(2)
    program = machine.program(
        """
        config = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
        gt.connect(sys.argv[1], config=config)
        array = np.zeros((2, 4_000_000), np.float32)
        say("begun")
        with gt.signal.context("net"):
            try:
                while True:
                    gt.tensor(array).numpy()
            except gt.WorkerLost as error:
                say("lost:", error)
        """,
        address,
    )
    program.expect("begun")
    workers[1].signal(signal.SIGKILL)
    program.expect("lost:", 60)
    assert program.wait() == 0
    left_by_kill(machine, workers[1])


def test_a_large_put_behind_a_waiting_plan(machine: Machine) -> None:
    """A put that a worker hears of while a plan waits for a peer is taken in as soon as that plan is done."""
    address, _, workers = machine.service(2)
    gt.connect(address)
    program = machine.program(
        """
        config = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
        gt.connect(sys.argv[1], config=config)
        with gt.signal.context("net"):
            x = gt.tensor(np.ones((4, 4), np.float32))
            x.numpy()
            say("ready")
            hear()
            total = x.sum()
            gt.flush()
            array = np.arange(2_000_000, dtype=np.float32).reshape(2, -1)
            y = gt.tensor(array)
        assert (y.numpy() == array).all()
        say("sum", total.item())
        """,
        address,
    )
    program.expect("ready")
    before = gt.stats()["service"]["puts"]
    workers[1].signal(signal.SIGSTOP)
    program.say()
    while gt.stats()["service"]["puts"] == before:
        pass  # until the other worker, which waits for the stopped one, has the put before it
    workers[1].signal(signal.SIGCONT)
    program.expect("sum 16.0")
    assert program.wait() == 0


def test_a_killed_client_of_a_shared_service(machine: Machine) -> None:
    """A client that is killed is forgotten by the service at once: its tensors are gone, others go on."""
    address, dispatcher, _ = machine.service(1)
    gt.connect(address)
    program = machine.program(
        """
        gt.connect(sys.argv[1])
        kept = [gt.ones(100, 100) for _ in range(10)]
        kept[-1].numpy()
        say("there")
        hear()
        """,
        address,
    )
    program.expect("there")
    assert gt.stats()["service"]["clients"] == 2
    program.signal(signal.SIGKILL)
    assert ends(program.pid)
    dispatcher.expect("client 2 left")
    assert gt.stats()["service"]["clients"] == 1
    right()


def test_the_last_worker_may_go_and_another_come(machine: Machine) -> None:
    """Without workers a session gets errors that say what to start; when a worker has joined it computes again."""
    address, dispatcher, (worker,) = machine.service(1)
    gt.connect(address)
    right()
    worker.signal(signal.SIGTERM)
    worker.wait()
    dispatcher.expect("worker 0 was lost")
    with pytest.raises(gt.WorkerLost, match="gt worker --address"):
        gt.ones(3).numpy()
    machine.worker(address).expect("worker 1")
    right()


def test_a_dispatcher_that_is_killed_is_missed_at_once(machine: Machine) -> None:
    """A program on the same machine sees the end of its process, and does not wait until its silence is long enough."""
    address, dispatcher, _ = machine.service(1)
    gt.connect(address)
    right()
    x = gt.ones(3)
    dispatcher.signal(signal.SIGKILL)
    dispatcher.wait()
    with pytest.raises(gt.SessionError, match="its process ended"):
        (x + 1).numpy()


# garbage


def garbage() -> list[list[bytes]]:
    """What may arrive on a socket from somebody who is not one of us, or is one of us and broken."""
    random = np.random.default_rng(5)
    frames: list[list[bytes]] = [
        [b""], [b"", b""], [b"\xc1"], [b"GET / HTTP/1.1\r\n\r\n"], [bytes(10_000)], [b"x"] * 5,
        [b"\x92\x02\xa1\xff"], [b"\x91" * 5000], [b"\xdd\xff\xff\xff\xff"],
        [HEADER.pack(OPEN_NEW, 0)], [HEADER.pack(1, 0)], [HEADER.pack(2, 9)], [HEADER.pack(OPEN_NEW, 5), b"x"],
        codec.encode(m.Ping()), codec.encode(m.Free([1])), codec.encode(m.Done(5)), codec.encode(m.Landed(1, 1)),
        codec.encode(m.Piece(1, 1, 0, 0, [], [], False, b"1234")), codec.encode(m.Hello(99, "client", {})),
        codec.encode(m.Hello(m.VERSION, "client", {"pid": 1 << 62, "bulk": 5})),
        codec.encode(m.Hello(m.VERSION, "client", {"pid": -1})), codec.encode(m.Hello(m.VERSION, "client", {})),
    ]  # fmt: skip
    frames += [[random.bytes(int(n)) for n in random.integers(0, 60, int(random.integers(1, 5)))] for _ in range(200)]
    return frames


def throw(context: Any, address: str, frames: list[list[bytes]]) -> None:
    """Send all of it by a socket of its own, and wait until it has left."""
    thrower = context.socket(zmq.DEALER)
    thrower.setsockopt(zmq.LINGER, 5000)
    thrower.setsockopt(zmq.SNDTIMEO, 20_000)
    thrower.connect(address)
    for each in frames:
        thrower.send_multipart(each)
    thrower.close()


def test_garbage_is_refused_and_everybody_else_goes_on(machine: Machine) -> None:
    """Garbage on every socket there is, and on the bare ports: refused, logged once, and nobody else notices."""
    address, dispatcher, workers = machine.service(2, "--insecure")
    session = gt.connect(
        address, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
    )
    bulk = str(session.facts["bulk_address"])
    right()
    context = zmq.Context()
    try:
        for target in (address, bulk):
            throw(context, target, garbage())
            host, _, port = target.removeprefix("tcp://").rpartition(":")
            with socket.create_connection((host, int(port)), 5) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(1000))
        for path in machine.temp.glob("*/worker-*"):
            throw(context, f"ipc://{path}", garbage())
        with gt.signal.context("net"):
            for step in range(20):
                x = gt.tensor(np.full((4, 50_000), step, np.float32))
                assert x.sum().item() == step * 200_000
                np.testing.assert_array_equal((x + 1).numpy()[:, 0], [step + 1] * 4)
    finally:
        context.destroy(linger=0)
    assert gt.stats()["service"]["refused"] > 100
    assert all(process.running() for process in (dispatcher, *workers))
    gt.disconnect()
    for process in (dispatcher, *workers):
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        warnings = [line for line in process.lines if "refused" in line]
        assert 1 <= len(warnings) <= 3, "it came there, and what one peer sends is logged once"


def test_a_peer_that_breaks_the_protocol_is_told(machine: Machine) -> None:
    """A client whose numbers go wrong is told to start afresh, and may: the same socket opens another session."""
    address, _, _ = machine.service(1, "--insecure")
    context = zmq.Context()
    try:
        peer = context.socket(zmq.DEALER)
        peer.setsockopt(zmq.RCVTIMEO, 20_000)
        peer.connect(address)
        for _ in range(2):
            peer.send(HEADER.pack(OPEN_NEW, 0))
            peer.send(HEADER.pack(1, 0) + codec.encode(m.Hello(m.VERSION, "client", {"pid": os.getpid()}))[0])
            assert heard(peer, m.Welcome)
            peer.send(HEADER.pack(7, 0) + codec.encode(m.Free([1]))[0])
            assert "message 7 where 2 was due; start afresh" in heard(peer, m.Goodbye).text
    finally:
        context.destroy(linger=0)


def heard(peer: Any, kind: type[Any]) -> Any:
    """The next message of this kind."""
    while True:
        first, *rest = peer.recv_multipart()
        if len(first) > HEADER_BYTES:
            message = codec.decode([first[HEADER_BYTES:], *rest])
            if isinstance(message, kind):
                return message


def test_hostile_frames_take_neither_memory_nor_time(machine: Machine) -> None:
    """Of what a stranger or a client sends beyond its bounds nothing is kept, and another session hardly waits for it."""
    address, dispatcher, _ = machine.service(1, "--insecure")
    gt.connect(address)
    right()
    before = peak_memory(dispatcher.pid)
    context = zmq.Context()
    bombs = (
        [b"\xdd\x00\x0f\xff\xf0" + b"\x80" * 0xFFFF0],
        [b"\x97\x07" + b"\xdc\xff\xff" * 300_000],
        codec.encode(m.Define(1, b"\x95\xdc\x40\x00" + b"\x90" * 4_000_000)),
        [bytes(16 << 20)],
    )
    for _ in range(5):
        for bomb in bombs:
            stranger = context.socket(zmq.DEALER)
            stranger.setsockopt(zmq.LINGER, 1000)
            stranger.setsockopt(zmq.RCVTIMEO, 20_000)
            stranger.connect(address)
            stranger.send(HEADER.pack(OPEN_NEW, 0))
            stranger.send(HEADER.pack(1, 0) + codec.encode(m.Hello(m.VERSION, "client", {"bulk": b"b"}))[0])
            assert heard(stranger, m.Welcome)
            stranger.send_multipart([HEADER.pack(2, 0) + bomb[0], *bomb[1:]])
            right()
            stranger.close()
    assert peak_memory(dispatcher.pid) - before < 200 << 20
    context.destroy(linger=0)


def peak_memory(pid: int) -> int:
    """The most bytes of memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
