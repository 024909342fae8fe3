"""The groups of workers that NVLink joins: runs of a host's workers, as their operator says (`nvlink_group_size`).

No worker can tell how its GPU is wired, and copies through the host do not show it, so this is configured, not measured. A
mesh places the workers of a group next to each other along its busiest axes (`worker_grid.py`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from .cost_model import host_of

Facts = Mapping[str, Any]
"""What a worker reported about itself when it joined."""


def groups_of(workers: Mapping[int, Facts]) -> dict[int, str]:
    """The group of each worker, by number; workers outside groups are left out.

    The place of a worker on a GPU is the GPU's number in its host (cuda:N), so a missing worker shifts no other. The places of
    other workers follow the order in which they joined.
    """
    hosts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number in sorted(workers):
        facts = workers[number]
        if _size(facts):
            hosts[host_of(facts), str(facts.get("kind", "cpu"))].append(number)
    found = {}
    for (host, kind), members in hosts.items():
        for position, number in enumerate(members):
            at = _device(workers[number], position)
            found[number] = f"{host}/{kind}/{at // _size(workers[number])}"
    return found


def side_by_side(numbers: list[int], workers: Mapping[int, Facts], groups: Mapping[int, str]) -> list[int]:
    """The workers, with those of a host next to each other, and there those of a group, in the order of their GPUs. The largest
    hosts and groups come first, so that a mesh of fewer workers cuts through as few as possible."""
    hosts: dict[str, list[int]] = defaultdict(list)
    for number in numbers:
        hosts[host_of(workers[number])].append(number)
    joined = sorted(hosts.values(), key=lambda some: -len(some))  # of equally many, who is named first
    return [number for some in joined for number in _on_one_host(some, workers, groups)]


def _on_one_host(numbers: list[int], workers: Mapping[int, Facts], groups: Mapping[int, str]) -> list[int]:
    members: dict[str, list[int]] = defaultdict(list)
    for number in numbers:
        members[groups.get(number, "")].append(number)
    alone = members.pop("", [])
    for some in members.values():
        some.sort(key=lambda number: (_device(workers[number], 0), number))
    joined = sorted(members.values(), key=lambda some: (-len(some), some[0]))
    return [number for some in joined for number in some] + alone


def _size(facts: Facts) -> int:
    said = facts.get("nvlink_group_size")
    return said if type(said) is int and said > 0 else 0


def _device(facts: Facts, otherwise: int) -> int:
    """The N of a worker on cuda:N."""
    match = re.fullmatch(r"cuda:(\d{1,4})", str(facts.get("device")))
    return int(match[1]) if match else otherwise
