"""The programs of a simulated service: random ones (`tests/integer_programs.py`), which also take snapshots."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

from integer_programs import CONFIGS, Array, IntegerProgram, WrongResult

import gt
from gt.errors import (
    ConfigError,
    ConnectionFailed,
    GTError,
    PlanRefused,
    PublishConflict,
    SessionError,
    SnapshotError,
    WorkerLost,
)

from .faults import explains
from .service import ADDRESS, FATAL_SIDE, Service

MAX_ATTEMPTS = 200
"""A program connects so often, a second apart, before it gives up."""


class SavedState:
    """What a snapshot of one name may hold: by its number, the values of each that was taken."""

    def __init__(self) -> None:
        self.taken: dict[int, dict[str, Array]] = {}
        self.may_be: set[int] = set()
        """The numbers of which it must have one; 0: there need not be a snapshot."""
        self.late: set[int] = set()
        """Those that a service may have finished after the program lost it."""


class PublishedState:
    """What all programs have published under one name."""

    def __init__(self) -> None:
        self.tried: dict[int, list[Array]] = {}
        """By its number, what each attempt was to publish."""
        self.version_of: dict[int, int] = {}
        """Those that were answered, with their versions."""
        self.refused: set[int] = set()
        """Those of which nothing was published, because it was not the version that was expected."""
        self.newest = 0
        """The newest version that was answered."""


class Program(IntegerProgram):
    """One program: it connects, computes, and ends, whatever happens to others."""

    def __init__(
        self,
        service: Service,
        name: str,
        acts: int,
        config: dict[str, Any] | None,
        pause: float,
        *,
        saves: bool = False,
        ends_workers: bool = False,
        publishes: bool = False,
    ) -> None:
        super().__init__(random.Random(zlib.crc32(f"{service.scheduler.seed} {name}".encode())))
        self.service = service
        self.name = name
        self.acts = acts
        self.config = config
        self.pause = pause
        """The longest time, in seconds, for which it does nothing."""
        self.saves = random.Random(f"{service.scheduler.seed} {name}") if saves else None
        """Draws when it saves what it holds; None: never. Other draws do not depend on it."""
        self.ends_workers = random.Random(f"{service.scheduler.seed} {name} ends") if ends_workers else None
        """Draws when it asks for what ends a worker; None: never."""
        self.publishes = random.Random(f"{service.scheduler.seed} {name} publishes") if publishes else None
        """Draws when it publishes what it holds, or subscribes to what anybody has published; None: never."""
        self.fatal: list[Any] = []
        """Tensors that nobody can compute."""
        self.refused = 0
        """How many of them it has fetched."""
        self.saved: dict[str, SavedState] = {}
        self.restored = 0
        self.subscribed = 0
        self.reconnects = 0
        self.errors: list[tuple[float, GTError]] = []
        """The errors that it got, and when."""
        self.done = False

    def run(self) -> None:
        """The program, which must get to its end."""
        for _ in range(MAX_ATTEMPTS):
            began = self.service.scheduler.now
            try:
                link: Any = gt.connect(ADDRESS, config=self.config).link
                while self.acts > 0:
                    self.acts -= 1
                    self._try(self.act, began)
                while self.asked or self.held:
                    self._try(self.finish, began)
                while self.fatal:
                    self._fetch_fatal()
                self.reconnects += link.control.reconnects + link.bulk.reconnects
                gt.disconnect()
                self.done = True
                return
            except (ConnectionFailed, SessionError, WorkerLost, ConfigError) as error:
                self._note(error, began)
                self.drop()
                gt.disconnect()
                self._wait(1.0)
        raise WrongResult(f"{self.name} could not compute: {self.errors[-1]}")

    def _try(self, act: Callable[[], None], began: float) -> None:
        """Do something; what a lost worker held is gone, and the session goes on. Where marks are taken in one folder all of
        it is gone."""
        try:
            act()
        except (WorkerLost, SnapshotError) as error:
            self._note(error, began)
            if not (self.service.unkept or self.service.apart):
                self.held.clear()

    def _note(self, error: GTError, began: float) -> None:
        now = self.service.scheduler.now
        self.errors.append((now, error))
        if not explains(self.service, error, self.name, began, now):
            raise WrongResult(f"{error!r} at {now:.3f} s, in a session from {began:.3f} s on") from error

    def _pause(self, share: float) -> None:
        self._wait(share * self.pause)

    def _wait(self, seconds: float) -> None:
        self.service.scheduler.wait([], seconds)

    # what it does

    def act(self) -> None:
        """Do something; now and then save it, or restore it, or end a worker."""
        if self.ends_workers is not None and self.ends_workers.random() < 0.06:
            self._end_worker(self.ends_workers)
        elif self.publishes is not None and self.publishes.random() < 0.3:
            self._publish_or_subscribe(self.publishes)
        elif self.saves is not None and self.saves.random() < 0.3:
            self._save_or_restore(self.saves)
        else:
            super().act()

    def _end_worker(self, draw: random.Random) -> None:
        """Ask for what ends a worker, between two segments, or fetch it."""
        if self.fatal and draw.random() < 0.5:
            self._fetch_fatal()
            return
        gt.flush()
        with gt.signal.context(draw.choice(["net", "other"])):
            root = gt.linalg.cholesky(gt.eye(FATAL_SIDE))
        self.fatal.append(root if draw.random() < 0.5 else root + 1)
        gt.flush()

    def _fetch_fatal(self) -> None:
        try:
            self.fatal.pop().numpy()
        except PlanRefused as error:
            if "cholesky" not in str(error):
                raise WrongResult(f"another plan was refused: {error}") from error
            self.refused += 1
        else:
            raise WrongResult("what nobody can compute has a value")

    def _save_or_restore(self, draw: random.Random) -> None:
        name = f"{self.name}-{draw.choice('ab')}"
        state = self.saved.setdefault(name, SavedState())
        state.may_be = state.may_be or {0}
        if self.held and draw.random() < 0.6:
            self._save(name, state, draw.sample(self.held, min(len(self.held), 3)))
        else:
            self._restore(name, state)

    def _save(self, name: str, state: SavedState, some: list[tuple[Any, Array]]) -> None:
        """Take a snapshot. If that fails, it may be there all the same, or the one before."""
        number = len(state.taken) + 1
        state.taken[number] = {str(at): value for at, (_, value) in enumerate(some)}
        state.may_be.add(number)
        try:
            gt.snapshot(name, {str(at): tensor for at, (tensor, _) in enumerate(some)}, extra=number)
        except SessionError:
            state.late.add(number)
            raise
        state.may_be = {number} | state.late
        self.answers += 1

    def _restore(self, name: str, state: SavedState) -> None:
        """Read a snapshot, which must be one of those that may be there, whole."""
        try:
            found = gt.restore(name)
            values = {key: found.tensor(f"tensors.{key}") for key in state.taken.get(found.extra, {})}
        except SnapshotError as error:
            gone = 0 in state.may_be and "there is no snapshot" in str(error)
            if not gone and not (len(state.may_be) > 1 and "written again" in str(error)):
                raise WrongResult(f"{name} must hold one of {state.may_be}") from error
            return
        if found.extra not in state.may_be or len(found.names()) != len(values):
            raise WrongResult(f"{name} must hold one of {state.may_be}, not {found.extra} of {found.names()}")
        for key, tensor in values.items():
            self._compare(tensor.numpy(), state.taken[found.extra][key])
        self.restored += 1

    def _publish_or_subscribe(self, draw: random.Random) -> None:
        name = draw.choice(["weights", "batch"])
        state = self.service.published.setdefault(name, PublishedState())
        if self.held and draw.random() < 0.5:
            expect = draw.choice([None, None, state.newest])
            self._publish(name, state, draw.sample(self.held, min(len(self.held), 3)), expect, draw.randint(1, 2))
        else:
            self._subscribe(name, state)

    def _publish(
        self, name: str, state: PublishedState, some: list[tuple[Any, Array]], expect: int | None, keep: int
    ) -> None:
        """Publish. If that fails, it may be there all the same."""
        number = len(state.tried) + 1
        state.tried[number] = [value for _, value in some]
        what = {"number": number, "tensors": [tensor for tensor, _ in some]}
        try:
            version = gt.publish(name, what, expect=expect, keep=keep)
        except PublishConflict:
            if expect is None:
                raise WrongResult(f"{name} was published whatever is there, and met a conflict") from None
            state.refused.add(number)
            return
        if version in state.version_of.values():
            raise WrongResult(f"{name} has two versions {version}")
        if expect is not None and version != expect + 1:
            raise WrongResult(f"{name} was to follow version {expect}, and is version {version}")
        state.version_of[number] = version
        state.newest = max(state.newest, version)
        self.answers += 1

    def _subscribe(self, name: str, state: PublishedState) -> None:
        """Read the newest version, which must be one that was published, whole, and none older than any that was answered."""
        least = state.newest
        try:
            found = gt.subscribe(name)
        except SnapshotError as error:
            if least or "nothing named" not in str(error):
                raise WrongResult(f"{name} must have version {least} at least") from error
            return
        number, tensors = found["number"], found["tensors"]
        values = state.tried[number]
        if number in state.refused or len(values) != len(tensors):
            raise WrongResult(f"{name} has {number}, which nobody has published")
        if state.version_of.get(number, least) < least:
            raise WrongResult(f"{name} has version {state.version_of[number]} still, after {least}")
        self._compare(tensors[0].numpy(), values[0])
        self.held.extend(zip(tensors, values, strict=True))
        self.subscribed += 1

    def _ask(self) -> None:
        """Load another config, or ask the service for its statistics."""
        config = self.random.choice(CONFIGS)
        if config is None or self.service.size < 2:
            if gt.stats()["service"]["clients"] < 1:
                raise WrongResult("the service does not count the session that asks")
        else:
            gt.load_config(config)
