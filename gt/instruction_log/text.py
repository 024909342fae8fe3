"""The instruction log's text: what a client told a service, as lines that people read and `gt replay` reads back.

    gt instruction log 1
    log 5f1c09ab part 1 data yes
    session 1 at "inproc" workers 2
    put %1p0 f32[64,10] signal ["data"] data 0
    define 1
      @0 forward ["mlp"] "train.py:12"
      $0 f32[64,10]
      #0 f
      %0 f32[64,10] = mul $0, #0 @0
      %1 f32[] = sum %0 {axes=(0,1), keepdims=False} @0
      keep %1
    end
    run 1 segment 1 makes %1.0 inputs %1p0 scalars 0.5
    fetch 1 %1.1
    value 1 f32[] digest 9c1185a5c5e9fc54 is 0.6931471824645996

Instructions are in their one printed form (`gt/ir/instruction.py`), followed by the tag that says where they come from.
`%1.7` is the 7th result that a program's first thread made, `%1p0` its first put. Pure: lines and messages, no files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gt.errors import GTError
from gt.ir.hints import pack_hints
from gt.ir.instruction import ID_BITS, Segment, print_instruction
from gt.ir.instruction_bytes import unpack_segment
from gt.ir.spec import Spec
from gt.wire import messages as m

VERSION: Final = 1
"""The version of the text. A reader refuses a newer one."""
HEAD_TEXT: Final = "gt instruction log"
_PUT_ID_RANGE: Final = 1 << ID_BITS - 1
_PUT_ID_MASK: Final = _PUT_ID_RANGE - 1


LOGGED_MESSAGES: Final = (m.Define, m.Drop, m.Run, m.Free, m.Fetch, m.Configure, m.Options)
"""The client's messages that are logged in a form of their own; a `Put` is logged without its values."""


def fetch_of(run: m.Run) -> m.Fetch | None:
    """What a run asks for of its results, as the message by which it is logged behind the run."""
    return m.Fetch(run.fetch[0], run.base + run.fetch[1]) if run.fetch else None


class SessionBegan(NamedTuple):
    """A session began at a service with so many workers; `config` is the service's own, if known."""

    where: str
    workers: int
    config: dict[str, Any] | None = None


class KnownTensor(NamedTuple):
    """A tensor that was alive when an earlier part of the log ended."""

    tensor: int
    spec: Spec


class LoggedPut(NamedTuple):
    """A `Put` without its values, which are at offset `data` of the data file, if they were kept."""

    tensor: int
    spec: Spec
    signal: tuple[str, ...]
    data: int | None


class FetchResult(NamedTuple):
    """The result of a fetch: a `digest` of its bits; the number itself if it was one; all values at offset `data`, if kept."""

    request: int
    spec: Spec
    digest: str
    number: Any
    data: int | None


class FetchFault(NamedTuple):
    """A fetch failed."""

    request: int
    kind: str
    text: str


class LogContinued(NamedTuple):
    """The lines before this one repeat what an earlier part said."""


class SessionEnded(NamedTuple):
    """A session ended regularly."""


def name(tensor: int) -> str:
    """A tensor's id as it is printed: `%1.7` or `%1p0`."""
    return names([tensor])


def names(tensors: Iterable[int]) -> str:
    """The printed ids of several tensors, separated by spaces; the hot path of a log."""
    return " ".join(
        [
            f"%{tensor >> ID_BITS}.{tensor & _PUT_ID_MASK}"
            if tensor & _PUT_ID_RANGE
            else f"%{tensor >> ID_BITS}p{tensor & _PUT_ID_MASK}"
            for tensor in tensors
        ]
    )


def tensor_of(text: str) -> int:
    """The id that `name` prints. Raises `ValueError`."""
    match = re.fullmatch(r"%(\d{1,8})([.p])(\d{1,12})", text)
    if match is None:
        raise ValueError(f"{text!r} is not a tensor, as %1.7 is")
    return (int(match[1]) << ID_BITS) + int(match[3]) + (_PUT_ID_RANGE if match[2] == "." else 0)


# writing


def print_definition(number: int, segment: Segment) -> str:
    """The lines of a definition."""
    lines = [f"define {number}"]
    for at, tag in enumerate(segment.tags):
        hints = pack_hints(tag.hints)
        said = f" {json.dumps(hints)}" if hints else ""
        lines.append(f"  @{at} {tag.phase} {json.dumps(tag.signal)} {json.dumps(tag.site)}{said}")
    lines += [f"  ${at} {known}" for at, known in enumerate(segment.inputs)]
    lines += [f"  #{at} {kind}" for at, kind in enumerate(segment.kinds)]
    lines += [f"  {print_instruction(each, segment.values)} @{each.tag}" for each in segment.instructions]
    if segment.survivors:
        lines.append(f"  keep {' '.join(f'%{number}' for number in segment.survivors)}")
    return "\n".join((*lines, "end\n"))


def print_run(number: int, run: m.Run) -> str:
    """A run as one line: its number in the session, the segment, the first result, inputs, scalars, and the tensors that die."""
    line = f"run {number} segment {run.segment} makes {name(run.base)}"
    if run.inputs:
        line += f" inputs {names(run.inputs)}"
    if run.scalars:
        line += f" scalars {' '.join(map(repr, run.scalars))}"
    if run.dying:
        line += f" dies ${' $'.join(map(str, run.dying))}"
    if run.freed:
        line += f" frees {names(run.freed)}"
    return line + "\n"


def _data(at: int | None) -> str:
    return "" if at is None else f" data {at}"


def print_record(record: Any) -> str:
    """Any other record as one line."""
    match record:
        case SessionBegan(where, workers, config):
            said = "" if config is None else f" config {json.dumps(config)}"
            return f"at {json.dumps(where)} workers {workers}{said}\n"
        case KnownTensor(tensor, known):
            return f"have {name(tensor)} {known}\n"
        case LoggedPut(tensor, known, signal, data):
            return f"put {name(tensor)} {known} signal {json.dumps(signal)}{_data(data)}\n"
        case FetchResult(request, known, digest, number, data):
            said = "" if number is None else f" is {number!r}"
            return f"value {request} {known} digest {digest}{said}{_data(data)}\n"
        case FetchFault(request, kind, text):
            return f"failed {request} {json.dumps([kind, text])}\n"
        case LogContinued():
            return "continued\n"
        case SessionEnded():
            return "over\n"
        case m.Drop(segment):
            return f"drop {segment}\n"
        case m.Free(tensors):
            return f"free {names(tensors)}\n"
        case m.Fetch(request, tensor):
            return f"fetch {request} {name(tensor)}\n"
        case m.Configure(request, config):
            return f"configure {request} {json.dumps(config)}\n"
        case m.Options(values):
            return f"options {json.dumps(values)}\n"
    raise TypeError(f"the log has no line for {type(record).__name__}")


@dataclass
class _SessionState:
    """What must be repeated about one session when its log continues in another file."""

    began: SessionBegan
    runs: int = 0
    config: str = ""
    options: str = ""
    definitions: dict[int, tuple[str, Segment]] = field(default_factory=dict)
    alive: dict[int, Spec] = field(default_factory=dict)


class LogWriter:
    """Makes the lines of all sessions of one log, and knows what the next part must begin with."""

    def __init__(self, identity: str, *, data: bool) -> None:
        self.identity = identity
        self.data = data
        self.part = 0
        self.speaking = 0
        self.sessions: dict[int, _SessionState] = {}

    def head(self, about: str) -> str:
        """The lines at the beginning of a part: what it is, and everything that later lines rely on."""
        self.part += 1
        self.speaking = 0
        kept = "yes" if self.data else "no"
        lines = [f"{HEAD_TEXT} {VERSION}\n", f"# {about}\n", f"log {self.identity} part {self.part} data {kept}\n"]
        for number, known in self.sessions.items():
            lines += [f"session {number} ", print_record(known.began), f"runs {known.runs}\n"]
            lines += [known.config, known.options, *(text for text, _ in known.definitions.values())]
            lines += [print_record(KnownTensor(*pair)) for pair in known.alive.items()]
            self.speaking = number
        if self.part > 1:
            lines.append(print_record(LogContinued()))
        return "".join(lines)

    def line(self, session: int, record: Any) -> str:
        """The text for a record of a session; the first record is a `SessionBegan`."""
        if isinstance(record, SessionBegan):
            self.sessions[session] = _SessionState(record)
            self.speaking = session
            return f"session {session} {print_record(record)}"
        before = "" if session == self.speaking else f"session {session}\n"
        self.speaking = session
        try:
            return before + self._said(session, self.sessions[session], record)
        except (GTError, LookupError, TypeError, ValueError) as error:  # what the service refuses too
            return f"{before}# no line for this {type(record).__name__}: {' '.join(str(error).split())}\n"

    def _said(self, session: int, known: _SessionState, record: Any) -> str:
        if isinstance(record, m.Run):
            _, segment = known.definitions[record.segment]
            text = print_run(known.runs + 1, record)
            known.runs += 1
            alive, base, values, inputs = known.alive, record.base, segment.values, record.inputs
            for number in segment.survivors:
                alive[base + number] = values[number]
            for tensor in record.freed:
                alive.pop(tensor, None)
            for position in record.dying:
                alive.pop(inputs[position], None)
            return text
        if isinstance(record, m.Define):
            segment = unpack_segment(record.body)
            text = print_definition(record.segment, segment)
            known.definitions[record.segment] = text, segment
            return text
        text = print_record(record)
        if isinstance(record, LoggedPut):
            known.alive[record.tensor] = record.spec
        elif isinstance(record, m.Free):
            for tensor in record.tensors:
                known.alive.pop(tensor, None)
        elif isinstance(record, m.Drop):
            known.definitions.pop(record.segment, None)
        elif isinstance(record, m.Configure):
            known.config = text
        elif isinstance(record, m.Options):
            known.options = text
        elif isinstance(record, SessionEnded):
            del self.sessions[session]
        return text
