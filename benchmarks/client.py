"""Measures a step's client alone: processor time of its thread, with a link that encodes every message and sends none.

    python benchmarks/client.py [--rounds 200] [--only chain,step,...]
    GT_NATIVE=0 python benchmarks/client.py

The first runs the compiled modules where `make native` has built them, the second the sources. No other process takes part,
so nothing waits; sockets, and what the kernel does for them, are not in it. Least, tenth and median of so many rounds, after
ten that are not counted.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import workloads

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.native.finder import choice
from gt.service.in_process import NoBulk
from gt.wire import messages as m
from gt.wire.messages import codec

CREDITS = 1 << 60
"""Runs that may be under way: more than any benchmark sends."""


class DeafLink(NoBulk):
    """A link to nobody: it encodes what it is given, and hears no more than a welcome."""

    def __init__(self) -> None:
        super().__init__()
        self.resend_bytes = 0
        self.inbox: list[m.Message] = [m.Welcome(1, {"credits": CREDITS})]

    def encode(self, message: m.Message) -> Any:
        return codec.encode(message)

    def send(self, message: m.Message) -> None:
        codec.encode(message)

    def receive(self) -> list[m.Message]:
        heard, self.inbox = self.inbox, []
        return heard

    def alive(self) -> None:
        """It always is."""

    def local_values(self, tensor: int) -> None:
        """None are."""

    def close(self) -> None:
        """Nothing is open."""


def _step(model: Any, data: tuple[Any, Any], optimizer: str, wrap: Callable[[Any], Any]) -> Callable[[], object]:
    x, y = (gt.from_numpy(each) for each in data)
    chosen = getattr(gt.optim, optimizer)(model.parameters(), lr=0.01)
    criterion = gt.nn.CrossEntropyLoss()

    def one(x: Any, y: Any) -> Any:
        loss = criterion(model(x), y)
        chosen.zero_grad()
        loss.backward()
        chosen.step()
        return loss

    step = wrap(one)
    return lambda: step(x, y)


def _mlp(optimizer: str = "SGD", wrap: Callable[[Any], Any] = workloads.unchanged) -> Callable[[], object]:
    return _step(workloads.mlp(gt), workloads.images(), optimizer, wrap)


def _transformer(wrap: Callable[[Any], Any] = workloads.unchanged) -> Callable[[], object]:
    return _step(workloads.transformer(gt), workloads.words(), "SGD", wrap)


def _additions(wrap: Callable[[Any], Any] = workloads.unchanged, requires_grad: bool = False) -> Callable[[], object]:
    x = gt.from_numpy(np.full((16, 16), 0.5, np.float32)).requires_grad_(requires_grad)
    function = wrap(lambda y: workloads.additions(y, x))
    return lambda: function(x)


WORKS: dict[str, tuple[str, Callable[[], Callable[[], object]], int]] = {
    "chain": ("an addition of 16×16, of 5,000", _additions, workloads.LENGTH),
    "recorded": ("the same, recorded for a gradient", lambda: _additions(requires_grad=True), workloads.LENGTH),
    "chain_compiled": ("5,000 additions compiled", lambda: _additions(gt.compile), 1),
    "sgd": ("SGD step of 784-256-128-10", _mlp, 1),
    "sgd_compiled": ("the same compiled", lambda: _mlp(wrap=gt.compile), 1),
    "adamw": ("AdamW step of it", lambda: _mlp("AdamW"), 1),
    "adamw_compiled": ("the same compiled", lambda: _mlp("AdamW", gt.compile), 1),
    "transformer": ("SGD step of the small transformer", _transformer, 1),
    "transformer_compiled": ("the same compiled", lambda: _transformer(gt.compile), 1),
}
"""What is measured, and how many times it is in one run."""


def measure(run: Callable[[], object], rounds: int) -> list[float]:
    """Processor seconds of each round, in order of size."""
    for _ in range(10):
        run()
    gc.collect()
    took = []
    for _ in range(rounds):
        start = time.thread_time()
        run()
        took.append(time.thread_time() - start)
    return sorted(took)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", help=f"a comma-separated choice of: {','.join(WORKS)}")
    options = parser.parse_args()
    session = Session(DeafLink(), "nobody", idle_flush=False)  # type: ignore[arg-type]  # what bulk data would need is not there
    session.open({}, 1.0)
    sessions.swap(session)
    print(f"the client's code: {choice().reason}\nµs of processor time: least, tenth, median")
    for name in options.only.split(",") if options.only else WORKS:
        what, make, count = WORKS[name]
        took = measure(make(), max(3, options.rounds // (20 if count > 1 else 1)))
        least, tenth, median = (took[at] * 1e6 / count for at in (0, len(took) // 10, len(took) // 2))
        print(f"{what:36} {least:9.2f} {tenth:9.2f} {median:9.2f}")


if __name__ == "__main__":
    main()
