"""The states of a plan on a worker, and the transitions between them.

A worker has one plan in its turn at a time. All others wait behind it, because plans run in one global order: that is why moves
cannot deadlock (docs/architecture.md, "Invariants").

A plan arrives as an `Execute` message and is *queued* until everything before it has been done. Announced plans are known
before their turn, so what they read can be prefetched. When its turn comes and one of its inputs is a put whose copy to the GPU
could not be started for lack of pinned memory, it is *waiting for a put*. Both states have no record other than the message:
they follow from the queue (`WorkerCore.plan_state`).

Then the plan gets its record (`execution.py`). While it is *loading*, its program is looked up (compiled at its first run), room
is made for it, and its inputs come into memory and slots. From then on it is *running*: its blocks of steps are computed one
after the other, with a move between two of them. Two things can suspend it there. At a move, what it sends must be known to be
sound, and on a GPU the checks of its operands may be unknown as yet: then it is *waiting for a check*. Once it has entered the
move it is *waiting for a move* until all pieces have come and all its own have left.

Where a client has asked for a result together with the run, a plan on a CPU stops when that is there: it is *answering* until the
shell has sent the value, and goes on at once.

It always runs to its end, because a failed instruction leaves a `Poison` in place of its result and a move sends a fault in
place of data. So every state leads to *finished*, and none to "failed". A finished plan on a GPU may still have checks that are
unknown; they go with its results into the store and suspend later moves and fetches, not this plan. A plan that cannot even be
compiled leaves faults as its results and is finished without a record.

Nothing but `Execution.enter` changes the state of a record.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Final


class PlanState(StrEnum):
    """Where a plan stands on one worker; the value is how texts name it."""

    QUEUED = "queued"
    WAITING_FOR_PUT = "waiting for a put"
    LOADING = "loading"
    RUNNING = "running"
    WAITING_FOR_CHECK = "waiting for a check"
    WAITING_FOR_MOVE = "waiting for a move"
    ANSWERING = "answering"
    FINISHED = "finished"


MEANINGS: Final[dict[PlanState, str]] = {
    PlanState.QUEUED: "earlier messages have not been handled yet",
    PlanState.WAITING_FOR_PUT: "it is next, and the copy of an input to the GPU has not been started",
    PlanState.LOADING: "its program is looked up or compiled, room is made, inputs come into memory",
    PlanState.RUNNING: "its steps are computed",
    PlanState.WAITING_FOR_CHECK: "a GPU has not said yet whether what the next move sends is sound",
    PlanState.WAITING_FOR_MOVE: "pieces of the move that it has entered are missing, or its own have not left",
    PlanState.ANSWERING: "one of its results leaves for a client, which has asked for it with the run",
    PlanState.FINISHED: "its results are stored, and it is reported as done",
}

TRANSITIONS: Final[dict[PlanState, dict[PlanState, str]]] = {
    PlanState.QUEUED: {
        PlanState.WAITING_FOR_PUT: "it is next, and an input is a put that waits for pinned memory",
        PlanState.LOADING: "it is next",
    },
    PlanState.WAITING_FOR_PUT: {PlanState.LOADING: "all copies of its inputs have been started"},
    PlanState.LOADING: {
        PlanState.RUNNING: "its inputs are in their slots",
        PlanState.FINISHED: "it cannot be compiled, and its results are faults",
    },
    PlanState.RUNNING: {
        PlanState.WAITING_FOR_CHECK: "it comes to a move whose operand has an unknown check",
        PlanState.WAITING_FOR_MOVE: "it enters a move that cannot be completed at once",
        PlanState.ANSWERING: "a result that a client has asked for with the run is there, and other steps follow",
        PlanState.FINISHED: "its last block was computed",
    },
    PlanState.WAITING_FOR_CHECK: {
        PlanState.WAITING_FOR_MOVE: "the checks are known, and the move cannot be completed at once",
        PlanState.RUNNING: "the checks are known, and the move is complete",
    },
    PlanState.WAITING_FOR_MOVE: {PlanState.RUNNING: "the move is complete, or its missing pieces became faults"},
    PlanState.ANSWERING: {PlanState.RUNNING: "the answer was handed out"},
    PlanState.FINISHED: {},
}
"""For each state, those that may follow it, and when they do."""

SUSPENDED: Final = frozenset((PlanState.WAITING_FOR_CHECK, PlanState.WAITING_FOR_MOVE, PlanState.ANSWERING))
"""The states in which a plan may be between two events."""


def table() -> str:
    """The states and transitions as a table in Markdown, for docs/architecture.md."""
    rows = ["| state | meaning | next state |", "| --- | --- | --- |"]
    for state, following in TRANSITIONS.items():
        then = "; ".join(f"*{successor}*: {when}" for successor, when in following.items()) or "none"
        rows.append(f"| *{state}* | {MEANINGS[state]} | {then} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
