"""A whole service in the caller's thread: the cores of a dispatcher and of N workers, joined by queues in memory.

`gt.connect("inproc", workers=N, config=…)` and tests use it. It has no process, socket or thread, and no clock unless it is
watched, so every run is the same. It belongs to the public face, so it may import components when first used.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.daemon.host import host_facts, memory_limit, resident_memory
from gt.ir.spec import Spec
from gt.op_packages.offers import SAME_PROCESS
from gt.sharding.options import for_workers
from gt.snapshot_files.snapshot_names import default_folder, published_by
from gt.standby.search import StandbySearch
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.messages import codec
from gt.wire.principals import OWN_PROCESS
from gt.wire.reliable_stream import Frames
from gt.wire.shared_memory.pool import Pool, half_of_memory

if TYPE_CHECKING:
    from pathlib import Path

    from gt.sharding.config import Config
    from gt.worker.base.backend import Backend
    from gt.worker.base.events import MarkIn, MarkPacked, MarkWork, SnapshotIn, SnapshotWork
    from gt.worker.core import WorkerCore as Worker
    from gt.worker.nccl.communicators import Communicators

CLIENT_IDENTITY = b"client"
WATCHER_IDENTITY = b"watcher"
EventReceiver = Callable[[list[Any], int], object]
"""Receives events as they travel, and the number of events lost before them."""
DEFAULT_DEVICE = "cpu"
"""The device of a worker, unless one is given."""


class Fabric:
    """One dispatcher core, `workers` worker cores, and the messages between them in the order in which they were sent.

    With `codec`, every message is encoded and decoded, as by sockets. `facts[n]` is what worker n reports about itself,
    `devices[n]` what it computes on. `marks` is a folder for the files of marks, without which there are none.
    """

    def __init__(
        self, workers: int, config: Config | None, *, codec: bool = False, facts: Sequence[dict[str, Any]] = (),
        devices: Sequence[str] = (), marks: Path | None = None,
    ) -> None:  # fmt: skip
        from gt.dispatcher.core import DispatcherCore as Dispatcher
        from gt.dispatcher.state.events import JobTurn, Lost, Publish, Received
        from gt.worker.base.backend import backend
        from gt.worker.base.events import BulkOut, MarkWork, SnapshotWork, ToDispatcher, ToPeer
        from gt.worker.core import WorkerCore
        from gt.worker.execution.device_failure import DeviceFailed
        from gt.worker.memory_limit.limiter import memory_limiter
        from gt.worker.snapshots.mark_files import MarkFiles
        from gt.worker.snapshots.snapshot_work import SnapshotFiles
        from gt.worker.telemetry.recorder import Instruments

        self.device_failed = DeviceFailed
        self.received, self.lost, self.work, self.publish = Received, Lost, JobTurn, Publish
        self.bulk_out, self.to_dispatcher, self.to_peer = BulkOut, ToDispatcher, ToPeer
        self.snapshot_work, self.mark_work = SnapshotWork, MarkWork
        self.snapshots = SnapshotFiles(default_folder())
        self.codec = codec
        self.time = 0
        """In nanoseconds; it passes only while somebody watches."""
        self.began = 0
        self.told: EventReceiver | None = None
        self.level = self.seen = self.publish_at = self.limit = 0
        self.dispatcher = Dispatcher(config=config, workers_expected=workers)
        measured = Instruments(self._clock, self._memory, lambda: 0)
        computed = [backend(devices[n] if devices else DEFAULT_DEVICE) for n in range(workers)]
        share = memory_limit() // (2 * max(1, workers))  # the other half is the program's
        self.workers = {
            self._identity(n): WorkerCore(
                each,
                limiter=memory_limiter(for_workers, each, share),
                instruments=measured,
                communicators=self._communicators(each),
            )
            for n, each in enumerate(computed)
        }
        self.on_gpus = any(each.staging is not None for each in computed)
        """Whether some worker may have to be asked whether its GPU has finished."""
        self.marks = {identity: MarkFiles(marks, self._clock) for identity in self.workers}
        self.rest: dict[bytes, int] = {}
        """When a watched worker ran out of work."""
        self.inboxes: dict[bytes, deque[m.Message]] = {}
        self.queue: deque[tuple[bytes, bytes, m.Message]] = deque()
        for number, (identity, worker) in enumerate(self.workers.items()):
            said = facts[number] if facts else {}
            on = {"device": worker.backend.name, "kind": worker.backend.kind, "ops": SAME_PROCESS}
            keeps = {} if marks is None else {"marks": True}
            joined = {"nvlink_group_size": for_workers.get("nvlink_group_size", 0)}
            hello = {"address": identity.decode(), "bulk": identity, **on, **joined, **keeps, **worker.facts, **said}
            self.say(identity, m.Hello(m.VERSION, "worker", hello))
        self.run()

    def _communicators(self, backend: Backend) -> Communicators | None:
        """None: joint moves wait for each other, which one thread cannot do."""
        return None

    def _identity(self, number: int) -> bytes:
        return b"worker-%d" % number

    def say(self, peer: bytes, message: m.Message) -> None:
        """`peer` sends a message to the dispatcher."""
        if self.codec:
            message = codec.decode(codec.encode(message))
        self._hand_out(self.dispatcher.handle(self.received(peer, message), self._now()))

    def kill(self, number: int) -> None:
        """Lose worker `number`, as if its process had been killed."""
        identity = self._identity(number)
        del self.workers[identity]
        self._hand_out(self.dispatcher.handle(self.lost(identity, "killed"), self._now()))
        self.run()

    def _hand_out(self, sends: Iterable[Any]) -> None:
        for send in sends:
            for target in send.to:
                self.queue.append((b"", target, send.message))

    def run(self) -> None:
        """Deliver messages until there are none."""
        queue = self.queue
        while queue or self.dispatcher.busy or self._asks() or self._due():
            if not queue and self.dispatcher.busy:
                self._hand_out(self.dispatcher.handle(self.work(), self._now()))
                continue
            if not queue and self._asks():
                for identity in [identity for identity, worker in self.workers.items() if worker.asks or worker.busy]:
                    self._deliver(identity, None)
                continue
            if not queue:
                self._publish()
                continue
            _, target, message = queue.popleft()
            self._deliver(target, message)

    def _deliver(self, target: bytes, message: m.Message | None) -> None:
        """Deliver one message, or the time, and queue what its receiver sends."""
        worker = self.workers.get(target)
        if target == WATCHER_IDENTITY and message is not None:
            self._hear(message)
            return
        if worker is None:
            if message is not None:
                self.inboxes.setdefault(target, deque()).append(message)
            return
        if self.codec and message is not None:
            message = codec.decode(codec.encode(message))
        self._pass_on(target, self._act(target, worker, message))

    def _pass_on(self, target: bytes, sends: list[Any]) -> None:
        """Pass on what a worker sends."""
        for send in sends:
            if isinstance(send, self.bulk_out):
                data: Any = send.array.tobytes()
                self.say(target, send.message._replace(data=data))
            elif isinstance(send, self.to_dispatcher):
                self.say(target, send.message)
            elif isinstance(send, self.to_peer):
                self.queue.append((target, send.address.encode(), send.message))
            elif isinstance(send, self.snapshot_work):
                self._work_on_snapshot(target, send)
            elif isinstance(send, self.mark_work):
                self._work_on_mark(target, send)

    def _work_on_mark(self, target: bytes, work: MarkWork) -> None:
        """Write, read or remove files of a mark for a worker, at once."""
        answer = self.marks[target].do(work)
        if isinstance(answer, m.MarkTaken):
            self.say(target, answer)
        elif answer is not None and target in self.workers:
            self._pass_on(target, self._act(target, self.workers[target], answer))

    def _work_on_snapshot(self, target: bytes, work: SnapshotWork) -> None:
        """Read or write files for a worker, at once: the caller's thread does everything."""
        own, user = (
            OWN_PROCESS.principal.name,
            f"user {os.geteuid()}",
        )  # whose snapshots are those of this user's services
        places = {own: user, published_by(own): published_by(user)}
        said: Any = work.message
        said = said._replace(principal=places.get(said.principal, said.principal))
        if isinstance(said, (m.ReadPublished, m.LoadPart)):
            said = said._replace(readers=[places.get(each, each) for each in said.readers])
        answer = self.snapshots.do(work._replace(message=said))
        self.snapshots.close()
        if isinstance(said, m.ReadPublished) and isinstance(answer, m.SnapshotReport) and answer.files[:1] == [user]:
            answer.files[0] = own
        if isinstance(answer, m.SnapshotReport):
            self.say(target, answer)
        elif answer is not None and target in self.workers:
            self._pass_on(target, self._act(target, self.workers[target], answer))

    def _asks(self) -> bool:
        """Whether a transfer from a GPU is in progress at a worker, or may begin."""
        return self.on_gpus and any(worker.asks or worker.busy for worker in self.workers.values())

    def _act(
        self, target: bytes, worker: Worker, message: m.Message | SnapshotIn | MarkIn | MarkPacked | None
    ) -> list[Any]:
        """What a worker sends in response to a message; the time until then counts as idle."""
        self._rested(target, worker)
        try:
            sends = worker.handle(message, self._now())
        except self.device_failed as error:
            return self._failed(worker, str(error))
        if worker.recording is not None:
            self.rest[target] = worker.recording.clock()
        return sends

    def _rested(self, target: bytes, worker: Worker) -> None:
        """Have a worker record that it was idle for a while."""
        began = self.rest.pop(target, None)
        if worker.recording is not None and began is not None:
            worker.recording.rested(began, worker.recording.clock(), worker.running is not None)

    def _failed(self, worker: Worker, reason: str) -> list[Any]:
        """Lose a worker whose device has failed, with all that it held."""
        identity = next(identity for identity, other in self.workers.items() if other is worker)
        del self.workers[identity]
        self._hand_out(self.dispatcher.handle(self.lost(identity, reason), self._now()))
        return []

    # watching

    def watch(self, level: int, told: EventReceiver) -> None:
        """Give `told` the events from now on, in batches, with the number of events lost before each, whenever one is due.

        There is one watcher at a time. With level 0 it gets the events that are left, and no more.
        """
        if not level:
            if self.told is not None:
                self._publish()
                self.run()
                self.say(WATCHER_IDENTITY, m.Goodbye("", "it has seen enough"))
                self.run()
                self.told = None
            return
        assert self.told is None, "there is one watcher at a time"
        self.began = time.monotonic_ns() - self.time
        self.told, self.level, self.seen = told, level, 0
        self.publish_at = 0
        self.say(WATCHER_IDENTITY, m.Hello(m.VERSION, "watcher", host_facts()))
        self.say(WATCHER_IDENTITY, m.Watch(level, 0))
        self.run()

    def _memory(self) -> tuple[int, int]:
        self.limit = self.limit or memory_limit()
        return resident_memory(), self.limit

    def _clock(self) -> int:
        if self.told is not None:
            self.time = time.monotonic_ns() - self.began
        return self.time

    def _now(self) -> float:
        return self._clock() / 1e9 if self.told is not None else self.time / 1e9

    def _due(self) -> bool:
        return self.told is not None and self._clock() >= self.publish_at

    def _publish(self) -> None:
        """Have workers and dispatcher send the events that they have recorded."""
        self.publish_at = self._clock() + int(self.dispatcher.subscribers.period * 1e9)
        for identity, worker in self.workers.items():
            if worker.recording is not None:
                self._rested(identity, worker)
                events, dropped = worker.recording.take(worker)
                for batch in t.event_batches(events):
                    self.say(identity, m.Events(self._clock(), dropped, batch))
                    dropped = 0
        self._hand_out(self.dispatcher.handle(self.publish(time.time_ns()), self._now()))

    def _hear(self, message: m.Message) -> None:
        """Pass a message to the watcher."""
        if isinstance(message, m.Events) and self.told is not None:
            self.told(message.events, message.dropped)
            self.seen += 1
            self.say(WATCHER_IDENTITY, m.Watch(self.level, self.seen))

    def check(self) -> None:
        """The invariants of all cores."""
        self.dispatcher.check()
        for worker in self.workers.values():
            worker.check()


class NoBulk:
    """What a link without sockets has in place of them: control messages carry all data, and nobody is ever silent."""

    resend_bytes = 0
    search: StandbySearch | None = None
    """Nobody is lost here but with all others."""

    def __init__(self) -> None:
        self.memory = Pool(half_of_memory())

    def together(self) -> AbstractContextManager[None]:
        """Everything is sent by itself."""
        return nullcontext()

    def encode(self, message: m.Message) -> Frames:
        """Never called."""
        return []

    def send_frames(self, frames: Frames) -> None:
        """Never called."""

    def silent_seconds(self) -> float:
        """Always 0: everything was answered when it was sent."""
        return 0.0

    def prepare(self, array: np.ndarray[Any, Any], kind: Hashable) -> None:
        """Returns every array, to travel with its message."""

    def has_memory(self, nbytes: int, count: int) -> bool:
        """Nothing is kept."""
        return True

    def put_bulk(self, tensor: int, put: Any, *, later: bool = False) -> Any:
        """Never comes."""

    def cut(self, message: m.Cut) -> None:
        """Never comes."""

    def sending(self, tensor: int) -> bool:
        """Never."""
        return False

    def under_way(self) -> tuple[int, int]:
        """Nothing."""
        return 0, 0

    def local_values(self, tensor: int) -> None:
        """Workers have memory of their own."""

    def cancel(self, tensor: int) -> None:
        """Nothing is under way."""

    def break_off(self, lost: int) -> None:
        """Nothing is under way."""

    def give_up_lost(self) -> None:
        """Nothing is lent."""

    def look_again(self, hello: m.Message) -> bool:
        """Never comes."""
        return False

    def found_again(self, facts: dict[str, Any]) -> None:
        """Never comes."""

    def rewind(self, client: int, lost: int, puts: Any) -> None:
        """Never comes."""

    def offer_fetch(self, request: int, known: Spec) -> None:
        """Every array comes with its message."""

    def settle(self, request: int) -> None:
        """Nothing was offered."""

    def ignore(self, message: m.Value) -> None:
        """Never comes."""

    def fetch_bulk(self, message: m.Value, array: np.ndarray[Any, Any], done: Callable[[], None]) -> None:
        """Never comes."""


class InprocLink(NoBulk):
    """The client's end of a `Fabric`."""

    def __init__(self, fabric: Fabric, identity: bytes = CLIENT_IDENTITY) -> None:
        super().__init__()
        self.fabric = fabric
        self.identity = identity

    def send(self, message: m.Message) -> None:
        """Deliver a message, and everything that follows from it."""
        if not isinstance(message, m.Ping):
            self.fabric.say(self.identity, message)
            self.fabric.run()

    def receive(self) -> list[m.Message]:
        """The dispatcher's answers so far."""
        inbox = self.fabric.inboxes.get(self.identity)
        if not inbox:
            return []
        found = list(inbox)
        inbox.clear()
        return found

    def wait(self, timeout: float) -> None:
        """Does nothing: everything happened when it was sent."""

    def alive(self) -> str | None:
        """Why waiting is pointless: whatever was going to be answered has been."""
        return "every message was delivered and none answers this"

    def close(self) -> None:
        """Does nothing."""
