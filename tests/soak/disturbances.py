"""What a soak run does to a service, drawn from a seed: kills and stops of its processes, and of its clients.

Kinds come in decks, so that each is drawn in every one of them.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Final

import psutil
from daemons import Process

from gt.daemon.worker_number import read_number

KILL_WORKER: Final = "worker killed"
PAUSE_WORKER: Final = "worker stopped for a while"
STOP_WORKER: Final = "worker stopped for good"
KILL_DISPATCHER: Final = "dispatcher killed"
STOP_DISPATCHER: Final = "dispatcher stopped for good"
KILL_BOTH: Final = "worker and dispatcher killed"
KILL_CLIENT: Final = "client killed"
CALM: Final = "nothing for a while"
DECK: Final = Counter(
    {
        KILL_WORKER: 5,
        PAUSE_WORKER: 2,
        STOP_WORKER: 1,
        KILL_DISPATCHER: 2,
        STOP_DISPATCHER: 1,
        KILL_BOTH: 2,
        KILL_CLIENT: 2,
        CALM: 1,
    }
)
"""How often each kind is in a deck."""
OF_WORKERS: Final = frozenset((KILL_WORKER, PAUSE_WORKER, STOP_WORKER, KILL_BOTH))
OF_DISPATCHERS: Final = frozenset((KILL_DISPATCHER, STOP_DISPATCHER, KILL_BOTH))
PAUSE_RANGE: Final = (0.3, 6.0)
"""The seconds for which a worker stands still: shorter than `GT_WORKER_LEASE`, or longer."""
EARLY_SHARE: Final = 0.2
"""The share of kills of workers that may hit one that has yet to join."""


class Disturber:
    """Draws and does what is done to a service whose `gt up` is `service` and whose private folder is in `temp`. When it
    kills or stops the dispatcher, it adds the time to `dispatcher_kills`."""

    def __init__(self, seed: int, service: Process, temp: Path, dispatcher_kills: list[float]) -> None:
        self.random = random.Random(seed)
        self.service = service
        self.temp = temp
        self.deck: list[str] = []
        self.counts: Counter[str] = Counter()
        self.stopped: list[tuple[float, psutil.Process]] = []
        """Workers that go on at some time, in seconds of `time.monotonic`."""
        self.dispatcher_kills = dispatcher_kills

    def daemons(self, room: str) -> list[psutil.Process]:
        """The living processes of the dispatcher, or of workers."""
        found = []
        for each in psutil.Process(self.service.pid).children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                if f"gt.{room}" in each.cmdline():
                    found.append(each)
        return found

    def joined(self) -> list[psutil.Process]:
        """The workers that have joined the dispatcher."""
        folders = list(self.temp.glob("gt-*"))
        return [
            worker
            for worker in self.daemons("worker")
            if any(read_number(folder, worker.pid) is not None for folder in folders)
        ]

    def next_kind(self) -> str:
        """The next kind of the deck."""
        if not self.deck:
            self.deck = [kind for kind, count in DECK.items() for _ in range(count)]
            self.random.shuffle(self.deck)
        return self.deck.pop()

    def disturb(self, kind: str, clients: list[Process]) -> Process | None:
        """Do something of a kind, if there is a process for it. Returns the client that was killed, if it is one."""
        victim = None
        with contextlib.suppress(psutil.NoSuchProcess):
            if kind == KILL_CLIENT:
                victim = self.random.choice(clients)
                victim.signal(signal.SIGKILL)
            if kind in OF_DISPATCHERS:
                for dispatcher in self.daemons("dispatcher"):
                    self.dispatcher_kills.append(time.monotonic())
                    if kind == STOP_DISPATCHER:
                        dispatcher.suspend()
                    else:
                        dispatcher.kill()
            if kind in OF_WORKERS:
                early = kind == KILL_WORKER and self.random.random() < EARLY_SHARE
                draw, seconds = self.random.random(), self.random.uniform(*PAUSE_RANGE)
                workers = self.daemons("worker") if early else self.joined()
                if not workers:
                    return None
                worker = workers[int(draw * len(workers))]
                if kind in (KILL_WORKER, KILL_BOTH):
                    worker.kill()
                else:
                    worker.suspend()
                if kind == PAUSE_WORKER:
                    self.stopped.append((time.monotonic() + seconds, worker))
            self.counts[kind] += 1
        return victim

    def resume(self, now: float) -> None:
        """Let the workers go on that were to stand still until `now`."""
        for due, worker in list(self.stopped):
            if now >= due:
                self.stopped.remove((due, worker))
                with contextlib.suppress(psutil.NoSuchProcess):  # its lease was over
                    worker.resume()
