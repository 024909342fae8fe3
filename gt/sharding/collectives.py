"""Which algorithm an all-reduce uses: pure functions for the planner, which estimates its cost, and for the workers.

No data moves here: `worker/transfer/move_schedule.py` says who sends what to whom.
"""

from __future__ import annotations

from typing import Final

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

ALGORITHMS: Final = ("direct", "two-step", "ring", "tree")
PAIRWISE_ALGORITHMS: Final = ("direct", "two-step")
"""The algorithms that can add contributions as a tree over ranks, as deterministic sessions need."""


def all_reduce_algorithm(nbytes: int, parts: int, hosts: int = 1, asked: str = "") -> str:
    """The algorithm by which `parts` workers on `hosts` machines reduce a value of `nbytes` bytes: the `asked` one, if the
    program asks for one.

    Small values are sent `direct`: every worker sends all of its contribution to every other, in one step. With many workers
    that takes too many messages, so the values go up and down a `tree`. Large values take the `two-step` algorithm, or, over
    several machines, a `ring`, in which only neighbours exchange data.
    """
    if asked:
        return asked
    if nbytes >= (MIN_TWO_STEP_BYTES if parts > 2 else MIN_PAIR_TWO_STEP_BYTES):
        return "ring" if hosts > 1 and parts > 2 else "two-step"
    return "tree" if parts > MAX_DIRECT_WORKERS else "direct"


def all_reduce_steps(algorithm: str) -> int:
    """How many times all workers wait for each other; further steps of rings and trees overlap with transfers."""
    return 1 if algorithm == "direct" else 2


def all_reduce_bytes(algorithm: str, nbytes: int, parts: int) -> int:
    """The bytes that all workers together receive."""
    if parts < 2:
        return 0
    return parts * (parts - 1) * nbytes if algorithm == "direct" else 2 * (parts - 1) * nbytes


def chunks(nbytes: int) -> int:
    """The number of pieces of a transfer of `nbytes` bytes."""
    return max(1, min(MAX_CHUNKS, -(-nbytes // MAX_CHUNK_BYTES)))
