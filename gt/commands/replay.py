"""`gt replay`: runs an instruction log again, on workers in memory. `gt/tools/replay.py` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared.error_lines import errors_as_lines


def replay(
    log: Annotated[Path, typer.Argument(help="What GT_INSTRUCTION_LOG or --instruction-log named.", metavar="RUN.log")],
    until: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop before run N of a session.")] = None,
    show: Annotated[
        list[str] | None, typer.Option(metavar="%ID", help="Print a tensor as it is in the end, %1.7; may be repeated.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many; default as many as there were, or as the config needs.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Shard by this in place of the log's own config; none: by nothing."),
    ] = None,
    session: Annotated[int | None, typer.Option(min=1, help="Replay only this session of the log.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="From which inputs are drawn whose values were not kept.")] = 0,
    draw: Annotated[bool, typer.Option("--draw", help="Draw all inputs, also those that were kept.")] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SHARE",
            help="By which share of its largest element a value may differ, as 1e-5; default: no bit.",
        ),
    ] = 0.0,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print each run too.")] = False,
) -> None:
    """Run an instruction log again on in-memory CPU workers, and compare what is fetched with what was.

    Exit status 1 when a value differs, or a fetch fails on one side alone.
    """
    with errors_as_lines():
        from gt.errors import GTError
        from gt.instruction_log.text import tensor_of
        from gt.sharding.config import load
        from gt.tools.replay import Replay

        try:
            tensors = [tensor_of(text) for text in show or ()]
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--show") from None
        read = False if config == "none" else load(Path(config)) if config is not None else None
        again = Replay(
            typer.echo, workers=workers, config=read, seed=seed, draw=draw, until=until, only=session, verbose=verbose,
            tolerance=tolerance,
        )  # fmt: skip
        again.run(log)
        for text, tensor in zip(show or (), tensors, strict=True):
            typer.echo(f"{text} =\n{again.value(tensor)}")
        if again.fault:
            raise GTError(again.fault)
