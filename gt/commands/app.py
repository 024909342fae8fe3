"""The command `gt` with all its commands. An error is one line and exit status 1; wrong arguments are exit status 2.

The modules in this folder and those below load typer and nothing else. They may reach into rooms, as the public face does: in
a command, when it runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .conformance import conformance
from .daemons import dispatcher, up, worker
from .doctor import doctor
from .explain import explain
from .on_ray import down
from .operator.deploy import deploy
from .operator.drain import drain
from .operator.health import health
from .operator.keys import keys
from .operator.restart import restart
from .operator.session import reload, session
from .operator.snapshot import snapshot
from .operator.take_over import take_over
from .operator.usage import usage
from .ops import ops
from .replay import replay
from .report import report
from .simulate_policies import simulate_policies
from .top import top
from .trace import trace
from .tune import tune
from .why import why

app = typer.Typer(
    name="gt",
    help="GT, a tensor service: programs say what to compute, a YAML file says where.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


# in the order in which `gt` lists them
app.command()(up)
app.command()(down)
app.command()(dispatcher)
app.command()(worker)
app.command()(health)
app.command()(drain)
app.add_typer(session, name="session")
app.command()(reload)
app.command("take-over")(take_over)
app.command()(restart)
app.command(context_settings={"ignore_unknown_options": True})(explain)
app.command(context_settings={"ignore_unknown_options": True})(tune)
app.command()(replay)
app.command("simulate-policies")(simulate_policies)
app.command()(top)
app.command()(trace)
app.command()(usage)
app.command()(why)
app.add_typer(keys, name="keys")
app.add_typer(snapshot, name="snapshot")
app.add_typer(deploy, name="deploy")
app.command()(doctor)
app.command()(report)
app.command()(ops)
app.command()(conformance)
app.command()(version)
