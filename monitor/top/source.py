"""Where `gt top` gets its snapshots: a source gives the latest one at any time, and passes on what the user confirmed."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import Final, Protocol

from gt.daemon.host import CONNECT_TIMEOUT
from gt.errors import GTError
from gt.monitor.reducer import Reducer
from gt.monitor.snapshot import CLOSED, LIVE, Snapshot
from gt.monitor.stream import Stream
from gt.wire import telemetry as t

SNAPSHOT_SECONDS: Final = 0.2
"""Seconds between two snapshots at most; between two at least, however much comes, is half of it."""


class SnapshotSource(Protocol):
    """A service that is watched (`LiveSource`), or a row of snapshots in a test."""

    def snapshot(self) -> Snapshot:
        """How the service is, as far as is known now. Never waits."""

    def act(self, action: str, number: int, value: str = "") -> None:
        """Ask the service to do what `Stream.act` knows, with a client or worker. Never waits."""

    def failed(self) -> list[str]:
        """Why orders have failed since the last call. Never waits."""

    def close(self) -> None:
        """End the connection."""


class LiveSource:
    """A service's stream, read by a thread of its own: drawing never keeps it waiting, nor a flood the drawing.

    Raises what `Stream` raises, when there is no service.
    """

    def __init__(self, address: str | None = None, timeout: float = CONNECT_TIMEOUT) -> None:
        self._stream = Stream(address, timeout=timeout)
        self._reducer = Reducer()
        self._orders: deque[tuple[str, int, str]] = deque()
        self._failed: deque[str] = deque()
        self._ends = threading.Event()
        self._fresh = threading.Condition()
        self._latest = self._reducer.snapshot(self._stream.status)
        self._thread = threading.Thread(target=self._read, name="gt top: stream", daemon=True)
        self._thread.start()

    def snapshot(self) -> Snapshot:
        """The latest."""
        return self._latest

    def act(self, action: str, number: int, value: str = "") -> None:
        """The thread that reads passes it on; what comes of it is in the log, and why it fails is told besides."""
        self._orders.append((action, number, value))

    def failed(self) -> list[str]:
        """Why orders have failed since the last call."""
        return [self._failed.popleft() for _ in range(len(self._failed))]

    def settled(self, timeout: float) -> Snapshot:
        """The first snapshot by which rates are known, two samples of the service and of all its workers; or after `timeout`
        seconds the latest, whatever it is. Where there is no worker, those of the service are all there is to wait for."""
        deadline = time.monotonic() + timeout
        with self._fresh:
            while not _meaningful(self._latest):
                left = deadline - time.monotonic()
                if left <= 0 or not self._fresh.wait(left):
                    break
        return self._latest

    def close(self) -> None:
        """End the connection, and the thread."""
        self._ends.set()
        self._thread.join()
        self._stream.close()

    def _read(self) -> None:
        why = ""
        try:
            while not self._ends.is_set():
                turn = time.monotonic()
                while self._orders:
                    self._order(*self._orders.popleft())
                self._reducer.feed(self._stream.read(SNAPSHOT_SECONDS))
                self._show(self._reducer.snapshot(self._stream.status))
                self._ends.wait(max(0.0, turn + SNAPSHOT_SECONDS / 2 - time.monotonic()))
        except GTError as error:
            why = str(error)
        finally:  # however it ends: what is shown from now on says that it is old
            self._show(replace(self._latest, status=replace(self._stream.status, state=CLOSED, text=why)))

    def _order(self, action: str, number: int, value: str) -> None:
        client = -1 if action in ("drain", "reload") else number
        try:
            self._stream.act(action, number, value)
        except GTError as error:
            refused = t.Decision(self._latest.now, t.DISPATCHER, 1, client, "refused", "warning", str(error))
            self._reducer.feed([refused])
            self._failed.append(str(error))

    def _show(self, snapshot: Snapshot) -> None:
        with self._fresh:
            self._latest = snapshot
            self._fresh.notify_all()


def _meaningful(snapshot: Snapshot) -> bool:
    """Whether shares and rates are known: every worker that lives has told a second sample of its counters."""
    if snapshot.status.state != LIVE:
        return False
    there = [worker for worker in snapshot.workers if worker.state not in ("lost", "silent")]
    if not there:
        return snapshot.service is not None and not snapshot.workers
    return all(sum((w.split.used, w.split.waiting, w.split.idle)) > 0.5 for w in there)
