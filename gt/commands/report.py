"""`gt report`: turns a trace into one HTML page or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared.error_lines import errors_as_lines


def report(
    trace: Annotated[Path, typer.Argument(help="What `gt trace` or `gt.profile` wrote.", metavar="RUN.json")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; default beside the trace, as RUN.html.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="The timeline as a picture too (extra: report).")] = None,
) -> None:
    """Make a page of a trace: timeline, time by signal and op, communication, memory, and what to do better."""
    with errors_as_lines():
        from gt.errors import GTError
        from gt.monitor.advice import advise, count
        from gt.monitor.findings import gather
        from gt.monitor.reading import TraceMetadata, read
        from gt.monitor.report import page

        name = trace.name.removesuffix(".gz").removesuffix(".json")
        target = output or trace.with_name(f"{name}.html")
        if any(path is not None and path.exists() and path.samefile(trace) for path in (target, png)):
            raise GTError(f"{trace} is the trace itself: give the report another name")
        recorded = TraceMetadata()
        found = gather(read(trace, recorded))
        if png is not None:
            from gt.monitor.picture import save

            save(found, png, trace.name)
        target.write_text(page(found, recorded, trace.name), "utf-8", errors="replace")
        cut = ", of a recording that was not ended" if recorded.cut else ""
        typer.echo(f"{target}: {found.span / 1e9:.2f} s, {count(len(found.workers), 'worker')}{cut}")
        for each in advise(found):
            typer.echo(f"{each.site or '-'}: {each.rule}")
