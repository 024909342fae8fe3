"""Train a small classifier on 1,797 real handwritten digits, sharded by a YAML file, then again without it, and compare.

    python examples/digits.py --config configs/digits.yaml

The program says what to compute; the YAML says where. Deleting the YAML changes nothing but the place: the two loss
curves agree to within the rounding of sums that are added in another order.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits

import gt

BATCH = 64
HELD_OUT = 360


class Classifier(gt.nn.Module):
    """64-128-64-10. The names of the signals are all that this program knows about sharding.

    tanh is smooth: where a relu turns, one rounding decides whether a gradient passes, and curves part for no other reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hidden = gt.nn.Linear(64, 128)
        self.hidden2 = gt.nn.Linear(128, 64)
        self.out = gt.nn.Linear(64, 10)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        with gt.signal.context("hidden"):
            x = self.hidden(x).tanh()
        with gt.signal.context("hidden2"):
            x = self.hidden2(x).tanh()
        return self.out(x)


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(images, labels) to train on and held out: (n, 64) float32 in [0, 1] and (n,) int64, shuffled by a fixed seed."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.data))
    images = (data.data[order] / 16).astype(np.float32)
    labels = data.target[order].astype(np.int64)
    return (images[HELD_OUT:], labels[HELD_OUT:]), (images[:HELD_OUT], labels[:HELD_OUT])


def train(epochs: int, title: str, console: Console) -> tuple[np.ndarray, float]:
    """(the loss of every step, the share of held-out digits that are recognised)."""
    (images, labels), (held_images, held_labels) = digits()
    gt.manual_seed(0)
    model = Classifier()
    optimizer = gt.optim.Adam(model.parameters(), lr=3e-3)
    criterion = gt.nn.CrossEntropyLoss()
    x, y = gt.from_numpy(images), gt.from_numpy(labels)
    losses: list[float] = []
    steps = -(-len(images) // BATCH)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  {task.fields[ms]:.2f} ms a step"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=epochs * steps, loss=float("nan"), ms=float("nan"))
        for _ in range(epochs):
            started = time.perf_counter()
            pending = []
            for start in range(0, len(images), BATCH):
                with gt.signal.context("batch"):
                    loss = criterion(model(x[start : start + BATCH]), y[start : start + BATCH])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                pending.append(loss.fetch())
            losses += [float(loss.result()) for loss in pending]
            elapsed = (time.perf_counter() - started) / steps
            progress.update(task, advance=steps, loss=float(np.mean(losses[-steps:])), ms=elapsed * 1000)
    with gt.no_grad():
        right = (model(gt.from_numpy(held_images)).argmax(1).numpy() == held_labels).mean()
    return np.array(losses), float(right)


def main() -> None:
    """Train twice, on a mesh and on one worker, and compare the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/digits.yaml", help="the sharding config (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="CPU workers for the sharded run (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    console = Console()

    gt.init(workers=options.workers, config=options.config)
    sharded, accuracy = train(options.epochs, f"{options.workers} workers, {options.config}", console)
    console.print(f"held-out accuracy {accuracy:.1%}")
    gt.disconnect()

    gt.init(workers=1)
    plain, plain_accuracy = train(options.epochs, "1 worker, no config", console)
    console.print(f"held-out accuracy {plain_accuracy:.1%}")

    difference = float(np.max(np.abs(sharded - plain) / np.abs(plain)))
    console.print(f"largest relative difference between the two loss curves, over {len(plain)} steps: {difference:.1e}")


if __name__ == "__main__":
    main()
