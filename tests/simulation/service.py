"""A whole service in one process: the real shells of dispatcher and workers, and real sessions, in virtual time.

`Service` puts stand-ins in the place of what they reach the operating system by, for as long as it lives. No keys are used, and
speeds of workers are not measured.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

import gt.client.session.idle_flush
import gt.client.session.session
import gt.client.session.sessions
import gt.client.session.sigint_lock
import gt.client.session.socket_link
import gt.dispatcher.bulk_relay
import gt.dispatcher.cost.cost_model
import gt.dispatcher.handlers.disconnect
import gt.dispatcher.handlers.recovery
import gt.dispatcher.peer_processes
import gt.dispatcher.shell
import gt.dispatcher.state.shared_parts
import gt.monitor.stream
import gt.service.session
import gt.wire.connection
import gt.worker.pulse
import gt.worker.shell
import gt.worker.transfer.peer_connections
from gt.daemon import file_thread
from gt.daemon.active_clock import ActiveClock
from gt.dispatcher.access import Access
from gt.dispatcher.session_files import FileWork, SessionFiles
from gt.dispatcher.session_meshes.mesh_migration import delivery_plan, restore_parts
from gt.dispatcher.state.survivors import survivors
from gt.errors import GTError
from gt.wire.shared_memory.running_plan import RunningPlanMemory
from gt.worker.base.events import MarkWork, SnapshotWork
from gt.worker.snapshots.mark_files import MarkFiles
from gt.worker.snapshots.snapshot_work import SnapshotFiles

from .network import Link, VirtualTransport
from .scheduler import Killed, Process, Scheduler, Signal
from .stand_ins import Descriptors, VirtualOs, VirtualQueue, VirtualSelect, VirtualThreading, VirtualTime
from .substitutes import Substitutes
from .witness import Witness

ADDRESS = "ipc:///simulated"
LEASE_SECONDS = 60.0
"""The lease of sessions and workers."""
FATAL_SIDE = 13
"""A worker that decomposes a matrix of so many rows ends."""
RESTART_SECONDS = 1.0
"""After so long a process that was killed is started again."""

session, sessions = gt.client.session.session, gt.client.session.sessions
dispatcher, processes = gt.dispatcher.shell, gt.dispatcher.peer_processes
worker, pulse = gt.worker.shell, gt.worker.pulse


class DefaultSessions:
    """The default session of whichever program is running, in place of the one of this process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    @property
    def own(self) -> list[Any]:
        """That of the running program."""
        return self.scheduler.process_now.default_sessions

    def __bool__(self) -> bool:
        return bool(self.own)

    def __getitem__(self, at: int) -> Any:
        return self.own[at]

    def __setitem__(self, at: slice, value: list[Any]) -> None:
        self.own[at] = value

    def pop(self) -> Any:
        return self.own.pop()


class NoRegistration:
    """In place of an entry among this machine's services."""

    def __init__(self, _address: str, _key: str = "", *, shared: bool = True, marks: Path | None = None) -> None:
        pass

    def close(self) -> None:
        """Nothing was written."""


class NoConnectionLimit:
    """In place of a limit for descriptors, of which none are used."""

    strangers = refused = 0

    def __init__(self, _sockets: list[Any], _limit: int, _guard: Any = None) -> None:
        pass

    def start(self) -> None:
        """No thread is needed."""


class SlowFiles(SnapshotFiles):
    """A worker's files, which take a while: processes may die meanwhile."""

    def __init__(self, root: Path, service: Service) -> None:
        super().__init__(root)
        self.service = service

    def do(self, work: SnapshotWork) -> Any:
        self._wait()
        return super().do(work._replace(values=self._slowly(work.values)) if work.values else work)

    def _slowly(self, values: Any) -> Any:
        for value in values:
            yield value
            self._wait()

    def _wait(self) -> None:
        self.service.scheduler.wait([], self.service.slow_files.random() ** 3)


class SlowMarks(MarkFiles):
    """A worker's files of marks, which take a while."""

    def __init__(self, folder: Path | None, clock: Callable[[], int], service: Service) -> None:
        super().__init__(folder, clock)
        self.service = service

    def do(self, work: MarkWork) -> Any:
        scheduler = self.service.scheduler
        scheduler.wait([], self.service.slow_files.random() ** 3)
        answer = super().do(work)
        return None if scheduler.now < self.service.mute.get(scheduler.process_now.name, 0.0) else answer


class SlowSessions(SessionFiles):
    """A dispatcher's files of sessions, which take a while."""

    def __init__(self, folder: Path, clock: Callable[[], int], service: Service) -> None:
        super().__init__(folder, clock)
        self.service = service

    def do(self, work: FileWork) -> Any:
        self.service.scheduler.wait([], 0.1 * self.service.slow_files.random() ** 3)
        return super().do(work)


class NoMemoryGuard:
    """In place of a guard of real connections."""

    ended = 0

    def __init__(self, _listeners: list[Any]) -> None:
        pass

    def trust(self, _listener: int) -> None:
        """Nobody is suspected."""


class Interruption(NamedTuple):
    """Somebody could not talk from one time to another; `fatal`: what it held is lost."""

    name: str
    start: float
    end: float
    fatal: bool


class Service:
    """A dispatcher, workers that are started again when they end, and programs. A context manager."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.descriptors = Descriptors()
        self.network = VirtualTransport(self.scheduler, self.descriptors)
        self.substitutes = Substitutes()
        self.dispatcher: Process | None = None
        self.dispatcher_shell: Any = None
        self.workers: dict[str, Process] = {}
        self.worker_shells: dict[str, Any] = {}
        self.programs: dict[str, Process] = {}
        self.spares: set[str] = set()
        """The workers that are started as spares."""
        self.unsupervised: set[str] = set()
        """The workers that nobody starts again, as far as the dispatcher knows."""
        self.shrunk = 0
        """How often sessions went back to a mark on fewer workers than it was taken on."""
        self.shared_bytes = 0.0
        """The memory that each process on the dispatcher's machine shares; none, and all data travels."""
        self.size = 0
        """How many workers were started together."""
        self.snapshots = tempfile.TemporaryDirectory(prefix="gt-simulated-")
        """The folder of all workers' snapshots."""
        self.limits: Any = None
        """The operator's file of limits (`limits.py`), if there is one."""
        self.published: dict[str, Any] = {}
        """What programs have published, by name."""
        self.marks = tempfile.TemporaryDirectory(prefix="gt-simulated-")
        """The folder of all workers' marks."""
        self.apart = False
        """Whether each process of a worker has a folder of its own there, as on a machine of its own."""
        self.delivered = 0
        """How many parcels of marks peers have sent."""
        self.mark_seconds = 2.0
        """The least seconds between two marks of a session."""
        self.mute: dict[str, float] = {}
        """Workers that do not say what came of marks, and until when."""
        self.slow_files = random.Random(seed)
        """Draws how long reading and writing files takes."""
        self.interruptions: list[Interruption] = []
        """What has happened to it, of which programs may get errors."""
        self.unkept = False
        """Whether programs keep nothing of what they send, and lose what a lost worker alone held."""
        self.kept = 0
        """How often such a program kept tensors when a worker was lost."""
        self.frozen_seconds = 0.0
        """For how long all of it has stood still."""
        self.heals = False
        """Whether nothing happens to it any more."""
        self.stops = False
        """Whether nobody is started again any more."""

    def __enter__(self) -> Service:
        Signal.scheduler = scheduler = self.scheduler
        time, threading = VirtualTime(scheduler), VirtualThreading()
        link = gt.client.session.socket_link
        put = self.substitutes.put
        put("transport", self.network, gt.wire.connection, link, dispatcher, gt.dispatcher.bulk_relay, worker)
        put("transport", self.network, gt.worker.transfer.peer_connections, gt.monitor.stream)
        put("time", time, session, link, gt.client.session.idle_flush, gt.service.session, dispatcher, worker)
        put("time", time, gt.dispatcher.bulk_relay, gt.monitor.stream, pulse)
        put("threading", threading, session, sessions, gt.client.session.sigint_lock, gt.dispatcher.bulk_relay, worker)
        put("os", VirtualOs(scheduler, self.descriptors), dispatcher, processes, worker)
        put("select", VirtualSelect(scheduler, self.descriptors), processes, link)
        put("ActiveClock", lambda: ActiveClock(time.monotonic), gt.wire.connection, link, dispatcher, worker)
        put("environment_number", self._number, link, dispatcher, worker)
        put("host_facts", self._host_facts, link, dispatcher, worker, gt.service.session, gt.monitor.stream)
        put("machine", self._machine, worker)
        put("network_of", lambda _link: (1_000, 1), gt.dispatcher.cost.cost_model)
        put("keys_for", lambda _address: None, gt.monitor.stream)
        put("Registration", NoRegistration, dispatcher)
        put("Access", self._access, dispatcher)
        put("ConnectionLimit", NoConnectionLimit, dispatcher, worker)
        put("MemoryGuard", NoMemoryGuard, dispatcher)
        put("kill_sibling", self._kill, processes)
        put("measured", lambda _backend, _now: {"speed": [1e10, 1e10], "host_memory": 1 << 34}, worker)
        put("mark_facts", lambda folder: {"marks": True, "mark_folder": folder.name if self.apart else "one"}, worker)
        put("threads", lambda: 1, worker)
        put("packer", lambda: None, worker)
        put("_limited", lambda _backend: None, worker)
        put("threading", threading, file_thread)
        put("SimpleQueue", VirtualQueue, file_thread)
        put("SnapshotFiles", lambda root: SlowFiles(root, self), worker)
        put("MarkFiles", lambda folder, clock: SlowMarks(folder, clock, self), worker)
        put("SessionFiles", lambda folder, clock: SlowSessions(folder, clock, self), dispatcher)
        put("MIN_BYTES", 0, gt.dispatcher.state.shared_parts)
        put("survivors", self._survivors, gt.dispatcher.handlers.disconnect)
        put("restore_parts", self._restore_parts, gt.dispatcher.handlers.recovery)
        put("delivery_plan", self._delivery_plan, gt.dispatcher.handlers.recovery)
        put("default_folder", lambda: Path(self.snapshots.name), worker)
        put("cholesky", partial(self._cholesky, np.linalg.cholesky), np.linalg)
        put("_running_plan_memory", _running_plan_memory, worker)
        put("long_lived", nullcontext, worker)  # the garbage of services that have ended is to be found
        put("_default", DefaultSessions(scheduler), sessions)
        put("_no_builders", _own_builders, sessions)
        put("_builder_numbers", itertools.count(1), session)
        Witness(scheduler.failures).watch(self.substitutes)
        logging.disable(logging.CRITICAL)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stops = True
        for process in self.scheduler.processes:
            process.kill()
        self.scheduler.failures.clear()
        self.scheduler.run(
            self.scheduler.now + 1.0, lambda: all(t.finished for p in self.scheduler.processes for t in p.tasks)
        )
        self.substitutes.restore()
        self.snapshots.cleanup()
        self.marks.cleanup()
        if self.limits is not None:
            self.limits.path.unlink()
        logging.disable(logging.NOTSET)

    def _number(self, name: str, default: float) -> float:
        """What the environment would say."""
        shared = 0 if self.scheduler.process_now.name.startswith("remote") else self.shared_bytes
        values = {
            "GT_LEASE": LEASE_SECONDS,
            "GT_WORKER_LEASE": LEASE_SECONDS,
            "GT_SHARED_MEMORY": shared,
            "GT_MARK_SECONDS": self.mark_seconds,
            "GT_RECOVERY": 0 if self.unkept else default,
        }
        return values.get(name, default)

    def _host_facts(self) -> dict[str, Any]:
        process = self.scheduler.process_now
        return {"pid": process.number, "host": process.name, "namespace": "", "boot": "", "program": process.name}

    def _machine(self) -> str:
        """Workers are on two hosts, whose network is so slow that all-reduces over both go by way of each host."""
        return f"host{sum(self.scheduler.process_now.name.encode()) % 2}"

    def _access(self, *about: Any, **more: Any) -> Any:
        """Who is who: with limits, half of the programs are another user's."""
        made = Access(*about, **more)
        original = made.origin

        def origin(credentials: Any) -> Any:
            process = next((each for each in self.scheduler.processes if each.number == credentials.pid), None)
            other = self.limits is not None and process is not None and process.name.endswith("program1")
            return original(credentials._replace(uid=credentials.uid + 1) if other else credentials)

        made.origin = origin  # type: ignore[method-assign]
        return made

    def _cholesky(self, whole: Callable[..., Any], array: Any, **options: Any) -> Any:
        """A library with a fault: it ends the process for matrices of one size."""
        if array.shape[-1] != FATAL_SIDE:
            return whole(array, **options)
        name = self.scheduler.process_now.name
        self.interrupted(name, RESTART_SECONDS, fatal=True)
        self.restart_worker(name)
        raise Killed

    def _survivors(self, *about: Any) -> Any:
        found = yield from survivors(*about)
        self.kept += found.mesh is not None
        return found

    def _restore_parts(self, mark: Any, client: int, mesh: Any, *about: Any) -> Any:
        self.shrunk += len(mesh.members) < len(mark.mesh.members)
        return restore_parts(mark, client, mesh, *about)

    def _delivery_plan(self, *about: Any) -> Any:
        self.delivered += 1
        return delivery_plan(*about)

    def _kill(self, pid: int, _descriptor: int) -> bool:
        """A dispatcher kills a worker that has stood still for too long."""
        for name, process in self.workers.items():
            if process.number == pid:
                self.restart_worker(name)
                return True
        return False

    def interrupted(self, name: str, seconds: float, *, fatal: bool) -> None:
        """Note that somebody cannot talk from now on, for a while."""
        now = self.scheduler.now
        self.interruptions.append(Interruption(name, now, now + seconds, fatal))

    # processes

    def start_dispatcher(self, expected: int) -> None:
        """Start the dispatcher; it is started again whenever it ends."""
        process = self.dispatcher = self.scheduler.process("dispatcher")

        def run() -> None:
            shell = self.dispatcher_shell = dispatcher.DispatcherShell(
                ADDRESS,
                workers=expected,
                marks=Path(self.marks.name),
                limits=None if self.limits is None else str(self.limits.path),
            )
            shell.run()
            self.scheduler.at(self.scheduler.now, self.restart_dispatcher)

        process.start(run)

    def start_worker(self, name: str, link: Link) -> None:
        """Start a worker, one of `spares` as a spare; it is started again whenever it ends."""
        self.network.links[name] = link
        process = self.workers[name] = self.scheduler.process(name)
        listen = f"ipc:///{name}-{process.number}"
        alone = name.startswith("remote") or name in self.unsupervised
        supervised = None if alone else self.descriptors.add(Signal())

        def run() -> None:
            shell = self.worker_shells[name] = worker.WorkerShell(
                ADDRESS,
                "cpu",
                listen=listen,
                watch=supervised,
                marks=f"{self.marks.name}/{name}-{process.number}" if self.apart else self.marks.name,
                spare=name in self.spares,
            )
            pause = 0.0
            try:
                if shell.run():
                    pause = RESTART_SECONDS
                    if not shell.control.accepted:  # the dispatcher may know it all the same
                        self.interrupted(name, 0.0, fatal=True)
            except GTError as error:
                shell.fail(error)
                pause = RESTART_SECONDS
            finally:
                shell.close()
            self.scheduler.at(self.scheduler.now, lambda: self.restart_worker(name, pause))

        process.start(run)

    def restart_worker(self, name: str, pause: float = RESTART_SECONDS) -> None:
        """Kill a worker's process, and start another one after a pause, unless it has ended for good."""
        if name not in self.workers:
            return
        self.workers[name].kill()
        self.worker_shells.pop(name, None)  # it may have ended in the middle of a plan
        process, link = self.workers[name], self.network.links[name]

        def again() -> None:
            if not self.stops and self.workers.get(name) is process:
                self.start_worker(name, link)

        self.scheduler.at(self.scheduler.now + pause, again)

    def end_worker(self, name: str) -> None:
        """Kill a worker's process for good."""
        self.interrupted(name, 0.0, fatal=True)
        self.workers.pop(name).kill()
        self.worker_shells.pop(name, None)

    def restart_dispatcher(self, pause: float = RESTART_SECONDS) -> None:
        """Kill the dispatcher's process, and start another one at the same address after a pause."""
        assert self.dispatcher is not None
        if self.dispatcher.dead:
            return  # it is being started again
        self.dispatcher.kill()
        self.scheduler.at(self.scheduler.now + pause, lambda: None if self.stops else self.start_dispatcher(1))

    def start_program(self, name: str, link: Link, run: Callable[[], object]) -> Process:
        """Start a program in a process of its own."""
        self.network.links[name] = link
        process = self.programs[name] = self.scheduler.process(name)

        def whole() -> None:
            run()
            self.scheduler.at(self.scheduler.now + 1.0, process.kill)  # what it said last has left by then

        process.start(whole)
        return process


def _running_plan_memory() -> RunningPlanMemory:
    """A worker's memory, with a descriptor of three digits, so that what is said of it is as long in each run of a seed."""
    made = RunningPlanMemory()
    before, memory = made.memory.descriptor, made.memory
    memory.descriptor = fcntl.fcntl(before, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(before)
    made.where = memory.where = made.where.replace(f"/{before}/", f"/{memory.descriptor}/")
    return made


def _own_builders() -> Any:
    """The running thread gets a new builder at its next instruction; other threads are of other programs."""
    vars(sessions._threads).clear()
    return sessions._threads


@contextmanager
def simulated(seed: int) -> Iterator[Service]:
    """A service that has not started yet."""
    with Service(seed) as service:
        yield service
