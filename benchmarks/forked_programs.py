"""Programs that run at once on one service, each in a forked process, so that a hundred of them need not import everything anew.

What a program imports is there before the first is forked if this process has had a session before (`gt.connect("inproc")`).
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

Program = Callable[[str, int, int], None]
"""The body of a forked process, called with the address of the service and two descriptors: it writes a byte to the second when
it is ready, reads one from the first when all are, writes what it has found in a line of JSON, and reads one when all have."""


def together(address: str, programs: Sequence[Program]) -> list[Any]:
    """Run programs at once: what they have found."""
    started: list[tuple[int, int, int]] = []
    for program in programs:
        (waiting, start), (reading, report) = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                os.close(start)
                program(address, waiting, report)
                status = 0
            except BaseException:  # it ends here, so nobody else says why
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(waiting)
        os.close(report)
        started.append((pid, start, reading))
        _line(reading)  # one after the other, so that workers are given out in turn
    for _, start, _ in started:
        os.write(start, b"x")
    found = [json.loads(_line(reading)) for _, _, reading in started]
    for pid, start, reading in started:
        os.write(start, b"x")
        os.waitpid(pid, 0)
        os.close(start)
        os.close(reading)
    return found


def _line(descriptor: int) -> str:
    """The next line of a program, which says nothing more before it is told to."""
    text = b""
    while not text.endswith(b"\n"):
        more = os.read(descriptor, 1 << 16)
        assert more, "a program ended early"
        text += more
    return text.decode()
