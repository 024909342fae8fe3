"""Prepares daemons in the process of a command: checks its options and config, and waits until the daemons have started."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from gt.service.launch import Local


def check_engine(on: str, other: dict[str, object]) -> None:
    """Raise `BadParameter` for an engine that is none, or what does not go with one."""
    if on != "ray":
        raise typer.BadParameter(f"{on!r} is no engine: say --on ray, or leave it out")
    for name, value in other.items():
        if value:
            raise typer.BadParameter(f"{name} does not go with --on ray (docs/ray.md)")


def keys_of_daemons(address: str, *, insecure: bool) -> bool:
    """Have the daemons that are started use this user's own key, or none. Returns whether anybody else has one."""
    import os

    from gt.wire.keys import AuthorizedKeys, own_key_path

    os.environ.pop("GT_KEY", None)
    if insecure or not address.startswith("tcp://"):
        return False
    authorized = AuthorizedKeys()
    os.environ["GT_KEY"] = str(own_key_path())
    return authorized.others()


def own_service() -> str:
    """The address of the dispatcher that this user started last on this machine; it may still be starting."""
    import time

    from gt.daemon.host import CONNECT_TIMEOUT
    from gt.daemon.registry import services
    from gt.errors import ConnectionFailed

    deadline = time.monotonic() + CONNECT_TIMEOUT
    while not (found := [service for service in services() if service.shared]):
        if time.monotonic() > deadline:
            raise ConnectionFailed(
                "no dispatcher of yours runs on this machine: start one with `gt dispatcher`, or say --address"
            )
        time.sleep(0.05)
    return found[0].address


def for_workers(pool: str | None, threshold: str | None, prefetch: str | None, group: str | None) -> None:
    """What was said of the workers that are to be started."""
    from gt.sharding.options import choose_for_workers

    said = {
        "memory_pool_size": pool, "cpu_spill_threshold": threshold, "prefetch_buffer_size": prefetch,
        "nvlink_group_size": group,
    }  # fmt: skip
    choose_for_workers({name: value for name, value in said.items() if value is not None})


def keep_snapshots_in(folder: Path | None) -> None:
    """Have the workers that are started keep snapshots in a folder."""
    if folder is not None:
        import os

        from gt.snapshot_files.snapshot_names import FOLDER_VARIABLE

        os.environ[FOLDER_VARIABLE] = str(folder.absolute())


def read_config(config: Path | None) -> Any:
    """The config, checked in this process: a wrong one is refused before anything is started."""
    if config is None:
        return None
    from gt.sharding.config import load

    return load(config)


def check_limits(path: Path | None) -> None:
    """Check the file of limits in this process, as the config."""
    if path is not None:
        from gt.dispatcher.limits.limits_file import read_limits

        read_limits(path)


def check_free(address: str) -> None:
    """Raise `AddressInUse` when somebody listens at `address`: sooner, and in fewer words, than a daemon that ends."""
    import socket

    from gt.wire.addresses import AddressInUse

    with contextlib.ExitStack() as stack:
        try:
            if address.startswith("ipc://"):
                probe = stack.enter_context(socket.socket(socket.AF_UNIX))
                taken = probe.connect_ex(address.removeprefix("ipc://")) == 0
            else:
                host, _, port = address.removeprefix("tcp://").rpartition(":")
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                probe = stack.enter_context(socket.socket(family))
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host.strip("[]"), int(port)))
                taken = False
        except ValueError:
            return  # no port number: whoever binds it says what an address is
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
    if taken:
        raise AddressInUse(f"{address} is in use by another process; choose another --address")


def wait_for_workers(local: Local, count: int, spares: int) -> bool:
    """Wait until all workers and spares have joined; False when a daemon ends first or it takes too long."""
    import time

    from gt.client.session.session import Session
    from gt.client.session.socket_link import SocketLink
    from gt.daemon.host import host_facts, start_timeout
    from gt.errors import GTError
    from gt.wire.addresses import await_listener

    patience = start_timeout()
    deadline = time.monotonic() + patience
    if not await_listener(local.address, patience, lambda: local.given_up() is None):
        return False
    session = Session(SocketLink(local.address, local), local.address, idle_flush=False)
    try:
        session.open({**host_facts(), "bulk": b""}, patience, patience)
        while (joined := session.ask("statistics"))["workers"] < count or joined["spares"] < spares:
            if time.monotonic() > deadline or local.given_up() is not None:
                return False
            time.sleep(0.05)
    except (GTError, TimeoutError):
        return False  # a daemon ended or hangs: `wait` says which
    finally:
        session.close()
    return True
