"""The example session of `docs/protocol.md`: what a client says to a service with one worker, and what it hears, byte for byte.

`python tests/protocol_example.py` prints it.
"""

from __future__ import annotations

import textwrap
from typing import Any

import msgpack
import numpy as np

from gt.ir import dtypes
from gt.ir.instruction import INPUT, OUTPUT, SCALAR, Instruction, Segment, Tag, ref
from gt.ir.instruction_bytes import pack_segment, unpack_segment
from gt.ir.spec import spec
from gt.service.in_process import Fabric
from gt.wire import messages as m
from gt.wire.messages import codec
from gt.wire.reliable_stream import ACCEPTED, HEADER_BYTES, OPEN_AGAIN, OPEN_NEW, ReliableStream, parse

CLIENT = b"client"
X = np.array([1, 2, 3], np.float32)
VECTOR = spec(dtypes.float32, (3,))
SEGMENT = Segment(
    inputs=(VECTOR,),
    kinds="f",
    tags=(Tag(("net",), "forward", "a.py:1"),),
    instructions=(
        Instruction("neg", range(1), (ref(INPUT, 0),), {}, 0),
        Instruction("add", range(1, 2), (ref(OUTPUT, 0), ref(SCALAR, 0)), {}, 0),
    ),
    values=(VECTOR, VECTOR),
    survivors=(1,),
)
TO_DISPATCHER, TO_CLIENT = "→", "←"
HEX_DIGITS = 96
"""The hexadecimal digits of a line."""


class ExampleSession:
    """A client's end of a session, and a dispatcher with one worker at the other."""

    def __init__(self) -> None:
        self.fabric = Fabric(1, None, codec=True)
        self.client, self.dispatcher = ReliableStream(), ReliableStream()
        self.lines: list[str] = []
        self.values: list[Any] = []
        """The values that were fetched."""

    def opens(self, word: int, said: str) -> None:
        """The client opens a connection, and the dispatcher accepts it."""
        for way, mine, other, number, name in (
            (TO_DISPATCHER, self.client, self.dispatcher, word, said),
            (TO_CLIENT, self.dispatcher, self.client, ACCEPTED, "ACCEPTED"),
        ):
            frame = mine.heartbeat(number)
            other.acknowledge(parse(frame)[1])
            self._show(way, name, [frame])

    def says(self, message: m.Message) -> None:
        """The client sends a message, and hears what the service answers."""
        self._hear(self._pass(TO_DISPATCHER, self.client, self.dispatcher, message))

    def _hear(self, message: m.Message) -> None:
        """The service hears a message, and the client its answers."""
        self.fabric.say(CLIENT, message)
        self.fabric.run()
        inbox = self.fabric.inboxes.get(CLIENT, [])
        while inbox:
            answer = self._pass(TO_CLIENT, self.dispatcher, self.client, inbox.popleft())
            if isinstance(answer, m.Value):
                self.values.append(np.frombuffer(answer.data, np.float32))

    def loses(self, message: m.Message) -> None:
        """The client sends a message on a connection that has broken."""
        self._show(TO_DISPATCHER, f"{_said(message)}, which is lost", self.client.number(codec.encode(message)))

    def goes_on(self) -> None:
        """The client opens a connection again, and sends what was lost."""
        self.opens(OPEN_AGAIN, "OPEN_AGAIN")
        for frames in self.client.unheard(self.dispatcher.heard):
            self._hear(self._arrive(TO_DISPATCHER, self.dispatcher, frames))

    def _pass(self, way: str, sender: ReliableStream, receiver: ReliableStream, message: m.Message) -> m.Message:
        return self._arrive(way, receiver, sender.number(codec.encode(message)))

    def _arrive(self, way: str, receiver: ReliableStream, frames: list[bytes]) -> m.Message:
        sequence, acknowledged = parse(frames[0])
        assert receiver.accept(sequence, acknowledged, sum(map(len, frames)))
        message: m.Message = codec.decode([frames[0][HEADER_BYTES:], *frames[1:]])
        self._show(way, _said(message), frames)
        return message

    def _show(self, way: str, said: str, frames: list[bytes]) -> None:
        self.lines += textwrap.wrap(f"{way} {said}", 120, subsequent_indent="      ", break_long_words=False)
        first, *rest = frames
        sequence, acknowledged = first[:8].hex(), first[8:HEADER_BYTES].hex()
        self.lines.append(f"  1   {sequence} {acknowledged}")
        self.lines += _hex(first[HEADER_BYTES:])
        for frame in rest:
            head, *others = _hex(frame)
            self.lines += [f"  2   {head.lstrip()}", *others]


def _said(message: m.Message) -> str:
    """A message as it prints, without what its second frame shows."""
    kind = type(message)
    shown = [f"{name}={value!r}" for name, value in message._asdict().items()]
    if codec.has_second_frame(kind):
        shown[-1] = f"{kind._fields[-1]}=…"
    return f"{kind.__name__}({', '.join(shown)})"


def _hex(frame: bytes) -> list[str]:
    return textwrap.wrap(frame.hex(), HEX_DIGITS, initial_indent="      ", subsequent_indent="      ")


def run_example() -> ExampleSession:
    """The example, run."""
    body = pack_segment(SEGMENT)
    assert unpack_segment(body) == SEGMENT
    session = ExampleSession()
    session.opens(OPEN_NEW, "OPEN_NEW")
    session.says(m.Hello(m.VERSION, "client", {"bulk": b""}))
    session.says(m.Put(1, ["f32", [3]], [], False, X.tobytes()))
    session.says(m.Define(1, body))
    session.says(m.Run(1, 2, [1], [0.5], [0], []))
    session.says(m.Fetch(1, 3))
    session.loses(m.Free([3]))
    session.goes_on()
    session.says(m.Goodbye("", ""))
    return session


def example_page() -> str:
    """The example as the document has it."""
    return "\n".join(["```", *run_example().lines, "```"])


def segment_page() -> str:
    """The definition in the example, taken apart."""
    parts = msgpack.unpackb(pack_segment(SEGMENT), strict_map_key=False)
    said = ("inputs", "kinds of scalars", "tags", "instructions", "survivors")
    return "\n".join(["```", *(f"{part!r:60}# {what}".rstrip() for part, what in zip(parts, said, strict=True)), "```"])


if __name__ == "__main__":
    print(example_page())
    print(segment_page())
