"""Which algorithm an all-reduce takes: one pure function for the planner, which prices it, and the workers, who do it.

Nothing here moves data: `worker/portions.py` says who sends what to whom.
"""

from __future__ import annotations

from typing import Final

CHUNK: Final = 2 << 20
"""Bytes of one piece of a transfer, at most: a receiver reduces one while the sender prepares the next."""
MAX_CHUNKS: Final = 1 << 12
"""Pieces of one transfer, at most: beyond that they are larger."""

TWO_STEP: Final = 64 << 10
"""Bytes from which an all-reduce goes in two steps: each worker reduces a share and hands it to all others."""
PAIR: Final = 1 << 20
"""The same for two workers, to whom a second step saves little and costs another wait."""
CROWD: Final = 8
"""Workers above which a small all-reduce goes along a tree: else each has a message for every other."""

ALGORITHMS: Final = ("direct", "two-step", "ring", "tree")
PAIRED: Final = ("direct", "two-step")
"""Those that can add contributions as a tree over ranks, which deterministic sessions need."""


def all_reduce_algorithm(nbytes: int, parts: int, hosts: int = 1, asked: str = "") -> str:
    """How `parts` workers on `hosts` machines reduce `nbytes` that each of them holds a contribution to.

    As the program has `asked`, if it has.

    Small values go `direct`: everybody sends everybody the whole, in one step. In a crowd that is too many messages, and
    they go up and down a `tree`. Large values go in `two-step`, or, over several machines, around a `ring`, in which
    only neighbours talk to each other.
    """
    if asked:
        return asked
    if nbytes >= (TWO_STEP if parts > 2 else PAIR):
        return "ring" if hosts > 1 and parts > 2 else "two-step"
    return "tree" if parts > CROWD else "direct"


def all_reduce_steps(algorithm: str) -> int:
    """How often everybody waits for the others: a ring's and a tree's further steps overlap with what travels."""
    return 1 if algorithm == "direct" else 2


def all_reduce_bytes(algorithm: str, nbytes: int, parts: int) -> int:
    """Bytes that all workers receive together."""
    if parts < 2:
        return 0
    return parts * (parts - 1) * nbytes if algorithm == "direct" else 2 * (parts - 1) * nbytes


def chunks(nbytes: int) -> int:
    """Into how many pieces a transfer of `nbytes` is cut."""
    return max(1, min(MAX_CHUNKS, -(-nbytes // CHUNK)))
