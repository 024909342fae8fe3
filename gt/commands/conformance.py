"""`gt conformance`: checks the ops that an installed package brings, or a device by all ops of GT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gt.op_packages.registry import OpPackage


def conformance(
    package: Annotated[str | None, typer.Argument(help="A package of ops by its name in gt.ops.NAME.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the packages of ops that are installed here.")] = False,
    device: Annotated[
        str | None, typer.Option("--device", help="What kernels run on: cpu (the default), cuda:0, torch:cpu, …")
    ] = None,
) -> None:
    """Check the ops of an installed package: kernels, shapes, gradients and every sharding row. Status 1 if any fails.

    With --device alone, check that device: every op of GT in every dtype against NumPy.
    """
    if package is None and device is not None and not listed:
        raise typer.Exit(_check_device(device))
    from gt.op_packages.loading import load_packages
    from gt.op_packages.registry import PACKAGES

    problems = load_packages()
    if listed or package is None:
        for known in PACKAGES.values():
            typer.echo(f"{known.name}  {known.said}  {', '.join(sorted(known.ops))}")
        for problem in problems.values():
            typer.echo(problem, err=True)
        if not PACKAGES and not problems:
            typer.echo("no package of ops is installed here, or GT_OPS=0 turns them off", err=True)
        raise typer.Exit(1 if problems or (package is None and not listed) else 0)
    if package not in PACKAGES:
        typer.echo(problems.get(package) or f"no package of ops {package!r} is installed here: see --list", err=True)
        raise typer.Exit(1)
    raise typer.Exit(_check(PACKAGES[package], device or "cpu"))


def _check_device(device: str) -> int:
    """Check a device and print what was found. Returns the exit status."""
    from gt.tools.device_conformance import check_device, table
    from gt.worker.base.backend import backend

    from .shared.error_lines import errors_as_lines

    with errors_as_lines():
        reports = list(check_device(backend(device)))
    typer.echo(table(reports), nl=False)
    return 1 if any(each.failures for each in reports) else 0


def _check(package: OpPackage, device: str) -> int:
    """Check a package and print what was found. Returns the exit status."""
    from gt.client.session import sessions
    from gt.conformance.report import check_package, sentences, table
    from gt.service import session
    from gt.worker.base.backend import backend

    if device.startswith("torch"):
        typer.echo(f"on {device} NumPy computes the ops of packages: check them with --device cpu", err=True)
        return 1
    on = backend(device)
    session.connect("inproc")  # gradients are computed here
    try:
        reports = list(check_package(package, on))
    finally:
        sessions.disconnect()
    typer.echo(f"{package.said} on {on.name}")
    typer.echo(table(reports), nl=False)
    failures = sentences(reports)
    for failure in failures:
        typer.echo(failure, err=True)
    return 1 if failures else 0
