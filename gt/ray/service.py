"""Starting, joining and ending the service of a Ray cluster, from a program, a Ray job or the command line."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from gt.daemon.host import start_timeout
from gt.errors import ConnectionFailed, SessionError
from gt.sharding import options
from gt.wire.keys import key_folder

from .bundles import (
    DEVICES,
    STRATEGIES,
    ServiceSize,
    chosen_device,
    chosen_strategy,
    default_count,
    refusal,
    service_bundles,
)
from .cluster import import_ray, join_cluster, without_placement_warning
from .dispatcher_actor import DispatcherActor
from .node_folder import write_private
from .placing import place_worker
from .service_setup import (
    DISPATCHER_NAME,
    ServiceSetup,
    actor_options,
    named_actor,
    service_environment,
    worker_handles,
)

ASK_SECONDS: Final = 0.2
"""The seconds between two questions how many workers have joined."""
END_SECONDS: Final = 15.0
"""The seconds that actors have to end their processes before they are killed."""


class SizeAsked(NamedTuple):
    """What is asked of a service that is to be started; None: as the cluster has it."""

    workers: int | None = None
    least: int | None = None
    most: int | None = None
    device: str | None = None
    cpus: int = 1
    strategy: str | None = None
    idle_seconds: float = 60.0

    def on(self, cluster: Mapping[str, Any], needed: int) -> ServiceSize:
        """The size on a cluster with these resources, where a config needs so many workers. Raises `SessionError`."""
        for said, allowed, what in ((self.device, DEVICES, "device"), (self.strategy, STRATEGIES, "strategy")):
            if said is not None and said not in allowed:
                raise SessionError(f"{what} {said!r} is not one of {', '.join(allowed)}")
        device = chosen_device(self.device, cluster)
        least = self.least or self.workers or default_count(device, cluster, needed)
        if self.most is not None and self.most < least:
            raise SessionError(f"at most {self.most} workers are fewer than the {least} that are there all the time")
        most = max(least, self.most or 0)
        return ServiceSize(least, most, device, self.cpus, chosen_strategy(self.strategy, device), self.idle_seconds)


class RayService:
    """The service of a Ray cluster, seen from a program. `owned`: it was started by this program, and ends with it."""

    def __init__(self, actor: Any, workers: Sequence[Any] = (), *, owned: bool = False) -> None:
        self.actor = actor
        self.workers = workers
        """The actors of workers that this program has made: Ray ends one of which nobody has a handle, unless it stays."""
        self.owned = owned
        self.pid = os.getpid()
        self.address, self._key = ask(actor.place_for_program, "the dispatcher's actor to say where it is")

    @contextlib.contextmanager
    def key_file(self) -> Iterator[str]:
        """The path of a file with the key of the service, which is there meanwhile."""
        with tempfile.TemporaryDirectory(prefix="gt-key-") as folder:
            yield str(write_private(Path(folder) / "service.key", self._key))

    def keep_key(self) -> Path:
        """Keep the key where this user's commands and programs on this machine look for it. Returns the path."""
        return write_private(kept_key(self.address), self._key)

    def status(self) -> dict[str, Any]:
        """What the dispatcher's actor says of the service (`DispatcherActor.status`)."""
        found: dict[str, Any] = ask(self.actor.status, "the dispatcher's actor to say how it is")
        return found

    def wait_for(self, workers: int) -> dict[str, Any]:
        """Wait until so many workers have joined, asking for more if the service may have them. Raises `SessionError`."""
        patience = start_timeout()
        refused = ask(self.actor.ask_for, "the dispatcher's actor to hear how many workers are needed", workers)
        if refused:
            raise SessionError(refused)
        deadline = time.monotonic() + 2 * patience  # Ray looks for room first, and then they start
        while (found := self.status())["joined"] < workers:
            if found["trouble"] or time.monotonic() >= deadline:
                why = found["trouble"] or f"waited {2 * patience:g} s; GT_START_TIMEOUT makes it longer"
                raise SessionError(f"{found['joined']} of {workers} workers have joined the service on Ray: {why}")
            time.sleep(ASK_SECONDS)
        return found

    def failure(self) -> str | None:
        """Why the service can serve no longer: the link finds that out by itself, from the dispatcher's silence."""
        return None

    def log_from(self, level: str) -> None:
        """Nothing: daemons on other nodes keep the level with which they were started."""

    def close(self) -> None:
        """End the service, if this program started it."""
        if self.owned and os.getpid() == self.pid and import_ray().is_initialized():
            self.owned = False
            end_service()


def kept_key(address: str) -> Path:
    """Where the key of a service at this address is kept for this user's commands (`gt/wire/keys.py`)."""
    return key_folder() / "at" / f"{address.removeprefix('tcp://')}.key"


def ask(method: Any, what: str, *arguments: Any) -> Any:
    """The answer of an actor. Raises `ConnectionFailed` if there is none in time; `what` says what was waited for."""
    ray, seconds = import_ray(), start_timeout()
    deadline = time.monotonic() + seconds
    why = f"nothing for {seconds:g} s"
    while (left := deadline - time.monotonic()) > 0:
        try:
            return ray.get(method.remote(*arguments), timeout=left)
        except ray.exceptions.ActorDiedError as error:
            why = _cause(error)
            break
        except ray.exceptions.ActorUnavailableError as error:
            why = _cause(error)
            time.sleep(ASK_SECONDS)  # it is started again
        except ray.exceptions.GetTimeoutError:
            break
    raise ConnectionFailed(
        f"waited for {what}: {why}; `ray status` and Ray's dashboard show its actors (gt-dispatcher)"
    )


def find_service() -> RayService | None:
    """The service of the Ray cluster that this program is connected to; None if it has none."""
    actor = named_actor(DISPATCHER_NAME)
    return None if actor is None else RayService(actor)


def address_of_service() -> str:
    """The address of the cluster's dispatcher; empty if there is none, or it does not say."""
    try:
        found = find_service()
    except ConnectionFailed:
        return ""
    return "" if found is None else found.address


def start_service(
    asked: SizeAsked, *, stays: bool, needed: int = 1, config: str = "", marks: str = "", policy: str = "",
    variables: Mapping[str, str] | None = None,
) -> RayService:  # fmt: skip
    """Start the service of the Ray cluster that this program is connected to, or join the one that somebody else has started
    meanwhile. `needed`: so many workers its config needs; `config` is its text. Raises `SessionError` where the cluster has no
    room.
    """
    ray = import_ray()
    size = asked.on(ray.cluster_resources(), needed)
    environment = {**service_environment(os.environ), **options.worker_environment(), **(variables or {})}
    setup = ServiceSetup(os.urandom(6).hex(), size, stays, environment, config, marks, policy)
    bundles = service_bundles(size)
    group = ray.util.placement_group(
        bundles, strategy=size.strategy.upper(), lifetime="detached" if stays else None, name=DISPATCHER_NAME
    )
    actor = None
    try:
        if _has_room(group, size):
            with (
                without_placement_warning(),
                contextlib.suppress(ValueError),
            ):  # the name is taken: somebody else was faster
                placed = actor_options(setup, DISPATCHER_NAME, bundles[0], group, 0)
                actor = ray.remote(DispatcherActor).options(**placed).remote(setup)
    finally:
        if actor is None:
            ray.util.remove_placement_group(group)
    if actor is None:
        return RayService(named_actor(DISPATCHER_NAME))
    try:
        workers = [place_worker(setup, number, group) for number in range(size.least)]
        return RayService(actor, workers, owned=not stays)
    except BaseException:
        end_service()
        raise


def _has_room(group: Any, size: ServiceSize) -> bool:
    """Wait until the cluster has room for a service; False if somebody else has started one meanwhile. Raises `SessionError`."""
    seconds = start_timeout()
    deadline = time.monotonic() + seconds
    while not group.wait(min(1.0, max(0.0, deadline - time.monotonic()))):
        if named_actor(DISPATCHER_NAME) is not None:
            return False
        if time.monotonic() >= deadline:
            raise SessionError(refusal(size, import_ray().available_resources(), seconds))
    return True


def join_or_start(address: str | None, workers: int | None, needed: int) -> RayService:
    """The service of the Ray cluster at `address`, with at least so many workers, `workers` or those that a config needs; one
    that ends with this program if there is none."""
    join_cluster(address)
    service = find_service()
    if service is None:
        service = start_service(SizeAsked(workers), stays=False, needed=needed)
    least = max(workers or 1, needed)
    if not service.owned and least > 1:
        service.wait_for(least)
    return service


def end_service() -> bool:
    """End the service of the Ray cluster: its daemons in order, then the actors, their files and the placement group. Returns
    whether there was one."""
    ray = import_ray()
    dispatcher, workers = named_actor(DISPATCHER_NAME), worker_handles()
    actors = [*([] if dispatcher is None else [dispatcher]), *workers.values()]
    if not actors:
        return False
    group = None
    for actor in actors:
        with contextlib.suppress(ray.exceptions.RayError):
            group = ray.get(actor.placement_group.remote(), timeout=END_SECONDS)
        if group is not None:
            break
    # the dispatcher first, so that no session hears of a lost worker; and nobody removes a file that another one still uses
    for method, some in (("stop", actors[:1]), ("stop", actors[1:]), ("tidy", actors)):
        if calls := [getattr(actor, method).remote() for actor in some]:
            ray.wait(calls, num_returns=len(calls), timeout=END_SECONDS)
    for actor in actors:
        ray.kill(actor)
    deadline = time.monotonic() + END_SECONDS
    while (named_actor(DISPATCHER_NAME) is not None or worker_handles()) and time.monotonic() < deadline:
        time.sleep(ASK_SECONDS)
    if group is not None:
        ray.util.remove_placement_group(group)
    return True


def _cause(error: Exception) -> str:
    """The last line of what Ray says of an actor that died, which is the error that it raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
