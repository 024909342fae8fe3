"""`gt tune`: the batch size and config with which a program is fastest on given workers. `gt/tools/tuning.py` finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared.error_lines import errors_as_lines

MAX_SHOWN_WIDTH = 160
"""The columns of the table where there is no terminal."""


def tune(
    program: Annotated[Path, typer.Argument(help="A Python program that uses gt.", metavar="PROGRAM.py")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments; in them {batch_size} is replaced by each batch size.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many workers to start for each run; default as the program asks for.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Measure on the workers of the service at this address instead.")
    ] = None,
    batch_sizes: Annotated[
        str, typer.Option(help="As in 32,64,128: the program gets each by GT_BATCH_SIZE, and by {batch_size}.")
    ] = "",
    memory: Annotated[str, typer.Option(help="What a worker may hold, as in 16GB; what needs more is not run.")] = "",
    tries: Annotated[int, typer.Option(min=0, help="How many configs to measure besides none.")] = 6,
    warmup: Annotated[int, typer.Option(min=2, help="How many updates to make before measuring.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="How many updates to measure.")] = 10,
    tolerance: Annotated[float, typer.Option(min=0, help="How far, relatively, first losses may be apart.")] = 1e-3,
    timeout: Annotated[float, typer.Option(min=1, help="The seconds that each run may take.")] = 120.0,
    values: Annotated[bool, typer.Option(help="Compute the program's numbers while it is explained.")] = True,
    typical: Annotated[
        bool, typer.Option("--typical", help="Predict for typical workers instead of this machine's, measured.")
    ] = False,
    search: Annotated[
        bool, typer.Option("--search", help="Consider what gt explain --search proposes too; that takes longer.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the best config to this file (YAML).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON; bytes and seconds.")] = False,
) -> None:
    """Find the batch size and config that give most samples a second, by prediction and measured short runs."""
    from gt.errors import GTError
    from gt.tools.tuning import TuningRequest, tune
    from gt.tools.tuning_process import ask
    from gt.tools.tuning_report import yaml

    from .explain import bytes_of

    with errors_as_lines():
        if not program.is_file():
            raise GTError(f"there is no program {program}")
        if address is not None and workers is not None:
            raise typer.BadParameter("a running service has the workers that joined it", param_hint="--workers")
        request = TuningRequest(
            str(program), arguments or (), workers, address, _batches(batch_sizes), bytes_of(memory), tries, warmup, steps,
            tolerance, timeout, values, typical, search,
        )  # fmt: skip
        tuning = tune(request, ask, lambda line: typer.echo(line, err=True))
        best = tuning.best
        if json:
            import json as notation
            from dataclasses import asdict

            typer.echo(notation.dumps({**asdict(tuning), "best": None if best is None else asdict(best)}, indent=1))
        else:
            _show(tuning)
        if best is None:
            raise GTError(f"no run of {program} could be measured; see above why")
        if out is not None:
            out.write_text(yaml(tuning, best), "utf-8")


def _batches(text: str) -> tuple[int | None, ...]:
    """'32,64' as numbers; nothing is the program's own batch size."""
    if not text:
        return (None,)
    try:
        sizes = [int(each) for each in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise typer.BadParameter("batch sizes are different whole numbers, as in 32,64,128", param_hint="--batch-sizes")
    return tuple(sizes)


def _show(tuning: object) -> None:
    from rich.console import Console

    from gt.tools.tuning_report import lines_below, table

    console = Console()
    if not console.is_terminal:
        console = Console(width=MAX_SHOWN_WIDTH)
    console.print(table(tuning))  # type: ignore[arg-type]  # commands load nothing but typer at the top
    for line in lines_below(tuning):  # type: ignore[arg-type]  # as above
        console.print(line)
