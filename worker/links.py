"""How fast the links are to workers that cannot read this one's memory: on another host, or in another container.

Each is measured once, when the two first hear of each other, and answers come at once. Empty probes say how long one
exchange takes, larger ones how many bytes a second come on top of that; the best of a few counts, because whatever else
happens only makes a probe slower. The dispatcher is told, for its cost model, and pieces are compressed by it
(`packing.py`). A state machine: no socket or clock in here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gt import messages as m

TRIES: Final = 3
"""Probes of each size."""
LARGE: Final = 256 << 10
"""Bytes of a large probe: a quarter of a second on a link of 1 MB/s, and more than goes into any buffer on the way."""
FASTEST: Final = 1e12
"""Bytes a second of a link on which a large probe takes no longer than an empty one."""


class Link(NamedTuple):
    """A link that was measured: bytes a second, seconds of an exchange however small, and whether its other end unpacks."""

    bandwidth: float
    latency: float
    unpacks: bool


@dataclass(slots=True)
class Trial:
    """A link that is being measured: when the last probe left, and how long the others took."""

    left: float
    small: list[float] = field(default_factory=list)
    large: list[float] = field(default_factory=list)


class Links:
    """The links of one worker, by the number of the other."""

    def __init__(self) -> None:
        self.measured: dict[int, Link] = {}
        self.trials: dict[int, Trial] = {}

    def meet(self, own: int, worker: int, now: float) -> m.Probe | None:
        """The first probe to a worker of whom nothing was known."""
        if worker in self.measured or worker in self.trials:
            return None
        self.trials[worker] = Trial(now)
        return m.Probe(own, 0, b"")

    def echoed(self, own: int, echo: m.Echo, now: float) -> m.Probe | Link | None:
        """A probe came back: the next one, or what all of them say; None when nobody waited for it."""
        trial = self.trials.get(echo.worker)
        if trial is None or echo.probe != len(trial.small) + len(trial.large):
            return None
        (trial.small if len(trial.small) < TRIES else trial.large).append(max(0.0, now - trial.left))
        if len(trial.large) < TRIES:
            trial.left = now
            return m.Probe(own, echo.probe + 1, b"" if len(trial.small) < TRIES else bytes(LARGE))
        del self.trials[echo.worker]
        latency = min(trial.small)
        seconds = max(min(trial.large) - latency, LARGE / FASTEST)
        link = self.measured[echo.worker] = Link(LARGE / seconds, latency / 2, echo.unpacks)
        return link

    def forget(self, worker: int) -> None:
        """A worker is gone."""
        self.measured.pop(worker, None)
        self.trials.pop(worker, None)

    def slowest(self, workers: list[int]) -> float | None:
        """Bytes a second on the slowest link to these workers; None unless all are known, and all unpack."""
        links = [self.measured.get(worker) for worker in workers]
        known = [link.bandwidth for link in links if link is not None and link.unpacks]
        return min(known) if known and len(known) == len(links) else None
