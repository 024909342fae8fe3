"""Fetches of a client that does not read what it is sent: the dispatcher holds little for it, and loses nothing."""

from __future__ import annotations

from one_dispatcher import Service, started

from gt.bounds import MAX_INLINE_BYTES, MAX_UNREAD_BYTES
from gt.dispatcher.state.events import Received
from gt.dispatcher.state.message_state import MessageState
from gt.ir.dtypes import float32
from gt.ir.spec import pack_spec, spec
from gt.wire import messages as m

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
