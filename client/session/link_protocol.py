"""The protocol of a connection to a dispatcher: what a session needs of it, however it is made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gt.ir.spec import Spec
from gt.wire import messages as m
from gt.wire.reliable_stream import Frames
from gt.wire.shared_memory.pool import Pool

from .bulk_puts import BulkPut

if TYPE_CHECKING:
    from gt.standby.search import StandbySearch  # it needs ZeroMQ, which `import gt` does not load


class DispatcherLink(Protocol):
    """A connection to a dispatcher: sockets (`client/session/socket_link.py`) or cores in this very
    thread (`gt/service/in_process.py`)."""

    memory: Pool
    """Where fetched arrays lie."""
    resend_bytes: int
    """The most bytes of messages to keep because they may have to be sent again; 0 if they never have to."""

    @property
    def search(self) -> StandbySearch | None:
        """For the dispatcher that may take the place of this one; None where there can be none."""

    def send(self, message: m.Message) -> Any:
        """Send one message. Never waits, never loses. Returns its frames, unless `resend_bytes` is 0."""

    def together(self) -> AbstractContextManager[None]:
        """What is sent while it lasts may leave at its end. Nothing may wait meanwhile."""

    def encode(self, message: m.Message) -> Frames:
        """The frames of a message that is sent later."""

    def send_frames(self, frames: Frames) -> None:
        """Send a message that was encoded before."""

    def receive(self) -> list[m.Message]:
        """All messages that have arrived."""

    def wait(self, timeout: float) -> None:
        """Wait until something may have arrived, at most `timeout` seconds. Called without the session's lock."""

    def prepare(self, array: np.ndarray[Any, Any], kind: Hashable) -> Any:
        """What goes by the bulk socket, or None: `array` may go with its message. `kind` is what tensors have in common that are
        cut in the same way. Called without the session's lock."""

    def has_memory(self, nbytes: int, count: int) -> bool:
        """Whether so many puts of so many bytes find memory that was used before."""

    def put_bulk(self, tensor: int, put: Any, *, later: bool = False) -> BulkPut:
        """Keep what was prepared until `cut` says where its parts go; `later`: its message is not sent yet. Returns what
        `rewind` takes."""

    def cut(self, message: m.Cut) -> None:
        """Start sending the parts of a bulk put."""

    def sending(self, tensor: int) -> bool:
        """Whether a bulk put must be waited for."""

    def under_way(self) -> tuple[int, int]:
        """(bytes moved, bytes in all) of the bulk data that is on its way, in or out."""

    def cancel(self, tensor: int) -> None:
        """Send no more of a bulk put."""

    def local_values(self, tensor: int) -> np.ndarray[Any, Any] | None:
        """The values of a tensor, not writable, if they lie in this process' memory."""

    def break_off(self, lost: int) -> None:
        """Let no bulk data that is on its way go on, in or out: worker `lost` is gone."""

    def give_up_lost(self) -> None:
        """Use memory again that a lost worker was lent."""

    def look_again(self, hello: m.Hello) -> bool:
        """Close all connections, and try to open others until a dispatcher answers, to which `hello` is said. Nothing else is
        sent until `rewind`. Returns False, and does nothing, if none will be there."""

    def found_again(self, facts: dict[str, Any]) -> None:
        """That dispatcher has answered, with these facts."""

    def rewind(self, client: int, lost: int, puts: Mapping[int, BulkPut]) -> None:
        """Break off all bulk data, and go on under another session number; the messages of `puts` are sent again. `lost` is
        the number of a worker that is gone, -1 for none, or -2 for all."""

    def offer_fetch(self, request: int, known: Spec) -> np.ndarray[Any, Any] | None:
        """The array for a fetch that is asked for now, if its worker may write there at once."""

    def settle(self, request: int) -> None:
        """A fetch is over, well or not."""

    def ignore(self, message: m.Value) -> None:
        """Hear a part that nobody waits for to its end, so that its worker need not keep it."""

    def fetch_bulk(self, message: m.Value, array: np.ndarray[Any, Any], done: Callable[[], None]) -> None:
        """Receive a part of `array` into its place; `done` when it is there."""

    def silent_seconds(self) -> float:
        """The seconds since the dispatcher was last heard."""

    def alive(self) -> str | None:
        """None, or why the service cannot answer any more."""

    def close(self) -> None:
        """End the connection."""
