"""The shell around the core: in which order others can hear of what it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from daemons import Machine

from gt.daemon.host import host_facts
from gt.dispatcher.shell import REFUSED, DispatcherShell
from gt.dispatcher.state.events import JobTurn, Received
from gt.unix_sockets.router import UnixRouter
from gt.wire import messages as m
from gt.wire.messages import codec


def close(shell: DispatcherShell) -> None:
    """End a dispatcher that has not run."""
    shell.farewell("the test is over")
    shell.limit.close()


def test_the_relay_knows_a_worker_before_anybody_can_answer(machine: Machine) -> None:
    """A put waits for the first worker, which offers to take it as soon as it hears of it, by another socket: the relay
    lost that when it was told of the worker after the messages were sent, and the put waited for ever."""
    shell = DispatcherShell("tcp://127.0.0.1:*", workers=1, insecure=True)
    heard: list[tuple[bytes, list[Any], bool]] = []
    tell = shell._tell

    def look(to: tuple[bytes, ...], frames: list[Any]) -> None:
        """Note of each message who hears it, and whether the relay knows the worker then."""
        heard.extend((peer, frames, bool(shell.relay.workers)) for peer in to)
        tell(to, frames)

    shell._tell = look  # type: ignore[method-assign] — it does what it did
    try:
        shell._hello(b"client", m.Hello(m.VERSION, "client", {**host_facts(), "bulk": b"bulk of the client"}), 0)
        put = m.Put(1 << 40, ["f64", [1 << 18]], [], True, b"")
        shell._handle(Received(b"client", put))
        assert [peer for peer, _, _ in heard] == [b"client"]
        shell._hello(
            b"worker",
            m.Hello(m.VERSION, "worker", {**host_facts(), "address": "ipc://w", "bulk": b"bulk of the worker"}),
            0,
        )
        while shell.core.busy:
            shell._handle(JobTurn())
        said = [(type(codec.decode(frames)), known) for peer, frames, known in heard if peer == b"worker"]
        assert m.Store in dict(said)
        assert all(known for _, known in said)
    finally:
        close(shell)


def test_new_connections_are_charged_to_nobody_who_was_heard(machine: Machine, tmp_path: Path) -> None:
    """They are all of one principal, which rests when it has used more than its share beside others."""
    shell = DispatcherShell(f"ipc://{tmp_path}/d", workers=1)
    try:
        router, thread = shell.control, shell.core.service.thread
        assert isinstance(router, UnixRouter)
        shell.core.service.now = shell.handled_at = now = shell.clock()
        thread.issued("honest", now)
        shell.core.service.served = "other"
        router.accept_seconds = 0.4
        shell._drain()
        assert router.accept_seconds == 0
        assert thread.rests(REFUSED, shell.core.service.now)
        assert not thread.rests("other", shell.core.service.now)
    finally:
        close(shell)


@pytest.mark.process
def test_who_knows_the_address_finds_the_key(machine: Machine) -> None:
    """The process that serves metrics is told the address as soon as there is one. It found no key then, and ended."""
    program = machine.program("""
        from gt.daemon.registry import services
        from gt.dispatcher.shell import DispatcherShell
        from gt.wire.keys import keys_for
        shell = DispatcherShell("tcp://127.0.0.1:*", workers=1)
        found = keys_for(shell.address)
        say("found", found is not None and found.server == shell.keys.public)
        say("listed", [service.address for service in services()] == [shell.address])
        shell.farewell("the test is over")
        say("left", len(services()))
        os._exit(0)
    """)  # fmt: skip
    for line in ("found True", "listed True", "left 0"):
        assert program.expect(line.split()[0]) == line
    assert program.wait() == 0
