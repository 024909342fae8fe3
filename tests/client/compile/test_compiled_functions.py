"""What a compiled function is: it decorates, nests, is shared by threads, passes gradients and errors on, leaves nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from compiled_results import t, told
from live_values import live_values, without_garbage_collector

import gt
from gt import nn, optim
from gt.client.session import sessions


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

    def generator() -> Iterator[None]:
        yield

    for wrong in (3, Net, generator):
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
    with without_garbage_collector():
        for at in range(300):
            step(gt.ones(4, 6))
            if at % 50 == 20:
                gt.flush()
                (client,) = fabric.dispatcher.service.clients.values()
                stored = [len(store) for worker in fabric.workers.values() for store in worker.stored.tensors.values()]
                values = live_values()
                sizes.append((values, len(client.table), *stored))
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
            with pytest.raises(gt.IndexOutOfRange, match=r"test_compiled_functions\.py"):
                out.numpy()
        else:
            np.testing.assert_array_equal(out.numpy(), [2 * at + 2])
    assert picked.stats["replays"] == 4
