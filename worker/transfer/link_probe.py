"""Measurement of the links to workers that cannot read this one's memory: on another host, or in another container.

Each link is measured once, when its ends first hear of each other; answers come at once. Empty probes give the latency of a
round trip, larger ones the bandwidth. The best of a few counts, because disturbances only make a probe slower. The dispatcher
uses the figures in its cost model, and `compression.py` to decide about compression. A state machine without socket and clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gt.wire import messages as m

PROBES_PER_SIZE: Final = 3
"""The number of probes of each size."""
LARGE_PROBE_BYTES: Final = 256 << 10
"""The size of a large probe in bytes: a quarter of a second at 1 MB/s, and more than any buffer on the way holds."""
MAX_BANDWIDTH: Final = 1e12
"""The bandwidth, in bytes/s, that is assumed if a large probe takes no longer than an empty one."""


class LinkSpeed(NamedTuple):
    """A measured link: bytes/s, the seconds one way, and whether the other end can decompress."""

    bandwidth: float
    latency: float
    unpacks: bool


@dataclass(slots=True)
class LinkTrial:
    """A link being measured: when the last probe was sent, and how long the earlier ones took."""

    left: float
    small: list[float] = field(default_factory=list)
    large: list[float] = field(default_factory=list)


class LinkProbes:
    """The links of one worker, by the number of the other worker."""

    def __init__(self) -> None:
        self.measured: dict[int, LinkSpeed] = {}
        self.trials: dict[int, LinkTrial] = {}

    def meet(self, own: int, worker: int, now: float) -> m.Probe | None:
        """The first probe for an unknown worker."""
        if worker in self.measured or worker in self.trials:
            return None
        self.trials[worker] = LinkTrial(now)
        return m.Probe(own, 0, b"")

    def echoed(self, own: int, echo: m.Echo, now: float) -> m.Probe | LinkSpeed | None:
        """A probe came back. Returns the next probe or the result of all; None if nobody waited for it."""
        trial = self.trials.get(echo.worker)
        if trial is None or echo.probe != len(trial.small) + len(trial.large):
            return None
        (trial.small if len(trial.small) < PROBES_PER_SIZE else trial.large).append(max(0.0, now - trial.left))
        if len(trial.large) < PROBES_PER_SIZE:
            trial.left = now
            return m.Probe(own, echo.probe + 1, b"" if len(trial.small) < PROBES_PER_SIZE else bytes(LARGE_PROBE_BYTES))
        del self.trials[echo.worker]
        latency = min(trial.small)
        seconds = max(min(trial.large) - latency, LARGE_PROBE_BYTES / MAX_BANDWIDTH)
        link = self.measured[echo.worker] = LinkSpeed(LARGE_PROBE_BYTES / seconds, latency / 2, echo.unpacks)
        return link

    def forget(self, worker: int) -> None:
        """Forget a worker that is gone."""
        self.measured.pop(worker, None)
        self.trials.pop(worker, None)

    def slowest(self, workers: list[int]) -> float | None:
        """The bytes/s of the slowest link to these workers; None unless all are measured and all can decompress."""
        links = [self.measured.get(worker) for worker in workers]
        known = [link.bandwidth for link in links if link is not None and link.unpacks]
        return min(known) if known and len(known) == len(links) else None
