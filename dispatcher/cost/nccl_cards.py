"""The GPUs of a mesh that exchange data through NCCL: those of workers with a GPU of their own and the same version of NCCL.

All members of a group must take the same way, so this is decided here, from what the workers reported when they joined, and
announced with the mesh. Two workers on one GPU get the same number: NCCL refuses such groups, so they use another way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def cards_of(facts: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """For each worker, in order of rank, a number for its GPU, from 1, or 0 if it takes no part. Empty if no worker takes
    part.

    A GPU is identified by its host and its place on the PCI bus. Workers with another NCCL version than the majority take no
    part.
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
    """The version of a worker's NCCL; 0 without NCCL, or if the worker does not report where its GPU is."""
    version = facts.get("nccl")
    return version if type(version) is int and version > 0 and facts.get("bus") else 0
