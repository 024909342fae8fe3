"""Recording a trace: a watcher at the level of traces that writes events to a file as they arrive.

`gt trace` records for some seconds; `gt.profile` records while a block of a program runs, in a separate process (`python -m
gt.monitor.tracing`), which takes none of the program's time and ends with a complete file however the program ends. `trace.py`
defines the format.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import platform
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from gt.errors import GTError
from gt.wire import telemetry as t

from .snapshot import LIVE
from .stream import Stream
from .trace import TraceWriter

EVENT_WAIT_SECONDS: Final = 2.0
"""The seconds to wait for the workers' first events when a recording begins, and for their last ones when it ends."""
STDOUT: Final = Path("-")
"""Stands for standard output, not for a file of that name."""
POLL_SECONDS: Final = 0.1
"""The seconds between two checks whether the recording is over, where nothing signals it."""


class TraceSummary(NamedTuple):
    """The result of a recording: its `events`, those `dropped`, its `seconds`, and why it ended early (or "")."""

    events: int
    dropped: int
    seconds: float
    text: str


@contextlib.contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """The file of a trace, open for writing, or standard output for `STDOUT`; compressed when its name ends in .gz. Raises
    `OSError`, which names it.

    What no UTF-8 has, half of a surrogate pair, becomes its escape in JSON.
    """
    try:
        if path == STDOUT:
            with open(
                sys.stdout.fileno(), "w", encoding="utf-8", errors="backslashreplace", newline="\n", closefd=False
            ) as out:
                yield out
        elif path.suffix == ".gz":
            with gzip.open(
                path, "wt", encoding="utf-8", errors="backslashreplace", newline="\n", compresslevel=4
            ) as packed:
                yield packed
        else:
            with path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as plain:
                yield plain
    except OSError as error:
        if error.errno is not None and error.filename is None:  # a full disk
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def facts() -> dict[str, Any]:
    """What a trace's metadata contains besides what the service reports about itself."""
    return {"python": platform.python_version(), "system": platform.platform(), "host": platform.node()}


def record(
    stream: Stream, file: TextIO, over: Callable[[], bool], *, begun: Callable[[], object] = lambda: None
) -> TraceSummary:
    """Write the events of `stream` to `file` until `over()`, and then those that belong to what had begun by then.

    `begun` is called once all workers record. Ends early if the service is lost, and within a few seconds of `over()`.
    """
    stream.again = False  # another has workers of the same numbers
    trace = TraceWriter(file.write, facts())
    started = time.monotonic()
    heard: dict[int, int] = {}
    present: set[int] = set()
    last: float | None = None
    goal: dict[int, int] = {}
    lost = 0
    waits = True
    while stream.status.state == LIVE:
        events = stream.read(POLL_SECONDS)
        trace.add(events, stream.dropped - lost)
        lost = stream.dropped
        for event in events:
            if isinstance(event, t.Utilisation):
                heard[event.worker] = heard.get(event.worker, 0) + 1
            elif isinstance(event, t.WorkerJoined):
                present.add(event.number)
            elif isinstance(event, t.WorkerLost):
                present.discard(event.number)
        now = time.monotonic()
        if waits and (now > started + EVENT_WAIT_SECONDS or (present and present <= heard.keys())):
            waits = False
            begun()
        if last is None:
            if over():
                stream.listen(None)  # it would be said for ever
                last = now
                goal = {worker: heard.get(worker, 0) + 2 for worker in present}
        elif now > last + EVENT_WAIT_SECONDS or all(heard.get(worker, 0) >= goal.get(worker, 0) for worker in present):
            break
    status = stream.status
    trace.close()
    text = "" if status.state == LIVE else f"the service was lost: {status.text}"
    return TraceSummary(trace.events, trace.dropped, time.monotonic() - started, text)


def main(arguments: list[str]) -> int:
    """`ADDRESS PATH`: record until a line comes on standard input, or it ends.

    Prints `begun`, and at the end a summary (or `error`), each as a line of JSON.
    """
    address, path = arguments

    def say(**words: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(words), flush=True)  # noqa: T201 — it is a program

    try:
        with Stream(address, level=t.TRACE) as stream, writing(Path(path)) as file:
            stream.listen(sys.stdin.fileno())
            done = record(stream, file, _input_ended, begun=lambda: say(begun=True))
    except (GTError, OSError) as error:
        say(error=str(error))
        return 1
    say(**done._asdict())
    return 0


def _input_ended() -> bool:
    """A line has come, or nobody holds the other end of standard input any more."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
