"""Ray itself, imported when it is needed, and this program's connection to a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any, Final

from gt.errors import ConnectionFailed, SessionError

CONNECT_SECONDS: Final = 10.0
"""The seconds in which somebody must listen at the address of a cluster. Ray itself tries for minutes."""


class RayMissing(SessionError):
    """Ray is not installed where a service on it was asked for."""


def import_ray() -> Any:
    """The module `ray`. Raises `RayMissing`."""
    try:
        import ray
    except ImportError as error:
        raise RayMissing(
            f"a service on Ray needs Ray, which cannot be imported ({error}): pip install 'gt-tensor[ray]', here and on "
            "each node of the cluster"
        ) from None
    return ray


def join_cluster(address: str | None) -> bool:
    """Connect this program to a Ray cluster, if it is connected to none: the one at `address` ('auto', 'ray://HOST:10001',
    'HOST:6379'), or that of RAY_ADDRESS or of this machine, or a new one on this machine that ends with this program. Returns
    whether it did. Raises `ConnectionFailed`, `RayMissing`.
    """
    ray = import_ray()
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that this starts
    try:
        _knock(address or os.environ.get("RAY_ADDRESS", ""))
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, OSError, ValueError, RuntimeError) as error:
        at = f"at {address}" if address else "here"
        raise ConnectionFailed(
            f"no Ray cluster answers {at} ({_first_line(error)}): start one with `ray start --head`, or say where one is with "
            "--ray-address or RAY_ADDRESS"
        ) from None
    return True


@contextlib.contextmanager
def without_placement_warning() -> Iterator[None]:
    """Ray warns of detached actors in a placement group that somebody might remove before them; a service removes it last."""
    logger = logging.getLogger("ray.actor")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _knock(address: str) -> None:
    """Connect to whoever listens at HOST:PORT or ray://HOST:PORT, and go. Raises `OSError` if nobody does; of other addresses Ray
    tells soon."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal() and int(port) < 1 << 16:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
