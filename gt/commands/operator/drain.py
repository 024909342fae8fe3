"""`gt drain`: take a worker out of a service, without harm to the sessions that use it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from gt.commands.shared.error_lines import errors_as_lines

HERE: Final = "here"
"""In place of a worker's number: the worker of this container, as its own hooks say it."""
PROBE_SECONDS: Final = 4.0
"""The most seconds to wait for the dispatcher to say which one that is."""
ASK_SECONDS: Final = 0.2
"""The seconds between two questions how far it is."""


def drain(
    worker: Annotated[
        str,
        typer.Argument(
            help="The worker: worker-3, or its number as gt top shows it; or 'here', the one of this container."
        ),
    ],
    address: Annotated[
        str | None, typer.Argument(help="tcp://HOST:PORT or ipc:///PATH; default the service of this machine.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="The most seconds to wait for sessions to leave.")] = 120.0,
) -> None:
    """Move what sessions have on a worker to others, and end it. Programs see a pause; values stay the same bits.

    If a session cannot leave it, the worker stays, and the exit status is 1. Operators only.
    """
    with errors_as_lines():
        import time

        from gt.errors import SessionError
        from gt.monitor.stream import Stream
        from gt.wire import telemetry as t

        number = _own_number(address) if worker == HERE else _number(worker)
        deadline = time.monotonic() + wait
        shown: list[Any] = []
        with Stream(address, level=t.OFF) as stream:
            stream.again = False
            found = stream.drain(number, begin=True)
            typer.echo(f"worker {number} gets no new work")
            while found["state"] != "gone":
                waits = found["sessions"]
                if waits != shown:
                    shown = waits
                    for each in waits:
                        typer.echo(f"  {_line(*each)}")
                if time.monotonic() >= deadline:
                    last = "; ".join(_line(*each) for each in waits)
                    raise SessionError(
                        f"worker {number} has not left within {wait:g} s, and is still drained; it waits for {last}"
                    )
                stream.read(ASK_SECONDS)
                found = stream.drain(number, begin=False)
        typer.echo(f"worker {number} has nothing left, and ends")


def _own_number(address: str | None) -> int:
    """The number of the worker of this container. Raises `SessionError` if none has joined."""
    from gt.errors import SessionError
    from gt.monitor.health_probe import probe
    from gt.monitor.stream import discover

    found = probe(address or discover(), timeout=PROBE_SECONDS, worker=HERE)
    said = found.facts.get("worker")
    if not (isinstance(said, list) and said and type(said[0]) is int):
        raise SessionError(f"there is no worker to drain here: {found.reason}")
    return said[0]


def _number(worker: str) -> int:
    """The number of a worker. Raises `SessionError` for what is none."""
    from gt.errors import SessionError

    digits = worker.removeprefix("worker-").removeprefix("worker ")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise SessionError(f"{worker!r} is no worker: say worker-3, or 3; gt top shows which there are")
    return int(digits)


def _line(client: int, text: str) -> str:
    return f"client {client}: {text}" if client >= 0 else text
