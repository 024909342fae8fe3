"""Daemons with bugs: what is put into a real one ends one session, or the daemon loudly, and never its work in silence."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
from daemons import Machine, Process

import gt

pytestmark = pytest.mark.process

DISPATCHER = """
import sys
from gt.dispatcher import bulk_relay, core
from gt.dispatcher.process import main
from gt.wire import messages as m

def bug(*_):
    raise KeyError("put in")

{patch}
raise SystemExit(main(sys.argv[1:]))
"""
BUG_IN_OPTIONS = "core.HANDLERS[core.CLIENT][m.Options] = bug"
BUG_IN_HOLDINGS = "core.HANDLERS[core.WORKER][m.Holdings] = bug"
BUG_IN_A_FRAME = """
class Router(bulk_relay.SessionRouter):
    "The relay's: whatever is large enough to be data cannot be sent."
    def send(self, peer, frames):
        return bug() if len(frames[-1]) > 1000 else super().send(peer, frames)
bulk_relay.SessionRouter = Router
"""
BUG_IN_THE_RELAY = """
usual = bulk_relay.BulkRelay._pass
bulk_relay.BulkRelay._pass = lambda self, sender, frames: bug() if len(frames[-1]) > 1000 else usual(self, sender, frames)
"""
WORKER = """
import sys
from gt.worker import core
from gt.worker.process import main
from gt.wire import messages as m

def bug(*_):
    raise KeyError("put in")

core.ORDERED[m.Survey] = core.ORDERED[m.Survey][0], bug
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


def service(machine: Machine, patch: str) -> tuple[str, Process, Process]:
    """A dispatcher with a bug, and a worker: (address, dispatcher, worker). Bulk data goes by its socket."""
    machine.environment["GT_SHARED_MEMORY"] = "0"
    arguments = ["--address", "tcp://127.0.0.1:*", "--log-level", "info"]
    code = DISPATCHER.format(patch=patch)
    dispatcher = machine.start("a dispatcher with a bug", [sys.executable, "-P", "-c", code, *arguments])
    address = dispatcher.expect("listening at").split()[-1]
    worker = machine.worker(address)
    worker.expect("at your service")
    return address, dispatcher, worker


def test_a_bug_in_the_dispatcher_ends_one_session(machine: Machine) -> None:
    """Who meets it is told; who was there before goes on, and counts it."""
    address, dispatcher, worker = service(machine, BUG_IN_OPTIONS)
    gt.connect(address)
    x = gt.ones(3)
    assert x.sum().item() == 3
    program = machine.program(
        """
        gt.connect(sys.argv[1])
        gt.config.set({"tf32": True})
        try:
            gt.ones(3).numpy()
        except gt.SessionError as error:
            say("told:", error)
        """,
        address,
    )
    said = program.expect("told:")
    assert "a bug in GT: KeyError: 'put in', at a Options; please report it" in said
    assert program.wait() == 0
    dispatcher.expect("Traceback")
    assert (x + 1).sum().item() == 6
    assert gt.stats()["service"]["internal_errors"] == 1
    assert dispatcher.running()
    assert worker.running()


def test_a_bug_with_a_workers_message_costs_that_worker(machine: Machine) -> None:
    """It ends with an error, so that whoever supervises it starts it again; the service goes on with others."""
    address, dispatcher, worker = service(machine, BUG_IN_HOLDINGS)
    session = gt.connect(address)
    x = gt.ones(3)
    assert x.sum().item() == 3
    session.ask("memory")
    worker.expect("the dispatcher ended it: a bug in GT: KeyError: 'put in', at a Holdings")
    assert worker.wait() == 1
    with pytest.raises(gt.WorkerLost, match="a bug in GT"):
        x.numpy()
    machine.worker(address).expect("worker 1 on cpu at your service")
    assert gt.ones(3).sum().item() == 3
    assert dispatcher.running()


def test_a_bug_with_bulk_data_ends_the_session_that_sent_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for ever for what nobody passes on."""
    address, dispatcher, _ = service(machine, BUG_IN_A_FRAME)
    monkeypatch.setenv("GT_SHARED_MEMORY", "0")
    gt.connect(address)
    with pytest.raises(gt.SessionError, match="a bug in GT: KeyError: 'put in', at bulk data"):
        gt.tensor(np.ones(1 << 20, np.float32)).sum().item()
    gt.connect(address)
    assert gt.ones(3).sum().item() == 3
    assert dispatcher.running()


def test_a_dispatcher_does_not_go_on_without_its_relay(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is loud: a traceback, status 1, and a word to everybody who was there."""
    address, dispatcher, worker = service(machine, BUG_IN_THE_RELAY)
    monkeypatch.setenv("GT_SHARED_MEMORY", "0")
    gt.connect(address)
    with pytest.raises(gt.SessionError, match="a bug in GT ended the dispatcher"):
        gt.tensor(np.ones(1 << 20, np.float32)).sum().item()
    dispatcher.expect("a bug in GT ends the dispatcher; please report it")
    assert dispatcher.wait() == 1
    assert any("KeyError: 'put in'" in line for line in dispatcher.lines)
    assert worker.wait() == 0


def test_a_bug_in_a_worker_is_said_and_it_starts_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it held is lost, with the reason; the same process joins as a new worker, and is used."""
    monkeypatch.setenv("GT_RECOVERY", "0")  # the session would ask again, and the worker would fail again
    dispatcher = machine.command("dispatcher", "--address", "tcp://127.0.0.1:*", "--log-level", "info")
    address = dispatcher.expect("listening at").split()[-1]
    arguments = ["--address", address, "--device", "cpu", "--log-level", "info"]
    worker = machine.start("a worker with a bug", [sys.executable, "-P", "-c", WORKER, *arguments])
    worker.expect("worker 0 on cpu at your service")
    session = gt.connect(address)
    x = gt.ones(3)
    assert x.sum().item() == 3
    session.ask("memory")
    worker.expect("a bug in GT ends this worker; please report it")
    worker.expect("KeyError: 'put in'")
    worker.expect("it starts again in 0.5 s, for the first time")
    with pytest.raises(gt.WorkerLost, match="a bug in GT: KeyError: 'put in'; please report it"):
        x.numpy()
    worker.expect("worker 1 on cpu at your service")
    assert gt.ones(3).sum().item() == 3
