"""Training under every strategy: the same losses as on one worker, and values where the strategy says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from effort import EFFORT
from ledger import sharded

import gt
from gt.client.session import sessions
from gt.dispatcher.planner.planner import Planned
from gt.ir.instruction import MOVE
from gt.sharding.placement import At, Shard, collective_name

PIPE: dict[str, Any] = {"strategy": "pipeline_parallel", "stages": [[0], [1]], "microbatches": 4}
FOUR: dict[str, Any] = {**PIPE, "stages": [[0, 1], [2, 3]]}
CONFIGS: dict[str, tuple[int, dict[str, Any]]] = {
    "data": (4, {"sharding_config": {"net": {"strategy": "data_parallel"}}}),
    "data, uneven": (5, {"sharding_config": {"net": {"strategy": "data_parallel"}}}),
    "fully sharded": (4, {"sharding_config": {"net": {"strategy": "fully_sharded"}}}),
    "fully sharded, uneven": (3, {"sharding_config": {"net": {"strategy": "fully_sharded"}}}),
    "sequence": (2, {"sharding_config": {"net": {"strategy": "sequence_parallel", "dimension": 1}}}),
    "expert": (2, {"sharding_config": {"net": {"strategy": "expert_parallel"}}}),
    "replicate": (3, {"sharding_config": {"net": {"strategy": "replicate"}}}),
    "pipeline": (2, {"sharding_config": {"net": PIPE}}),
    "pipeline, gpipe": (2, {"sharding_config": {"net": {**PIPE, "schedule": "gpipe", "microbatches": 3}}}),
    "pipeline, more microbatches than examples": (2, {"sharding_config": {"net": {**PIPE, "microbatches": 40}}}),
    "pipeline, other order": (2, {"sharding_config": {"net": {**PIPE, "stages": [[1], [0]]}}}),
    "pipeline and data": (4, {"sharding_config": {"net": FOUR}}),
    "pipeline and tensor": (4, {"mesh": {"stages": 2, "model": 2}, "sharding_config": {
        "net": FOUR, "layer0": {"strategy": "tensor_parallel", "dimension": 0},
        "layer1": {"strategy": "tensor_parallel", "dimension": 1}}}),
    "pipeline and fully sharded": (4, {"mesh": {"stages": 2, "data": 2}, "sharding_config": {
        "net": [FOUR, {"strategy": "fully_sharded"}]}}),
    "fully sharded and tensor": (4, {"mesh": {"data": 2, "model": 2}, "sharding_config": {
        "net": {"strategy": "fully_sharded"}, "layer0": {"strategy": "tensor_parallel", "dimension": 0},
        "layer1": {"strategy": "tensor_parallel", "dimension": 1}}}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    gt.disconnect()


def train(workers: int, config: dict[str, Any] | None, *, cut: bool = False, steps: int = 3) -> np.ndarray[Any, Any]:
    """The losses of a small network; with `cut` each is fetched between forward and backward."""
    gt.connect("inproc", workers=workers, config=config)
    gt.manual_seed(0)
    random = np.random.default_rng(0)
    x = random.standard_normal((22, 16)).astype(np.float32)
    y = random.standard_normal((22, 6)).astype(np.float32)
    layers = [gt.nn.Linear(16, 20), gt.nn.Linear(20, 18), gt.nn.Linear(18, 18), gt.nn.Linear(18, 6)]
    optimizer = gt.optim.Adam([p for layer in layers for p in layer.parameters()], lr=1e-2)
    losses = []
    for _ in range(steps):
        h = gt.from_numpy(x)
        with gt.signal.context("net"):
            for index, layer in enumerate(layers):
                with gt.signal.context(f"layer{index}"):
                    h = layer(h) if index == 3 else layer(h).tanh()
        loss = ((h - gt.from_numpy(y)) ** 2).mean()
        if cut:
            losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not cut:
            losses.append(loss.item())
    fabric().check()
    return np.array(losses)


def fabric() -> Any:
    return sessions.current().link.fabric  # type: ignore[attr-defined]


def plans() -> list[Planned]:
    """The session's plans, the latest last."""
    (client,) = fabric().dispatcher.service.clients.values()
    return [cached.planned for cached in client.plans.values()]


def moved(planned: Planned) -> list[str]:
    """The names of a plan's collectives."""
    plan = planned.plan
    found = []
    for instruction in plan.instructions:
        if instruction.op == MOVE:
            before, after = plan.layout(instruction.inputs[0]), plan.layouts[instruction.outputs[0]]
            axes = len(before) - (plan.pipeline is not None)  # nothing travels along the axis in time
            found.append(collective_name(before[:axes], after[:axes]))
    return [name for name in found if name]


@pytest.fixture(scope="module")
def expected() -> np.ndarray[Any, Any]:
    losses = train(1, None)
    gt.disconnect()
    return losses


@pytest.mark.parametrize(
    ("name", "cut"),
    [(name, cut) for at, name in enumerate(CONFIGS) for cut in (False, True) if EFFORT >= 1 or cut == at % 2],
)
def test_losses_are_those_of_one_worker(name: str, cut: bool, expected: np.ndarray[Any, Any]) -> None:
    np.testing.assert_allclose(train(*CONFIGS[name], cut=cut), expected, rtol=2e-6)


def steady() -> tuple[Planned, Planned]:
    """The plans of forward with backward, and of the update, once all parameters are where they stay."""
    made = plans()
    phases = [{tag.phase for tag in planned.plan.tags} for planned in made]
    backward = next(p for p, seen in zip(reversed(made), reversed(phases), strict=True) if "backward" in seen)
    return backward, next(p for p, seen in zip(reversed(made), reversed(phases), strict=True) if seen == {"update"})


def test_fully_sharded_moves_what_the_book_says() -> None:
    """Each weight is gathered forward and backward, each gradient reduce-scattered, and the update moves nothing."""
    train(*CONFIGS["fully sharded"])
    step, update = steady()
    names = moved(step)
    # 8 parameters are gathered forward; backward needs 3 weights again (not the first: nobody wants its input's gradient)
    assert sorted(names) == sorted(["all-gather"] * 11 + ["reduce-scatter"] * 8 + ["all-reduce"])
    assert moved(update) == []
    assert all(resident.layout == (Shard(0),) for resident in update.inputs if resident.param)


def test_a_pipeline_only_sends_between_neighbours() -> None:
    """Activations go up, gradients down, and nothing else but the loss's way to the client."""
    train(*CONFIGS["pipeline"])
    step, update = steady()
    assert step.hindered == ""
    assert step.plan.pipeline is not None
    assert step.plan.pipeline.schedule == "1f1b"
    assert moved(step) == ["send", "send"]
    assert moved(update) == []
    assert {resident.layout for resident in update.inputs if resident.param} == {(At(0),), (At(1),)}


def test_a_fetch_between_forward_and_backward_makes_a_step_gpipe() -> None:
    train(*CONFIGS["pipeline"], cut=True)
    reasons = {planned.hindered for planned in plans()}
    assert "forward and backward came in different segments" in reasons
    assert gt.stats()["gpipe"]["forward and backward came in different segments"] >= 3


def test_experts_live_apart() -> None:
    """Weights with a leading expert dimension are cut along it, and a batched product works where they are."""
    gt.connect("inproc", workers=2, config={"sharding_config": {"moe": {"strategy": "expert_parallel"}}})
    experts = gt.nn.Parameter(gt.randn(4, 8, 8))
    x = gt.randn(4, 5, 8)
    with gt.signal.context("moe"):
        y = x @ experts
    z = y.sum()
    z.backward()
    assert experts.grad is not None
    np.testing.assert_allclose(y.numpy(), x.numpy() @ experts.detach().numpy(), rtol=1e-5)
    layouts = {
        resident.layout for planned in plans() for resident in (*planned.survivors, *planned.inputs) if resident.param
    }
    assert (Shard(0),) in layouts


@pytest.mark.parametrize("strategy", ["data_parallel", "fully_sharded"])
@pytest.mark.parametrize("pick", ["slice", "stride", "places", "joined", "chunk"])
def test_what_is_picked_from_a_data_set_is_a_batch(strategy: str, pick: str) -> None:
    """As training loops do with data that the workers hold already: the gradients of weight and bias are summed, and the loss."""
    with sharded({"sharding_config": {"net": {"strategy": strategy}}}, 4) as ledger:
        layer = gt.nn.Linear(16, 32)
        x, places = gt.from_numpy(np.ones((64, 16), np.float32)), gt.from_numpy(np.arange(0, 64, 3))
        gt.synchronize()
        ledger.taken()
        with gt.signal.context("net"):
            batch = {
                "slice": lambda: x[8:24], "stride": lambda: x[::2], "places": lambda: x.index_select(0, places),
                "joined": lambda: gt.cat([x, x]), "chunk": lambda: x.chunk(3)[1],
            }[pick]()  # fmt: skip
            loss = layer(batch).square().mean()
        loss.backward()
        gt.synchronize()
        backward = Counter(move.collective for move in ledger.moves(ledger.taken()) if move.phase == "backward")
    assert backward["all-reduce" if strategy == "data_parallel" else "reduce-scatter"] == 2


@pytest.mark.parametrize("make", [lambda: gt.ones(64, 16) * 1.5, lambda: gt.arange(1024.0).reshape(64, 16)])
def test_a_constant_that_a_network_is_fed_with_is_a_batch(make: Any) -> None:
    """A batch of ones is as good as any: it is cut where it meets weights, and what follows stays cut."""
    gt.connect("inproc", workers=4, config={"sharding_config": {"net": {"strategy": "data_parallel"}}})
    layer = gt.nn.Linear(16, 8)
    with gt.signal.context("net"):
        out = layer(make()).tanh()
    expected = np.tanh(make().numpy() @ layer.weight.numpy().T + layer.bias.numpy())
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-6)
    client = fabric().dispatcher.service.by_number[1]
    assert client.table[out._value.id].resident.layout == (Shard(0),)


def test_a_parameter_that_is_claimed_while_a_view_of_it_lives_on_stays_where_it_went() -> None:
    """What the table says of it and what its workers hold are the same place afterwards."""
    gt.connect("inproc", workers=2, config={"sharding_config": {"net": {"strategy": "expert_parallel"}}})
    data = np.arange(36, dtype=np.float32).reshape(6, 6)
    weight = gt.nn.Parameter(gt.from_numpy(data))
    gt.synchronize()
    turned = weight.detach().transpose(0, 1)
    with gt.signal.context("net"):
        moved = (gt.ones(6, 6) @ weight).detach()
    gt.synchronize()
    np.testing.assert_array_equal((weight - 1.0).numpy(), data - 1)
    np.testing.assert_array_equal(turned.numpy(), data.T)
    np.testing.assert_allclose(moved.numpy(), np.ones((6, 6)) @ data)
    fabric().check()
