"""A session at a link whose other end does what a test says: for tests of what is sent, and sent again."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gt.client.segment.value import TensorValue
from gt.client.session import sessions
from gt.client.session.bulk_puts import BulkPut
from gt.client.session.future import Future
from gt.client.session.resend_buffer import NO_EFFECT
from gt.client.session.session import Session
from gt.errors import SessionError
from gt.ir.dtypes import as_dtype
from gt.ir.spec import pack_spec, spec
from gt.service.in_process import NoBulk
from gt.wire import messages as m
from gt.wire.messages import codec
from gt.wire.reliable_stream import Frames

CREDITS = 4
COUNTED = (m.Run, m.Put, m.Restore)
ASIDE = (m.Hello, m.Ping, m.Goodbye, m.Resume, m.Settled, m.RequestMark)
ASKED = (m.Fetch, m.Ask, m.WriteSnapshot, m.ConfirmTensors)
SCALAR = spec(as_dtype(np.dtype(np.float32)), ())
LARGE = 1 << 17


class ScriptedLink(NoBulk):
    """A link whose other end does what a test says. It holds that what arrives is the stream that the program made, from the
    last mark on, with answered requests replaced, and no more runs and puts of what is sent again than there are credits."""

    def __init__(self, resend_bytes: int) -> None:
        super().__init__()
        self.resend_bytes = resend_bytes
        self.warm = sys.maxsize
        """The bytes of shared memory that were used before, and are free."""
        self.session: Session | None = None
        self.stream: list[Frames] = []
        """All that the program sent, as it was the first time."""
        self.rewinds: list[int] = []
        """How often the session had gone back when each was sent."""
        self.first = 0
        """The position before the first message of `arrived`."""
        self.arrived: list[m.Message] = []
        self.aside: list[m.Message] = []
        """What does not count."""
        self.inbox: deque[m.Message] = deque()
        self.marks: dict[int, tuple[int, int]] = {0: (0, 0)}
        self.credited = 0
        self.waits: Callable[[], object] = self.refuse
        """What happens when the session waits."""
        self.puts: dict[int, BulkPut] = {}
        self.numbers: list[tuple[int, int]] = []
        self.reason: str | None = None
        """Why the service cannot answer any more."""
        self.comes = True
        """Whether another dispatcher will be there."""
        self.absent = False
        self.hellos: list[m.Hello] = []
        """What was said to other dispatchers."""
        self.found: list[dict[str, Any]] = []
        self.values: list[TensorValue] = []

    def refuse(self) -> None:
        raise AssertionError("nothing is waited for here")

    def encode(self, message: m.Message) -> Frames:
        frames = codec.encode(message)
        self.stream.append(frames)
        self.rewinds.append(len(self.numbers))
        return frames

    def send(self, message: m.Message) -> Frames:
        if self.absent:
            return codec.encode(message) if isinstance(message, ASIDE) else self.encode(message)
        if isinstance(message, ASIDE):
            self.aside.append(message)
            if isinstance(message, m.Resume) and message.mark >= 0:
                self.first, done = self.marks[message.mark]
                self.arrived, self.credited = [], done
            return codec.encode(message)
        frames = self.encode(message)
        assert self.position == len(self.stream) - 1, "nothing is sent before what waits"
        self.arrived.append(message)
        return frames

    def send_frames(self, frames: Frames) -> None:
        if self.absent:
            return
        first = self.again(self.position)
        message = codec.decode(list(first))
        assert self.session is not None
        answered = isinstance(message, ASKED) and message.request not in self.session.requests
        assert frames == (NO_EFFECT if answered else first)
        self.arrived.append(codec.decode(list(frames)))
        assert self.done - self.credited <= CREDITS

    def again(self, at: int) -> Frames:
        """A message as it is sent now: a snapshot has had other files after each time that the session went back."""
        frames = self.stream[at]
        message = codec.decode(list(frames))
        if not isinstance(message, m.WriteSnapshot):
            return frames
        parts = int(message.parts, 16) + len(self.numbers) - self.rewinds[at]
        return codec.encode(message._replace(parts=f"{parts % (1 << 64):016x}"))

    @property
    def position(self) -> int:
        """That of the last message which arrived."""
        return self.first + len(self.arrived)

    @property
    def done(self) -> int:
        """How many runs and puts have arrived."""
        return sum(type(codec.decode(list(frames))) in COUNTED for frames in self.stream[: self.position])

    def receive(self) -> list[m.Message]:
        found = list(self.inbox)
        self.inbox.clear()
        return found

    def wait(self, timeout: float) -> None:
        self.waits()

    def alive(self) -> str | None:
        return self.reason

    def close(self) -> None:
        """Nothing is open."""

    def prepare(self, array: np.ndarray[Any, Any], kind: Any) -> Any:
        return BulkPut(kind, array.copy())

    def has_memory(self, nbytes: int, count: int) -> bool:
        return nbytes * count <= self.warm

    def put_bulk(self, tensor: int, put: Any, *, later: bool = False) -> BulkPut:
        kept: BulkPut = put
        return kept

    def look_again(self, hello: m.Message) -> bool:
        if not self.comes:
            return False
        assert isinstance(hello, m.Hello)
        self.absent, self.reason = True, None
        self.hellos.append(codec.decode(codec.encode(hello)))  # type: ignore[arg-type]
        self.inbox.clear()
        return True

    def found_again(self, facts: dict[str, Any]) -> None:
        self.found.append(dict(facts))

    def rewind(self, client: int, lost: int, puts: Any) -> None:
        self.absent = False
        self.numbers.append((client, lost))
        self.puts = dict(puts)

    # what the service does

    def tell(self, *messages: m.Message) -> None:
        """The session hears messages."""
        assert self.session is not None
        self.inbox.extend(messages)
        self.session.pump()

    def credit(self, done: int) -> None:
        self.credited = done
        self.tell(m.Credit(done))

    def mark(self, number: int) -> m.Durable:
        """A mark of what has arrived."""
        self.marks[number] = self.position, self.done
        return m.Durable(number, *self.marks[number])

    def rewound(self, number: int) -> None:
        self.tell(m.Rewind(number, "worker 1 was killed", 1))

    def told(self, kind: type[m.Message]) -> list[Any]:
        return [each for each in self.aside if type(each) is kind]


@contextmanager
def opened(resend_bytes: int = 1 << 30, **facts: Any) -> Iterator[tuple[Session, ScriptedLink]]:
    """A session at a scripted link, which is the default one meanwhile. Its dispatcher says these facts."""
    link = ScriptedLink(resend_bytes)
    link.inbox.append(m.Welcome(1, {"credits": CREDITS, **facts}))
    session = link.session = Session(link, "scripted", idle_flush=False)
    session.open({}, 1.0)
    before = sessions.swap(session)
    try:
        yield session, link
    finally:
        sessions.swap(before)
        session.failure = session.failure or SessionError("over")


def run(session: Session, number: int) -> None:
    session.sink([m.Run(1, number, [number - 1], [0.5], [], [])])


def fetch(session: Session) -> Future:
    """The value of a tensor, which does not die, so nothing is flushed because of it."""
    known = sessions.builder().allocate(SCALAR)
    assert isinstance(session.link, ScriptedLink)
    session.link.values.append(known)
    return session.fetch(known)


def value(request: int, number: float) -> m.Value:
    data = np.float32(number).tobytes()
    return m.Value(request, pack_spec(SCALAR), 1, [], 0, b"", False, data)
