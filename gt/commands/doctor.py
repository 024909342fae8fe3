"""`gt doctor`: the findings in aligned lines or as JSON. The checks are in `gt/tools/doctor.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from .shared.error_lines import errors_as_lines

STATUS_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


def doctor(
    address: Annotated[str | None, typer.Argument(help="A service to look at too, tcp://HOST:PORT.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check this machine: packages, GPU, limits, ports, clocks, and a self-test. Exit status 1 when something must be mended."""
    with errors_as_lines():
        from gt.tools.doctor import PROBLEM, examine

        found = examine(address)
        if json:
            import json as notation

            typer.echo(notation.dumps([each._asdict() for each in found], indent=1))
        else:
            width = max(len(each.check) for each in found)
            for each in found:
                status = typer.style(f"{each.status:8}", fg=STATUS_COLOURS[each.status])
                typer.echo(f"{status} {each.check:{width}}  {each.found}")
                if each.advice:
                    typer.echo(f"{'':8} {'':{width}}  → {each.advice}")
        if any(each.status == PROBLEM for each in found):
            raise typer.Exit(1)
