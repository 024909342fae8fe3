"""Programs of a simulated service: what they ask for, and when. `made` draws a mixture of them from a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from gt.dispatcher.pacing.priority import AUTO, BATCH, Priority

PLANS_AHEAD: Final = 24
"""How many plans a program has asked for before the first of them is done: fewer than its credits."""
TRAINER_SECONDS: Final = (0.001, 0.004, 0.02, 0.1)
"""Seconds of the plans of trainers: each has one of these, and each of its plans up to a fifth more or less."""


class Step(NamedTuple):
    """A plan that a program asks for."""

    plan: int
    """Which one of the program's."""
    seconds: float
    """How long it keeps each of its workers busy."""
    pause: float | None = None
    """It is asked for so many seconds after all before it are done: a new request. None: as soon as the program may."""


@dataclass(frozen=True, eq=False)
class SimulatedProgram:
    """A program with one session. `steps` begins its plans anew at each call, always the same ones."""

    number: int
    kind: str
    """Under which name the table lists it."""
    principal: Hashable
    members: tuple[int, ...]
    """Its workers."""
    steps: Callable[[], Iterator[Step]]
    begins: float = 0.0
    priority: Priority = AUTO
    weight: float = 1.0
    hungry: bool = False
    """Whether it would use all of its workers' time; then each of its plans is a request of its own."""


Steps = Callable[[random.Random], Iterator[Step]]


def trainer(seconds: float) -> Steps:
    """Plans without end."""
    return lambda draw: (Step(0, seconds * draw.uniform(0.8, 1.2)) for _ in itertools.count())


def fetcher(seconds: float, think: float) -> Steps:
    """One plan after the other, each once the value of the one before has been looked at."""
    return lambda draw: (Step(0, seconds, draw.uniform(0.2, 2) * think) for _ in itertools.count())


def burster(seconds: float, count: int, pause: float) -> Steps:
    """Many plans at once, again and again."""

    def steps(draw: random.Random) -> Iterator[Step]:
        while True:
            yield Step(0, seconds, draw.uniform(0.5, 1.5) * pause)
            for _ in range(draw.randint(1, 2 * count)):
                yield Step(0, seconds)

    return steps


def job(seconds: float, count: int) -> Steps:
    """So many plans, and then the end."""
    return lambda draw: (Step(n % 3, seconds * draw.uniform(0.5, 1.5), None if n else 0.0) for n in range(count))


def made(seed: int, workers: int, seconds: float) -> list[SimulatedProgram]:
    """A mixture of programs of several principals for so many seconds: on each worker trainers, fetchers, a burster, a job and
    a batch job, and by every second seed one trainer on two workers."""
    draw = random.Random(seed)  # noqa: S311 — no secret
    found: list[SimulatedProgram] = []
    principals = [f"user {n}" for n in range(draw.randint(3, 5))]

    def add(kind: str, members: tuple[int, ...], steps: Steps, *, hungry: bool = False, late: float = 0.0) -> None:
        number = len(found)
        of = f"{seed} {number}"
        found.append(
            SimulatedProgram(
                number, kind, draw.choice(principals), members, lambda: steps(random.Random(of)),  # noqa: S311 — no secret
                draw.uniform(0, late * seconds), BATCH if kind == "batch" else AUTO, hungry=hungry,
            )
        )  # fmt: skip

    for worker in range(workers):
        here = (worker,)
        for _ in range(draw.randint(1, 4)):
            add("trainer", here, trainer(draw.choice(TRAINER_SECONDS)), hungry=True)
        for _ in range(draw.randint(1, 3)):
            add("fetcher", here, fetcher(draw.uniform(0.0005, 0.005), draw.uniform(0.01, 0.05)))
        add("burst", here, burster(draw.uniform(0.002, 0.01), draw.randint(5, 20), draw.uniform(0.5, 2)))
        add("job", here, job(draw.uniform(0.005, 0.03), draw.randint(10, 50)), late=0.5)
        add("batch", here, job(draw.uniform(0.01, 0.05), draw.randint(10, 30)), late=0.5)
    if workers > 1 and seed % 2:
        pair = tuple(sorted(draw.sample(range(workers), 2)))
        add("trainer", pair, trainer(draw.choice(TRAINER_SECONDS[1:])), hungry=True)
    return found
