"""Virtual time, and threads of simulated processes of which exactly one runs at a time.

Each simulated thread is a real one that holds the baton while it computes. All of its waiting goes through `Scheduler.wait`,
which passes the baton on; computing takes no time. What happens next is what is due first in virtual time, so a run depends on
its seed alone.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import traceback
from collections.abc import Callable
from typing import Any

MAX_EVENTS = 2_000_000
"""More events than any run has that is not stuck."""
WAKE_SECONDS = 1e-4
"""Within so many seconds whoever waited for something goes on, in any order."""


def _baton() -> threading.Lock:
    """A lock that nobody can take until somebody else releases it."""
    made = threading.Lock()
    made.acquire()
    return made


class Killed(BaseException):
    """Ends a thread of a process that was killed; no handler of errors takes it for one."""


class Source:
    """Something that threads wait for."""

    def __init__(self) -> None:
        self.waiters: list[Task] = []

    def is_ready(self) -> bool:
        """Whether a thread that waits for this may go on."""
        raise NotImplementedError


class Process:
    """A simulated process: threads that stand still and die together."""

    def __init__(self, scheduler: Scheduler, name: str, number: int) -> None:
        self.scheduler = scheduler
        self.name = name
        self.number = number
        self.dead = False
        self.frozen_until = scheduler.frozen_until
        self.tasks: list[Task] = []
        self.sockets: list[Any] = []
        """The open sockets of this process, which its end closes."""
        self.ended = Signal()
        """Becomes ready when the process ends."""
        self.default_sessions: list[Any] = []
        """The default session of the program, as `gt.client.session.sessions` keeps it."""

    def start(self, run: Callable[[], object]) -> Task:
        """Start a thread of this process."""
        task = Task(self, run)
        self.tasks.append(task)
        self.scheduler.resume(task)
        return task

    def freeze(self, seconds: float) -> None:
        """Let the process stand still for a while, as by SIGSTOP."""
        self.frozen_until = max(self.frozen_until, self.scheduler.now + seconds)

    def kill(self) -> None:
        """End the process at once, with all its threads and sockets."""
        if self.dead:
            return
        self.dead = True
        for socket in list(self.sockets):
            socket.close()
        self.ended.set()
        for task in self.tasks:
            self.scheduler.resume(task)


class Task:
    """A thread of a simulated process."""

    def __init__(self, process: Process, run: Callable[[], object]) -> None:
        self.process = process
        self.run = run
        self.baton = _baton()
        self.thread: threading.Thread | None = None
        self.turn = 0
        """Counts the waits, so that only the first of what ends one does."""
        self.done = Signal()
        self.finished = False


class Scheduler:
    """Runs simulated processes in virtual time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], object]]] = []
        self.numbers = itertools.count()
        self.processes: list[Process] = []
        self.frozen_until = 0.0
        """Until when all processes stand still, also new ones."""
        self.current: Task | None = None
        self.baton = _baton()
        self.failures: list[str] = []
        """What went wrong in a thread that should not have ended."""
        self.handled = 0

    def process(self, name: str) -> Process:
        """A new process."""
        made = Process(self, name, len(self.processes) + 1)
        self.processes.append(made)
        return made

    def freeze(self, seconds: float) -> None:
        """Let all processes stand still for a while."""
        self.frozen_until = max(self.frozen_until, self.now + seconds)
        for process in self.processes:
            process.freeze(seconds)

    def at(self, time: float, what: Callable[[], object]) -> None:
        """Do something at a time."""
        heapq.heappush(self.events, (max(time, self.now), next(self.numbers), what))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass until then, or until `done()`; returns whether it was."""
        while not done():
            if self.failures or not self.events or self.events[0][0] > until:
                self.now = until if not self.failures else self.now
                return done()
            self.now, _, what = heapq.heappop(self.events)
            self.handled += 1
            if self.handled > MAX_EVENTS:
                self.failures.append("events follow each other without end")
            what()
        return True

    # threads

    def resume(self, task: Task, delay: float | None = None) -> None:
        """Let a thread go on, soon or after a delay, from the wait in which it is now."""
        turn = task.turn
        soon = self.random.random() * WAKE_SECONDS if delay is None else delay
        self.at(self.now + soon, lambda: self._resume(task, turn))

    def _resume(self, task: Task, turn: int) -> None:
        process = task.process
        if task.turn != turn or task.finished:
            return
        if process.frozen_until > self.now and not process.dead:
            self.at(process.frozen_until, lambda: self._resume(task, turn))
            return
        task.turn += 1
        if task.thread is None:
            if process.dead:
                task.finished = True
                return
            task.thread = threading.Thread(target=self._task, args=(task,), daemon=True)
            task.thread.start()
        self.current = task
        task.baton.release()
        self.baton.acquire()
        self.current = None
        if task.finished:
            task.thread.join()

    def _task(self, task: Task) -> None:
        task.baton.acquire()
        try:
            task.run()
        except Killed:
            pass
        except BaseException:  # noqa: BLE001 — it is reported with the seed
            self.failures.append(f"{task.process.name} at {self.now:.3f} s\n{traceback.format_exc()}")
        task.run = lambda: None  # what it refers to goes while this thread holds the baton
        task.finished = True
        task.done.set()
        self.baton.release()

    @property
    def process_now(self) -> Process:
        """The process whose thread is running."""
        assert self.current is not None, "only simulated threads do this"
        return self.current.process

    def wait(self, sources: list[Source], timeout: float | None) -> None:
        """Have the running thread wait until one of these is ready, or for so many seconds."""
        task = self.current
        assert task is not None, "only simulated threads wait"
        if task.process.dead:
            raise Killed
        if any(source.is_ready() for source in sources):
            timeout = 0.0
        for source in sources:
            source.waiters.append(task)
        if timeout is not None:
            self.resume(task, max(timeout, 1e-5))
        self.baton.release()
        task.baton.acquire()
        for source in sources:
            source.waiters.remove(task)
        if task.process.dead:
            raise Killed

    def wake(self, source: Source) -> None:
        """Let those go on who wait for this."""
        for task in source.waiters:
            self.resume(task)


class Signal(Source):
    """A flag to wait for: an event, the end of a thread or of a process, a pipe with something in it."""

    scheduler: Scheduler
    """The one that runs, for what is made where none is at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.is_set_now = False

    def is_ready(self) -> bool:
        return self.is_set_now

    def set(self) -> None:
        """Wake who waits."""
        if not self.is_set_now:
            self.is_set_now = True
            Signal.scheduler.wake(self)

    def clear(self) -> None:
        """From here on one waits again."""
        self.is_set_now = False
