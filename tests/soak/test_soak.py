"""A short soak run at every commit; `make soak` goes on for longer, with other seeds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from daemons import Machine, Process
from soak.disturbances import DECK, Disturber
from soak.outcome import Outcome, Usage, Witness
from soak.running import open_files, soak

SECONDS = 4.0
"""How long something is done to the service."""


@pytest.mark.process
def test_a_service_serves_on_whatever_is_killed() -> None:
    """No error, no wrong value, and nothing is left."""
    seconds = SECONDS
    while True:
        outcome = soak(seconds, 3)
        assert outcome.failures == [], "\n".join([*outcome.log, *outcome.failures])
        if outcome.rewinds > 0 < outcome.digests:
            break
        seconds *= 2  # on a slow machine programs have hardly begun by then
        assert seconds < 60, "nothing happens"
    assert outcome.wrong == 0 < outcome.values
    assert "everything held" in outcome.block()


@pytest.mark.process
def test_every_deck_has_every_kind(machine: Machine, tmp_path: Path) -> None:
    """The same seed draws the same, and no kind is left out for long."""
    nothing = Process("nothing", ["true"], machine.environment)
    one, other = Disturber(3, nothing, tmp_path, []), Disturber(3, nothing, tmp_path, [])
    decks = [[each.next_kind() for _ in range(DECK.total())] for each in (one, one, other)]
    assert decks[0] == decks[2] != decks[1]
    assert all({*deck} == {*DECK} for deck in decks)
    nothing.close()


def test_harm_is_found() -> None:
    """Another digest, a wrong value, and errors that no dispatcher's death explains."""
    witness = Witness(Outcome(1))

    def hear(kind: str, **said: object) -> bool:
        return witness.hear("it", json.dumps({"kind": kind, **said}))

    def lost(began: float, at: float, *, explained: bool = True) -> None:
        hear("error", explained=explained, text="no dispatcher answered", began=began, at=at)

    hear("digest", at=0, digest="one", pauses=[])
    witness.undisturbed = False
    hear("digest", at=0, digest="one", pauses=[0.5])
    witness.dispatcher_kills.append(100.0)
    lost(99.0, 101.0)
    assert hear("values", count=3)
    assert not hear("closed")
    outcome = witness.outcome
    assert (outcome.failures, outcome.values, outcome.digests, outcome.refused, outcome.sessions) == ([], 3, 1, 1, 1)
    hear("digest", at=0, digest="another", pauses=[])
    hear("wrong", text="fetched 1 for 2")
    lost(98.0, 99.0)
    lost(200.0, 201.0)
    lost(99.0, 101.0, explained=False)
    assert len(outcome.failures) == 5
    assert outcome.wrong == 2
    witness.hear("it", "Timeout (0:01:00)!")
    assert outcome.log == ["it: Timeout (0:01:00)!"]


def test_a_descriptor_that_stays_open_is_named(tmp_path: Path) -> None:
    before = open_files(os.getpid())
    with (tmp_path / "left-1").open("w"):
        left = open_files(os.getpid()) - before
    assert [name.rsplit("/", 1)[1] for name in left] == ["left-N"]


def test_a_block_names_what_did_not_hold() -> None:
    """What a run prints, with memory in MiB."""

    outcome = Outcome(
        7, pauses=[0.5, 3.0, 1.5], samples={"worker": [Usage(5 << 20, 9), Usage(8 << 20, 12), Usage(6 << 20, 9)]}
    )
    assert "3 pauses of the training, median 1.50 s, worst 3.00 s" in outcome.block()
    assert "worker: memory first 5, last 6, most 8 MiB; descriptors first 9, last 9, most 12" in outcome.block()
    outcome.failures.append("a process is left")
    assert outcome.block().endswith("1 things did not hold")
