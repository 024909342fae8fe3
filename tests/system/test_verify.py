"""`gt.config.set({"verify": …})`: some instructions are computed again, gathered; a difference is an error."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import cases
from law import running
from law.__main__ import case, exact_case, judged, network_case
from law.running import Discarded

import gt
from gt.client.session import sessions
from gt.dispatcher.planner import sharding_rules, verification
from gt.dispatcher.planner.sharding_rules import ShardingOption
from gt.dispatcher.planner.verification import MAX_PARTS, checks_in_turns, draw_sample
from gt.errors import VerificationError
from gt.ir.instruction import MOVE, VERIFY, Plan
from gt.ir.instruction_bytes import pack_plan, unpack_plan
from gt.sharding.config import Config
from gt.sharding.placement import REPLICATE, Partial
from gt.worker.transfer import move

HERE = __file__


@pytest.fixture(autouse=True)
def unset() -> Iterator[None]:
    """Every test begins and ends with nothing checked."""
    yield
    gt.config.set({"verify": 0.0})


def connect(workers: int, **config: Any) -> None:
    gt.connect("inproc", workers=workers, config=Config.from_plain(config))


def plans() -> list[Plan]:
    """What the first worker has run."""
    fabric = sessions.current().link.fabric  # type: ignore[attr-defined]  # an in-memory session
    return [program.plan for program in next(iter(fabric.workers.values())).programs.compiled.values()]


def checks() -> list[str]:
    """The ops of all instructions that were checked."""
    found = []
    for plan in plans():
        for instruction in plan.instructions:
            if instruction.op == VERIFY:
                of = instruction.attributes["of"]
                found.append(next(each.op for each in plan.instructions if of in each.outputs))
    return found


# what is sound passes


@pytest.mark.parametrize("drawn", [case, network_case, exact_case], ids=["programs", "networks", "deterministic"])
def test_what_is_sound_passes_under_every_config(
    drawn: Callable[[int], tuple[Any, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With everything checked drawn programs see what they see on one worker, and no check is wrong."""
    connected, counted = running.connected, 0

    def checked(place: Any) -> None:
        connected(place)
        gt.config.set({"verify": 1.0})

    def count(*arguments: Any) -> Generator[None, None, Plan]:
        nonlocal counted
        plan = yield from checks_in_turns(*arguments)
        counted += sum(instruction.op == VERIFY for instruction in plan.instructions)
        return plan

    monkeypatch.setattr(running, "connected", checked)
    monkeypatch.setattr("gt.dispatcher.session_plans.plan_preparation.checks_in_turns", count)
    for seed in range(max(4, cases(8))):  # which count enough
        try:
            list(judged(*drawn(seed)))
        except Discarded:
            continue
    assert counted > 50


STRATEGIES = {
    "data_parallel": {"strategy": "data_parallel"},
    "fully_sharded": {"strategy": "fully_sharded"},
    "tensor_parallel": {"strategy": "tensor_parallel"},
    "sequence_parallel": {"strategy": "sequence_parallel"},
    "expert_parallel": {"strategy": "expert_parallel"},
    "pipeline_parallel": {"strategy": "pipeline_parallel", "stages": [[0, 1], [2, 3]], "microbatches": 3},
    "shard": {"shard": {"axis": 1, "workers": [0, 2, 3]}},
}


def trained() -> None:
    """A few steps of two layers in float32, in the signal `net`."""
    gt.manual_seed(0)
    with gt.signal.context("net"):
        model = gt.nn.Sequential(gt.nn.Linear(24, 40), gt.nn.GELU(), gt.nn.LayerNorm(40), gt.nn.Linear(40, 5))
        optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
        draws = np.random.default_rng(0)
        for _ in range(3):
            x = gt.from_numpy(draws.standard_normal((18, 24), np.float32))
            loss = gt.nn.functional.cross_entropy(model(x), gt.from_numpy(draws.integers(0, 5, 18)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert np.isfinite(loss.item())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_training_passes_with_everything_checked(strategy: str) -> None:
    connect(4, sharding_config={"net": STRATEGIES[strategy]})
    gt.config.set({"verify": 1.0})
    trained()
    assert {"matmul", "sum"} <= set(checks())


def test_convolutions_pass_and_are_checked() -> None:
    connect(3, sharding_config={"net": {"strategy": "tensor_parallel"}})
    gt.config.set({"verify": 1.0})
    with gt.signal.context("net"):
        weight = gt.nn.Parameter(gt.randn(7, 5, 3, 3))
        out = gt.nn.functional.conv2d(gt.randn(4, 5, 9, 9), weight)
        out.square().sum().backward()
        assert np.isfinite(weight.grad.numpy()).all()
    assert "conv" in checks()


def test_recurrent_layers_pass_and_are_checked() -> None:
    connect(3, sharding_config={"net": {"strategy": "data_parallel"}})
    gt.config.set({"verify": 1.0})
    with gt.signal.context("net"):
        layer = gt.nn.LSTM(5, 6, batch_first=True, bidirectional=True)
        layer(gt.randn(7, 20, 5))[0].square().sum().backward()
        assert np.isfinite(layer.weight_hh_l0.grad.numpy()).all()
    assert {"lstm", "lstm_grad"} <= set(checks())


def test_on_one_worker_there_is_nothing_to_check() -> None:
    connect(1)
    gt.config.set({"verify": 1.0})
    trained()
    assert not checks()


# what is wrong does not


def _whole_without_adding(row: ShardingOption) -> Iterable[ShardingOption]:
    """A cut through what is contracted, as if each worker had the whole product."""
    yield ShardingOption((REPLICATE,), row.inputs) if row.outputs == (Partial("sum"),) else row


def contracted() -> Any:
    """A product whose contraction is cut along the batch."""
    with gt.signal.context("net"):
        x = gt.tensor(np.arange(48.0).reshape(8, 6))
        return x.T @ x  # the line that errors name


LINE = 1 + next(n for n, line in enumerate(Path(HERE).read_text("utf-8").splitlines()) if "errors name" in line)
DATA = {"mesh": {"data": 4}, "sharding_config": {"net": STRATEGIES["data_parallel"]}}


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_wrong_row_is_found_and_named(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Op, shapes, placements, signal and line: in one error, at the next fetch; the session goes on."""
    connect(4, deterministic=deterministic, **DATA)
    right = sharding_rules.RULES["matmul"]
    wrong = lambda case: (row for each in right(case) for row in _whole_without_adding(each))  # noqa: E731
    monkeypatch.setitem(sharding_rules.RULES, "matmul", wrong)
    wrong_value = contracted().numpy()
    gt.config.set({"verify": 1.0})
    with pytest.raises(VerificationError) as found:
        contracted().numpy()
    text = str(found.value)
    assert "36 of 36 elements differ, first at [0, 0], " in text
    assert f"matmul of f64[6,8], f64[8,6] at {HERE}:{LINE} in signal net" in text
    assert "f64[6,6] R = matmul %" in text
    assert "S1, " in text
    assert text.count("matmul of") == 1
    monkeypatch.undo()
    connect(4, deterministic=deterministic, **DATA)
    gt.config.set({"verify": 1.0})
    x = np.arange(48.0).reshape(8, 6)
    np.testing.assert_array_equal(contracted().numpy(), x.T @ x)
    assert not np.array_equal(wrong_value, x.T @ x)


def test_what_else_came_out_of_the_plan_is_not_to_be_had_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what did not is as good as ever."""
    connect(4, **DATA)
    before = gt.ones(3) * 2
    gt.flush()
    monkeypatch.setitem(sharding_rules._PARTIAL_RESULTS, "max", Partial("sum"))
    gt.config.set({"verify": 1.0})
    with gt.signal.context("net"):
        x = gt.tensor(np.arange(1.0, 49.0).reshape(8, 6))
        doubled, largest = x * 2, x.max()
    with pytest.raises(VerificationError, match="max"):
        doubled.numpy()
    with pytest.raises(VerificationError, match="max"):
        (largest + 1).item()
    assert before.tolist() == [2.0, 2.0, 2.0]
    assert (before + 1).tolist() == [3.0, 3.0, 3.0]


def test_a_move_that_loses_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(4, **DATA)
    monkeypatch.setattr(move, "reducer", lambda operation, xp: lambda first, later, out: np.copyto(out, first))
    gt.config.set({"verify": 1.0})
    with pytest.raises(VerificationError, match="matmul"):
        contracted().numpy()


def test_with_nothing_checked_nobody_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is the checks that find what the tests above find."""
    connect(4, **DATA)
    monkeypatch.setitem(sharding_rules._PARTIAL_RESULTS, "max", Partial("sum"))
    with gt.signal.context("net"):
        assert gt.tensor(np.arange(1.0, 49.0).reshape(8, 6)).max().item() != 48.0


# the sample


@pytest.mark.parametrize("share", [1.0, 0.7, 0.5, 0.3, 0.125, 0.1, 0.01])
def test_the_sample_is_the_share_that_is_asked_for(share: float) -> None:
    """Over many runs each instruction is checked as often as it says, in few variants of a plan."""
    samples = [draw_sample(share, run) for run in range(4000)]
    parts = {sample.parts for sample in samples if sample is not None}
    assert max(parts) <= MAX_PARTS
    for at in range(5):
        mine = [s for s in samples if s is not None and verification._mixed(at) % s.parts == s.part]
        assert abs(len(mine) / len(samples) - share) < 0.03
    assert share < 1 or None not in samples


def test_no_share_is_no_sample_and_the_least_is_rare() -> None:
    assert not any(draw_sample(0.0, run) for run in range(100))
    assert not any(draw_sample(5e-324, run) for run in range(100))


def test_the_same_program_checks_the_same_instructions() -> None:
    """Nothing about the sample depends on the time."""
    found = []
    for _ in range(2):
        connect(4, sharding_config={"net": STRATEGIES["data_parallel"]})
        gt.config.set({"verify": 0.2})
        trained()
        found.append(checks())
    assert found[0] == found[1]
    assert 0 < len(found[0]) < 200


def test_a_variant_of_a_plan_is_made_once() -> None:
    connect(4, **DATA)
    gt.config.set({"verify": 1.0})
    for _ in range(5):
        contracted().numpy()
    assert sum(any(i.op == VERIFY for i in plan.instructions) for plan in plans()) == 1


def test_what_a_checked_plan_gives_is_what_it_gave() -> None:
    """The companions come beside what was planned, and travel as everything does."""
    connect(4, **DATA)
    for share in (0.0, 1.0):
        gt.config.set({"verify": share})
        contracted().numpy()
    plain, checked = sorted((p for p in plans() if len(p.instructions) > 1), key=lambda plan: len(plan.values))
    kept = {checked.instructions[at].op: at for at in range(len(checked.instructions))}
    assert {i.op for i in plain.instructions} <= kept.keys()
    assert kept.keys() - {i.op for i in plain.instructions} <= {VERIFY, MOVE, "abs"}
    assert [offset for offset, _ in checked.survivors] == [offset for offset, _ in plain.survivors]
    assert [checked.layouts[n] for _, n in checked.survivors] == [plain.layouts[n] for _, n in plain.survivors]
    assert unpack_plan(pack_plan(checked)) == checked
