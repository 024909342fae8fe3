"""The workers, divided into cells: workers that serve the same meshes, and so have the same plans in flight.

What is counted by worker is counted once for each cell, so that releasing a plan costs the same on any number of workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from .run_time import RunTime
from .shares import WorkerShares
from .waiting_line import WaitingLine


class Flight(NamedTuple):
    """Something in flight on a mesh: a plan, with what is known of its run time, or a put."""

    order: int
    run_time: RunTime | None
    nanoseconds: int
    """What it was expected to take when it was released."""


class Lane:
    """A mesh of a session, and what is in flight on it, in order."""

    __slots__ = (
        "active", "busy", "cells", "flights", "key", "least", "members", "mesh", "nanoseconds", "plans", "reported",
        "session", "took", "turn_left", "used", "used_at",
    )  # fmt: skip

    def __init__(self, mesh: int, session: int, key: tuple[Hashable, ...]) -> None:
        self.mesh = mesh
        self.session = session
        self.key = key
        """Its share of the workers' time."""
        self.cells: list[Cell] = []
        self.members = 0
        """How many workers it has."""
        self.flights: deque[Flight] = deque()
        self.nanoseconds = 0
        self.plans = 0
        """How many of the flights are plans."""
        self.reported = 0
        """The last order of which a measurement has come."""
        self.active = False
        """Whether it has something waiting or in flight."""
        self.busy = 0
        """The nanoseconds that its plans have taken so far, on each of its workers."""
        self.turn_left = 0
        """On several workers: the nanoseconds of plans for which it goes on before others with as good a claim."""
        self.used = 0.0
        """The seconds of its last plans, as they count at the time `used_at` (`soonest_end.py`)."""
        self.used_at = 0.0
        self.took = self.least = 0
        """On one worker: the nanoseconds of plans since the last look, and what these take at best (`slowdown.py`)."""

    def over(self, flight: Flight) -> bool:
        """Count what is no longer in flight, by prediction where nobody has measured it. Returns whether it is a plan."""
        run_time = flight.run_time
        if run_time is None:
            return False
        took = run_time.before
        if not took:
            took = flight.nanoseconds
            run_time.tally.guessed(took * self.members)
        self.busy += took
        return True

    def begin(self) -> None:
        """It has something waiting or in flight."""
        if not self.active:
            self.active = True
            for cell in self.cells:
                cell.shares.begin(self.key)

    def end(self) -> None:
        """It has nothing waiting or in flight."""
        if self.active:
            self.active = False
            self.turn_left = 0
            for cell in self.cells:
                cell.shares.end(self.key)


class Cell:
    """Workers that serve the same meshes. All counts are of each of them."""

    __slots__ = (
        "ends", "lanes", "late", "nanoseconds", "owner", "plans", "prompt", "shared_until", "shares", "size", "waiting",
    )  # fmt: skip

    def __init__(self, size: int) -> None:
        self.size = size
        self.lanes: set[Lane] = set()
        self.nanoseconds = 0
        self.plans = 0
        self.ends = 0.0
        """When all that is in flight will have been done, as far as is known."""
        self.shares = WorkerShares()
        self.prompt: WaitingLine[Lane] = WaitingLine()
        """Who waits there."""
        self.late: WaitingLine[Lane] = WaitingLine()
        """Those who wait until nobody else does."""
        self.owner = -1
        """The session whose plan was released last."""
        self.waiting = 0
        """How many sessions wait for their turn on it, in both lines."""
        self.shared_until = 0.0
        """Until when it counts as shared by several sessions."""

    def part(self, size: int) -> Cell:
        """A part of it, which is to serve other meshes besides."""
        other = Cell(size)
        other.lanes = set(self.lanes)
        other.nanoseconds, other.plans, other.shares = self.nanoseconds, self.plans, self.shares.copy()
        for line, before in ((other.prompt, self.prompt), (other.late, self.late)):
            for lane, (_, urgent) in before.lanes.items():
                line.add(lane, other.shares.path(lane.key), urgent=urgent)
        other.ends = self.ends
        other.owner, other.shared_until, other.waiting = self.owner, self.shared_until, self.waiting
        return other


class Cells:
    """All workers that serve a mesh."""

    def __init__(self) -> None:
        self.of: dict[int, Cell] = {}
        """By worker."""

    def add(
        self, lane: Lane, members: Iterable[int], weights: tuple[float, float, float], reserved: float = 0.0
    ) -> None:
        """Divide the cells so that a new mesh consists of whole ones. It has shares of these weights in them, and its principal
        at least a reserved part."""
        groups: dict[Cell | None, list[int]] = {}
        for worker in members:
            groups.setdefault(self.of.get(worker), []).append(worker)
        for cell, workers in groups.items():
            if cell is None:
                cell = Cell(len(workers))
            elif cell.size > len(workers):
                cell.size -= len(workers)
                cell = cell.part(len(workers))
                for other in cell.lanes:
                    other.cells.append(cell)
            self.of.update(dict.fromkeys(workers, cell))
            cell.lanes.add(lane)
            cell.shares.add(lane.key, weights, reserved)
            lane.cells.append(cell)

    def drop(self, lane: Lane) -> None:
        """Forget a mesh, with what is in flight on it, and join cells that serve the same meshes now."""
        merged: dict[Cell, Cell | None] = {}
        lane.end()
        for cell in lane.cells:
            cell.lanes.remove(lane)
            cell.shares.remove(lane.key)
            cell.nanoseconds -= lane.nanoseconds
            cell.plans -= lane.plans
            if not cell.lanes:
                merged[cell] = None
                continue
            beside = next(iter(cell.lanes)).cells
            same = next((each for each in beside if each is not cell and each.lanes == cell.lanes), None)
            if same is not None:
                same.size += cell.size
                merged[cell] = same
                for other in cell.lanes:
                    other.cells.remove(cell)
                cell.lanes = set()
        if merged:
            self._replace(merged)
        lane.cells = []

    def _replace(self, merged: dict[Cell, Cell | None]) -> None:
        """Put the workers of cells that are no more into others, or into none."""
        for worker, cell in list(self.of.items()):
            if cell in merged:
                into = merged[cell]
                while into in merged:
                    into = merged[into]
                if into is None:
                    del self.of[worker]
                else:
                    self.of[worker] = into

    def check(self) -> None:
        """The invariants."""
        for cell in {*self.of.values()}:
            assert cell.size == sum(each is cell for each in self.of.values())
            assert cell.lanes, "a cell serves a mesh"
            assert all(cell in lane.cells for lane in cell.lanes)
            assert cell.nanoseconds == sum(lane.nanoseconds for lane in cell.lanes)
            assert cell.plans == sum(lane.plans for lane in cell.lanes)
            for line in (cell.prompt, cell.late):
                assert not line.hidden, "who was looked at is shown again"
                line.check()
