"""`gt usage`: shows what each user of a service has used: device time, bytes, instructions, energy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gt.commands.shared.error_lines import errors_as_lines

TITLES = (
    ("device_seconds", "DEVICE s"), ("runs", "RUNS"), ("instructions", "INSTRUCTIONS"), ("moved_bytes", "MOVED"),
    ("put_bytes", "PUT"), ("fetched_bytes", "FETCHED"), ("held_byte_seconds", "HELD B·s"), ("joules", "JOULES"),
)  # fmt: skip
"""The columns of the table, with their titles."""


def usage(
    address: Annotated[
        str | None, typer.Argument(help="tcp://HOST:PORT or ipc:///PATH; default the service of this machine.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print it as CSV.")] = False,
) -> None:
    """Print what all principals have used since the dispatcher started, by top-level signal. Operators and observers.

    Puts, fetches, what is held and energy count by session, so in no signal. A dash, null or nothing: no device tells.
    """
    with errors_as_lines():
        if json and csv:
            raise typer.BadParameter("say --json or --csv")
        from gt.monitor.stream import Stream
        from gt.service.session import usage_figures
        from gt.wire import telemetry as t

        with Stream(address, level=t.OFF) as stream:
            answer = stream.usage()
        rows = [
            {"principal": row[0], "signal": row[1], **usage_figures(answer["columns"][2:], row[2:])}
            for row in sorted(answer["rows"], key=lambda row: (row[0], -row[2], row[1]))
        ]
        if json:
            import json as notation

            typer.echo(notation.dumps(rows, indent=1))
        elif csv:
            _print_csv(rows)
        else:
            _print_table(rows)


def _print_csv(rows: list[dict[str, Any]]) -> None:
    import csv as notation
    import sys

    if rows:
        writer = notation.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _print_table(rows: list[dict[str, Any]]) -> None:
    lines = [["PRINCIPAL", "SIGNAL", *(title for _, title in TITLES)]]
    lines += [[row["principal"], row["signal"] or "-", *(_figure(row[name]) for name, _ in TITLES)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        texts = [
            text.ljust(width) if at < 2 else text.rjust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        typer.echo("  ".join(texts).rstrip())


def _figure(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
