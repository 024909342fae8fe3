"""Keys on TCP: who has one is let in as its role says, on every socket of a service, and nobody else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq
from daemons import Machine, Process, free_port

import gt
from gt.errors import SessionError
from gt.monitor.stream import Stream
from gt.wire import messages as m
from gt.wire.messages import codec

pytestmark = pytest.mark.process
BIG = np.arange(1 << 18, dtype=np.float32)


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


def computes() -> bool:
    """Whether the session does, with large data too."""
    return bool(((gt.from_numpy(BIG) * 2).numpy() == BIG * 2).all())


def silent(address: str, frames: list[bytes], seconds: float = 0.4) -> bool:
    """Whether a socket without keys hears nothing from there."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        socket.send_multipart(frames)
        return not socket.poll(int(seconds * 1000))


def new_key(machine: Machine, name: str, role: str = "user") -> str:
    """The path of a new key."""
    made = machine.command("keys", "new", name, "--role", role)
    path = made.expect("is the secret key").split()[0]
    assert made.wait() == 0
    assert Path(path).stat().st_mode & 0o777 == 0o600
    return path


def elsewhere(machine: Machine, key: str, code: str) -> Process:
    """A program of somebody who has nothing but this key, like one on another machine."""
    before = dict(machine.environment)
    machine.environment |= {"GT_KEY": key, "XDG_RUNTIME_DIR": f"{machine.temp}/none", "GT_KEYS": f"{machine.temp}/none"}
    program = machine.program(code)
    machine.environment = before
    return program


def test_on_tcp_the_owner_needs_nothing_and_a_stranger_gets_nothing(machine: Machine) -> None:
    """README's commands work as they stand; who has no key hears nothing, on the control and the bulk socket, and is
    counted."""
    address, dispatcher, _ = machine.service(1)
    session = gt.connect(address)
    assert computes()
    with Stream(address) as stream:
        assert "cancel" in stream.status.capabilities
    hello = codec.encode(m.Hello(m.VERSION, "client", {"bulk": b""}))
    assert silent(address, hello)
    assert silent(str(session.facts["bulk_address"]), [b"x", b"", b""])
    dispatcher.expect("refused a connection")
    assert gt.stats()["service"]["refused"] > 0
    assert computes()
    wrong = elsewhere(machine, new_key(machine, "wrong"), f"gt.connect({address!r}).disconnect()")
    assert wrong.wait() != 0, "a session is no module"


def test_a_key_is_let_in_as_its_role_says_until_it_is_withdrawn(machine: Machine) -> None:
    """Keys are made while the service runs; whose file is removed is told so within seconds, and does not come back."""
    address, _, _ = machine.service(1)
    observer = new_key(machine, "eve", "observer")
    watch = f"""
from gt.monitor.stream import Stream
with Stream({address!r}) as stream:
    say("sees", stream.status.capabilities)
try:
    gt.connect({address!r})
except gt.SessionError as error:
    say(error)
"""
    program = elsewhere(machine, observer, watch)
    program.expect("sees ()")
    program.expect("key eve may not join as client: that needs the role operator or user")
    assert program.wait() == 0
    user = new_key(machine, "bob")
    program = elsewhere(
        machine,
        user,
        f"""
import sys
gt.connect({address!r})
say((gt.ones(3) * 2).numpy())
hear()
try:
    while True:
        gt.ones(3).numpy()
except gt.SessionError as error:
    say(error)
try:
    gt.connect({address!r})
except gt.ConnectionFailed as error:
    say(error)
""",
    )
    program.expect("[2. 2. 2.]")
    Path(user).with_name("authorized").joinpath("bob.pub").unlink()
    program.say()
    program.expect("its key was withdrawn, or has another role now")
    program.expect("it does not accept this key")
    assert program.wait() == 0


def test_a_workers_key_runs_no_programs(machine: Machine) -> None:
    """A worker elsewhere joins by its key, takes part, and a program with the same key is refused."""
    address, _, _ = machine.service(1)
    key = new_key(machine, "node", "worker")
    before = dict(machine.environment)
    machine.environment |= {"GT_KEY": key, "XDG_RUNTIME_DIR": f"{machine.temp}/none"}
    machine.worker(address).expect("worker 1")
    machine.environment = before
    config = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
    gt.connect(address, config=config)
    with gt.signal.context("net"):
        assert gt.from_numpy(BIG).sum().item() == BIG.sum()
    gt.disconnect()
    with pytest.raises(SessionError, match="key node may not join as client"):
        gt.connect(address, key=key)


def test_a_forged_piece_reaches_no_worker(machine: Machine) -> None:
    """At a worker's TCP socket for pieces, who is no worker of the service is refused and counted; the sums stay right."""
    dispatcher = machine.command(
        "dispatcher", "--address", "tcp://127.0.0.1:*", "--workers", "2", "--log-level", "info"
    )
    address = dispatcher.expect("listening at").split()[-1]
    workers, ports = [], [free_port(), free_port()]
    for port in ports:
        listen = ["--listen", f"tcp://127.0.0.1:{port}"]
        worker = machine.command("worker", "--address", address, "--device", "cpu", "--log-level", "info", *listen)
        worker.expect("on cpu")
        workers.append(worker)
    config = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
    gt.connect(address, config=config)
    forged = np.full(1, 1e6, np.float32).tobytes()
    with contextlib.ExitStack() as opened, gt.signal.context("net"):
        context = opened.enter_context(zmq.Context())
        for rank, port in enumerate(ports):
            forger = opened.enter_context(context.socket(zmq.PUSH))
            forger.setsockopt(zmq.LINGER, 0)
            forger.connect(f"tcp://127.0.0.1:{port}")
            for order in range(2, 200):  # what the other worker will send for the sums that follow
                forger.send_multipart(codec.encode(m.Piece(order, 1, 0, 1 - rank, [], [], False, forged)))
        for _ in range(20):
            assert gt.from_numpy(BIG).sum().item() == BIG.sum()
    for worker in workers:
        worker.expect("has not the key of this service's workers")


def test_with_a_key_other_addresses_are_bound(machine: Machine) -> None:
    """Without an authorised key an address that others reach is refused; with one it is bound, and no tunnel is needed."""
    refused = machine.command("dispatcher", "--address", "tcp://0.0.0.0:*")
    assert refused.wait() == 1
    assert "nobody has a key yet" in refused.lines[0]
    key = new_key(machine, "bob")
    dispatcher = machine.command("dispatcher", "--address", "tcp://0.0.0.0:*", "--log-level", "info")
    address = dispatcher.expect("listening at").split()[-1].replace("0.0.0.0", "127.0.0.2")
    machine.worker(address).expect("worker 0")
    gt.connect(address, key=key)
    assert computes()
    gt.disconnect()
    up = machine.command("up", "--workers", "2", "--address", f"tcp://0.0.0.0:{free_port()}")
    everywhere = up.expect("2 workers at tcp://0.0.0.0:").split()[3].rstrip(";")
    gt.connect(everywhere.replace("0.0.0.0", "127.0.0.1"), key=key)
    assert computes()
    gt.disconnect()
    insecure = machine.command("dispatcher", "--address", "tcp://0.0.0.0:*", "--insecure")
    assert insecure.wait() == 1
    assert "refusing to bind" in insecure.lines[0]


def test_without_keys_whoever_reaches_the_port_is_anonymous(machine: Machine) -> None:
    """`--insecure` on loopback: a raw socket is heard, and nobody may cancel."""
    address, _, _ = machine.service(1, "--insecure")
    assert not silent(address, codec.encode(m.Hello(m.VERSION, "client", {"bulk": b""})), 20.0)
    gt.connect(address)
    assert computes()
    with Stream(address) as stream:
        assert "cancel" not in stream.status.capabilities


def test_a_key_that_others_can_read_is_refused(machine: Machine) -> None:
    """In one line that says what to do."""
    address, _, _ = machine.service(1)
    key = new_key(machine, "bob")
    Path(key).chmod(0o644)
    with pytest.raises(ValueError, match=rf"can be read by others.*chmod 600 {key}"):
        gt.connect(address, key=key)
