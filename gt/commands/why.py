"""`gt why`: why a session of a service waits."""

from __future__ import annotations

from typing import Annotated

import typer

from .shared.error_lines import errors_as_lines


def why(
    decision: Annotated[
        str, typer.Option("--decision", metavar="SESSION", help="A session: 3 or client-3, as gt top shows it; or all.")
    ],
    address: Annotated[
        str | None, typer.Argument(help="tcp://HOST:PORT or ipc:///PATH; default the service of this machine.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say why a session waits: whose plans run, what share it has, which limit or queue holds it.

    Operators may ask about every session, others about their own.
    """
    with errors_as_lines():
        from gt.errors import SessionError
        from gt.monitor import session_wait
        from gt.monitor.stream import INQUIRER, Stream
        from gt.wire import telemetry as t

        digits = decision.removeprefix("client-").removeprefix("client ")
        if decision != "all" and not (digits.isascii() and digits.isdecimal() and 0 < len(digits) < 18):
            raise SessionError(f"{decision!r} is no session: say client-3, 3 or all; gt top shows which there are")
        with Stream(address, level=t.OFF, role=INQUIRER) as stream:
            answer = stream.explain_session(0 if decision == "all" else int(digits))
        if json:
            import json as notation

            typer.echo(notation.dumps(answer, indent=1))
            return
        for line in session_wait.lines(answer):
            typer.echo(line)
