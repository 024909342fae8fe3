"""`gt.compile`: what is compiled computes, leaves and raises what it would have uncompiled, and says when it cannot."""

from __future__ import annotations

import functools
import gc
import random
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
import gt.nn.functional as F
from gt import nn, optim
from gt.client import session as sessions
from gt.client.compiling import Compiled
from gt.client.value import Value

CONFIGS = Path(__file__).parents[2] / "configs"
Inspect = Callable[[], Any]


def t(*values: float) -> gt.Tensor:
    return gt.tensor(np.array(values, np.float32))


def told(value: Any) -> Any:
    """All that a program can see of a result."""
    if isinstance(value, gt.Tensor):
        version = value._version if value._view is None else None  # of a view it counts when it was cut again
        return value.numpy().tolist(), str(value.dtype), value.requires_grad, version
    if isinstance(value, (tuple, list)):
        return [told(each) for each in value]
    return {name: told(each) for name, each in value.items()} if isinstance(value, dict) else value


# Programs, each made anew: (the function, what it leaves), and what hinders it if anything does.


def stateless() -> tuple[Any, Inspect]:
    return lambda a: {"out": [a * 2.0 + a, (a.sum(), None)], "number": 3}, lambda: None


def state_in_place() -> tuple[Any, Inspect]:
    total = gt.zeros(3)

    def function(a: gt.Tensor) -> gt.Tensor:
        total.add_(a)
        return total * 2.0

    return function, lambda: total


def argument_in_place() -> tuple[Any, Inspect]:
    def function(a: gt.Tensor) -> gt.Tensor:
        a.mul_(2.0)
        a[0] = 5.0
        return a

    return function, lambda: None


def written_through_a_view() -> tuple[Any, Inspect]:
    base = gt.zeros(4)
    view = base[1:3]

    def function(a: gt.Tensor) -> gt.Tensor:
        view.add_(a[:2])
        return base.sum()

    return function, lambda: [base, view]


def views_returned() -> tuple[Any, Inspect]:
    base = gt.arange(6, dtype="float32")
    kept: list[Any] = []

    def function(a: gt.Tensor) -> Any:
        base.add_(1.0)
        return base.reshape(2, 3), a[1:], (a + 1.0)[0:1], a

    def inspect() -> Any:
        view = kept[0] if kept else base[:2]
        kept[:] = [view]
        return [view, base]

    return function, inspect


def random_numbers() -> tuple[Any, Inspect]:
    gt.manual_seed(5)
    return lambda a: [a + gt.rand(3), gt.randn(2), F.dropout(a, 0.5), gt.randint(0, 9, (2,))], lambda: gt.rand(1)


def accumulated_gradients() -> tuple[Any, Inspect]:
    w = t(1, 2, 3).requires_grad_()

    def function(a: gt.Tensor) -> gt.Tensor:
        (w * a).exp().sum().backward()
        assert w.grad is not None
        return w.grad * 1.0

    return function, lambda: w.grad


def gradient_set() -> tuple[Any, Inspect]:
    w = t(1, 2, 3).requires_grad_()

    def function(a: gt.Tensor) -> None:
        w.grad = a * 2.0

    return function, lambda: w.grad


def higher_gradients() -> tuple[Any, Inspect]:
    w = t(1, 2, 3).requires_grad_()

    def function(a: gt.Tensor) -> Any:
        (first,) = gt.autograd.grad((w * a).exp().sum(), [w], create_graph=True)
        (second,) = gt.autograd.grad(first.sum(), [w])
        return first.detach(), second

    return function, lambda: w.grad


def recomputed() -> tuple[Any, Inspect]:
    w = t(1, 2, 3).requires_grad_()
    stretch = gt.checkpointed(lambda a: F.dropout((w * a).exp(), 0.5))

    def function(a: gt.Tensor) -> Any:
        w.grad = None
        loss = stretch(a).sum()
        loss.backward()
        return loss

    return function, lambda: w.grad


def recomputed_around() -> tuple[Any, Inspect]:
    """Of which the compiled part is what is recomputed."""
    w = t(1, 2, 3).requires_grad_()

    def function(a: gt.Tensor) -> Any:
        return F.dropout((w * a).exp(), 0.5)

    return function, lambda: w.grad


def own_generator() -> tuple[Any, Inspect]:
    own = gt.Generator().manual_seed(7)
    return lambda a: [a + gt.rand(3), gt.randn(3, generator=own)], lambda: gt.rand(1, generator=own)


def under_autocast() -> tuple[Any, Inspect]:
    def function(a: gt.Tensor) -> Any:
        with gt.autocast("cpu"):
            return a.reshape(1, 3) @ a.reshape(3, 1), gt.signal.current()

    return function, lambda: None


PROGRAMS = [
    stateless, state_in_place, argument_in_place, written_through_a_view, views_returned, random_numbers,
    accumulated_gradients, gradient_set, higher_gradients, recomputed, recomputed_around, own_generator, under_autocast,
]  # fmt: skip


def calls(make: Callable[[], tuple[Any, Inspect]], compiled: bool, count: int) -> tuple[list[Any], Any]:
    """What each of so many calls returned and left."""
    gt.manual_seed(0)
    function, inspect = make()
    function = gt.compile(function) if compiled else function
    return [(told(function(t(1, 2, at))), told(inspect())) for at in range(count)], function


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_a_compiled_function_does_what_it_does_uncompiled(make: Callable[[], tuple[Any, Inspect]]) -> None:
    """Results, states, gradients, versions and random numbers, call by call; the later calls are runs."""
    expected, _ = calls(make, False, 8)
    found, function = calls(make, True, 8)
    assert found == expected
    assert function.reason is None
    assert function.stats["replays"] >= 4


@pytest.mark.usefixtures("session")
def test_what_is_recomputed_may_be_compiled() -> None:
    """The second time it gives the same random numbers."""

    def run(compiled: bool) -> list[Any]:
        gt.manual_seed(0)
        function, inspect = recomputed_around()
        stretch = gt.checkpointed(gt.compile(function) if compiled else function)
        found = []
        for at in range(6):
            loss = stretch(t(1, 2, at)).sum()
            loss.backward()
            found.append(told([loss, inspect(), gt.rand(1)]))
        return found

    assert run(True) == run(False)


def clock(a: gt.Tensor) -> gt.Tensor:
    return a * ROLLS.random()


ROLLS = random.Random(0)
KEPT: list[gt.Tensor] = []
GENERATED = iter(lambda: t(1, 2, 3), None)


def fetching(a: gt.Tensor) -> gt.Tensor:
    return a if a.sum() > 0 else -a


def putting(a: gt.Tensor) -> gt.Tensor:
    return a + gt.tensor([1.0, 2.0, 3.0])


def keeping(a: gt.Tensor) -> gt.Tensor:
    KEPT.append(a * 2.0)
    return a + 1.0


def counting(a: gt.Tensor) -> gt.Tensor:
    counting.calls += 1  # type: ignore[attr-defined]
    return a * 2.0


counting.calls = 0  # type: ignore[attr-defined]


def hiding(a: gt.Tensor) -> gt.Tensor:
    hidden = iter([a * 2.0])
    KEEPER.send(hidden)
    return a + 1.0


def _keeper() -> Iterator[None]:
    kept = []
    while True:
        kept.append((yield))  # type: ignore[func-returns-value]


KEEPER: Any = _keeper()
next(KEEPER)


def reaching(a: gt.Tensor) -> gt.Tensor:
    return a + next(UNSEEN)


UNSEEN = iter([])


def returning(a: gt.Tensor) -> Any:
    return a + 1.0, object()


HINDERED = [
    (clock, r"test_compile.py:\d+: the number"),
    (fetching, r"test_compile.py:\d+: it fetches a value"),
    (putting, r"test_compile.py:\d+: it puts data"),
    (keeping, r"it changes what it reads: KEPT is \d+ entries long"),
    (counting, r"it changes what it reads: .*calls"),
    (hiding, r"test_compile.py:\d+: the result of mul is kept where"),
    (reaching, r"test_compile.py:\d+: it reads a tensor that it is not given"),
    (returning, r"it returns a object"),
]


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(("function", "reason"), HINDERED, ids=lambda value: getattr(value, "__name__", ""))
def test_what_cannot_be_traced_runs_as_it_is_and_is_told_once(function: Any, reason: str) -> None:
    """One warning with the reason, and the line where there is one; every call gives what it would have given."""
    global UNSEEN
    UNSEEN = iter([gt.ones(3) for _ in range(40)])
    ROLLS.seed(1)
    expected = [told(function(t(1, 2, at))) for at in range(20) if function is not returning]
    ROLLS.seed(1)
    compiled = gt.compile(function)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [told(compiled(t(1, 2, at))) for at in range(20)]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "runs uncompiled from now on: " in str(caught[0].message)
    assert compiled.stats["replays"] == 0
    np.testing.assert_array_equal((gt.ones(2) + 1.0).numpy(), [2, 2])
    assert re.search(reason, compiled.reason), compiled.reason
    assert function is returning or found == expected


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("function", [fetching, putting, returning], ids=lambda value: value.__name__)
def test_a_full_graph_is_demanded(function: Any) -> None:
    """With `fullgraph=True` what hinders is an error, raised in the line itself where there is one."""
    compiled = gt.compile(function, fullgraph=True)
    with pytest.raises(gt.CompileError):
        compiled(t(1, 2, 3))
    np.testing.assert_array_equal((gt.ones(2) + 1.0).numpy(), [2, 2])


# guards


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


# what compiled functions are


@pytest.mark.usefixtures("session")
def test_it_decorates_functions_methods_and_modules() -> None:
    """With PyTorch's arguments and without; attributes, state and copies of a module are its own."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.scale = 2.0

        def forward(self, x: gt.Tensor) -> gt.Tensor:
            return self.layer(x) * self.scale

        @gt.compile
        def double(self, x: gt.Tensor) -> gt.Tensor:
            return self.forward(x) * 2.0

    @gt.compile(mode="max-autotune", dynamic=True, backend="inductor", options={})
    def function(x: gt.Tensor) -> gt.Tensor:
        """What it does."""
        return x + 1.0

    assert function.__name__ == "function"
    assert function.__doc__ == "What it does."
    net = Net()
    compiled = gt.compile(net)
    assert isinstance(compiled, Net)
    assert list(compiled.state_dict()) == list(net.state_dict())
    x = gt.ones(1, 2)
    for at in range(4):
        assert function(t(at)).item() == at + 1
        np.testing.assert_array_equal(compiled(x).numpy(), net(x).numpy())
        np.testing.assert_array_equal(net.double(x).numpy(), (net(x) * 2.0).numpy())
    assert compiled._compiled.stats["replays"] == 2
    compiled.scale = 3.0
    assert net.scale == 3.0
    np.testing.assert_array_equal(compiled(x).numpy(), net(x).numpy())
    compiled.eval()
    assert not net.training
    import copy

    other = copy.deepcopy(compiled)
    other.scale = 1.0
    np.testing.assert_array_equal((other(x) * 3.0).numpy(), compiled(x).numpy())
    outer = nn.Sequential(compiled, nn.ReLU())
    assert [name for name, _ in outer.named_parameters()] == ["0.layer.weight", "0.layer.bias"]
    assert outer(x).shape == (1, 2)
    assert gt.compile(function) is function
    assert gt.compile(net, disable=True) is net
    for wrong in (3, Net, _keeper):
        with pytest.raises(TypeError, match=r"gt\.compile takes"):
            gt.compile(wrong)


@pytest.mark.usefixtures("session")
def test_compiled_functions_nest() -> None:
    """One inside of another is a part of it."""

    @gt.compile
    def inner(a: gt.Tensor) -> gt.Tensor:
        return a * 2.0

    @gt.compile
    def outer(a: gt.Tensor) -> gt.Tensor:
        return inner(a) + inner(a + 1.0)

    for at in range(5):
        assert outer(t(at)).item() == 4 * at + 2
    assert outer.stats["replays"] == 3
    assert inner.stats["traces"] == 0


@dataclass
class Pair:
    """A result with names."""

    first: gt.Tensor
    rest: dict[str, Any]


class Named(NamedTuple):
    """Another one."""

    one: gt.Tensor
    other: list[Any]


@pytest.mark.usefixtures("session")
def test_results_are_nests_of_any_kind() -> None:
    """Dataclasses, named tuples, dictionaries and lists come back as what they were, each time their own."""

    @gt.compile
    def function(a: gt.Tensor) -> Any:
        b = a + 1.0
        return Pair(b, {"named": Named(b, [a, 3, "three"])})

    last = None
    for at in range(5):
        a = t(at)
        out = function(a)
        assert type(out) is Pair
        assert type(out.rest["named"]) is Named
        assert out.rest["named"].one is out.first
        assert out.rest["named"].other[0] is a
        assert out.rest["named"].other[1:] == [3, "three"]
        assert out.first.item() == at + 1
        assert last is None or last.rest is not out.rest
        last = out
    assert function.stats["replays"] == 3


@pytest.mark.usefixtures("session")
def test_gradients_go_through_what_was_compiled() -> None:
    """A forward pass alone: backward outside, twice, through a graph of arguments, with hooks, and of gradients."""

    def run(compiled: bool) -> list[Any]:
        w = t(1, 2).requires_grad_()

        def forward(a: gt.Tensor) -> Any:
            return (w * a).exp().sum(), w * a

        function: Any = gt.compile(forward) if compiled else forward
        found: list[Any] = []
        for at in range(5):
            loss, other = function(t(1, at))
            other.register_hook(lambda gradient: gradient * 2.0)
            (loss + other.sum()).backward()
            found.append(told(w.grad))
        for at in range(4):
            a = t(1, at).requires_grad_()
            loss, _ = function(a * 2.0)
            loss.backward(retain_graph=True)
            loss.backward()
            found.append(told([a.grad, w.grad]))
            with pytest.raises(gt.GradientError, match="second time"):
                loss.backward()
        for _ in range(4):
            a = t(3, 4).requires_grad_()
            loss, _ = function(a)
            (gradient,) = gt.autograd.grad(loss, [a], create_graph=True)
            gradient.sum().backward()
            found.append(told([a.grad, w.grad]))
        return found

    assert run(True) == run(False)


@pytest.mark.usefixtures("session")
def test_an_error_inside_leaves_what_it_would_have_left() -> None:
    """Whether it is traced at that moment or not; the function is compiled all the same later."""
    total = gt.zeros(2)
    fail = [True]

    @gt.compile
    def function(a: gt.Tensor) -> gt.Tensor:
        total.add_(a)
        if fail[0]:
            raise ValueError("not now")
        return total + 1.0

    for _ in range(3):
        with pytest.raises(ValueError, match="not now"):
            function(gt.ones(2))
    np.testing.assert_array_equal(total.numpy(), [3, 3])
    fail[0] = False
    for at in range(4):
        np.testing.assert_array_equal(function(gt.ones(2)).numpy(), [5 + at, 5 + at])
    assert function.stats["replays"] == 2


def test_a_new_session_is_traced_anew() -> None:
    """Traces of a session that has ended are not used; tensors of it are refused as ever."""
    model = None

    @gt.compile
    def function(a: gt.Tensor) -> gt.Tensor:
        return a * 2.0

    for _ in range(2):
        gt.connect("inproc", workers=1)
        for at in range(4):
            assert function(t(at)).item() == 2 * at
        model = gt.ones(1)
    assert function.stats["replays"] == 4
    gt.disconnect()
    gt.connect("inproc", workers=1)
    with pytest.raises(gt.SessionError, match="has ended"):
        function(model)
    gt.disconnect()


@pytest.mark.usefixtures("session")
def test_threads_share_a_compiled_function() -> None:
    """Each has its own builder; what one computes another may pass."""

    @gt.compile
    def function(a: gt.Tensor, b: gt.Tensor) -> gt.Tensor:
        return a * 2.0 + b

    shared = gt.ones(3)
    found: dict[int, list[Any]] = {}

    def work(me: int) -> None:
        mine = [function(gt.full((3,), float(at)), shared + float(me)) for at in range(20)]
        found[me] = [out.numpy().tolist() for out in mine]

    for _ in range(2):
        threads = [threading.Thread(target=work, args=(me,)) for me in range(3)]
        for thread in threads:
            thread.start()
            thread.join()
    for me in range(3):
        assert found[me] == [[2.0 * at + 1 + me] * 3 for at in range(20)]
    assert function.reason is None


def test_nothing_is_left_behind() -> None:
    """Over a thousand runs of a step the client's values, the service's table and the stores keep their sizes."""
    gt.connect("inproc", workers=2, config={"sharding_config": {"net": {"strategy": "data_parallel"}}})
    fabric: Any = sessions.current().link.fabric  # type: ignore[attr-defined]
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 4))
    optimizer = optim.Adam(model.parameters(), lr=0.01)

    @gt.compile
    def step(x: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        with gt.signal.context("net"):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    sizes: list[Any] = []
    gc.collect()
    gc.disable()
    try:
        for at in range(300):
            step(gt.ones(4, 6))
            if at % 50 == 20:
                gt.flush()
                (client,) = fabric.dispatcher.service.clients.values()
                stored = [len(store) for worker in fabric.workers.values() for store in worker.stored.tensors.values()]
                values = sum(issubclass(type(thing), Value) for thing in gc.get_objects())
                sizes.append((values, len(client.table), *stored))
    finally:
        gc.enable()
    fabric.check()
    assert step.stats["replays"] > 290
    assert len(set(sizes[1:])) == 1, sizes
    gt.disconnect()


@pytest.mark.usefixtures("session")
def test_what_is_lost_is_told_at_a_fetch() -> None:
    """An instruction that fails in a run gives its error where the value is fetched; the next run is well again."""

    @gt.compile
    def picked(a: gt.Tensor, at: gt.Tensor) -> gt.Tensor:
        return (a * 2.0)[at]

    for at in (0, 1, 2, 1, 9, 2):
        out = picked(t(1, 2, 3), gt.tensor([at]))
        if at == 9:
            with pytest.raises(gt.IndexOutOfRange, match=r"test_compile\.py"):
                out.numpy()
        else:
            np.testing.assert_array_equal(out.numpy(), [2 * at + 2])
    assert picked.stats["replays"] == 4


# random programs


def gradient(a: gt.Tensor, b: gt.Tensor) -> gt.Tensor:
    leaf = a.detach().clone().requires_grad_()
    (leaf * b.detach()).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


MADE: dict[str, Callable[[gt.Tensor, gt.Tensor], gt.Tensor]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b * 0.5,
    "sub": lambda a, b: a - b,
    "relu": lambda a, b: a.relu(),
    "matmul": lambda a, b: (a @ b).tanh(),
    "turned": lambda a, b: a.T,
    "row": lambda a, b: a[1:2].expand(3, 3),
    "flat": lambda a, b: a.reshape(9)[:3].reshape(3, 1) + b,
    "detached": lambda a, b: a.detach(),
    "copied": lambda a, b: a.clone(),
    "drawn": lambda a, b: a + gt.rand(3, 3),
    "gradient": gradient,
}
STEPS = st.lists(
    st.tuples(st.sampled_from([*MADE, "add_", "set"]), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=12
)


def performed(steps: list[tuple[str, int, int]], pool: list[gt.Tensor]) -> list[gt.Tensor]:
    """The tensors after these steps, each of which takes two of a pool and adds one, or writes to one of the first."""
    for kind, i, j in steps:
        a, b = pool[i % len(pool)], pool[j % len(pool)]
        if kind in MADE:
            pool = [*pool, MADE[kind](a, b)]
        elif kind == "add_":
            pool[i % 3].add_(b * 0.5)
        else:
            pool[i % 3][0] = b[1]
    return pool


@pytest.mark.usefixtures("shared")
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, returned=st.lists(st.integers(0, 12), max_size=4))
def test_random_programs_do_what_they_do_uncompiled(steps: list[tuple[str, int, int]], returned: list[int]) -> None:
    """Of a state, an argument and a view of the state: results and states of six calls."""

    def run(compiled: bool) -> list[Any]:
        gt.manual_seed(0)
        state = gt.arange(9).float().reshape(3, 3) / 4
        state = state.clone()
        view = state.T

        def body(x: gt.Tensor) -> list[gt.Tensor]:
            pool = performed(steps, [state, x, view])
            return [pool[at % len(pool)] for at in returned]

        function: Any = gt.compile(body) if compiled else body
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = []
            for at in range(6):
                x = gt.full((3, 3), at / 8) + gt.eye(3)
                found.append((told(function(x)), told([state, view, x])))
        return found

    assert run(True) == run(False)


def test_a_compiled_function_is_counted_by_itself() -> None:
    """`reset()` forgets traces, counts and what hindered."""
    gt.connect("inproc", workers=1)
    compiled = gt.compile(fetching)
    assert isinstance(compiled, Compiled)
    compiled(t(1, 2, 3))
    with pytest.warns(UserWarning, match="runs uncompiled from now on"):
        compiled(t(1, 2, 3))
    compiled(t(1, 2, 3))
    assert compiled.reason is not None
    compiled.reset()
    assert compiled.reason is None
    assert compiled.stats["calls"] == 0
    gt.disconnect()


def test_a_view_of_one_place_is_one_of_the_call_that_returned_it() -> None:
    function = gt.compile(lambda x, at: x[at], fullgraph=True)
    x = gt.zeros(3)
    for turn in range(6):
        function(x, gt.tensor(turn % 3)).add_(1)
    assert x.tolist() == [2, 2, 2]
    assert function.stats["replays"] >= 3


def test_replaced_values_and_resting_gradients_are_what_they_are_uncompiled() -> None:
    """`x.data = …` in a compiled function leaves views from outside with the old values; gradients of frozen leaves count."""

    def run(compiled: bool) -> list[Any]:
        weight = gt.tensor([1.0, 2.0], requires_grad=True)
        frozen = gt.tensor([3.0, 4.0], requires_grad=True)
        (frozen * frozen).sum().backward()
        frozen.requires_grad_(False)

        def step(x: gt.Tensor) -> gt.Tensor:
            loss = (x * weight * frozen).sum()
            (slope,) = gt.autograd.grad(loss, [weight])
            weight.data = weight.data - 0.1 * slope
            with gt.no_grad():
                frozen.sub_(frozen.grad, alpha=0.1)
            return loss

        call: Any = gt.compile(step, fullgraph=True) if compiled else step
        seen: list[Any] = []
        for turn in range(6):
            old = weight.data
            seen.append(call(gt.tensor([1.0, turn / 2])).item())
            seen += [old.tolist(), weight.tolist(), frozen.tolist()]
        if compiled:
            assert call.stats["replays"] >= 3
        return seen

    assert run(compiled=True) == run(compiled=False)
