"""Workers on a stand-in for a GPU and on CPUs in one service: values by the law, shares by speed, pins, and what is planned."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from card import installed
from typer.testing import CliRunner

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.commands.app import app
from gt.daemon.host import host_facts
from gt.errors import ConfigError
from gt.service.in_process import Fabric, InprocLink
from gt.sharding.config import Config
from gt.sharding.partition import extent
from gt.sharding.placement import At, Shard
from gt.tools.worker_facts import facts_of

SPEED = {"cuda:0": [8e12, 4e11], "cpu": [1e11, 2e10]}
FLEETS = [["cuda:0", "cpu"], ["cpu", "cuda:0", "cpu"], ["cuda:0", "cuda:0", "cpu", "cpu"]]
PIN: dict[str, Any] = {"prep": {"device": "cpu"}}
DATA: dict[str, Any] = {"strategy": "data_parallel"}
CONFIGS: dict[str, dict[str, Any]] = {
    "none": {},
    "data parallel": {"sharding_config": {"*": DATA}},
    "pinned": {"sharding_config": PIN},
    "pinned, data parallel": {"sharding_config": {**PIN, "net": DATA}},
    "pinned, the rest too": {"sharding_config": {**PIN, "net": {"device": "cuda"}}},
    "tensor parallel": {"sharding_config": {"net": {"strategy": "tensor_parallel"}}},
    "fully sharded": {"sharding_config": {**PIN, "net": {"strategy": "fully_sharded"}}},
}


@pytest.fixture(autouse=True)
def _on_the_card() -> Iterator[None]:
    with installed():
        yield
        gt.disconnect()


def connect(devices: list[str], config: dict[str, Any] | None = None) -> Fabric:
    gt.disconnect()
    facts = [{"host": "here", "cores": 1, "speed": SPEED[device]} for device in devices]
    fabric = Fabric(len(devices), Config.from_plain(config) if config else None, devices=devices, facts=facts)
    session = Session(InprocLink(fabric), "inproc", idle_flush=False)
    session.open({**host_facts(), "bulk": b""}, 1.0)
    sessions.adopt(session)
    return fabric


def trained() -> list[Any]:
    """Preprocessing in a signal of its own, and the losses and a gradient of a network."""
    gt.manual_seed(0)
    draws = np.random.default_rng(0)
    with gt.signal.context("prep"):
        x = gt.from_numpy(draws.standard_normal((24, 12), np.float32))
        x = (x - x.mean(0)) / x.std(0)
        order = x[:, 0].argsort()
        largest = x.abs().max()
    with gt.signal.context("net"):
        model = gt.nn.Sequential(
            gt.nn.Linear(12, 20), gt.nn.LayerNorm(20), gt.nn.GELU(), gt.nn.Dropout(0.1), gt.nn.Linear(20, 5)
        )
        y = gt.from_numpy(draws.integers(0, 5, 24))
        optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(5):
            loss = gt.nn.functional.cross_entropy(model(x[order] / largest), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return [order.numpy(), *(loss.numpy() for loss in losses), model[0].weight.grad.numpy()]


@cache
def trained_alone() -> list[Any]:
    """The same on one worker, once for all tests."""
    connect(["cpu"])
    return trained()


def meshes(fabric: Fabric) -> list[Any]:
    return [record.mesh for record in fabric.dispatcher.service.meshes.values()]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("devices", FLEETS, ids=",".join)
def test_values_are_those_of_one_worker(devices: list[str], config: str) -> None:
    expected = trained_alone()
    fabric = connect(devices, CONFIGS[config])
    for found, want in zip(trained(), expected, strict=True):
        np.testing.assert_allclose(found, want, rtol=3e-5, atol=1e-6)
    fabric.check()


@pytest.mark.parametrize("devices", FLEETS, ids=",".join)
def test_shares_are_by_measured_speed(devices: list[str]) -> None:
    """A GPU that is 45 times as fast holds 45 times as many rows."""
    fabric = connect(devices, CONFIGS["data parallel"])
    with gt.signal.context("net"):
        x = gt.from_numpy(np.ones((9800, 2), np.float32)) + 1
        gt.synchronize()
    (mesh,) = meshes(fabric)
    assert mesh.weights == (tuple(181 if device == "cuda:0" else 4 for device in devices),)
    held = [_held(worker) for worker in fabric.workers.values()]
    assert sum(held) == 9800
    for device, rows in zip(devices, held, strict=True):
        assert rows == pytest.approx(9800 * (181 if device == "cuda:0" else 4) / sum(mesh.weights[0]), abs=1)
    assert x.sum().item() == 4 * 9800


def _held(worker: Any) -> int:
    """Rows of the largest array that a worker keeps."""
    return max((entry.shape[0] for entry in _arrays(worker) if entry.ndim == 2), default=0)


def _arrays(worker: Any) -> list[Any]:
    return [value for tensors in worker.stored.tensors.values() for value in tensors.values() if hasattr(value, "ndim")]


@pytest.mark.parametrize("config", ["pinned", "pinned, data parallel", "pinned, the rest too"])
@pytest.mark.parametrize("devices", FLEETS, ids=",".join)
def test_what_is_pinned_to_cpus_runs_on_no_gpu(devices: list[str], config: str) -> None:
    """Of the preprocessing a GPU's worker holds no row, and what follows may be on all of them, where a strategy cuts it."""
    fabric = connect(devices, CONFIGS[config])
    trained()
    seen = {"prep": 0, "net": 0}
    kinds = [worker.backend.kind for worker in fabric.workers.values()]
    for rank, worker in enumerate(fabric.workers.values()):
        for program in worker.programs.compiled.values():
            plan = program.plan
            for instruction in plan.instructions:
                (placement,) = plan.layouts[instruction.outputs[0]]
                signal = plan.tags[instruction.tag].signal[:1]
                if not signal or instruction.op == "move" or not isinstance(placement, At | Shard):
                    continue
                mesh = meshes(fabric)[0]
                if isinstance(placement, At):
                    rows, kind = 1, kinds[mesh.members[placement.position]]
                else:
                    rows, kind = extent(worker_box(plan, instruction, rank, mesh))[placement.dim], kinds[rank]
                pinned = "cpu" if signal[0] == "prep" else "cuda" if "rest" in config else kind
                assert rows == 0 or kind == pinned, instruction
                seen[signal[0]] += rows
    assert seen["prep"]
    assert seen["net"] or config == "pinned"


def worker_box(plan: Any, instruction: Any, rank: int, mesh: Any) -> Any:
    from gt.sharding.partition import box

    number = instruction.outputs[0]
    found = box(plan.values[number].shape, plan.layouts[number], mesh, rank)
    assert found is not None
    return found


def test_a_session_without_rules_goes_where_most_speed_is_left() -> None:
    """A GPU serves as many sessions as it is fast before a CPU worker gets one."""
    fabric = connect(["cpu", "cuda:0", "cpu"])
    gt.ones(2).sum().item()
    assert [mesh.members for mesh in meshes(fabric)] == [(1,)]


def test_a_kind_that_nobody_is_of_is_refused() -> None:
    connect(["cpu", "cpu"], {"sharding_config": {"prep": {"device": "cuda"}}})
    with (
        gt.signal.context("prep"),
        pytest.raises(ConfigError, match=r"no worker .* is cuda; allowed: gt:0 \(cpu@here\)"),
    ):
        (gt.ones(4, 4) + 1).numpy()


def test_tensors_move_between_kinds_whole_and_cut() -> None:
    """What one kind made the other computes with, in every dtype that travels, empty parts among them."""
    connect(["cpu", "cuda:0", "cpu"], {"sharding_config": {"here": {"device": "cpu"}, "there": {"device": "cuda"}}})
    for dtype in ("float32", "float64", "bfloat16", "float16", "int64", "int8", "bool", "complex64"):
        for shape in ((7, 3), (1, 4), (0, 2), (5,), ()):
            host = np.random.default_rng(3).integers(0, 2, shape)
            with gt.signal.context("here"):
                x = gt.tensor(host).to(dtype)
                a = x == x
            with gt.signal.context("there"):
                y = gt.where(a, x, x)
                both = gt.cat([y.reshape(-1), x.reshape(-1)])
            with gt.signal.context("here"):
                back = both.flip(0).to("float64")
            np.testing.assert_array_equal(back.numpy(), np.tile(host.reshape(-1), 2)[::-1])


# explained


PROGRAM = """
    import gt
    with gt.signal.context("prep"):
        x = gt.ones(4096, 64) * 2
    with gt.signal.context("net"):
        w = gt.nn.Parameter(gt.ones(64, 64))
        (x @ w).sum().backward()
    print(w.grad.sum().item())
"""


def test_a_mixed_fleet_is_explained(tmp_path: Path) -> None:
    """Each device with its own kind and speed: the pin is planned for, and refused where no worker is of that kind."""
    program, config = tmp_path / "program.py", tmp_path / "config.yaml"
    program.write_text(textwrap.dedent(PROGRAM))
    config.write_text("sharding_config: {prep: {device: cpu}, net: {strategy: data_parallel}}\n")
    run = CliRunner().invoke
    done = run(
        app, ["explain", str(program), "--config", str(config), "--devices", "cuda:0,cpu", "--typical", "--full"]
    )
    assert done.exit_code == 0, done.output
    assert "2 workers" in done.output
    refused = run(app, ["explain", str(program), "--config", str(config), "--devices", "cuda:0,cuda:1", "--typical"])
    assert refused.exit_code != 0
    assert "is of the kind cpu" in refused.output
    wrong = run(app, ["explain", str(program), "--devices", "tpu"])
    assert wrong.exit_code != 0
    assert "no device is called 'tpu'" in wrong.output
    wrong = run(app, ["explain", str(program), "--devices", "cpu,cpu", "--workers", "3"])
    assert "2 devices are that many workers, not 3" in wrong.output


def test_what_a_fleet_would_say_is_measured_where_it_is_here_and_typical_elsewhere() -> None:
    gpu, one, other = facts_of(3, "typical", ["cuda:0", "cpu", "cpu"])
    assert [gpu["kind"], one["kind"], other["kind"]] == ["cuda", "cpu", "cpu"]
    assert "speed" not in gpu
    assert all("speed" not in said for said in (one, other))
    assert facts_of(2, "typical") == facts_of(2, "typical", ["cpu", "cpu"])
