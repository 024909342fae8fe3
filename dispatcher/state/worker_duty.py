"""What each worker is there for: which are in service, wait as spares, or leave. The one place where that is decided.

A spare is on no session's mesh. It takes the place of a worker that was lost or leaves, at once, and whoever joins afterwards
waits as a spare in its stead. So a service keeps as many spares as it had at one time, whichever processes they are.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.daemon.process_end import MACHINE_FACTS

if TYPE_CHECKING:
    from .records import WorkerRecord


class WorkerDuty(StrEnum):
    """What a worker is there for."""

    IN_SERVICE = "in service"
    """Sessions compute on it."""
    SPARE = "spare"
    """It waits for a place in service."""
    LEAVING = "leaving"
    """It is drained: sessions move away from it, and none comes to it."""


IN_SERVICE, SPARE, LEAVING = WorkerDuty


class WorkersBefore(NamedTuple):
    """Of the workers of a dispatcher, what the next one goes on with: how many were in `service`, or were waited for; how many
    `spares` it kept; and the keys of the processes of those that were `leaving` (`process_key`)."""

    service: int = 0
    spares: int = 0
    leaving: frozenset[int] = frozenset()


def process_key(facts: Mapping[str, Any]) -> int:
    """A number from 1 on by which the process of a worker is known, given what it says of itself; 0 if it does not say which it
    is. It stays the same when the worker joins another dispatcher."""
    pid = facts.get("pid")
    if type(pid) is not int or not 0 < pid < 1 << 31:
        return 0
    machine = "\0".join(str(facts.get(fact)) for fact in MACHINE_FACTS)
    return zlib.crc32(machine.encode()) << 31 | pid


def duty_of_new(*, asks: bool, spares: int, kept: int, short: bool, complete: bool) -> WorkerDuty:
    """The duty of a worker that joins. It `asks` to be a spare or does not; there are `spares`, of `kept` that the service has
    had at one time; `short`: workers in service are missing; `complete`: all that were expected at the start have been there.

    A worker that is missing after a loss is replaced by any that joins, but at the start those that ask to wait do.
    """
    if short:
        return SPARE if asks and not complete else IN_SERVICE
    return SPARE if asks or spares < kept else IN_SERVICE


def next_spare(workers: Iterable[WorkerRecord]) -> WorkerRecord | None:
    """The spare that takes the next free place: the one that has waited longest."""
    return min((each for each in workers if each.duty is SPARE), key=lambda each: each.number, default=None)


def kind_of(worker: WorkerRecord) -> tuple[str, str]:
    """What workers have in common of which one may take the place of another at once: kind and model."""
    return str(worker.facts.get("kind", "cpu")), str(worker.facts.get("model", ""))


def reads_files_of(gone: WorkerRecord, spare: WorkerRecord) -> bool:
    """Whether a spare has the files that a worker has written for marks, as far as is known."""
    folder = gone.facts.get("mark_folder")
    return not folder or spare.facts.get("mark_folder") == folder
