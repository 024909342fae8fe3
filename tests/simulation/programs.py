"""Small random GT programs, each with NumPy as the oracle for every value that it fetches.

All numbers are small integers, so sums are exact in any order, and every value must be right bit by bit.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

import gt
from gt.errors import ConfigError, ConnectionFailed, GTError, SessionError, SnapshotError, WorkerLost

from .faults import explains
from .service import ADDRESS, Service

MAX_VALUE = 1000
"""Only tensors of smaller numbers are computed with."""
MAX_ATTEMPTS = 200
"""A program connects so often, a second apart, before it gives up."""
SHAPES = ((5, 4), (4, 4), (4, 5), (7,))
LARGE_SHAPES = ((150, 200), (300, 700), (700, 900))
"""Shapes of float32 tensors that go by the bulk socket, in one chunk or more."""
SIGNALS = ("net", "net", "up", "down", "other")
MODEL = {"strategy": "tensor_parallel", "dimension": 0, "mesh_axis": "model"}
BATCH = {"strategy": "data_parallel", "mesh_axis": "data"}
CONFIGS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"mesh": {"data": 2}, "sharding_config": {"net": BATCH}},
    {"mesh": {"model": 2}, "sharding_config": {"up": MODEL, "down": {**MODEL, "dimension": 1}}},
    {"sharding_config": {"net": {"strategy": "data_parallel"}}},
)

Array = np.ndarray[Any, Any]


class WrongResult(AssertionError):
    """A program got something that cannot be."""


class SavedState:
    """What a snapshot of one name may hold: by its number, the values of each that was taken."""

    def __init__(self) -> None:
        self.taken: dict[int, dict[str, Array]] = {}
        self.may_be: set[int] = set()
        """The numbers of which it must have one; 0: there need not be a snapshot."""
        self.late: set[int] = set()
        """Those that a service may have finished after the program lost it."""


class Program:
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
    ) -> None:
        self.service = service
        self.name = name
        self.random = random.Random(zlib.crc32(f"{service.scheduler.seed} {name}".encode()))
        self.acts = acts
        self.config = config
        self.pause = pause
        """The longest time, in seconds, for which it does nothing."""
        self.held: list[tuple[Any, Array]] = []
        """Tensors, and what they must be."""
        self.asked: list[tuple[Any, Array]] = []
        """Fetches that nobody has waited for, and what they must give."""
        self.saves = random.Random(f"{service.scheduler.seed} {name}") if saves else None
        """Draws when it saves what it holds; None: never. Other draws do not depend on it."""
        self.saved: dict[str, SavedState] = {}
        self.restored = 0
        self.answers = self.reconnects = 0
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
                    self._try(self._act, began)
                while self.asked or self.held:
                    self._try(self._last, began)
                self.reconnects += link.control.reconnects + link.bulk.reconnects
                gt.disconnect()
                self.done = True
                return
            except (ConnectionFailed, SessionError, WorkerLost, ConfigError) as error:
                self._note(error, began)
                self.held.clear()
                self.asked.clear()
                gt.disconnect()
                self._pause(1.0)
        raise WrongResult(f"{self.name} could not compute: {self.errors[-1]}")

    def _try(self, act: Callable[[], None], began: float) -> None:
        """Do something; what a lost worker held is gone, and the session goes on."""
        try:
            act()
        except WorkerLost as error:
            self._note(error, began)
            self.held.clear()

    def _note(self, error: GTError, began: float) -> None:
        now = self.service.scheduler.now
        self.errors.append((now, error))
        if not explains(self.service, error, self.name, began, now):
            raise WrongResult(f"{error!r} at {now:.3f} s, in a session from {began:.3f} s on") from error

    def _pause(self, seconds: float) -> None:
        self.service.scheduler.wait([], seconds)

    # what it does

    def _act(self) -> None:
        if self.saves is not None and self.saves.random() < 0.3:
            self._save_or_restore(self.saves)
            return
        draw = self.random.random()
        if draw < 0.15 or not self.held:
            self._put(self.random.choice(SHAPES))
        elif draw < 0.2:
            self._put(self.random.choice(LARGE_SHAPES))
        elif draw < 0.6:
            with gt.signal.context(self.random.choice(SIGNALS)):
                self._compute()
        elif draw < 0.7:
            tensor, value = self.random.choice(self.held)
            self._compare(tensor.numpy(), value)
        elif draw < 0.78:
            tensor, value = self.random.choice(self.held)
            self.asked.append((tensor.fetch(), value))
        elif draw < 0.83 and self.asked:
            future, value = self.asked.pop(self.random.randrange(len(self.asked)))
            self._compare(future.result(), value)
        elif draw < 0.9:
            del self.held[self.random.randrange(len(self.held))]
        elif draw < 0.91:
            self._ask()
        elif draw < 0.95:
            self._pause(self.random.random() * self.pause)
        else:
            self._step()

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

    def _ask(self) -> None:
        """Load another config, or ask the service for its statistics."""
        config = self.random.choice(CONFIGS)
        if config is None or self.service.size < 2:
            if gt.stats()["service"]["clients"] < 1:
                raise WrongResult("the service does not count the session that asks")
        else:
            gt.load_config(config)

    def _last(self) -> None:
        """Wait for what was asked for, then fetch what is held."""
        if self.asked:
            future, value = self.asked.pop()
            self._compare(future.result(), value)
        else:
            tensor, value = self.held.pop()
            self._compare(tensor.numpy(), value)

    def _compare(self, found: Array, value: Array) -> None:
        if found.shape != value.shape or found.dtype != value.dtype or not np.array_equal(found, value):
            raise WrongResult(f"fetched {found!r} for {value!r}")
        self.answers += 1

    def _drawn(self, shape: tuple[int, ...]) -> Array:
        return np.random.default_rng(self.random.getrandbits(32)).integers(-3, 4, shape, np.int8).astype(np.float32)

    def _put(self, shape: tuple[int, ...]) -> None:
        array = self._drawn(shape)
        tensor = gt.tensor(array)
        self.held.append((tensor, array.copy()))
        array[...] = 77  # the tensor is a copy

    def _compute(self) -> None:
        tensor, value = self.random.choice(self.held)
        if np.abs(value).max(initial=0) >= MAX_VALUE:
            return
        other, its = self.random.choice(self.held)
        draw = self.random.randrange(7)
        scalar = self.random.randint(-2, 2)
        if draw == 0:
            made = tensor + scalar, value + np.float32(scalar)
        elif draw == 1:
            made = tensor.relu(), np.maximum(value, np.float32(0))
        elif draw == 2:
            made = tensor * scalar + tensor, value * np.float32(scalar) + value
        elif draw == 3 and value.ndim:
            made = tensor.sum(0), value.sum(0)
        elif draw == 4 and value.ndim:
            made = gt.flip(tensor, (0,)), np.flip(value, 0)
        elif draw == 5 and value.shape == its.shape and np.abs(its).max(initial=0) < MAX_VALUE:
            made = tensor - other, value - its
        elif value.ndim == its.ndim == 2 and value.shape[1] == its.shape[0] and value.size < 100 > its.size:
            if np.abs(its).max(initial=0) >= MAX_VALUE:
                return
            made = tensor @ other, value @ its
        else:
            return
        self.held.append(made)

    def _step(self) -> None:
        """A step of gradient descent on a linear layer."""
        x, y, w = self._drawn((4, 4)), self._drawn((4, 2)), self._drawn((4, 2))
        weight = gt.tensor(w, requires_grad=True)
        with gt.signal.context("net"):
            loss = ((gt.tensor(x) @ weight - gt.tensor(y)) ** 2).sum()
        loss.backward()
        with gt.no_grad():
            stepped = weight - weight.grad
        error = x @ w - y
        self.held.append((loss.detach(), (error**2).sum()))
        self.held.append((stepped.detach(), w - 2 * (x.T @ error)))
