"""`gt restart`: replace the dispatcher of a running service, whose sessions go on with the next one."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from gt.commands.shared.error_lines import errors_as_lines

ASK_SECONDS: Final = 0.1
"""The seconds between two questions how far the marks are."""


def restart(
    address: Annotated[
        str | None, typer.Argument(help="tcp://HOST:PORT or ipc:///PATH; default the service of this machine.")
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, help="The most seconds to wait for marks, and for the next one.")
    ] = 30.0,
    force: Annotated[bool, typer.Option("--force", help="Also if some sessions end with it.")] = False,
) -> None:
    """End the dispatcher of a service, to start another one, for instance a newer version. Sessions go on with that.

    `gt up` starts it at once. One that was started by hand is to be started again by you, with the same --address and --marks.
    Programs see a pause. Operators only.
    """
    with errors_as_lines():
        import time

        from gt.errors import SessionError
        from gt.monitor.stream import Stream
        from gt.wire import telemetry as t

        with Stream(address, level=t.OFF) as stream:
            deadline = time.monotonic() + wait
            found = stream.restart(begin=True)
            if found["lost"] and not force:
                which = ", ".join(f"client {number}" for number in found["lost"])
                raise SessionError(
                    f"these sessions would end with the dispatcher, because there are no marks of them: {which}; --force does it "
                    "all the same"
                )
            while found["marking"] and time.monotonic() < deadline:
                stream.read(ASK_SECONDS)
                found = stream.restart()
            ended, joined = time.monotonic(), stream.joined
            stream.restart(end=True)
            typer.echo(
                f"the dispatcher at {stream.address} ends; {_count(found['sessions'])} to go on with the next one"
            )
            if not found["supervised"]:
                typer.echo("start the next one with the same --address and --marks")
                return
            while stream.joined == joined:
                if time.monotonic() >= ended + wait:
                    raise SessionError(f"no other dispatcher was there within {wait:g} s")
                stream.read(ASK_SECONDS)
            typer.echo(f"the next one is there, after {time.monotonic() - ended:.1f} s")


def _count(sessions: int) -> str:
    return "1 session is" if sessions == 1 else f"{sessions} sessions are"
