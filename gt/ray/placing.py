"""Making the actors of workers, at the start by the program and later by the dispatcher's actor."""

from __future__ import annotations

from typing import Any

from .bundles import worker_bundle
from .cluster import import_ray, without_placement_warning
from .service_setup import WORKER_PREFIX, ServiceSetup, actor_options
from .worker_actor import WorkerActor


def place_worker(setup: ServiceSetup, number: int, group: Any) -> Any:
    """Make the actor of a worker: in the placement group, or (None) wherever there is room. Returns its handle."""
    name = f"{WORKER_PREFIX}{number}"
    options = actor_options(setup, name, worker_bundle(setup.size), group, number + 1)
    with without_placement_warning():
        return import_ray().remote(WorkerActor).options(**options).remote(setup, name)
