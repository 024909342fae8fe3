"""`gt up --on ray` and `gt down`: start and end the service of a Ray cluster. It goes on after `gt up` has returned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from .shared.error_lines import errors_as_lines

RayAddress = Annotated[
    str | None,
    typer.Option(
        help="The Ray cluster: auto, HOST:6379 or ray://HOST:10001; default RAY_ADDRESS, or that of this machine."
    ),
]
LeastWorkers = Annotated[
    int | None, typer.Option("--min", min=1, help="With --on ray: how many workers stay all the time.")
]
MostWorkers = Annotated[
    int | None, typer.Option("--max", min=1, help="With --on ray: how many there are when sessions need them.")
]
WorkerDevice = Annotated[
    str | None,
    typer.Option(
        help="What workers compute on: cpu, cuda, torch:cpu, …; with --on ray: cpu or cuda. Default GPUs, if there are some."
    ),
]
CpusPerWorker = Annotated[int, typer.Option(min=1, help="With --on ray: the cores of each worker.")]
Placing = Annotated[
    str | None,
    typer.Option(
        help="With --on ray: pack workers together, or spread them over nodes; default pack GPUs, spread CPUs."
    ),
]
IdleSeconds = Annotated[
    float,
    typer.Option("--idle", min=1, help="With --on ray and --max: the idle seconds after which a worker is given back."),
]
SharedMarks = Annotated[
    Path | None,
    typer.Option("--marks", help="With --on ray: a folder that all nodes see, for what sessions need after a loss."),
]


def up_on_ray(
    asked: Any, address: str | None, config: Path | None, marks: Path | None, policy: str, log: dict[str, str], *,
    needed: int,
) -> None:  # fmt: skip
    """Start the service of a Ray cluster, wait until its workers have joined, and say where it is. `needed`: so many workers its
    config needs."""
    from gt.errors import SessionError
    from gt.ray import cluster
    from gt.ray import service as on_ray

    cluster.join_cluster(address or os.environ.get("RAY_ADDRESS") or "auto")
    there = on_ray.find_service()
    if there is not None:
        raise SessionError(f"this Ray cluster has a service already, at {there.address}: `gt down` ends it")
    service = on_ray.start_service(
        asked, stays=True, needed=needed, config="" if config is None else config.read_text("utf-8"),
        marks="" if marks is None else str(marks.absolute()), policy=policy, variables=log,
    )  # fmt: skip
    try:
        found = service.wait_for(service.status()["least"])
        path = service.keep_key()
    except BaseException:
        on_ray.end_service()
        raise
    count, most = found["joined"], found["most"]
    grows = f", at most {most}" if most > found["least"] else ""
    nodes = f"{found['nodes']} {'node' if found['nodes'] == 1 else 'nodes'}"
    typer.echo(
        f"{count} {'worker' if count == 1 else 'workers'}{grows} at {service.address} on Ray ({found['device']}, "
        f"{found['strategy']}, {nodes}); gt down ends them"
    )
    typer.echo(f"programs: gt.init(on='ray'); commands of this user here: gt top {service.address} (its key is {path})")


def down(ray_address: RayAddress = None) -> None:
    """End the service of a Ray cluster: its daemons, its actors, and what they keep. Sessions end with it."""
    with errors_as_lines():
        from gt.errors import SessionError
        from gt.ray import cluster
        from gt.ray import service as on_ray

        cluster.join_cluster(ray_address or os.environ.get("RAY_ADDRESS") or "auto")
        address = on_ray.address_of_service()
        if not on_ray.end_service():
            raise SessionError("this Ray cluster has no service: nothing is to be ended")
        if address:
            on_ray.kept_key(address).unlink(missing_ok=True)
        typer.echo("the service on Ray has ended")
