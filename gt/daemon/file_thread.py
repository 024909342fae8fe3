"""Threads in which a daemon reads and writes files (of snapshots, marks and sessions) beside its other work."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

IDLE_SECONDS: Final = 2.0
"""Seconds without work after which files that are open are closed."""
Work_contra = TypeVar("Work_contra", contravariant=True)
Work = TypeVar("Work")
Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)


class WorkFiles(Protocol[Work_contra, Answer_co]):
    """What does the work of a thread."""

    def do(self, work: Work_contra) -> Answer_co | None:
        """Do some work. Raises nothing: an error is part of the answer."""

    def close(self) -> None:
        """Close what stayed open for the next work."""


class FileThread(Generic[Work, Answer]):
    """Does work in its order, beside the caller's thread. `wake` is called in the thread when an answer is there."""

    def __init__(self, name: str, files: WorkFiles[Work, Answer], wake: Callable[[], None]) -> None:
        self.name = name
        self.files = files
        self.wake = wake
        self.queue: SimpleQueue[Work] = SimpleQueue()
        self.finished: deque[tuple[Work, Answer | None]] = deque()
        self.thread: threading.Thread | None = None
        self.added = self.begun = self.done = self.taken = self.disregarded = self.skipped = 0
        """How much work was added, begun and done, of how much of it the answers were taken, up to where nobody wants them, and
        up to where nothing more is done."""

    def add(self, work: Work) -> None:
        """Have some work done."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self.thread.start()
        self.added += 1
        self.queue.put(work)

    def disregard(self, *, skip: bool = False) -> None:
        """Give no answers to what was added until now, and with `skip` do not do it, if it has not begun."""
        self.disregarded = self.added
        self.skipped = self.added if skip else self.skipped

    def answers(self) -> list[Answer]:
        """The answers since the last time. The arrays of what is done are given up in the caller's thread, not in the other."""
        found = []
        while self.finished:
            _, answer = self.finished.popleft()
            self.taken += 1
            if answer is not None and self.taken > self.disregarded:
                found.append(answer)
        return found

    def _run(self) -> None:
        patience: float | None = None
        while True:
            try:
                work = self.queue.get(timeout=patience)
            except Empty:
                self.files.close()  # what nobody reads any more may be removed
                patience = None
                continue
            self.begun += 1
            self.finished.append((work, None if self.begun <= self.skipped else self.files.do(work)))
            self.done += 1
            del work
            patience = IDLE_SECONDS
            self.wake()
