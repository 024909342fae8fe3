"""The actor of one worker: runs `gt.worker` as a child process for the dispatcher that the service has now."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from typing import Any, Final

from gt.daemon.host import start_timeout

from .cluster import import_ray
from .node_folder import NodeFolder
from .service_setup import DISPATCHER_NAME, GONE_SECONDS, ServiceSetup, daemon_environment, daemon_options, named_actor
from .supervised_daemon import SupervisedDaemon

log = logging.getLogger("gt.ray")
LOOK_SECONDS: Final = 0.2
ASK_SECONDS: Final = 2.0
"""The seconds between two questions where the dispatcher is, and what it has to answer in."""
FIRST_ASK_SECONDS: Final = 0.5
"""The same until the first answer."""
ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""A worker's BLAS has one thread: it has threads of its own."""


class WorkerActor:
    """One worker of a service on Ray, the actor `name`."""

    def __init__(self, setup: ServiceSetup, name: str) -> None:
        self.setup = setup
        self.name = name
        self.folder = NodeFolder(setup.token)
        self.address = ""
        self.daemon: SupervisedDaemon | None = None
        self.gone_since: float | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._supervise, name="gt-supervise", daemon=True)
        self.thread.start()

    def status(self) -> dict[str, Any]:
        """The machine and the number of the worker's process, and how it has ended, if it is not started again."""
        daemon = self.daemon
        return {
            "host": socket.gethostname(), "pid": 0 if daemon is None else daemon.process.pid,
            "ended": "" if daemon is None else daemon.ended, "in_order": daemon is not None and daemon.in_order,
            "node": import_ray().get_runtime_context().get_node_id(),
        }  # fmt: skip

    def placement_group(self) -> Any:
        """The placement group of the service; None for a worker that was added."""
        return import_ray().util.get_current_placement_group()

    def stop(self) -> None:
        """End the worker's process."""
        self.stopping.set()
        self.thread.join(start_timeout())
        if self.daemon is not None:
            self.daemon.close()
        shutil.rmtree(self.folder.path / self.name, ignore_errors=True)

    def tidy(self) -> None:
        """Remove what the service has on this node. All its processes have ended."""
        self.folder.remove()

    def _supervise(self) -> None:
        asked_at = -ASK_SECONDS
        while not self.stopping.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now - asked_at >= (ASK_SECONDS if self.address else FIRST_ASK_SECONDS):
                asked_at = now
                try:
                    self._follow_dispatcher(now)
                except Exception as error:  # noqa: BLE001 — Ray's head may be away: the worker serves on
                    log.warning("%s: %s", self.name, error)
            if self.daemon is not None:
                self.daemon.look()

    def _follow_dispatcher(self, now: float) -> None:
        """Have the worker serve the dispatcher where that is now."""
        ray = import_ray()
        dispatcher = named_actor(DISPATCHER_NAME)
        if dispatcher is None:
            self._end_if_gone(now)
            return
        self.gone_since = None
        try:
            address, key = ray.get(dispatcher.place_for_worker.remote(), timeout=ASK_SECONDS)
        except ray.exceptions.RayError:  # it is starting, or started again: the worker it has goes on looking by itself
            return
        if address == self.address:
            return
        if self.daemon is not None:
            log.warning("%s: the dispatcher is at %s now", self.name, address)
            self.daemon.close()
        self.address, self.daemon = address, self._worker(address, key)

    def _worker(self, address: str, key: str) -> SupervisedDaemon:
        host = import_ray().util.get_node_ip_address()
        setup, gpu = self.setup, self.setup.size.device == "cuda"
        path = self.folder.write(f"{self.name}/worker.key", key)
        arguments = [
            "gt.worker", "--address", address, "--device", "cuda:0" if gpu else "cpu",
            "--listen", f"tcp://[{host}]:*" if ":" in host else f"tcp://{host}:*",
            "--marks", setup.marks or str(self.folder.marks), *daemon_options(setup),
        ]  # fmt: skip
        threads = setup.environment.get("GT_THREADS", str(setup.size.cpus))
        environment = daemon_environment(setup, {**ONE_THREAD, "GT_THREADS": threads, "GT_KEY": str(path)})
        environment["XDG_RUNTIME_DIR"] = str(self.folder.path)  # where no service of this user is found by accident
        return SupervisedDaemon(self.name, arguments, environment)

    def _end_if_gone(self, now: float) -> None:
        """The dispatcher's actor is no more. If that lasts, nobody needs this one."""
        self.gone_since = now if self.gone_since is None else self.gone_since
        if now - self.gone_since < GONE_SECONDS:
            return
        log.warning("%s ends: the service's dispatcher is gone", self.name)
        if self.daemon is not None:
            self.daemon.close()
        self.folder.remove()
        import_ray().kill(import_ray().get_runtime_context().current_actor)
        os._exit(0)
