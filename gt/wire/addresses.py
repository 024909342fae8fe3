"""Addresses, as `tcp://HOST:PORT` and `ipc:///PATH`: which of them are the same, who reaches them, and what number a name has.

Hosts' names are looked up here, with an end. ZeroMQ would do it in the one thread that serves all connections of a process: a
name server that does not answer then stops them all, for 5 seconds and more.
"""

from __future__ import annotations

import ipaddress
import socket as socketlib
import threading
import time
from collections.abc import Callable
from typing import Any

from gt.daemon.registry import services
from gt.errors import GTError


class AddressInUse(GTError, OSError):
    """Another process listens at the address."""


class AddressRefused(GTError, ValueError):
    """An address that GT does not bind or does not understand."""


class HostNotFound(GTError, OSError):
    """A host's name that nobody knows, or not in time."""


def host_and_port(address: str) -> tuple[str, str]:
    """Host and port of a TCP address, as they are written."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), port


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, which others do not reach by that name."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(address: str) -> bool:
    """Whether a TCP address stands for all addresses of the machine, so that one can listen there and not connect."""
    return address.startswith("tcp://") and host_and_port(address)[0] in ("*", "0.0.0.0", "::")  # noqa: S104 — compared


def is_same_address(listening: str, address: str) -> bool:
    """Whether who connects to `address` on this machine reaches what listens at `listening`."""
    if listening == address:
        return True
    if not (listening.startswith("tcp://") and address.startswith("tcp://")):
        return False
    (there, port), (here, asked) = host_and_port(listening), host_and_port(address)
    if port != asked:
        return False
    if is_wildcard(listening):
        return is_loopback(here) or _is_of_this_machine(here)
    return is_loopback(here) and "localhost" in (there, here)


def _is_of_this_machine(host: str) -> bool:
    """Whether a host is an IP address that an interface of this machine has. Names are not looked up."""
    try:
        family = socketlib.AF_INET6 if ipaddress.ip_address(host).version == 6 else socketlib.AF_INET
        with socketlib.socket(family, socketlib.SOCK_DGRAM) as datagrams:
            datagrams.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True


def reachable(listening: str, address: str) -> str:
    """How to reach a socket that its owner says listens at `listening`, where the owner was reached at `address`."""
    if not is_wildcard(listening):
        return listening
    return f"{address.rpartition(':')[0]}:{host_and_port(listening)[1]}"


def await_listener(address: str, timeout: float, alive: Callable[[], bool] = lambda: True) -> bool:
    """Wait until somebody listens at a loopback TCP address; False after `timeout` seconds, or when `alive` says no.

    A service says which key it has before it listens, so who waited knows whether it has one. Other addresses are not waited
    for.
    """
    host, port = host_and_port(address)
    if not address.startswith("tcp://") or not is_loopback(host) or not port.isdigit():
        return True
    deadline = time.monotonic() + timeout
    while not any(is_same_address(service.address, address) for service in services()):
        try:
            socketlib.create_connection((host, int(port)), 1.0).close()
        except (OSError, OverflowError):
            if time.monotonic() >= deadline or not alive():
                return False
            time.sleep(0.02)
        else:
            return True
    return True  # one of this user's own, which need not be disturbed


def check_bind(address: str, *, keyed: bool = False) -> None:
    """Raise `AddressRefused` unless `address` is `ipc://…`, or TCP on loopback, or (`keyed`) TCP where peers need keys."""
    if address.startswith("ipc://"):
        return
    if not address.startswith("tcp://"):
        raise AddressRefused(f"{address!r} is no address: say tcp://127.0.0.1:7000 or ipc:///path")
    if not keyed and not is_loopback(host_and_port(address)[0]):
        raise AddressRefused(
            f"refusing to bind {address}: anybody who reaches it could use this machine, and nobody has a key yet; "
            "make one with `gt keys new NAME`, or bind a loopback address such as tcp://127.0.0.1:7000"
        )


def with_number(address: str, seconds: float) -> str:
    """An address with a number in place of a host's name, which is looked up for so many seconds at most. Raises
    `HostNotFound`."""
    if not address.startswith("tcp://"):
        return address
    host, port = host_and_port(address)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not port.isdecimal() or not host or host == "*":
            return address  # which is refused where it is used
        return f"tcp://{look_up(host, seconds)}:{port}"
    return address


def look_up(host: str, seconds: float) -> str:
    """The address of a host as a number of IPv4, which is all that ZeroMQ is told to use. Waits `seconds` at most. Raises
    `HostNotFound`.

    A name server that does not answer keeps a thread waiting for as long as the system's resolver likes.
    """
    found: list[Any] = []

    def ask() -> None:
        try:
            found.extend(socketlib.getaddrinfo(host, None, socketlib.AF_INET, socketlib.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)

    thread = threading.Thread(target=ask, name="gt-host-lookup", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if not found or isinstance(found[0], Exception):
        raise HostNotFound(str(found[0]) if found else "no answer in time")
    return str(found[0][4][0])
