"""The command line: `gt up`, `gt dispatcher`, `gt worker`, `gt explain`, `gt ops`, `gt version`. An error is a line and status 1.

This module loads typer and nothing else. It may reach into rooms, as the public face does: in a command, when it runs.
"""

from __future__ import annotations

import contextlib
import errno
import signal
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from .launch import Local

ADDRESS = "tcp://127.0.0.1:7000"
"""Where a service listens when nobody says."""
JOIN_TIMEOUT = 30.0
"""Seconds after which `gt up` stops looking for the last worker; the daemons' logs say more."""

app = typer.Typer(
    name="gt",
    help="GT, a tensor service: programs say what to compute, a YAML file says where.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class LogLevel(StrEnum):
    """What a daemon writes to stderr: this and everything graver."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


Address = Annotated[str, typer.Option(help="tcp://127.0.0.1:PORT or ipc:///PATH; only loopback is bound.")]
ConfigFile = Annotated[Path | None, typer.Option(help="The sharding config (YAML) of sessions that bring none.")]
Level = Annotated[LogLevel, typer.Option(help="What to log to stderr.", envvar="GT_LOG_LEVEL")]


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Errors that are the user's or the machine's become one line each on stderr, and exit status 1."""
    from .errors import GTError

    try:
        yield
    except (GTError, OSError) as error:
        typer.echo(f"gt: {error}", err=True)
        raise typer.Exit(1) from None


# daemons


@app.command()
def up(
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="How many; default one for each GPU, or as many as the config needs, at least one."),
    ] = None,
    config: ConfigFile = None,
    address: Address = ADDRESS,
) -> None:
    """Run a dispatcher and workers on this machine until Ctrl-C or SIGTERM. When one of them ends, all end."""
    with told():
        from .launch import Local, default_workers
        from .transport import check_bind

        check_bind(address)
        _check_free(address)
        read = _read(config)
        count = workers or default_workers(read)
        if read is not None:
            read.mesh_for(count)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stop)
        local = Local(count, address=address, config=None if config is None else str(config), quiet=False)
        try:
            if _joined(local, count):
                typer.echo(f"{count} {'worker' if count == 1 else 'workers'} at {address}; Ctrl-C stops them")
            local.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # once is enough: the rest of this is the orderly end
            local.close()


@app.command()
def dispatcher(
    address: Address = ADDRESS,
    config: ConfigFile = None,
    workers: Annotated[int, typer.Option(min=1, help="How many must join before the first tensor is placed.")] = 1,
    bulk: Annotated[
        str | None, typer.Option(help="Where large data goes, tcp://127.0.0.1:PORT; default beside ADDRESS, any port.")
    ] = None,
    log_level: Level = LogLevel.info,
) -> None:
    """Run a dispatcher until Ctrl-C or SIGTERM."""
    with told():
        from .dispatcher.__main__ import serve

        path = None if config is None else str(config)
        status = serve(address, config=path, workers=workers, log_level=log_level.value, bulk=bulk)
    raise typer.Exit(status)


@app.command()
def worker(
    address: Address = ADDRESS,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:0, …; default the first GPU, or the CPU.")] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="Where other workers reach this one, tcp://127.0.0.1:PORT; default a Unix socket."),
    ] = None,
    announce: Annotated[
        str | None, typer.Option(help="The address by which they do, where it is another: that of a tunnel.")
    ] = None,
    log_level: Level = LogLevel.info,
) -> None:
    """Run one worker of the dispatcher at ADDRESS, until Ctrl-C, SIGTERM or the dispatcher's end."""
    with told():
        import os

        from .launch import ONE_THREAD

        os.environ |= ONE_THREAD  # before this imports NumPy
        from .worker.__main__ import serve

        status = serve(address, device=device, log_level=log_level.value, listen=listen, announce=announce)
    raise typer.Exit(status)


def _read(config: Path | None) -> Any:
    """The config, checked in this process: a wrong one is refused before anything is started."""
    if config is None:
        return None
    from .config import load

    return load(config)


def _check_free(address: str) -> None:
    """Raise `AddressInUse` when somebody listens at `address`: sooner, and in fewer words, than a daemon that ends."""
    import socket

    from .transport import AddressInUse

    with contextlib.ExitStack() as stack:
        try:
            if address.startswith("ipc://"):
                probe = stack.enter_context(socket.socket(socket.AF_UNIX))
                taken = probe.connect_ex(address.removeprefix("ipc://")) == 0
            else:
                host, _, port = address.removeprefix("tcp://").rpartition(":")
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                probe = stack.enter_context(socket.socket(family))
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host.strip("[]"), int(port)))
                taken = False
        except ValueError:
            return  # no port number: whoever binds it says what an address is
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
    if taken:
        raise AddressInUse(f"{address} is in use by another process; choose another --address")


def _stop(*_: Any) -> NoReturn:
    raise typer.Exit(0)


def _joined(local: Local, count: int) -> bool:
    """Wait until all workers have joined; False when a daemon ends first or it takes too long."""
    import time

    from .client.link import SocketLink
    from .client.session import Session
    from .errors import GTError
    from .host import host_facts

    session = Session(SocketLink(local.address, local), local.address, keeper=False)
    deadline = time.monotonic() + JOIN_TIMEOUT
    try:
        session.open({**host_facts(), "bulk": b""}, JOIN_TIMEOUT)
        while session.ask("statistics")["workers"] < count:
            if time.monotonic() > deadline or any(process.poll() is not None for _, process in local.children):
                return False
            time.sleep(0.05)
    except (GTError, TimeoutError):
        return False  # a daemon ended or hangs: `wait` says which
    finally:
        session.close()
    return True


# what would be


@app.command(context_settings={"ignore_unknown_options": True})
def explain(
    program: Annotated[Path, typer.Argument(help="A Python program that uses gt.", metavar="PROGRAM.py")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments; what follows -- is always its own.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The sharding config (YAML); default: the program's own.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many there would be; default as many as config or program ask for.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Stop after this many updates, and explain the last.")] = 2,
    values: Annotated[bool, typer.Option(help="Compute the program's numbers, on one worker in this process.")] = True,
    compare: Annotated[list[Path] | None, typer.Option(help="Another config, shown side by side.")] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Propose a config: YAML that says why, rule by rule.")
    ] = False,
    memory: Annotated[
        str, typer.Option(help="What a worker may hold, as in 16GB; a plan that needs more is refused.")
    ] = "",
    typical: Annotated[
        bool, typer.Option("--typical", help="Typical workers instead of this machine's, measured.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Show every collective and every instruction.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON; bytes and seconds.")] = False,
) -> None:
    """Show how a program would be sharded, what moves, what it costs, before any cluster runs it."""
    from .errors import GTError
    from .explaining import ProgramError, explain_program

    with told():
        if not program.is_file():
            raise GTError(f"there is no program {program}")
        try:
            explainer, found = explain_program(
                program, arguments or (), config=config, workers=workers, compare=compare or (), steps=steps,
                values=values, speeds="typical" if typical else "measured", memory=0 if search else _bytes(memory),
            )  # fmt: skip
        except ProgramError as error:
            typer.echo(str(error).rstrip("\n"), err=True)
            raise typer.Exit(1) from None
        if search:
            from .search import propose

            typer.echo(propose(str(program), explainer, found[0], _bytes(memory)).yaml, nl=False)
            return
    if json:
        import json as notation

        plain = [each.to_plain() for each in found]
        typer.echo(notation.dumps(plain if compare else plain[0], indent=1, ensure_ascii=False))
    else:
        _show(found, full)


def _bytes(text: str) -> int:
    """'16GB', '512MiB' or '1e9' as bytes; nothing is 0."""
    import re

    units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
    if not text:
        return 0
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?) *([kmgt]?i?)b?", text.strip().lower())
    if match is None or match[2] not in units:
        raise typer.BadParameter(f"{text!r} is no size; say 16GB, 512MiB or a number of bytes", param_hint="--memory")
    return int(float(match[1]) * units[match[2]])


def _show(found: Any, full: bool) -> None:
    """On a terminal in colour, through a pager where it is long; elsewhere plain."""
    import os
    import shutil

    from rich.console import Console

    from .rendering import show, text

    console = Console()
    if not console.is_terminal:
        typer.echo(text(found, full=full), nl=False)
    elif shutil.which("less"):
        os.environ.setdefault("LESS", "-RFX")
        with console.pager(styles=True):
            show(console, found, full=full)
    else:
        show(console, found, full=full)


# what there is


@app.command()
def ops(markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/ops.md.")] = False) -> None:
    """Print every op with each room's facet of it: gradient, sharding rule, kernel."""
    typer.echo(ops_page() if markdown else ops_text(), nl=False)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"gt {_version()}")


def _print_version(value: bool) -> None:
    if value:
        version()
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """GT, a tensor service: programs say what to compute, a YAML file says where."""


def _version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("gt-tensor")
    except PackageNotFoundError:
        return "from a checkout that is not installed"


COLUMNS = ("op", "family", "operands", "attributes", "gradient", "sharding", "kernel", "what it computes")


def ops_rows() -> list[tuple[str, ...]]:
    """The joined table, one row an op, in the order of `gt/ops.py`; a facet that a room lacks is 'missing'."""
    from .client.gradients import GRADIENTS, NO_GRADIENT
    from .dispatcher.rules import RULES
    from .ops import OPS
    from .worker.kernels import KERNELS

    rows: list[tuple[str, ...]] = []
    for name, op in OPS.items():
        rule, kernel = RULES.get(op.family), KERNELS.get(name)
        rows.append(
            (
                name,
                op.family,
                _operands(op.arity, op.scalars),
                ", ".join(op.attributes),
                "yes" if name in GRADIENTS else "none" if name in NO_GRADIENT else "missing",
                rule.__name__.strip("_") if rule else "missing",
                _name_of(kernel) if kernel else "missing",
                op.doc,
            )
        )
    return rows


def _operands(arity: int | None, scalars: str) -> str:
    """'2, scalars any': how many operands, and where Python scalars may stand."""
    count = "1 or more" if arity is None else str(arity)
    return count if scalars == "none" else f"{count}, scalars {scalars}"


def _name_of(kernel: Any) -> str:
    """'elementwise.ufunc': the worker's module and the function in it that makes the kernel."""
    module = kernel.__module__.rpartition(".")[2]
    return f"{module}.{kernel.__qualname__.partition('.')[0].strip('_')}"


def ops_text() -> str:
    """The joined table in aligned columns."""
    table = [COLUMNS, *ops_rows()]
    widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def ops_page() -> str:
    """docs/ops.md: the joined table, and how to read it."""

    def line(cells: tuple[str, ...]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"

    return "".join(
        (
            "# Ops\n\n",
            "Every instruction's op, declared once in `gt/ops.py`, with each room's facet of it. Written by\n",
            "`gt ops --markdown`; a test fails while this page differs from that.\n\n",
            "* **operands**: how many; *scalars* says where Python scalars may stand in place of tensors: *any* place,\n",
            "  only the *tail* (all but the first, for an update all but the first two), or *only* scalars.\n",
            "* **gradient**: whether `client/gradients.py` has a rule; *none*: nothing flows back, by decision.\n",
            "* **sharding**: the rule in `dispatcher/rules.py` from which all legal rows of placements follow.\n",
            "* **kernel**: the module in `worker/` and the function that makes the kernel.\n\n",
            line(COLUMNS),
            line(("---",) * len(COLUMNS)),
            *map(line, ((f"`{row[0]}`", *row[1:]) for row in ops_rows())),
        )
    )


def main() -> None:
    """The console entry."""
    app()


if __name__ == "__main__":
    main()
