"""The states of a client's message at the dispatcher, and which may follow which.

A message that its client may send, with the number that was due, is put at the end of the client's queue. Messages are
processed strictly in order, so only the one at the head of a queue is ever acted on, and one field holds its state
(`ClientRecord.head`); all messages behind it are queued. When a message has ended, the next one moves to the head.

    QUEUED ──▶ ACTING ──▶ DONE or FAILED
        │       │  ▲
        ▼       ▼  │
    a wait for a turn, or another wait ──▶ DROPPED, when its client leaves

To act is to call the handler of the message (`handlers/message_queues.py`). It returns at once, with DONE or with what the
message waits for; an error that it raises makes the message FAILED, as a cancellation does, and what the message would have
made inherits the error. A wait changes nothing, so a handler that is called again decides afresh: it may find another reason
to wait. Whatever ends a wait (a worker joins, a plan is finished, a job is over) therefore only has to call it again.

So that no event takes long, only some messages of a client are acted on in one event (`MESSAGES_PER_TURN`); a job goes on with
the one that is at the head then.

DONE means that the dispatcher is done with the message: a run was issued to its workers, which may not have executed it; a
fetch was passed on, and its answer will come from the workers.

Between two events nothing is ACTING, and no message at a head is QUEUED: it waits, and the condition in `WAITS` holds
(`MessageQueues.check`). `gt.why` and watchers are told of the same states.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from gt.wire import messages as m

from .events import Effects, Loss, Marking, Recovery, Reload, Remesh

if TYPE_CHECKING:
    from .records import ClientRecord


class MessageState(StrEnum):
    """What a client's message is doing."""

    QUEUED = "queued"
    ACTING = "acting"
    WAITING_READER = "waiting for its client to read"
    WAITING_TURN = "waiting for a turn"
    WAITING_WORKERS = "waiting for workers"
    WAITING_CONFIG = "waiting for a config"
    WAITING_DEFINITION = "waiting for its definition"
    WAITING_STRATEGY = "waiting for strategies"
    WAITING_PLAN = "waiting for a plan"
    WAITING_SEARCH = "waiting for a search"
    WAITING_COMPILATION = "waiting for compilation"
    WAITING_PUT = "waiting for a put"
    WAITING_CREDIT = "waiting for credit"
    WAITING_SHARE = "waiting for its share"
    WAITING_ANSWERS = "waiting for earlier fetches"
    WAITING_OPERATOR = "waiting for an operator"
    WAITING_RATE = "waiting for its rate"
    WAITING_IDLE = "waiting for an idle mesh"
    WAITING_MIGRATION = "waiting for a migration"
    WAITING_MARK = "waiting for a mark"
    WAITING_RESTORE = "waiting for what a mark has"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"

    __hash__ = str.__hash__  # an enumeration's own is written in Python, and each message is looked up five times


QUEUED, ACTING = MessageState.QUEUED, MessageState.ACTING
WAITING_READER, WAITING_TURN = MessageState.WAITING_READER, MessageState.WAITING_TURN
WAITING_WORKERS, WAITING_CONFIG = MessageState.WAITING_WORKERS, MessageState.WAITING_CONFIG
WAITING_DEFINITION = MessageState.WAITING_DEFINITION
WAITING_STRATEGY, WAITING_PLAN = MessageState.WAITING_STRATEGY, MessageState.WAITING_PLAN
WAITING_SEARCH, WAITING_COMPILATION = MessageState.WAITING_SEARCH, MessageState.WAITING_COMPILATION
WAITING_PUT, WAITING_CREDIT = MessageState.WAITING_PUT, MessageState.WAITING_CREDIT
WAITING_OPERATOR = MessageState.WAITING_OPERATOR
WAITING_SHARE, WAITING_RATE = MessageState.WAITING_SHARE, MessageState.WAITING_RATE
WAITING_ANSWERS = MessageState.WAITING_ANSWERS
WAITING_IDLE, WAITING_MIGRATION = MessageState.WAITING_IDLE, MessageState.WAITING_MIGRATION
WAITING_MARK, WAITING_RESTORE = MessageState.WAITING_MARK, MessageState.WAITING_RESTORE
DONE, FAILED, DROPPED = MessageState.DONE, MessageState.FAILED, MessageState.DROPPED


CLIENT_MESSAGES: Final = (
    Recovery, Loss, Marking, Effects, m.Configure, Reload, Remesh, m.Define, m.Drop, m.Run, m.Put, m.Free, m.Fetch, m.Ask,
    m.Options, m.WriteSnapshot, m.Restore, m.ConfirmTensors,
)  # fmt: skip
"""All that a client's queue may hold."""
PAUSED_MESSAGES: Final = (m.Configure, m.Run, m.Put, m.Fetch, m.WriteSnapshot, m.Restore, m.ConfirmTensors)
"""The messages of a session that wait while an operator has paused it: what gives its workers something to do."""


class Wait(NamedTuple):
    """A wait: the types of message that may be in it, and the condition that holds as long as it lasts."""

    messages: tuple[type, ...]
    condition: str


WAITS: Final[dict[MessageState, Wait]] = {
    WAITING_READER: Wait(CLIENT_MESSAGES, "its client has asked for as much as may be that it has not read"),
    WAITING_TURN: Wait(
        CLIENT_MESSAGES, "it takes several turns, or messages before it have taken a whole one; a job goes on with it"
    ),
    WAITING_WORKERS: Wait(
        (Recovery, m.Run, m.Put, m.Configure, Reload, Remesh, m.Ask, m.WriteSnapshot, m.Restore),
        "not all expected workers have joined",
    ),
    WAITING_CONFIG: Wait(
        (Recovery, Loss, m.Run, m.Put, m.Configure, Reload, Remesh, m.Restore),
        "a job reads the config, works out what it asks for on the workers, or makes the session's tensor table anew",
    ),
    WAITING_DEFINITION: Wait((m.Define,), "a job reads the definition"),
    WAITING_STRATEGY: Wait((m.Run,), "a job chooses the strategies of `auto` signals"),
    WAITING_PLAN: Wait((m.Run,), "a job makes the plan, reads it, or finds out what the run changes"),
    WAITING_SEARCH: Wait((m.Run,), "a job searches the better plan that takes over at this run"),
    WAITING_COMPILATION: Wait((m.Run,), "the workers of the mesh compile other new plans first"),
    WAITING_PUT: Wait(
        (m.Run, m.Fetch, m.WriteSnapshot, m.ConfirmTensors), "a tensor that it reads has yet to arrive at a worker"
    ),
    WAITING_CREDIT: Wait((m.Run, m.Put, m.Restore), "as many plans and puts of the mesh are in flight as may be"),
    WAITING_SHARE: Wait((m.Run,), "its workers have no room for a plan, or others' plans have their turns first"),
    WAITING_ANSWERS: Wait(
        (m.Run, m.Fetch), "workers answer as many fetches of its principal as may be, and some of the session"
    ),
    WAITING_OPERATOR: Wait(PAUSED_MESSAGES, "an operator has paused the session"),
    WAITING_RATE: Wait(
        (m.Run,), "its principal has issued as many instructions as it may for now, or others of it are first"
    ),
    WAITING_IDLE: Wait((m.Configure, Reload, Remesh), "a plan or put of the session is in flight"),
    WAITING_MIGRATION: Wait((m.Configure, Reload, Remesh), "tensors of the session move to another mesh"),
    WAITING_MARK: Wait((m.Put, m.Restore), "a mark is due, and earlier puts have yet to arrive at workers"),
    WAITING_RESTORE: Wait((Recovery,), "workers have yet to give the session back what a mark has"),
}
"""The waits, in the order in which the states are declared."""

CONDITIONS: Final[dict[MessageState, str]] = {
    QUEUED: "other messages of its client are before it",
    ACTING: "its handler runs",
    DONE: "it was issued, answered or applied",
    FAILED: "it was refused or cancelled, and what it would have made has a fault",
    DROPPED: "its client left before it was acted on",
}
"""The same conditions for the other states, of which a message of any type may be in each."""

TRANSITIONS: Final[dict[MessageState, frozenset[MessageState]]] = {
    QUEUED: frozenset({ACTING, WAITING_TURN, DROPPED}),
    ACTING: frozenset({
        WAITING_READER, WAITING_TURN, WAITING_WORKERS, WAITING_CONFIG, WAITING_DEFINITION, WAITING_STRATEGY, WAITING_PLAN,
        WAITING_SEARCH, WAITING_COMPILATION, WAITING_PUT, WAITING_CREDIT, WAITING_SHARE, WAITING_ANSWERS, WAITING_OPERATOR,
        WAITING_RATE, WAITING_IDLE, WAITING_MIGRATION, WAITING_MARK, WAITING_RESTORE, DONE, FAILED,
    }),
    WAITING_READER: frozenset({ACTING, DROPPED}),
    WAITING_TURN: frozenset({ACTING, DROPPED}),
    WAITING_WORKERS: frozenset({ACTING, DROPPED}),
    WAITING_CONFIG: frozenset({ACTING, DROPPED}),
    WAITING_DEFINITION: frozenset({ACTING, DROPPED}),
    WAITING_STRATEGY: frozenset({ACTING, DROPPED}),
    WAITING_PLAN: frozenset({ACTING, DROPPED}),
    WAITING_SEARCH: frozenset({ACTING, DROPPED}),
    WAITING_COMPILATION: frozenset({ACTING, DROPPED}),
    WAITING_PUT: frozenset({ACTING, DROPPED}),
    WAITING_CREDIT: frozenset({ACTING, DROPPED}),
    WAITING_SHARE: frozenset({ACTING, DROPPED}),
    WAITING_ANSWERS: frozenset({ACTING, DROPPED}),
    WAITING_OPERATOR: frozenset({ACTING, DROPPED}),
    WAITING_RATE: frozenset({ACTING, DROPPED}),
    WAITING_IDLE: frozenset({ACTING, DROPPED}),
    WAITING_MIGRATION: frozenset({ACTING, DROPPED}),
    WAITING_MARK: frozenset({ACTING, DROPPED}),
    WAITING_RESTORE: frozenset({ACTING, DROPPED}),
    DONE: frozenset(),
    FAILED: frozenset(),
    DROPPED: frozenset(),
}  # fmt: skip
"""The states that may follow each."""


def begin(client: ClientRecord) -> None:
    """A message has reached the head of its client's queue."""
    client.head = QUEUED


def enter(client: ClientRecord, state: MessageState) -> None:
    """Change the state of the message at the head of a client's queue. Nothing else does."""
    if state not in TRANSITIONS[client.head]:
        raise RuntimeError(f"a message of client {client.number} that is {client.head} cannot be {state}")
    client.head = state


def message_states_page() -> str:
    """The states as a table in Markdown."""
    rows = ["| state | which messages | what holds meanwhile | next |", "| --- | --- | --- | --- |"]
    for state, following in TRANSITIONS.items():
        wait = WAITS.get(state)
        some = wait is not None and wait.messages is not CLIENT_MESSAGES
        kinds = ", ".join(f"`{kind.__name__}`" for kind in wait.messages) if wait and some else "all"
        said = wait.condition if wait else CONDITIONS[state]
        order = [each for each in TRANSITIONS if each in following]
        after = "any wait, done, failed" if state is ACTING else ", ".join(order) or "–"
        rows.append(f"| {state} | {kinds} | {said} | {after} |")
    return "\n".join(rows)
