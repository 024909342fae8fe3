"""What makes `gt.compile` trace a function anew: its arguments, what it reaches by name, and the mode that it runs in."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
from compiled_results import t, told

import gt
from gt import nn, optim


@pytest.mark.usefixtures("session")
def test_another_signature_is_another_trace() -> None:
    """Shapes, dtypes and Python values of arguments: each is traced twice, and counted."""

    @gt.compile
    def scaled(a: gt.Tensor, by: Any, *, flip: bool = False) -> gt.Tensor:
        return -a * by if flip else a * by

    for _ in range(3):
        for size in (2, 3):
            np.testing.assert_array_equal(scaled(gt.ones(size), 2.0).numpy(), np.full(size, 2.0))
            np.testing.assert_array_equal(scaled(gt.ones(size), 3.0, flip=True).numpy(), np.full(size, -3.0))
            np.testing.assert_array_equal(scaled(gt.ones(size).double(), 3).numpy(), np.full(size, 3.0))
    assert scaled.stats == {"calls": 18, "traces": 12, "replays": 6, "guard_misses": {"the arguments": 5}}
    counted = gt.stats()["compiled"]
    assert (counted["traces"], counted["replays"], counted["guard_misses"]) == (12, 6, {"the arguments": 5})


SCALE = 2.0


class Settings:
    """What a program keeps its settings in."""

    def __init__(self) -> None:
        self.by = 1.0
        self.shifts = [0.0]


@pytest.mark.usefixtures("session")
def test_what_a_function_reaches_by_name_is_seen_to_change() -> None:
    """Globals, attributes of the program's own objects, closures and lists, also of a function that is called."""
    global SCALE
    own = Settings()
    bias = t(1)

    def inner(a: gt.Tensor) -> gt.Tensor:
        return a * own.by + own.shifts[0]

    @gt.compile
    def outer(a: gt.Tensor) -> gt.Tensor:
        return inner(a) * SCALE + bias

    def now() -> float:
        return [outer(t(3)).item() for _ in range(4)][-1]

    try:
        assert now() == 3 * 2 + 1
        SCALE = 10.0
        assert now() == 3 * 10 + 1
        own.by = 2.0
        assert now() == 6 * 10 + 1
        own.shifts[0] = 1.0
        assert now() == 7 * 10 + 1
        own.shifts.append(5.0)
        bias = t(2)
        assert now() == 7 * 10 + 2
        own = Settings()
        assert now() == 3 * 10 + 2
        bias.fill_(4.0)  # the same handle
        assert now() == 3 * 10 + 4
    finally:
        SCALE = 2.0
    misses = outer.stats["guard_misses"]
    assert {"SCALE", "own.by", "own.shifts[0]"} <= set(misses)


FACTOR = 1.0


@gt.no_grad()
def decorated(a: gt.Tensor) -> gt.Tensor:
    return a * FACTOR


@functools.lru_cache
def cached(kind: str) -> float:
    return FACTOR


@contextmanager
def entered() -> Iterator[float]:
    yield FACTOR


class Trainer:
    """A program's own class: what a step does not name may change beside it."""

    kinds: ClassVar[dict[str, bool]] = {"plain": True}

    def __init__(self) -> None:
        self.history: list[float] = []
        self.steps = 0
        self.scale = 2.0

    @property
    def factor(self) -> float:
        return self.scale

    def fit(self) -> list[float]:
        for _ in range(6):
            self.history.append(self.step(t(3)).item())
            self.steps += 1
        return self.history[-2:]

    @gt.compile
    def step(self, a: gt.Tensor) -> gt.Tensor:
        with entered() as by:
            return decorated(a) * self.factor * by + (1.0 if "plain" in self.kinds else 0.0)


@pytest.mark.usefixtures("session")
def test_only_what_the_code_names_is_a_guard() -> None:
    """Not the rest of an object; but what is read behind decorators, properties, caches and names of entries."""
    global FACTOR
    trainer = Trainer()
    try:
        assert trainer.fit() == [7, 7]
        assert Trainer.step.stats["guard_misses"] == {}
        assert Trainer.step.stats["replays"] == 4
        trainer.scale = 4.0
        assert trainer.fit() == [13, 13]
        FACTOR = 2.0
        assert trainer.fit() == [49, 49]
        Trainer.kinds["other"] = Trainer.kinds.pop("plain")
        assert trainer.fit() == [48, 48]
        assert {"FACTOR", "a key of Trainer.kinds"} < set(Trainer.step.stats["guard_misses"])
    finally:
        FACTOR = 1.0
    table = {"by": 2.0}

    @gt.compile
    def function(a: gt.Tensor) -> gt.Tensor:
        return a * getattr(Trainer, "late", cached("any")) + table.get("by", 5.0)

    assert [function(t(1)).item() for _ in range(4)][-1] == 3
    table["other"] = table.pop("by")
    assert [function(t(1)).item() for _ in range(4)][-1] == 6
    assert function.stats["replays"] == 4


@pytest.mark.usefixtures("session")
def test_states_of_modules_and_optimizers_are_live() -> None:
    """eval(), a loaded state, a frozen parameter, another learning rate and zero_grad are seen by the next call."""

    def run(compiled: bool) -> list[Any]:
        gt.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        optimizer = optim.SGD(model.parameters(), lr=0.001, momentum=0.5)

        def step(x: gt.Tensor) -> gt.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step = gt.compile(step) if compiled else step
        saved = {name: value.numpy() for name, value in model.state_dict().items()}
        changes: list[Callable[[], Any]] = [
            lambda: None,
            lambda: model.eval(),
            lambda: model.load_state_dict(saved),
            lambda: model[0].requires_grad_(False),
            lambda: optimizer.param_groups[0].update(lr=0.01),
            lambda: optimizer.param_groups[0].update(momentum=0.0),
            lambda: optimizer.zero_grad(),
            lambda: optimizer.zero_grad(set_to_none=False),
            lambda: model.train(),
            lambda: optimizer.load_state_dict(optimizer.state_dict()),
            lambda: setattr(model, "2", nn.Identity()),
            lambda: model[3].register_forward_hook(lambda module, args, out: out * 2.0),
        ]
        found: list[Any] = []
        for change in changes:
            change()
            found += [step(gt.full((4, 3), float(at)) + gt.arange(4).float().reshape(4, 1)).item() for at in range(4)]
        found += [told(value) for value in model.state_dict().values()]
        if compiled:
            assert step.reason is None
            assert step.stats["replays"] >= 20
        return found

    assert run(True) == run(False)


@pytest.mark.usefixtures("session")
def test_a_learning_rate_that_the_function_reads_itself_is_a_guard() -> None:
    """Its own use of the number changes with it, too."""
    w = nn.Parameter(gt.ones(2))
    optimizer = optim.SGD([w], lr=0.5)

    @gt.compile
    def step(a: gt.Tensor) -> Any:
        w.grad = a * 1.0
        optimizer.step()
        return a * optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["lr"]

    for rate in (0.5, 0.25):
        optimizer.param_groups[0]["lr"] = rate
        for _ in range(4):
            scaled, said = step(gt.ones(2))
            assert said == rate
            np.testing.assert_array_equal(scaled.numpy(), [rate, rate])
    np.testing.assert_array_equal(w.detach().numpy(), [-2, -2])
    assert step.stats["replays"] == 3


@pytest.mark.usefixtures("session")
def test_signals_and_grad_modes_are_part_of_a_signature() -> None:
    """Inside of another signal, without gradients or under another default dtype it is traced anew."""

    @gt.compile
    def function(a: gt.Tensor) -> Any:
        return a * 2.0, gt.signal.current(), gt.is_grad_enabled(), gt.zeros(1)

    a = t(1).requires_grad_()
    for _ in range(4):
        assert function(a)[1:3] == ((), True)
        assert function(a)[0].requires_grad
        with gt.signal.context("inner"), gt.no_grad():
            assert function(a)[1:3] == (("inner",), False)
            assert not function(a)[0].requires_grad
        gt.set_default_dtype("float64")
        try:
            assert function(a)[3].dtype is gt.float64
        finally:
            gt.set_default_dtype("float32")
    assert function.stats["replays"] > 8


@pytest.mark.usefixtures("session")
def test_the_same_tensor_twice_is_another_signature() -> None:
    """What shares a handle or a value is told apart from what does not."""

    @gt.compile
    def function(a: gt.Tensor, b: gt.Tensor) -> gt.Tensor:
        a.add_(1.0)
        return a + b

    for _ in range(4):
        x = t(1, 2)
        np.testing.assert_array_equal(function(x, x).numpy(), [4, 6])
        np.testing.assert_array_equal(function(t(1, 2), t(1, 2)).numpy(), [3, 5])
    assert function.stats["replays"] == 4


class Scaling(abc.ABC):
    """A class of another kind than `type`, as any class of a program may be."""

    factor: ClassVar[float] = 3.0

    @abc.abstractmethod
    def scaled(self, x: gt.Tensor) -> gt.Tensor: ...


class Triple(Scaling):
    """The one that there is."""

    def scaled(self, x: gt.Tensor) -> gt.Tensor:
        return gt.clone(x) * self.factor


@pytest.mark.usefixtures("session")
def test_classes_of_any_kind_and_functions_of_gt_are_reached() -> None:
    clone, kind = gt.clone, Triple

    @functools.partial(gt.compile, fullgraph=True)
    def tripled(x: gt.Tensor) -> gt.Tensor:
        return kind().scaled(clone(x))

    for number in range(4):
        assert tripled(gt.full((2,), float(number))).tolist() == [3.0 * number] * 2
    assert tripled.stats["replays"] == 2
