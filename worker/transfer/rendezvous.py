"""The rendezvous before a joint move: its members tell each other that they are ready, and then all make the same calls.

A collective library waits forever for a missing member, and knows no faults. So nothing is called before every member has said
by a *word* (a `Piece` without data) that it stands in this move with a sound value. A missing member is noticed here, by name,
and a fault travels in place of the word, as it does in place of a piece. Since all members are in the same move at one moment,
the orders in which devices get calls cannot contradict each other, however many groups they belong to.

With its word each member says which communicator it has (`nccl.NcclGroup`). If these differ, they create the next one: the first
member makes an id, which the dispatcher passes on, and each confirms by a second word that it has joined. If some member
cannot join, all use pieces instead. A state machine like `MoveInFlight`: no message, socket or clock may be used here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gt.wire import messages as m
from gt.wire.faults import Fault
from gt.worker.nccl.collective_moves import JointMoveWork
from gt.worker.nccl.communicators import REFUSED_GENERATION, CollectiveCompletion, NcclGroup

from .move import Move, MoveInFlight, ReadyPiece, first_fault, reducer


class Rendezvous:
    """A joint move of `group` in progress on one worker. `serial` is a number that only this move has, known to all members.
    `say` sends a message to
    the dispatcher; `wake` has the core called, from another thread; `what` is the move as errors name it."""

    __slots__ = (
        "_explain", "_fault", "_group", "_held", "_joined", "_next", "_said", "_say", "_serial", "_wake", "_what", "_words",
        "_work", "_xp", "faults", "finish", "left", "move", "read", "ready", "received", "sent", "step", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        move: Move,
        held: Any,
        fault: Fault | None,
        xp: Any,
        explain: Callable[[BaseException], Fault],
        group: NcclGroup,
        serial: int,
        say: Callable[[m.Message], None],
        wake: Callable[[], None],
        what: Callable[[], str],
    ) -> None:
        assert move.joint is not None, "who meets has something to do together"
        self.move = move
        self.ready: deque[ReadyPiece] = deque()
        self.faults: dict[int, Fault] = {}
        self.read: list[list[int]] = []
        """Always empty: nothing is lent here."""
        self.sent = self.received = 0
        """The bytes of pieces: none, as words have none."""
        self.finish: CollectiveCompletion | None = None
        """When the device will have finished the move."""
        self._fault, self._held, self._xp, self._explain = fault, held, xp, explain
        self._group, self._say, self._wake, self._what = group, say, wake, what
        self._words: list[int] = []
        self._said = group.generation
        """Its own word. The others do not know of peers that it loses later."""
        self._serial = serial
        self._next = 0
        """The generation of the communicator being created, which is this move's number; 0 for none."""
        self._joined = False
        self._work: JointMoveWork | None = None
        self.left = 1
        if fault is None:
            try:
                self._work = JointMoveWork(move.joint, held, xp, reducer)
            except Exception as error:  # noqa: BLE001 — out of memory, as a rule
                fault = explain(error)
        self._begin(0, fault)

    def _begin(self, turn: int, fault: Fault | None) -> None:
        """Wait for a word of every other member in this turn, and send its own, if it is known."""
        self.step = -1 - 2 * self.move.number - turn
        """The step that words of this turn carry; no move has such a number."""
        self.waiting = dict.fromkeys(self.move.awaited, 0)
        self._words.clear()
        if fault is not None:
            self._tell(fault)
        elif turn == 0:
            self._word(self._said)

    @property
    def done(self) -> bool:
        return not self.left and not self.ready

    @property
    def fault(self) -> Fault | None:
        """Why there is no value, if there is none: this rank's own reason before another's."""
        return first_fault(self.faults, self.move.rank)

    def hear(self, source: int, word: int) -> None:
        """The word of another member."""
        if self.waiting.pop((source, 0), None) is not None:
            self._words.append(word)

    def fail(self, source: int, fault: Fault) -> None:
        """`source` sends no word, or a fault in its place."""
        self.faults.setdefault(source, fault)
        self.waiting.pop((source, 0), None)
        if source == self.move.rank:
            self._group.joining = None  # whatever comes of it

    def send_no_more(self, fault: Fault) -> None:
        """This rank cannot send its word: tell the others why."""
        self.ready.clear()
        self._tell(fault)

    def make_own(self) -> None:
        """Does nothing: no member computes anything alone."""

    def go_on(self) -> MoveInFlight | Rendezvous | None:
        """Continue. Returns the move in pieces that replaces this rendezvous, the rendezvous itself if a new turn has begun, or
        None if nothing has changed."""
        group = self._group
        if self._next and not self._joined and not self.faults:
            self._unite(group)
        if self.waiting or not self.left or self.ready:
            return None
        if self.faults:
            self.left = 0
            return None
        if REFUSED_GENERATION in (*self._words, self._said) or group.generation == REFUSED_GENERATION:
            group.refuse()
            assert self.move.apart is not None, "what is joint can be done apart"
            return MoveInFlight(self.move.apart, self._held, self._fault, self._xp, self._explain)
        if self._next:
            self.left = 0
            return None
        known = {*self._words, self._said}
        if len(known) == 1 and known != {0}:
            self.left = 0
            return None
        self._next = self._serial
        group.give_up("other members have lost theirs")
        self._begin(1, None)
        self.waiting[self.move.rank, 0] = 0
        if group.place == 0:
            try:
                unique = group.new_id(self._next)
                self._say(m.UniqueId(group.key[0], list(group.key[1]), self._next, unique))
            except Exception as error:  # noqa: BLE001 — NCCL cannot be used: all learn it
                self._refuse(error)
        return self

    def _unite(self, group: NcclGroup) -> None:
        """Join the communicator once its id is there, and report when that is done or has failed."""
        if REFUSED_GENERATION in self._words:
            self._refuse(None)
            return
        if group.unique_id[0] == self._next and (group.joining is None or group.joining.generation != self._next):
            group.join(self._wake)
        joining = group.joining
        if joining is None or joining.generation != self._next:
            return
        if joining.error is not None:
            self._refuse(joining.error)
        elif joining.made is not None:
            group.joined(joining)
            self._joined = True
            self.waiting.pop((self.move.rank, 0), None)
            self._word(self._next)

    def _refuse(self, error: Exception | None) -> None:
        """This member cannot have a communicator."""
        self._joined = True
        self._group.refuse(error)
        self.waiting.pop((self.move.rank, 0), None)
        self._word(REFUSED_GENERATION)

    def result(self) -> Any:
        """The value in its new layout, as the device will have it; `finish` tells when."""
        work = self._work
        assert work is not None, "a fault has no result"
        self.finish = self._group.run(self._what, work.begin)
        return work.end()

    def _word(self, generation: int) -> None:
        self.ready.append(ReadyPiece(generation, self.move.targets, None, None))

    def _tell(self, fault: Fault) -> None:
        self.faults[self.move.rank] = fault
        self.ready.append(ReadyPiece(0, self.move.targets, None, fault))
