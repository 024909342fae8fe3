"""What all actors of a service on Ray are told when they are made, and how they are named and placed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from .bundles import ServiceSize
from .cluster import import_ray

NAMESPACE: Final = "gt"
"""Ray's namespace of the actors: a Ray cluster has one service."""
DISPATCHER_NAME: Final = "gt-dispatcher"
WORKER_PREFIX: Final = "gt-worker-"
CALLS_AT_ONCE: Final = 8
"""How many questions an actor answers at a time."""
OWN_VARIABLES: Final = frozenset({"GT_KEY", "GT_KEYS", "GT_CONFIG"})
"""Variables of the program that its service does not take over: where keys and config are on its machine."""
GONE_SECONDS: Final = 30.0
"""The seconds after which a worker whose dispatcher's actor is gone for good ends by itself."""


class ServiceSetup(NamedTuple):
    """A service: a `token` that tells it from others, its size, the text of its sharding config, GT's environment variables, and
    the options of its daemons. `stays`: it outlives the program that starts it. `marks` is a folder that all nodes see."""

    token: str
    size: ServiceSize
    stays: bool
    environment: Mapping[str, str] = {}
    config: str = ""
    marks: str = ""
    policy: str = ""


def service_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Of a program's environment, what its service's daemons are to know."""
    return {name: text for name, text in variables.items() if name.startswith("GT_") and name not in OWN_VARIABLES}


def daemon_environment(setup: ServiceSetup, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a daemon on this node."""
    return {**os.environ, **setup.environment, **more}


def daemon_options(setup: ServiceSetup) -> list[str]:
    """Options that all daemons have."""
    level = setup.environment.get("GT_LOG_LEVEL")
    return [] if level is None else ["--log-level", level]


def actor_options(
    setup: ServiceSetup, name: str, bundle: Mapping[str, float], group: Any, index: int
) -> dict[str, Any]:
    """Ray's options of an actor: it is started again as often as it dies, in its bundle of the placement group if it has one."""
    ray = import_ray()
    placed: Any = "SPREAD"
    if group is not None:
        strategies = ray.util.scheduling_strategies
        placed = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    return {
        "name": name, "namespace": NAMESPACE, "lifetime": "detached" if setup.stays else None, "max_restarts": -1,
        "max_task_retries": 0, "max_concurrency": CALLS_AT_ONCE, "num_cpus": bundle.get("CPU", 0),
        "num_gpus": bundle.get("GPU", 0), "scheduling_strategy": placed,
    }  # fmt: skip


def worker_handles() -> dict[str, Any]:
    """The actors of workers that the cluster has, by name."""
    found = {}
    for each in import_ray().util.list_named_actors(all_namespaces=True):
        if each["namespace"] == NAMESPACE and each["name"].startswith(WORKER_PREFIX):
            handle = named_actor(each["name"])
            if handle is not None:
                found[each["name"]] = handle
    return found


def named_actor(name: str) -> Any:
    """An actor of the service; None if there is none of this name."""
    try:
        return import_ray().get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None
