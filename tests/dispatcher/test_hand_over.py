"""A dispatcher that ends so that the next one goes on with its sessions."""

from __future__ import annotations

from typing import Any

from marking_dispatcher import pass_time
from one_dispatcher import Service

from gt.dispatcher.state.events import SessionWritten
from gt.wire import messages as m
from gt.wire.principals import OBSERVER, Origin, Principal

KEY, OTHER = bytes(range(16)), bytes(range(16, 32))


def operated(*, saves: bool = True, **more: Any) -> Service:
    """A service with an operator "t", a worker, and a client "c" with tensor 1."""
    each = Service(0, expected=1, capabilities=("restart",), **({"cards": []} if saves else {}), **more)
    each.join("w0", marks=True)
    each.client(resends=True, session_key=KEY)
    each.put(1)
    each.done()
    each.hello("t", "watcher")
    pass_time(each, 0.0)
    each.told.clear()
    return each


def restart(each: Service, *, begin: bool = False, end: bool = False, watcher: str = "t") -> Any:
    """What the operator is answered."""
    each.say(watcher, m.HandOver(5, begin, end))
    (answer,) = each.hears(watcher, m.Answer, m.Failed)
    assert answer.request == 5
    return answer


def test_marks_are_taken_before_the_end() -> None:
    """Of all sessions that can go on; and the operator hears when they are whole."""
    each = operated(supervised=True)
    each.client("e", resends=True, session_key=OTHER)
    assert restart(each).facts == {"sessions": 2, "marking": 0, "lost": [], "supervised": True}
    assert restart(each, begin=True).facts["marking"] == 1, "the other has nothing yet"
    (mark,) = each.hears("w0", m.TakeMark)
    assert restart(each).facts["marking"] == 1
    assert not each.hears("w0", m.TakeMark), "it is asked for once"
    each.say("w0", m.MarkTaken(mark.mark, [], 0))
    each.event(SessionWritten(mark.mark, None, 0))
    assert restart(each).facts["marking"] == 0
    assert not each.core.hand_overs.ends
    assert isinstance(restart(each, end=True), m.Answer)
    assert each.core.hand_overs.ends
    assert not each.hears("c", m.Goodbye)


def test_a_mark_that_waits_for_a_put_counts() -> None:
    each = operated()
    each.put(2, bulk=True)
    assert restart(each, begin=True).facts["marking"] == 1
    assert not each.hears("w0", m.TakeMark)
    each.say("w0", m.Landed(1, 2))
    assert each.hears("w0", m.TakeMark)
    assert restart(each).facts["marking"] == 1


def test_the_operator_hears_which_sessions_end() -> None:
    """Those that keep nothing, or have no key to come back."""
    each = operated()
    lost = [each.client("e"), each.client("f", resends=True)]
    found = restart(each, begin=True).facts
    assert (found["sessions"], found["lost"], found["supervised"]) == (3, lost, False)


def test_without_a_folder_nobody_is_handed_over() -> None:
    each = operated(saves=False)
    answer = restart(each, end=True)
    assert "without a folder for marks" in answer.text
    assert not each.core.hand_overs.ends


def test_operators_alone_restart_a_dispatcher() -> None:
    each = operated()
    each.origins["o"] = Origin(Principal("eve", frozenset({OBSERVER})))
    each.hello("o", "watcher")
    each.hears("o")
    assert "only an operator" in restart(each, end=True, watcher="o").text
    assert not each.core.hand_overs.ends
