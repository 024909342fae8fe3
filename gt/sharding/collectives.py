"""Which algorithm an all-reduce uses: pure functions for the planner, which estimates its cost, and for the workers.

No data moves here: `worker/transfer/move_schedule.py` says who sends what to whom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_CHUNK_BYTES: Final = 2 << 20
"""The most bytes of one piece of a transfer: a receiver reduces one while the sender prepares the next."""
MAX_CHUNKS: Final = 1 << 12
"""The most pieces of one transfer; larger transfers have larger pieces."""

MIN_TWO_STEP_BYTES: Final = 64 << 10
"""From this size in bytes on, an all-reduce takes two steps: each worker reduces a share and sends it to all others."""
MIN_PAIR_TWO_STEP_BYTES: Final = 1 << 20
"""The same for two workers, for which a second step saves little and costs another wait."""
MAX_DIRECT_WORKERS: Final = 8
"""With more workers than this, a small all-reduce uses a tree; otherwise each worker sends a message to every other."""

ALGORITHMS: Final = ("direct", "two-step", "ring", "tree", "hierarchical")
PAIRWISE_ALGORITHMS: Final = ("direct", "two-step")
"""The algorithms that can add contributions as a tree over ranks, as deterministic sessions need."""


MEMORY_STEP_NANOSECONDS: Final = 100_000
"""What a step within a host takes, whatever its size: `hierarchical` has two of them besides those of `two-step`."""


class HostSpread(NamedTuple):
    """How a group of workers lies on hosts: the number of hosts, the most of its workers on one of them, and the slowest link
    between two hosts of its mesh, in bytes/s and nanoseconds (frozen with the mesh)."""

    hosts: int
    most: int
    bandwidth: int
    latency: int


def all_reduce_algorithm(nbytes: int, parts: int, spread: HostSpread | None = None, asked: str = "") -> str:
    """The algorithm by which `parts` workers reduce a value of `nbytes` bytes: the `asked` one, if the program asks for one.
    `spread` says how they lie on hosts (None: all on one).

    Small values are sent `direct`: every worker sends all of its contribution to every other, in one step. With many workers
    that takes too many messages, so the values go up and down a `tree`. Large values take the `two-step` algorithm; over
    several hosts of which one has several workers, the `hierarchical` one, in which each element crosses once from a host.
    Between hosts a value is large when the bytes that this saves take longer, on the slowest link, than its further steps.
    """
    if asked:
        return asked
    if spread is not None and spread.hosts > 1 and parts <= MAX_DIRECT_WORKERS:
        large = "hierarchical" if spread.most > 1 else "two-step"
        saved = wire_bytes("direct", nbytes, parts, spread) - wire_bytes(large, nbytes, parts, spread)
        waits = spread.latency + (2 * MEMORY_STEP_NANOSECONDS if large == "hierarchical" else 0)
        return large if saved * 10**9 > waits * spread.bandwidth else "direct"
    if nbytes >= (MIN_TWO_STEP_BYTES if parts > 2 else MIN_PAIR_TWO_STEP_BYTES):
        return "hierarchical" if spread is not None and spread.hosts > 1 and spread.most > 1 else "two-step"
    return "tree" if parts > MAX_DIRECT_WORKERS else "direct"


def all_reduce_steps(algorithm: str) -> int:
    """How many times all workers wait for each other; further steps of rings and trees overlap with transfers."""
    return 1 if algorithm == "direct" else 4 if algorithm == "hierarchical" else 2


def wire_bytes(algorithm: str, nbytes: int, parts: int, spread: HostSpread) -> int:
    """The bytes of an all-reduce that the host with the most workers receives from other hosts (and sends to them)."""
    hosts, near = spread.hosts, spread.most
    if hosts < 2:
        return 0
    if algorithm == "direct":
        return near * (parts - near) * nbytes
    if algorithm == "two-step":
        return 2 * near * (parts - near) * nbytes // parts
    return 2 * (hosts - 1) * nbytes // hosts  # each element goes out once and comes in once, on all hosts but one


def crossing_bytes(algorithm: str, nbytes: int, hosts: Sequence[int]) -> int:
    """The bytes of an all-reduce that hosts send each other in all. `hosts` has that of each member, in order of rank."""
    parts, counts = len(hosts), Counter(hosts)
    if algorithm == "hierarchical":
        return 2 * (len(counts) - 1) * nbytes
    if algorithm == "tree":  # each but the root gives its parent a sum, and gets the total
        return 2 * nbytes * sum(hosts[at] != hosts[at & (at - 1)] for at in range(1, parts))
    if algorithm == "ring":
        return 2 * (parts - 1) * nbytes * sum(hosts[at - 1] != hosts[at] for at in range(parts)) // parts
    pairs = parts * parts - sum(count * count for count in counts.values())
    return pairs * nbytes if algorithm == "direct" else 2 * pairs * nbytes // parts


def all_reduce_bytes(algorithm: str, nbytes: int, parts: int) -> int:
    """The bytes that all workers together receive."""
    if parts < 2:
        return 0
    return parts * (parts - 1) * nbytes if algorithm == "direct" else 2 * (parts - 1) * nbytes


def chunks(nbytes: int) -> int:
    """The number of pieces of a transfer of `nbytes` bytes."""
    return max(1, min(MAX_CHUNKS, -(-nbytes // MAX_CHUNK_BYTES)))
