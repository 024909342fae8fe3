"""Which workers of a mesh do collectives together by NCCL: those that have a GPU each, and one version of it.

A group goes one way as a whole, so this is decided here for all its members, by what they said when they joined, and announced
with the mesh. Two workers on one GPU have one number: NCCL refuses such a group, and so it goes the other way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def cards_of(facts: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """For each worker, in order of rank, the number of its GPU, from 1, or 0 where it takes no part; empty when nobody does.

    A GPU is known by its host and its place on the PCI bus. Other versions than most have take no part.
    """
    versions = Counter(version for said in facts if (version := _version(said)))
    if not versions:
        return ()
    most = max(versions.values())
    common = min(version for version, count in versions.items() if count == most)
    numbers: dict[tuple[str, str], int] = {}
    found = []
    for said in facts:
        takes_part = _version(said) == common
        place = (str(said.get("boot") or said.get("host")), str(said.get("bus")))
        found.append(numbers.setdefault(place, len(numbers) + 1) if takes_part else 0)
    return tuple(found)


def _version(facts: Mapping[str, Any]) -> int:
    """Of a worker's NCCL; 0 without, or when it does not say where its GPU is."""
    version = facts.get("nccl")
    return version if type(version) is int and version > 0 and facts.get("bus") else 0
