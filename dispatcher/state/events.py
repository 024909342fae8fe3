"""The events that the dispatcher's core takes, and the `Send`s that it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.wire import messages as m
from gt.wire.principals import OWN_PROCESS, Origin
from gt.wire.shared_memory.running_plan import RunningPlan

if TYPE_CHECKING:
    from gt.dispatcher.limits.limit_table import LimitTable
    from gt.sharding.config import Config
    from gt.wire.faults import Fault

    from .config_resolution import SharedComputation
    from .mark_bytes import SessionCard
    from .records import WorkerRecord
    from .session_marks import SessionMark, TableCopy


class Send(NamedTuple):
    """One message for a group of peers, all of which get the same bytes."""

    to: tuple[bytes, ...]
    message: m.Message


class Received(NamedTuple):
    """The next message of a peer's stream: each comes once, and in order. `origin` is told with a `Hello`."""

    peer: bytes
    message: Any
    unread: int = 0
    """The bytes that were sent to the peer and that it has not acknowledged."""
    origin: Origin = OWN_PROCESS


class Malformed(NamedTuple):
    """A peer sent something that is not a message; `bulk`: it is named by its bulk identity."""

    peer: bytes
    reason: str
    bulk: bool = False


class Lost(NamedTuple):
    """A peer is gone. `ended` means that its process has certainly ended, though messages of it may still be unread."""

    peer: bytes
    reason: str
    ended: bool = False


class WorkerLoss(NamedTuple):
    """How a worker was lost: whether it `returns` (it is being started again), has `failed` by itself (a device, a bug), and the
    plan that it was computing; None if there was none, or nobody knows."""

    returns: bool = False
    failed: bool = False
    plan: RunningPlan | None = None


NO_WORKER_LOSS: Final = WorkerLoss()
"""Of a peer that leaves in order, or is no worker."""


class ShellError(NamedTuple):
    """The shell met an unexpected exception with a message from this peer, or to it; `bulk`: it is named by its bulk identity."""

    peer: bytes
    what: str
    error: Exception
    bulk: bool = False


class Tick(NamedTuple):
    """Time has passed."""


class Due(NamedTuple):
    """The time has come for which the core has asked (`DispatcherCore.wakes_at`)."""


class JobTurn(NamedTuple):
    """The shell is idle: do one turn of the waiting jobs."""


class Publish(NamedTuple):
    """Send watchers the events so far. `wall` is the wall clock in nanoseconds since 1970."""

    wall: int


class Reload(NamedTuple):
    """The service has a new config. It applies to all sessions, under the configs that they sent themselves."""

    config: Config


class ConfigRead(NamedTuple):
    """The shell has read the config again because operators have asked for it, or cannot (`error`). A new one was told before."""

    error: str


class NewLimits(NamedTuple):
    """The operator's file of limits says something else. It applies to all principals, from now on."""

    table: LimitTable


class SessionWritten(NamedTuple):
    """The shell has written the file of a mark, or cannot (`fault`). `nanoseconds`: what that took."""

    mark: int
    fault: Fault | None
    nanoseconds: int


class SessionRead(NamedTuple):
    """The shell has read the file of a session that comes back, or cannot."""

    client: int
    mark: SessionMark | None
    fault: Fault | None


class WriteSession(NamedTuple):
    """For the shell: write the file of a session; `state` is its mark, None if it has none yet."""

    card: SessionCard
    state: SessionMark | None


class ReadSession(NamedTuple):
    """For the shell: read the mark of a session that is `client` now."""

    client: int
    key: bytes
    mark: int


class DropSession(NamedTuple):
    """For the shell: remove the file of a mark, or of a session without one (`mark` 0). `last`: the session has ended."""

    key: bytes
    mark: int
    last: bool = False


class ListFiles(NamedTuple):
    """For the shell: say which files of sessions there are, for a standby."""

    peer: bytes


class ReadFile(NamedTuple):
    """For the shell: read a file of the folder, for a standby."""

    peer: bytes
    name: str


class FilesListed(NamedTuple):
    """The names of the files of sessions."""

    peer: bytes
    names: tuple[str, ...]


class FileRead(NamedTuple):
    """The bytes of a file; None: it is not there."""

    peer: bytes
    name: str
    data: bytes | None


class Remesh(NamedTuple):
    """A session makes its mesh anew on the workers that are in service now, because one has joined or is to leave; or it goes on
    on another worker, `to`, because it would be faster there."""

    why: str
    to: int = -1


class Recovery(NamedTuple):
    """A session goes back to a mark. It is the first in the queue of its new incarnation."""

    mark: SessionMark


class Loss(NamedTuple):
    """A session has lost a worker, of which this is `said`. It is the first in its queue: either the session goes back, or it is
    found out what is left of its tensors."""

    worker: WorkerRecord
    said: str
    loss: WorkerLoss

    @property
    def fault(self) -> Fault:
        """The error of what is lost."""
        return "WorkerLost", f"{self.said}; what it held is gone"


class Marking(NamedTuple):
    """A mark of a session with many tensors is due. It is the first in the queue: all else waits until the table is copied."""

    copy: TableCopy


class Effects(NamedTuple):
    """A run was issued that changes much of its session's tensor table: all that is behind it waits until that is done."""

    change: SharedComputation[None]


OWN_MESSAGES: Final = (Recovery, Reload, Remesh, Loss, Marking, Effects)
"""What is in the queues of clients and was sent by none of them."""
Event = (
    Received
    | Malformed
    | Lost
    | ShellError
    | Tick
    | Due
    | Publish
    | Reload
    | ConfigRead
    | NewLimits
    | JobTurn
    | SessionWritten
    | SessionRead
    | FilesListed
    | FileRead
)
