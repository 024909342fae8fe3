"""How commands tell errors: a line each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer


def error_line(error: Exception) -> str:
    """An error in a line: of a file its name and what is wrong with it."""
    if (
        type(error).__module__ == "builtins"
        and isinstance(error, OSError)
        and error.filename is not None
        and error.strerror
    ):
        return f"{error.filename}: {error.strerror}"
    return str(error)


@contextlib.contextmanager
def errors_as_lines() -> Iterator[None]:
    """Errors that are the user's or the machine's become one line each on stderr, and exit status 1."""
    from gt.errors import GTError

    try:
        yield
    except (GTError, OSError) as error:
        typer.echo(f"gt: {error_line(error)}", err=True)
        raise typer.Exit(1) from None
