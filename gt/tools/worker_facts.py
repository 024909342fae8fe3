"""The facts that workers on machines like this one would report when they join; planning without workers needs them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gt.errors import SessionError


def workers_on_hosts(hosts: int | Sequence[int], workers: int) -> tuple[int, ...]:
    """How many of these workers each host has. `hosts` is the number of hosts, some of which may have one more than others, or
    says it for each. Raises `SessionError`."""
    if isinstance(hosts, int):
        if not 0 < hosts <= workers:
            raise SessionError(f"{workers} workers are on 1 to {workers} hosts, not {hosts}")
        each, more = divmod(workers, hosts)
        return (each + 1,) * more + (each,) * (hosts - more)
    if min(hosts, default=0) < 1:
        raise SessionError(f"each host has at least one worker, not {list(hosts)}")
    if sum(hosts) != workers:
        raise SessionError(f"hosts of {list(hosts)} workers have {sum(hosts)}, not {workers}")
    return tuple(hosts)


def bandwidth_of(said: float | str) -> float:
    """Bytes a second, from a number or a text such as '1.25GB'; 0 if nothing is said. Raises `SessionError`."""
    from gt.sharding import options

    try:
        return float(options.size(said)) if said else 0.0
    except ValueError:
        raise SessionError(
            f"{said!r} is no speed of a link: say '1.25GB', '125MB' or a number of bytes a second"
        ) from None


def facts_on_hosts(counts: Sequence[int], speeds: str, devices: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What workers on hosts like this one would report, of which each has so many. The rest is as for `facts_of`."""
    found: list[dict[str, Any]] = []
    for number, count in enumerate(counts, 1):
        here = facts_of(count, speeds, devices[len(found) : len(found) + count])
        found += [{**said, "machine": f"host {number}"} for said in here] if len(counts) > 1 else here
    return found


@lru_cache(maxsize=1)
def _measured_speeds() -> tuple[str, float, float, int]:
    from gt.worker.base.backend import backend, count_devices
    from gt.worker.lifecycle.calibrate import measure

    chosen = backend("cuda:0" if count_devices() else "cpu")
    flops, memory = measure(chosen)["speed"]
    return chosen.kind, flops, memory, chosen.nccl.version if chosen.nccl is not None else 0


def facts_of(workers: int, speeds: str, devices: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The facts that `workers` workers would report if all were on a machine like this one. CPU workers share its cores.

    `devices` says what each computes on; one that this machine lacks gets typical figures. Each worker on "cuda" has a GPU of
    its own.
    """
    joined = {"host": "here", "nvlink_group_size": _group_size()}
    from gt.worker.base.backend import kind_of_device

    kinds = [kind_of_device(device) for device in devices]
    if speeds == "typical":
        said = list(devices) or ["cpu"] * workers
        return [{"kind": kind_of_device(each), **joined, **_card(each, n, 1)} for n, each in enumerate(said)]
    from gt.service.launch import cores

    kind, flops, memory, nccl = _measured_speeds()
    kinds = kinds or [kind] * workers
    sharing = kinds.count("cpu")
    found: list[dict[str, Any]] = []
    for number, each in enumerate(kinds):
        card = _card(devices[number] if devices else each, number, nccl if each == kind else 1)
        if each != kind:
            found.append({"kind": each, **joined, **card})
        elif each == "cpu":
            found.append({"kind": each, "speed": [flops / sharing, memory / max(1.0, sharing / cores())], **joined})
        else:
            found.append({"kind": each, "speed": [flops, memory], **joined, **card})
    return found


def _card(device: str, number: int, nccl: int) -> dict[str, Any]:
    """What the worker of this number would report about its GPU and NCCL, if it has them."""
    kind, _, index = device.partition(":")
    return {"device": f"cuda:{index or number}", "bus": index or str(number), "nccl": nccl} if kind == "cuda" else {}


def _group_size() -> int:
    """How many workers NVLink joins, as this process would tell the workers that it starts."""
    from gt.sharding import options

    name = "nvlink_group_size"
    return int(options.for_workers.get(name) or options.from_environment(name))
