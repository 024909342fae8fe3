"""Questions that all workers answer: in the client's order, whole, and without those that are lost meanwhile."""

from __future__ import annotations

import pytest
from one_dispatcher import Service

from gt.dispatcher.handlers import memory_survey
from gt.wire import messages as m
from gt.wire.principals import USER, Origin, Principal


def facts(live: int) -> dict[str, object]:
    return {"holders": [[1, "", 1, live, 0, 0]]}


def test_the_answer_has_what_each_worker_said() -> None:
    """Every worker is asked once; the answer comes with the last of them, in the order of their numbers."""
    service = Service(2)
    number = service.client()
    service.say("c", m.Ask(7, "memory"))
    (asked,) = service.hears("w0", m.Survey)
    assert service.hears("w1", m.Survey) == [asked]
    service.say("w1", m.Holdings(asked.request, facts(5)))
    assert service.hears("c", m.Answer) == []
    service.say("w0", m.Holdings(asked.request, facts(3)))
    (answer,) = service.hears("c", m.Answer)
    assert answer == m.Answer(7, {"client": number, "workers": [[0, facts(3)], [1, facts(5)]]})
    service.say("w0", m.Holdings(asked.request, facts(9)))
    assert service.hears("c", m.Answer) == [], "it was answered"


def test_a_worker_that_is_lost_is_left_out() -> None:
    """Nobody waits for the dead, and an answer that nobody waits for is dropped."""
    service = Service(2)
    service.client()
    service.say("c", m.Ask(1, "memory"))
    (asked,) = service.hears("w0", m.Survey)
    service.say("w0", m.Holdings(asked.request, facts(3)))
    service.say("w1", m.Goodbye("", "it was stopped"))
    (answer,) = service.hears("c", m.Answer)
    assert answer.facts["workers"] == [[0, facts(3)]]


def test_only_who_may_watch_is_told_what_others_hold() -> None:
    """A user sees what sessions of their own hold, whichever program has them."""
    service = Service(1)
    guest = Principal("user 1001", frozenset({USER}))
    service.origins |= {"c": Origin(guest, 5), "d": Origin(guest, 6)}
    rows = [[service.client(name), "secret" if name == "o" else "", 1, 8, 0, 0] for name in ("c", "d", "o")]
    for name, seen in (("c", rows[:2]), ("o", rows)):
        service.say(name, m.Ask(1, "memory"))
        (asked,) = service.hears("w0", m.Survey)
        service.say("w0", m.Holdings(asked.request, {"holders": rows}))
        (answer,) = service.hears(name, m.Answer)
        assert answer.facts["workers"] == [[0, {"holders": seen}]]


def test_a_client_that_left_gets_no_answer() -> None:
    """Its question is forgotten with the last answer."""
    service = Service(1)
    service.client()
    service.say("c", m.Ask(1, "memory"))
    (asked,) = service.hears("w0", m.Survey)
    service.say("c", m.Goodbye("", "done"))
    service.say("w0", m.Holdings(asked.request, facts(3)))
    assert service.hears("c", m.Answer) == []
    assert service.core.surveys.surveys == {}


def test_an_answer_fits_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many holdings the asking client's own are there, and then the largest."""
    monkeypatch.setattr(memory_survey, "MAX_HOLDINGS", 3)
    service = Service(1)
    service.client("other")
    number = service.client()
    service.say("c", m.Ask(1, "memory"))
    (asked,) = service.hears("w0", m.Survey)
    rows = [[1, "large", 1, 90, 0, 0], [1, "small", 1, 80, 0, 0], [number, "a", 1, 7, 0, 0], [number, "b", 1, 5, 0, 0]]
    service.say("w0", m.Holdings(asked.request, {"holders": rows}))
    (answer,) = service.hears("c", m.Answer)
    assert answer.facts["workers"] == [[0, {"holders": [rows[2], rows[3], rows[0]]}]]


def test_devices_wait_for_the_workers_that_are_expected() -> None:
    """Asked before all have joined, the answer comes when they have."""
    service = Service(1, expected=2)
    service.client()
    service.say("c", m.Ask(1, "devices"), m.Ask(2, "memory"))
    assert service.hears("c", m.Answer) == []
    service.join("w1")
    (answer,) = service.hears("c", m.Answer)
    assert [number for number, _ in answer.facts["workers"]] == [0, 1]
    assert service.hears("w1", m.Survey)
