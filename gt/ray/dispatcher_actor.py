"""The actor of the dispatcher: runs `gt.dispatcher` as a child process, keeps the keys, and says how many workers there are.

When it is started again on its node, it finds folder, keys and address there, and sessions go on from their marks. Workers'
actors do not depend on it. On another node it is a new dispatcher at a new address, which workers join, and programs join anew.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Final

from gt.daemon.host import environment_number, start_timeout
from gt.errors import SessionError
from gt.wire import telemetry as t
from gt.wire.keys import new_key, own_key, own_key_path
from gt.wire.principals import WORKER

from .cluster import import_ray
from .load_watch import LoadWatch, load_of
from .node_folder import NodeFolder
from .placing import place_worker
from .scaling import AddWorkers, GiveBack, Scaler, ServiceLoad
from .service_setup import WORKER_PREFIX, ServiceSetup, daemon_environment, daemon_options, worker_handles
from .supervised_daemon import SupervisedDaemon

log = logging.getLogger("gt.ray")
READ_SECONDS: Final = 0.5
"""The longest wait for events between two looks at processes."""
LOOK_SECONDS: Final = 1.0
"""The seconds between two looks at the workers' actors."""
WATCH_SECONDS: Final = 10.0
"""After a question how many workers there are, events come for so long."""
LEASE_SECONDS: Final = 30.0
"""The seconds of silence after which a dispatcher is killed (GT_WORKER_LEASE)."""


class DispatcherActor:
    """The dispatcher of a service on Ray. Raises `SessionError` if it cannot start."""

    def __init__(self, setup: ServiceSetup) -> None:
        self.setup = setup
        self.folder = NodeFolder(setup.token)
        os.environ["GT_KEYS"] = str(self.folder.keys)  # of this process and its daemon alone
        own_key()
        if not (self.folder.keys / "worker.key").exists():
            new_key("worker", WORKER)
        self.address = self.folder.address(import_ray().util.get_node_ip_address())
        self.daemon = self._dispatcher()
        self.watch = LoadWatch(self.address, own_key())
        if not self.watch.connect(start_timeout(), lambda: self.daemon.running):
            status = self.daemon.process.poll()
            self.daemon.close()
            how = "does not answer" if status is None else f"ended with status {status}"
            raise SessionError(
                f"the dispatcher on Ray {how}; its log is that of the actor, in Ray's log folder and dashboard"
            )
        self.scaler = Scaler(setup.size)
        self.asked_at = -WATCH_SECONDS
        self.load = ServiceLoad()
        self.statuses: dict[str, dict[str, Any]] = {}
        self.asking: dict[str, Any] = {}
        """By worker: its actor's answer that is to come."""
        self.leaving: tuple[str, int] | None = None
        """The worker that is given back, and its number at the dispatcher."""
        self.pending: dict[str, float] = {}
        """By worker that was added and has not answered yet: when it was."""
        self.trouble = ""
        """What went wrong last, for who waits."""
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._supervise, name="gt-supervise", daemon=True)
        self.thread.start()

    # what programs, workers and `gt down` ask

    def place_for_worker(self) -> tuple[str, str]:
        """The address for a worker, and the text of its key file."""
        return self.address, (self.folder.keys / "worker.key").read_text("ascii")

    def place_for_program(self) -> tuple[str, str]:
        """The address for a program, and the text of the key file of the service's owner."""
        return self.address, own_key_path().read_text("ascii")

    def status(self) -> dict[str, Any]:
        """How many workers have joined, how many come, what the service may have, and what went wrong last."""
        self.asked_at = time.monotonic()
        size = self.setup.size
        return {
            "joined": len(self.load.workers), "starting": self.load.starting, "least": size.least, "most": size.most,
            "device": size.device, "strategy": size.strategy, "trouble": self.trouble or self.daemon.ended,
            "nodes": len({status["node"] for status in self.statuses.values()}), "stays": self.setup.stays,
        }  # fmt: skip

    def ask_for(self, workers: int) -> str:
        """A program asks for so many workers. Returns why it cannot have them; empty if they are there or come."""
        self.trouble = ""
        return self.scaler.ask(workers)

    def placement_group(self) -> Any:
        """The placement group of the service."""
        return import_ray().util.get_current_placement_group()

    def stop(self) -> None:
        """End the dispatcher's process: sessions end with it."""
        self.stopping.set()
        self.thread.join(start_timeout())
        self.watch.close()
        self.daemon.close()

    def tidy(self) -> None:
        """Remove what the service has on this node. All its processes have ended."""
        self.folder.remove()

    # supervision

    def _dispatcher(self) -> SupervisedDaemon:
        setup = self.setup
        arguments = ["gt.dispatcher", "--address", self.address, "--workers", str(setup.size.least), "--hand-over"]
        arguments += ["--marks", setup.marks or str(self.folder.marks), *daemon_options(setup)]
        if setup.config:
            arguments += ["--config", str(self.folder.write("config.yaml", setup.config))]
        if setup.policy:
            arguments += ["--policy", setup.policy]
        environment = daemon_environment(
            setup, {"XDG_RUNTIME_DIR": str(self.folder.path)}
        )  # no program finds it by accident
        return SupervisedDaemon("the dispatcher", arguments, environment)

    def _supervise(self) -> None:
        lease = environment_number("GT_WORKER_LEASE", LEASE_SECONDS)
        looked_at = -LOOK_SECONDS
        while not self.stopping.is_set():
            self.daemon.look()
            now = time.monotonic()
            wanted = self.setup.size.grows or now - self.asked_at < WATCH_SECONDS
            try:
                self.watch.want(t.SUMMARY if wanted else t.OFF)
                self.watch.read(READ_SECONDS)
                if now - looked_at >= LOOK_SECONDS:
                    looked_at = now
                    self._look_at_workers(now)
                    if wanted:
                        self._scale(now)
            except Exception as error:  # noqa: BLE001 — the dispatcher or Ray's head is away: look again
                log.warning("%s", error)
                self.stopping.wait(READ_SECONDS)
            if now - max(self.watch.heard_at, self.daemon.since) > lease and self.daemon.running:
                log.warning("the dispatcher says nothing for %g s, and is killed", lease)
                self.daemon.kill()
                self.watch.heard_at = now

    def _look_at_workers(self, now: float) -> None:
        """Ask the workers' actors how they are. What they answer is read at the next look."""
        ray = import_ray()
        handles = worker_handles()
        for name in [*self.asking]:
            done, _ = ray.wait([self.asking[name]], timeout=0)
            if name not in handles:
                del self.asking[name]
            elif done:
                try:
                    self.statuses[name] = ray.get(done[0])
                    self.pending.pop(name, None)
                except ray.exceptions.RayError:
                    self.statuses.pop(name, None)  # it is started again
                del self.asking[name]
        self.statuses = {name: status for name, status in self.statuses.items() if name in handles}
        for name, handle in handles.items():
            if name not in self.asking:
                self.asking[name] = handle.status.remote()
        for name, status in [*self.statuses.items()]:
            if status["ended"]:
                self._has_ended(name, handles[name], status)
        for name, since in [*self.pending.items()]:
            if now - since > start_timeout():
                self._withdraw(name, handles.get(name), now)

    def _has_ended(self, name: str, handle: Any, status: dict[str, Any]) -> None:
        """A worker's process has ended for good: its actor goes, and gives back what it holds."""
        del self.statuses[name]
        if not status["in_order"]:
            self.trouble = f"{name} {status['ended']}; its log is that of the actor, in Ray's log folder and dashboard"
            log.error("%s", self.trouble)
        else:
            log.info("%s was drained, and is given back", name)
        if self.leaving is not None and self.leaving[0] == name:
            self.leaving = None
        ray = import_ray()
        ray.wait([handle.stop.remote()], timeout=LOOK_SECONDS)
        ray.kill(handle)

    def _withdraw(self, name: str, handle: Any, now: float) -> None:
        """The cluster has no room for a worker that was to be added."""
        ray = import_ray()
        del self.pending[name]
        there = ", ".join(
            f"{amount:g} {kind}" for kind, amount in ray.available_resources().items() if kind in ("CPU", "GPU")
        )
        within = f"within {start_timeout():g} s (available: {there or 'no CPU'})"
        self.trouble = f"{name} found no room on the Ray cluster {within}"
        log.warning("%s", self.trouble)
        self.scaler.pause(now, self.setup.size.idle_seconds)
        if handle is not None:
            ray.kill(handle)

    def _scale(self, now: float) -> None:
        """Add and give back workers."""
        statuses = {**{name: {} for name in self.pending}, **self.statuses}
        joined = self.watch.joined()
        self.load = load_of(statuses, joined, self.watch.waiting(), self.setup.size.least, WORKER_PREFIX)
        if not self.setup.size.grows:
            return
        if self.leaving is not None:
            self._go_on_draining(now)
            return
        decision = self.scaler.decide(now, self.load)
        if isinstance(decision, AddWorkers):
            log.info("%d more: %s", decision.more, decision.reason)
            taken = {*statuses, *self.asking}
            size = self.setup.size
            free = [number for number in range(size.least, size.most) if f"{WORKER_PREFIX}{number}" not in taken]
            for number in free[: decision.more]:
                place_worker(self.setup, number, None)
                self.pending[f"{WORKER_PREFIX}{number}"] = now
        elif isinstance(decision, GiveBack):
            status = self.statuses[decision.name]
            number = joined[status["host"], status["pid"]].number
            log.info("%s is drained: %s", decision.name, decision.reason)
            self.leaving = decision.name, number
            self._drain(number, now, begin=True)

    def _go_on_draining(self, now: float) -> None:
        assert self.leaving is not None
        name, number = self.leaving
        if name not in self.statuses and name not in self.asking:
            self.leaving = None  # it is gone
        elif not self.statuses.get(name, {}).get("ended"):
            self._drain(number, now, begin=False)

    def _drain(self, number: int, now: float, *, begin: bool) -> None:
        assert self.watch.stream is not None
        try:
            self.watch.stream.drain(number, begin=begin)
        except SessionError as error:  # sessions cannot leave it, or it was lost meanwhile
            log.info("%s", error)
            self.leaving = None
            self.scaler.pause(now, self.setup.size.idle_seconds)
