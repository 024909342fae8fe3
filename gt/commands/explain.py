"""`gt explain`: how a program would be sharded, before any cluster runs it. `gt/tools/explain.py` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .shared.error_lines import errors_as_lines


def explain(
    program: Annotated[Path, typer.Argument(help="A Python program that uses gt.", metavar="PROGRAM.py")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments; what follows -- is always its own.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The sharding config (YAML); default: the program's own.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many there would be; default as many as config or program ask for.")
    ] = None,
    devices: Annotated[
        str,
        typer.Option(help="What each would compute on, as in cuda:0,cuda:1,cpu; typical where this machine has none."),
    ] = "",
    hosts: Annotated[
        str,
        typer.Option(help="On how many hosts workers are, as in 2, or how many each has, as in 4,2.", metavar="HOSTS"),
    ] = "",
    link: Annotated[
        str, typer.Option(help="What a host gets from others in a second, as in 1.25GB; default 10-gigabit Ethernet.")
    ] = "",
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
    from gt.errors import GTError
    from gt.tools.explain import explain_program
    from gt.tools.program_run import ProgramError

    with errors_as_lines():
        if not program.is_file():
            raise GTError(f"there is no program {program}")
        try:
            explainer, found = explain_program(
                program, arguments or (), config=config, workers=workers, compare=compare or (), steps=steps,
                values=values, speeds="typical" if typical else "measured", memory=0 if search else bytes_of(memory),
                devices=[each.strip() for each in devices.split(",")] if devices else (), hosts=_hosts(hosts), link=link,
            )  # fmt: skip
        except ProgramError as error:
            typer.echo(str(error).rstrip("\n"), err=True)
            raise typer.Exit(1) from None
        if search:
            from gt.tools.config_search import propose

            typer.echo(propose(str(program), explainer, found[0], bytes_of(memory)).yaml, nl=False)
            return
    if json:
        import json as notation

        plain = [each.to_plain() for each in found]
        typer.echo(notation.dumps(plain if compare else plain[0], indent=1, ensure_ascii=False))
    else:
        _show(found, full)


def _hosts(text: str) -> int | list[int]:
    """'2' as a number of hosts, '4,2' as the workers of each; nothing is one host."""
    try:
        counts = [int(each) for each in text.split(",")] if text else [1]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number of hosts nor 4,2", param_hint="--hosts") from None
    return counts if len(counts) > 1 else counts[0]


def bytes_of(text: str) -> int:
    """'16GB', '512MiB' or '1e9' as bytes; nothing is 0."""
    from gt.sharding.options import size

    try:
        return size(text) if text else 0
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--memory") from None


def _show(found: Any, full: bool) -> None:
    """On a terminal in colour, through a pager where it is long; elsewhere plain."""
    import os
    import shutil

    from rich.console import Console

    from gt.tools.explain_render import show, text

    console = Console()
    if not console.is_terminal:
        typer.echo(text(found, full=full), nl=False)
    elif shutil.which("less"):
        os.environ.setdefault("LESS", "-RFX")
        with console.pager(styles=True):
            show(console, found, full=full)
    else:
        show(console, found, full=full)
