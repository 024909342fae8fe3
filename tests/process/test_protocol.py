"""A client that was written from `docs/protocol.md` alone: ZeroMQ, msgpack and the tables of that page, and nothing of GT."""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgpack
import pytest
import zmq
from daemons import Machine

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
CODES = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)}
NAMES = {code: name for name, code in CODES.items()}
NUMBERS = {name: int(value, 16) for name, value in re.findall(r"^\| `(\w+)` \| (0x\w+) \|", PAGE, re.MULTILINE)}
VERSION = int(re.findall(r"^\| `VERSION` \| (\d+) \|", PAGE, re.MULTILINE)[0])
BULK = {name: int(kind) for name, kind in re.findall(r"^\| `([A-Z]+)` \| (\d) \|", PAGE, re.MULTILINE)}
HEADER = struct.Struct("<QQ")
TIMEOUT_MS = 20_000
WITH_BODY = ("Define", "Put")
"""The messages of a client that have a second frame."""
CHUNK_BYTES = 1 << 20


class Session:
    """One session, on one connection after another. What is sent while there is none leaves when there is one again."""

    def __init__(self, context: zmq.Context[Any], address: str, identity: bytes) -> None:
        self.context, self.address, self.identity = context, address, identity
        self.sent = self.heard = 0
        self.kept: deque[list[bytes]] = deque()
        self.socket: zmq.Socket[bytes] | None = None
        assert self.connect("OPEN_NEW")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def connect(self, word: str = "OPEN_AGAIN") -> bool:
        """Opens a connection. Returns whether the session is known."""
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.ROUTING_ID, self.identity)
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self.socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        self.socket.connect(self.address)
        self.socket.send(HEADER.pack(NUMBERS[word], self.heard))
        number = NUMBERS["UNNUMBERED"]
        while number != NUMBERS["ACCEPTED"]:
            number, acknowledged = HEADER.unpack_from(self.socket.recv_multipart()[0])
            if number == NUMBERS["UNKNOWN"]:
                return False
        self.acknowledge(acknowledged)
        for frames in self.kept:
            self.socket.send_multipart(frames)
        return True

    def cut(self) -> None:
        """The connection breaks."""
        if self.socket is not None:
            self.socket.close(linger=0)
            self.socket = None

    def acknowledge(self, number: int) -> None:
        while self.kept and self.sent - len(self.kept) < number:
            self.kept.popleft()

    def send(self, first: bytes, *rest: bytes) -> None:
        self.sent += 1
        self.kept.append([HEADER.pack(self.sent, self.heard) + first, *rest])
        if self.socket is not None:
            self.socket.send_multipart(self.kept[-1])

    def receive(self) -> list[bytes]:
        """The frames of the next message, which is acknowledged."""
        assert self.socket is not None
        while True:
            first, *rest = self.socket.recv_multipart()
            number, acknowledged = HEADER.unpack_from(first)
            self.acknowledge(acknowledged)
            if number == self.heard + 1:
                self.heard = number
                self.socket.send(HEADER.pack(NUMBERS["UNNUMBERED"], self.heard))
                return [first[HEADER.size :], *rest]
            assert number <= self.heard, "neither heard before nor without a number"


class Client:
    """A client's messages."""

    def __init__(self, control: Session) -> None:
        self.control = control
        self.finished = 0
        """Runs and puts, as the last credit says."""

    def say(self, name: str, *fields: Any) -> None:
        body = [fields[-1]] if name in WITH_BODY else []
        self.control.send(msgpack.packb([CODES[name], *(fields[:-1] if body else fields)]), *body)

    def hear(self, name: str) -> list[Any]:
        """The fields of the next message, of this name; credits and signs of life may come before it."""
        while True:
            first, *rest = self.control.receive()
            code, *fields = msgpack.unpackb(first)
            if NAMES[code] == "Credit":
                (self.finished,) = fields
            if NAMES[code] == name or NAMES[code] not in ("Credit", "Ping"):
                assert NAMES[code] == name, (NAMES[code], fields)
                return [*fields, *rest]

    def values(self, request: int, tensor: int) -> list[float]:
        """Fetches a tensor of float32 that one worker has."""
        self.say("Fetch", request, tensor)
        return self.fetched(request)

    def fetched(self, request: int) -> list[float]:
        replied, _, parts, _, _, _, waits, data = self.hear("Value")
        assert (replied, parts, waits) == (request, 1, False)
        return list(array("f", data))


class BulkSession(Session):
    """The session of a bulk socket."""

    def say(self, receiver: bytes, header: list[int], payload: bytes) -> None:
        self.send(receiver, msgpack.packb(header), payload)

    def hear(self) -> tuple[bytes, list[int], bytes]:
        sender, header, payload = self.receive()
        return sender, msgpack.unpackb(header), payload


@pytest.fixture(params=["tcp://127.0.0.1:*", "ipc://{}/dispatcher"])
def address(machine: Machine, request: pytest.FixtureRequest) -> str:
    return machine.service(1, "--insecure", "--address", request.param.format(machine.temp))[0]


@pytest.fixture
def client(address: str, context: zmq.Context[Any]) -> Iterator[Client]:
    with Session(context, address, b"c" + os.urandom(15)) as control:
        yield Client(control)


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


def floats(*values: float) -> bytes:
    return array("f", values).tobytes()


def test_a_client_from_the_document_computes_and_survives_a_cut(client: Client) -> None:
    """One answer is lost on its way, and one message is not sent before the connection is there again."""
    client.say("Hello", VERSION, "client", {})
    number, facts = client.hear("Welcome")
    assert number > 0
    assert facts["workers"] == 1
    client.say("Put", 1, ["f32", [3]], [], False, floats(1, 2, 3))
    instructions = [["neg", [0 << 2 | 1], {}, 0], ["add", [0 << 2 | 0, 0 << 2 | 2], {}, 0]]
    client.say("Define", 1, msgpack.packb([[["f32", [3]]], "f", [[[], 0, "", []]], instructions, [1]]))
    client.say("Run", 1, 10, [1], [0.5], [], [], [])
    assert client.values(1, 11) == [-0.5, -1.5, -2.5]
    client.say("Fetch", 2, 11)
    client.control.cut()
    client.say("Run", 1, 20, [11], [1.0], [0], [1], [3, 1])
    assert client.control.connect()
    assert client.fetched(2) == [-0.5, -1.5, -2.5]
    assert client.fetched(3) == [1.5, 2.5, 3.5]
    client.say("Fetch", 4, 1)
    request, kind, _ = client.hear("Failed")
    assert (request, kind) == (4, "ProtocolError"), "the run has freed it"
    while client.finished < 3:  # a put and two runs
        client.hear("Credit")
    assert client.finished == 3
    client.say("Goodbye", "", "")
    client.control.cut()
    while client.control.connect():  # until the dispatcher has forgotten the session
        assert client.control.socket is not None
        client.control.socket.poll(50)  # a program may open only so many connections a second
        client.control.cut()


def test_bulk_data_goes_both_ways_as_the_document_says(client: Client, address: str, context: zmq.Context[Any]) -> None:
    """A put and a fetch of 2.5 MB, in chunks that the receiver grants, with a cut in the middle of each."""
    identity = b"b" + os.urandom(15)
    client.say("Hello", VERSION, "client", {"bulk": identity})
    number, facts = client.hear("Welcome")
    sent = bytes(range(256)) * 10_000
    with BulkSession(context, facts["bulk_address"], identity) as bulk:
        client.say("Put", 1, ["u8", [len(sent)]], [], True, b"")
        tensor, ((worker, name, box),) = client.hear("Cut")
        assert (tensor, box) == (1, [[0, len(sent)]])
        stream, at = [0, number, tensor, worker], 0
        while at < len(sent):
            sender, (kind, *which, granted), _ = bulk.hear()
            assert (sender, kind, which) == (name, BULK["GRANT"], stream)
            while at < min(granted, len(sent)):
                chunk = sent[at : min(at + CHUNK_BYTES, granted)]
                bulk.say(name, [BULK["DATA"], *stream, at], chunk)
                at += len(chunk)
            bulk.cut()
            assert bulk.connect()
        client.say("Fetch", 7, 1)
        _, _, parts, _, worker, name, waits, _ = client.hear("Value")
        assert (parts, waits) == (1, True)
        stream, came, granted = [1, number, 7, worker], b"", CHUNK_BYTES
        bulk.say(name, [BULK["GRANT"], *stream, granted], b"")
        while len(came) < len(sent):
            sender, (kind, *which, offset), data = bulk.hear()
            assert (sender, kind, which, offset) == (name, BULK["DATA"], stream, len(came))
            came += data
            bulk.cut()
            assert bulk.connect()
            if granted < len(sent):
                granted += CHUNK_BYTES
                bulk.say(name, [BULK["GRANT"], *stream, granted], b"")
        assert came == sent
        client.say("Goodbye", "", "")
