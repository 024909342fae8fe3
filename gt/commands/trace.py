"""`gt trace`: records what a service does for some seconds in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared.error_lines import errors_as_lines


def trace(
    address: Annotated[
        str | None, typer.Argument(help="tcp://127.0.0.1:PORT or ipc:///PATH; default the service of this machine.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to; compressed when it ends in .gz; - is standard output.")
    ] = Path("run.json"),
    seconds: Annotated[float, typer.Option("--seconds", "-s", min=0.1, max=86_400, help="For how long.")] = 10.0,
) -> None:
    """Record what a service does as a trace for Perfetto (https://ui.perfetto.dev) and `gt report`; Ctrl-C ends it early."""
    with errors_as_lines():
        import signal
        import threading
        import time

        from gt.monitor.stream import Stream
        from gt.monitor.tracing import STDOUT, record, writing
        from gt.wire.telemetry import TRACE

        with Stream(address, level=TRACE) as stream, writing(output) as file:
            end = time.monotonic() + seconds
            stopped = threading.Event()  # by a signal, between two events: what is there is a whole trace
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stopped.set())
            done = record(stream, file, lambda: stopped.is_set() or time.monotonic() > end)
        lost = f", {done.dropped} lost" if done.dropped else ""
        said = "standard output" if output == STDOUT else output
        typer.echo(f"{said}: {done.events} events in {done.seconds:.1f} s{lost}", err=output == STDOUT)
        if done.text:
            typer.echo(f"gt: {done.text}", err=True)
            raise typer.Exit(1)
