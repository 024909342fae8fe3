"""Reads an instruction log: its lines become the messages that a client sent, checked as if they came over the wire.

`text.py` defines the lines, `gt/tools/replay.py` finds the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from gt.errors import GTError
from gt.ir.dtypes import BY_SHORT
from gt.ir.hints import unpack_hints
from gt.ir.infer import derive
from gt.ir.instruction import INPUT, OUTPUT, PHASES, SCALAR, Instruction, Segment, Tag, ref
from gt.ir.instruction_bytes import pack_segment, unpack_segment
from gt.ir.ops import OPS
from gt.ir.spec import Spec, spec, unpack_spec
from gt.op_packages.loading import load_packages
from gt.op_packages.registry import is_packaged
from gt.wire import messages as m

from .text import (
    HEAD_TEXT,
    VERSION,
    FetchFault,
    FetchResult,
    KnownTensor,
    LogContinued,
    LoggedPut,
    SessionBegan,
    SessionEnded,
    tensor_of,
)


class LogRecord(NamedTuple):
    """A record, its session, its line number in the file `path`, and for a run its number in the session."""

    session: int
    record: Any
    path: str
    line: int
    run: int = 0


_DECODER: Final = json.JSONDecoder()
_INSTRUCTION: Final = re.compile(r"  (%.*?) = ([\w:@]+) ?(.*?)(?: \{(.*)\})? @(\d+)")
_RESULT: Final = re.compile(r"%(\d+) (\w+\[[\d,]*\])")
_ATTRIBUTE: Final = re.compile(r"(\w+)=(\([^)]*\)|[^,]+)(?:, |$)")
_KINDS: Final = {"$": INPUT, "#": SCALAR, "%": OUTPUT}


def read_spec(text: str) -> Spec:
    """The spec that was printed so. Raises `ValueError`."""
    match = re.fullmatch(r"(\w+)\[([\d,]*)\]", text)
    if match is None or match[1] not in BY_SHORT:
        raise ValueError(f"{text!r} is not a dtype and a shape, as f32[64,10] is")
    shape = [int(size) for size in match[2].split(",")] if match[2] else []
    unpack_spec([match[1], shape])  # sizes within bounds
    return spec(BY_SHORT[match[1]], tuple(shape))


def _json(text: str) -> list[Any]:
    """All JSON values of a line, one after the other."""
    found, at = [], 0
    while at < len(text):
        value, at = _DECODER.raw_decode(text, at)
        found.append(value)
        at += text[at : at + 1] == " "
    return found


def _number(text: str) -> Any:
    """A scalar of the kind that it had."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float, complex):
        try:
            return kind(text)
        except ValueError:
            pass
    raise ValueError(f"{text!r} is no number")


def _attribute(text: str) -> Any:
    if text.startswith("("):
        return [int(item) for item in text[1:-1].split(",") if item]
    return text if text in BY_SHORT else _number(text)


class _Definition:
    """A definition that is being read line by line."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tags: list[Tag] = []
        self.inputs: list[Spec] = []
        self.kinds: list[str] = []
        self.values: list[Spec] = []
        self.instructions: list[Instruction] = []
        self.survivors: tuple[int, ...] = ()

    def add(self, line: str) -> None:
        """Take one line. Raises `ValueError` or `GTError`."""
        kind = line[2:3]
        if kind == "%":
            self._instruction(line)
            return
        first, _, rest = line[2:].partition(" ")
        if kind == "@":
            phase, _, said = rest.partition(" ")
            signal, site, *hints = _json(said)
            if phase not in PHASES:
                raise ValueError(f"there is no phase {phase!r}")
            self.tags.append(Tag(tuple(signal), phase, site, unpack_hints(hints[0] if hints else [])))
        elif kind == "$":
            self.inputs.append(read_spec(rest))
        elif kind == "#":
            self.kinds.append(rest)
        elif first == "keep":
            self.survivors = tuple(int(item.removeprefix("%")) for item in rest.split())
        else:
            raise ValueError("a definition has no such line")

    def _instruction(self, line: str) -> None:
        match = _INSTRUCTION.fullmatch(line)
        if match is not None and is_packaged(match[2]):
            load_packages()  # the first time, those that are installed here
        if match is None or match[2] not in OPS:
            raise ValueError("this is not an instruction" if match is None else f"there is no op {match[2]!r}")
        op = match[2]
        inputs = tuple(ref(_KINDS[item[0]], int(item[1:])) for item in match[3].split(", ") if item)
        given = {key: _attribute(text) for key, text in _ATTRIBUTE.findall(match[4] or "")}
        tables: dict[int, Any] = {OUTPUT: self.values, INPUT: self.inputs, SCALAR: self.kinds}
        attributes, results = derive(op, [tables[r & 3][r >> 2] for r in inputs], given)
        said = tuple(read_spec(text) for _, text in _RESULT.findall(match[1]))
        if said != results:
            raise ValueError(f"{op} gives {', '.join(map(str, results))} here")
        outputs = range(len(self.values), len(self.values) + len(results))
        self.instructions.append(Instruction(op, outputs, inputs, attributes, int(match[5])))
        self.values.extend(results)

    def message(self) -> m.Define:
        """The complete definition, with every shape derived again."""
        segment = Segment(
            tuple(self.inputs), "".join(self.kinds), tuple(self.tags), tuple(self.instructions), tuple(self.values),
            self.survivors,
        )  # fmt: skip
        body = pack_segment(segment)
        unpack_segment(body)
        return m.Define(self.number, body)


class TruncatedLog(GTError):
    """A log that ends in the middle of a record, as a killed program may leave it."""


class LogReader:
    """Reads the lines of one part of a log, in order; `path` is for error messages. `head` sets `identity`, `part` and `data`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.identity = ""
        self.part = 0
        self.data = False
        self.at = 0
        self.session = 0
        self.runs: dict[int, int] = {}

    def head(self, lines: Iterator[str]) -> None:
        """Read the beginning of a part. Raises `GTError` for a file that is not a log, or one of a newer version."""
        first = next(lines, "").rstrip("\n")
        version = first.removeprefix(f"{HEAD_TEXT} ")
        if version == first or not version.isdigit():
            raise GTError(f"{self.path} is no instruction log: it does not begin with {HEAD_TEXT!r}")
        if int(version) > VERSION:
            raise GTError(f"{self.path} is an instruction log of version {version}, this gt reads {VERSION}: update it")
        self.at = 1
        for text in lines:
            self.at += 1
            if not text.startswith("#"):
                match = re.fullmatch(r"log (\w+) part (\d+) data (yes|no)\n", text)
                if match is None:
                    raise self._wrong("a log says here which it is")
                self.identity, self.part, self.data = match[1], int(match[2]), match[3] == "yes"
                return
        raise TruncatedLog(f"{self.path} ends before it has begun")

    def read(self, lines: Iterable[str]) -> Iterator[LogRecord]:
        """The records that follow. Raises `GTError` for an invalid line, `TruncatedLog` if the last record is incomplete."""
        definition: _Definition | None = None
        for text in lines:
            self.at += 1
            if not text.endswith("\n"):
                raise TruncatedLog(f"{self.path}:{self.at}: the log ends in the middle of a line")
            line = text[:-1]
            try:
                if definition is not None and line != "end":
                    definition.add(line)
                elif definition is not None:
                    yield self._line(definition.message())
                    definition = None
                elif line.startswith("define "):
                    definition = _Definition(int(line[7:]))
                else:
                    yield from self._read(line)
            except LookupError:
                raise self._wrong("it refers to something that was not said") from None
            except (ValueError, GTError, TypeError, AttributeError) as error:
                raise self._wrong(str(error)) from None
        if definition is not None:
            raise TruncatedLog(f"{self.path}:{self.at}: the log ends in the middle of a definition")

    def _wrong(self, why: str) -> GTError:
        return GTError(f"{self.path}:{self.at}: this line cannot be read: {why}")

    def _line(self, record: Any, run: int = 0) -> LogRecord:
        return LogRecord(self.session, record, self.path, self.at, run)

    def _read(self, line: str) -> Iterator[LogRecord]:
        word, _, rest = line.partition(" ")
        if not line or word == "#":
            return
        if word == "session":
            session, _, rest = rest.partition(" at ")
            self.session = int(session)
            if rest:
                where, at = _DECODER.raw_decode(rest)
                self.runs[self.session] = 0
                workers, _, config = rest[at:].removeprefix(" workers ").partition(" config ")
                yield self._line(SessionBegan(where, int(workers), json.loads(config) if config else None))
        elif word == "runs":
            self.runs[self.session] = int(rest)
        elif word == "run":
            number, run = _run(rest)
            self.runs[self.session] += 1
            if number != self.runs[self.session]:
                raise ValueError(f"run {number} where {self.runs[self.session]} was due")
            yield self._line(run, number)
        else:
            yield self._line(_record(word, rest))


def _run(rest: str) -> tuple[int, m.Run]:
    number, of, segment, makes, base, *words = rest.split()
    if (of, makes) != ("segment", "makes"):
        raise ValueError("a run says which segment it is of and what it makes")
    found: dict[str, list[str]] = {"inputs": [], "scalars": [], "dies": [], "frees": []}
    items: list[str] = []
    for word in words:
        if word in found:
            items = found[word]
        else:
            items.append(word)
    return int(number), m.Run(
        int(segment), tensor_of(base), list(map(tensor_of, found["inputs"])), list(map(_number, found["scalars"])),
        [int(item.removeprefix("$")) for item in found["dies"]], list(map(tensor_of, found["frees"])),
    )  # fmt: skip


def _record(word: str, rest: str) -> Any:
    """The record of any other line."""
    first, _, more = rest.partition(" ")
    if word == "put":
        known, _, said = more.partition(" signal ")
        signal, at = _DECODER.raw_decode(said)
        place = said[at:].removeprefix(" data ")
        return LoggedPut(tensor_of(first), read_spec(known), tuple(signal), int(place) if place else None)
    if word == "have":
        return KnownTensor(tensor_of(first), read_spec(more))
    if word == "value":
        known, _, digest, *words = more.split()
        said_by = dict(zip(words[::2], words[1::2], strict=True))
        number = _number(said_by["is"]) if "is" in said_by else None
        return FetchResult(
            int(first), read_spec(known), digest, number, int(said_by["data"]) if "data" in said_by else None
        )
    if word == "failed":
        return FetchFault(int(first), *map(str, json.loads(more)))
    if word == "configure":
        return m.Configure(int(first), json.loads(more))
    readers: dict[str, Any] = {
        "over": SessionEnded,
        "continued": LogContinued,
        "drop": lambda: m.Drop(int(rest)),
        "free": lambda: m.Free(list(map(tensor_of, rest.split()))),
        "fetch": lambda: m.Fetch(int(first), tensor_of(more)),
        "options": lambda: m.Options(json.loads(rest)),
    }
    if word not in readers:
        raise ValueError(f"no line begins with {word[:20]!r}")
    return readers[word]()
