"""The thread in which a worker reads and writes the files of snapshots, while it computes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from gt.wire import messages as m
from gt.worker.base.events import SnapshotIn, SnapshotWork

from .snapshot_work import SnapshotFiles

OPEN_SECONDS: Final = 2.0
"""Seconds for which a snapshot that was read stays open."""


class SnapshotThread:
    """Does work in its order, beside the caller's thread. `wake` is called in the thread when an answer is there."""

    def __init__(self, root: Path, wake: Callable[[], None]) -> None:
        self.files = SnapshotFiles(root)
        self.wake = wake
        self.queue: SimpleQueue[SnapshotWork] = SimpleQueue()
        self.finished: deque[tuple[SnapshotWork, m.SnapshotReport | SnapshotIn | None]] = deque()
        self.thread: threading.Thread | None = None

    def add(self, work: SnapshotWork) -> None:
        """Have some work done."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="gt-snapshots", daemon=True)
            self.thread.start()
        self.queue.put(work)

    def answers(self) -> list[m.SnapshotReport | SnapshotIn]:
        """The answers since the last time. The arrays of what is done are given up in the caller's thread, not in the other."""
        found = []
        while self.finished:
            _, answer = self.finished.popleft()
            if answer is not None:
                found.append(answer)
        return found

    def _run(self) -> None:
        while True:
            try:
                work = self.queue.get(timeout=None if self.files.opened is None else OPEN_SECONDS)
            except Empty:
                self.files.close()  # what nobody reads any more may be removed
                continue
            self.finished.append((work, self.files.do(work)))
            del work
            self.wake()
