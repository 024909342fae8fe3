"""Runs a user's program in this process, as `python program arguments…` would. What it prints goes to stderr."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path


class StopProgram(SystemExit):
    """Stops the program. A `SystemExit`, so that `except Exception` does not catch it and threads end quietly."""


class ProgramError(Exception):
    """The program raised an error; the text is its traceback."""


def run_program(program: Path, arguments: Sequence[str] = ()) -> None:
    """Run a program to its end, or until it is stopped by `StopProgram`, and send what it has gathered.

    Raises `ProgramError` with the program's own traceback when it fails, or its status when it ends with another than 0.
    """
    argv, path = sys.argv, sys.path[:]
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            try:
                runpy.run_path(str(program), run_name="__main__")
                flush()
            except StopProgram:
                pass
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    raise ProgramError(f"{program} ended with status {ended.code}") from None
                flush()
            except Exception as error:  # noqa: BLE001 — whatever it is, it is the program's own
                raise ProgramError(_traceback(error, program)) from None
    finally:
        sys.argv = argv
        sys.path[:] = path


def flush() -> None:
    """Send what the default session has gathered, if there is one."""
    from gt.client.session import sessions

    if sessions.active() is not None:
        sessions.current().flush()


def _traceback(error: BaseException, program: Path) -> str:
    """The traceback from the program's first line on."""
    frames = error.__traceback__
    while frames is not None and Path(frames.tb_frame.f_code.co_filename).resolve() != program.resolve():
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))
