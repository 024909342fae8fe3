"""Rewinds of a session: what is sent again is the stream of the first time, in order, paced by credits, each request answered
once; and what is kept for that is bounded."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_link import ASKED, CREDITS, LARGE, SCALAR, ScriptedLink, fetch, opened, run, value

from gt.bounds import MAX_IDS, MAX_STATE_BYTES
from gt.client.segment.value import TensorValue
from gt.client.session import sessions
from gt.client.session.absence import KEY_BYTES
from gt.client.session.future import Future
from gt.client.session.resend_buffer import CONFIGURE, MAX_UNHEARD_PUT_BYTES, MESSAGE_BYTES, QUESTION
from gt.client.session.session import Session
from gt.client.session.socket_link import resend_limit
from gt.daemon.host import memory_limit
from gt.errors import GTError, SessionError, WorkerLost
from gt.wire import messages as m
from gt.wire.messages import codec

STEPS = {
    "run": 6, "free": 1, "define": 1, "options": 1, "put": 1, "large put": 1, "fetch": 3, "ask": 1, "configure": 1,
    "snapshot": 1, "answer": 4, "credit": 4, "mark": 2, "rewind": 2,
}  # fmt: skip


class Story:
    """A session and a service that do things in an order that is drawn."""

    def __init__(self, session: Session, link: ScriptedLink, draw: Callable[[int], int]) -> None:
        self.session = session
        self.link = link
        self.draw = draw
        self.ended: Counter[int] = Counter()
        """How often each request has ended."""
        self.futures: dict[int, Future] = {}
        self.answered: set[int] = set()
        """Requests that this incarnation has answered."""
        self.marks = 0
        self.values: list[TensorValue] = []
        """None of them dies here, so that nothing is flushed and no credit is waited for."""

    def asked(self, future: Future) -> None:
        number = next(reversed(self.session.requests))
        self.futures[number] = future
        future.add_done_callback(lambda _: self.ended.update([number]))

    def unanswered(self) -> list[Any]:
        """Requests that have arrived, and have no answer from this incarnation."""
        said = self.link.arrived
        kinds = (m.Fetch, m.Ask, m.WriteSnapshot, m.Configure)
        return [each for each in said if isinstance(each, kinds) and each.request not in self.answered]

    def step(self, name: str) -> None:
        session, link = self.session, self.link
        if name == "run":
            run(session, session.sent + 1)
        elif name in ("free", "define", "options"):
            made = {"free": m.Free([3]), "define": m.Define(1, b"body"), "options": m.Options({"a": 1})}
            session.sink([made[name]])
        elif name in ("put", "large put"):
            if session.sent - session.credited < CREDITS - 1:
                self.values.append(session.put(np.zeros(3 if name == "put" else LARGE, np.uint8), ()))
        elif name == "fetch":
            self.values.append(sessions.builder().allocate(SCALAR))
            self.asked(session.fetch(self.values[-1]))
        elif name == "ask":
            self.asked(session._request(lambda number: m.Ask(number, "workers"), "an answer", QUESTION))
        elif name == "configure":
            self.asked(session._request(lambda number: m.Configure(number, {}), "a config", CONFIGURE))
        elif name == "snapshot":
            self.asked(session.snapshot("a", os.urandom(8).hex(), [], b""))
        elif name == "answer" and (waiting := self.unanswered()):
            self.answer(waiting[self.draw(len(waiting))])
        elif name == "credit":
            link.credit(link.credited + self.draw(link.done - link.credited + 1))
        elif name == "mark":
            self.marks += 1
            link.tell(link.mark(self.marks))
        elif name == "rewind":
            self.answered = set()
            before = set(session.requests)
            link.rewound(len(link.numbers) + 2)
            for number in before - set(session.requests):
                assert isinstance(self.futures[number]._error, WorkerLost)
        self.check()

    def answer(self, message: Any) -> None:
        self.answered.add(message.request)
        found = value(message.request, 7.0) if isinstance(message, m.Fetch) else m.Answer(message.request, {})
        self.link.tell(found)

    def check(self) -> None:
        kept = self.session.kept
        assert kept is not None
        kept.check()
        settled = self.link.told(m.Settled)
        mark = settled[-1].mark if settled else 0
        assert (kept.mark, kept.dropped, kept.done) == (mark, *self.link.marks[mark]), (
            "what is in the last mark has left"
        )
        frames = [[first] if second is None else [first, second] for first, second, _, _ in kept.kept]
        stream = [self.link.again(at) for at in range(kept.dropped, len(self.link.stream))]
        assert frames == stream, "everything else has not"
        waiting = [codec.decode(list(each)) for each in self.link.stream[: kept.dropped]]
        assert not any(isinstance(each, ASKED) and each.request in self.session.requests for each in waiting)

    def finish(self) -> None:
        """The service does everything that it was asked for."""
        while self.session.credited < self.session.sent or self.unanswered():
            self.step("credit")
            self.link.credit(self.link.done)
            for each in self.unanswered():
                self.answer(each)
        assert self.link.position == len(self.link.stream)
        assert self.session.requests == {}
        assert all(self.ended[number] == 1 for number in self.futures)


@given(
    st.lists(st.sampled_from([name for name, times in STEPS.items() for _ in range(times)]), max_size=60), st.randoms()
)
@settings(max_examples=cases(500), deadline=None)
def test_what_is_sent_again_is_the_stream(names: list[str], random: Any) -> None:
    """Whatever is sent, answered, credited and rewound in whatever order."""
    with opened() as (session, link):
        story = Story(session, link, lambda count: random.randrange(count) if count else 0)
        for name in names:
            story.step(name)
        story.finish()


def test_a_session_says_that_it_takes_part() -> None:
    with opened(1 << 30) as (_, link):
        facts = link.told(m.Hello)[0].facts
        assert facts.keys() == {"resends", "session_key"}
        assert len(facts["session_key"]) == KEY_BYTES
    with opened(0) as (_, link):
        assert link.told(m.Hello)[0].facts == {}


def test_without_a_limit_nothing_is_kept() -> None:
    with opened(0) as (session, link):
        run(session, 1)
        assert session.kept is None
        assert len(link.arrived) == 1


def test_a_rewind_is_told_once_and_takes_the_number(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as (session, link), caplog.at_level(logging.WARNING, "gt"):
        run(session, 1)
        link.rewound(9)
        assert session.facts["number"] == 9
        assert link.numbers == [(9, 1)]
        assert link.told(m.Resume) == [m.Resume(9, 0)]
        (record,) = caplog.records
        assert record.getMessage().startswith("the session goes back to its beginning, and what came after is computed")
        assert record.getMessage().endswith("worker 1 was killed")


def test_a_mark_waits_for_answers_and_a_newer_one_takes_its_place() -> None:
    with opened() as (session, link):
        run(session, 1)
        future = fetch(session)
        link.tell(link.mark(1))
        run(session, 2)
        assert link.told(m.Settled) == []
        link.tell(link.mark(2))
        assert link.told(m.Settled) == []
        link.tell(value(1, 3.0))
        assert link.told(m.Settled) == [m.Settled(2)]
        assert session.kept is not None
        assert (len(session.kept.kept), session.kept.nbytes) == (0, 0)
        assert float(future.result()) == 3.0


def test_a_value_of_which_parts_had_come_comes_afresh() -> None:
    with opened() as (session, link):
        future = fetch(session)
        link.tell(value(1, 3.0)._replace(parts=2))
        assert not future._ready()
        link.rewound(2)
        link.tell(value(1, 5.0))
        assert float(future.result()) == 5.0
        link.tell(value(1, 8.0))
        assert float(future.result()) == 5.0


def test_a_snapshot_is_taken_again_with_other_files() -> None:
    """Each time with new ones, for workers may still write those of the time before; one that was answered is not taken again."""
    with opened() as (session, link):
        future = session.snapshot("a", "000000000000000f", [], b"body")
        done = session.snapshot("b", "f" * 16, [], b"")
        link.tell(m.Answer(2, {}))
        for number, parts in ((2, "0000000000000010"), (3, "0000000000000011")):
            link.rewound(number)
            assert link.arrived == [m.WriteSnapshot(1, "a", parts, [], [], b"body"), m.Free([])]
            assert not future._ready()
        assert done._ready()
        link.tell(m.Answer(1, {}))
        future.result()


def test_the_largest_snapshot_is_taken_again() -> None:
    with opened() as (session, link):
        mine = sessions.builder()
        values = [mine.allocate(SCALAR) for _ in range(MAX_IDS)]
        body = bytes(MAX_STATE_BYTES)
        session.snapshot("a", "f" * 16, values, body)
        link.rewound(2)
        (again,) = [each for each in link.arrived if isinstance(each, m.WriteSnapshot)]
        assert again == m.WriteSnapshot(1, "a", "0" * 16, [value.id for value in values], [], body)


def test_a_config_is_loaded_again_and_its_error_is_not_reported_again() -> None:
    with opened() as (session, link):
        future = session._request(lambda number: m.Configure(number, {}), "a config", CONFIGURE)
        failed = m.Failed(1, "ConfigError", "it is wrong")
        link.tell(failed)
        assert future._error is not None
        link.rewound(2)
        assert link.arrived == [m.Configure(1, {})]
        link.tell(failed)
        session.usable()


def test_an_error_of_a_message_is_reported_once() -> None:
    """What led to it is sent again, and fails again; another error is another."""
    with opened() as (session, link):
        for text in ("one", "one", "two"):
            link.tell(m.Failed(0, "ShapeError", text))
            with pytest.raises(GTError, match=text):
                session.usable()
        link.rewound(2)
        for text in ("one", "one", "two"):
            link.tell(m.Failed(0, "ShapeError", text))
            session.usable()
        link.tell(m.Failed(0, "ShapeError", "two"))
        with pytest.raises(GTError, match="two"):
            session.usable()


def test_of_errors_that_nobody_has_seen_the_first_is_raised() -> None:
    """Those that follow are often of what the first one left undone: "tensor 5 does not exist" says nothing."""
    with opened() as (session, link):
        for text in ("the cause", "what follows"):
            link.tell(m.Failed(0, "ShapeError", text))
        with pytest.raises(GTError, match="the cause"):
            session.usable()
        session.usable()


def test_a_second_rewind_starts_again_from_the_mark() -> None:
    """Also what has come meanwhile, and was never sent."""
    with opened() as (session, link):
        for number in range(1, 8):
            run(session, number)
        link.tell(link.mark(1))
        link.credit(7)
        for number in range(8, 20):
            run(session, number)
        link.rewound(2)
        assert link.done == 7 + CREDITS
        run(session, 20)
        link.credit(9)
        assert link.done == 9 + CREDITS
        link.rewound(3)
        assert link.told(m.Resume)[-1] == m.Resume(3, 1)
        assert link.done == 7 + CREDITS
        for done in range(7, 21):
            link.credit(done)
        assert link.position == 20
        assert session.kept is not None
        assert not session.kept.unsent


def test_large_puts_that_are_sent_again_wait_for_each_other() -> None:
    """As those that are sent for the first time do."""
    with opened() as (session, link):
        for _ in range(3):
            session.put(np.zeros(MAX_UNHEARD_PUT_BYTES // 2 + 1, np.uint8), ())
            link.credit(session.sent)
        link.rewound(2)
        assert len(link.puts) == 3
        assert link.done == 2
        link.credit(1)
        assert link.done == 3


def test_without_marks_nothing_is_kept_and_a_rewind_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as (session, link), caplog.at_level(logging.WARNING, "gt"):
        run(session, 1)
        link.tell(m.Unkept("no worker has a folder for marks"), m.Unkept("no worker has a folder for marks"))
        assert session.kept is None
        assert len(caplog.records) == 1
        future = fetch(session)
        link.tell(link.mark(1))
        assert link.told(m.Settled) == []
        link.rewound(2)
        assert link.told(m.Resume) == [m.Resume(2, -1)]
        with pytest.raises(WorkerLost):
            future.result()
        session.pace()
        link.tell(m.Credit(0))
        for number in range(2, 2 + CREDITS - 1):
            run(session, number)
        session.pace()


def test_what_waits_is_sent_even_if_nothing_is_kept_any_more() -> None:
    with opened() as (session, link):
        for number in range(1, 8):
            run(session, number)
        link.rewound(2)
        link.tell(m.Unkept("a disk is full"))
        run(session, 8)
        for done in range(9):
            link.credit(done)
        assert link.position == 8
        assert session.kept is None


def test_a_mark_is_asked_for_at_half_and_again_after_each() -> None:
    with opened(8 * MESSAGE_BYTES) as (session, link):
        for number in range(1, 5):
            run(session, number)
            link.credit(number)
            session.pace()
        assert len(link.told(m.RequestMark)) == 1
        link.tell(link.mark(1))
        for number in range(5, 9):
            run(session, number)
            link.credit(number)
            session.pace()
        assert len(link.told(m.RequestMark)) == 2


def test_a_mark_is_urgent_before_new_memory_is_touched() -> None:
    """Once half is kept: the mark frees memory that was used before. For the last of that a put waits, but not for long."""
    with opened(8 * LARGE) as (session, link):
        waited: list[bool] = []
        link.waits = lambda: waited.append(True)
        values: list[TensorValue] = []

        def put(warm: int) -> list[m.RequestMark]:
            link.warm = warm
            values.append(session.put(np.zeros(LARGE, np.uint8), ()))
            link.credit(len(values))
            session.pace()
            return link.told(m.RequestMark)

        assert [put(LARGE) for _ in range(3)][-1] == []
        assert put(2 * LARGE) == [m.RequestMark(False)]
        assert put(LARGE) == [m.RequestMark(False), m.RequestMark(True)]
        assert not waited, "there is some for this one"
        assert len(put(0)) == 2
        assert waited
        link.waits = lambda: link.inbox.append(link.mark(1))
        assert len(put(0)) == 2
        assert session.kept is not None
        assert LARGE < session.kept.nbytes < 2 * LARGE, "of this put alone"


def test_a_full_buffer_waits_for_a_mark_and_says_so() -> None:
    with opened(4 * MESSAGE_BYTES) as (session, link):
        waited: list[int] = []

        def waits() -> None:
            waited.append(len(link.told(m.RequestMark)))
            link.inbox.append(link.mark(len(waited)))

        link.waits = waits
        for number in range(1, 30):
            run(session, number)
            link.credit(number)
            session.pace()
            assert session.kept is not None
            assert session.kept.nbytes < 4 * MESSAGE_BYTES
        assert waited == list(range(2, 2 * len(waited) + 1, 2)), "each was asked for twice, at last urgently"
        assert len(waited) >= 5

        def gone() -> None:
            session.fail(SessionError("gone"))

        link.waits = gone
        session.sink([m.Free([number]) for number in range(8)])
        with pytest.raises(SessionError, match="gone"):
            session.pace()


def test_a_put_larger_than_the_buffer_is_let_through_alone() -> None:
    """Once nothing that came before it is kept; and what follows waits until it is not, either."""
    with opened(LARGE) as (session, link):
        run(session, 1)
        link.credit(1)
        waited: list[int] = []

        def waits() -> None:
            assert session.kept is not None
            waited.append(session.kept.nbytes)
            link.inbox.append(link.mark(len(waited)))

        link.waits = waits
        session.put(np.zeros(4 * LARGE, np.uint8), ())
        assert session.kept is not None
        assert len(waited) == 2
        assert waited[0] < LARGE
        assert waited[1] > 4 * LARGE
        assert session.kept.nbytes == 0


def test_the_end_of_a_session_sends_what_waits() -> None:
    with opened() as (session, link):
        for number in range(1, 8):
            run(session, number)
        link.rewound(2)
        done = iter(range(1, 99))
        link.waits = lambda: link.inbox.append(m.Credit(next(done)))
        link.credited = 99
        session.close()
        assert link.position == 7
        assert isinstance(link.aside[-1], m.Goodbye)


def test_the_end_of_a_session_does_not_wait_for_ever(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gt.client.session.session.LAST_MESSAGES_SECONDS", 0.0)
    with opened() as (session, link):
        for number in range(1, 8):
            run(session, number)
        link.rewound(2)
        with caplog.at_level(logging.WARNING, "gt"):
            session.close()
        assert "messages to be sent again" in caplog.text
        assert isinstance(link.aside[-1], m.Goodbye)


def test_a_thread_that_waits_is_known() -> None:
    """What it has gathered is not idle."""
    with opened() as (session, link):
        seen: list[set[int]] = []

        def waits() -> None:
            seen.append(set(session.waits))
            if len(seen) == 2:
                link.inbox.append(m.Credit(CREDITS))

        link.waits = waits
        for number in range(CREDITS):
            run(session, number)
        session.pace()
        assert seen == [set(), {threading.get_ident()}], "a short wait is none"
        assert session.waits == set()


def test_the_environment_says_how_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GT_RECOVERY", "GT_RESEND_BYTES"):
        monkeypatch.delenv(name, raising=False)
    assert resend_limit() == min(1 << 30, memory_limit() // 8)
    monkeypatch.setenv("GT_RESEND_BYTES", "1e6")
    assert resend_limit() == 1_000_000
    monkeypatch.setenv("GT_RECOVERY", "0")
    assert resend_limit() == 0
    monkeypatch.setenv("GT_RECOVERY", "perhaps")
    with pytest.raises(SessionError, match="GT_RECOVERY=perhaps"):
        resend_limit()


def test_nothing_is_idle_while_messages_wait() -> None:
    with opened() as (session, link):
        assert not session.held_up()
        for number in range(1, 6):
            run(session, number)
        assert session.held_up(), "for credits"
        link.credit(5)
        assert not session.held_up()
        link.rewound(2)
        assert session.held_up()
        for done in range(6):
            link.credit(done)
        assert not session.held_up()


@pytest.mark.parametrize("answered", [True, False])
def test_it_is_said_when_the_session_goes_on(answered: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Once, when the first request is answered, or all runs of before are done again."""
    with opened() as (session, link), caplog.at_level(logging.INFO, "gt"):
        for number in range(1, 3):
            run(session, number)
        future = fetch(session)
        link.rewound(2)
        link.rewound(3)
        link.credit(1)
        assert not [record for record in caplog.records if record.levelno == logging.INFO]
        if answered:
            link.tell(value(next(iter(session.requests)), 1.0))
            assert future._ready()
        link.credit(2)
        link.credit(2)
        (record,) = [record for record in caplog.records if record.levelno == logging.INFO]
        assert re.fullmatch(r"the session goes on after \d+\.\d s", record.getMessage())
        session.requests.clear()
