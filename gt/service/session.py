"""Starting and ending sessions: the part of the public API that may import the components."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gt.daemon.host import CONNECT_TIMEOUT, host_facts, start_timeout
from gt.daemon.registry import find_service
from gt.errors import ConfigError, ConnectionFailed, GTError
from gt.sharding import options

if TYPE_CHECKING:
    from gt.client.session.session import Session
    from gt.sharding.config import Config

substitutes: list[Callable[[Config | None, int | None], Session]] = []
"""While a program is explained: what starts a session in place of the one that it asks for."""
_registered: list[tuple[str, Any, str]] = []
"""Rules that wait for a session: signal, rules, and the line that registered them."""


def _read(config: Any) -> Config | None:
    """A config from a path, a mapping or a `Config`; None means the file that GT_CONFIG names, if any.

    Rules registered since go over it.
    """
    read = _read_alone(os.environ.get("GT_CONFIG") or None if config is None else config)
    if not _registered:
        return read
    from gt.sharding import config as schema

    read = schema.Config() if read is None else read
    for signal, rules, where in _registered:
        read = read.with_rules(signal, rules, where)
    return read


def _read_alone(config: Any) -> Config | None:
    if config is None:
        return None
    from gt.sharding import config as schema

    if isinstance(config, schema.Config):
        return config
    if isinstance(config, (str, Path)):
        return schema.load(config)
    if isinstance(config, dict):
        return schema.Config.from_plain(config)
    raise ConfigError(f"a config is a path or a mapping, not {type(config).__name__}")


def _sharing(priority: str | None, weight: float | None) -> dict[str, Any]:
    """What a program says of its share of the workers' time, by argument or by environment variable. Raises `ValueError` for a
    value that is not allowed."""
    found: dict[str, Any] = {}
    said = os.environ.get("GT_PRIORITY") or None if priority is None else priority
    share = os.environ.get("GT_WEIGHT") or None if weight is None else weight
    if said is not None:
        if said not in options.PRIORITIES:
            raise ValueError(f"priority {said!r} is not one of {', '.join(options.PRIORITIES)}")
        found["priority"] = said
    if share is not None:
        try:
            number = float(share)
        except (TypeError, ValueError):
            number = 0.0
        if not options.LEAST_WEIGHT <= number <= options.LARGEST_WEIGHT:
            raise ValueError(
                f"weight {share!r} is no number from {options.LEAST_WEIGHT:g} to {options.LARGEST_WEIGHT:g}"
            )
        found["weight"] = number
    return found


def _sharing_by(config: Config | None, sharing: Mapping[str, Any]) -> dict[str, Any]:
    """The same with what a config says besides."""
    own = {} if config is None else {"priority": config.priority, "weight": config.weight}
    return {**{name: value for name, value in own.items() if value is not None}, **sharing}


def _open(session: Session, config: Config | None, sharing: dict[str, Any], facts: dict[str, Any], *times: Any) -> None:
    """Begin a session, which says its share of the workers' time."""
    session.sharing = sharing
    session.open({**host_facts(), "priority": "auto", "weight": 1.0, **_sharing_by(config, sharing), **facts}, *times)


def connect(
    address: str | None = None, *, workers: int | None = None, config: Any = None, key: str | Path | None = None,
    priority: str | None = None, weight: float | None = None, timeout: float | None = None,
) -> Session:  # fmt: skip
    """Join the service at `address` ('tcp://127.0.0.1:7000'), or run one in the calling thread ('inproc'). That one has no
    processes that could be lost, so it takes no marks: it ends with the program, as do its tensors (docs/reliability.md).

    Without an address, join the service that you started last on this machine, or one that is open to a group of yours.

    `workers` (only for 'inproc') is the number of in-memory workers; default: as many as the config's mesh needs, or
    else 1. `config` is the session's sharding config: a path, a mapping or a `gt.Config`; default: the file named by
    GT_CONFIG. `key` is the path of a key file for a service at a TCP address; default: the file named by GT_KEY, or this
    user's own key, which their own services on this machine accept. `priority` is 'interactive', 'normal', 'batch' or
    'auto' (what the session's behaviour tells), `weight` (1) that of this program among yours on a service whose workers
    are shared (docs/multi-user.md); defaults: GT_PRIORITY and GT_WEIGHT, then `priority:` and `weight:` of the config. Where you
    have as many sessions as you may, this one waits in a queue, for at most `timeout` seconds; default: until its turn has
    come. Ends the current session. Raises `ConnectionFailed` within 5 s if nothing answers, or if its turn does not come in
    time, `ConfigError` for an invalid config, and `ValueError` for a key file that is none.
    """
    from gt.client.session import sessions
    from gt.client.session.session import Session

    read, sharing = _read(config), _sharing(priority, weight)
    if substitutes:
        return substitutes[-1](read, workers)
    sessions.disconnect()
    if address == "inproc":
        from .in_process import Fabric, InprocLink

        count = workers or (read.workers_needed() if read is not None else 1)
        if read is not None:
            read.mesh_for(count)
        link = _with_log(InprocLink(Fabric(count, None)))
        session = Session(link, "inproc", idle_flush=False)
        _open(session, read, sharing, {"bulk": b""}, CONNECT_TIMEOUT)
        return _begin(session, read)
    if workers is not None:
        raise ConnectionFailed(
            "workers= goes with 'inproc' or gt.init(); a running service has the workers that joined it"
        )
    address = address or find_service()
    if address is None:
        raise ConnectionFailed("no service of yours runs on this machine: start one with `gt up`, or say its address")
    if options.for_workers:
        raise _operators(next(iter(options.for_workers)), address)
    return _join(address, read, CONNECT_TIMEOUT, None, None if key is None else str(key), sharing, timeout)


def _join(
    address: str, config: Config | None, timeout: float, local: Any, key: str | None = None,
    sharing: dict[str, Any] | None = None, patience: float | None = None,
) -> Session:  # fmt: skip
    from gt.client.session.session import Session
    from gt.client.session.socket_link import SocketLink
    from gt.wire.addresses import await_listener

    advice = "set GT_START_TIMEOUT to more seconds" if local else f"start one with `gt up --address {address}`"
    silent = f"no dispatcher answered at {address} within {timeout:g} s; {advice}"
    began = time.monotonic()
    if not await_listener(address, timeout):
        raise ConnectionFailed(silent)
    timeout = max(1.0, timeout - (time.monotonic() - began))
    link = SocketLink(address, local, key)
    session = Session(_with_log(link), address, idle_flush=True, close=local.close if local else None)
    try:
        _open(session, config, sharing or {}, {"bulk": link.bulk_identity}, timeout, patience)
        with session.lock:  # a thread of the session may be looking for another dispatcher already
            if session.absence is None:
                link.connect_bulk(session.facts)
        try:
            session.wait_for(link.has_bulk, "the dispatcher's bulk socket", CONNECT_TIMEOUT)
        except TimeoutError:
            session.close()
            bulk = session.facts.get("bulk_address")
            raise ConnectionFailed(f"{bulk} did not answer within {CONNECT_TIMEOUT:g} s, and {address} does") from None
    except TimeoutError:
        session.close()
        if address.startswith("tcp://"):
            silent += (
                f"; if one runs there, it does not accept {'this key' if link.keys else 'peers without a key (GT_KEY)'}"
            )
        raise ConnectionFailed(silent) from None
    except GTError:
        session.close()  # it was refused, or cut off
        raise
    return _begin(session, config)


def _with_log(link: Any) -> Any:
    """The link, wrapped so that its messages go to the instruction log, if there is to be one."""
    if not os.environ.get("GT_INSTRUCTION_LOG"):
        return link
    from gt.client.session.logging_link import with_logging

    return with_logging(link)


def _begin(session: Session, config: Config | None) -> Session:
    """Make a newly opened session the default one, with its config and options."""
    from gt.client.session import sessions

    begin = getattr(session.link, "begin", None)
    if begin is not None:
        begin(session)
    sessions.adopt(session)
    try:
        if config is not None:
            shard_by(session, config)
        send_options()
    except BaseException:
        sessions.disconnect()
        raise
    _registered.clear()
    return session


def shard_by(session: Session, config: Config) -> None:
    """Shard a session by a config from now on. Raises `ConfigError`; the session then continues as it was."""
    sharing = _sharing_by(config, session.sharing)
    session.configure(config.model_copy(update=sharing).to_wire())
    session.said.update(sharing)
    session.config = config
    session.mentioned.clear()


def init(
    *, workers: int | None = None, config: Any = None, priority: str | None = None, weight: float | None = None,
    on: str | None = None, device: str | None = None,
) -> Session:  # fmt: skip
    """Start a dispatcher and workers on this machine, as child processes that end with this one, and join them.

    `workers` is their number; default: one per GPU, or without a GPU as many as the config needs, at least one.
    `config`, `priority` and `weight` are as in `connect`. A program's first operation calls this function if nothing else has
    started a session. Raises `ConfigError` before anything is started.

    `device` is what workers compute on: 'cpu', 'cuda', 'torch:cpu' (docs/devices.md), or one for each, as in 'cuda:0,cpu';
    default: GPUs, if there are some.

    `on="ray"` joins the service of the Ray cluster that this program is connected to, or finds (RAY_ADDRESS, this machine), or
    of `on="ray://HOST:10001"`. `workers` is how many it must have then: it gets more if it may. If the cluster has no service,
    one is started that ends with this program (docs/ray.md). Raises `SessionError` where there is no room for it.
    """
    from gt.client.session import sessions

    from .launch import Local, default_workers, devices_of

    read, sharing = _read(config), _sharing(priority, weight)
    if substitutes:
        return substitutes[-1](read, workers)
    if on is not None:
        if device is not None:
            raise ConnectionFailed("device does not go with on='ray': `gt up --on ray --device` says it (docs/ray.md)")
        return _init_on_ray(on, workers, read, sharing)
    count = workers or default_workers(read, device)
    if read is not None:
        read.mesh_for(count)
    sessions.disconnect()
    patience = start_timeout()
    local = Local(count, devices=None if device is None else devices_of(device, count))
    try:
        return _join(local.address, read, patience, local, sharing=sharing)
    except BaseException:
        local.close()
        raise


def _init_on_ray(on: str, workers: int | None, config: Config | None, sharing: dict[str, Any]) -> Session:
    """Join the service of a Ray cluster, or start one that ends with this program."""
    import atexit

    from gt.client.session import sessions
    from gt.ray.service import join_or_start

    if on != "ray" and not on.startswith("ray://"):
        raise ConnectionFailed(
            f"on={on!r} is no engine: say on='ray', or on='ray://HOST:10001' for a cluster elsewhere"
        )
    if config is not None and workers is not None:
        config.mesh_for(workers)
    sessions.disconnect()
    service = join_or_start(None if on == "ray" else on, workers, 1 if config is None else config.workers_needed())
    owned = service if service.owned else None
    if owned is not None:
        atexit.register(disconnect)  # before Ray's own end, which would be too early for it
    try:
        with service.key_file() as key:
            return _join(service.address, config, start_timeout(), owned, key, sharing)
    except ConnectionFailed as error:
        service.close()
        raise ConnectionFailed(
            f"{error}; the service is on Ray: its address must be reachable from here, not only Ray's own port"
        ) from None
    except BaseException:
        service.close()
        raise


def disconnect() -> None:
    """End the session. Its tensors become unusable; you can then start another session."""
    from gt.client.session import sessions

    sessions.disconnect()


def load_config(config: Any = None) -> None:
    """Shard by this config from now on (a path, a mapping or a `gt.Config`; default: the file named by GT_CONFIG).

    You can call this at any time; the config takes effect between two plans. Values do not change. All tensors move
    if the mesh changes; a parameter moves when a new rule first applies to it. Raises `ConfigError` with file, line,
    key and allowed values; the session then continues unchanged.
    """
    from gt.client.session import sessions

    read = _read_alone(os.environ.get("GT_CONFIG") or None if config is None else config)
    if read is None:
        raise ConfigError("there is no config to load: name a file or a mapping, or set GT_CONFIG")
    if sessions.active() is None:
        init(config=read)
    else:
        session = sessions.current()
        for signal, (rule, where) in session.regions.items():  # no call of theirs need come that would say it again
            read = with_region(read, signal, rule, where)
        shard_by(session, read)


def with_region(config: Config | None, signal: str, rule: Mapping[str, str], where: str) -> Any:
    """A config with what a region (`gt/service/regions.py`) says of its signal; the same one, if it says so much itself."""
    known = () if config is None else config.rules.get(signal, ())
    missing = {key: value for key, value in rule.items() if all(getattr(each, key) is None for each in known)}
    if any(each.shard or each.stages for each in known):
        missing.pop("device", None)
    if not missing:
        return config
    from gt.sharding import config as schema

    first = {**missing, **(known[0].model_dump(mode="json", exclude_none=True) if known else {})}
    return (config or schema.Config()).with_rules(signal, (first, *known[1:]), where)


def register_config(signal: str, rules: Any) -> None:
    """Shard one signal by this `gt.SignalConfig` from now on (or by several, or by mappings), as if the YAML
    contained it.

    Without a session, the rule applies to the next one and overrides its config. Raises `ConfigError`.
    """
    from gt.client.session import sessions

    frame = sys._getframe(1)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if sessions.active() is None:
        _registered.append((signal, rules, where))
        return
    from gt.sharding import config as schema

    session = sessions.current()
    shard_by(session, (session.config or schema.Config()).with_rules(signal, rules, where))


def send_options() -> None:
    """Send the run-time options that were set to the session, if there is one."""
    from gt.client.session import sessions

    if options.chosen and sessions.active() is not None:
        sessions.current().set_options(options.chosen)


def set_float32_matmul_precision(precision: str) -> None:
    """'highest': compute float32 products in float32. 'high' and 'medium': let GPUs round operands to TF32.

    The same as `gt.config.set({"tf32": True})`.
    """
    if precision not in ("highest", "high", "medium"):
        raise ValueError(f"set_float32_matmul_precision: 'highest', 'high' or 'medium', not {precision!r}")
    options.choose({"tf32": precision != "highest"})
    send_options()


def get_float32_matmul_precision() -> str:
    """'highest', or 'high' if GPUs may round to TF32."""
    return "high" if options.chosen.get("tf32") else "highest"


def set_log_level(level: str | int) -> None:
    """Log everything from this level upwards ('debug', 'info', 'warning', 'error') in this process and its daemons.

    Daemons that this program started before follow within two seconds. Those of a shared service have levels of their
    own. Raises `ValueError`.
    """
    from gt.daemon.logs import set_level

    known = set_level(level)
    sessions: Any = sys.modules.get("gt.client.session.sessions")
    session = sessions.active() if sessions is not None else None
    local = getattr(session.link, "local", None) if session is not None else None
    if local is not None:
        local.log_from(known)


def set_for_workers(values: Mapping[str, Any]) -> None:
    """Set options of the workers that this process will start. Raises `ConfigError` if they run already, or belong to others."""
    from gt.client.session import sessions

    if sessions.active() is not None:
        session, name = sessions.current(), next(iter(values))
        if not session.owns_service and session.name != "inproc":
            raise _operators(name, session.name)
        raise ConfigError(
            f"{name} is set before the workers start: call gt.config.set before the first operation, or after gt.disconnect()"
        )
    options.choose_for_workers(values)


def _operators(name: str, address: str) -> ConfigError:
    return ConfigError(
        f"{name} belongs to whoever starts the workers of {address}: they say `gt worker --{name.replace('_', '-')}`, or "
        f"{options.WORKER_OPTIONS[name].variable} in the environment; start your own service with gt.init()"
    )


def flush() -> None:
    """Send all gathered instructions, without waiting for them."""
    from gt.client.session import sessions

    if sessions.active() is not None:
        sessions.current().flush()


def synchronize() -> None:
    """Wait until the workers have finished everything that this program has requested so far."""
    from gt.client.session import sessions

    if sessions.active() is not None:
        session = sessions.current()
        session.flush()
        session.wait_for(lambda: session.credited >= session.sent, "the workers to finish", None)


def stats() -> dict[str, Any]:
    """Counters of this session's caches, and of the service.

    * `definitions_made` and `definition_hits`: segments that were sent in full, and those sent by number.
    * `definition_misses`, by reason: the instructions were `new`; they were known with other `lifetimes` of their
      values; or the segment had been evicted (`dropped`).
    * `plans_made` and `plan_hits`: the same for the dispatcher's plans.
    * `plan_misses`, by reason: the segment was `new`, or its inputs had other `placements`.

    * `marks`: copies of the session to which it can go back when a worker is lost; `recoveries`: how often it did;
      `recovery_seconds`: how long the last recovery took.
    * `moves`, of the whole service: how often a running session went on on another worker, because it was faster there.
    * `plans_refused`, of the whole service: runs that were refused because workers had ended while they computed them.

    A loop that makes definitions or plans in every iteration is slow.
    """
    from gt.client.session import sessions

    return sessions.current().stats()


def usage() -> dict[str, dict[str, float | int | None]]:
    """What you (your user, or your key) have used of this service since its dispatcher started, with all your programs, by
    top-level signal; '' has what is in no signal, and what counts by session only: puts, fetches, what is held and energy.

    * `device_seconds`: the time that your plans took on all their workers together, as these measured it. Of that,
      `predicted_device_seconds` could not be measured, because GPUs compute behind their hosts' backs, and are the cost model's.
    * `runs`, and the `instructions` of their plans.
    * `moved_bytes` between workers, by the plans; `put_bytes` and `fetched_bytes`.
    * `held_byte_seconds`: the bytes of your tensors on all workers, times the seconds for which they were there, as seen in a
      look every ten seconds or so.
    * `joules`: the part of your plans in what devices took while these ran, by their device seconds (of GPUs the predicted ones);
      None where no device tells its power.

    What was used in the last seconds may be missing.
    """
    from gt.client.session import sessions

    answer = sessions.current().usage()
    return {row[1]: usage_figures(answer["columns"][2:], row[2:]) for row in answer["rows"]}


def usage_figures(columns: list[str], values: list[int]) -> dict[str, float | int | None]:
    """The numbers of one sum as people read them: seconds in place of nanoseconds, joules or None in place of millijoules."""
    row = dict(zip(columns, values, strict=True))
    energy = row["energy_mj"]
    counts = {name: value for name, value in row.items() if name not in ("device_ns", "predicted_ns", "energy_mj")}
    return {
        "device_seconds": row["device_ns"] / 1e9, "predicted_device_seconds": row["predicted_ns"] / 1e9, **counts,
        "joules": None if energy < 0 else energy / 1000,
    }  # fmt: skip
