"""`gt.function` and `gt.move`: where a program's functions and tensors are, how urgent they are, and what is done anew."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.service.regions import device_name
from gt.sharding.placement import At

HUGE = 1 << 45
"""Elements of float32 for which no machine has memory."""


@pytest.fixture
def three() -> Iterator[Any]:
    """A session on a service of three workers in memory."""
    opened = gt.connect("inproc", workers=3)
    gt.manual_seed(0)
    yield opened
    gt.disconnect()


@pytest.fixture
def session() -> Iterator[Any]:
    """The same with one worker."""
    yield gt.connect("inproc", workers=1)
    gt.disconnect()


def worker_of(session: Any, tensor: gt.Tensor) -> int:
    """The number of the worker that has a tensor, where one has."""
    value = tensor._current()
    gt.synchronize()
    (client,) = session.link.fabric.dispatcher.service.clients.values()
    (placement,) = client.table[value.id].resident.layout
    mesh = client.planner.mesh
    assert len(mesh.members) == 1 or isinstance(placement, At)
    return int(mesh.members[placement.position if isinstance(placement, At) else 0])


def test_a_moved_tensor_is_where_it_says_and_has_its_gradient(three: Any) -> None:
    """By number, name or device; there already it is itself, and what is computed from it follows it."""
    x = gt.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    home = worker_of(three, x)
    other, third = (each for each in gt.devices() if each.worker != home)
    y = gt.move(x, other)
    assert (str(x.device), str(y.device), y.device.index) == ("gt", f"gt:{other.worker}", other.worker)
    assert gt.move(y, other.worker) is y
    z = y * y + 1.0
    assert [worker_of(three, each) for each in (x, y, z)] == [home, other.worker, other.worker]
    assert z.device == gt.device("gt")
    z.sum().backward()
    assert np.array_equal(x.grad.numpy(), 2 * x.detach().numpy())
    back = gt.move(gt.move(z, f"gt:{third.worker}"), home)
    assert worker_of(three, back) == home
    assert np.array_equal(back.detach().numpy(), x.detach().numpy() ** 2 + 1)
    y += 1.0  # another value, of which the service says where it is
    assert y.device == gt.device("gt")


@pytest.mark.parametrize("wrong", ["gpu", "cuda:x", 1.5, -1, "gt", "cuda:1@"])
def test_what_names_no_device_is_refused(wrong: object) -> None:
    with pytest.raises(
        ValueError, match=r"names no device; allowed: cpu, cuda, .* gt:N, a number, one of gt\.devices\(\)"
    ):
        device_name("gt.move", wrong)


def test_a_worker_that_is_not_there_is_refused_and_the_session_goes_on(three: Any) -> None:
    x = gt.ones(3)
    with pytest.raises(gt.ConfigError, match=r"test_regions\.py:\d+: .*no worker that the session may use is gt:9"):
        gt.move(x, 9)

    @gt.function(device="cuda")
    def scaled(a: gt.Tensor) -> gt.Tensor:
        return a * 2.0

    with pytest.raises(gt.ConfigError, match=r"test_regions\.py:\d+: .*is cuda; allowed: gt:0 \(cpu\), gt:1"):
        scaled(x)
    assert x.sum().item() == 3.0


class Model:
    """What a method of it computes is a region."""

    def __init__(self) -> None:
        self.weight = gt.nn.Parameter(gt.ones(3, 3) * 0.5)

    @gt.function(device=1, priority="batch")
    def forward(self, x: gt.Tensor) -> gt.Tensor:
        """The layer."""
        return x @ self.weight


def test_a_region_trains_where_it_says_and_its_rule_is_a_signal_s(three: Any) -> None:
    """A method, compiled: the parameter moves there once, gradients are those of the plain function, and a config counts more."""
    model, x = Model(), gt.ones(2, 3)
    assert Model.forward.__doc__ == "The layer."
    assert Model.forward.__wrapped__.__name__ == "forward"
    optimizer = gt.optim.SGD([model.weight], lr=0.1)
    for _ in range(4):
        loss = model.forward(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert worker_of(three, model.weight) == 1
    assert np.allclose(model.weight.detach().numpy(), 0.5 - 4 * 0.1 * 2)
    assert Model.forward.stats["replays"] >= 2
    signal = Model.forward.signal
    assert three.config.rules[signal][0].priority == "batch"
    pacer = three.link.fabric.dispatcher.service.pacer
    kinds = []
    for call in (lambda: model.forward(x), lambda: x + 1.0):
        call()
        gt.synchronize()
        kinds.append(pacer.kind(*pacer.sessions))
    assert kinds[0] == "batch" != kinds[1], "what comes after is in plans of its own"
    gt.load_config({"sharding_config": {signal: {"device": "gt:2"}}})
    assert three.config.rules[signal][0].priority == "batch", "what the config does not say the region says"
    model.forward(x)
    assert worker_of(three, model.forward(x)) == 2
    assert three.config.rules[signal][0].priority == "batch"


def test_regions_nest_and_are_part_of_a_compiled_function(three: Any) -> None:
    """The innermost says where; inside of `gt.compile` they are part of its trace."""

    @gt.function(device="gt:1", retry=1)
    def inner(a: gt.Tensor) -> gt.Tensor:
        return a * 3.0

    @gt.function(device="gt:2")
    def outer(a: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor]:
        return inner(a), a + 1.0

    @gt.compile
    def step(a: gt.Tensor) -> gt.Tensor:
        return sum(outer(a))

    for _ in range(5):
        one, two = outer(gt.ones(2))
        total = step(gt.ones(2))
    assert (worker_of(three, one), worker_of(three, two)) == (1, 2)
    assert total.tolist() == [5.0, 5.0]
    assert step.stats["replays"] > 0
    assert copy.deepcopy(inner)(gt.ones(2)).tolist() == [3.0, 3.0]


def test_a_call_that_runs_out_of_memory_is_made_anew_from_its_inputs(session: Any, caplog: Any) -> None:
    """What the failed calls have done to tensors, gradients, optimizers and random numbers is undone."""
    calls: list[int] = []
    total, noise = gt.zeros(3), gt.Generator().manual_seed(3)
    weight = gt.nn.Parameter(gt.ones(3))
    optimizer = gt.optim.Adam([weight], lr=0.5)

    def step(a: gt.Tensor, failures: int) -> gt.Tensor:
        calls.append(1)
        a.add_(1.0)
        drawn = gt.rand(3) + gt.rand(3, generator=noise)
        total[1:].add_(a[1:])
        optimizer.zero_grad()
        (weight * a).sum().backward()
        optimizer.step()
        return drawn + gt.ones(HUGE).sum() if len(calls) <= failures else drawn

    results = []
    for failures in (0, 2):
        calls.clear()
        gt.manual_seed(0)
        noise.manual_seed(3)
        with gt.no_grad():
            total.zero_()
            weight.fill_(1.0)
        optimizer.state.clear()
        weight.grad = None
        given = gt.zeros(3)
        with caplog.at_level(logging.WARNING):
            out = gt.function(step, retry=2)(given, failures)
        assert len(calls) == failures + 1
        found = [out, given, total, weight, weight.grad, *optimizer.state[weight].values()]
        results.append([each.detach().numpy() if isinstance(each, gt.Tensor) else each for each in found])
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)
    assert "is called anew, of 2 more calls at most: OutOfMemory" in caplog.text


@pytest.mark.filterwarnings("ignore:gt.compile")  # of a function that notes its calls
def test_what_is_the_program_s_own_error_is_not_done_anew_and_leaves_nothing(session: Any) -> None:
    """Shapes, indices and what the program raises; so does a call without tries left, or whose input has the error."""
    calls: list[str] = []
    kept = gt.zeros(3)

    @gt.function(retry=3)
    def fails(how: str, a: gt.Tensor) -> gt.Tensor:
        calls.append(how)
        kept.add_(1.0)
        if how == "shape":
            return a + gt.ones(5)
        if how == "raise":
            raise KeyError(how)
        return a[gt.tensor([99])] if how == "index" else a * gt.ones(HUGE).sum() if how == "memory" else a * 2.0

    lost = gt.ones(3) * gt.ones(HUGE).sum()
    for how, a, error, count in (
        ("shape", gt.ones(3), gt.ShapeError, 1),
        ("raise", gt.ones(3), KeyError, 1),
        ("index", gt.ones(3), gt.IndexOutOfRange, 1),
        ("memory", gt.ones(3), gt.OutOfMemory, 4),
        ("input", lost, gt.OutOfMemory, 1),
    ):
        calls.clear()
        with pytest.raises(error):
            fails(how, a)
        assert calls == [how] * count
        assert kept.tolist() == [0.0] * 3


def test_what_cannot_be_a_region_is_refused_with_what_can(session: Any) -> None:
    for wrong, message in (
        ({"devise": "cpu"}, r"no option 'devise'; its options are device, priority, retry, name"),
        ({"priority": "urgent"}, r"priority='urgent'; allowed: interactive, normal, batch"),
        ({"retry": -1}, r"retry=-1; allowed: a whole number from 0 to 100"),
        ({"device": "tpu"}, r"'tpu' names no device"),
        ({"name": "a/b"}, r"one signal, not several"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            gt.function(lambda a: a, **wrong)

    async def later() -> None: ...

    for what in (gt.nn.Linear(2, 2), Model, 3, later, gt.function(lambda a: a)):
        with pytest.raises(TypeError, match=r"gt\.function"):
            gt.function(what)


def test_two_functions_of_one_name_have_a_signal_each() -> None:
    """Unless they say the same."""

    def made(**options: Any) -> str:
        def region(a: gt.Tensor) -> gt.Tensor:
            return a

        return str(gt.function(**options)(region).signal)

    assert made(device="cpu") == made(device="cpu") != made(device="gt:1")
