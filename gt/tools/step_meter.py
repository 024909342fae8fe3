"""Measures a program's updates on real workers under one config, whatever workers and config it asks for itself.

`gt tune` runs this in a process of its own for each config (`gt/tools/tuning_process.py`). The first updates warm up caches and
compiled programs; then the workers are waited for, and again after the last update that is measured, at which the program ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gt.errors import GTError
from gt.ir.instruction_bytes import unpack_segment
from gt.wire import messages as m

from .program_run import StopProgram
from .update_counter import UpdateCounter

if TYPE_CHECKING:
    from gt.client.session.future import Future
    from gt.client.session.session import Session
    from gt.client.tensor.tensor import Tensor

RECORDED_LOSSES: Final = 2
"""Of how many backward passes the loss is recorded: the second comes after an update. Later ones are not asked for, so that the
updates which are measured are the program's own."""


@dataclass
class StepMeter:
    """One measurement of a program. `open_session` starts the session that it gets in place of the one that it asks for."""

    open_session: Callable[[], Session]
    warmup: int
    steps: int
    session: Session | None = None
    counter: UpdateCounter = field(default_factory=UpdateCounter)
    phases: dict[int, frozenset[str]] = field(default_factory=dict)
    """By the number of each segment, the phases of its instructions."""
    due: bool = False
    """Whether an update has just ended."""
    began: float = 0.0
    moved: int = 0
    """The bytes moved so far when the measurement began."""
    losses: list[Future] = field(default_factory=list)
    fetched: list[Future] = field(default_factory=list)
    """The first numbers that the program itself asked for."""
    result: dict[str, Any] | None = None

    def start(self, _config: Any, _workers: int | None) -> Session:
        """The session that the program gets. Where it starts a second one, the measurement is over."""
        from gt.client.session import sessions

        if self.session is not None:
            if sessions.active() is self.session:
                self.finish()
            raise StopProgram(0)
        self.session = session = self.open_session()
        sink, pace, fetch = session.sink, session.pace, session.fetch

        def counting_sink(messages: list[Any]) -> None:
            for message in messages:
                self.take(message)
            sink(messages)

        def measuring_pace() -> None:
            pace()
            if self.due:
                self.due = False
                self.update_ended()

        def recording_fetch(value: Any) -> Future:
            future = fetch(value)
            if value.spec.shape == () and len(self.fetched) < RECORDED_LOSSES:
                self.fetched.append(future)
            return future

        changed: dict[str, Any] = {
            "sink": counting_sink, "pace": measuring_pace, "fetch": recording_fetch,
            "configure": lambda _config: None,  # the config that is measured takes precedence
        }  # fmt: skip
        vars(session).update(changed)
        self.moved, self.began = self.moved_so_far(), time.perf_counter()
        return session

    def take(self, message: Any) -> None:
        """Notice a segment, or what a run says of updates."""
        if isinstance(message, m.Define):
            self.phases[message.segment] = frozenset(tag.phase for tag in unpack_segment(message.body).tags)
        elif isinstance(message, m.Run) and self.counter.ran(self.phases.get(message.segment, frozenset())):
            self.due = True

    def update_ended(self) -> None:
        """Begin to measure, or end and stop the program, if it is time to. Nothing is sent meanwhile."""
        if self.counter.updates == self.warmup:
            self.wait()
            self.moved, self.began = self.moved_so_far(), time.perf_counter()
        elif self.counter.updates >= self.warmup + self.steps:
            self.finish()
            raise StopProgram(0)

    def loss(self, ends: Sequence[Tensor]) -> None:
        """Record the first losses; a pass that is being captured can ask for none."""
        from gt.client.session import sessions

        if len(self.losses) < RECORDED_LOSSES and ends[0].numel() == 1 and not sessions.is_capturing():
            before = len(self.fetched)
            self.losses.append(ends[0].detach().reshape(()).fetch())
            del self.fetched[before:]  # the program did not ask for this one

    def wait(self) -> None:
        """Wait for the workers. The process has a time limit, so this needs none."""
        session = self.session
        assert session is not None, "it has started"
        session.wait_for(lambda: session.credited >= session.sent, "the workers to finish", None)

    def finish(self) -> None:
        """The result: seconds, bytes moved and the most memory of one worker, for each update that was measured."""
        if self.result is not None or self.session is None:
            return
        self.wait()
        seconds = time.perf_counter() - self.began
        self.counter.ended()
        steps = self.counter.updates - self.warmup
        if self.counter.updates and steps < 1:
            raise GTError(
                f"the program ended after {self.counter.updates} updates, and {self.warmup} are for warming up: let it make "
                "more, or say --warmup"
            )
        kind = "loss" if self.losses else "fetched number" if self.fetched else ""
        self.result = {
            "seconds": seconds / max(1, steps),
            "steps": max(0, steps),
            "moved": (self.moved_so_far() - self.moved) // max(1, steps),
            "high_water": self.high_water(),
            "compared": kind,
            "losses": [float(future.result()) for future in self.losses or self.fetched],
        }

    def moved_so_far(self) -> int:
        """The bytes that this principal's plans have moved between workers."""
        assert self.session is not None, "it has started"
        answer = self.session.usage()
        at = answer["columns"].index("moved_bytes")
        return sum(row[at] for row in answer["rows"])

    def high_water(self) -> int:
        """The most bytes that one worker has held; of a CPU worker without a memory limit the whole process."""
        assert self.session is not None, "it has started"
        return max(int(facts["high_water"]) for _, facts in self.session.ask("memory")["workers"])


@contextlib.contextmanager
def in_place(meter: StepMeter) -> Iterator[None]:
    """A context in which the first new session is the meter's; it ends with the context."""
    from gt.client.autograd import entry_points
    from gt.client.session import sessions
    from gt.service import session as face

    face.substitutes.append(meter.start)
    entry_points.watchers.append(meter.loss)
    try:
        yield
    finally:
        entry_points.watchers.remove(meter.loss)
        face.substitutes.remove(meter.start)
        sessions.disconnect()


def opener(address: str | None, workers: int | None, config: Any) -> Callable[[], Session]:
    """What starts the real session: on the service at an address, or on one of this program's own."""

    def open_session() -> Session:
        from gt.service import session as face

        held, face.substitutes[:] = face.substitutes[:], []
        try:
            if address is not None:
                return face.connect(address, config=config)
            return face.init(workers=workers, config=config)
        finally:
            face.substitutes[:] = held

    return open_session
