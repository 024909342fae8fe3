"""Convolution, recurrence and attention on a GPU beside PyTorch eager (cuDNN, its fused attention): part `layers` of `gpu.py`.

Both compute in what their tensors are, float32 without TF32, and GT goes through real processes. A round is some steps, each
depending on the one before, and the fetch of one element. As many rounds are measured as fit in `CASE_SECONDS`, at most those
that were asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import workloads

import gt

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from gpu import Bench, Rows

CASE_SECONDS: Final = 5.0
"""The seconds for which a case is measured, after its first turns."""
MIN_ROUNDS: Final = 3
Make = Callable[[Any, Callable[[Any], Any], int, Callable[..., Any]], Callable[[], object]]
"""Given the library, what takes an array to its device, a number of steps and what compiles: the contender."""


class LayerSizes(NamedTuple):
    """Shapes of the large cases, and how many steps a round has."""

    pictures: tuple[int, int, int, int] = (32, 64, 56, 56)
    channels: int = 128
    recurrent: tuple[int, int, int, int] = (256, 512, 100, 64)
    """Features, width, steps and batch of an LSTM."""
    attention: tuple[int, int, int, int] = (4, 8, 1024, 64)
    counts: tuple[int, int, int, int, int] = (20, 5, 10, 3, 20)
    """Steps of a round: small and large convolution, small and large recurrence, attention."""


SMALL: Final = LayerSizes((2, 4, 8, 8), 6, (4, 6, 3, 2), (1, 2, 8, 4), (1, 1, 1, 1, 2))
SMALL_STEPS: Final = 3
"""`Sizes.steps` of `--small`."""


def layers(bench: Bench) -> Rows:
    """Steps of two convolutional networks and of two LSTMs, and attention with and without its gradient."""
    sizes = LayerSizes() if bench.sizes.steps > SMALL_STEPS else SMALL
    counts = sizes.counts
    batch, channels, height, width = sizes.pictures
    features, hidden, length, sequences = sizes.recurrent
    cases: dict[str, tuple[Make, int]] = {
        "CNN step, 1-16-32 of 64×28×28": (trained(workloads.convolutional, workloads.pictures()), counts[0]),
        f"CNN step, {channels}-{sizes.channels} of {batch}×{height}×{width}": (
            trained(lambda lib: wide_convolution(lib, channels, sizes.channels), wide_pictures(sizes)), counts[1],
        ),
        "LSTM step, 32-64, 40 steps of 32": (trained(workloads.recurrent, workloads.sequences()), counts[2]),
        f"LSTM step, {features}-{hidden}, {length} steps of {sequences}": (
            trained(
                lambda lib: workloads.recurrent(lib, features, hidden),
                workloads.sequences(length, sequences, features),
            ),
            counts[3],
        ),
    }  # fmt: skip
    if sizes is SMALL:  # the large cases have the same code
        cases = dict([*cases.items()][1::2])
    for dtype in ("float16",) if sizes is SMALL else ("float16", "float32"):
        shape = "×".join(map(str, sizes.attention))
        cases[f"attention {shape}, {dtype}"] = attended(sizes.attention, dtype), counts[4]
        cases[f"with its gradient, {dtype}"] = attended_back(sizes.attention, dtype), counts[4]
    rows: Rows = []
    with without_tf32():
        for what, (make, count) in cases.items():
            rows += compared(bench, what, make, count)
    return rows


def compared(bench: Bench, what: str, make: Make, count: int) -> Rows:
    """Rows of one case: GT, compiled GT, and PyTorch on a card."""
    contenders: dict[str, Callable[[], object]] = {
        "GT": make(gt, gt.from_numpy, count, workloads.unchanged),
        "GT compiled": make(gt, gt.from_numpy, count, gt.compile),
    }
    if bench.has_torch and bench.backend.kind == "cuda":
        contenders["PyTorch eager"] = make(
            PyTorch("cuda"), lambda x: torch.from_numpy(x).cuda(), count, workloads.unchanged
        )
    rounds = bench.rounds
    if rounds > MIN_ROUNDS:
        bench.rounds = fitting(bench, contenders)
    try:
        taken = bench.seconds(contenders, repeats=1)
    finally:
        bench.rounds = rounds
    peer = taken.get("PyTorch eager")
    return [
        (
            what if name == "GT" else "", name, f"{value / count * 1e3:.3f} ms",
            f"{name} / PyTorch eager = {value / peer:.2f}" if peer and name.startswith("GT") else "",
        )
        for name, value in taken.items()
    ]  # fmt: skip


def fitting(bench: Bench, contenders: dict[str, Callable[[], object]]) -> int:
    """The number of rounds that fit in `CASE_SECONDS`, by the second turn of each contender that does not fail."""
    taken = 0.0
    for run in contenders.values():
        try:
            run()
            start = time.perf_counter()
            run()
            taken += time.perf_counter() - start
        except Exception:  # `Bench.seconds` says which
            continue
    return min(bench.rounds, max(MIN_ROUNDS, int(CASE_SECONDS / max(taken, 1e-9))))


class PyTorch:
    """PyTorch whose networks are made on a device."""

    def __init__(self, on: str) -> None:
        self.on = on

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def without_tf32() -> Iterator[None]:
    """While it lasts, PyTorch's convolutions and LSTMs compute in float32 as GT's do."""
    if torch is None:
        yield
        return
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def trained(model_of: Callable[[Any], Any], data: tuple[Any, Any]) -> Make:
    """SGD steps of a network on one batch; the last loss is fetched."""

    def make(lib: Any, there: Callable[[Any], Any], count: int, wrap: Callable[..., Any]) -> Callable[[], object]:
        if isinstance(lib, PyTorch):
            return workloads.training(torch, model_of(torch).to(lib.on), *map(there, data), count, wrap)
        return workloads.training(lib, model_of(lib), *map(there, data), count, wrap)

    return make


def wide_convolution(lib: Any, channels: int, out: int) -> Any:
    """A 3×3 convolution behind one of 1×1, so that its input has a gradient; the mean of each channel, and 10 classes."""
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(channels, channels, 1), nn.ReLU(), nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(out, 10),
    )  # fmt: skip


def wide_pictures(sizes: LayerSizes) -> tuple[Any, Any]:
    """A batch for it, and its classes."""
    generator = np.random.default_rng(0)
    return generator.standard_normal(sizes.pictures, dtype=np.float32), generator.integers(0, 10, sizes.pictures[0])


def heads(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """Queries, keys, values, and a gradient of what comes of them."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape, dtype=np.float32).astype(dtype) for _ in range(4)]


def attended(shape: tuple[int, ...], dtype: str) -> Make:
    """Attentions, of which each has the result of the one before for queries."""

    def make(lib: Any, there: Callable[[Any], Any], count: int, wrap: Callable[..., Any]) -> Callable[[], object]:
        q, k, v, _ = map(there, heads(shape, dtype))
        attention = wrap(lib.nn.functional.scaled_dot_product_attention)

        def run() -> None:
            y = q
            for _ in range(count):
                y = attention(y, k, v)
            y[0, 0, 0, 0].item()

        return run

    return make


def attended_back(shape: tuple[int, ...], dtype: str) -> Make:
    """Attentions with their gradients; the next one's queries, keys and values have these added."""

    def make(lib: Any, there: Callable[[Any], Any], count: int, wrap: Callable[..., Any]) -> Callable[[], object]:
        q, k, v, gradient = map(there, heads(shape, dtype))

        def both(a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
            a, b, c = (x.detach().requires_grad_() for x in (a, b, c))
            out = lib.nn.functional.scaled_dot_product_attention(a, b, c)
            found = lib.autograd.grad(out, (a, b, c), gradient)
            return q + found[0], k + found[1], v + found[2]

        step = wrap(both)

        def run() -> None:
            x, y, z = q * 1, k * 1, v * 1  # none of them is a tensor that the function knows already
            for _ in range(count):
                x, y, z = step(x, y, z)
            (x[0, 0, 0, 0] + y[0, 0, 0, 0] + z[0, 0, 0, 0]).item()

        return run

    return make
