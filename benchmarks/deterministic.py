"""The price of `deterministic: true`, and of checks at run time: what takes how much longer, in one run: `make bench`.

    python benchmarks/deterministic.py [--rounds 7] [--workers 1,2] [--only product,step,...] [--json FILE]

One session on local workers is given the two configs in turns, and each work is done once, uncounted, under either before
its time is taken. Figures are medians of the rounds, of checks means. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import workloads

import gt
from gt.sharding.config import Config

Work = Callable[[], Any]
RULES = {"net": {"strategy": "data_parallel"}}
CONFIGS = {
    "ordinary": Config.from_plain({"sharding_config": RULES}),
    "deterministic": Config.from_plain({"deterministic": True, "sharding_config": RULES}),
}


def _array(*shape: int) -> gt.Tensor:
    return gt.from_numpy(np.random.default_rng(0).standard_normal(shape, np.float32))


def product() -> Work:
    """10 products of 512×512 by 512×512."""
    a, b = _array(512, 512), _array(512, 512)
    return lambda: [a @ b for _ in range(10)]


def thin_product() -> Work:
    """10 products of 128×784 by 784×256."""
    a, b = _array(128, 784), _array(784, 256)
    return lambda: [a @ b for _ in range(10)]


def total() -> Work:
    """10 sums of 1024×1024, along either dimension."""
    x = _array(1024, 1024)
    return lambda: [x.sum(n % 2) for n in range(10)]


def softmax() -> Work:
    """10 softmaxes of 1024 rows of 512."""
    x = _array(1024, 512)
    return lambda: [x.softmax(1) for _ in range(10)]


def lookup() -> Work:
    """The gradient of looking 4,096 rows of 128 up in a table of 1,000."""
    table = gt.nn.Parameter(_array(1000, 128))
    index = gt.from_numpy(np.random.default_rng(0).integers(0, 1000, 4096))

    def work() -> None:
        table.grad = None
        gt.nn.functional.embedding(index, table).square().sum().backward()

    return work


def step() -> Work:
    """10 SGD steps of 784-256-128-10 at batch 128."""
    model = workloads.mlp(gt)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    x, y = _array(128, 784), gt.from_numpy(np.random.default_rng(0).integers(0, 10, 128))

    def work() -> None:
        for _ in range(10):
            loss = gt.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return work


def transformer() -> Work:
    """One AdamW step of `examples/char_lm.py`: 4 blocks of width 128, 16 windows of 64 characters."""
    example = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "char_lm.py"), run_name="char_lm")
    text = example["Text"](topics["assignment"])
    model = example["CharLM"](len(text.alphabet), 64, 128, 4, 4)
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)

    def work() -> None:
        loss = example["loss_of"](model, *text.batch(0, 16, 64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return work


SHARES = (0.0, 0.01, 1.0)
CHECKED = ("step", "transformer")

WORKS: dict[str, Callable[[], Work]] = {
    "product": product, "thin_product": thin_product, "total": total, "softmax": softmax, "lookup": lookup,
    "step": step, "transformer": transformer,
}  # fmt: skip


def done(work: Work) -> float:
    """Seconds until the workers have done it; what it makes goes nowhere."""
    started = time.perf_counter()
    with gt.signal.context("net"):
        made = work()
    gt.flush()
    gt.synchronize()
    took = time.perf_counter() - started
    del made
    return took


def measure(name: str, rounds: int) -> dict[str, float]:
    """Median seconds of one work under each config."""
    with gt.signal.context("net"):
        work = WORKS[name]()
    times: dict[str, list[float]] = {config: [] for config in CONFIGS}
    for _ in range(rounds):
        for config, found in times.items():
            gt.load_config(CONFIGS[config])
            done(work)
            found.append(done(work))
    return {config: statistics.median(found) for config, found in times.items()}


def measure_checks(name: str, rounds: int) -> dict[float, float]:
    """Mean seconds of one work under the ordinary config, by the share of instructions that are checked.

    Means, for what is checked differs from time to time.
    """
    gt.load_config(CONFIGS["ordinary"])
    with gt.signal.context("net"):
        work = WORKS[name]()
    times: dict[float, list[float]] = {share: [] for share in SHARES}
    for turn in range(-5, 5 * rounds):  # some make most variants of each plan
        for share, found in times.items():
            gt.config.set({"verify": share})
            took = done(work)
            if turn >= 0:
                found.append(took)
    gt.config.set({"verify": 0.0})
    return {share: statistics.mean(found) for share, found in times.items()}


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--only", default=",".join(WORKS), help="a comma-separated choice of: %(default)s")
    parser.add_argument("--json", help="also write the figures here")
    options = parser.parse_args()
    rows = []
    for workers in map(int, options.workers.split(",")):
        gt.init(workers=workers, config=CONFIGS["ordinary"])
        for name in options.only.split(","):
            seconds = measure(name, options.rounds)
            price = seconds["deterministic"] / seconds["ordinary"]
            rows.append({"workers": workers, "work": name, **seconds, "price": price})
            what = f"{workers} worker{'s' * (workers > 1)}  {str(WORKS[name].__doc__).rstrip('.'):90}"
            times = "  ".join(f"{config} {value * 1e3:8.2f} ms" for config, value in seconds.items())
            print(f"{what}  {times}  deterministic / ordinary = {price:.2f}", flush=True)
        for name in [name for name in CHECKED if workers > 1 and name in options.only.split(",")]:
            checked = measure_checks(name, options.rounds)
            rows.append({"workers": workers, "work": name, "checked": checked})
            prices = (f"verify {share:g} = {value / checked[0.0]:.2f}" for share, value in checked.items() if share)
            what = f"{workers} workers  {str(WORKS[name].__doc__).rstrip('.'):90}"
            print(f"{what}  ordinary {checked[0.0] * 1e3:8.2f} ms  {'  '.join(prices)} of it", flush=True)
        gt.disconnect()
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1), "utf-8")


if __name__ == "__main__":
    main()
