"""What must hold between the processes of a simulated service, and no core can see for itself.

* All members of a mesh take a mark between the same two orders.
* Orders, and the numbers of meshes and marks, are never given twice, whichever dispatcher gives them.
* A message leaves the resend buffer of its session only when a mark has it of which the dispatcher has said that it is whole.
* A request is answered once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import gt.client.session.session
import gt.dispatcher.handlers.marks
from gt.client.session.future import Future
from gt.client.session.resend_buffer import ResendBuffer
from gt.dispatcher.session_meshes.mesh_registry import MeshRegistry
from gt.dispatcher.state.shared_state import DispatcherState
from gt.wire import messages as m
from gt.worker.core import WorkerCore

from .substitutes import Substitutes


class Witness:
    """Hears of what all processes do. What does not hold is added to `failures`."""

    def __init__(self, failures: list[str]) -> None:
        self.failures = failures
        self.given: set[tuple[str, int]] = set()
        """The numbers that were given, by what they are of."""
        self.places: dict[int, int] = {}
        """By mark: the last order before it."""
        self.positions: dict[int, int] = {}
        """By mark that is whole: the position of the last message that it has."""
        self.reached: WeakKeyDictionary[WorkerCore, int] = WeakKeyDictionary()
        """By worker: the last order that it has begun."""
        self.taken: WeakKeyDictionary[WorkerCore, int] = WeakKeyDictionary()
        """By worker: the place of the last mark that it has taken."""

    def expect(self, holds: bool, text: str) -> None:
        """Note what does not hold: an error that were raised in a core would only end a session."""
        if not holds:
            self.failures.append(f"what must hold between processes: {text}")

    def gives(self, what: str, number: int) -> None:
        """A dispatcher gives a number."""
        self.expect((what, number) not in self.given, f"{what} {number} is given twice")
        self.given.add((what, number))

    def acts(self, core: WorkerCore, message: Any) -> None:
        """A worker acts on a message whose turn it is."""
        if isinstance(message, m.TakeMark):
            place, reached = self.places[message.mark], self.reached.get(core, 0)
            self.expect(reached <= place, f"mark {message.mark} is after order {place}, and a worker was at {reached}")
            self.taken[core] = place
        order = getattr(message, "order", None)
        if order is not None:
            place = self.taken.get(core, 0)
            self.expect(order > place, f"order {order} comes after a mark that is taken after order {place}")
            self.reached[core] = order

    def settles(self, buffer: ResendBuffer, before: int) -> None:
        """A session has looked at what a mark has, and had dropped so many messages `before`."""
        if buffer.dropped > before:
            place = self.positions.get(buffer.mark, -1)
            self.expect(buffer.dropped <= place, f"message {buffer.dropped} is dropped, and the mark is at {place}")

    def watch(self, substitutes: Substitutes) -> None:
        """Hear of what happens from now on."""

        def beside(owner: Any, name: str, hear: Callable[..., None]) -> None:
            """Have `hear` told of each call, and of what it returned."""
            whole = getattr(owner, name)

            @wraps(whole)
            def told(*arguments: Any, **options: Any) -> Any:
                result = whole(*arguments, **options)
                hear(result, *arguments)
                return result

            substitutes.put(name, told, owner)

        def sent(_result: None, state: DispatcherState, _mesh: Any, message: m.Message) -> None:
            if isinstance(message, m.TakeMark):
                self.places[message.mark] = state.order

        def said(_result: None, _state: DispatcherState, _to: bytes, message: m.Message) -> None:
            if isinstance(message, m.Durable):
                self.positions[message.mark] = message.position

        def settle(buffer: ResendBuffer, unanswered: Any) -> int | None:
            before = buffer.dropped
            mark = whole_settle(buffer, unanswered)
            self.settles(buffer, before)
            return mark

        def act(core: WorkerCore, message: Any, now: float) -> None:
            self.acts(core, message)
            whole_act(core, message, now)

        class WatchedFuture(Future):
            """A request that notes when it is answered twice."""

            answers = 0

            def _finish(future) -> None:  # noqa: N805 — `self` is the witness
                future.answers += 1
                self.expect(future.answers == 1, f"the request for {future.what} is answered twice")
                super()._finish()

        whole_settle, whole_act = ResendBuffer.settle, WorkerCore._act
        substitutes.put("settle", settle, ResendBuffer)
        substitutes.put("_act", act, WorkerCore)
        beside(DispatcherState, "place", lambda order, *_: self.gives("order", order))
        beside(DispatcherState, "multicast", sent)
        beside(DispatcherState, "send", said)
        beside(MeshRegistry, "join", lambda _, _meshes, record: self.gives("mesh", record.mesh.number))
        beside(gt.dispatcher.handlers.marks, "capture", lambda mark, *_: self.gives("mark", mark.number))
        substitutes.put("Future", WatchedFuture, gt.client.session.session)
