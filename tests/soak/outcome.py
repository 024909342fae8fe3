"""What was seen in a soak run, and whether it may be: pure, so that tests can show that harm is found."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from .disturbances import DECK

RETURN_SECONDS: Final = 30.0
"""How long after the end of a dispatcher a program may fail to connect."""


@dataclass(slots=True)
class Usage:
    """A daemon's resident memory in bytes and its descriptors; of workers, the most of any."""

    memory: int
    descriptors: int
    open_files: Counter[str] = field(default_factory=Counter)
    """To what the descriptors lead, without numbers."""


@dataclass(slots=True)
class Outcome:
    """What was done and seen in a run."""

    seed: int
    seconds: float = 0.0
    disturbances: Counter[str] = field(default_factory=Counter)
    rewinds: int = 0
    """How often a session went back."""
    recoveries: int = 0
    """How often one went on from a mark."""
    refused: int = 0
    """How often a program could not connect because a dispatcher was started again."""
    values: int = 0
    sessions: int = 0
    """Sessions that were opened and closed again."""
    wrong: int = 0
    digests: int = 0
    pauses: list[float] = field(default_factory=list)
    """The training's steps that took long, in seconds."""
    samples: dict[str, list[Usage]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """What the service and the programs have printed."""

    def block(self) -> str:
        """The run in some lines."""
        kinds = ", ".join(f"{kind} {self.disturbances[kind]}" for kind in DECK)
        pauses = "no pauses"
        if self.pauses:
            median, worst = statistics.median(self.pauses), max(self.pauses)
            pauses = f"{len(self.pauses)} pauses of the training, median {median:.2f} s, worst {worst:.2f} s"
        lines = [
            f"seed {self.seed}, {self.seconds / 60:.1f} minutes",
            f"disturbances: {kinds}",
            f"{self.rewinds} times a session went back, {self.recoveries} times one went on from a mark",
            f"{self.refused} times a program could not connect while a dispatcher was started again",
            f"{self.values:,} values and {self.digests} digests of the training checked, {self.wrong} wrong",
            f"{self.sessions} sessions opened and closed",
            pauses,
        ]
        for name, usages in self.samples.items():
            memory = [usage.memory / (1 << 20) for usage in usages]
            descriptors = [usage.descriptors for usage in usages]
            lines.append(
                f"{name}: memory first {memory[0]:.0f}, last {memory[-1]:.0f}, most {max(memory):.0f} MiB; "
                f"descriptors first {descriptors[0]}, last {descriptors[-1]}, most {max(descriptors)}"
            )
        lines.append(f"{len(self.failures)} things did not hold" if self.failures else "everything held")
        return "\n".join(lines)


class Witness:
    """Hears what programs say, and notes in an outcome what was checked and what may not be."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.undisturbed = True
        """Whether nothing has been done to the service yet."""
        self.expected: list[str] = []
        """The digests of an undisturbed training."""
        self.dispatcher_kills: list[float] = []
        """When the dispatcher was killed, in seconds of `time.monotonic`."""

    def hear(self, name: str, line: str) -> bool:
        """Note a line of a program. Returns whether it has checked values."""
        outcome, said = self.outcome, said_in(line)
        match said.get("kind"):
            case "values":
                outcome.values += said["count"]
                return True
            case "closed":
                outcome.sessions += 1
            case "digest":
                self._compare(said)
            case "wrong":
                outcome.wrong += 1
                outcome.failures.append(f"{name}: {said['text']}")
            case "error":
                self._judge(name, said)
            case "done":
                pass
            case _:
                outcome.log.append(f"{name}: {line}")
        return False

    def _compare(self, said: dict[str, Any]) -> None:
        """Compare a digest with that of the undisturbed training, which is the first one."""
        at, digest = said["at"], said["digest"]
        if self.undisturbed:
            self.expected.append(digest)
            return
        self.outcome.digests += 1
        self.outcome.pauses += said["pauses"]
        if self.expected[at] != digest:
            self.outcome.wrong += 1
            self.outcome.failures.append(f"the training's digest {at} is not that of an undisturbed run")

    def _judge(self, name: str, said: dict[str, Any]) -> None:
        """An error is in order if it comes from connecting where there was no dispatcher for a while."""
        kills = self.dispatcher_kills
        if said["explained"] and any(kill <= said["at"] and said["began"] <= kill + RETURN_SECONDS for kill in kills):
            self.outcome.refused += 1
        else:
            self.outcome.failures.append(f"{name} got an error that nothing explains: {said['text']}")


def said_in(line: str) -> dict[str, Any]:
    """What a program says in a line; nothing if it is no line of JSON."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
