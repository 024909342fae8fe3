"""What a worker does after a mark, done again from the mark, leaves the same bits in the same layout: with what the worker kept,
with what it reads from the file, and on a new worker, whose programs are cold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt.wire import messages as m
from gt.worker.base.backend import backend
from gt.worker.base.events import MarkWork, ToDispatcher
from gt.worker.core import WorkerCore
from gt.worker.snapshots.mark_files import MarkFiles

STEPS_BEFORE, STEPS_AFTER = 3, 4


def transformer(random: np.random.Generator) -> Callable[[], object]:
    gt.manual_seed(int(random.integers(100)))
    layer = gt.nn.TransformerEncoderLayer(24, 4, dim_feedforward=40, batch_first=True)
    head = gt.nn.Linear(24, 7)
    optimizer = gt.optim.AdamW([*layer.parameters(), *head.parameters()], lr=1e-2)

    def step() -> object:
        x = gt.from_numpy(random.standard_normal((3, 11, 24), np.float32))
        target = gt.from_numpy(random.integers(0, 7, 33))
        loss = gt.nn.functional.cross_entropy(head(layer(x)).reshape(33, 7), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def convolutions(random: np.random.Generator) -> Callable[[], object]:
    gt.manual_seed(int(random.integers(100)))
    net = gt.nn.Sequential(
        gt.nn.Conv2d(2, 5, 3, padding=1), gt.nn.BatchNorm2d(5), gt.nn.ReLU(), gt.nn.MaxPool2d(2), gt.nn.Flatten(),
        gt.nn.Dropout(0.3), gt.nn.Linear(5 * 16, 6),
    )  # fmt: skip
    optimizer = gt.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step() -> object:
        loss = net(gt.from_numpy(random.standard_normal((9, 2, 8, 8), np.float32))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def views(random: np.random.Generator) -> Callable[[], object]:
    """Tensors that are views of each other, written in place, and summed in the order in which they lie."""
    values = [gt.from_numpy(random.standard_normal((13, 13))) for _ in range(6)]

    def step() -> object:
        for _ in range(8):
            one, other = (values[at] for at in random.integers(0, len(values), 2))
            match random.integers(0, 6):
                case 0:
                    values.append(one.t())
                case 1:
                    values.append(one[:, ::2].repeat(1, 2)[:, :13])
                case 2:
                    one = one.clone()
                    one[2:7] += other[1:6]
                    values.append(one)
                case 3:
                    values.append((one[:1].expand(13, 13) + other.flip(0)) / 2)
                case 4:
                    values.append(one @ other / 13)
                case _:
                    values.append(one.sum(0) * other / 13)
        del values[:-6]
        return sum(value.sum() for value in values)

    return step


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    gt.disconnect()


def layout(core: WorkerCore, client: int) -> dict[int, tuple[Any, ...]]:
    """Bits, dtype, shape and strides of all tensors of a client."""
    store = core.stored.tensors[client]
    return {
        tensor: (value.dtype, value.shape, value.strides, value.tobytes())
        for tensor, value in store.items()
        if isinstance(value, np.ndarray)
    }


def restore(core: WorkerCore, files: MarkFiles, client: int, mesh: int) -> None:
    (sent,) = core.handle(m.RestoreMark(1, client, mesh), 0.0)
    if isinstance(sent, MarkWork):
        (sent,) = core.handle(files.do(sent), 0.0)
    assert sent == ToDispatcher(m.MarkRestored(1, client, []))


def replay(core: WorkerCore, said: list[Any], client: int) -> None:
    for message in said:
        core.handle(message._replace(client=client) if hasattr(message, "client") else message, 0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("program", [transformer, convolutions, views])
def test_what_follows_a_mark_has_the_same_bits_again(program: Any, seed: int, tmp_path: Path) -> None:
    session = gt.connect("inproc", workers=1)
    (core,) = session.link.fabric.workers.values()
    said: list[Any] = []
    handle = core.handle

    def heard(message: Any, now: float) -> list[Any]:
        if message is not None:
            said.append(message)
        return handle(message, now)

    core.handle = heard
    step = program(np.random.default_rng(seed))
    losses = [step() for _ in range(STEPS_BEFORE)]
    losses[-1].item()
    (client,) = core.stored.tensors
    files = MarkFiles(tmp_path / "marks", lambda: 0)
    (work,) = handle(m.TakeMark(1, client, mesh := max(core.meshes)), 0.0)
    assert files.do(work) == m.MarkTaken(1, [], work.nanoseconds)
    known = [each for each in said if isinstance(each, m.DefineMesh | m.DefinePlan | m.DropPlan)]
    said.clear()
    losses += [step() for _ in range(STEPS_AFTER)]
    losses[-1].item()
    core.handle = handle
    after = [each for each in said if not isinstance(each, m.Collect)]
    wanted = layout(core, client)
    assert len(wanted) > 5

    restore(core, files, 50, mesh)
    assert layout(core, 50) != wanted
    replay(core, after, 50)
    assert layout(core, 50) == wanted

    core.marks.drop(1)
    restore(core, files, 51, mesh)
    replay(core, after, 51)
    assert layout(core, 51) == wanted

    fresh = WorkerCore(backend("cpu"))
    replay(fresh, [m.Welcome(0, {}), *known], 52)
    restore(fresh, files, 52, mesh)
    replay(fresh, after, 52)
    assert layout(fresh, 52) == wanted
