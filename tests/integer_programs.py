"""Small random GT programs, each with NumPy as the oracle for every value that it fetches.

All numbers are small integers, so sums are exact in any order, and every value must be right bit by bit.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

import gt

MAX_VALUE = 1000
"""Only tensors of smaller numbers are computed with."""
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

REPLICATED_CONFIGS: tuple[dict[str, Any] | None, ...] = (
    {"mesh": {"data": 2}, "sharding_config": {}},
    {"mesh": {"data": 2}, "sharding_config": {"net": BATCH}},
)
"""Under which each of two workers has all, or all but what some signal cuts."""

ELASTIC_CONFIGS: tuple[dict[str, Any] | None, ...] = (
    *CONFIGS,
    {"mesh": {"data": "auto"}, "sharding_config": {"net": {"strategy": "data_parallel"}}},
    {"mesh": {"data": "auto", "model": 1}, "sharding_config": {"net": {"strategy": "fully_sharded"}}},
)
WIDE = [each for each in ELASTIC_CONFIGS if each is not None and "auto" in each.get("mesh", {"data": "auto"}).values()]
SHRINKING_CONFIGS = (*ELASTIC_CONFIGS, *WIDE, *WIDE)
"""Most of them with meshes over all workers."""

Array = np.ndarray[Any, Any]


class WrongResult(AssertionError):
    """A program got something that cannot be."""


class IntegerProgram(ABC):
    """Draws what one program does by `draw`, and compares what it fetches."""

    def __init__(self, draw: random.Random) -> None:
        self.random = draw
        self.held: list[tuple[Any, Array]] = []
        """Tensors, and what they must be."""
        self.asked: list[tuple[Any, Array]] = []
        """Fetches that nobody has waited for, and what they must give."""
        self.answers = 0
        """How many values it has fetched."""

    def drop(self) -> None:
        """Hold nothing any more, because the session has ended."""
        self.held.clear()
        self.asked.clear()

    def act(self) -> None:
        """Do something."""
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
            self._pause(self.random.random())
        else:
            self._step()

    def finish(self) -> None:
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

    @abstractmethod
    def _ask(self) -> None:
        """Ask the service for something else."""

    @abstractmethod
    def _pause(self, share: float) -> None:
        """Do nothing for this share of the longest pause."""
