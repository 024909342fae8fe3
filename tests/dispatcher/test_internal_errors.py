"""Exceptions that should not be: a bug ends the session of the peer whose message or job it came from, and the service goes on.

The bugs are put in where a handler is called; what matters is what becomes of everybody else.
"""

from __future__ import annotations

from typing import Any

import pytest
from one_dispatcher import Service, fault_of, made, started

from gt.dispatcher.message_table import HANDLERS, WORKER
from gt.dispatcher.state.events import Lost, Malformed, Publish, Received, ShellError, Tick
from gt.dispatcher.state.shared_state import MESH_CREDITS
from gt.wire import messages as m


def bug(*_: Any, **__: Any) -> Any:
    raise KeyError("a bug")


def two() -> Service:
    """Clients "c" and "d" of one worker, each with tensor 1 and segment 1."""
    each = started(1)
    each.client("d")
    each.put(1, "d")
    each.define(1, client="d")
    each.done()
    each.told.clear()
    return each


def goes_on(each: Service, client: str = "d") -> None:
    """The client's next run reaches a worker, and its fetch is answered."""
    each.run(1, 70, [1], client)
    each.say(client, m.Fetch(5, 70))
    worker = next(iter(each.core.service.workers)).decode()
    (collect,) = each.hears(worker, m.Collect)
    each.say(worker, m.Part(collect.request, [], True, bytes(16)))
    assert each.hears(client, m.Value)


def errors(each: Service) -> list[str]:
    return [line for line in each.log if line.startswith("error")]


def test_a_bug_ends_the_session_whose_message_it_was() -> None:
    """It is told what happened and what to do; the traceback is logged, and whoever else is there goes on."""
    each = two()
    each.core.queues.handlers[m.Options] = bug
    each.run(1, 10, [1])
    each.say("c", m.Options({}))
    (told,) = each.hears("c", m.Goodbye)
    assert told.kind == "SessionError"
    assert "a bug in GT: KeyError: 'a bug', at a Options; please report it" in told.text
    assert b"c" not in each.core.service.clients
    (logged,) = errors(each)
    assert "Traceback" in logged
    assert "in bug" in logged
    assert each.core.service.counters.internal_errors == 1
    assert each.core.service.counters.refused == 0
    each.done()
    goes_on(each)
    each.say("d", m.Ask(6, "statistics"))
    assert each.hears("d", m.Answer)[0].facts["internal_errors"] == 1


def test_the_same_bug_is_counted_always_and_logged_once() -> None:
    """Whoever makes it happen again and again fills no log."""
    each = two()
    each.core.queues.handlers[m.Options] = bug
    for turn in range(20):
        each.client(f"x{turn}")
        each.say(f"x{turn}", m.Options({}))
    assert each.core.service.counters.internal_errors == 20
    assert len(errors(each)) == 1
    goes_on(each)


def test_messages_behind_the_one_with_the_bug_are_dropped() -> None:
    """Nothing of a session is done after a bug in it, also if its messages came before."""
    each = two()
    for n in range(MESH_CREDITS):
        each.run(1, 10 + n, [1])
    each.run(1, 60, [1])  # it waits for a credit
    each.say("c", m.Options({}), m.Fetch(3, 60))
    each.core.queues.handlers[m.Options] = bug
    each.told.clear()
    each.done()
    assert [type(told) for told in each.hears("c")][-1] is m.Goodbye
    assert not each.hears("w0", m.Collect)
    assert b"w0" in each.core.service.workers, "it was the client's message, although the worker's came last"
    goes_on(each)


def test_a_bug_in_a_workers_message_costs_that_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is lost as if it had been killed: what it held is gone, and sessions go on with others."""
    each = two()
    monkeypatch.setitem(HANDLERS[WORKER], m.Holdings, bug)
    each.say("w0", m.Holdings(1, {}))
    assert "a bug in GT" in each.hears("w0", m.Goodbye)[0].text
    kind, text = fault_of(each, 1)
    assert kind == "WorkerLost"
    assert "a bug in GT: KeyError" in text
    each.join("w1")
    each.put(2, "d")
    assert each.hears("w1", m.Store)


def test_a_bug_in_a_hello_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    each = two()
    monkeypatch.setattr(each.core.handshake, "hello", bug)
    each.hello("x", "client")
    assert "a bug in GT" in each.hears("x", m.Goodbye)[0].text
    goes_on(each)


def test_a_bug_at_the_end_of_a_job_ends_the_session_whose_job_it_was() -> None:
    each = two()
    each.core.plan_selection.admission.asks = bug  # type: ignore[method-assign]  # asked when a plan has been made
    each.put(2)
    each.run(1, 10, [1])
    assert "a bug in GT" in each.hears("c", m.Goodbye)[0].text
    del each.core.plan_selection.admission.asks
    goes_on(each)


def test_a_bug_in_the_planner_fails_the_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session goes on: what cannot be planned has an error, and everything else a value."""
    each = two()
    planner = each.core.service.clients[b"c"].planner
    assert planner is not None
    with monkeypatch.context() as patch:
        patch.setattr(planner, "plan_in_turns", bug)
        each.run(1, 10, [1])
    kind, text = fault_of(each, 10)
    assert kind == "ProtocolError"
    assert "a bug in GT: KeyError" in text
    assert each.core.service.counters.internal_errors == 1
    assert "Traceback" in errors(each)[0]
    goes_on(each, "c")
    goes_on(each)


def test_a_bug_in_what_watchers_are_told_ends_the_watching_alone() -> None:
    each = two()
    each.hello("m", "watcher")
    each.say("m", m.Watch(1, 0))
    assert each.core.service.recording is not None
    each.core.service.recording.take = bug  # type: ignore[method-assign]
    each.event(Publish(1))
    assert "a bug in GT" in each.hears("m", m.Goodbye)[0].text
    assert each.core.service.recording is None
    goes_on(each)


def test_a_bug_in_a_tick_is_counted_and_the_next_comes() -> None:
    each = two()
    each.core.subscribers.late = bug  # type: ignore[method-assign]
    each.event(Tick())
    del each.core.subscribers.late
    each.event(Tick())
    assert each.core.service.counters.internal_errors == 1
    goes_on(each)


@pytest.mark.parametrize("how", ["killed", "goodbye", "silent", "malformed"])
def test_a_bug_while_a_peer_is_dropped_is_not_gone_over(how: str) -> None:
    """Others might wait for ever for what is half gone: the dispatcher ends, and is started again."""
    each = two()
    made.remove(each)  # something of the client is left, which is why
    each.core.disconnect._leave = bug  # type: ignore[method-assign]
    events: dict[str, Any] = {
        "killed": Lost(b"c", "killed"), "goodbye": Received(b"c", m.Goodbye("", "")), "silent": Tick(),
        "malformed": Malformed(b"c", "no message"),
    }  # fmt: skip
    each.now = 1000.0
    with pytest.raises(KeyError):
        each.event(events[how])


@pytest.mark.parametrize(("name", "bulk"), [(b"c", False), (b"bulk-c", True)])
def test_what_the_shell_cannot_send_or_read_ends_the_session_that_it_is_of(name: bytes, bulk: bool) -> None:
    """A message that cannot be encoded, or bulk data that cannot be passed on."""
    each = two()
    each.event(ShellError(name, "an Answer", TypeError("cannot be packed"), bulk))
    assert "TypeError: cannot be packed, at an Answer" in each.hears("c", m.Goodbye)[0].text
    goes_on(each)


def test_every_handler_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever message meets a bug, it costs its sender at most its session."""
    for role, handlers in HANDLERS.items():
        for kind in handlers:
            each = two()
            names = {"client": "c", "worker": "w0", "watcher": "m", "inquirer": "i", "pulse": "p", "standby": "s"}
            peer = names[role]
            if peer in ("m", "i"):
                each.hello(peer, role)
            elif peer == "p":
                each.hello("p", "pulse", address="ipc:///w0")
            elif peer == "s":
                each.core.marks.saves = True
                each.hello("s", "standby", address="ipc:///s")
            with monkeypatch.context() as patch:
                patch.setitem(HANDLERS[role], kind, bug)
                each.event(Received(peer.encode(), tuple.__new__(kind, ())))  # its fields are never looked at
            assert each.core.service.counters.internal_errors == 1, kind
            assert "a bug in GT" in each.hears(peer, m.Goodbye)[0].text
            if peer != "w0":
                goes_on(each)
