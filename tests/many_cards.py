"""In-memory GPU workers that do moves together by NCCL: on stand-ins for CuPy (`card.py`) and for NCCL (`fake_nccl.py`).

What fails in a collective (a member that never comes, a call that hangs) happens here step by step, which processes over
the pretend device cannot do. A worker that waits for the device in this one thread has the others go on meanwhile, as they
would by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fake_nccl import NET, Hangs, Net, installed

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.daemon.host import host_facts
from gt.service.in_process import Fabric, InprocLink
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.worker.nccl.communicators import Communicators

PATIENCE = 300.0


class Cards(Fabric):
    """A service whose workers have communicators."""

    def __init__(self, workers: int, config: Config | None, *, devices: Sequence[str] = (), **more: Any) -> None:
        """Each has a GPU of its own, unless `devices` says otherwise."""
        self.active: list[bytes] = []
        self.passed = 0.0
        """Seconds, of which some pass only when nobody can go on."""
        self.patience = PATIENCE
        """Half of what passes then."""
        self.communicators: list[Communicators] = []
        NET.pump, NET.late = self._pump, self._late
        super().__init__(workers, config, devices=devices or [f"cuda:{n}" for n in range(workers)], **more)

    def _communicators(self, backend: Any) -> Communicators | None:
        if backend.nccl is None:
            return None
        found = Communicators(backend.nccl, PATIENCE, lambda: self.passed, _spawn, lambda: None)
        self.communicators.append(found)
        return found

    def _deliver(self, target: bytes, message: m.Message | None) -> None:
        self.active.append(target)
        try:
            super()._deliver(target, message)
            worker = self.workers.get(target)
            while worker is not None and worker.busy:
                super()._deliver(target, m.Ping())
        finally:
            self.active.pop()

    def _pump(self) -> bool:
        """Have somebody go on who does not stand still in this thread; False when there is nobody."""
        for at, (_, target, message) in enumerate(self.queue):
            if target not in self.active:
                del self.queue[at]
                self._deliver(target, message)
                return True
        asking = [each for each, worker in self.workers.items() if worker.asks and each not in self.active]
        for identity in asking:
            self._deliver(identity, None)
        return bool(asking)

    def _late(self) -> None:
        self.passed += 2 * self.patience
        for each in self.communicators:
            each.look(self.passed)


def _spawn(function: Any) -> None:
    try:
        function()
    except Hangs:
        pass  # that thread does


@contextmanager
def cards(devices: int) -> Iterator[Net]:
    """While this lasts there are so many GPUs with NCCL."""
    with installed(devices) as net:
        yield net


def connect(devices: list[str], config: Any = None, **more: Any) -> Cards:
    """A session on in-memory workers of these devices."""
    gt.disconnect()
    fabric = Cards(len(devices), None if config is None else Config.from_plain(config), devices=devices, **more)
    session = Session(InprocLink(fabric), "inproc", idle_flush=False)
    session.open({**host_facts(), "bulk": b""}, 1.0)
    sessions.adopt(session)
    return fabric
