"""A dispatcher's core whose workers keep marks, and a client that resends: for tests of marks and recovery."""

from __future__ import annotations

from typing import Any, Final

from builders import Lines
from one_dispatcher import RULES, Service

from gt.dispatcher.handlers.marks import MARK_SECONDS
from gt.dispatcher.state.events import Lost, Tick
from gt.ir.instruction import Segment
from gt.wire import messages as m

FAULT = ["SnapshotError", "no space left"]
IMPROVABLE: Final = 7
"""The number of a segment for whose runs on two workers (`one_dispatcher.RULES`) a search finds a better plan."""


def service(workers: int = 2, *, marks: bool = True, config: Any = None) -> Service:
    """Workers that keep marks, and a client "c" that resends, with tensor 1 and segment 1."""
    each = Service(0, config=config, expected=workers)
    for number in range(workers):
        each.join(f"w{number}", **({"marks": True} if marks else {}))
    each.client(resends=True)
    each.put(1)
    each.define(1)
    each.done()
    each.told.clear()
    return each


def improvable() -> Segment:
    """Products of small matrices, some of them under a signal with a rule."""
    lines = Lines()
    left, right = (lines.op("reshape", lines.input(4), shape=(2, 2)) for _ in range(2))
    hidden = lines.op("tanh", lines.op("matmul", left, right, signal=("net",)), signal=("net",))
    last = lines.op("matmul", lines.op("matmul", hidden, right), right, signal=("net",))
    return lines.segment(last)


def to_improve(**facts: Any) -> Service:
    """A service of two workers with that segment, and its inputs 2 and 3."""
    each = service(2, config=RULES, **facts)
    for tensor in (2, 3):
        each.put(tensor, signal=("net",))
    each.define(IMPROVABLE, improvable())
    each.done()
    each.told.clear()
    return each


def pass_time(each: Service, seconds: float) -> None:
    each.now += seconds
    each.event(Tick())


def time_passes(each: Service, seconds: float) -> None:
    """Time in which all peers are alive."""
    for _ in range(20):
        for peer in list(each.core.peers):
            each.say(peer.decode(), m.Ping())
        pass_time(each, seconds / 20)


def mark_due(each: Service, worker: str = "w0") -> m.TakeMark:
    """The mark that a worker is to take after the time for the first one."""
    pass_time(each, 0.0)
    pass_time(each, MARK_SECONDS)
    (taken,) = each.hears(worker, m.TakeMark)
    return taken


def lose(each: Service, name: str, *, returns: bool = True) -> None:
    """A worker's process ends; it is started again, if it `returns`."""
    each.core.service.workers[name.encode()].facts["supervised"] = returns
    each.event(Lost(name.encode(), "its process ended", ended=True))


def settled_mark(each: Service) -> int:
    """A whole mark that the client has settled on."""
    number: int = mark_due(each).mark
    for worker in [*each.core.service.workers]:
        each.say(worker.decode(), m.MarkTaken(number, [], 0))
    each.say("c", m.Settled(number))
    each.told.clear()
    return number


def restore(each: Service, mark: int) -> None:
    """All workers give the session back what a mark has."""
    for name in [worker.decode() for worker in each.core.service.workers]:
        for told in each.hears(name, m.RestoreMark, m.RestoreParts):
            each.say(name, m.MarkRestored(told.mark, told.client, []))
