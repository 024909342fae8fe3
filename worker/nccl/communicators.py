"""NCCL communicators: one for each group of a mesh, made when the group first needs it.

CuPy's bindings come from `worker/base/backend.py`. NCCL waits without end and says nothing: for a member that is gone, a
call that was not made, a network that fails. So communicators are made in a thread of their own, the end of what is under
way is an event that can be asked for, and what is not over in time is aborted, in a thread too, whoever waits for the device
meanwhile. What a move means is in `collective_moves.py`, how members find out that all of them are ready in
`worker/transfer/rendezvous.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from gt.errors import WorkerError
from gt.worker.device.cuda_streams import CudaStreams

from .collective_moves import LibraryReduction

log = logging.getLogger(__name__)
UNIQUE_ID_BYTES: Final = 128
"""The size of a unique id."""
WATCH_INTERVAL_SECONDS: Final = 1.0
"""The seconds between two checks for overdue calls."""
REFUSED_GENERATION: Final = -1
"""Stands for a generation when a member cannot have a communicator."""
SpawnThread = Callable[[Callable[[], None]], None]
GroupKey = tuple[int, tuple[int, ...]]
"""A mesh, and the ranks of a group in it."""


class Nccl:
    """CuPy's bindings of NCCL on the worker's device. All calls are on the device's stream of collectives."""

    def __init__(self, bindings: Any, device: Any, streams: CudaStreams) -> None:
        self.bindings = bindings
        self.device = device
        self.streams = streams

    @property
    def version(self) -> int:
        """The version as NCCL gives it (22501 for 2.25.1); members of a group have the same."""
        return int(self.bindings.get_version())

    def new_id(self) -> bytes:
        """Make the id by which the members of a group find each other."""
        return bytes(self.bindings.get_unique_id())

    def join(self, count: int, unique_id: bytes, place: int) -> Any:
        """Create a communicator. Waits for all members."""
        with self.device:
            return self.bindings.NcclCommunicator(count, unique_id, place)

    def abort(self, communicator: Any) -> None:
        """Abort the calls in progress on a communicator. Waits for the other members on this host."""
        with self.device:  # this thread has another
            communicator.abort()

    def number(self, name: str) -> int:
        """NCCL's number for a dtype or an operation."""
        return int(getattr(self.bindings, f"NCCL_{name.upper()}"))


class NcclCalls:
    """Makes a move's calls on one communicator, in the stream of collectives: they begin when what they read is computed."""

    def __init__(self, nccl: Nccl, communicator: Any, place: int) -> None:
        self._nccl = nccl
        self._communicator = communicator
        self._place = place
        self._stream = nccl.streams.collectives.ptr
        self._bytes = nccl.number("uint8")

    def _reduction(self, array: Any, reduction: LibraryReduction) -> tuple[int, int, int]:
        """Count, dtype and operation."""
        number = self._nccl.number
        return array.size * reduction.factor, number(reduction.dtype), number(reduction.operation)

    def all_reduce(self, sent: Any, received: Any, reduction: LibraryReduction) -> None:
        said = self._reduction(received, reduction)
        self._communicator.allReduce(sent.data.ptr, received.data.ptr, *said, self._stream)

    def reduce_scatter(self, sent: Any, received: Any, reduction: LibraryReduction) -> None:
        said = self._reduction(received, reduction)
        self._communicator.reduceScatter(sent.data.ptr, received.data.ptr, *said, self._stream)

    def reduce(self, sent: Sequence[Any], received: Any, reduction: LibraryReduction) -> None:
        def calls() -> None:
            for root, array in enumerate(sent):
                if array.size:
                    target = received if root == self._place else array
                    said = self._reduction(array, reduction)
                    self._communicator.reduce(array.data.ptr, target.data.ptr, *said, root, self._stream)

        self._together(calls)

    def all_gather(self, sent: Any, received: Any) -> None:
        self._communicator.allGather(sent.data.ptr, received.data.ptr, sent.nbytes, self._bytes, self._stream)

    def broadcast(self, sent: Any, received: Any, root: int) -> None:
        self._communicator.broadcast(sent.data.ptr, received.data.ptr, received.nbytes, self._bytes, root, self._stream)

    def send_receive(self, sent: Sequence[tuple[int, Any]], received: Sequence[tuple[int, Any]]) -> None:
        def calls() -> None:
            for place, array in sent:
                self._communicator.send(array.data.ptr, array.nbytes, self._bytes, place, self._stream)
            for place, array in received:
                self._communicator.recv(array.data.ptr, array.nbytes, self._bytes, place, self._stream)

        self._together(calls)

    def _together(self, calls: Callable[[], None]) -> None:
        """Several calls of which none waits for another."""
        self._nccl.bindings.groupStart()
        try:
            calls()
        finally:
            self._nccl.bindings.groupEnd()


class PendingCollective(NamedTuple):
    """A joint move whose calls the device has not completed."""

    over: Any
    since: float
    what: Callable[[], str]


class PendingCommunicator:
    """A communicator that a thread of its own is creating."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.made: Any = None
        self.error: Exception | None = None


class NcclGroup:
    """One group of a mesh: its communicator, and what is under way on it.

    A communicator is known by the move that it was made for, its `generation`, which members say before each move. Who lost
    his, or never had one, says 0; then all make another together.
    """

    def __init__(
        self, nccl: Nccl, key: GroupKey, place: int, patience: float, clock: Callable[[], float], spawn: SpawnThread
    ) -> None:
        self.key = key
        self.place = place
        self.generation = 0
        self.joining: PendingCommunicator | None = None
        self.unique_id: tuple[int, bytes] = 0, b""
        """The last that was heard, with its generation."""
        self._nccl = nccl
        self._patience = patience
        self._clock = clock
        self._spawn = spawn
        self._communicator: Any = None
        self._pending: deque[PendingCollective] = deque()
        self._broken: dict[int, str] = {}
        """Why a generation was given up."""
        self._lock = threading.Lock()

    def run(self, what: Callable[[], str], calls: Callable[[NcclCalls], None]) -> CollectiveCompletion:
        """Enqueue a move behind the kernels that compute what it reads, and before all later ones."""
        generation, communicator, streams = self.generation, self._communicator, self._nccl.streams
        if communicator is None:
            raise WorkerError("NCCL's communicator was given up just now")
        with streams.collective() as stream:
            try:
                calls(NcclCalls(self._nccl, communicator, self.place))
            except Exception as error:
                self.give_up(f"a call of NCCL failed: {error}")  # the others wait for it
                raise
            over = streams.mark(stream)
            with self._lock:
                self._pending.append(PendingCollective(over, self._clock(), what))
        return CollectiveCompletion(self, generation, over)

    def broken(self, generation: int) -> str:
        """Why a communicator was aborted with calls in progress; empty if it was not."""
        return self._broken.get(generation, "")

    def look(self, now: float) -> None:
        """Forget completed calls; abort the communicator if a call has failed or is overdue. Any thread may."""
        with self._lock:
            while self._pending and self._pending[0].over.done:
                self._pending.popleft()
            first = self._pending[0] if self._pending else None
        if first is None:
            return
        if now - first.since > self._patience:
            self.give_up(f"waited {self._patience:g} s for {first.what()}")
            return
        try:
            with self._lock:  # while it is asked nobody aborts it, which frees it
                communicator = self._communicator
                if communicator is not None:
                    communicator.check_async_error()
        except RuntimeError as error:
            self.give_up(f"{error} in {first.what()}")

    def settled(self) -> bool:
        """Whether all calls have completed."""
        with self._lock:
            return all(pending.over.done for pending in self._pending)

    def give_up(self, why: str) -> None:
        """Abort the communicator, with its calls in progress, and use it no more."""
        with self._lock:
            communicator, self._communicator = self._communicator, None
            if communicator is not None and any(not pending.over.done for pending in self._pending):
                self._broken[self.generation] = why
            self._pending.clear()
            self.generation = min(self.generation, 0)
        if communicator is not None:
            self._spawn(partial(self._nccl.abort, communicator))

    def refuse(self, error: Exception | None = None) -> None:
        """Use pieces from now on: this member, or (no error) another, cannot have a communicator."""
        if error is not None:
            log.warning("NCCL cannot be used among ranks %s of mesh %d: %s", list(self.key[1]), self.key[0], error)
        self.give_up("some member cannot use NCCL")
        self.generation = REFUSED_GENERATION
        self.joining = None

    def new_id(self, generation: int) -> bytes:
        """Make the id of the next communicator; only the first member does."""
        self.unique_id = generation, self._nccl.new_id()
        return self.unique_id[1]

    def join(self, wake: Callable[[], None]) -> None:
        """Start to create the communicator whose id was received."""
        generation, unique_id = self.unique_id
        joining = self.joining = PendingCommunicator(generation)

        def make() -> None:
            try:
                joining.made = self._nccl.join(len(self.key[1]), unique_id, self.place)
            except Exception as error:  # noqa: BLE001 — whatever it is, this member has none
                joining.error = error
            wake()

        self._spawn(make)

    def joined(self, joining: PendingCommunicator) -> None:
        """Use the communicator that was created."""
        self._communicator = joining.made
        self.generation = joining.generation
        self.joining = None


class CollectiveCompletion:
    """The completion of a joint move as flags of a deferred check (`Flags`): whether it was aborted."""

    __slots__ = ("_generation", "_over", "group")

    def __init__(self, group: NcclGroup, generation: int, over: Any) -> None:
        self.group = group
        self._generation = generation
        self._over = over

    def come(self) -> bool:
        return bool(self._over.done) or bool(self.group.broken(self._generation))

    def all(self) -> list[bool]:
        self._over.synchronize()  # not for ever: what takes too long is aborted
        return [bool(self.group.broken(self._generation))]

    @property
    def reason(self) -> str:
        """Why it was broken off."""
        return self.group.broken(self._generation)


class Communicators:
    """All groups of one worker. `clock` gives seconds; `spawn` calls a function in another thread, `wake` has the core called."""

    def __init__(
        self,
        nccl: Nccl,
        patience: float,
        clock: Callable[[], float],
        spawn: SpawnThread,
        wake: Callable[[], None],
    ) -> None:
        self.nccl = nccl
        self.patience = patience
        self.clock = clock
        self.spawn = spawn
        self.wake = wake
        self.groups: dict[GroupKey, NcclGroup] = {}
        self.ending: list[NcclGroup] = []
        """Groups of dropped meshes that may have calls in progress."""

    def group(self, mesh: int, ranks: tuple[int, ...], place: int) -> NcclGroup:
        """A group of a mesh."""
        key = (mesh, ranks)
        if key not in self.groups:
            self.groups[key] = NcclGroup(self.nccl, key, place, self.patience, self.clock, self.spawn)
        return self.groups[key]

    def hear(self, mesh: int, ranks: Sequence[int], generation: int, unique_id: bytes, rank: int) -> None:
        """Take the id that the first member of a group has made."""
        group = self.group(mesh, tuple(ranks), tuple(ranks).index(rank))
        if generation > group.unique_id[0]:
            group.unique_id = generation, bytes(unique_id)

    def drop(self, mesh: int) -> None:
        """Drop a mesh; calls in progress on it may complete."""
        self.ending += [self.groups.pop(key) for key in [key for key in self.groups if key[0] == mesh]]

    def lose(self, meshes: Sequence[int], text: str) -> None:
        """Abort all calls of these meshes, because a member is gone."""
        for key in [key for key in self.groups if key[0] in meshes]:
            self.groups.pop(key).give_up(text)

    def look(self, now: float) -> None:
        """Abort what is overdue. Any thread may."""
        for group in [*self.groups.values(), *self.ending]:
            group.look(now)

    def watch(self) -> None:
        """Check for overdue calls for ever: runs in a thread of its own, since one that waits for the device cannot."""
        with self.nccl.device:  # or each look would be at the first device of the host, and take memory there
            while True:
                time.sleep(WATCH_INTERVAL_SECONDS)
                with suppress(RuntimeError):  # a device that computes no more is the core's to notice
                    self.look(self.clock())

    def end(self) -> None:
        """Free the communicators of dropped meshes whose calls have completed."""
        for group in [group for group in self.ending if group.settled()]:
            self.ending.remove(group)
            group.give_up("its mesh was dropped")


def in_thread(function: Callable[[], None]) -> None:
    """Call a function in a thread that ends with the process."""
    threading.Thread(target=function, daemon=True).start()
