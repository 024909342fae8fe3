"""Asking a dispatcher once whether it is well, for probes: one message each way, and no session.

It loads little, because probes run every few seconds, and never waits longer than it is told.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Final, NamedTuple

from gt.daemon.host import host_facts
from gt.errors import GTError, ProtocolError
from gt.wire import addresses, transport
from gt.wire import messages as m
from gt.wire.addresses import HostNotFound
from gt.wire.connection import Connection
from gt.wire.keys import keys_for
from gt.wire.messages import codec

HERE: Final = "here"
"""In place of a worker's number: the worker of this process namespace, as in a container."""
MAX_SILENCE_SECONDS: Final = 20.0
"""The seconds of silence after which a worker is not well; the dispatcher gives it up after 30 s (`GT_WORKER_LEASE`)."""

MAX_PORT: Final = 65535


class ProbeResult(NamedTuple):
    """What a probe has found: whether all is well, a line that says why, and what the dispatcher has said."""

    healthy: bool
    reason: str
    facts: dict[str, Any]


def probe(
    address: str, *, timeout: float, workers: int = 0, ready: bool = False, worker: int | str | None = None
) -> ProbeResult:
    """Ask the dispatcher at `address` within `timeout` seconds whether it is well.

    With `workers`, so many must be in service; when it is to be `ready`, all that it expects, and at least one. `worker`: of
    whom alone something is to be known, a number or `HERE`. As long as no dispatcher answers, that one is well: to end workers
    because their dispatcher is away would take from the next one what it needs to go on.
    """
    began = time.monotonic()
    try:
        facts = _ask(address, began + timeout, worker)
    except GTError as error:
        if worker is not None:
            return ProbeResult(True, f"nothing is known of the worker, and it may wait for its dispatcher: {error}", {})
        return ProbeResult(False, str(error), {})
    facts["milliseconds"] = round((time.monotonic() - began) * 1000)
    if worker is not None:
        return _of_worker(facts, worker)
    return _of_service(address, facts, max(workers, int(ready)), expected=ready)


def _of_service(address: str, facts: dict[str, Any], workers: int, *, expected: bool) -> ProbeResult:
    """What a dispatcher's facts say of the service."""
    if "standby_of" in facts:
        text = f"the dispatcher at {address} stands by for the one at {facts['standby_of']}"
        return ProbeResult(not workers, text, facts)
    there = _number(facts, "workers")
    wanted = max(workers, _number(facts, "expected") if expected else 0)
    if there < wanted:
        return ProbeResult(False, f"{there} of {wanted} workers are in service at {address}", facts)
    text = f"the dispatcher at {address} answered in {facts['milliseconds']} ms; workers in service: {there}"
    return ProbeResult(True, text, facts)


def _of_worker(facts: dict[str, Any], worker: int | str) -> ProbeResult:
    """What a dispatcher's facts say of one worker."""
    said = facts.get("worker")
    if not (isinstance(said, list) and len(said) == 3 and all(type(each) is int for each in said[:2])):
        who = "no worker of this process namespace" if worker == HERE else f"no worker {worker}"
        return ProbeResult(False, f"{who} has joined", facts)
    number, silence, duty = said
    healthy = silence <= MAX_SILENCE_SECONDS * 1000
    return ProbeResult(healthy, f"worker {number} ({duty}) was heard {silence / 1000:.1f} s ago", facts)


def _number(facts: dict[str, Any], name: str) -> int:
    value = facts.get(name)
    return value if type(value) is int else 0


def _ask(address: str, deadline: float, worker: int | str | None) -> dict[str, Any]:
    """The facts of the dispatcher's answer. Raises `GTError`."""
    numeric = _resolved(address, deadline)
    facts: dict[str, Any] = {}
    if worker is not None:
        here = host_facts()
        facts["worker"] = {key: here[key] for key in ("host", "namespace", "boot")} if worker == HERE else worker
    connection = Connection(numeric, keys=keys_for(address))
    try:
        connection.send(codec.encode(m.Hello(m.VERSION, "prober", facts)))
        poller = transport.poller()
        while (left := deadline - time.monotonic()) > 0:
            if connection.socket not in poller:  # the first one, or the next after a connection that broke
                poller = transport.poller()
                poller.register(connection.socket, transport.READABLE)
            poller.poll(int(min(left, 0.05) * 1000) + 1)
            while (frames := connection.receive()) is not None:
                message = codec.decode(frames)
                if isinstance(message, m.Welcome):
                    return dict(message.facts)
                if isinstance(message, m.Goodbye):
                    raise ProtocolError(f"the dispatcher at {address} refused: {message.text}")
            connection.look()
    finally:
        connection.close()
    raise ProtocolError(f"no dispatcher answered at {address} in time")


def _resolved(address: str, deadline: float) -> str:
    """The address with a number in place of a host's name, which ZeroMQ would look up for as long as it likes. Raises `GTError`
    where nobody can be asked."""
    if address.startswith("ipc://"):
        with socket.socket(socket.AF_UNIX) as link:
            try:
                link.settimeout(max(0.001, deadline - time.monotonic()))
                link.connect(address.removeprefix("ipc://"))
            except OSError as error:
                raise ProtocolError(f"nobody can be asked at {address}: {error.strerror or error}") from None
        return address
    _, port = addresses.host_and_port(address)
    if not address.startswith("tcp://") or not (port.isdecimal() and 0 < int(port) <= MAX_PORT):
        raise ProtocolError(f"{address!r} is no address: say tcp://HOST:PORT or ipc:///PATH")
    try:
        numeric = addresses.with_number(address, deadline - time.monotonic())
    except HostNotFound as error:
        raise ProtocolError(f"the host of {address} is not found: {error}") from None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as link:
        link.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            link.connect((addresses.host_and_port(numeric)[0], int(port)))
        except ConnectionRefusedError as error:  # what else there is may pass before the time is over
            raise ProtocolError(f"nobody can be asked at {address}: {error.strerror}") from None
        except OSError:
            pass
    return numeric
