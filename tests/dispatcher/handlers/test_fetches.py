"""Fetches of a client that does not read what it is sent: the dispatcher holds little for it, and loses nothing."""

from __future__ import annotations

import pytest
from one_dispatcher import Service, started

from gt.bounds import MAX_INLINE_BYTES, MAX_PRINCIPAL_UNREAD_BYTES, MAX_UNREAD_BYTES
from gt.dispatcher.handlers.fetches import ANSWER_OVERHEAD_BYTES, MAX_UNDER_WAY, MAX_UNDER_WAY_BYTES
from gt.dispatcher.state.events import Lost, Received
from gt.dispatcher.state.message_state import MessageState
from gt.ir.dtypes import float32
from gt.ir.spec import pack_spec, spec
from gt.wire import messages as m
from gt.wire.principals import USER, Origin, Principal

FETCHES = 3 * MAX_UNREAD_BYTES // MAX_INLINE_BYTES


class Reader:
    """A client that fetches a tensor many times, and the worker that answers; `held` is what it was sent and has not read."""

    def __init__(self) -> None:
        self.service: Service = started(1)
        large = spec(float32, (MAX_INLINE_BYTES // 4,))
        self.service.say("c", m.Put(2, pack_spec(large), [], False, bytes(large.nbytes)))
        self.service.done()
        self.service.told.clear()
        self.held = self.most = self.answered = 0
        for request in range(1, FETCHES + 1):
            self.say(m.Fetch(request, 2))
            self.answer()

    def say(self, message: m.Message) -> None:
        self.service.event(Received(b"c", message, self.held))

    def answer(self) -> None:
        """The worker answers all that it was asked."""
        for collect in self.service.hears("w0", m.Collect):
            self.service.say("w0", m.Part(collect.request, [], False, bytes(MAX_INLINE_BYTES)))
        for value in self.service.hears("c", m.Value):
            self.held += len(value.data)
            self.answered += 1
        self.most = max(self.most, self.held)

    @property
    def head(self) -> MessageState:
        return self.service.core.service.clients[b"c"].head


def test_who_reads_nothing_is_sent_a_bounded_amount() -> None:
    reader = Reader()
    assert reader.head is MessageState.WAITING_READER
    assert reader.most <= MAX_UNREAD_BYTES + 2 * MAX_INLINE_BYTES
    assert 0 < reader.answered < FETCHES // 2


def test_who_reads_later_gets_everything() -> None:
    reader = Reader()
    while reader.answered < FETCHES:
        before = reader.answered
        reader.held = 0
        reader.say(m.Ping())
        reader.answer()
        assert reader.answered > before, "whoever reads goes on"
    assert reader.most <= MAX_UNREAD_BYTES + 2 * MAX_INLINE_BYTES
    assert reader.head is MessageState.DONE
    assert reader.service.core.service.clients[b"c"].asked_bytes == 0


def test_another_message_says_as_well_that_the_client_has_read() -> None:
    reader = Reader()
    before, reader.held = reader.answered, 0
    reader.say(m.Free([]))
    reader.answer()
    assert reader.answered > before


@pytest.mark.parametrize("sessions", [16, 400])
def test_all_sessions_of_a_principal_that_reads_nothing_are_sent_a_bounded_amount(sessions: int) -> None:
    """Each has its part, and a session of somebody else as much as if it were alone."""
    each = Service(1)
    origins = [Origin(Principal("many", frozenset({USER}))), Origin(Principal("one", frozenset({USER})))]
    for n in range(sessions):
        each.origins[f"m{n}"] = origins[0]
        each.core.handshake.of_principal.spent.clear()
        each.core.handshake.of_program.spent.clear()
        each.client(f"m{n}")
    each.origins["o"] = origins[1]
    each.client("o")
    most = min(MAX_UNREAD_BYTES, max(MAX_PRINCIPAL_UNREAD_BYTES // sessions, 512 << 10))
    for peer, may in (("m0", most), ("o", MAX_UNREAD_BYTES)):
        each.event(Received(peer.encode(), m.Ask(1, "statistics"), may))
        assert len(each.hears(peer, m.Answer)) == 1
        each.event(Received(peer.encode(), m.Ask(2, "statistics"), may + 1))
        assert not each.hears(peer, m.Answer)
        each.event(Received(peer.encode(), m.Ping(), 0))
        assert len(each.hears(peer, m.Answer)) == 1


def test_a_question_why_is_answered_at_once_only_while_its_client_reads() -> None:
    each = started()
    why = m.Ask(1, "why 1 1")
    each.event(Received(b"c", why, MAX_UNREAD_BYTES))
    assert [answer.request for answer in each.hears("c", m.Answer)] == [1]
    each.event(Received(b"c", why, MAX_UNREAD_BYTES + 1))
    assert not each.hears("c", m.Answer)
    each.event(Received(b"c", m.Ping(), 0))
    assert [answer.request for answer in each.hears("c", m.Answer)] == [1]
    assert each.core.service.clients[b"c"].head is MessageState.DONE


def test_workers_are_asked_for_a_bounded_number_of_values_for_one_principal() -> None:
    """Each of its sessions has one in any case, and nobody else waits for them; all are answered in the end."""
    each = Service(1)
    asked: dict[str, list[int]] = {}
    for peer, user in (("a", "x"), ("b", "x"), ("c", "y")):
        each.origins[peer] = Origin(Principal(f"user {user}", frozenset({USER})))
        number = each.client(peer)
        each.put(1, peer)
        each.done()
        each.say("w0", m.Landed(number, 1))
        each.hears("w0")
        each.say(peer, *(m.Fetch(request, 1) for request in range(1, 2 * MAX_UNDER_WAY + 1)))
        asked[peer] = [collect.request for collect in each.hears("w0", m.Collect)]
    assert [len(numbers) for numbers in asked.values()] == [MAX_UNDER_WAY, 1, MAX_UNDER_WAY]
    for peer, numbers in asked.items():
        while numbers:
            each.say("w0", m.Part(numbers.pop(0), [], False, bytes(16)))
            numbers += [collect.request for collect in each.hears("w0", m.Collect)]
        values = [value.request for value in each.hears(peer, m.Value)]
        assert values == list(range(1, 2 * MAX_UNDER_WAY + 1))
    assert not each.core.fetches.under_way


def test_who_waits_for_answers_of_a_worker_that_is_lost_goes_on() -> None:
    each = started()
    each.say("c", *(m.Fetch(request, 1) for request in range(1, MAX_UNDER_WAY + 3)))
    assert each.core.service.clients[b"c"].head is MessageState.WAITING_ANSWERS
    each.event(Lost(b"w0", "its process ended"))
    assert each.core.service.clients[b"c"].head is MessageState.FAILED
    assert len(each.hears("c", m.Failed)) == MAX_UNDER_WAY + 2
    assert not each.core.fetches.under_way


def test_workers_are_asked_for_a_bounded_number_of_bytes_for_one_principal() -> None:
    each = started()
    large = spec(float32, (MAX_INLINE_BYTES // 4,))
    each.say("c", m.Put(2, pack_spec(large), [], False, bytes(large.nbytes)))
    each.say("w0", m.Landed(1, 2))
    each.hears("w0")
    each.say("c", *(m.Fetch(request, 2) for request in range(1, MAX_UNDER_WAY)))
    asked = len(each.hears("w0", m.Collect))
    assert asked == MAX_UNDER_WAY_BYTES // (MAX_INLINE_BYTES + ANSWER_OVERHEAD_BYTES)
