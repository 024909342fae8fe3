"""The four client programs of a soak run, each a process: `main` runs one session after the other until its time is over.

A program tells in lines of JSON what it has seen. It checks every value that it fetches, and if one of its waits lasts for
`HANG_SECONDS`, it prints where all its threads are and ends.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from integer_programs import CONFIGS, Array, IntegerProgram, WrongResult

import gt
from gt import nn
from gt.errors import ConnectionFailed, GTError

HANG_SECONDS: Final = 60.0
"""Seconds without any progress after which a program counts as hanging: far more than a lost worker or dispatcher costs."""
PAUSE_SECONDS: Final = 0.25
"""Training steps that take longer, which is far more than they need, are pauses."""
BEAT_SECONDS: Final = 0.3
"""The least seconds between two reports of progress."""
RECONNECT_SECONDS: Final = 0.3
DIGEST_STEPS: Final = 20
"""Training steps between two digests of losses and weights."""
TRAINING: Final[dict[str, Any]] = {"mesh": {"data": 3}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
LARGE_BYTES: Final = (1 << 20, 8 << 20)
"""The least and the most bytes of a large array."""
LARGE_HELD: Final = 5
"""The most large tensors that a program holds."""


class Reporter:
    """Tells whoever started the program, by lines, how many values it has checked and what went wrong."""

    def __init__(self) -> None:
        self.values = 0
        self.beaten = 0.0

    def say(self, kind: str, **facts: Any) -> None:
        """Tell something."""
        print(json.dumps({"kind": kind, **facts}), flush=True)

    def progress(self, values: int = 0) -> None:
        """Something was done, by which so many values were checked."""
        self.values += values
        now = time.monotonic()
        if now - self.beaten >= BEAT_SECONDS:
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            if self.values:
                self.say("values", count=self.values)
            self.values, self.beaten = 0, now

    def end(self) -> None:
        """Tell what was not told yet."""
        self.beaten = 0.0
        self.progress()


class Context:
    """What one session of a program needs: where the service is, its chances, when to end, and to whom it reports."""

    def __init__(self, address: str, draw: random.Random, until: float, report: Reporter) -> None:
        self.address = address
        self.draw = draw
        self.until = until
        self.report = report

    def ends(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self.until

    def check(self, found: Array, value: Array) -> None:
        """Compare a fetched value with what it must be. Raises `WrongResult`."""
        if found.shape != value.shape or found.dtype != value.dtype or not np.array_equal(found, value):
            raise WrongResult(f"fetched {found!r} for {value!r}")
        self.report.progress(1)


def train(context: Context, rounds: int) -> None:
    """A data-parallel training of `rounds` times `DIGEST_STEPS` steps, which tells a digest after each."""
    gt.connect(context.address, config=TRAINING)
    gt.manual_seed(7)
    rng = np.random.default_rng(0)
    with gt.signal.context("net"):
        model = nn.Sequential(
            nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )
    optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
    digest = hashlib.sha256()
    pauses: list[float] = []
    for step in range(rounds * DIGEST_STEPS):
        began = time.monotonic()
        with gt.signal.context("net"):
            x, labels = gt.from_numpy(rng.standard_normal((48, 20), np.float32)), gt.from_numpy(rng.integers(0, 10, 48))
            loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.update(np.float64(loss.item()).tobytes())
        context.report.progress(1)
        if (took := time.monotonic() - began) > PAUSE_SECONDS:
            pauses.append(took)
        if step % DIGEST_STEPS == DIGEST_STEPS - 1:
            for parameter in model.parameters():
                digest.update(parameter.detach().numpy().tobytes())
                context.report.progress(1)
            context.report.say("digest", at=step // DIGEST_STEPS, digest=digest.hexdigest(), pauses=pauses)
            pauses.clear()
            if context.ends():
                break
    gt.disconnect()


class _RandomProgram(IntegerProgram):
    """A small random program of a real session."""

    def __init__(self, context: Context) -> None:
        super().__init__(context.draw)
        self.context = context

    def _ask(self) -> None:
        config = self.random.choice(CONFIGS)
        if config is None:
            if gt.stats()["service"]["clients"] < 1:
                raise WrongResult("the service does not count the session that asks")
        else:
            gt.load_config(config)

    def _pause(self, share: float) -> None:
        time.sleep(share * 0.2)


def compute(context: Context) -> None:
    """A small random program, as they are in simulations."""
    draw, told = context.draw, 0
    gt.connect(context.address, config=draw.choice(CONFIGS))
    program = _RandomProgram(context)
    for _ in range(draw.randint(20, 200)):
        program.act()
        context.report.progress(program.answers - told)
        told = program.answers
        if context.ends():
            break
    while program.asked or program.held:
        program.finish()
        context.report.progress(1)
    gt.disconnect()


def move(context: Context) -> None:
    """Large puts and fetches, of some MiB each."""
    draw = context.draw
    gt.connect(context.address, config=draw.choice((None, TRAINING)))
    held: list[tuple[Any, Array]] = []
    asked: list[tuple[Any, Array]] = []
    for _ in range(draw.randint(10, 60)):
        choice = draw.random()
        if choice < 0.35 or not held:
            rng = np.random.default_rng(draw.getrandbits(32))
            array = rng.integers(-1000, 1000, (draw.randint(*LARGE_BYTES) // 4096, 1024), np.int32).astype(np.float32)
            with gt.signal.context(draw.choice(("net", "other"))):
                held.append((gt.tensor(array), array.copy()))
            array[...] = 77  # the tensor is a copy
            if len(held) > LARGE_HELD:
                del held[0]
        elif choice < 0.55:
            tensor, value = draw.choice(held)
            scalar = draw.randint(-3, 3)
            with gt.signal.context(draw.choice(("net", "other"))):
                context.check((tensor * 2 + scalar).numpy(), value * np.float32(2) + np.float32(scalar))
        elif choice < 0.7:
            tensor, value = draw.choice(held)
            context.check(tensor.numpy(), value)
        elif choice < 0.8:
            tensor, value = draw.choice(held)
            context.check(tensor.numpy(copy=False), value)
        elif choice < 0.9:
            tensor, value = draw.choice(held)
            asked.append((tensor.fetch(), value))
        elif asked:
            future, value = asked.pop(draw.randrange(len(asked)))
            context.check(future.result(), value)
        else:
            time.sleep(draw.random() * 0.2)
        context.report.progress()
        if context.ends():
            break
    for future, value in asked:
        context.check(future.result(), value)
    for tensor, value in held:
        context.check(tensor.numpy(), value)
    gt.disconnect()


def reopen(context: Context) -> None:
    """A session that does little and closes; sometimes at once, sometimes with work under way."""
    draw = context.draw
    gt.connect(context.address, config=draw.choice(CONFIGS))
    value = np.arange(draw.randint(1, 2000), dtype=np.float32)
    for _ in range(draw.randrange(3)):
        number = draw.randint(-9, 9)
        context.check((gt.tensor(value) * number).numpy(), value * np.float32(number))
    if draw.random() < 0.3:
        left = gt.tensor(value) + 1
        left.fetch()
    context.report.progress()
    if draw.random() < 0.8:
        gt.disconnect()
    context.report.say("closed")
    time.sleep(draw.random() * 0.2)


PROGRAMS: Final[dict[str, Callable[..., None]]] = {
    "training": train,
    "random": compute,
    "large": move,
    "reopening": reopen,
}


def main() -> None:
    """`NAME ADDRESS SEED UNTIL [ROUNDS]`: run sessions until a time of `time.monotonic`; with `until` 0, one session."""
    name, address, seed, until, *rounds = sys.argv[1:]
    report = Reporter()
    draw = random.Random(f"{name} {seed}")
    while True:
        began = time.monotonic()
        report.progress()
        try:
            context = Context(address, draw, float(until) or float("inf"), report)
            PROGRAMS[name](context, *map(int, rounds))
        except WrongResult as error:
            report.say("wrong", text=str(error))
            gt.disconnect()
        except GTError as error:
            explained = isinstance(error, ConnectionFailed)
            text = f"{type(error).__name__}: {error}"
            report.say("error", explained=explained, text=text, began=began, at=time.monotonic())
            gt.disconnect()
            time.sleep(RECONNECT_SECONDS)
        if time.monotonic() >= float(until):
            break
    gt.disconnect()
    report.end()
    report.say("done")
