"""`gt deploy`: write the files that start a service on systemd, Slurm and the like. It starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gt.commands.shared.error_lines import errors_as_lines

deploy = typer.Typer(
    help="Write the files that start a service of a given size elsewhere; nothing is started.", no_args_is_help=True
)

Nodes = Annotated[int, typer.Option(min=1, help="How many machines.")]
Workers = Annotated[int, typer.Option(min=1, help="How many workers on CPUs, where --gpus is 0.")]
Gpus = Annotated[int, typer.Option(min=0, help="How many workers on GPUs, one on each.")]
Out = Annotated[Path, typer.Option(help="The folder that the files are written to.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]
Command = Annotated[
    Path | None, typer.Option("--gt", help="The gt command on the machines that run it; default the one that runs.")
]


@deploy.command()
def systemd(
    workers: Workers = 1,
    gpus: Gpus = 0,
    address: Annotated[str, typer.Option(help="Where it listens: ipc:///PATH, or tcp://HOST:PORT with keys.")] = "",
    out: Out = Path("gt-systemd"),
    force: Force = False,
    gt: Command = None,
) -> None:
    """Write systemd units of a service on one machine: a dispatcher, and a worker for each GPU or CPU slot."""
    with errors_as_lines():
        from gt.deploy.systemd import ADDRESS, systemd_files

        files = systemd_files(gt=_command(gt), workers=workers, gpus=gpus, address=address or ADDRESS)
        _write(files, out, force)
        typer.echo(f"as root: sh {out / 'install.sh'}")


@deploy.command()
def slurm(
    nodes: Nodes = 1,
    workers: Annotated[int, typer.Option(min=1, help="How many workers on CPUs on each node, without GPUs.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="How many workers on GPUs on each node, one on each.")] = 0,
    cpus_per_worker: Annotated[int, typer.Option(min=1, help="The cores of each worker.")] = 1,
    partition: Annotated[str, typer.Option(help="The partition of both jobs; default that of the cluster.")] = "",
    time: Annotated[str, typer.Option(help="The job's time limit, as 1-00:00:00; it is queued again then.")] = "",
    sbatch: Annotated[
        list[str] | None, typer.Option(help="A further option of the service's job, as --sbatch=--account=physics.")
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Where the service keeps keys, marks and snapshots; all nodes must see it.")
    ] = Path("gt-service"),
    out: Out = Path("gt-slurm"),
    force: Force = False,
    gt: Command = None,
) -> None:
    """Write a Slurm job that is a service, and one that uses it. All nodes must see the folders."""
    with errors_as_lines():
        from gt.deploy.slurm import slurm_files

        files = slurm_files(
            gt=_command(gt), scripts=out.absolute(), folder=folder.absolute(), nodes=nodes, workers=workers,
            gpus=gpus_per_node, cpus=cpus_per_worker, partition=partition, time=time, directives=sbatch or (),
        )  # fmt: skip
        _write(files, out, force)
        typer.echo(f"sbatch {out / 'gt-service.sh'}; then sbatch {out / 'gt-client.sh'} PROGRAM")


def _command(said: Path | None) -> str:
    """The path of the `gt` command."""
    import sys

    return str(said or Path(sys.executable).with_name("gt"))


def _write(files: dict[str, str], out: Path, force: bool) -> None:
    from gt.deploy.files import write_files

    for path in write_files(out, files, force=force):
        typer.echo(str(path))
