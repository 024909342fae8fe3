"""Fatal runs: runs during which a worker's process ended. After a second such end a run is refused, not tried for ever.

A worker whose process ends tells by its memory which plan it was computing (`RunningPlanMemory`). That may be chance, since
others kill processes too; so the session goes back and tries the run once more. When a second worker ends in the same run,
and the run was not computed in between, the run is refused: what it would have made has an error. Of a definition one run of
which was refused, others are tried once; after two refused runs none is tried. State only, which passes from one incarnation
of the session to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from gt.ir.instruction import Instruction, Segment

MAX_TRIES: Final = 2
"""How many workers may end during one run of a session until it is refused."""
MAX_REFUSED_RUNS: Final = 2
"""After how many refused runs of a definition all others are refused."""
MAX_NAMED_LINES: Final = 12
"""The most lines of a refused run that are named."""
MAX_LINE_CHARACTERS: Final = 300
"""The most characters of each."""
MAX_SEARCHED_INSTRUCTIONS: Final = 300
"""Of how many instructions of a refused run, the first, the lines are looked for."""


@dataclass(slots=True)
class FatalRun:
    """A run during which so many workers have ended, and what is said of the `last` of them. `definition` is the number of its
    segment once it was refused."""

    times: int = 0
    last: str = ""
    definition: int | None = None


class RunRefusal(NamedTuple):
    """Why a run is not issued: what its program is told. It is `fresh` if it is due to a worker that has ended since."""

    text: str
    fresh: bool


class FatalRuns:
    """The fatal runs of one session, by their positions in its stream of runs and puts, which stay the same when messages are
    sent again. There are never more than workers have ended."""

    __slots__ = ("by_position", "lines")

    def __init__(self) -> None:
        self.by_position: dict[int, FatalRun] = {}
        self.lines: dict[int, str] = {}
        """By definition, the lines of those of which a run was refused."""

    def note(self, position: int, last: str) -> bool:
        """Note that a worker has ended during the run at a position. Returns whether that will be refused. Earlier runs were
        computed, since workers compute in the order of the stream."""
        self.note_computed(position - 1)
        run = self.by_position.setdefault(position, FatalRun())
        run.times, run.last = run.times + 1, last
        return run.times >= MAX_TRIES

    def note_computed(self, position: int) -> None:
        """Note that everything up to a position is over: the runs among it that were tried again ended no worker then."""
        runs = self.by_position.items()
        self.by_position = {at: run for at, run in runs if at > position or run.definition is not None}

    def refuse(self, position: int, definition: int, segment: Segment) -> RunRefusal | None:
        """Note a run of a segment, which has the number `definition`. Returns why it is not to be issued; None if it may be."""
        run = self.by_position.get(position)
        earlier = sum(each.definition == definition for at, each in self.by_position.items() if at != position)
        if run is not None and run.times >= MAX_TRIES:
            text = f"{run.times} workers ended while they computed these instructions (the last: {run.last})"
        elif run is not None and earlier:
            text = f"a worker ended while it computed these instructions ({run.last}), as others did in an earlier run"
        elif earlier >= MAX_REFUSED_RUNS:
            text = f"workers ended while they computed these instructions, in each of {earlier} earlier runs"
        else:
            return None
        if definition not in self.lines:
            self.lines[definition] = named_lines(segment)
        fresh = run is not None and run.definition is None
        if run is not None:
            run.definition = definition
        what_to_do = "gt.flush() between two lines divides them"
        return RunRefusal(f"{text}, so they are not tried again; {what_to_do}:\n{self.lines[definition]}", fresh)


def named_lines(segment: Segment) -> str:
    """The lines of a segment with ops and shapes, each on a line of its own; if there are many, one instruction of each of the
    first lines."""
    first: dict[str, str] = {}
    found: dict[str, None] = {}
    for instruction in islice(segment.instructions, MAX_SEARCHED_INSTRUCTIONS):
        line = _line(segment, instruction)
        found[line] = None
        first.setdefault(segment.tags[instruction.tag].site, line)
    named = list(found) if len(found) <= MAX_NAMED_LINES else list(first.values())[:MAX_NAMED_LINES]
    whole = len(named) == len(found) and len(segment.instructions) <= MAX_SEARCHED_INSTRUCTIONS
    return "\n".join(f"  {line}" for line in named) + (
        "" if whole else f"\n  and others, of {len(segment.instructions)} instructions in all"
    )


def _line(segment: Segment, instruction: Instruction) -> str:
    tag = segment.tags[instruction.tag]
    operands = ", ".join(str(segment.operand(r)) for r in instruction.inputs[:8])
    results = ", ".join(str(segment.values[number]) for number in instruction.outputs[:8])
    signal = f" in signal {'/'.join(tag.signal)}" if tag.signal else ""
    text = f"{instruction.op}{' of ' if operands else ''}{operands}, which gives {results}, at "
    place = f"{tag.site}{signal}"
    return f"{text[:MAX_LINE_CHARACTERS]}{place[-MAX_LINE_CHARACTERS:]}"
