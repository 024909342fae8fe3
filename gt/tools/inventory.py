"""What a service has and holds: `gt.devices()` and `gt.memory()`, and the plain records that they return.

Workers count when they are asked, and not otherwise, so nothing here costs a program anything that does not ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gt.sharding.device_names import names_of

__all__ = ["Device", "Devices", "Health", "Holder", "Memory", "WorkerMemory", "devices", "memory"]


@dataclass(frozen=True, slots=True)
class Health:
    """How a GPU was lately, as its driver says (NVML). None: the GPU does not tell."""

    age: float
    """Seconds since it said so. More than a few: its driver answers slowly, or no longer."""
    temperature: int | None
    """Degrees Celsius."""
    power: float | None
    """Watts."""
    power_limit: float | None
    """Watts that it may draw."""
    busy: float | None
    """The share, from 0 to 1, of the last moment in which a kernel ran."""
    memory_used: int | None
    """Bytes that all processes use."""
    memory_errors: int | None
    """Errors of its memory that could not be corrected, since the driver was loaded."""
    slowed: tuple[str, ...]
    """Why it runs slower than it could: 'power cap', 'temperature', 'hardware slowdown', …"""


@dataclass(frozen=True, slots=True)
class Device:
    """One worker and what it computes on."""

    worker: int
    """The worker's number, as configs and errors say it."""
    kind: str
    """'cpu' or 'cuda'."""
    name: str
    """'cpu', 'cuda:0', …"""
    model: str
    """What a GPU calls itself, as 'NVIDIA H100 80GB HBM3'; empty for a CPU."""
    host: str
    """The machine's name."""
    cores: int
    """Processor cores that the worker may use; 0 where it did not say."""
    memory: int
    """Bytes of the GPU's memory, or else of the host's, which the workers there share; 0 where it did not say."""
    flops: float | None
    """Floating-point operations a second of a float32 matrix product, as measured when the worker started; None: not
    measured, so planned for as is typical of its kind. In-memory workers are not measured."""
    bandwidth: float | None
    """Bytes a second that element-wise work reads and writes, measured likewise."""
    group: str = ""
    """Workers of one group are joined by NVLink, as their operator says (`nvlink_group_size`); empty: nobody said so."""
    health: Health | None = None
    """How the GPU was when the worker last said so, every two seconds; None for a CPU, or without NVML."""
    duty: str = "in service"
    """'spare' for a worker that waits until another is lost (`gt up --spares`), 'leaving' for one that is drained (`gt drain`),
    'in service' for all others."""

    @property
    def free(self) -> int | None:
        """Bytes of a GPU's memory that no process used lately; None where nobody says so. What tensors take, on any worker, says
        `gt.memory()`."""
        used = None if self.health is None else self.health.memory_used
        return None if used is None or not self.memory else max(0, self.memory - used)

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which `gt.move`, `gt.function` and `device:` in a config may call it: the last one is its alone."""
        return names_of(self.worker, {"kind": self.kind, "device": self.name, "host": self.host})


@dataclass(frozen=True, slots=True)
class Devices(Sequence[Device]):
    """The workers of a service in the order of their numbers; printed, a table."""

    devices: tuple[Device, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.devices[index]

    def __len__(self) -> int:
        return len(self.devices)

    def __str__(self) -> str:
        head = (
            "worker", "device", "model", "host", "cores", "memory", "float32 products", "element-wise", "group", "temperature",
            "power", "busy", "in use", "free", "memory errors", "slowed by", "as of", "duty",
        )  # fmt: skip
        return _table(head, (_device_row(device) for device in self.devices))


@dataclass(frozen=True, slots=True)
class Holder:
    """Tensors of one client that were made in one signal, on one worker. Bytes; memory at which several tensors look is
    counted once, with the first of them."""

    worker: int
    client: int
    signal: str
    """The path, as 'layer1/attention'; empty for what was made in no signal, or was moved here from another mesh."""
    tensors: int
    live: int
    """Bytes in the worker's own memory."""
    shared: int
    """Bytes that lie in memory which processes of the host share, as large puts do in their client's."""
    spilled: int
    """Bytes that went out of memory, and come back before they are read."""


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The memory of one worker, in bytes."""

    worker: int
    device: str
    """'cpu', 'cuda:0', …"""
    live: int
    """Tensors in its own memory, between plans."""
    shared: int
    """Tensors in memory that processes of the host share."""
    pool_size: int
    """What its tensors may take (`memory_pool_size`); 0: as much as there is."""
    pool_used: int
    """What is in use of that; on a GPU with what its kernels use, on a CPU the tensors."""
    high_water: int
    """The most at one time since the worker started: of the tensors where there is a limit, of a GPU's pool as far as was seen,
    or else of the whole process."""
    pinned: int
    """Tensors that went out of a GPU's memory to pinned memory of the host."""
    pinned_reserved: int
    """Pinned memory that the worker has from the host, with what nobody uses at the moment."""
    spilled: int
    """All that went out, to pinned memory or to the file."""
    fragmentation: float | None
    """The share, from 0 to 1, of the memory that its allocator has from the system or device and nobody uses; None where it
    cannot tell."""
    host_calls: dict[str, int] = field(default_factory=dict)
    """Of a worker that computes with PyTorch: how often NumPy had to, by op and dtype of the result, as in 'svd float32'."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Who holds what in a service, at one moment in the asking client's stream; printed, tables."""

    client: int
    """The number of the client that asked."""
    workers: tuple[WorkerMemory, ...]
    holders: tuple[Holder, ...]
    """The largest first. Of very many on one worker, the small ones together, in the signal '(others)'; on a service of very
    many clients, small ones of other clients are left out."""

    @property
    def live(self) -> int:
        """Bytes of tensors in the memory of all workers."""
        return sum(worker.live for worker in self.workers)

    @property
    def spilled(self) -> int:
        """Bytes of tensors that went out of memory, on all workers."""
        return sum(worker.spilled for worker in self.workers)

    def by_client(self) -> dict[int, Holder]:
        """What each client holds in all; in these, `worker` is −1 and `signal` '*'."""
        return {client: _sum(some, client, "*") for client, some in _group_by(self.holders, "client")}

    def by_signal(self, client: int | None = None) -> dict[str, Holder]:
        """What was made in each signal, by one client (default: the one that asked); in these, `worker` is −1."""
        who = self.client if client is None else client
        mine = [holder for holder in self.holders if holder.client == who]
        return {signal: _sum(some, who, signal) for signal, some in _group_by(mine, "signal")}

    def __str__(self) -> str:
        from gt.tools.explain_render import size

        workers = _table(
            ("worker", "device", "live", "shared", "pool", "high water", "pinned", "spilled", "fragmentation"),
            (
                (
                    str(w.worker), w.device, size(w.live), size(w.shared),
                    f"{size(w.pool_used)} of {size(w.pool_size)}" if w.pool_size else "no limit",
                    size(w.high_water), size(w.pinned), size(w.spilled),
                    "" if w.fragmentation is None else f"{w.fragmentation:.0%}",
                )
                for w in self.workers
            ),
        )  # fmt: skip
        holders = _table(
            ("client", "signal", "tensors", "live", "shared", "spilled"),
            (
                (
                    f"{client} (this one)" if client == self.client else str(client), h.signal or "(none)",
                    str(h.tensors), size(h.live), size(h.shared), size(h.spilled),
                )
                for client in self.by_client()
                for h in self.by_signal(client).values()
            ),
        )  # fmt: skip
        return f"{workers}\n\n{holders}"


def devices() -> Devices:
    """The workers of the current session's service: kind, host, memory in bytes, measured speeds, and how their GPUs are.

    `health` of each is what its GPU said last, normally within two to four seconds: temperature in degrees Celsius, power in
    watts, how busy it is from 0 to 1, memory in use in bytes, memory errors, why it is slowed down, and how many seconds ago
    that was; None for a CPU, or without NVML.

    Starts the default session if there is none. Raises `gt.SessionError` if the service is gone.
    """
    from gt.client.session import sessions

    return Devices(tuple(_device(number, facts) for number, facts in sessions.current().ask("devices")["workers"]))


def memory() -> Memory:
    """The service's memory use in bytes, by worker, client and signal.

    Includes everything that the program requested before, except large puts in flight; the call waits for the workers
    to finish it. Other clients' tensors are counted as they are at that moment. Raises `gt.SessionError` if the
    service is gone.
    """
    from gt.client.session import sessions

    answer = sessions.current().ask("memory")
    workers, holders = [], []
    for number, facts in answer["workers"]:
        held = facts.pop("holders")
        holders += [Holder(number, *row) for row in held]
        live, shared, spilled = (sum(row[at] for row in held) for at in (3, 4, 5))
        workers.append(WorkerMemory(worker=number, live=live, shared=shared, spilled=spilled, **facts))
    holders.sort(key=lambda holder: -(holder.live + holder.shared + holder.spilled))
    return Memory(answer["client"], tuple(workers), tuple(holders))


def _device(number: int, facts: dict[str, Any]) -> Device:
    flops, bandwidth = facts.get("speed") or (None, None)
    return Device(
        number, str(facts.get("kind", "cpu")), str(facts.get("device", "")), str(facts.get("model", "")),
        str(facts.get("host", "")), int(facts.get("cores", 0)), int(facts.get("memory", facts.get("host_memory", 0))),
        flops, bandwidth, str(facts.get("group", "")), _health(facts["health"]) if "health" in facts else None,
        str(facts.get("duty", "in service")),
    )  # fmt: skip


def _health(said: dict[str, Any]) -> Health:
    """As the worker said it: milliwatts and per cent, and -1 for what is not known."""
    temperature, used, errors = (
        None if said[name] < 0 else int(said[name]) for name in ("temperature", "used", "errors")
    )
    power, limit = (None if said[name] < 0 else said[name] / 1000 for name in ("power", "power_limit"))
    busy = None if said["busy"] < 0 else said["busy"] / 100
    return Health(said["age"], temperature, power, limit, busy, used, errors, tuple(said["slowed"]))


def _device_row(device: Device) -> tuple[str, ...]:
    from gt.tools.explain_render import size

    return (
        str(device.worker), device.name, device.model, device.host, str(device.cores or ""),
        size(device.memory) if device.memory else "",
        "" if device.flops is None else f"{device.flops / 1e9:,.0f} Gflop/s",
        "" if device.bandwidth is None else f"{device.bandwidth / 1e9:,.1f} GB/s",
        device.group, *_health_row(device), "" if device.duty == "in service" else device.duty,
    )  # fmt: skip


def _health_row(device: Device) -> tuple[str, ...]:
    from gt.tools.explain_render import size

    health = device.health
    if health is None:
        return ("",) * 8
    limit = "" if health.power_limit is None else f" of {health.power_limit:.0f}"
    return (
        "" if health.temperature is None else f"{health.temperature} °C",
        "" if health.power is None else f"{health.power:.0f}{limit} W",
        "" if health.busy is None else f"{health.busy:.0%}",
        "" if health.memory_used is None else size(health.memory_used),
        "" if device.free is None else size(device.free),
        "" if health.memory_errors is None else str(health.memory_errors),
        ", ".join(health.slowed),
        f"{health.age:.0f} s ago",
    )


def _group_by(holders: Iterable[Holder], field: str) -> Iterator[tuple[Any, list[Holder]]]:
    """By the value of a field, in the order of their first."""
    found: dict[Any, list[Holder]] = {}
    for holder in holders:
        found.setdefault(getattr(holder, field), []).append(holder)
    return iter(found.items())


def _sum(some: list[Holder], client: int, signal: str) -> Holder:
    tensors, live, shared, spilled = (
        sum(getattr(holder, name) for holder in some) for name in ("tensors", "live", "shared", "spilled")
    )
    return Holder(-1, client, signal, tensors, live, shared, spilled)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell; columns in which nothing stands are left out."""
    lines = [head, *rows]
    widths = [max(map(len, column)) if len(lines) > 1 and any(column[1:]) else 0 for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True) if width).rstrip()
        for line in lines
    )
