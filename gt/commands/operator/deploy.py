"""`gt deploy`: write the files that start a service on systemd, Slurm and the like. It starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gt.commands.shared.error_lines import errors_as_lines

deploy = typer.Typer(
    help="Write the files that start a service of a given size elsewhere; nothing is started.", no_args_is_help=True
)

Workers = Annotated[int, typer.Option(min=1, help="How many workers on CPUs, where --gpus is 0.")]
Gpus = Annotated[int, typer.Option(min=0, help="How many workers on GPUs, one on each.")]
Out = Annotated[Path, typer.Option(help="The folder that the files are written to.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]
Command = Annotated[
    Path | None, typer.Option("--gt", help="The gt command on the machines that run it; default the one that runs.")
]


@deploy.command()
def systemd(
    workers: Workers = 1, gpus: Gpus = 0, out: Out = Path("gt-systemd"), force: Force = False, gt: Command = None
) -> None:
    """Write systemd units of a service on one machine: a dispatcher, and a worker for each GPU or CPU slot."""
    with errors_as_lines():
        from gt.deploy.systemd import systemd_files

        _write(systemd_files(gt=_command(gt), workers=workers, gpus=gpus), out, force)
        typer.echo(f"as root: sh {out / 'install.sh'}")


def _command(said: Path | None) -> str:
    """The path of the `gt` command."""
    import sys

    return str(said or Path(sys.executable).with_name("gt"))


def _write(files: dict[str, str], out: Path, force: bool) -> None:
    from gt.deploy.files import write_files

    for path in write_files(out, files, force=force):
        typer.echo(str(path))
