"""An NCCL that is none: what CuPy's `cupy.cuda.nccl` offers, between workers of one thread, on the stand-in for CuPy (`card.py`).

As strict as NCCL, and stricter where that only hangs. A communicator has a device for each rank, or is refused. Members make
the same calls in the same order, with the same count, dtype, operation and root; whatever differs is noted in `mistakes`. A call
returns at once, and is done when all members' calls have come to the front of their streams: then what was received is there, and
not before. What waits for that has others go on (`pump`); where nobody can, a watch looks whether it has been too long, and
whatever is not aborted then would hang for ever. Maxima and minima of floats ignore NaN, and sums have an order of their own.

It exists beside the pretend NCCL (`tests/pretend/libraries/nccl.cpp`), whose ranks are processes or threads: here all members are
stepped in one thread, so drawn moves and programs over eight cards take seconds, what would hang is known rather than waited for,
and calls that kernels are not known to be before are mistakes.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import card
import numpy as np
import timeline
from ml_dtypes import bfloat16

DTYPES: Final = {
    0: np.int8, 1: np.uint8, 2: np.int32, 3: np.uint32, 4: np.int64, 5: np.uint64, 6: np.float16, 7: np.float32,
    8: np.float64, 9: bfloat16,
}  # fmt: skip
OPERATIONS: Final[dict[int, Callable[[Any, Any], Any]]] = {0: np.add, 1: np.multiply, 2: np.fmax, 3: np.fmin}
SPOILT: Final = 0xAB
"""What lies where something was received that never came."""


class NcclError(RuntimeError):
    """As CuPy says what NCCL says."""


class Hangs(BaseException):
    """In NCCL this would wait for ever."""


@dataclass(eq=False)
class Call:
    """One call of one rank."""

    world: World
    rank: int
    facts: tuple[Any, ...]
    """Kind, count, dtype, operation and root: the same for all ranks."""
    sent: bytes
    target: int
    size: int
    number: int
    peer: int = -1
    """Of a send or a receive."""


@dataclass(eq=False)
class Operation:
    """Calls that a stream has before it, as one."""

    calls: list[Call]
    stream: Stream
    done: bool = False

    def __call__(self) -> None:
        """It is done when all have called."""


@dataclass(eq=False)
class World:
    """What the ranks of one communicator share."""

    size: int
    devices: dict[int, int] = field(default_factory=dict)
    calls: dict[tuple[Any, ...], dict[int, Operation]] = field(default_factory=dict)
    """By the name that they have in common, the operations of those who have called already."""
    counts: dict[tuple[Any, ...], int] = field(default_factory=dict)


class Stream(timeline.Stream):
    """A stream that may have calls before it."""

    def head(self) -> Operation | None:
        """The calls that it is at, if they are not done."""
        while self.pending and isinstance(self.pending[0], Operation):
            if not self.pending[0].done:
                return self.pending[0]
            self.pending.popleft()
        return None

    def step(self) -> None:
        if self.head() is None:
            super().step()

    def record(self, event: timeline.Event | None = None) -> timeline.Event:
        event = event or Event(self._timeline)
        event.record(self)
        return event


class Event(timeline.Event):
    """A place in a stream."""

    def reach(self) -> None:
        """Wait: others go on, and when none can, a watch looks at the time."""
        while not self.reached:
            stream = self.stream
            if isinstance(stream, Stream) and stream.head() is not None:
                if not NET.pump():
                    NET.late()
                    if stream.head() is not None:
                        raise Hangs
            else:
                stream.step()


class Net:
    """All communicators and streams of a test."""

    def __init__(self) -> None:
        self.worlds: dict[bytes, World] = {}
        self.streams: dict[int, Stream] = {}
        self.mistakes: list[str] = []
        self.made: list[tuple[Any, ...]] = []
        """Facts of all calls."""
        self.grouped: list[Call] | None = None
        self.used: Stream | None = None
        self.ids = itertools.count(1)
        self.pump: Callable[[], bool] = lambda: False
        self.late: Callable[[], object] = lambda: None
        self.failed = ""
        """What every communicator says of itself."""
        self.refuses: set[int] = set()
        """Devices on which no communicator can be made."""

    def wrong(self, text: str) -> NcclError:
        self.mistakes.append(text)
        return NcclError(text)

    def add(self, call: Call, stream: int) -> None:
        self.made.append(call.facts)
        self.used = self.streams[stream]
        kernels = card.CARD.timeline.kernels
        if not self.used.knows({kernels: kernels.now}):
            raise self.wrong("calls that read what kernels may not have computed")
        if self.grouped is not None:
            self.grouped.append(call)
        else:
            self.start([call])

    def start(self, calls: list[Call]) -> None:
        assert self.used is not None
        operation = Operation(calls, self.used)
        self.used.pending.append(operation)
        for call in calls:
            name = self.name(call)
            others = call.world.calls.setdefault(name, {})
            for other in others.values():
                facts = next(each.facts for each in other.calls if self.name(each) == name)
                if facts[call.peer >= 0 :] != call.facts[call.peer >= 0 :]:  # to send and to receive are one thing
                    raise self.wrong(f"rank {call.rank} calls {call.facts}, another {facts}")
            others[call.rank] = operation
        self.advance()

    @staticmethod
    def name(call: Call) -> tuple[Any, ...]:
        if call.peer < 0:
            return ("all", call.number)
        ends = (call.rank, call.peer) if call.facts[0] == "send" else (call.peer, call.rank)
        return (*ends, call.number)

    def together(self, operation: Operation) -> list[Operation] | None:
        """All operations that one needs; None while some are missing or not at the front of their streams."""
        found, left = [operation], [operation]
        while left:
            for call in left.pop().calls:
                others = call.world.calls[self.name(call)]
                if len(others) < (call.world.size if call.peer < 0 else 2):
                    return None
                for other in others.values():
                    if other not in found:
                        found.append(other)
                        left.append(other)
        return found if all(each.stream.head() is each for each in found) else None

    def advance(self) -> None:
        """Finish what can be finished."""
        progress = True
        while progress:
            progress = False
            for stream in self.streams.values():
                first = stream.head()
                ready = self.together(first) if first is not None else None
                if ready is not None:
                    execute(ready)
                    for operation in ready:
                        operation.done = True
                    progress = True


NET = Net()


def execute(operations: list[Operation]) -> None:
    """Move and add up what these send."""
    by_name: dict[tuple[Any, ...], list[Call]] = {}
    for operation in operations:
        for call in operation.calls:
            by_name.setdefault((id(call.world), *Net.name(call)), []).append(call)
    for calls in by_name.values():
        calls.sort(key=lambda call: call.rank)
        kind, _, dtype, operation_number, root = calls[0].facts
        if calls[0].peer >= 0:
            sender, receiver = sorted(calls, key=lambda call: call.facts[0] == "receive")
            write(receiver, sender.sent)
        elif kind == "gather":
            for call in calls:
                write(call, b"".join(each.sent for each in calls))
        elif kind == "broadcast":
            for call in calls:
                write(call, calls[root].sent)
        else:
            arrays = [np.frombuffer(call.sent, DTYPES[dtype]) for call in reversed(calls)]
            made = functools.reduce(OPERATIONS[operation_number], arrays).astype(DTYPES[dtype]).tobytes()
            for call in calls:
                if kind == "reduce" and call.rank != root:
                    continue
                write(call, made[call.rank * call.size :][: call.size] if kind == "scatter" else made)


def write(call: Call, data: bytes) -> None:
    assert len(data) == call.size, (call.facts, len(data), call.size)
    ctypes.memmove(call.target, data, len(data))


class NcclCommunicator:
    """As CuPy's."""

    def __init__(self, ndev: int, commId: bytes, rank: int, config: Any = None) -> None:  # as CuPy calls it
        if type(commId) is not bytes or len(commId) != 128:
            raise ValueError(f"commId length {len(commId)} != 128.")
        world = NET.worlds.setdefault(commId, World(ndev))
        if world.size != ndev or rank in world.devices or not 0 <= rank < ndev:
            raise NET.wrong(f"rank {rank} of {ndev} in a communicator of {world.size} with {[*world.devices]}")
        world.devices[rank] = card.current_device()
        if world.devices[rank] in NET.refuses:
            raise NcclError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
        while len(world.devices) < ndev:
            if not NET.pump():
                raise Hangs
        if len({*world.devices.values()}) < ndev:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected")
        self.world, self.rank, self.ended = world, rank, False

    def _call(
        self, facts: tuple[Any, ...], sent: int, size: int, target: int, received: int, stream: int, peer: int = -1
    ) -> None:
        if self.ended:
            raise NET.wrong("a call on a communicator that was ended")
        key = (self.rank,) if peer < 0 else (self.rank, peer, facts[0])
        number = self.world.counts[key] = self.world.counts.get(key, 0) + 1
        data = ctypes.string_at(sent, size) if size else b""
        NET.add(Call(self.world, self.rank, facts, data, target, received, number, peer), stream)

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:  # noqa: N802
        size = count * np.dtype(DTYPES[datatype]).itemsize
        self._call(("reduce all", count, datatype, op, -1), sendbuf, size, recvbuf, size, stream)

    def reduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int) -> None:
        size = count * np.dtype(DTYPES[datatype]).itemsize
        self._call(("reduce", count, datatype, op, root), sendbuf, size, recvbuf, size, stream)

    def reduceScatter(self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int) -> None:  # noqa: N802
        size = recvcount * np.dtype(DTYPES[datatype]).itemsize
        self._call(("scatter", recvcount, datatype, op, -1), sendbuf, size * self.world.size, recvbuf, size, stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:  # noqa: N802
        size = count * np.dtype(DTYPES[datatype]).itemsize
        self._call(("gather", count, datatype, -1, -1), sendbuf, size, recvbuf, size * self.world.size, stream)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        size = count * np.dtype(DTYPES[datatype]).itemsize
        self._call(("broadcast", count, datatype, -1, root), sendbuff, size, recvbuff, size, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        size = count * np.dtype(DTYPES[datatype]).itemsize
        self._pass("send", sendbuf, size, 0, 0, (count, datatype), peer, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        size = count * np.dtype(DTYPES[datatype]).itemsize
        self._pass("receive", 0, 0, recvbuf, size, (count, datatype), peer, stream)

    def _pass(
        self,
        kind: str,
        sent: int,
        size: int,
        target: int,
        received: int,
        facts: tuple[int, int],
        peer: int,
        stream: int,
    ) -> None:
        if peer == self.rank or not 0 <= peer < self.world.size:
            raise NET.wrong(f"rank {self.rank} sends to or receives from {peer}")
        self._call((kind, *facts, -1, -1), sent, size, target, received, stream, peer)

    def abort(self) -> None:
        """What this rank has under way ends, unfinished."""
        self.ended = True
        for stream in NET.streams.values():
            for operation in [each for each in stream.pending if self._own(each)]:
                for call in operation.calls:
                    ctypes.memset(call.target, SPOILT, call.size)
                operation.done = True
        NET.advance()

    destroy = abort

    def _own(self, operation: object) -> bool:
        return (
            isinstance(operation, Operation)
            and not operation.done
            and any(call.world is self.world and call.rank == self.rank for call in operation.calls)
        )

    def check_async_error(self) -> None:
        if self.ended:
            raise NET.wrong("a question to a communicator that was ended")
        if NET.failed:
            raise NcclError(NET.failed)


class Bindings:
    """What stands for the module `cupy.cuda.nccl`."""

    available = True
    NcclCommunicator = NcclCommunicator
    NcclError = NcclError
    NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = range(6)
    NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = range(6, 10)
    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = range(4)

    @staticmethod
    def get_version() -> int:
        return 22501

    @staticmethod
    def get_unique_id() -> bytes:
        return b"%0128d" % next(NET.ids)

    @staticmethod
    def groupStart() -> None:  # noqa: N802
        assert NET.grouped is None
        NET.grouped = []

    @staticmethod
    def groupEnd() -> None:  # noqa: N802
        calls, NET.grouped = NET.grouped, None
        assert calls is not None
        if calls:
            NET.start(calls)


@contextmanager
def installed(devices: int) -> Iterator[Net]:
    """While this lasts there are so many stand-ins for GPUs, and NCCL between them. Nothing may be wrong in the end."""
    NET.__init__()  # type: ignore[misc]
    cuda, line = card.CARD.cuda, card.CARD.timeline

    def stream(*, non_blocking: bool = False) -> Stream:
        made = Stream(line, non_blocking=non_blocking)
        NET.streams[made.ptr] = made
        return made

    before = cuda.Stream, cuda.Event
    cuda.Stream, cuda.Event = stream, lambda disable_timing=False: Event(line)
    try:
        with card.installed(devices=devices, nccl=Bindings):
            yield NET
    finally:
        cuda.Stream, cuda.Event = before
    assert not NET.mistakes, NET.mistakes
