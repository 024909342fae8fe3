"""`gt simulate-policies`: compares policies of pacing on the same programs, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared.error_lines import errors_as_lines


def simulate_policies(
    logs: Annotated[
        list[Path] | None, typer.Argument(help="Traces that gt trace wrote; default made programs.", metavar="RUN.json")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="fair, learned, priority, mlfq, sjf, round_robin, fifo, several with commas, or all.")
    ] = "all",
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many, for made programs.")] = 2,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Of virtual time; default 10, or the longest trace's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="From which the first mixture of made programs is drawn.")] = 0,
    mixtures: Annotated[int, typer.Option(min=1, help="How many are drawn, the next ones from the next seeds.")] = 4,
) -> None:
    """Simulate policies of pacing on recorded or made programs, and print a table: mean and 99th percentile of what programs of
    each kind wait for, in milliseconds; how busy workers are; plans done in a second; Jain's index of principals' time."""
    with errors_as_lines():
        from gt.dispatcher.pacing_simulator.figures import figures, table
        from gt.dispatcher.pacing_simulator.policies import POLICIES
        from gt.dispatcher.pacing_simulator.programs import made
        from gt.dispatcher.pacing_simulator.service import SimulatedService
        from gt.tools.recorded_programs import recorded

        names = [*POLICIES] if policy == "all" else policy.split(",")
        unknown = [name for name in names if name not in POLICIES]
        if unknown:
            raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(POLICIES)}", param_hint="--policy")
        if logs:
            programs, workers, length = recorded(logs)
            tried, seconds = [programs], seconds or length
        else:
            seconds = seconds or 10.0
            tried = [made(seed + n, workers, seconds) for n in range(mixtures)]
        rows = []
        for name in names:
            services = [SimulatedService(programs, workers, POLICIES[name]) for programs in tried]
            for service in services:
                service.run(seconds)
            rows.append(figures(name, services))
        typer.echo(table(rows))
