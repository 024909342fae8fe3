"""`--metrics-port` of `gt dispatcher` and `gt up`: starts `gt.monitor.exporter`, in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
from typing import Annotated

import typer

LOOPBACK = "127.0.0.1"
STOP_TIMEOUT = 5.0
"""Seconds that the process has to end by itself before it is killed."""

MetricsPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Serve metrics for Prometheus at this port (extra: metrics); default: none."),
]
MetricsHost = Annotated[str, typer.Option(help="Where that port is bound; whoever reaches it can read the metrics.")]


class ExporterProcess:
    """What serves the metrics of a dispatcher, once it is started. Without a port it does nothing.

    Raises `GTError` when the port is taken or prometheus_client is missing: before anything else of the service is started.
    """

    def __init__(self, host: str, port: int | None) -> None:
        from gt.errors import GTError

        self.host = host
        self.port = port
        self.child: subprocess.Popen[bytes] | None = None
        if port is None:
            return
        if importlib.util.find_spec("prometheus_client") is None:
            raise GTError("--metrics-port needs prometheus_client: pip install 'gt-tensor[metrics]'")
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            raise GTError(f"--metrics-port {port} cannot be bound at {host}: {error.strerror or error}") from None

    def start(self, address: str) -> None:
        """Serve the metrics of the dispatcher at `address` from now on."""
        if self.port is not None:
            self.child = subprocess.Popen(  # noqa: S603 — this very interpreter, with arguments made here
                [sys.executable, "-P", "-m", "gt.monitor.exporter", address, self.host, str(self.port)],
                stdin=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """Serve them no longer. It also ends by itself when this process does: nobody holds its standard input then."""
        child, self.child = self.child, None
        if child is None:
            return
        assert child.stdin is not None, "it was asked for"
        with contextlib.suppress(OSError):
            child.stdin.close()
        try:
            child.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
