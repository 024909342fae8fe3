"""`gt.compile`: what is compiled computes, leaves and draws what it would have uncompiled, in written and in random programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from compiled_results import t, told
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
import gt.nn.functional as F

Inspect = Callable[[], Any]


# Programs, each made anew: the function, and what it leaves.


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


@pytest.mark.usefixtures("session")
def test_a_view_of_one_place_is_one_of_the_call_that_returned_it() -> None:
    function = gt.compile(lambda x, at: x[at], fullgraph=True)
    x = gt.zeros(3)
    for turn in range(6):
        function(x, gt.tensor(turn % 3)).add_(1)
    assert x.tolist() == [2, 2, 2]
    assert function.stats["replays"] >= 3


@pytest.mark.usefixtures("session")
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
