"""The resources that a service needs from a Ray cluster, as bundles of CPUs and GPUs, and the error where some lack. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

DEVICES: Final = ("cpu", "cuda")
STRATEGIES: Final = ("pack", "spread")


class ServiceSize(NamedTuple):
    """How large a service on Ray is. `least` workers are there all the time, and `most` when sessions need them; each has `cpus`
    cores, and on `device` cuda a GPU. Ray places them together ('pack') or on different nodes ('spread') where it can.
    """

    least: int
    most: int
    device: str = "cpu"
    cpus: int = 1
    strategy: str = "spread"
    idle_seconds: float = 60.0
    """After so many seconds without work a worker beyond `least` is given back."""

    @property
    def grows(self) -> bool:
        """Whether the number of workers changes."""
        return self.most > self.least


def worker_bundle(size: ServiceSize) -> dict[str, float]:
    """What one worker takes."""
    return {"CPU": float(size.cpus), **({"GPU": 1.0} if size.device == "cuda" else {})}


def service_bundles(size: ServiceSize) -> list[dict[str, float]]:
    """The bundles of the placement group: the dispatcher's first, then those of the workers that stay."""
    return [{"CPU": 1.0}, *(worker_bundle(size) for _ in range(size.least))]


def chosen_device(said: str | None, cluster: Mapping[str, Any]) -> str:
    """The kind of device: the one that was said, or GPUs if the cluster has some."""
    return said or ("cuda" if cluster.get("GPU", 0) >= 1 else "cpu")


def chosen_strategy(said: str | None, device: str) -> str:
    """Together or apart, where nothing was said: GPUs together, since links inside a host are the fastest; CPUs apart."""
    return said or ("pack" if device == "cuda" else "spread")


def default_count(device: str, cluster: Mapping[str, Any], needed: int) -> int:
    """How many workers there are where nobody says: one for each GPU of the cluster, or as many as a config needs."""
    return max(needed, int(cluster.get("GPU", 0)) if device == "cuda" else 1)


def shortage(bundles: Sequence[Mapping[str, float]], available: Mapping[str, Any]) -> str:
    """What a cluster lacks for these bundles: '3 of 4 CPU, 1 of 2 GPU'; empty if it has enough in all, though perhaps not on
    single nodes."""
    asked: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            asked[name] = asked.get(name, 0.0) + amount
    return ", ".join(
        f"{max(0.0, amount - available.get(name, 0)):g} of {amount:g} {name}"
        for name, amount in asked.items()
        if amount > available.get(name, 0)
    )


def refusal(size: ServiceSize, available: Mapping[str, Any], seconds: float) -> str:
    """What is said where a cluster has no room for a service."""
    lacks = shortage(service_bundles(size), available)
    each = ", ".join(f"{amount:g} {name}" for name, amount in worker_bundle(size).items())
    said = f"{size.least} {'worker' if size.least == 1 else 'workers'} of {each} each and a dispatcher of 1 CPU"
    why = (
        f"it lacks {lacks}"
        if lacks
        else "it has enough in all, but no node has enough for one worker, or others took it meanwhile"
    )
    there = ", ".join(f"{available.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
    return (
        f"the Ray cluster has no room for {said} within {seconds:g} s: {why} (available: {there}); ask for fewer workers or "
        "smaller ones (--cpus-per-worker), add nodes, or see `ray status`"
    )
