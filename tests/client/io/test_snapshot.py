"""Snapshots as a program uses them, on a service in this process: what is saved comes back, on other workers and configs too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session import sessions
from gt.errors import DTypeError, SessionError, SnapshotError, StateError
from gt.sharding import options
from gt.sharding.placement import format_layout

SHARDED: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "fully_sharded"}}}
TENSOR_PARALLEL: dict[str, Any] = {
    "mesh": {"model": 3}, "sharding_config": {"net": {"strategy": "tensor_parallel", "dimension": 0}},
}  # fmt: skip
OWN = f"user%20{os.geteuid()}"
"""The folder of this user's snapshots, also of services in their own processes."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("GT_SNAPSHOTS", str(tmp_path))
    gt.connect("inproc", workers=2, config=SHARDED)
    yield tmp_path / OWN
    gt.disconnect()


def model_and_optimizer(width: int = 5, seed: int = 0) -> tuple[Any, Any]:
    gt.manual_seed(seed)
    with gt.signal.context("net"):
        model = gt.nn.Sequential(gt.nn.Linear(6, width), gt.nn.BatchNorm1d(width), gt.nn.Linear(width, 3))
    return model, gt.optim.Adam(model.parameters(), lr=0.01)


def train(model: Any, optimizer: Any, first: int, steps: int) -> float:
    loss = gt.zeros(())
    for step in range(first, first + steps):
        x = gt.from_numpy(np.random.default_rng(step).normal(size=(8, 6)).astype("float32"))
        with gt.signal.context("net"):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def values(thing: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.numpy() for name, tensor in thing.state_dict().items()}


def moments(optimizer: Any) -> list[np.ndarray[Any, Any]]:
    states = optimizer.state_dict()["state"].values()
    return [value.numpy() for state in states for value in state.values() if isinstance(value, gt.Tensor)]


def places_of(tensor: Any) -> str:
    """The layout of a tensor at the dispatcher of the service in this process."""
    session = sessions.current()
    session.flush()
    table = session.link.fabric.dispatcher.service.clients[b"client"].table  # type: ignore[attr-defined]
    return format_layout(table[tensor._value.id].resident.layout)


def places(model: Any) -> list[str]:
    return [places_of(tensor) for tensor in model.state_dict().values()]


def same(one: Any, other: Any) -> None:
    pairs = [(one[name], other[name]) for name in one] if isinstance(one, dict) else list(zip(one, other, strict=True))
    assert len(one) == len(other)
    for a, b in pairs:
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("workers", "config"), [(2, SHARDED), (1, None), (3, TENSOR_PARALLEL), (3, None)])
def test_training_goes_on_on_other_workers_under_another_config(workers: int, config: Any) -> None:
    """Parameters, buffers and moments have the same bits, and the next losses are those of a run that was not interrupted."""
    model, optimizer = model_and_optimizer()
    train(model, optimizer, 0, 3)
    gt.snapshot("step-3", model, optimizer, extra={"step": 3})
    saved, saved_moments = values(model), moments(optimizer)
    expected = train(model, optimizer, 3, 4)
    gt.disconnect()
    gt.connect("inproc", workers=workers, config=config)
    model, optimizer = model_and_optimizer(seed=1)
    assert gt.restore("step-3", model, optimizer) == {"step": 3}
    same(values(model), saved)
    same(moments(optimizer), saved_moments)
    assert len(saved_moments) == 12
    assert train(model, optimizer, 3, 4) == pytest.approx(expected, rel=1e-4)


def test_a_snapshot_holds_what_was_there_at_its_line() -> None:
    """Though the weights change before anybody waits for it."""
    model, optimizer = model_and_optimizer()
    train(model, optimizer, 0, 1)
    saved = values(model)
    future = gt.snapshot("a", model, optimizer, wait=False)
    train(model, optimizer, 1, 3)
    future.result()
    gt.restore("a", model)
    same(values(model), saved)


def test_workers_may_write_as_late_as_they_like(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that comes meanwhile overwrites what they have yet to write, though optimizers compute in place."""
    model, optimizer = model_and_optimizer()
    train(model, optimizer, 0, 4)
    saved, saved_moments = values(model), moments(optimizer)
    fabric, held = sessions.current().link.fabric, []  # type: ignore[attr-defined]
    work = fabric._work_on_snapshot
    monkeypatch.setattr(fabric, "_work_on_snapshot", lambda *what: held.append(what))
    future = gt.snapshot("a", model, optimizer, wait=False)
    loss = train(model, optimizer, 4, 6)
    assert not future.done()
    monkeypatch.setattr(fabric, "_work_on_snapshot", work)
    for what in held:
        work(*what)
    fabric.run()
    future.result()
    assert values(model)["0.weight"].tobytes() != saved["0.weight"].tobytes()
    gt.restore("a", model, optimizer)
    same(values(model), saved)
    same(moments(optimizer), saved_moments)
    assert train(model, optimizer, 4, 6) == loss


def test_what_is_out_of_memory_is_written_and_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that hold more than their memory has, on disk."""
    gt.disconnect()
    monkeypatch.setitem(options.for_workers, "memory_pool_size", 1 << 20)
    gt.connect("inproc", workers=1)
    state = {str(number): gt.from_numpy(np.full(1 << 17, number, np.uint32)) + 1 for number in range(6)}
    limiter = next(iter(sessions.current().link.fabric.workers.values())).stored.limiter  # type: ignore[attr-defined]
    gt.synchronize()
    gt.snapshot("a", state)
    other = {name: gt.zeros(1 << 17, dtype=gt.uint32) for name in state}
    gt.restore("a", other)
    for name, tensor in other.items():
        assert (tensor.numpy() == int(name) + 1).all()
    assert limiter.most <= 3 << 20


def test_a_wait_for_files_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a disk that does not answer; the session goes on."""
    model, optimizer = model_and_optimizer()
    gt.snapshot("a", model, optimizer)
    before = values(model)
    fabric, held = sessions.current().link.fabric, []  # type: ignore[attr-defined]
    monkeypatch.setattr(fabric, "_work_on_snapshot", lambda *what: held.append(what))
    with pytest.raises(TimeoutError, match=r"waited 0 s for the snapshot 'a'"):
        gt.snapshot("a", model, timeout=0)
    with pytest.raises(TimeoutError, match="waited 0 s for the service's snapshot a"):
        gt.restore("a", model, timeout=0)
    same(values(model), before)


def test_a_restored_parameter_lies_where_the_model_had_it() -> None:
    model, optimizer = model_and_optimizer()
    train(model, optimizer, 0, 2)
    before = places(model)
    assert any("S" in layout for layout in before)
    gt.snapshot("a", model, optimizer)
    weight = gt.restore("a").tensor("model.0.weight")
    gt.restore("a", model, optimizer)
    assert places(model) == before
    assert "S" not in places_of(weight), "without a parameter to follow, where a put outside all signals lies"


def test_whatever_is_made_of_tensors_and_plain_values() -> None:
    state: dict[str, Any] = {
        "ema": gt.arange(5.0), "half": gt.ones(3, dtype=gt.bfloat16), "flag": gt.tensor(True), "empty": gt.zeros(0, 3),
        "steps": 7, "nested": {"list": [gt.tensor([1, 2]), 0.1, None, "text"], "pair": (1, gt.tensor(2.0))},
    }  # fmt: skip
    scheduled = gt.optim.SGD([gt.nn.Parameter(gt.zeros(2))], lr=1.0, momentum=0.9)
    schedule = gt.optim.lr_scheduler.StepLR(scheduled, 2)
    schedule.step()
    gt.snapshot("a", state, gt.tensor([3.5]), schedule)
    other: dict[str, Any] = {
        "ema": gt.zeros(5), "half": gt.zeros(3, dtype=gt.bfloat16), "flag": gt.tensor(False), "empty": gt.zeros(0, 3),
        "steps": 0, "nested": {"list": [gt.tensor([0, 0]), 0.0, 1, ""], "pair": (0, gt.tensor(0.0))},
    }  # fmt: skip
    mine, ema = gt.zeros(1), other["ema"]
    fresh = gt.optim.lr_scheduler.StepLR(gt.optim.SGD([gt.nn.Parameter(gt.zeros(2))], lr=1.0), 2)
    assert gt.restore("a", other, mine, fresh) is None
    assert other["ema"] is ema
    assert ema.tolist() == [0, 1, 2, 3, 4]
    assert (other["steps"], other["nested"]["list"][1:], other["nested"]["pair"][0]) == (7, [0.1, None, "text"], 1)
    assert (other["nested"]["list"][0].tolist(), other["nested"]["pair"][1].item()) == ([1, 2], 2.0)
    assert (other["half"].tolist(), other["flag"].item(), mine.item()) == ([1, 1, 1], True, 3.5)
    assert fresh.state_dict()["last_epoch"] == schedule.state_dict()["last_epoch"]


def test_a_snapshot_is_looked_at_without_a_model() -> None:
    model, optimizer = model_and_optimizer()
    gt.snapshot("a", model, optimizer, {"x": gt.arange(3)}, extra=[1, {"two": None}])
    found = gt.restore("a")
    assert found.extra == [1, {"two": None}]
    assert found.names()[0] == "model.0.weight"
    assert found.names()[-1] == "tensors.x"
    assert found.tensor("tensors.x").tolist() == [0, 1, 2]
    with pytest.raises(KeyError):
        found.tensor("tensors.y")
    (listed,) = gt.snapshots()
    assert (listed.name, listed.tensors, listed.time) == ("a", len(found.names()), found.time)
    assert repr(found).startswith("SavedSnapshot('a', ")


def test_what_does_not_fit_is_all_said_at_once_and_nothing_is_loaded() -> None:
    model, optimizer = model_and_optimizer()
    gt.snapshot("a", model, optimizer)
    other, other_optimizer = model_and_optimizer(width=4, seed=1)
    before = values(other)
    with pytest.raises(
        StateError, match=r"nothing was loaded:\n(.*\n)*.*0.weight is f32\[5,6\] in the snapshot, and f32\[4,6\] here"
    ):
        gt.restore("a", other_optimizer, other)
    same(values(other), before)
    with pytest.raises(StateError, match=r"2\.bias is in the snapshot, and not in the Sequential"):
        gt.restore("a", gt.nn.Sequential(gt.nn.Linear(6, 5), gt.nn.BatchNorm1d(5)))
    with pytest.raises(StateError, match=r"3\.bias is missing in the snapshot"):
        gt.restore("a", gt.nn.Sequential(*model, *model, *model, gt.nn.Linear(1, 1)))
    with pytest.raises(StateError, match=r"groups of \[1\] parameters, the saved one \[6\]"):
        gt.restore("a", gt.optim.Adam([gt.nn.Parameter(gt.zeros(1))]))
    with pytest.raises(StateError, match=r"no \(further\) tensors for the dict: it has module, optimizer left"):
        gt.restore("a", {"x": gt.zeros(1)})
    with pytest.raises(StateError, match=r"no \(further\) module"):
        gt.restore("a", model, model)


def test_a_damaged_file_is_named_and_nothing_is_loaded(folder: Path) -> None:
    """Though all other tensors of it could be read."""
    model, optimizer = model_and_optimizer()
    gt.snapshot("a", model, optimizer)
    train(model, optimizer, 0, 1)
    before, before_moments = values(model), moments(optimizer)
    (part, *_) = sorted(folder.glob("a/*/part-*"))
    data = bytearray(part.read_bytes())
    data[20] ^= 1
    part.write_bytes(data)
    with pytest.raises(SnapshotError, match=rf"{part.name} is damaged: the checksum of 'model.0.weight', bytes"):
        gt.restore("a", model, optimizer)
    same(values(model), before)
    same(moments(optimizer), before_moments)
    part.unlink()
    with pytest.raises(SnapshotError, match=f"{part.name}: No such file"):
        gt.restore("a", model)
    assert train(model, optimizer, 1, 1) > 0


def test_a_snapshot_that_fails_leaves_the_one_before(folder: Path) -> None:
    """And no file of its own."""
    model, _ = model_and_optimizer()
    gt.snapshot("a", model, extra=1)
    files = sorted(folder.rglob("*"))
    wrong = gt.arange(3)[gt.tensor([7])]
    with pytest.raises(gt.IndexOutOfRange):
        gt.snapshot("a", model, {"wrong": wrong}, extra=2)
    assert sorted(folder.rglob("*")) == files
    assert gt.restore("a", model) == 1


def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    folder.parent.joinpath(OWN).write_text("in the way")
    with pytest.raises(SnapshotError, match=OWN):
        gt.snapshot("a", {"x": gt.zeros(3)})


def test_calls_that_cannot_be_meant_are_refused_at_once() -> None:
    for name in ("", "../a", "a b", ".a"):
        with pytest.raises(SnapshotError, match="no name for a snapshot"):
            gt.snapshot(name, gt.zeros(1))
        with pytest.raises(SnapshotError, match="no name for a snapshot"):
            gt.restore(name)
    with pytest.raises(TypeError, match="say what is to be saved"):
        gt.snapshot("a")
    with pytest.raises(TypeError, match="extra is what JSON can hold"):
        gt.snapshot("a", gt.zeros(1), extra={1, 2})
    with pytest.raises(TypeError, match="not int"):
        gt.snapshot("a", 5)
    with pytest.raises(TypeError, match="snapshot takes tensors"):
        gt.snapshot("a", {"x": object()})
    with pytest.raises(SnapshotError, match="no snapshot 'b'"):
        gt.restore("b")
    with pytest.raises(SnapshotError, match="bytes besides its tensors"):
        gt.snapshot("a", gt.zeros(1), extra="x" * (5 << 20))
    assert gt.snapshots() == []


def test_a_tensor_of_another_session_is_refused() -> None:
    old = gt.zeros(3)
    gt.disconnect()
    gt.connect("inproc", workers=1)
    with pytest.raises((SessionError, DTypeError)):
        gt.snapshot("a", {"x": old})
