"""Measures the processor time of a worker on NumPy and of one on PyTorch for a training step, in turns.

    python benchmarks/torch_worker.py --turns 3

Each service has one worker of its own. The processor time of the worker's process says what the step costs on a busy machine,
too; the time by the clock says something on a quiet one alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

import gt
from gt import nn

DEVICES = ("cpu", "torch:cpu")
WARM_STEPS = 8
STEPS = {"CNN, 64 and 128 channels": 6, "transformer": 10, "bfloat16, autocast": 5, "bfloat16, weights": 5}
MOST_STEPS = 40
Program = Callable[[], tuple[nn.Module, Callable[[], gt.Tensor]]]
functional = nn.functional
drawn = np.random.default_rng(0)


def floats(*shape: int) -> gt.Tensor:
    return gt.from_numpy(drawn.standard_normal(shape).astype(np.float32))


def labels(*shape: int) -> gt.Tensor:
    return gt.from_numpy(drawn.integers(0, 10, shape))


def mlp() -> Any:
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    x, y = floats(64, 784), labels(64)
    return model, lambda: functional.cross_entropy(model(x), y)


def cnn() -> Any:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip
    x, y = floats(32, 1, 28, 28), labels(32)
    return model, lambda: functional.cross_entropy(model(x), y)


def large_cnn() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64),
        nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    x, y = floats(32, 3, 32, 32), labels(32)
    return model, lambda: functional.cross_entropy(model(x), y)


def lstm() -> Any:
    recurrent, head = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 10)
    x, y = floats(32, 32, 64), labels(32)
    return nn.ModuleList([recurrent, head]), lambda: functional.cross_entropy(head(recurrent(x)[0][:, -1]), y)


def transformer() -> Any:
    layers = [nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    x, y = floats(8, 128, 128), labels(8 * 128)
    return model, lambda: functional.cross_entropy(model(x).reshape(-1, 10), y)


def autocast_bfloat16() -> Any:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
    x, y = floats(256, 1024), floats(256, 1024)

    def loss() -> gt.Tensor:
        with gt.autocast("cpu", dtype=gt.bfloat16):
            out = model(x)
        return (out.to(gt.float32) - y).square().mean()

    return model, loss


def weights_in_bfloat16() -> Any:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(gt.bfloat16)
    x, y = floats(256, 1024).to(gt.bfloat16), floats(256, 1024)
    return model, lambda: (model(x).to(gt.float32) - y).square().mean()


PROGRAMS: dict[str, Program] = {
    "784-256-128-10": mlp, "CNN, 16 and 32 channels": cnn, "CNN, 64 and 128 channels": large_cnn, "LSTM": lstm,
    "transformer": transformer, "bfloat16, autocast": autocast_bfloat16, "bfloat16, weights": weights_in_bfloat16,
}  # fmt: skip


def measured(device: str) -> dict[str, tuple[float, float]]:
    """By program, the milliseconds of the worker's processors and of the clock for a step."""
    gt.init(workers=1, device=device)
    (worker,) = [each for each in psutil.Process().children() if "gt.worker" in each.cmdline()]
    found = {}
    for name, make in PROGRAMS.items():
        gt.manual_seed(0)
        model, loss_of = make()
        optimizer = gt.optim.Adam(model.parameters(), lr=1e-3)

        def run(steps: int, loss_of: Any = loss_of, optimizer: Any = optimizer) -> None:
            for _ in range(steps):
                loss = loss_of()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            loss.item()

        steps = STEPS.get(name, MOST_STEPS)
        run(WARM_STEPS)
        used, began = sum(worker.cpu_times()[:2]), time.perf_counter()
        run(steps)
        spent = sum(worker.cpu_times()[:2]) - used, time.perf_counter() - began
        found[name] = spent[0] / steps * 1e3, spent[1] / steps * 1e3
    gt.disconnect()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    turns = [{device: measured(device) for device in DEVICES} for _ in range(parser.parse_args().turns)]
    print(f"{'a step':26}" + "".join(f"{f'{device}, CPU ms':>20}{'clock ms':>10}" for device in DEVICES))
    for name in PROGRAMS:
        cells = [min(turn[device][name][at] for turn in turns) for device in DEVICES for at in (0, 1)]
        print(f"{name:26}" + "".join(f"{cell:{20 if at % 2 == 0 else 10}.2f}" for at, cell in enumerate(cells)))


if __name__ == "__main__":
    main()
