"""What the configs of sessions ask for: the axes of a mesh, and workers to which signals are pinned.

Reading a config takes time, which a job takes; until then a session waits (`ConfigResolution`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from gt.dispatcher.cost.pinned_workers import pinned_workers
from gt.dispatcher.jobs.job_scheduler import JobScheduler
from gt.dispatcher.state.config_resolution import ConfigChange, ConfigResolution, SharedComputation
from gt.dispatcher.state.message_state import MessageState
from gt.dispatcher.state.records import ClientRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.errors import ConfigError
from gt.sharding.device_names import KINDS, names_of, show_devices
from gt.sharding.placement import PINNED_AXIS

from .mesh_registry import MAX_TOLD
from .worker_choice import WorkerChoice

if TYPE_CHECKING:
    from gt.sharding.config import Config


class MeshRequests:
    """What each session's config asks for on the workers that it may use."""

    def __init__(self, service: DispatcherState, jobs: JobScheduler, workers: WorkerChoice) -> None:
        self.service = service
        self.jobs = jobs
        self.workers = workers
        self.service_resolution: ConfigResolution | None = None
        """What the service's config asks for."""

    def resolution(self, client: ClientRecord, config: Config) -> ConfigResolution:
        """What a config asks for, as far as it is known."""
        if config is self.service.config:
            if self.service_resolution is None or self.service_resolution.config is not config:
                self.service_resolution = ConfigResolution(config)
            return self.service_resolution
        if client.resolution is None or client.resolution.config is not config:
            client.resolution = ConfigResolution(config)
        return client.resolution

    def axes(self, client: ClientRecord, config: Config | None) -> dict[str, int] | MessageState:
        """The axes that a config asks for on the workers in service, or what the session waits for."""
        if config is None:
            return {"workers": 1}
        pinned = self.pinned(client, config)
        if isinstance(pinned, MessageState):
            return pinned
        if pinned:
            return {PINNED_AXIS: len(pinned)} if len(pinned) > 1 else {"workers": 1}
        present = len(self.workers.allowed(client))
        shape = self.resolution(client, config).axes(present)
        if not shape.over:
            return self.jobs.compute(client, shape)
        try:
            return shape.result()
        except ConfigError as error:
            if present == len(self.service.in_service):
                raise
            raise ConfigError(
                f"{error} (of {len(self.service.in_service)} here, {self.workers.granted(client)})"
            ) from None

    def pinned(self, client: ClientRecord, config: Config) -> list[int] | MessageState:
        """The workers of a session whose config only pins signals to devices, the one for all else first; none for another
        config. Raises `ConfigError` for a device that no worker has, but for one of which the session may know that whoever had
        it is gone."""
        pins = self.resolution(client, config).pins()
        if not pins.over:
            return self.jobs.compute(client, pins)
        devices, alone = pins.result()
        if not devices or not alone:
            return []
        present = self.workers.allowed(client)
        names = {worker.number: names_of(worker.number, worker.facts) for worker in present}
        found, missing = pinned_workers(devices, names, self.workers.in_order(client, present))
        missing = [device for device in missing if not _may_lack(client, device, names)]
        if missing:
            granted = "" if len(present) == len(self.service.in_service) else f", and {self.workers.granted(client)}"
            text = f"no worker that the session may use is {missing[0]}{granted}"
            raise ConfigError(f"{devices[missing[0]]}: {text}; allowed: {show_devices(names.values(), MAX_TOLD)}")
        return found

    def check_pins(self, client: ClientRecord, resolution: ConfigResolution, names: list[tuple[str, ...]]) -> None:
        """Raise `ConfigError` for a device that no worker of the mesh has which a config asks for besides, and for the first
        time."""
        for device, where in resolution.pins().result().devices.items():
            absent = (device not in KINDS or len(names) == 1) and not any(device in each for each in names)
            if absent and not _may_lack(client, device, [each.number for each in self.workers.allowed(client)]):
                text = f"no worker of the session's mesh is {device}; allowed: {show_devices(names, MAX_TOLD)}"
                raise ConfigError(f"{where}: {text}")

    def adopt(self, config: Config) -> Generator[None, None, bool]:
        """Adopt a new config of the service if it fits the workers."""
        resolution = ConfigResolution(config)
        try:
            while workers := len(self.service.in_service):
                shape = resolution.axes(workers)
                if shape.over:
                    shape.result()
                    break
                yield from shape.turns()
        except ConfigError as error:
            self.service.log("error", f"the config stays as it was: {error}", "reload")
            return False
        self.service.config, self.service_resolution = config, resolution
        return True

    def over_service(
        self, client: ClientRecord, change: ConfigChange, own: Config | None
    ) -> Config | MessageState | None:
        """A session's own config merged over the service's present one, or what it waits for."""
        base = self.service.config
        if base is None or own is None:
            return base or own
        if change.merged is None or change.base is not base:
            change.base, change.merged = base, SharedComputation(base.overlay_in_turns(own))
        return change.merged.result() if change.merged.over else self.jobs.compute(client, change.merged)


def _may_lack(client: ClientRecord, device: str, numbers: Iterable[int]) -> bool:
    """Whether a config of a session may name a device that no worker has: one that it has asked for before, or, after a recovery,
    a worker with a smaller number than some that are here. It was lost, and a config that named it is sent again."""
    rules = () if client.config is None else client.config.rules.values()
    if any(rule.device == device for each in rules for rule in each):
        return True
    return client.recovery.recoveries > 0 and device.startswith("gt:") and int(device[3:]) < max(numbers, default=0)
