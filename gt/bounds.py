"""The bounds of what one peer may say to another: one table for decoders, config and the dispatcher's core.

What is beyond a bound is refused before anything is allocated or computed for it. `docs/protocol.md` prints the table, which
`bounds_page` writes. Programs stay within these bounds by themselves: a client cuts its segments and splits its messages.
"""

from __future__ import annotations

from typing import Final, NamedTuple

KIB: Final = 1 << 10
MIB: Final = 1 << 20

# bytes

MAX_HELLO_BYTES: Final = 64 * KIB
MAX_CONTROL_BYTES: Final = 64 * KIB
MAX_RUN_BYTES: Final = 1 * MIB
MAX_FREE_BYTES: Final = 256 * KIB
MAX_CONFIG_BYTES: Final = 256 * KIB
MAX_EVENTS_BYTES: Final = 1 * MIB
MAX_HOLDINGS_BYTES: Final = 4 * MIB
MAX_ANSWER_BYTES: Final = 16 * MIB
MAX_INLINE_BYTES: Final = 64 * KIB
MAX_BULK_BYTES: Final = 1 * MIB
MAX_DEFINITION_BYTES: Final = 8 * MIB
MAX_ALL_DEFINITIONS_BYTES: Final = 64 * MIB
MAX_SNAPSHOT_BYTES: Final = 256 * KIB
MAX_STATE_BYTES: Final = 4 * MIB
MAX_MANIFEST_BYTES: Final = 8 * MIB
MAX_PIECE_BYTES: Final = 1 << 31
MAX_INSTRUCTION_BYTES: Final = 64 * KIB
MAX_TAG_BYTES: Final = 256 * KIB
MAX_PRINCIPAL_DEFINITIONS_BYTES: Final = 2048 * MIB
MAX_WAITING_BYTES: Final = 256 * MIB
MAX_PRINCIPAL_WAITING_BYTES: Final = 1024 * MIB
MAX_UNREAD_BYTES: Final = 8 * MIB
MAX_UNREAD_BULK_BYTES: Final = 128 * MIB
MAX_PRINCIPAL_UNREAD_BYTES: Final = 64 * MIB
MAX_PRINCIPAL_UNREAD_BULK_BYTES: Final = 1024 * MIB
MAX_SENT_BULK_BYTES: Final = 1024 * MIB
MAX_UNFINISHED_BYTES: Final = 64 * MIB

# counts

MAX_FRAMES: Final = 2
MAX_IDS: Final = 1 << 13
MAX_SCALARS: Final = 1 << 15
MAX_PATH_DEPTH: Final = 128
MAX_PATH_LENGTH: Final = 4096
MAX_NAME_LENGTH: Final = 200
MAX_SITE_LENGTH: Final = 4096
MAX_FAULT_LENGTH: Final = 1 << 13
MAX_INSTRUCTIONS: Final = 1 << 14
MAX_TAGS: Final = MAX_INSTRUCTIONS
MAX_INPUTS: Final = 1 << 13
MAX_OPERANDS: Final = 1 << 9
MAX_ALL_OPERANDS: Final = 1 << 17
MAX_DEADLINES: Final = 64
MAX_PIPELINE_STEPS: Final = 1 << 20
MAX_SEGMENTS: Final = 1 << 14
MAX_QUEUED_MESSAGES: Final = 1 << 16
MAX_TENSORS: Final = 1 << 17
MAX_WORKER_EVENTS: Final = 1 << 11
MAX_RULES: Final = 1 << 10
MAX_PATTERNS: Final = 64
MAX_NAMED_WORKERS: Final = 1 << 12
MAX_MICROBATCHES: Final = 1 << 10


class Bound(NamedTuple):
    """One bound: its name here, what is counted, and of what."""

    name: str
    unit: str
    meaning: str


BOUNDS: Final = (
    Bound("MAX_HELLO_BYTES", "bytes", "the only message of a peer that has not said `Hello`"),
    Bound("MAX_CONTROL_BYTES", "bytes", "the first frame of a message to the dispatcher, of a type that is not named below"),
    Bound("MAX_RUN_BYTES", "bytes", "that of a `Run`"),
    Bound("MAX_FREE_BYTES", "bytes", "that of a `Free`"),
    Bound("MAX_CONFIG_BYTES", "bytes", "that of a `Configure`"),
    Bound("MAX_EVENTS_BYTES", "bytes", "that of a worker's `Events`"),
    Bound("MAX_HOLDINGS_BYTES", "bytes", "that of a worker's `Holdings`"),
    Bound("MAX_ANSWER_BYTES", "bytes", "the first frame of a message from the dispatcher"),
    Bound("MAX_INLINE_BYTES", "bytes", "values in a message to the dispatcher; larger ones go by the bulk socket"),
    Bound("MAX_BULK_BYTES", "bytes", "a chunk of larger values, and so any frame on the dispatcher's bulk socket"),
    Bound("MAX_DEFINITION_BYTES", "bytes", "the segment of a `Define`, and so any frame on the dispatcher's control socket"),
    Bound("MAX_ALL_DEFINITIONS_BYTES", "bytes", "the segments of all definitions that one session has at a time"),
    Bound("MAX_PRINCIPAL_DEFINITIONS_BYTES", "bytes", "the same of one principal; beyond it each session has an equal part"),
    Bound("MAX_SNAPSHOT_BYTES", "bytes", "the first frame of a `WriteSnapshot` or `ConfirmTensors`, which list ids"),
    Bound("MAX_STATE_BYTES", "bytes", "what is no tensor in a `WriteSnapshot`, and the names of its tensors"),
    Bound("MAX_MANIFEST_BYTES", "bytes", "the manifest of a snapshot, in its file and in a worker's `SnapshotReport`"),
    Bound("MAX_PIECE_BYTES", "bytes", "the second frame of a message to a client or worker"),
    Bound("MAX_INSTRUCTION_BYTES", "bytes", "one instruction of a definition, or the spec of one input"),
    Bound("MAX_TAG_BYTES", "bytes", "one tag of a definition"),
    Bound("MAX_UNREAD_BYTES", "bytes", "what one client has fetched and not read; nothing else is done for it meanwhile"),
    Bound("MAX_UNREAD_BULK_BYTES", "bytes", "what one client has granted or not read on the bulk socket; further grants wait"),
    Bound("MAX_PRINCIPAL_UNREAD_BYTES", "bytes", "the first of the two of all clients of one principal: each has an equal part"),
    Bound("MAX_PRINCIPAL_UNREAD_BULK_BYTES", "bytes", "the same of the second"),
    Bound("MAX_SENT_BULK_BYTES", "bytes", "what one client has sent there and workers have not read"),
    Bound("MAX_WAITING_BYTES", "bytes", "the messages in the queue of one client, behind the first"),
    Bound("MAX_PRINCIPAL_WAITING_BYTES", "bytes", "the same of one principal; beyond it each client has an equal part"),
    Bound("MAX_UNFINISHED_BYTES", "bytes", "growth of the dispatcher; beyond it, connections with endless messages are ended"),
    Bound("MAX_FRAMES", "frames", "one message on a control socket; further ones are dropped"),
    Bound("MAX_IDS", "tensors", "each list of ids in a message: inputs, dying, freed"),
    Bound("MAX_SCALARS", "numbers", "the run-time scalars of a segment"),
    Bound("MAX_PATH_DEPTH", "names", "a path of signals"),
    Bound("MAX_PATH_LENGTH", "characters", "its names, with slashes between them"),
    Bound("MAX_NAME_LENGTH", "characters", "the name of a signal"),
    Bound("MAX_SITE_LENGTH", "characters", "the site of an instruction"),
    Bound("MAX_FAULT_LENGTH", "characters", "the text of an error in a message; the rest is cut off"),
    Bound("MAX_INSTRUCTIONS", "instructions", "a definition"),
    Bound("MAX_TAGS", "tags", "a definition"),
    Bound("MAX_INPUTS", "tensors", "the inputs of a definition"),
    Bound("MAX_OPERANDS", "operands", "one instruction"),
    Bound("MAX_ALL_OPERANDS", "operands", "all instructions of a definition"),
    Bound("MAX_DEADLINES", "hints", "the deadlines around one instruction"),
    Bound("MAX_PIPELINE_STEPS", "instructions", "a pipelined plan, each counted once for each microbatch"),
    Bound("MAX_SEGMENTS", "definitions", "one session at a time"),
    Bound("MAX_QUEUED_MESSAGES", "messages", "the queue of one client"),
    Bound("MAX_TENSORS", "tensors", "one session at a time"),
    Bound("MAX_WORKER_EVENTS", "events", "one `Events` of a worker"),
    Bound("MAX_RULES", "signals", "the rules of a config"),
    Bound("MAX_PATTERNS", "signals", "the rules of a config whose names are patterns"),
    Bound("MAX_NAMED_WORKERS", "workers", "the workers that one rule names"),
    Bound("MAX_MICROBATCHES", "parts", "the microbatches of a pipeline"),
)  # fmt: skip


def value_of(bound: Bound) -> int:
    """The number that a row stands for."""
    value = globals()[bound.name]
    assert type(value) is int
    return value


def shown(number: int, unit: str) -> str:
    """A bound as people read it: bytes in KiB or MiB, other numbers with commas."""
    if unit == "bytes":
        return f"{number // MIB:,} MiB" if number % MIB == 0 else f"{number // KIB} KiB"
    return f"{number:,} {unit}"


def bounds_page() -> str:
    """The table in Markdown, as `docs/protocol.md` has it."""
    rows = ["| bound | at most | of what |", "| --- | --- | --- |"]
    rows += [f"| `{each.name}` | {shown(value_of(each), each.unit)} | {each.meaning} |" for each in BOUNDS]
    return "\n".join(rows)
