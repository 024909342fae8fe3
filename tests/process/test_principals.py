"""Two users of one machine, and what each may do at the other's service. Tests of a second user need root."""

from __future__ import annotations

import grp
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemons import Machine, Process

import gt
from gt.wire.connection import Connection

pytestmark = pytest.mark.process
BIG = np.arange(1 << 18, dtype=np.float32)
STRANGER = 54321
"""The number of a user who has no account."""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


def service(machine: Machine) -> tuple[str, Process]:
    """A service with one worker, on a socket in the folder of this test."""
    address = f"ipc://{machine.temp}/here"
    dispatcher = machine.command("dispatcher", "--address", address, "--log-level", "info")
    dispatcher.expect("listening")
    machine.worker(address).expect("worker 0")
    return address, dispatcher


def opened(machine: Machine) -> None:
    """Let every user of the machine reach the sockets."""
    for path in (machine.temp, *machine.temp.glob("here*")):
        path.chmod(0o777)


def by_stranger(machine: Machine, code: str, groups: tuple[int, ...] = ()) -> Process:
    """A program of another user, who is a member of these groups."""
    become = f"import os; os.setgroups({list(groups)}); os.setgid({STRANGER}); os.setuid({STRANGER}); os.environ['HOME'] = '/'\n"
    for name in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "GT_CACHE"):
        become += f"os.environ.pop({name!r}, None)\n"
    loaded = "gt.connect('inproc'); gt.ones(3).numpy(); gt.disconnect()\n"
    loaded += "import gt.client.io.publish, gt.client.session.socket_link, gt.wire.connection\n"
    return machine.program(loaded + become + textwrap.dedent(code))  # modules first: it may not read where they are


@needs_root
def test_another_user_computes_and_does_nothing_else(machine: Machine) -> None:
    """At a socket that is open to it, another user runs programs, with large data too, and cannot join as worker or watch."""
    address, _ = service(machine)
    opened(machine)
    program = by_stranger(
        machine,
        f"""
address = {address!r}
gt.connect(address)
big = np.arange(1 << 20, dtype=np.float32)
assert ((gt.from_numpy(big) * 2).numpy() == big * 2).all()
gt.disconnect()
from gt.wire import messages as m
from gt.wire.messages import codec
from gt.wire.connection import Connection
for role in ("worker", "pulse", "watcher"):
    connection = Connection(address)
    connection.send(codec.encode(m.Hello(m.VERSION, role, {{"address": "ipc:///none", "bulk": b"", "speed": 1e18}})))
    while (frames := connection.receive()) is None:
        assert connection.socket.poll(5000)
    answer = codec.decode(frames)
    assert isinstance(answer, m.Goodbye), answer
    say(answer.text)
say("done")
""",
    )
    for role in ("worker", "pulse", "watcher"):
        assert program.expect("may not join").startswith(f"user {STRANGER} may not join as {role}")
    program.expect("done")
    assert program.wait() == 0


@needs_root
def test_a_private_folder_keeps_another_user_out(machine: Machine) -> None:
    """Where the folder is its owner's alone, another user does not even connect."""
    address, _ = service(machine)
    for path in machine.temp.glob("here*"):
        path.chmod(0o777)
    program = by_stranger(machine, f"gt.connect({address!r})")
    assert program.wait() != 0
    assert "no dispatcher answered" in "".join(program.lines)


def test_bulk_data_of_a_peer_that_never_said_hello_is_refused(machine: Machine) -> None:
    """It is relayed to nobody, and nobody else notices."""
    address, _ = service(machine)
    session = gt.connect(address)
    link: Any = session.link
    stranger = Connection(str(session.facts["bulk_address"]))
    stranger.wait_accepted(5.0)
    for receiver in (link.bulk_identity, stranger.identity):
        stranger.send([receiver, b"", b""])
    assert ((gt.from_numpy(BIG) * 2).numpy() == BIG * 2).all()
    assert stranger.receive() is None
    stranger.close()


def test_the_default_is_a_private_folder_that_ones_own_programs_find(machine: Machine) -> None:
    """Without an address `gt up` listens where nobody else can enter, and `gt.connect()`, `gt worker` and the monitor find it."""
    machine.program("gt.ones(3).numpy(); say('computed'); hear()").expect("computed")
    nobody = machine.program("gt.connect()")  # the service of another program is none for this one
    assert nobody.wait() != 0
    assert "no service of yours runs on this machine" in nobody.lines[-1]
    up = machine.command("up", "--workers", "1")
    address = up.expect("1 worker at ipc://").split()[3].rstrip(";")
    assert Path(address.removeprefix("ipc://")).parent.stat().st_mode & 0o777 == 0o700
    assert gt.connect().name == address
    assert (gt.ones(3) * 2).numpy().tolist() == [2, 2, 2]
    another = machine.command("worker", "--device", "cpu", "--log-level", "info")
    another.expect("worker 1 on cpu")
    top = machine.command("top", "--once")
    assert top.wait() == 0, top.lines
    gt.disconnect()


def test_a_dispatcher_alone_does_the_same(machine: Machine) -> None:
    """Started before its dispatcher, a worker without an address waits for it; the folder goes with the dispatcher."""
    worker = machine.command("worker", "--device", "cpu", "--log-level", "info")
    dispatcher = machine.command("dispatcher", "--log-level", "info")
    dispatcher.expect("listening at ipc://")
    worker.expect("worker 0 on cpu")
    gt.connect()
    assert gt.ones(3).sum().item() == 3
    gt.disconnect()


@needs_root
def test_a_group_is_let_in_and_nobody_else(machine: Machine) -> None:
    """`gt up --group`: a member finds the service and computes; who is no member finds nothing, and cannot connect."""
    group = next(each for each in grp.getgrall() if each.gr_gid not in (0, STRANGER))
    machine.temp.chmod(0o1777)  # as /tmp is
    up = machine.command("up", "--workers", "1", "--group", group.gr_name)
    address = up.expect("1 worker at ipc://").split()[3].rstrip(";")
    computes = "gt.connect(); say((gt.ones(3) * 2).numpy())"
    member = by_stranger(machine, computes, (group.gr_gid,))
    member.expect("[2. 2. 2.]")
    assert member.wait() == 0
    for code, text in ((computes, "no service of yours"), (f"gt.connect({address!r})", "no dispatcher answered")):
        other = by_stranger(machine, code)
        assert other.wait() != 0
        assert text in other.lines[-1]
    watcher = by_stranger(machine, "from gt.monitor.stream import Stream; Stream()", (group.gr_gid,))
    assert watcher.wait() != 0
    assert f"user {STRANGER} may not join as watcher" in watcher.lines[-1]


def test_a_group_that_is_none_is_refused_in_a_line(machine: Machine) -> None:
    up = machine.command("up", "--workers", "1", "--group", "no-such-group")
    assert up.wait() == 1
    assert up.lines == ["gt: there is no group 'no-such-group' on this machine: `getent group` lists them"]
    tcp = machine.command("dispatcher", "--address", "tcp://127.0.0.1:*", "--group", "root")
    assert tcp.wait() == 1
    assert "on TCP, give its members keys" in tcp.lines[-1]


@needs_root
def test_what_is_published_is_read_by_whom_it_is_shared_with(machine: Machine, tmp_path: Path) -> None:
    """Its publisher has ended by then. Another user sees nothing else, and has the same names for itself."""
    machine.environment["GT_SNAPSHOTS"] = str(tmp_path)
    address, _ = service(machine)
    opened(machine)
    publisher = machine.program(f"""
        gt.connect({address!r})
        say("published", gt.publish("a", gt.arange(4) * 2, to="uid:{STRANGER}"), gt.publish("b", gt.ones(3), to="root"))
    """)
    assert "published 1 1" in publisher.expect("published")
    publisher.wait()
    reader = by_stranger(
        machine,
        f"""
        gt.connect({address!r})
        say("listed", [(each.name, each.owner, each.to) for each in gt.published()])
        say("read", gt.subscribe("a").numpy().tolist())
        for name in ("b", "c"):
            try:
                gt.subscribe(name)
            except gt.errors.SnapshotError as error:
                say("refused", error)
        say("own", gt.publish("b", gt.ones(3)), gt.subscribe("b").numpy().tolist())
        """,
    )
    assert "listed [('a', 'user 0', ())]" in reader.expect("listed")
    assert "read [0, 2, 4, 6]" in reader.expect("read")
    for name in ("b", "c"):
        assert f"refused nothing named '{name}' is shared with you" in reader.expect("refused")
    assert "own 1 [1.0, 1.0, 1.0]" in reader.expect("own")
