"""`gt.profile`: a trace of what a service does while a block of a program runs. It is recorded by a process of its own
(`monitor/tracing.py`), which takes nothing of the program's time.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from .errors import SessionError

TIMEOUT: Final = 30.0
"""Seconds that the recording has to begin, and to write what it has."""


class profile:  # noqa: N801 — it is read as a verb: with gt.profile("run.json")
    """Record what the service does while the block runs as a trace (Perfetto, `gt report`): `with gt.profile("run.json"):`.

    Compressed when the name ends in '.gz'. Entering starts the default session if there is none, and waits until all workers
    record; leaving waits until they have done everything that was asked of them. What other clients do is in the trace too.
    Afterwards `events` and `dropped` (those that were lost) count. While a program is explained it does nothing. Raises
    `SessionError` when it cannot be recorded, `OSError` when the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.events = 0
        self.dropped = 0
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> profile:
        from .client import session as sessions
        from .session import substitutes

        if substitutes:
            return self  # the program is being explained: nothing runs that could be recorded
        if self._child is not None:
            raise SessionError(f"the trace {self.path} is being recorded already: take a gt.profile for each block")
        session = sessions.current()
        if not session.name.startswith(("tcp://", "ipc://")):
            raise SessionError(
                "a session in this thread (inproc) has no event stream to record: use gt.init(workers=…) or gt.connect(address)"
            )
        session.flush()
        self.path.open("w").close()  # an error of the file is raised here, before anything is started
        self._child = subprocess.Popen(  # noqa: S603 — this very interpreter, with arguments made here
            [sys.executable, "-P", "-m", "gt.monitor.tracing", session.name, str(self.path.absolute())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._hear("begun")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from .errors import GTError
        from .session import synchronize

        child = self._child
        if child is None:
            return
        with contextlib.suppress(GTError):  # what the block could not do, it has raised itself
            synchronize()
        with contextlib.suppress(OSError):  # it has ended already, and said why
            _pipe(child.stdin).write("end\n")  # not by closing: a forked child may hold the pipe open
            _pipe(child.stdin).flush()
        try:
            said = self._hear("events")
        except SessionError:
            if error is None:
                raise
            return
        finally:
            self._child = None
        self.events, self.dropped = int(said["events"]), int(said["dropped"])
        if said["text"] and error is None:
            raise SessionError(f"the trace {self.path} ends early: {said['text']}")

    def _hear(self, key: str) -> dict[str, Any]:
        """The line of the recording that has this key."""
        child = self._child
        assert child is not None, "it is being recorded"
        out = _pipe(child.stdout)
        line = out.readline() if select.select([out], [], [], TIMEOUT)[0] else ""
        said: dict[str, Any] = json.loads(line) if line else {"error": "it ended without a word"}
        if key == "events" or key not in said:
            if not line:
                child.kill()
            out.close()
            with contextlib.suppress(OSError):
                _pipe(child.stdin).close()
            child.wait(TIMEOUT)
        if key not in said:
            self._child = None
            why = said.get("error") or said.get("text") or "it ended before it began"
            raise SessionError(f"the trace {self.path} cannot be recorded: {why}")
        return said


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "it was asked for"
    return pipe
