"""Reads events from a trace that `monitor/trace.py` wrote, line by line, checked as if they came over the wire.

A trace whose writer was killed ends early; what is there is read.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from gt.errors import ProtocolError, TraceError
from gt.wire import telemetry as t

from .trace import HEAD_LINE, ORIGIN_NAME, SAMPLE_PREFIX

MAX_LINE_LENGTH: Final = 1 << 24
"""The longest line, in characters."""
_BY_NAME: Final = {kind.__name__: code for code, kind in enumerate(t.KINDS)}


@dataclass(slots=True)
class TraceMetadata:
    """What a trace says about itself: the `facts` of its metadata are known once it was read to its end."""

    facts: dict[str, Any] = field(default_factory=dict)
    begun: bool = False
    """Whether it has a trace's first line."""
    cut: bool = True
    """Whether it has no end, because its writer was killed."""


def read(path: Path, recorded: TraceMetadata) -> Iterator[t.Event]:
    """The events of a trace file, compressed or not, in the order in which they were written.

    Fills `recorded`. Raises `TraceError` for a file that is not a trace of GT, `OSError` for one that cannot be read.
    """
    with path.open("rb") as probe:
        packed = probe.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as lines:
            yield from parse(_lines(lines), recorded)
    except TraceError as error:
        raise TraceError(f"{path} is no trace that `gt trace` or `gt.profile` wrote: {error}") from None
    except EOFError:  # it was packed by a writer that was killed
        if not recorded.begun:
            raise TraceError(f"{path} is no trace that `gt trace` or `gt.profile` wrote: it has no beginning") from None
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error):
        raise TraceError(f"{path} is no trace that `gt trace` or `gt.profile` wrote: it is no text") from None


def _lines(file: Any) -> Iterator[str]:
    while line := file.readline(MAX_LINE_LENGTH):
        yield line


def parse(lines: Iterable[str], recorded: TraceMetadata) -> Iterator[t.Event]:
    """The same from lines. Its `TraceError` names no file."""
    number = 0
    origin: int | None = None
    for line in lines:
        number += 1
        if number == 1:
            recorded.begun = line == f"{HEAD_LINE}\n"
            if not (recorded.begun or HEAD_LINE.startswith(line)):  # what else begins so has all in one line
                raise TraceError("it begins otherwise")
        elif line.startswith('],"otherData":') and line.endswith("\n"):
            recorded.facts = _facts(line)
            recorded.cut = False
            return
        elif line.endswith("\n"):  # if not, the writer ended here
            if origin is None:
                origin = _origin(line)
                continue
            event = _event(line, number, origin)
            if event is not None:
                yield event
    if not number:
        raise TraceError("it is empty")


def _facts(line: str) -> dict[str, Any]:
    try:
        found = json.loads("{" + line.removeprefix("],"))["otherData"]
    except (ValueError, KeyError, TypeError):
        raise TraceError("its metadata is broken") from None
    if type(found) is not dict:
        raise TraceError("its metadata is broken")
    return cast("dict[str, Any]", found)


def _origin(line: str) -> int:
    """The time that is the trace's 0."""
    try:
        raw = json.loads(line.rstrip().removesuffix(","))
        if raw["name"] == ORIGIN_NAME:
            return int(raw["args"]["time"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        pass
    raise TraceError("its second line does not say when it begins")


def _event(line: str, number: int, origin: int) -> t.Event | None:
    """The event of a line; None for arrows, counters and names."""
    if line.startswith(('{"ph":"C"', '{"ph":"s"', '{"ph":"f"')):
        return None
    try:
        raw = json.loads(line.rstrip().removesuffix(","))
        args = raw["args"]
        if raw["ph"] == "M":
            return t.decode_event(args["event"]) if str(raw["name"]).startswith(SAMPLE_PREFIX) else None
        code = _BY_NAME[raw["cat"]]
        start = origin + round(raw["ts"] * 1000)
        if raw["ph"] == "X":
            duration = round(raw["dur"] * 1000)
            if raw["cat"] == "Waiting":
                args = {"since": start, "time": start + duration, **args}
            args = {"duration": duration, **args}
        fields = {"time": start, **args}
        return t.decode_event([code, *[fields[name] for name in t.KINDS[code]._fields]])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError, ProtocolError):
        raise TraceError(f"line {number} is not one of its events") from None
