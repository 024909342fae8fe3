"""The clients' message queues. Each client's messages are processed in order; a message that must wait delays only those of
its own client.

What a run, a put or a fetch does is in `running.py`, `putting.py` and `fetching.py`.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from gt.dispatcher.state.events import Reload
from gt.dispatcher.state.records import Client
from gt.dispatcher.state.shared_state import Service
from gt.errors import DTypeError, GTError, ProtocolError, ShapeError
from gt.ir.instruction_bytes import segment_in_turns, unpack_segment
from gt.sharding.options import check_options
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.messages import Fault, fault_of

from .fetches import Fetches
from .memory_survey import Surveys, devices
from .plan_selection import Preparing
from .puts import Puts
from .runs import Runs, dead
from .session_mesh import Meshes
from .why import why

MAX_QUEUE: Final = 1 << 18
"""The most messages of one client that may wait; a client that respects its credits never comes near."""
MAX_SEGMENTS: Final = 1 << 14
"""The most definitions of one session; a client drops its own long before."""
MAX_WAITING: Final = 1 << 28
"""The most bytes of one client's waiting puts, besides one that may be as large as a frame."""
CANCELLED: Final[Fault] = (
    "Cancelled",
    "cancelled from a monitor: what the session had asked for and had not begun is dropped",
)
_REFUSED: Final = (ProtocolError, ShapeError, DTypeError)
"""The errors with which an invalid definition is refused."""


class Streams:
    """The queues of all clients."""

    def __init__(
        self, service: Service, prepared: Preparing, meshes: Meshes, runs: Runs, puts: Puts, fetches: Fetches,
        surveys: Surveys,
    ) -> None:  # fmt: skip
        self.service = service
        self.prepared = prepared
        self.meshes = meshes
        self.runs = runs
        self.puts = puts
        self.fetches = fetches
        self.surveys = surveys

    def take(self, client: Client, message: Any) -> None:
        """Queue a client's next message. Raises `ProtocolError` if its stream cannot be trusted any more."""
        if isinstance(message, m.Ask) and message.topic.startswith("why "):
            self._why(client, message)  # what holds up the queue may be the question
        elif len(client.queue) >= MAX_QUEUE:
            raise ProtocolError(f"more than {MAX_QUEUE} messages waiting: credits were ignored")
        elif client.queue and isinstance(message, m.Put) and _waiting(client) + len(message.data) > MAX_WAITING:
            raise ProtocolError(f"more than {MAX_WAITING} bytes waiting: credits were ignored")
        else:
            client.queue.append(message)
            if len(client.queue) == 1:
                self.pump(client)

    def reload(self, event: Reload) -> None:
        """Adopt a new config of the service; each session follows in its turn."""
        if self.meshes.reload(event.config):
            for client in list(self.service.clients.values()):
                client.queue.append(event)
                if len(client.queue) == 1:
                    self.pump(client)

    def pump_all(self) -> None:
        """Process the queues of all clients as far as possible."""
        for client in list(self.service.clients.values()):
            self.pump(client)

    def pump(self, client: Client) -> None:
        """Process a client's queue, in order, as far as possible."""
        queue = client.queue
        while queue and client.identity in self.service.clients:
            message = queue[0]
            try:
                if client.cancelled and isinstance(message, (m.Run, m.Put, m.Fetch)):
                    client.cancelled = not isinstance(message, m.Fetch)
                    raise m.error_of(*CANCELLED)
                if not self._act(client, message):
                    return
            except GTError as error:
                self._fail(client, message, fault_of(error))
            if queue and queue[0] is message:
                queue.popleft()

    def _act(self, client: Client, message: Any) -> bool:
        """Process one message of a client. False if it must wait."""
        if isinstance(message, m.Run):
            return self.runs.run(client, message)
        if isinstance(message, m.Put):
            return self.puts.put(client, message)
        if isinstance(message, m.Free):
            self.runs.free(client, message.tensors)
        elif isinstance(message, m.Fetch):
            return self.fetches.fetch(client, message)
        elif isinstance(message, m.Define):
            return self._define(client, message)
        elif isinstance(message, m.Drop):
            self._drop(client, message.segment)
        elif isinstance(message, m.Configure):
            return self.meshes.configure(client, message)
        elif isinstance(message, Reload):
            return self.meshes.reconfigure(client)
        elif isinstance(message, m.Options):
            self._options(client, message.values)
        elif isinstance(message, m.Ask) and message.topic == "memory":
            return self.surveys.ask(client, message.request)
        elif isinstance(message, m.Ask) and message.topic == "devices":
            if not self.service.ready(client):
                return False
            self.service.send(client.identity, m.Answer(message.request, devices(self.service)))
        elif isinstance(message, m.Ask):
            self.service.send(client.identity, m.Answer(message.request, self.service.statistics(client)))
        return True

    def _fail(self, client: Client, message: Any, fault: Fault) -> None:
        """Note that a message failed; whatever it would have created inherits the fault."""
        if self.service.recording is not None:
            self.service.recording.failed(t.DISPATCHER, client.number, -1, *fault)
        if isinstance(message, m.Run):
            segment = client.segments.get(message.segment)
            client.arrived += 1
            if segment is not None and not isinstance(segment, tuple):
                self.runs.poison(client, message, segment, fault)
            else:
                self.service.send(client.identity, m.Failed(0, *fault))
                self.runs.free(client, dead(message))
            self.service.credit(client)
        elif isinstance(message, m.Put):
            self.puts.fail(client, message, fault)
        elif isinstance(message, (m.Fetch, m.Ask, m.Configure)):
            self.service.send(client.identity, m.Failed(message.request, *fault))
        elif isinstance(message, Reload):
            text = f"client {client.number} stays with the config that it had: {fault[1]}"
            self.service.log("warning", text, "reload", client.number)
        else:
            self.service.send(client.identity, m.Failed(0, *fault))

    def cancel(self, client: Client) -> dict[str, int]:
        """Drop what a client asked for and was not issued. Returns how many messages of each kind.

        What workers already have runs to its end, and its results stay valid. The client learns of it by its fetches: the
        waiting ones fail, or else its next one.
        """
        dropped = {"runs": 0, "puts": 0, "fetches": self.fetches.fail(client, CANCELLED)}
        waiting, client.queue = client.queue, deque()
        for message in waiting:
            if isinstance(message, (m.Configure, Reload)):
                client.queue.append(message)  # it may have begun, and is not work
                continue
            try:
                if isinstance(message, (m.Run, m.Put, m.Fetch)):
                    dropped[
                        "runs" if isinstance(message, m.Run) else "puts" if isinstance(message, m.Put) else "fetches"
                    ] += 1
                    raise m.error_of(*CANCELLED)
                if isinstance(message, m.Define):
                    _check_definition(client, message.segment)
                    self._defined(client, message, _read(message))  # for the runs behind it, which are dropped at once
                else:
                    self._act(client, message)
            except GTError as error:
                self._fail(client, message, fault_of(error))
        client.cancelled = not dropped["fetches"]
        what = ", ".join(f"{count} {what}" for what, count in dropped.items())
        text = f"client {client.number} was cancelled from a monitor: {what} dropped"
        self.service.log("warning", text, "cancelled", client.number)
        self.pump(client)
        return dropped

    def _why(self, client: Client, ask: m.Ask) -> None:
        try:
            answer: m.Message = m.Answer(ask.request, why(self.service, self.prepared, client, ask.topic))
        except ProtocolError as error:
            answer = m.Failed(ask.request, *fault_of(error))
        self.service.send(client.identity, answer)

    def _options(self, client: Client, values: dict[str, Any]) -> None:
        said = check_options(values)  # of which some are the client's own
        client.verify = said.get("verify", client.verify)
        if said.get("tf32", client.tf32) != client.tf32:
            client.tf32 = not client.tf32
            self.prepared.drop_plans(client)

    def _define(self, client: Client, message: m.Define) -> bool:
        """Read a definition. False while a job reads it."""
        _check_definition(client, message.segment)
        body, key = message.body, ("definition", message.segment)
        found = self.prepared.worked_out(client, "a definition", key, lambda: segment_in_turns(body))
        if found is not None:
            self._defined(client, message, found)
        return found is not None

    def _defined(self, client: Client, message: m.Define, found: Any) -> None:
        """A definition was read, or failed with this error."""
        if not isinstance(found, Exception):
            client.segments[message.segment] = found
            if self.service.recording is not None:
                self.service.recording.defined(client)
            return
        self.service.counters.refused += 1
        client.segments[message.segment] = fault_of(found)
        text = f"refused a definition of client {client.number}: {found}"
        self.service.log("warning", text, "refused", client.number)

    def _drop(self, client: Client, number: int) -> None:
        client.segments.pop(number, None)
        self.prepared.drop_segment(client, number)


def _check_definition(client: Client, number: int) -> None:
    if number in client.segments:
        raise ProtocolError(f"segment {number} is defined already")
    if len(client.segments) >= MAX_SEGMENTS:
        raise ProtocolError(f"more than {MAX_SEGMENTS} definitions in one session")


def _read(message: m.Define) -> Any:
    """The segment of a definition, or the error with which it is refused."""
    try:
        return unpack_segment(message.body)
    except _REFUSED as error:
        return error


def _waiting(client: Client) -> int:
    """The bytes of a client's waiting puts."""
    return sum(len(message.data) for message in client.queue if isinstance(message, m.Put))
