"""`gt take-over`: have a dispatcher that stands by take the place of another one."""

from __future__ import annotations

from typing import Annotated

import typer

from gt.commands.shared.error_lines import errors_as_lines


def take_over(
    address: Annotated[str, typer.Argument(help="The address of the dispatcher that stands by.")],
) -> None:
    """Have the dispatcher that stands by at ADDRESS take the place of the one for which it does.

    That one ends as soon as it hears of it, also if it only stood still. See to it that nobody starts it again. Operators only.
    """
    with errors_as_lines():
        from gt.monitor.stream import Stream
        from gt.wire import telemetry as t
        from gt.wire.keys import owner_keys

        with Stream(address, level=t.OFF, keys=owner_keys(address)) as stream:
            stream.again = False
            epoch = stream.take_over()["epoch"]
        typer.echo(f"the dispatcher at {address} takes over, with epoch {epoch}")
