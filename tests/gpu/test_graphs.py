"""CUDA graphs of hot programs, in whole workers: they are captured and launched, and no value depends on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.errors import IndexOutOfRange, WorkerError
from gt.nn import functional as F
from gt.service.in_process import Fabric
from gt.sharding import options
from gt.wire import telemetry
from gt.worker.cuda_graphs.capturable_run import CapturableRun
from gt.worker.cuda_graphs.graphs import CudaGraphs
from gt.worker.telemetry.recorder import Instruments, WorkerRecording

from .test_workers import CONFIGS, connect, sharded


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    gt.disconnect()
    options.for_workers.clear()


def graphs_of(fabric: Fabric) -> list[CudaGraphs]:
    found = [core.graphs for core in fabric.workers.values()]
    return [each for each in found if each is not None]


def trained(fabric: Fabric, steps: int = 12) -> list[bytes]:
    """The losses and last parameters of a small network under Adam, with another rate and batch at every step."""
    gt.manual_seed(0)
    numbers = np.random.default_rng(0)
    losses = []
    with gt.signal.context("net"):  # rules are for signals alone
        model = gt.nn.Sequential(gt.nn.Linear(12, 20), gt.nn.LayerNorm(20), gt.nn.GELU(), gt.nn.Linear(20, 5))
        optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
        for step in range(steps):
            x = gt.from_numpy(numbers.standard_normal((16, 12), np.float32))
            y = gt.from_numpy(numbers.standard_normal((16, 5), np.float32))
            optimizer.param_groups[0]["lr"] = 0.01 / (step + 1)
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
    found = [loss.numpy().tobytes() for loss in losses]
    found += [parameter.numpy().tobytes() for parameter in model.parameters()]
    fabric.check()
    return found


@pytest.mark.parametrize(("workers", "config"), CONFIGS)
def test_training_has_the_bits_that_it_has_without(workers: int, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where collectives lie between what is captured, and workers share a card."""
    monkeypatch.setenv("GT_GRAPHS", "0")
    fabric = connect(["cuda:0"] * workers, config)
    assert not graphs_of(fabric)
    without = trained(fabric, 24)
    monkeypatch.delenv("GT_GRAPHS")
    fabric = connect(["cuda:0"] * workers, config)
    assert trained(fabric, 24) == without
    assert sharded(fabric) == (config is not None)
    for graphs in graphs_of(fabric):
        assert graphs.launched > 24
        assert graphs.launched > 2 * graphs.captured, "captures come to an end"
        assert not any(reason.endswith("in a capture") for reason in graphs.without)


class Transformer(gt.nn.Module):
    """Logits of the next character, with dropout wherever networks have it."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = gt.nn.Embedding(11, 16), gt.nn.Embedding(8, 16)
        self.first, self.second, self.last = gt.nn.LayerNorm(16), gt.nn.LayerNorm(16), gt.nn.LayerNorm(16)
        self.mixed = gt.nn.Linear(16, 48)
        self.mlp = gt.nn.Sequential(gt.nn.Linear(16, 32), gt.nn.GELU(), gt.nn.Linear(32, 16), gt.nn.Dropout(0.1))
        self.head = gt.nn.Linear(16, 11)

    def forward(self, characters: Any) -> Any:
        batch, length = characters.shape
        x = F.dropout(self.token(characters) + self.position(gt.arange(length)), 0.1)
        apart = self.mixed(self.first(x)).reshape(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        q, k, v = (apart[at] for at in range(3))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        x = x + seen.transpose(1, 2).reshape(batch, length, 16)
        return self.head(self.last(x + self.mlp(self.second(x)))).flatten(0, 1)


def convolutional() -> Any:
    return gt.nn.Sequential(
        gt.nn.Conv2d(1, 4, 3, padding=1), gt.nn.BatchNorm2d(4), gt.nn.ReLU(), gt.nn.MaxPool2d(2), gt.nn.Conv2d(4, 8, 3),
        gt.nn.ReLU(), gt.nn.Dropout(0.2), gt.nn.Flatten(), gt.nn.Linear(32, 10),
    )  # fmt: skip


def batched(network: str, steps: int = 9) -> list[bytes]:
    """The losses of a network on batches that begin further on in the data at every step."""
    gt.manual_seed(0)
    numbers = np.random.default_rng(0)
    if network == "transformer":
        model, size = Transformer(), 4 * 9
        data = gt.from_numpy(numbers.integers(0, 11, size * steps))
    else:
        model, size = convolutional(), 8
        data = gt.from_numpy(numbers.standard_normal((size * steps, 1, 8, 8), np.float32))
    wanted = gt.from_numpy(numbers.integers(0, 10, size * steps))
    optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for at in range(0, size * steps, size):
        x, y = data[at : at + size], wanted[at : at + size]
        if network == "transformer":
            x, y = x.reshape(4, 9)[:, :-1], x.reshape(4, 9)[:, 1:].flatten()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        gt.synchronize()
    return [loss.numpy().tobytes() for loss in losses]


@pytest.mark.parametrize("network", ["transformer", "convolutional"])
def test_a_training_step_is_one_graph(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With look-ups, dropout and convolutions, and what they find out of their indices; where a batch begins, and seed and
    counter of what is drawn, change at every step, and no graph is for one of them."""
    monkeypatch.setenv("GT_GRAPHS", "0")
    connect(["cuda:0"])
    without = batched(network)
    monkeypatch.delenv("GT_GRAPHS")
    fabric = connect(["cuda:0"])
    assert batched(network) == without
    assert len(set(without)) == len(without)
    (graphs,) = graphs_of(fabric)
    (core,) = fabric.workers.values()
    assert not graphs.without
    assert graphs.launched >= 6
    for program in core.programs.compiled.values():
        courses = [action for actions in program.actions for action in actions]
        assert [type(capturable) for capturable in courses] == [CapturableRun]
        assert [len(capturable.ranges) for capturable in courses] == [1]
    fabric.check()


def test_a_wrong_index_in_a_graph_is_an_error_where_it_is_without() -> None:
    """Of the run that it was in alone, with the line of the program."""
    fabric = connect(["cuda:0"])
    table = gt.from_numpy(np.random.default_rng(0).standard_normal((7, 4), np.float32))
    outcomes = []
    for turn in range(12):
        rows = F.embedding(gt.from_numpy(np.array([1, 6 + turn * (turn in (2, 7, 10)), 3])), table)
        total = ((rows - rows.sum(0)).exp().sum() + (rows - rows.amax(0) - 2.0).square().sum()) * 0.5
        gt.synchronize()
        outcomes.append(total)
    for turn, total in enumerate(outcomes):
        if turn in (2, 7, 10):
            with pytest.raises(IndexOutOfRange, match=f"index {6 + turn} is out of range") as caught:
                total.item()
            assert "test_graphs.py" in str(caught.value)
        else:
            assert np.isfinite(total.item())
    (graphs,) = graphs_of(fabric)
    assert graphs.launched >= 6
    fabric.check()


@pytest.mark.parametrize("variable", ["GT_SYNC", "GT_NVTX"])
def test_where_steps_are_looked_at_one_by_one_nothing_is_captured(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is waited for, or has a range of its own, cannot be in a graph."""
    expected = trained(connect(["cuda:0"]))
    monkeypatch.setenv(variable, "1")
    fabric = connect(["cuda:0"])
    assert not graphs_of(fabric)
    assert trained(fabric) == expected


def turns(x: Any, rate: float) -> Any:
    """Some kernels, one behind the other: each needs the totals of the one before."""
    y = z = (x * rate + 1.0).tanh()
    for _ in range(3):
        z = (z - z.sum(0)).tanh()
    return y * 0.5, z.square().sum()


def looped(step: Callable[[int, Any], Any], count: int = 12) -> list[Any]:
    """What is left of each turn of a loop."""
    x = gt.from_numpy(np.random.default_rng(0).standard_normal((8, 8), np.float32))
    found = []
    for turn in range(count):
        x, left = step(turn, x)
        gt.synchronize()
        found.append(left)
    return found


def test_a_value_that_is_kept_stays_what_it_was() -> None:
    """Results lie in memory that a graph writes again and again: whoever keeps one has it copied out."""
    fabric = connect(["cuda:0"])
    kept = looped(lambda turn, x: turns(x, 1.0 / (turn + 1)))
    found = [each.item() for each in kept]
    (graphs,) = graphs_of(fabric)
    assert graphs.launched >= 8
    connect(["cpu"])
    np.testing.assert_allclose(
        found, [each.item() for each in looped(lambda turn, x: turns(x, 1.0 / (turn + 1)))], rtol=1e-5
    )


def test_poison_goes_step_by_step_through_what_is_captured() -> None:
    """An input without a value, between runs that have one: it alone has none."""
    fabric = connect(["cuda:0"])
    bad = gt.from_numpy(np.arange(64).reshape(8, 8)).gather(0, gt.full((8, 8), 99, dtype=gt.int64)).to(gt.float32)
    good = gt.ones(8, 8)
    outcomes: Counter[str] = Counter()
    for turn in range(12):
        _, z = turns(bad if turn in (3, 7, 10) else good, 0.5)
        try:
            outcomes[f"{z.item():.5f}"] += 1
        except (WorkerError, IndexError) as error:
            outcomes[type(error).__name__] += 1
    assert sorted(outcomes.values()) == [3, 9]
    (graphs,) = graphs_of(fabric)
    assert graphs.launched >= 4


def test_memory_that_is_short_is_not_for_graphs() -> None:
    """They are in the books, and give up what they have."""
    nbytes = 4 * 64 * 64
    options.choose_for_workers({"memory_pool_size": 40 * nbytes})
    fabric = connect(["cuda:0"])
    (graphs,) = graphs_of(fabric)
    (core,) = fabric.workers.values()
    limiter = core.stored.limiter
    assert limiter is not None

    def loop(x: Any) -> Any:
        y = (x * 0.5 + 1.0).tanh()
        return y * 0.5 + y.sum(0).exp().sum() * 1e-9 + (y.amax(0) - 2.0).square().sum() * 1e-9

    x = gt.ones(64, 64)
    for _ in range(8):
        x = loop(x)
        gt.synchronize()
    assert graphs.launched
    assert graphs.total
    held = [gt.full((64, 64), float(n)) for n in range(36)]
    gt.synchronize()
    x = loop(x)
    gt.synchronize()
    assert limiter.bound + graphs.total <= limiter.limit
    assert [each.mean().item() for each in held] == list(range(36))
    assert np.isfinite(x.sum().item())
    fabric.check()


def test_whoever_watches_is_told() -> None:
    """How many there are, how often one was launched, and why there was none."""
    fabric = connect(["cuda:0"])
    looped(lambda turn, x: turns(x, 0.5))
    (core,) = fabric.workers.values()
    recording = WorkerRecording(Instruments(lambda: 1, lambda: (0, 0), lambda: 0), 0, telemetry.SUMMARY, 1000)
    events, _ = recording.take(core)
    (told,) = [event for event in map(telemetry.decode_event, events) if isinstance(event, telemetry.Graphs)]
    (graphs,) = graphs_of(fabric)
    assert (told.captured, told.launched, told.held) == (graphs.captured, graphs.launched, graphs.total)
    assert dict(zip(told.reasons, told.counts, strict=True)) == dict(graphs.without)


def test_checks_and_graphs_agree() -> None:
    """With verify all instructions are computed twice; what is captured is what is left between the checks."""
    gt.config.set({"verify": 1.0})
    try:
        fabric = connect(["cuda:0"] * 2, CONFIGS[1][1])
        assert len(trained(fabric)) > 12
    finally:
        gt.config.set({"verify": 0.0})
