"""The worker's shell: connects `core.py` to sockets (control, bulk data, pieces from peers), files and the clock."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gt.daemon.active_clock import ActiveClock
from gt.daemon.descriptors import connection_limit, descriptor_limit
from gt.daemon.file_thread import FileThread
from gt.daemon.host import (
    CONNECT_TIMEOUT,
    environment_number,
    host_facts,
    memory_limit,
    resident_memory,
    start_timeout,
)
from gt.daemon.logs import DaemonLog
from gt.daemon.mark_folder import mark_facts, mark_folder
from gt.daemon.process_end import process_descriptor
from gt.daemon.worker_number import write_number
from gt.errors import GTError, ProtocolError
from gt.op_packages.offers import own_offer
from gt.sharding import options
from gt.sharding.collectives import MAX_CHUNK_BYTES
from gt.snapshot_files.snapshot_names import default_folder
from gt.standby.search import StandbySearch
from gt.wire import addresses, transport
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.bulk import Frames
from gt.wire.connection import Connection
from gt.wire.connection_limit import ConnectionLimit
from gt.wire.keys import keys_for, owner_keys
from gt.wire.messages import codec
from gt.wire.reliable_stream import LEASE_SECONDS
from gt.wire.shared_memory.memfd import DEFAULT_SHARED_BYTES, machine
from gt.wire.shared_memory.running_plan import RunningPlanMemory
from gt.wire.subscription import Subscription
from gt.worker.base.backend import Backend, backend
from gt.worker.base.events import (
    BulkOut,
    MarkIn,
    MarkPacked,
    MarkWork,
    SnapshotIn,
    SnapshotWork,
    ToDispatcher,
    ToPeer,
    Unreachable,
)
from gt.worker.device.async_copies import Staging
from gt.worker.device.heap import long_lived
from gt.worker.device.nvml import HealthSamples, NvmlGpu
from gt.worker.execution.device_failure import DeviceFailed
from gt.worker.execution.done_reports import MAX_UNREPORTED_PLANS, DoneReports
from gt.worker.lifecycle import restart
from gt.worker.lifecycle.calibrate import facts as measured
from gt.worker.lifecycle.calibrate import threads
from gt.worker.memory_limit.limiter import MemoryLimiter, memory_limiter
from gt.worker.nccl.communicators import Communicators, in_thread
from gt.worker.snapshots.mark_files import FORGET_WRITTEN, MarkFiles
from gt.worker.snapshots.snapshot_work import SnapshotFiles
from gt.worker.telemetry.recorder import Instruments
from gt.worker.transfer.compression import packer
from gt.worker.transfer.link_probe import LinkProbes
from gt.worker.transfer.peer_connections import PeerConnections
from gt.worker.transfer.peer_keys import PeerKeys
from gt.worker.transfer.shared_memory import LentMemory

from .bulk_data import BulkData
from .core import PEER_TIMEOUT_SECONDS, WorkerCore
from .message_table import SENDERS, Sender
from .pulse import send_pulses

log = logging.getLogger("gt.worker")
TICK_SECONDS: Final = 1.0
"""The seconds after which an idle worker handles the time."""
CROWDED_SLOTS: Final = 8
"""The number of slots of shared memory in use from which on a sender waits a moment for its readers."""
PAUSE_MS: Final = 2
"""The milliseconds of that moment."""
EAGER_POLL_SECONDS: Final = 0.002
"""The seconds after an arrival from a GPU for which it is polled without pause; later it is polled every millisecond."""
LOOK_SECONDS: Final = 0.25
"""The seconds between two looks at the connections."""
JOIN_SECONDS: Final = 0.02
"""The seconds between two looks while the worker waits for a dispatcher."""
HAND_OUT_SECONDS: Final = 10.0
"""The seconds that a drained worker has to send the rest of fetched tensors."""


class WorkerShell:
    """One worker process: its sockets, threads and state machine."""

    def __init__(
        self, address: str, device: str | None, *, watch: int | None = None, folder: str | None = None,
        listen: str | None = None, announce: str | None = None, logs: DaemonLog | None = None, marks: str | None = None,
        spare: bool = False, supervised: bool = False,
    ) -> None:  # fmt: skip
        if announce:
            # it must be an address, or every other worker would stumble over it
            transport.Dealer(announce, transport.new_identity()).close()
        elif listen and addresses.is_wildcard(listen):
            raise addresses.AddressRefused(f"nobody connects to {listen}: --announce says where other workers reach it")
        self.address, service, epoch = restart.moved(address)
        self.logs = logs
        self.watch = watch
        self.spare = spare
        """Whether it asks to wait until another worker is lost."""
        self.supervised = supervised or watch is not None
        """Whether another one is started when this one ends."""
        limit = environment_number("GT_SHARED_MEMORY", DEFAULT_SHARED_BYTES)
        self.memory = LentMemory(limit)
        timeout = environment_number("GT_PEER_TIMEOUT", PEER_TIMEOUT_SECONDS)
        self.limit = memory_limit()
        self.group_size = options.from_environment("nvlink_group_size")
        self.lease = environment_number("GT_LEASE", LEASE_SECONDS)
        self.patience = (
            CONNECT_TIMEOUT if watch is None else start_timeout()
        )  # it may have been started with its dispatcher
        self.clock = ActiveClock()
        computed = backend(device, threads())
        if computed.torch is not None:
            computed.torch.use_threads(threads())
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        card = computed.card_memory() if computed.card_memory is not None and limit else None
        self.running_plan = _running_plan_memory()
        self.core = WorkerCore(
            computed,
            self.memory,
            turn=MAX_CHUNK_BYTES,
            peer_timeout=timeout,
            links=LinkProbes(),
            packer=packer(),
            reports=DoneReports(MAX_UNREPORTED_PLANS),
            limiter=_limited(computed),
            communicators=self._communicators(computed, timeout),
            card=card,
            running_words=None if self.running_plan is None else self.running_plan.words,
            long_lived=long_lived,
            instruments=Instruments(
                time.monotonic_ns,
                self._memory,
                lambda: self.memory.lent * MAX_CHUNK_BYTES,
            ),
        )
        self.core.stops = True
        self.own_folder = None if folder or listen else tempfile.mkdtemp(prefix="gt-worker-")
        times = restart.restart_count(0.0)  # peers of the one before may still have something for it
        path = Path(folder or self.own_folder or "") / f"worker-{os.getpid()}{f'-{times}' if times else ''}"
        self.is_local = not listen or listen.startswith("ipc://")
        """Whether other workers reach it on this machine alone."""
        self.shared_folder = Path(folder) if folder else None
        """That of the daemons that were started together with this one."""
        self.peer_keys = PeerKeys()
        self.peers = PeerConnections(listen or f"ipc://{path}", self.peer_keys)
        self.peers_in = self.peers.router.socket
        self.connection_limit = ConnectionLimit([self.peers_in], connection_limit(descriptor_limit()))
        self.connection_limit.start()
        self.strangers = 0
        """How many connections of others than workers were refused, as far as it was noticed."""
        self.peer_address = self.memory.announce(self.peer_keys.announce(announce or transport.endpoint(self.peers_in)))
        if card is not None:
            self.peer_address = card.announce(self.peer_address)
        self.keys = keys_for(address) or (owner_keys(self.address) if epoch else None)
        self.search = StandbySearch(self.keys, self.clock, {"worker": self.peer_address}, service=service, epoch=epoch)
        """For the dispatcher that may take the place of this worker's."""
        self.control = Connection(self.address, lease=self.lease, reopened=self._reopened, keys=self.keys)
        self.published = Subscription(self._publisher, self._say, self._reopened)
        """What comes by the socket for messages to large groups, once this worker is in one."""
        self.bulk: Connection | None = None
        self.bulk_identity = transport.new_identity()
        self.bulk_due = 0.0
        """When that connection must have been accepted."""
        self.poller = transport.poller()
        self.registered: list[Any] = []
        """The sockets of the dispatcher to which the poller listens; they change when a connection is opened again."""
        self.look_at = 0.0
        """When the connections are looked at next."""
        self.snapshots: FileThread[SnapshotWork, m.SnapshotReport | SnapshotIn] = FileThread(
            "gt-snapshots", SnapshotFiles(default_folder()), self._wake
        )
        self.mark_folder = Path(marks) if marks else self.shared_folder and mark_folder(self.shared_folder)
        """Where all workers of the service keep the files of marks, if they do."""
        self.mark_files = MarkFiles(self.mark_folder, time.monotonic_ns)
        self.marks: FileThread[MarkWork, m.MarkTaken | MarkIn | MarkPacked] = FileThread(
            "gt-marks", self.mark_files, self._wake
        )
        self.large = BulkData(self.core, self._send_bulk, self._say, self._handle, self._refuse, borrows=bool(limit))
        self.dispatcher_process: int | None = None
        """A descriptor of the dispatcher's process, if that is on this machine and started again when it ends."""
        self.pulses = False
        """Whether the thread that sends heartbeats runs."""
        self.facts: dict[str, Any] = {}
        """What it says of itself."""
        self.joins_since = self.trim_at = 0.0
        """Since when it waits for a dispatcher."""
        self.stopping = False
        self.rejoins = False
        """Whether this process is to join as a new worker."""
        self.orphaned = False
        """Whether the process that started this one is gone."""
        self.parts_copied = 0
        """How many parts had come from the GPU when it was last polled."""
        self.asked: float | None = None
        """When the last of them had come, or polling for the next began."""
        self.reason = ""
        self.dismissed = False
        """Whether the dispatcher ended it for an error, and not because it stops itself."""
        self.drained = False
        """Whether the dispatcher ended it because nothing is left on it."""
        self.failed = ""
        """Why the device has failed, or the bug that this worker has met: it starts again."""
        self.refused = 0

    def run(self) -> int:
        """Serve until told to stop. Returns the exit status."""
        self.facts = {
            **host_facts(), "machine": machine(), "address": self.peer_address, "bulk": self.bulk_identity,
            "device": self.core.backend.name, "kind": self.core.backend.kind, "cores": len(os.sched_getaffinity(0)),
            "nvlink_group_size": self.group_size, "supervised": self.supervised, "spare": self.spare,
            **mark_facts(self.mark_folder), **self.search.known, **self.core.facts, "ops": own_offer(),
            **({} if self.running_plan is None else {"running": self.running_plan.where}),
            **measured(self.core.backend, time.time()),
        }  # fmt: skip
        self._say(m.Hello(m.VERSION, "worker", self.facts))
        for source in (self.peers_in, self.wake_read):
            self.poller.register(source, transport.READABLE)
        if self.watch is not None:
            self.poller.register(self.watch, transport.READABLE)
        self._reopened()
        self.joins_since = self.clock()
        while not self.stopping:
            ready, now = self._ready(self.poller)
            if self.watch is not None and self.watch in ready:
                self.orphaned = True
                return 0
            if self.dispatcher_process is not None and self.dispatcher_process in ready:
                self._join_anew(f"the dispatcher at {self.address} has ended")
                continue
            if self.bulk is not None and self.bulk.socket in ready:
                # first: what is lent already need not be asked for by the puts that are heard of next
                self._hear_bulk(self.bulk)
            if self.control.socket in ready:
                self._hear(self.control.receive(polled=True), self.control.receive)
            if self.published.socket in ready:
                self._hear(self.published.receive(), self.published.receive)
            if self.peers_in in ready:
                self._hear_peers()
            cut_off = self.control.accepted or bool(self.search.address)  # what was may still go on
            patience = self.lease if cut_off else self.patience
            if self.bulk is None and now - self.joins_since > patience:
                log.error("no dispatcher answered at %s within %g s; start one with `gt dispatcher --address %s`%s",
                          self.address, patience, self.address, self._key_advice())  # fmt: skip
                return 1
            if now >= self.look_at and not self._look(now):
                return 1
            if self.wake_read in ready:
                self._woken()
            self._between(now, idle=not ready)
        return self._end()

    def _key_advice(self) -> str:
        """What else may be the cause of a dispatcher's silence."""
        if not self.address.startswith("tcp://"):
            return ""
        return f"; if one runs there, it does not accept {'this key' if self.keys else 'peers without a key (GT_KEY)'}"

    def _reopened(self) -> None:
        """Listen to the sockets that there are now."""
        for socket in self.registered:
            self.poller.unregister(socket)
        connections = [self.control] if self.bulk is None else [self.control, self.bulk]
        self.registered = [connection.socket for connection in connections]
        if self.published.socket is not None:
            self.registered.append(self.published.socket)
        for socket in self.registered:
            self.poller.register(socket, transport.READABLE)

    def _look(self, now: float) -> bool:
        """Look after the connections. Returns whether those to the dispatcher can go on."""
        self.peers.look()
        self.look_at = now + (JOIN_SECONDS if self._seeks else min(LOOK_SECONDS, self.peers.patience))
        for _ in range(self.connection_limit.strangers - self.strangers):
            self.strangers += 1
            self._refuse(ProtocolError("a connection of a peer that has not the key of this service's workers"))
        for connection in (self.control, self.bulk):
            if connection is None:
                continue
            connection.look()
            if connection.unknown:
                self._join_anew(f"the dispatcher at {self.address} does not know this worker any more")
                return True
            elif connection.failed:
                log.error("the dispatcher at %s: %s", self.address, connection.failed)
                return False
            elif connection.stream.owed_messages:
                connection.send_unnumbered([b""])
        if self.search.look(None if self.bulk is None else self.control):
            before, self.address = self.address, self.search.take()
            self._join_anew(f"the dispatcher at {self.address} has taken the place of the one at {before}")
            return True
        self.published.look(now)
        return self._bulk_is_open(now)

    @property
    def _seeks(self) -> bool:
        """Whether it has no dispatcher that answers."""
        return self.bulk is None or self.search.asks

    def _join_anew(self, reason: str) -> None:
        """Join the next dispatcher as a new worker, with nothing but compiled programs: what sessions had here is in the files of
        marks. Where more than memory of this process is involved, the program is loaded anew for that."""
        log.warning("%s: this worker joins anew", reason)
        if self.core.backend.kind != "cpu" or self.core.stored.limiter is not None or not self.is_local:
            self.rejoins = self.stopping = True
            return
        for send in self.core.leave(self.clock()):
            if isinstance(send, Unreachable):
                self.peers.forget(send.worker, send.address)
        if self.core.running is not None:
            self.rejoins = self.stopping = True
            return
        self.snapshots.disregard(skip=True)  # a later snapshot of that name may be whole by then
        self.marks.disregard()
        self.marks.add(FORGET_WRITTEN)
        self.control.close()
        self.published.close()
        if self.bulk is not None:
            self.bulk.close()
            self.bulk = None
        self._watch_dispatcher(None)
        self.large.begin()
        self.peers.number = -1
        self.bulk_identity = self.facts["bulk"] = transport.new_identity()
        self.control = Connection(self.address, lease=self.lease, reopened=self._reopened, keys=self.keys)
        self.published = Subscription(self._publisher, self._say, self._reopened)
        self._reopened()
        self.joins_since = self.clock()
        self._say(m.Hello(m.VERSION, "worker", self.facts))

    def _watch_dispatcher(self, process: int | None) -> None:
        """Watch this process, by its descriptor, and no other one."""
        if self.dispatcher_process is not None:
            self.poller.unregister(self.dispatcher_process)
            os.close(self.dispatcher_process)
        self.dispatcher_process = process
        if process is not None:
            self.poller.register(process, transport.READABLE)

    def _bulk_is_open(self, now: float) -> bool:
        """Whether the socket for large data was reached, or there is still time for that. Where the control socket hears
        nothing either, both were cut off, and the time does not count."""
        if self.bulk is None or self.bulk.accepted:
            return True
        if self.control.silent_seconds > 2 * TICK_SECONDS:
            self.bulk_due = now + CONNECT_TIMEOUT
        if now < self.bulk_due:
            return True
        log.error("%s did not answer within %g s, and %s does: large data needs both addresses",
                  self.bulk.address, CONNECT_TIMEOUT, self.address)  # fmt: skip
        return False

    def _between(self, now: float, *, idle: bool) -> None:
        """Do the periodic work between two events: time, memory, reports, events for watchers."""
        if idle or (self.core.backend.staging is not None and self.core.asks):
            self._handle(None)
        if now >= self.trim_at:  # also where messages come all the time
            self.trim_at = now + TICK_SECONDS
            self.large.trim(now)
        self.large.give_back()
        self._report(idle=True)
        self._tell()

    def _end(self) -> int:
        """Log and report why this worker ends. Returns the exit status."""
        if self.failed:
            log.error("%s; all that it held is lost", self.failed)
            self._say(m.Goodbye("WorkerLost", self.failed))
            return 1
        if self.dismissed:
            log.error("%s", self.reason)
            return 1  # whoever supervises it starts it again
        if self.drained:
            self._hand_out()
            self._say(m.Goodbye("", "it was drained"))
        if self.reason:
            log.info("%s", self.reason)
        elif not self.rejoins:
            self._say(m.Goodbye("", "it was stopped"))
        return 0

    def _hand_out(self) -> None:
        """Send the rest of fetched tensors to clients that have yet to receive it, for some seconds at most."""
        bulk, until = self.bulk, self.clock() + HAND_OUT_SECONDS
        if bulk is None:
            return
        while self.large.streams.outbox.streams and self.clock() < until and not bulk.failed:
            poller = transport.poller()
            poller.register(bulk.socket, transport.READABLE)
            poller.poll(int(TICK_SECONDS * 1000))
            self._hear_bulk(bulk)
            bulk.look()
        self.large.give_back()
        bulk.close(linger=200)

    def fail(self, error: Exception) -> int:
        """Log and report the exception that ends this worker. Returns the exit status.

        All sessions share what it holds, and its peers wait for its pieces, so after a bug there is nothing it could go on
        with: it is lost, and starts again like one whose device has failed.
        """
        if isinstance(error, GTError):
            log.error("%s", error)
            reason = str(error)
        else:
            log.error("a bug in GT ends this worker; please report it", exc_info=error)
            reason = self.failed = (
                f"a bug in GT: {type(error).__name__}: {error}; please report it, with the worker's log"
            )
        self._say(m.Goodbye("WorkerLost", reason))
        return 1

    def _ready(self, poller: Any) -> tuple[dict[Any, int], float]:
        """Wait until something arrives or is due. Returns the readable sockets and the time."""
        recording = self.core.recording
        if recording is None:
            return dict(poller.poll(self._patience())), self.clock()
        began = time.monotonic_ns()
        found = dict(poller.poll(self._patience()))
        recording.rested(began, time.monotonic_ns(), self.core.running is not None)
        return found, self.clock()

    def _tell(self) -> None:
        """Send the recorded events to watchers when a batch is due."""
        recording = self.core.recording
        if recording is not None and recording.since >= recording.due:  # as of the last look at the clock
            events, dropped = recording.take(self.core)
            for batch in t.event_batches(events):
                self._say(m.Events(recording.clock(), dropped, batch))
                dropped = 0

    def _memory(self) -> tuple[int, int]:
        """The bytes in use by this process or on its GPU, and those of the machine or GPU in all."""
        if self.core.backend.kind == "cuda":
            free, total = self.core.backend.xp.cuda.runtime.memGetInfo()
            return int(total - free), int(total)
        return resident_memory(), self.limit

    def _patience(self) -> int:
        """The milliseconds to wait for events. A worker that has more to send than readers have caught up with waits a moment
        for them, so that few slots are used again and again and stay in caches; no longer, because they may be far behind."""
        if self.core.busy:
            return PAUSE_MS if self.memory.lent >= CROWDED_SLOTS else 0
        if self.core.fuses:
            return 0
        staging = self.core.backend.staging
        if staging is not None and (pause := self._asking(staging)) is not None:
            return pause
        wait = JOIN_SECONDS if self._seeks else min(TICK_SECONDS, self.peers.patience)
        if self.core.reports.count:
            return int(min(wait, self.core.reports.wait(self.clock())) * 1000) + 1
        recording = self.core.recording
        if recording is not None:
            wait = min(wait, max(0, recording.due - recording.since) / 1e9)
        return int(wait * 1000) + 1

    def _communicators(self, computed: Backend, patience: float) -> Communicators | None:
        """The NCCL communicators of a worker that can take part in joint moves, with a thread that aborts overdue ones."""
        if computed.nccl is None:
            return None
        found = Communicators(computed.nccl, patience, time.monotonic, in_thread, self._wake)
        in_thread(found.watch)
        return found

    def _wake(self) -> None:
        """Make the shell call the core; any thread may."""
        try:
            os.write(self.wake_write, b"x")
        except BlockingIOError:
            pass  # it is about to be

    def _woken(self) -> None:
        try:
            os.read(self.wake_read, 1 << 12)
        except BlockingIOError:
            pass
        if not self.stopping:
            self._handle(None)
            for answer in (*self.snapshots.answers(), *self.marks.answers()):
                if isinstance(answer, SnapshotIn | MarkIn | MarkPacked):
                    self._handle(answer)
                else:
                    self._say(answer)

    def _asking(self, staging: Staging) -> int | None:
        """The milliseconds until the device is polled again; None if nothing is on its way from it."""
        if not self.core.asks:
            self.asked = None
            return None
        now = time.monotonic()
        if self.asked is None or self.parts_copied != staging.parts_copied:
            self.parts_copied, self.asked = staging.parts_copied, now
        return 0 if now - self.asked < EAGER_POLL_SECONDS else 1

    def stop(self, *_: Any) -> None:
        """Stop at the next turn; safe in a signal handler."""
        self.stopping = True
        self._wake()

    def close(self) -> None:
        """Close the sockets and remove what is left of them."""
        self.control.close(linger=200)
        self.published.close()
        self.search.stop()
        if self.core.stored.limiter is not None:
            self.core.stored.limiter.spill.close()
        self.peers.close()
        if self.own_folder:
            shutil.rmtree(self.own_folder, ignore_errors=True)

    def _say(self, message: m.Message) -> None:
        self.control.send(codec.encode(message))

    def _publisher(self, address: str) -> transport.SubscriberSocket:
        """A connection to the dispatcher's publishing socket."""
        return transport.SubscriberSocket(addresses.reachable(address, self.address), self.keys)

    def _hear(self, frames: list[Any] | None, receive: Callable[[], list[Any] | None]) -> None:
        """Handle a message of the dispatcher, if there is one, and those behind it."""
        while frames is not None:
            message = codec.decode(frames)
            own = CONNECTION_HANDLERS.get(type(message))
            if own is not None:
                own(self, message)
                if self.reason:
                    return
            if SENDERS.get(type(message)) is Sender.DISPATCHER:
                if self.core.stored.limiter is None or not self.core.announce(message):
                    self._act(message)
            elif own is None:
                raise ProtocolError(f"{type(message).__name__} is nothing that a dispatcher says to a worker")
            frames = receive()
        if self.core.stored.limiter is not None:
            self._act(None)

    def _act(self, message: m.Message | None) -> None:
        """Have the core handle a message, or those announced, and send what follows from it."""
        self._handle(message)
        self._report(idle=False)
        self._tell()

    def _goodbye(self, message: m.Goodbye) -> None:
        self.reason = f"the dispatcher ended it: {message.text}"
        self.drained = message.kind == m.DRAINED
        self.dismissed = bool(message.kind) and not self.drained
        self.stopping = True

    def _welcome(self, welcome: m.Welcome) -> None:
        """Connect the bulk socket, and start the thread that sends heartbeats."""
        self.search.welcomed(self.address, welcome.facts)
        self.facts |= self.search.known
        self.peers.number = welcome.number
        self.peer_keys.shared(welcome.facts.get("peer_secret"))
        self.control.lease = self.lease = float(welcome.facts.get("lease", self.lease))
        if self.watch is not None:
            self._watch_dispatcher(process_descriptor(welcome.facts.get("process"), host_facts()))
        address = addresses.reachable(str(welcome.facts["bulk_address"]), self.address)
        self.bulk = Connection(
            address, identity=self.bulk_identity, lease=self.lease, reopened=self._reopened, keys=self.keys
        )
        self.bulk_due = self.clock() + CONNECT_TIMEOUT
        self._reopened()
        if self.logs is not None:
            self.logs.facts["worker"] = welcome.number
        if self.shared_folder is not None and self.shared_folder.is_dir():
            write_number(self.shared_folder, welcome.number)
        if not self.pulses:
            self.pulses = True
            bus = self.core.backend.bus
            samples = None if bus is None else HealthSamples(NvmlGpu(bus)).start()
            pulse = (
                lambda: self.address,
                self.keys,
                self.peer_address,
                self.logs,
                samples,
                lambda: self.bulk is not None,
                self._file_progress,
            )
            threading.Thread(target=send_pulses, args=pulse, daemon=True).start()
        log.info("worker %d on %s at your service", welcome.number, self.core.backend.name)

    def _file_progress(self) -> m.FileProgress:
        """How far the thread has come that writes the files of marks. May be called in any thread."""
        idle = self.marks.done == self.marks.added
        return m.FileProgress(self.marks.done + self.mark_files.chunks, idle)

    def _handle(self, event: Any) -> None:
        """Have the core handle an event, and what it has queued, and send what follows from it."""
        self._handle_some(event)
        while self.core.stopped and not self.stopping:
            self._report(idle=False)
            self._handle_some(None)

    def _handle_some(self, event: Any) -> None:
        try:
            sends = self.core.handle(event, self.clock())
        except DeviceFailed as error:
            self.failed = str(error)
            self.stopping = True
            return
        for send in sends:
            if isinstance(send, ToDispatcher):
                self.control.send(codec.encode(send.message))
            elif isinstance(send, BulkOut):
                self.large.part(send)
            elif isinstance(send, ToPeer):
                self.peers.send(send.address, codec.encode(send.message))
            elif isinstance(send, SnapshotWork):
                self.snapshots.add(send)
            elif isinstance(send, MarkWork):
                self.marks.add(send)
            elif isinstance(send, Unreachable):
                self.peers.forget(send.worker, send.address)
            else:
                self.large.streams.drop_client(send.client)
        self.large.open_puts()  # whatever the event was: the core may have caught up with its queue

    def _report(self, *, idle: bool) -> None:
        """Report finished work when a report is due."""
        if self.core.reports.count:
            for done in self.core.reports.due(self.clock(), idle=idle):
                self._say(done)

    def _send_bulk(self, frames: Frames) -> None:
        assert self.bulk is not None, "bulk data comes after the welcome"
        self.bulk.send(list(frames))

    def _hear_bulk(self, bulk: Connection) -> None:
        for _ in range(64):
            frames = bulk.receive()
            if frames is None:
                return
            self.large.heard(frames)

    def _hear_peers(self) -> None:
        while True:
            try:
                frames = self.peers.receive()
                if frames is None:
                    return
                message = codec.decode(frames, codec.FROM_PEER)
                if SENDERS.get(type(message)) is not Sender.PEER:
                    raise ProtocolError(f"{type(message).__name__} from a peer")
            except ProtocolError as error:
                self._refuse(error)
                continue
            self._handle(message)

    def _refuse(self, error: Exception) -> None:
        self.refused += 1
        if self.refused == 1:
            log.warning("refused a message on a data socket: %s", error)


CONNECTION_HANDLERS: Final[dict[type, Callable[[WorkerShell, Any], None]]] = {
    m.Welcome: WorkerShell._welcome,
    m.Goodbye: WorkerShell._goodbye,
    m.StandBy: lambda shell, message: setattr(shell.search, "address", message.address),
    m.Subscribe: lambda shell, message: shell.published.subscribe(message),
    m.Unsubscribe: lambda shell, message: shell.published.subscribe(message),
    m.Switch: lambda shell, message: shell.published.switch(message),
    m.Lapse: lambda shell, message: shell.published.lapse(message),
    m.Unswitch: lambda shell, message: shell.published.resume(message),
}
"""What a dispatcher says about the connection itself, and what handles it."""


def _limited(computed: Backend) -> MemoryLimiter | None:
    """The memory limiter that the environment asks for; None without a limit."""
    said = {name: options.from_environment(name) for name in options.WORKER_OPTIONS}
    share = threads() / len(os.sched_getaffinity(0))  # of the host's memory a worker has as much as of its cores
    return memory_limiter(said, computed, int(memory_limit() * share))


def _running_plan_memory() -> RunningPlanMemory | None:
    """The memory in which a worker tells what it is computing; None if the system gives none."""
    try:
        return RunningPlanMemory()
    except OSError as error:
        log.debug("who looks for the cause of this worker's end will not find which plan it was at: %s", error)
        return None
