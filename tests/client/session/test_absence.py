"""Sessions whose dispatcher is gone: they look for the next one, send nothing until it knows them, and then go on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_link import CREDITS, LARGE, ScriptedLink, fetch, opened, run, value

from gt.client.session import sessions
from gt.client.session.absence import KEY_BYTES, overdue
from gt.client.session.resend_buffer import CONFIGURE, MESSAGE_BYTES, QUESTION
from gt.client.session.session import Session
from gt.client.session.socket_link import resend_limit
from gt.errors import SessionError
from gt.wire import messages as m
from gt.wire.bulk import ALL_WORKERS

PATIENCE = 50.0
GONE = "its process ended"
WARNED = (
    f"the service at scripted is gone ({GONE}); the session waits up to {PATIENCE:g} s for it to be started again, and goes "
    "on then"
)


def gone(session: Session, link: ScriptedLink, reason: str = GONE) -> bool:
    """The dispatcher is gone, as whoever looks at its process finds."""
    link.reason = reason
    return session.gone(reason)


def comes(link: ScriptedLink, number: int = 7) -> None:
    """Another dispatcher welcomes the session."""
    link.tell(m.Welcome(number, {"credits": CREDITS, "bulk_address": "there"}))


def rewound(link: ScriptedLink, number: int = 7) -> None:
    link.tell(m.Rewind(number, "the dispatcher has ended, and was started again", ALL_WORKERS))


def patience_ends(session: Session) -> None:
    """So much time passes that nobody can be waited for any more."""
    assert session.absence is not None
    session.absence = session.absence._replace(since=session.absence.since - PATIENCE - 1)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_the_next_dispatcher_is_told_whose_session_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """By its key and the number of its last mark; the program is warned once, however often it is looked for."""
    with opened(returns=PATIENCE) as (session, link), caplog.at_level(logging.WARNING, "gt"):
        first = link.told(m.Hello)[0]
        run(session, 1)
        link.tell(link.mark(3))
        assert gone(session, link)
        assert gone(session, link, "no sign of life for 30 s")
        assert warnings(caplog) == [WARNED]
        one, two = link.hellos
        assert one == two == m.Hello(m.VERSION, "client", {**first.facts, "mark": 3, "sent": session.kept.position})
        assert len(one.facts["session_key"]) == KEY_BYTES
        assert session.failure is None


def test_each_session_has_a_key_of_its_own() -> None:
    keys = set()
    for _ in range(3):
        with opened() as (_, link):
            keys.add(link.told(m.Hello)[0].facts["session_key"])
    assert len(keys) == 3


def test_a_session_without_a_mark_says_so() -> None:
    with opened(returns=PATIENCE) as (session, link):
        run(session, 1)
        assert gone(session, link)
        assert link.hellos[0].facts["mark"] == 0


def test_what_is_sent_meanwhile_is_sent_once_and_in_order_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    """Behind what came after the mark; and requests are answered once."""
    with opened(returns=PATIENCE) as (session, link), caplog.at_level(logging.INFO, "gt"):
        run(session, 1)
        link.tell(link.mark(1))
        link.credit(1)
        run(session, 2)
        early = fetch(session)
        before = len(link.arrived), len(link.aside)
        assert gone(session, link)
        run(session, 3)
        late = fetch(session)
        session.send_heartbeat()
        kept = session.put(np.zeros(3, np.uint8), ())
        assert (len(link.arrived), len(link.aside)) == before, "nothing is sent"
        comes(link)
        assert (len(link.arrived), len(link.aside)) == before, "nor after the welcome"
        assert [facts["number"] for facts in link.found] == [7]
        assert link.found[0]["bulk_address"] == "there"
        rewound(link)
        assert link.told(m.Resume) == [m.Resume(7, 1)]
        assert link.numbers == [(7, ALL_WORKERS)]
        assert session.facts["number"] == 7
        kinds = [type(message) for message in link.arrived]
        assert kinds == [m.Run, m.Fetch, m.Run, m.Fetch, m.Put]
        assert link.position == len(link.stream)
        asked = [message.request for message in link.arrived if isinstance(message, m.Fetch)]
        for number, request in enumerate(asked):
            link.tell(value(request, number))
            link.tell(value(request, 9.0))
        assert (float(early.result()), float(late.result())) == (0.0, 1.0)
        link.credit(4)
        run(session, 4)
        assert link.position == len(link.stream)
        assert kept is not None
        said = [record.getMessage() for record in caplog.records]
        assert [text.split(" ")[2:5] for text in said] == [
            ["at", "scripted", "is"], ["goes", "back", "to"], ["goes", "on", "after"],
        ]  # fmt: skip


def test_the_pause_is_counted_from_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    with opened(returns=PATIENCE) as (session, link), caplog.at_level(logging.INFO, "gt"):
        run(session, 1)
        assert gone(session, link)
        assert session.absence is not None
        session.absence = session.absence._replace(since=session.absence.since - 20)
        comes(link)
        rewound(link)
        link.credit(1)
        (text,) = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
        assert text.startswith("the session goes on after 20.")
        assert session.absence is None


def test_what_was_heard_before_is_of_no_use(caplog: pytest.LogCaptureFixture) -> None:
    """Credits count from the mark again."""
    with opened(returns=PATIENCE) as (session, link):
        for number in range(1, 4):
            run(session, number)
            link.credit(number)
        link.tell(link.mark(1))
        for number in range(4, 7):
            run(session, number)
            link.credit(number)
        assert gone(session, link)
        comes(link)
        rewound(link)
        assert session.credited == 3
        assert link.done == 6


def test_a_second_dispatcher_may_end_as_well() -> None:
    """Before it knows the session, or afterwards."""
    with opened(returns=PATIENCE) as (session, link):
        run(session, 1)
        for turn, told in enumerate(((), (comes,), (comes, rewound))):
            assert gone(session, link)
            for each in told:
                each(link, 10 + turn)
        assert [hello.facts["mark"] for hello in link.hellos] == [0, 0, 0]
        assert link.position == 1
        run(session, 2)
        link.tell(link.mark(5))
        assert gone(session, link)
        assert link.hellos[-1].facts["mark"] == 5
        run(session, 3)
        comes(link, 20)
        rewound(link, 20)
        assert link.position == 3
        assert [number for number, _ in link.numbers] == [12, 20]


def test_messages_that_waited_for_credits_wait_on() -> None:
    """The dispatcher ends while the session is on its way back from the loss of a worker."""
    with opened(returns=PATIENCE) as (session, link):
        for number in range(1, 8):
            run(session, number)
            link.credit(number)
        link.rewound(2)
        assert link.done == CREDITS
        assert gone(session, link)
        run(session, 8)
        link.tell(m.Credit(3))
        comes(link)
        rewound(link)
        assert link.done == CREDITS
        for done in range(9):
            link.credit(done)
        assert link.position == len(link.stream) == 8


def test_a_mark_that_waits_for_answers_is_not_taken_for_the_one_that_was_said() -> None:
    """The next dispatcher drops all others."""
    with opened(returns=PATIENCE) as (session, link):
        run(session, 1)
        fetch(session)
        link.tell(link.mark(1))
        assert gone(session, link)
        (number,) = session.requests
        del session.requests[number]
        session.pump()
        assert session.kept is not None
        assert session.kept.mark == link.hellos[-1].facts["mark"] == 0
        comes(link)
        rewound(link)
        assert link.told(m.Resume) == [m.Resume(7, 0)]


def test_whoever_waits_is_answered_when_the_dispatcher_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """The thread that waits looks for it, and the wait is one."""
    with opened(returns=PATIENCE) as (session, link), caplog.at_level(logging.WARNING, "gt"):
        future = fetch(session)
        steps: list[Callable[[], object]] = [
            lambda: setattr(link, "reason", GONE),
            lambda: None,
            lambda: link.inbox.append(m.Welcome(7, {"credits": CREDITS})),
            lambda: link.inbox.append(m.Rewind(7, "it has ended", ALL_WORKERS)),
            lambda: link.inbox.append(value(1, 4.0)),
        ]
        link.waits = lambda: steps.pop(0)()
        assert float(future.result()) == 4.0
        assert steps == []
        assert len(link.hellos) == 1
        assert warnings(caplog)[0] == WARNED


def test_nobody_waits_for_longer_than_the_service_says(caplog: pytest.LogCaptureFixture) -> None:
    """Then there is one clear error, for whoever waits and for what comes after."""
    with opened(returns=PATIENCE) as (session, link), caplog.at_level(logging.WARNING, "gt"):
        future, other = fetch(session), fetch(session)
        assert gone(session, link)
        assert not overdue(session)
        patience_ends(session)
        assert overdue(session) == f"it ended, and was not started again within {PATIENCE:g} s"
        link.waits = lambda: None
        for each in (future, other):
            with pytest.raises(
                SessionError, match=r"is gone \(it ended, and was not started again within 50 s\)"
            ) as caught:
                each.result()
            assert "the tensors of the session are lost" in str(caught.value)
            assert "gt.disconnect()" not in str(caught.value), "it did not start the service"
        with pytest.raises(SessionError, match="was not started again"):
            session.usable()
        assert warnings(caplog) == [WARNED]
        assert not gone(session, link)
        assert len(link.hellos) == 1


def test_whose_own_service_is_gone_is_told_how_to_have_another() -> None:
    with opened() as (session, link):
        session._close = lambda: None
        future = fetch(session)
        link.reason, link.waits = GONE, lambda: None
        with pytest.raises(SessionError, match=r"after gt.disconnect\(\) the next operation starts another service"):
            future.result()


LAPSED: dict[str, Callable[[Session, ScriptedLink], object]] = {
    "no dispatcher comes": lambda session, link: setattr(link, "comes", False),
    "no marks": lambda session, link: link.tell(m.Unkept("no worker has a folder")),
    "no returns": lambda session, link: session.facts.pop("returns"),
    "returns is no number": lambda session, link: session.facts.update(returns="soon"),
    "it has ended": lambda session, link: session.fail(SessionError("over")),
}


@pytest.mark.parametrize("name", LAPSED)
def test_without_a_way_back_the_error_comes_at_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """And nothing is said of waiting."""
    with opened(returns=PATIENCE) as (session, link), caplog.at_level(logging.WARNING, "gt"):
        run(session, 1)
        future = fetch(session)
        LAPSED[name](session, link)
        caplog.clear()
        link.reason, link.waits = GONE, lambda: None
        assert not session.gone(GONE)
        with pytest.raises(SessionError, match="over" if name == "it has ended" else "the service at scripted is gone"):
            future.result()
        assert link.hellos == []
        assert warnings(caplog) == []


def test_a_session_that_lapses_while_it_goes_back_cannot_do_so_again() -> None:
    """What is kept is what waits to be sent, and not all of it."""
    with opened(returns=PATIENCE) as (session, link):
        for number in range(1, 8):
            run(session, number)
        link.rewound(2)
        link.tell(m.Unkept("a disk is full"))
        assert session.kept is not None
        assert not gone(session, link)


def test_without_recovery_nothing_is_kept_and_the_error_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_RECOVERY", "0")
    with opened(resend_limit(), returns=PATIENCE) as (session, link):
        assert session.kept is None
        assert link.told(m.Hello)[0].facts == {}
        future = fetch(session)
        link.reason, link.waits = GONE, lambda: None
        with pytest.raises(SessionError, match="is gone"):
            future.result()
        assert link.hellos == []


def test_a_refusal_of_the_next_dispatcher_ends_the_session() -> None:
    """For instance because it has no copy of it any more."""
    with opened(returns=PATIENCE) as (session, link):
        future = fetch(session)
        assert gone(session, link)
        link.tell(m.Goodbye("SessionError", "the service has no copy of this session any more"))
        with pytest.raises(SessionError, match="the service ended the session: the service has no copy"):
            future.result()
        assert not gone(session, link)


def test_the_session_is_held_up_meanwhile() -> None:
    """So that what a program has gathered is not cut by time."""
    with opened(returns=PATIENCE) as (session, link):
        run(session, 1)
        link.credit(1)
        assert not session.held_up()
        assert gone(session, link)
        assert session.held_up()
        comes(link)
        assert session.held_up()
        rewound(link)
        link.credit(1)
        assert not session.held_up()


def test_a_buffer_that_is_full_meanwhile_waits() -> None:
    """A mark is asked for anew when there is somebody to ask."""
    with opened(4 * MESSAGE_BYTES, returns=PATIENCE) as (session, link):
        assert gone(session, link)
        steps: list[Callable[[], object]] = [
            lambda: None,
            lambda: link.inbox.append(m.Welcome(7, {"credits": CREDITS})),
            lambda: link.inbox.append(m.Rewind(7, "it has ended", ALL_WORKERS)),
            lambda: link.inbox.append(link.mark(1)),
        ]
        link.waits = lambda: steps.pop(0)()
        session.sink([m.Free([number]) for number in range(5)])
        session.pace()
        assert steps == []
        assert link.told(m.RequestMark) == [m.RequestMark(True)]
        assert link.position == 5


def test_large_puts_are_made_meanwhile_and_sent_afterwards() -> None:
    with opened(returns=PATIENCE) as (session, link):
        assert gone(session, link)
        kept = session.put(np.ones(LARGE, np.uint8), ())
        assert kept is not None
        assert link.arrived == []
        comes(link)
        rewound(link)
        assert [type(message) for message in link.arrived] == [m.Put]
        assert [put.nbytes for put in link.puts.values()] == [LARGE]


def test_a_program_may_end_meanwhile() -> None:
    """Nobody is there to say goodbye to."""
    with opened(returns=PATIENCE) as (session, link):
        run(session, 1)
        assert gone(session, link)
        session.close()
        assert not link.told(m.Goodbye)
        with pytest.raises(SessionError, match=r"gt.disconnect\(\) was called"):
            session.usable()


STEPS = {
    "run": 6, "free": 1, "put": 1, "large put": 1, "fetch": 3, "ask": 1, "configure": 1, "answer": 4, "credit": 4, "mark": 2,
    "rewind": 1, "gone": 2, "welcome": 3, "return": 3,
}  # fmt: skip


class AbsentStory:
    """A session and services that end, in an order that is drawn."""

    def __init__(self, session: Session, link: ScriptedLink, draw: Callable[[int], int]) -> None:
        self.session = session
        self.link = link
        self.draw = draw
        self.ended: Counter[int] = Counter()
        """How often each request has ended."""
        self.answered: set[int] = set()
        self.marks = 0
        self.numbers = 1
        self.welcomed = False
        self.values: list[Any] = []
        self.before = len(link.arrived), len(link.aside)

    def asked(self, future: Any) -> None:
        number = next(reversed(self.session.requests))
        future.add_done_callback(lambda _: self.ended.update([number]))

    def unanswered(self) -> list[Any]:
        kinds = (m.Fetch, m.Ask, m.Configure)
        return [each for each in self.link.arrived if isinstance(each, kinds) and each.request not in self.answered]

    def step(self, name: str) -> None:
        session, link = self.session, self.link
        if name == "run":
            run(session, session.sent + 1)
        elif name == "free":
            session.sink([m.Free([3])])
        elif name in ("put", "large put"):
            if session.sent - session.credited < CREDITS - 1:
                self.values.append(session.put(np.zeros(3 if name == "put" else LARGE, np.uint8), ()))
        elif name == "fetch":
            self.asked(fetch(session))
        elif name == "ask":
            self.asked(session._request(lambda number: m.Ask(number, "workers"), "an answer", QUESTION))
        elif name == "configure":
            self.asked(session._request(lambda number: m.Configure(number, {}), "a config", CONFIGURE))
        elif name == "gone":
            self.welcomed = False
            assert gone(session, link)
            assert session.kept is not None
            assert link.hellos[-1].facts["mark"] == session.kept.mark
        elif link.absent:
            self.absent_step(name)
        else:
            self.present_step(name)
        if link.absent:
            assert self.before == (len(link.arrived), len(link.aside)), "nothing is sent"
        self.before = len(link.arrived), len(link.aside)

    def absent_step(self, name: str) -> None:
        if name == "welcome" and not self.welcomed:
            self.numbers += 1
            self.welcomed = True
            comes(self.link, self.numbers)
        elif name == "return" and self.welcomed:
            self.answered = set()
            rewound(self.link, self.numbers)
            assert not self.link.absent

    def present_step(self, name: str) -> None:
        link = self.link
        if name == "answer" and (waiting := self.unanswered()):
            self.answer(waiting[self.draw(len(waiting))])
        elif name == "credit":
            link.credit(link.credited + self.draw(link.done - link.credited + 1))
        elif name == "mark":
            self.marks += 1
            link.tell(link.mark(self.marks))
        elif name == "rewind":
            self.answered = set()
            self.numbers += 1
            link.rewound(self.numbers)

    def answer(self, message: Any) -> None:
        self.answered.add(message.request)
        self.link.tell(value(message.request, 7.0) if isinstance(message, m.Fetch) else m.Answer(message.request, {}))

    def finish(self) -> None:
        """A dispatcher is there, and does everything that it was asked for."""
        if self.link.absent:
            self.step("welcome")
            self.step("return")
        while self.session.credited < self.session.sent or self.unanswered():
            self.link.credit(self.link.done)
            for each in self.unanswered():
                self.answer(each)
        assert self.link.position == len(self.link.stream)
        assert self.session.requests == {}
        assert set(self.ended.values()) <= {1}


@given(
    st.lists(st.sampled_from([name for name, times in STEPS.items() for _ in range(times)]), max_size=60), st.randoms()
)
@settings(max_examples=cases(300), deadline=None)
def test_the_stream_is_whole_whenever_dispatchers_end(names: list[str], random: Any) -> None:
    """Whatever is sent, answered, credited and marked in between: it arrives once and in order, and answers come once."""
    with opened(returns=PATIENCE) as (session, link):
        story = AbsentStory(session, link, lambda count: random.randrange(count) if count else 0)
        for name in names:
            story.step(name)
        story.finish()
        assert sessions.current() is session
