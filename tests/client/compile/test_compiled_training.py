"""Compiled training steps and models: every optimizer, sharded or not, and random steps give what they give uncompiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from compiled_results import told
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
import gt.nn.functional as F
from gt import nn, optim


class Small(NamedTuple):
    """A network and the shape of an example."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


NETWORKS = {
    "mlp": Small(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4)), (6,)),
    "cnn": Small(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4)
        ),
        (1, 8, 8),
    ),
    "transformer": Small(
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True), nn.Flatten(), nn.Linear(40, 4)
        ),
        (5, 8),
    ),
}

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "nesterov": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: optim.AdamW(p, lr=0.02, weight_decay=0.2),
    "adamax": lambda p: optim.Adamax(p, lr=0.02, weight_decay=0.01),
    "nadam": lambda p: optim.NAdam(p, lr=0.02, weight_decay=0.01),
    "radam": lambda p: optim.RAdam(p, lr=0.02, weight_decay=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.8, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.05, lr_decay=0.1, weight_decay=0.01),
    "adadelta": lambda p: optim.Adadelta(p, lr=0.5, rho=0.8),
    "lion": lambda p: optim.Lion(p, lr=0.01, weight_decay=0.01),
}


def train(network: str, optimizer: str, what: str, steps: int = 12) -> tuple[list[Any], list[Any], Any]:
    """(losses, weights afterwards, the compiled function) of a loop whose `what` is compiled: 'step', 'model' or ''."""
    gt.manual_seed(3)
    model: Any = NETWORKS[network].make()
    mine = OPTIMIZERS[optimizer](model.parameters())
    schedule = optim.lr_scheduler.StepLR(mine, 2, 0.7)
    called = gt.compile(model) if what == "model" else model

    def step(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        mine.zero_grad()
        with gt.signal.context("net"):
            loss = F.cross_entropy(called(x), y)
        loss.backward()
        mine.step()
        return loss

    run: Any = gt.compile(step) if what == "step" else step
    generator = np.random.default_rng(0)
    losses = []
    for _ in range(steps):
        x = gt.from_numpy(generator.standard_normal((12, *NETWORKS[network].shape), dtype=np.float32))
        y = gt.from_numpy(generator.integers(0, 4, 12))
        losses.append(run(x, y).item())
        schedule.step()
    weights = [value.numpy() for value in model.state_dict().values()]
    return losses, weights, run if what == "step" else getattr(called, "_compiled", None)


def equal(a: tuple[list[Any], list[Any], Any], b: tuple[list[Any], list[Any], Any]) -> None:
    assert a[0] == b[0]
    for one, other in zip(a[1], b[1], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_every_optimizer_steps_to_the_same_bits(optimizer: str) -> None:
    """With a schedule of the learning rate and dropout; the whole step is one run."""
    expected, found = train("mlp", optimizer, ""), train("mlp", optimizer, "step")
    equal(found, expected)
    assert found[2].reason is None
    assert found[2].stats["replays"] >= 7


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("network", list(NETWORKS))
@pytest.mark.parametrize("what", ["step", "model"])
def test_networks_train_to_the_same_bits(network: str, what: str) -> None:
    """The whole step compiled, or only the model, with the backward pass outside."""
    expected, found = train(network, "adam", ""), train(network, "adam", what)
    equal(found, expected)
    assert found[2].reason is None
    assert found[2].stats["replays"] >= 9


RULES: dict[str, dict[str, Any]] = {
    "data": {"sharding_config": {"net": {"strategy": "data_parallel"}}},
    "tensor": {"sharding_config": {"net": {"strategy": "tensor_parallel"}}},
    "fully": {"sharding_config": {"net": {"strategy": "fully_sharded"}}},
    "same bits": {"deterministic": True, "sharding_config": {"net": {"strategy": "data_parallel"}}},
}


@pytest.mark.parametrize("rule", list(RULES))
def test_compiled_steps_are_sharded_like_others(rule: str) -> None:
    """On three workers under each strategy; under `deterministic` to the same bits."""
    found = []
    for what in ("", "step"):
        gt.connect("inproc", workers=3, config=RULES[rule])
        found.append(train("mlp", "adam", what, 20))
        gt.disconnect()
    assert found[1][2].stats["replays"] >= 16
    if rule == "same bits":
        equal(found[0], found[1])
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)


# random steps


class State:
    """What random steps work on: two parameters, a buffer, a view of it, and an optimizer."""

    def __init__(self, kind: int) -> None:
        gt.manual_seed(1)
        self.w = nn.Parameter((gt.arange(9).float().reshape(3, 3) - 4) / 9)
        self.v = nn.Parameter(gt.full((3, 3), 0.3))
        self.buffer = (gt.arange(9).float().reshape(3, 3) / 5).clone()
        self.view = self.buffer[0:2]
        makers = (
            lambda p: optim.SGD(p, lr=0.05, momentum=0.9),
            lambda p: optim.Adam(p, lr=0.05),
            lambda p: optim.SGD(p, lr=0.01),
        )
        self.optimizer: optim.Optimizer = makers[kind]([self.w, self.v])

    def told(self) -> Any:
        """All that a program can see of it."""
        tensors = [self.w, self.v, self.buffer, self.view, self.w.grad, self.v.grad]
        states = [list(state.values()) for state in self.optimizer.state.values()]
        return told([tensors, states])


def _differentiate(s: State, a: gt.Tensor, b: gt.Tensor) -> list[gt.Tensor]:
    loss = (a * b).sum()
    if not loss.requires_grad:
        return []
    found = gt.autograd.grad(loss, [s.w, s.v], allow_unused=True, retain_graph=True)
    return [gradient for gradient in found if gradient is not None]


def _walk_back(s: State, a: gt.Tensor, b: gt.Tensor) -> None:
    loss = (a * a).sum()
    if loss.requires_grad:
        loss.backward(retain_graph=True)


@gt.no_grad()
def _shrink(s: State, a: gt.Tensor, b: gt.Tensor) -> None:
    s.w.mul_(0.9)


@gt.no_grad()
def _write(s: State, a: gt.Tensor, b: gt.Tensor) -> None:
    s.buffer.mul_(0.5).add_(b.detach() * 0.1)


@gt.no_grad()
def _write_view(s: State, a: gt.Tensor, b: gt.Tensor) -> None:
    s.view[0] = b.detach()[0]


def _clear(s: State, a: gt.Tensor, b: gt.Tensor) -> None:
    s.w.grad = None


def _assign(s: State, a: gt.Tensor, b: gt.Tensor) -> None:
    s.v.grad = b.detach() * 0.1


def _clip(s: State, a: gt.Tensor, b: gt.Tensor) -> None:
    if s.v.grad is not None:
        s.v.grad.mul_(0.5)


STEPS: dict[str, Callable[[State, gt.Tensor, gt.Tensor], Any]] = {
    "add": lambda s, a, b: [a + b],
    "mul": lambda s, a, b: [a * b * 0.5],
    "matmul": lambda s, a, b: [(a @ b).tanh()],
    "relu": lambda s, a, b: [a.relu()],
    "turned": lambda s, a, b: [a.T],
    "row": lambda s, a, b: [a[1:2] + b],
    "detached": lambda s, a, b: [a.detach()],
    "copied": lambda s, a, b: [a.clone()],
    "dropped": lambda s, a, b: [F.dropout(a, 0.3)],
    "leaf": lambda s, a, b: [a.detach().clone().requires_grad_()],
    "gradient": lambda s, a, b: [] if s.w.grad is None else [s.w.grad],
    "step": lambda s, a, b: s.optimizer.step(),
    "forget": lambda s, a, b: s.optimizer.zero_grad(),
    "zero": lambda s, a, b: s.optimizer.zero_grad(set_to_none=False),
    "differentiate": _differentiate,
    "backward": _walk_back,
    "shrink": _shrink,
    "write": _write,
    "write a view": _write_view,
    "clear": _clear,
    "assign": _assign,
    "clip": _clip,
}
PLANS = st.lists(st.tuples(st.sampled_from([*STEPS]), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=9)


def outcome(plan: list[tuple[str, int, int]], returned: list[int], kind: int, compiled: bool) -> list[Any]:
    """What eight calls return and leave, with a backward pass through a result now and then, and ever lower rates."""
    state = State(kind)

    def body(x: gt.Tensor) -> list[gt.Tensor]:
        pool = [x, state.w, state.v, state.buffer]
        for name, i, j in plan:
            pool += STEPS[name](state, pool[i % len(pool)], pool[j % len(pool)]) or []
        return [pool[at % len(pool)] for at in returned]

    function: Any = gt.compile(body) if compiled else body
    found: list[Any] = []
    for at in range(8):
        try:
            out = function(gt.full((3, 3), at / 8) + gt.eye(3))
            found.append(told(out))
            if at % 2 and out and out[0].grad_fn is not None:
                out[0].sum().backward(retain_graph=True)
        except gt.GTError as error:
            found.append((type(error), str(error)))
        found.append(state.told())
        state.optimizer.param_groups[0]["lr"] *= 0.9
    return found


@pytest.mark.usefixtures("shared")
@settings(max_examples=60, deadline=None)
@given(plan=PLANS, returned=st.lists(st.integers(0, 12), max_size=3), kind=st.integers(0, 2))
def test_random_steps_do_what_they_do_uncompiled(
    plan: list[tuple[str, int, int]], returned: list[int], kind: int
) -> None:
    """Results, parameters, gradients, states of optimizers, buffers and views, after each of eight calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not compiled
        assert repr(outcome(plan, returned, kind, True)) == repr(outcome(plan, returned, kind, False))
