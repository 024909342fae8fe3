"""`gt.profile`: a trace of what a service does while a block of a program runs.

A separate process records it (`monitor/tracing.py`), so that the program is not slowed down. An in-process service is recorded
in the program's thread.
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
from typing import IO, TYPE_CHECKING, Any, Final

from gt.errors import SessionError
from gt.wire.telemetry import OFF, TRACE, decode_event

if TYPE_CHECKING:
    from .in_process import Fabric

TIMEOUT_SECONDS: Final = 30.0
"""The seconds that a recording has to begin, and to write its file."""


class profile:  # noqa: N801 — it is read as a verb: with gt.profile("run.json")
    """Record what the service does during a block as a trace: `with gt.profile("run.json"):`.

    Open the file in Perfetto or with `gt report`; it is compressed if its name ends in '.gz'. Entering the block
    starts the default session if there is none, and waits until all workers record. Leaving it waits until they have
    finished the block's work. The trace includes other clients' work. Afterwards, `events` and `dropped` (lost
    events) are set. Does nothing while a program is being explained. Raises `SessionError` if recording fails, and
    `OSError` if the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.events = 0
        self.dropped = 0
        self._child: subprocess.Popen[str] | None = None
        self._inside: contextlib.ExitStack | None = None
        """The recording to be ended, if it runs in this thread."""

    def __enter__(self) -> profile:
        from gt.client.session import sessions

        from .session import substitutes

        if substitutes:
            return self  # the program is being explained: nothing runs that could be recorded
        if self._child is not None or self._inside is not None:
            raise SessionError(f"the trace {self.path} is being recorded already: take a gt.profile for each block")
        session = sessions.current()
        session.flush()
        if session.name == "inproc":
            self._watch(session.link.fabric)  # type: ignore[attr-defined]
            return self
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
        from gt.errors import GTError

        from .session import synchronize

        child = self._child
        if child is None and self._inside is None:
            return
        with contextlib.suppress(GTError):  # what the block could not do, it has raised itself
            synchronize()
        if child is None:
            inside, self._inside = self._inside, None
            assert inside is not None, "one of them it is"
            inside.close()
            return
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

    def _watch(self, fabric: Fabric) -> None:
        """Record an in-process service, in this thread."""
        from gt.monitor.trace import TraceWriter
        from gt.monitor.tracing import facts, writing

        if fabric.told is not None:
            raise SessionError(f"the trace {self.path} cannot be recorded: another one is, and there is one at a time")
        with contextlib.ExitStack() as stack:
            trace = TraceWriter(stack.enter_context(writing(self.path)).write, facts())

            def told(events: list[Any], dropped: int) -> None:
                trace.add(map(decode_event, events), dropped)

            def end() -> None:
                fabric.watch(OFF, told)
                trace.close()
                self.events, self.dropped = trace.events, trace.dropped

            fabric.watch(TRACE, told)
            stack.callback(end)
            self._inside = stack.pop_all()

    def _hear(self, key: str) -> dict[str, Any]:
        """The line of the recording process with this key."""
        child = self._child
        assert child is not None, "it is being recorded"
        out = _pipe(child.stdout)
        line = out.readline() if select.select([out], [], [], TIMEOUT_SECONDS)[0] else ""
        said: dict[str, Any] = json.loads(line) if line else {"error": "it ended without a word"}
        if key == "events" or key not in said:
            if not line:
                child.kill()
            out.close()
            with contextlib.suppress(OSError):
                _pipe(child.stdin).close()
            child.wait(TIMEOUT_SECONDS)
        if key not in said:
            self._child = None
            why = said.get("error") or said.get("text") or "it ended before it began"
            raise SessionError(f"the trace {self.path} cannot be recorded: {why}")
        return said


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "it was asked for"
    return pipe
