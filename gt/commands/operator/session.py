"""`gt session`: lets an operator pause, cancel or reweight a session of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gt.commands.shared.error_lines import errors_as_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from gt.monitor.stream import Stream

session = typer.Typer(
    help="Pause, resume or end a session, or change its class or weight. Operators only.", no_args_is_help=True
)

Session = Annotated[str, typer.Argument(help="Its number, as gt top shows it: 3, or client-3.")]
Address = Annotated[
    str | None, typer.Argument(help="tcp://HOST:PORT or ipc:///PATH; default the service of this machine.")
]


@session.command()
def pause(session: Session, address: Address = None) -> None:
    """Let nothing begin that a session asks for. Its program waits, without an error, and keeps what it has."""
    _control(session, address, "pause")


@session.command()
def resume(session: Session, address: Address = None) -> None:
    """Let a paused session go on."""
    _control(session, address, "resume")


@session.command()
def end(session: Session, address: Address = None) -> None:
    """End a session: what it has on workers is gone, and its program gets an error."""
    _control(session, address, "end")


@session.command()
def priority(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="CLASS", help="interactive, normal, batch or auto.")],
    address: Address = None,
) -> None:
    """Give a session another class."""
    _control(session, address, "priority", name)


@session.command()
def weight(
    session: Session,
    number: Annotated[float, typer.Argument(metavar="WEIGHT", help="From 0.01 to 100.")],
    address: Address = None,
) -> None:
    """Give a session another weight among the programs of its user."""
    _control(session, address, "weight", f"{number:g}")


def reload(address: Address = None) -> None:
    """Have a dispatcher read its config again, as SIGHUP does. An invalid one changes nothing. Operators only."""

    def order(stream: Stream) -> str:
        stream.reload()
        return "the config was read again"

    _order(address, order)


def _control(session: str, address: str | None, action: str, value: str = "") -> None:
    """Order something, and say how the session is then."""

    def order(stream: Stream) -> str:
        return _line(action, stream.control_session(_number(session), action, value))

    _order(address, order)


def _order(address: str | None, order: Callable[[Stream], str]) -> None:
    with errors_as_lines():
        from gt.monitor.stream import Stream
        from gt.wire import telemetry as t

        with Stream(address, level=t.OFF) as stream:
            typer.echo(order(stream))


def _number(session: str) -> int:
    """The number of a session. Raises `SessionError` for what is none."""
    from gt.errors import SessionError

    digits = session.removeprefix("client-").removeprefix("client ")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 19):
        raise SessionError(f"{session!r} is no session: say its number, as gt top shows it, such as 3")
    return int(digits)


def _line(action: str, facts: dict[str, Any]) -> str:
    if action == "end":
        return f"client {facts['client']} is ended"
    paused = "paused, " if facts["paused"] else ""
    return f"client {facts['client']}: {paused}class {facts['priority']}, weight {facts['weight']:g}"
