"""What moving a value between two placements of one mesh axis costs: bytes over bandwidth, plus a latency for each exchange.

The figures are relative, for choosing between rows; nothing here is a promise in seconds.
"""

from __future__ import annotations

from typing import Final

from gt.placement import Partial, Placement, Replicate, Shard

LATENCY: Final = 16 << 10
"""The cost of one exchange, in bytes that the link could have carried meanwhile ."""
IMPOSSIBLE: Final = float("inf")


def move_cost(before: Placement, after: Placement, nbytes: float, parts: int) -> float:
    """Bytes that one worker receives (latency included) when `nbytes` per position go from `before` to `after` over `parts`."""
    if before == after or parts == 1:
        return 0.0
    share = nbytes * (parts - 1) / parts
    if isinstance(after, Partial):
        return IMPOSSIBLE
    if isinstance(before, Replicate):
        return 0.0
    if isinstance(before, Shard):
        return LATENCY + (share if isinstance(after, Replicate) else share / parts)
    return LATENCY + (2 * share if isinstance(after, Replicate) else share)
