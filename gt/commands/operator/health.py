"""`gt health`: whether a service is well, as an exit status for probes of Kubernetes, systemd and load balancers."""

from __future__ import annotations

from typing import Annotated

import typer


def health(
    address: Annotated[
        str | None, typer.Argument(help="tcp://HOST:PORT or ipc:///PATH; default the service of this machine.")
    ] = None,
    ready: Annotated[
        bool, typer.Option("--ready", help="Only if all expected workers have joined, and at least one is in service.")
    ] = False,
    workers: Annotated[int, typer.Option(min=0, help="Only if at least so many workers are in service.")] = 0,
    worker: Annotated[
        str | None,
        typer.Option(help="Tell of one worker alone: its number, or 'here' for the one of this container."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.05, max=3600, help="The most seconds that an answer may take.")] = 4.0,
    json: Annotated[bool, typer.Option("--json", help="Print an object in place of a line.")] = False,
) -> None:
    """Ask a dispatcher whether it is well: exit status 0 if it answers and has what is asked for, else 1, with a line why.

    It opens no session and needs any role. A worker of which nothing is known counts as well, so that nobody ends workers that
    wait for their dispatcher.
    """
    from gt.errors import GTError
    from gt.monitor.health_probe import HERE, ProbeResult, probe

    which = int(worker) if worker is not None and worker.isdecimal() else worker
    if isinstance(which, str) and which != HERE:
        raise typer.BadParameter("--worker takes a number, or 'here'")
    try:
        found = probe(address or _own(), timeout=timeout, workers=workers, ready=ready, worker=which)
    except (GTError, OSError) as error:
        found = ProbeResult(False, str(error), {})
    if json:
        import json as notation

        facts = {name: value for name, value in found.facts.items() if isinstance(value, (int, str, list))}
        typer.echo(notation.dumps({"healthy": found.healthy, "reason": found.reason, **facts}))
    else:
        typer.echo(f"{'healthy' if found.healthy else 'unhealthy'}: {found.reason}")
    raise typer.Exit(0 if found.healthy else 1)


def _own() -> str:
    """The service of this machine. Raises `ConnectionFailed`."""
    from gt.daemon.registry import find_service, services
    from gt.errors import ConnectionFailed

    found = next((service.address for service in services()), None) or find_service()
    if found is None:
        raise ConnectionFailed("no service runs on this host: start one with `gt up`, or say its address")
    return found
