"""The orders of operators: cancelling work, controlling sessions, draining workers, reloading the config, handing over.

Whether somebody may give an order is decided here, whatever a monitor shows: the principal of a watcher must have the role
operator, and the service must offer it. Each order is in the audit trail, also one that was refused; a mere question is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.dispatcher.pacing.priority import Priority
from gt.dispatcher.state.records import ClientRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.dispatcher.telemetry.subscribers import Watcher
from gt.errors import SessionError
from gt.sharding.options import LARGEST_WEIGHT, LEAST_WEIGHT, PRIORITIES
from gt.wire import messages as m

from .audit import AuditRecord, AuditTrail

if TYPE_CHECKING:
    from gt.dispatcher.handlers.drain import DrainHandler
    from gt.dispatcher.handlers.message_queues import MessageQueues

    from .hand_over import HandOvers

PAUSED_NOTICE: Final = (
    "an operator has paused this session: what it asks for waits, without an error, until an operator lets it go on"
)
RESUMED_NOTICE: Final = "an operator lets this session go on"
ENDED_TEXT: Final = "an operator has ended this session"
MAX_ENDED: Final = 1024
"""Of how many sessions it is remembered that they were ended."""
Facts = dict[str, Any]


class Reread(NamedTuple):
    """Somebody who waits for the config to be read again."""

    watcher: Watcher
    request: int


class OperatorOrders:
    """All orders. The `capabilities` among `facts` say which of them the service offers."""

    def __init__(
        self, service: DispatcherState, queues: MessageQueues, drains: DrainHandler, hand_overs: HandOvers,
        facts: dict[str, Any],
    ) -> None:  # fmt: skip
        self.service = service
        self.queues = queues
        self.drains = drains
        self.hand_overs = hand_overs
        self.facts = facts
        self.audit = AuditTrail()
        self.rereads: list[Reread] = []
        """Who has asked that the shell reads the config again."""
        self.ended: dict[bytes, None] = {}
        """The connections of the last sessions that were ended: whoever says something there, as after a cut, is told again."""

    def handle(self, watcher: Watcher, message: Any) -> None:
        """Act on an order, if its sender may give it, and answer."""
        order = ORDERS[type(message)]
        if order.capability not in self.facts["capabilities"] or not watcher.operates:
            text = f"only an operator {order.forbidden}: whoever runs the service, or a key with that role (docs/security.md)"
            self._note(watcher, message, "refused", text)
            self.service.send(watcher.identity, m.Failed(message.request, "SessionError", text))
            return
        try:
            facts = order.act(self, watcher, message)
        except SessionError as error:
            self._note(watcher, message, "failed", str(error))
            self.service.send(watcher.identity, m.Failed(message.request, "SessionError", str(error)))
            return
        if facts is not None:
            if order.acts(message):
                self._note(watcher, message, "done", "")
            self.service.send(watcher.identity, m.Answer(message.request, facts))

    def reread(self, error: str) -> None:
        """The shell has read the config again, or it stays as it was because of an error. Answer who has asked for that."""
        asked, self.rereads = self.rereads, []
        for watcher, request in asked:
            message = m.ReloadConfig(request)
            self._note(watcher, message, "failed" if error else "done", error)
            answer = m.Failed(request, "ConfigError", error) if error else m.Answer(request, {})
            self.service.send(watcher.identity, answer)

    def _note(self, watcher: Watcher, message: Any, outcome: str, text: str) -> None:
        action, subject, value = ORDERS[type(message)].words(message)
        who, process = watcher.program
        record = AuditRecord(who, _name(process), action, subject, value, outcome, text)
        if self.audit.note(record, self.service.now) and outcome == "refused":
            self.service.log("warning", f"refused to {action} {subject} for {who}: {text}", "refused")

    def _client(self, number: int) -> ClientRecord:
        found = self.service.by_number.get(number)
        if found is None:
            raise SessionError(f"client {number} is not there (any more)")
        return found

    def _cancel(self, _watcher: Watcher, message: m.Cancel) -> Facts:
        return self.queues.cancel(self._client(message.client))

    def _drain(self, _watcher: Watcher, message: m.Drain) -> Facts:
        return self.drains.ask(message.worker, begin=message.begin)

    def _hand_over(self, _watcher: Watcher, message: m.HandOver) -> Facts:
        return self.hand_overs.ask(begin=message.begin, end=message.end)

    def _take_over(self, _watcher: Watcher, _message: m.TakeOver) -> Facts:
        raise SessionError("this dispatcher serves already: take over at the address of the one that stands by for it")

    def _reload(self, watcher: Watcher, message: m.ReloadConfig) -> None:
        """Have the shell read the config again, and answer then."""
        self.rereads.append(Reread(watcher, message.request))

    def _control(self, watcher: Watcher, message: m.ControlSession) -> Facts:
        client = self._client(message.client)
        said = self.control(client, message.action, message.value)
        text = f"client {client.number} {said}, by order of {watcher.program.principal}"
        self.service.log("warning", text, "operator", client.number)
        return {
            "client": client.number,
            "priority": str(client.priority),
            "weight": client.weight,
            "paused": client.paused,
        }

    def control(self, client: ClientRecord, action: str, value: str) -> str:
        """Act on an order to a session. Returns what is so now, in words. Raises `SessionError`."""
        act = CONTROLS.get(action)
        if act is None:
            raise SessionError(f"{action[:20]!r} is none of {', '.join(CONTROLS)}")
        said = act(self, client, value)
        self.service.unsaved.append(client)
        return said

    def _pause(self, client: ClientRecord, _value: str) -> str:
        if client.paused:
            return "stays paused"
        client.paused = True
        self.service.send(client.identity, m.Notice(PAUSED_NOTICE))
        return "is paused"

    def _resume(self, client: ClientRecord, _value: str) -> str:
        if not client.paused:
            return "was not paused"
        client.paused = False
        self.service.send(client.identity, m.Notice(RESUMED_NOTICE))
        self.queues.pump(client)
        return "goes on"

    def _end(self, client: ClientRecord, _value: str) -> str:
        self.service.ending[client.identity] = ENDED_TEXT
        self.ended[client.identity] = None
        if len(self.ended) > MAX_ENDED:
            del self.ended[next(iter(self.ended))]
        return "is ended"

    def _prioritise(self, client: ClientRecord, value: str) -> str:
        if value not in PRIORITIES:
            raise SessionError(f"class {value[:20]!r} is none of {', '.join(PRIORITIES)}")
        client.priority, client.ordered = Priority(value), client.ordered | {"priority"}
        self.service.pacer.declare(client.number, client.priority, client.weight)
        return f"is of the class {value}"

    def _weigh(self, client: ClientRecord, value: str) -> str:
        try:
            weight = float(value)
        except ValueError:
            weight = 0.0
        if not LEAST_WEIGHT <= weight <= LARGEST_WEIGHT:
            raise SessionError(f"weight {value[:20]!r} is no number from {LEAST_WEIGHT:g} to {LARGEST_WEIGHT:g}")
        client.weight, client.ordered = weight, client.ordered | {"weight"}
        self.service.pacer.declare(client.number, client.priority, client.weight)
        return f"weighs {weight:g}"


class Order(NamedTuple):
    """What is known of one kind of order: what the service must offer, how a refusal goes on after 'only an operator', what acts
    on it (None: it is answered later), its action, subject and value in words, and whether one is more than a question."""

    capability: str
    forbidden: str
    act: Callable[[OperatorOrders, Watcher, Any], Facts | None]
    words: Callable[[Any], tuple[str, str, str]]
    acts: Callable[[Any], bool] = lambda message: True


CONTROLS: Final[dict[str, Callable[[OperatorOrders, ClientRecord, str], str]]] = {
    "pause": OperatorOrders._pause,
    "resume": OperatorOrders._resume,
    "end": OperatorOrders._end,
    "priority": OperatorOrders._prioritise,
    "weight": OperatorOrders._weigh,
}
"""What an operator may do with a session."""

ORDERS: Final[dict[type, Order]] = {
    m.Cancel: Order(
        "cancel", "cancels work", OperatorOrders._cancel, lambda order: ("cancel", f"client {order.client}", "")
    ),
    m.ControlSession: Order(
        "control sessions",
        "controls sessions",
        OperatorOrders._control,
        lambda order: (order.action, f"client {order.client}", order.value),
    ),
    m.Drain: Order(
        "drain",
        "drains workers",
        OperatorOrders._drain,
        lambda order: ("drain", f"worker {order.worker}", ""),
        lambda order: bool(order.begin),
    ),
    m.ReloadConfig: Order(
        "reload", "has the config read again", OperatorOrders._reload, lambda order: ("reload", "config", "")
    ),
    m.HandOver: Order(
        "restart",
        "restarts it",
        OperatorOrders._hand_over,
        lambda order: ("restart", "dispatcher", "end" if order.end else "begin" if order.begin else ""),
        lambda order: bool(order.begin or order.end),
    ),
    m.TakeOver: Order(
        "take over", "has another dispatcher take over", OperatorOrders._take_over,
        lambda order: ("take over", "dispatcher", ""),
    ),
}  # fmt: skip
"""By type of message."""


def _name(process: object) -> str:
    """What tells a program apart from others of its principal: its process id, or what it says."""
    if isinstance(process, int):
        return str(process)
    if isinstance(process, tuple):
        return " ".join(map(str, process))
    return process.hex() if isinstance(process, bytes) else str(process)
