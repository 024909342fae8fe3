"""A worker's pulse: heartbeats on a connection of their own, and the state of its GPU, also while a long kernel runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from gt.daemon.logs import DaemonLog
from gt.wire import messages as m
from gt.wire import transport
from gt.wire.connection import Connection
from gt.wire.messages import codec
from gt.worker.device.nvml import HealthSamples

HEARTBEAT_SECONDS: Final = 1.0
"""The seconds between two heartbeats; less than what `ActiveClock` takes for a pause of the process."""
UNSETTLED_SECONDS: Final = 0.1
"""The same while it has no connection, so that a worker that has joined the next dispatcher is heard there at once."""


def send_pulses(
    address: Callable[[], str],
    keys: transport.CurveKeys | None,
    peer_address: str,
    logs: DaemonLog | None,
    samples: HealthSamples | None,
    joined: Callable[[], bool],
    progress: Callable[[], m.FileProgress],
) -> None:
    """Sends heartbeats, the state of the GPU and the `progress` with files on a connection of its own, also while a long kernel
    runs, and follows changes of the log level. While the worker has not `joined` a dispatcher it waits, and says hello again
    where it came before the worker. Runs in a thread that ends with the process."""
    hello = codec.encode(m.Hello(m.VERSION, "pulse", {"address": peer_address}))
    connection = Connection(address(), keys=keys)
    connection.send(hello)
    refused, told = False, None
    try:
        while True:
            time.sleep(HEARTBEAT_SECONDS if connection.accepted and not connection.resuming else UNSETTLED_SECONDS)
            if logs is not None:
                logs.look()
            sample = samples.newest() if samples is not None else None
            connection.send_unnumbered(codec.encode(sample or m.Ping()))
            done = progress()
            if done != told and connection.accepted and not connection.resuming:
                connection.send_unnumbered(codec.encode(done))
                told = done
            frames = connection.receive(polled=True)
            while frames is not None:
                refused = refused or type(codec.decode(frames)) is m.Goodbye
                frames = connection.receive()
            connection.look()
            if (refused or connection.failed or connection.address != address()) and joined():
                refused, told = False, None
                connection.close()
                connection = Connection(address(), keys=keys)
                connection.send(hello)
    finally:
        connection.close()
