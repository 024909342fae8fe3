"""`gt deploy`: write the files that start a service on systemd, Slurm and the like. It starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gt.commands.shared.error_lines import errors_as_lines
from gt.commands.shared.options import ConfigFile

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

Memory = Annotated[str, typer.Option(help="The memory of one worker, as in 4Gi.")]
Cpu = Annotated[str, typer.Option(help="The cores of one worker, as Kubernetes counts them.")]
Image = Annotated[str | None, typer.Option(help="The image; default the one that the Dockerfile written beside makes.")]
Source = Annotated[
    Path | None, typer.Option(help="The checkout of GT that images are built from; default the one that this is.")
]
Namespace = Annotated[str, typer.Option(help="The namespace of Kubernetes.")]
Storage = Annotated[str, typer.Option(help="The size of the volume for marks, snapshots and accounts.")]
StorageClass = Annotated[str, typer.Option(help="Its storage class; default the cluster's.")]
AccessMode = Annotated[
    str, typer.Option(help="Its access mode; ReadWriteOnce suffices where all pods are on one node.")
]
PodMonitor = Annotated[bool, typer.Option("--pod-monitor", help="Have the Prometheus operator scrape the dispatcher.")]
Chart = Annotated[bool, typer.Option("--chart", help="Write a Helm chart in place of manifests.")]


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
        typer.echo(f"as root: sh {_typed(out / 'install.sh')}")


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
        typer.echo(f"sbatch {_typed(out / 'gt-service.sh')}; then sbatch {_typed(out / 'gt-client.sh')} PROGRAM")


@deploy.command()
def compose(
    workers: Workers = 2, gpus: Gpus = 0, memory: Memory = "4Gi", image: Image = None, config: ConfigFile = None,
    source: Source = None, out: Out = Path("gt-compose"), force: Force = False,
) -> None:  # fmt: skip
    """Write a Dockerfile and a Compose file of a service on one machine: a dispatcher, and a container for each worker."""
    with errors_as_lines():
        import os

        from gt.deploy.containers import USER_NUMBER, compose_files

        out = out.absolute()
        owner = (USER_NUMBER, USER_NUMBER) if os.getuid() == 0 else (os.getuid(), os.getgid())
        files = compose_files(
            version=_version(), workers=workers, gpus=gpus, source=_checkout(source), out=out, owner=owner, memory=memory,
            image=image, config=_config(config),
        )  # fmt: skip
        _write(files, out, force)
        typer.echo(f"the first lines of {out / 'compose.yaml'} say what to type there")
        if os.getuid() == 0:
            typer.echo(
                f"containers do not run as root: chown -R {owner[0]}:{owner[1]} {_typed(out)} once keys are made"
            )


@deploy.command()
def k8s(
    workers: Workers = 2, gpus: Gpus = 0, namespace: Namespace = "gt", image: Image = None, storage: Storage = "20Gi",
    storage_class: StorageClass = "", access_mode: AccessMode = "ReadWriteMany", cpu: Cpu = "1", memory: Memory = "4Gi",
    config: ConfigFile = None, pod_monitor: PodMonitor = False, chart: Chart = False, out: Out = Path("gt-k8s"),
    force: Force = False,
) -> None:  # fmt: skip
    """Write manifests for kubectl, or a Helm chart, of a service on Kubernetes, and a Dockerfile of its image."""
    with errors_as_lines():
        from gt.deploy.kubernetes import NAME, kubernetes_files

        files = kubernetes_files(
            version=_version(), workers=workers, gpus=gpus, namespace=namespace, storage=storage, image=image, cpu=cpu,
            memory=memory, access_mode=access_mode, storage_class=storage_class, config=_config(config),
            pod_monitor=pod_monitor, chart=chart,
        )  # fmt: skip
        _write(files, out, force)
        start = (
            f"helm install {NAME} {_typed(out / 'chart')} --namespace {namespace}"
            if chart
            else f"kubectl apply --kustomize {_typed(out)}"
        )
        typer.echo(f"sh {_typed(out / 'keys.sh')} && {start}")


def _command(said: Path | None) -> str:
    """The path of the `gt` command."""
    import sys

    return str(said or Path(sys.executable).with_name("gt"))


def _typed(path: Path) -> str:
    """A path as it is typed in a shell."""
    import shlex

    return shlex.quote(str(path))


def _write(files: dict[str, str], out: Path, force: bool) -> None:
    from gt.deploy.files import write_files

    for path in write_files(out, files, force=force):
        typer.echo(str(path))


def _config(path: Path | None) -> str:
    """The text of a sharding config, checked; of one without rules if there is none. Raises `ConfigError`."""
    from gt.deploy.containers import NO_CONFIG

    if path is None:
        return NO_CONFIG
    from gt.sharding.config import load

    load(path)
    return path.read_text(encoding="utf-8")


def _checkout(said: Path | None) -> Path:
    """The checkout that images are built from. Raises `GTError`."""
    from gt.errors import GTError

    found = (said or Path(__file__).parents[3]).absolute()
    if not (found / "pyproject.toml").is_file():
        raise GTError(f"{found} is no checkout of GT, from which images are built: --source names one")
    return found


def _version() -> str:
    """The version of GT that is installed."""
    from importlib.metadata import version

    return version("gt-tensor")
