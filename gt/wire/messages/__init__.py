"""Every message of GT, each a named tuple of plain values in the module of who says it, and the registry of their numbers.

Segments and plans inside messages are bytes that `gt/ir/instruction_bytes.py` reads. Bytes called `data` or `body` are always
last and travel as a frame of their own, uncopied. `codec.py` turns messages into frames and checks what arrives; `fields.py` says
what each field may hold. The docstring of a message says what it means, who sends it to whom, and what each field is, in a form
from which `documentation.py` makes the tables of `docs/protocol.md`.

A new message is a class in one of these modules, the last item of `CODES`, an item of `Message`, and one of the tuple of each
role that may send it to a dispatcher.
May import only `gt.errors`, `gt.bounds` and `gt.bounded_msgpack`.
"""

from __future__ import annotations

from typing import Any, Final

from .between_workers import Echo, Piece, Probe, Read
from .from_client import (
    Ask,
    Configure,
    ConfirmTensors,
    Define,
    Drop,
    Fetch,
    Free,
    Options,
    Put,
    RequestMark,
    Restore,
    Resume,
    Run,
    Settled,
    WriteSnapshot,
)
from .from_worker import Done, Holdings, Landed, Linked, Part, Poisoned
from .handshake import DRAINED as DRAINED
from .handshake import VERSION as VERSION
from .handshake import Goodbye, Hello, Ping, Queued, StandBy, Welcome
from .marks import FIRST_PACKED as FIRST_PACKED
from .marks import (
    DropMark,
    MarkRestored,
    MarkTaken,
    PackParts,
    PartsPacked,
    RestoreMark,
    RestoreParts,
    ShareMark,
    TakeMark,
)
from .monitoring import Events, FileProgress, Health, Record, Watch
from .multicast import TOPIC_BYTES as TOPIC_BYTES
from .multicast import Heard, Lapse, Lapsed, Subscribe, Switch, Unsubscribe, Unswitch
from .operators import AskUsage, Cancel, ControlSession, Drain, ExplainSession, HandOver, ReloadConfig, TakeOver
from .snapshots import (
    CommitSnapshot,
    DiscardParts,
    Loaded,
    LoadPart,
    ReadPublished,
    ReadSnapshots,
    RevokePublished,
    SnapshotReport,
    WritePart,
)
from .standby import CopyFile, FileCopied, Replaced
from .to_client import Answer, Credit, Cut, Durable, Failed, Notice, PeerLost, Rewind, Unkept, Value
from .to_worker import (
    ChargeMemory,
    Collect,
    DefineMesh,
    DefinePlan,
    DropMesh,
    DropPlan,
    Execute,
    Forget,
    Meet,
    Release,
    Store,
    Survey,
    UniqueId,
)

Message = (
    Hello | Welcome | Ping | Goodbye | Configure | Define | Drop | Run | Put | Free | Fetch | Ask | Credit | Cut | Value
    | Failed | Answer | DefineMesh | DropMesh | DefinePlan | DropPlan | Execute | Store | Release | Forget | Collect
    | PeerLost | Done | Poisoned | Landed | Part | Piece | Read | Options | Notice | Meet | Linked | Probe | Echo
    | Subscribe | Unsubscribe | Switch | Watch | Record | Events | Cancel | Survey | Holdings | UniqueId | Health
    | Lapse | Unswitch | Heard | Lapsed
    | WriteSnapshot | Restore | ConfirmTensors | WritePart | CommitSnapshot | DiscardParts | ReadSnapshots | LoadPart
    | SnapshotReport | Loaded
    | Resume | Settled | RequestMark | Durable | Rewind | Unkept | TakeMark | DropMark | RestoreMark | MarkTaken | MarkRestored
    | Drain | RestoreParts | StandBy | CopyFile | FileCopied | Replaced | TakeOver | HandOver | ShareMark
    | PackParts | PartsPacked | ControlSession | ReloadConfig | Queued | ChargeMemory | ReadPublished | RevokePublished
    | ExplainSession | AskUsage | FileProgress
)  # fmt: skip

CODES: Final[tuple[type[Any], ...]] = (
    Hello, Welcome, Ping, Goodbye, Configure, Define, Drop, Run, Put, Free, Fetch, Ask, Credit, Cut, Value,
    Failed, Answer, DefineMesh, DropMesh, DefinePlan, DropPlan, Execute, Store, Release, Forget, Collect,
    PeerLost, Done, Poisoned, Landed, Part, Piece, Read, Options, Notice, Meet, Linked, Probe, Echo,
    Subscribe, Unsubscribe, Switch, Watch, Record, Events, Cancel, Survey, Holdings, UniqueId, Health,
    Lapse, Unswitch, Heard, Lapsed,
    WriteSnapshot, Restore, ConfirmTensors, WritePart, CommitSnapshot, DiscardParts, ReadSnapshots, LoadPart,
    SnapshotReport, Loaded,
    Resume, Settled, RequestMark, Durable, Rewind, Unkept, TakeMark, DropMark, RestoreMark, MarkTaken, MarkRestored,
    Drain, RestoreParts, StandBy, CopyFile, FileCopied, Replaced, TakeOver, HandOver, ShareMark,
    PackParts, PartsPacked, ControlSession, ReloadConfig, Queued, ChargeMemory, ReadPublished, RevokePublished,
    ExplainSession, AskUsage, FileProgress,
)  # fmt: skip
"""A message's number on the wire is its place here: append only."""

#: What each role may send to a dispatcher, whose table `MESSAGES` decides and says what handles it; a test holds both together.
FROM_CLIENT: Final = (
    Hello, Ping, Goodbye, Configure, Define, Drop, Run, Put, Free, Fetch, Ask, Options, WriteSnapshot, Restore,
    ConfirmTensors, Resume, Settled, RequestMark,
)  # fmt: skip
FROM_WORKER: Final = (
    Hello, Ping, Goodbye, Done, Poisoned, Landed, Part, Linked, Events, Holdings, UniqueId, Heard, Lapsed,
    SnapshotReport, Loaded, MarkTaken, MarkRestored, PartsPacked,
)  # fmt: skip
FROM_PULSE: Final = (Hello, Ping, Health, FileProgress)
FROM_WATCHER: Final = (
    Hello, Ping, Goodbye, Watch, Cancel, Drain, TakeOver, HandOver, ControlSession, ReloadConfig, ExplainSession, AskUsage,
)  # fmt: skip
FROM_INQUIRER: Final = (Hello, Ping, Goodbye, ExplainSession)
FROM_STANDBY: Final = (Hello, Ping, Goodbye, FileCopied, Replaced)
