"""Trains the network of `--policy learned` in the simulator, by an evolution strategy.

State: the features of the sessions that wait (`FEATURES`). Action: which of them goes first. Reward: `reward`, of a made
mixture of programs after `SECONDS` of virtual time on `WORKERS` workers: that fetches, bursts and jobs take little longer than
alone, that principals with endless work have equal time, and that workers are busy.

Each generation draws `PAIRS` directions and tries each of them forward and backward from where the parameters are, all on the
same mixtures; the step is along the directions, weighed by their ranks (T. Salimans, J. Ho, X. Chen, S. Sidor and I. Sutskever,
Evolution Strategies as a Scalable Alternative to Reinforcement Learning, 2017), with momentum. It starts at `START`, by which a
session goes before others that are less far behind, or less urgent. Everything is drawn from one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np

from gt.dispatcher.pacing.learned_policy import FEATURES, HIDDEN, PARAMETERS, LearnedPolicy, Network

from .figures import fairness, figures
from .programs import made
from .service import WAY_SECONDS, SimulatedService

GENERATIONS: Final = 40
PAIRS: Final = 6
MIXTURES: Final = 2
"""How many mixtures a generation is tried on."""
SECONDS: Final = 3.0
WORKERS: Final = 2
SEARCH_DEVIATION: Final = 0.15
"""The standard deviation of what is tried."""
RATE: Final = 0.2
MOMENTUM: Final = 0.8
TRAINING_SEEDS: Final = 1_000_000
"""From this seed on mixtures are for training; what is below is held out."""
FAIRNESS_WEIGHT: Final = 4.0
BUSY_WEIGHT: Final = 2.0

Map = Callable[..., Iterable[float]]
"""The signature of `map`."""
START: Final[dict[str, float]] = {
    "lead of the principal": -1.0, "lead of the program": -0.5, "interactive": 0.5, "batch": -1.0,
}  # fmt: skip
"""The linear weights at first; all others are 0, but the hidden layer's, which are drawn."""


def reward(service: SimulatedService) -> float:
    """How good it is what a policy has done: minus the mean logarithm of how many times longer requests have taken than alone, by
    kind of program; plus Jain's index and how busy workers were."""
    slow = []
    for kind, requests in service.requests().items():
        if kind != "trainer" and requests:
            slow.append(np.mean([np.log(max(1.0, each.seconds / (each.alone + 2 * WAY_SECONDS))) for each in requests]))
    busy = figures("", [service]).utilisation
    even = fairness([service])
    return float(-np.mean(slow) + FAIRNESS_WEIGHT * (1.0 if even is None else even) + BUSY_WEIGHT * busy)


def score(parameters: Any, seeds: Sequence[int], seconds: float) -> float:
    """The mean reward of a network on mixtures."""
    network, found = Network(parameters), []
    for seed in seeds:
        service = SimulatedService(made(seed, WORKERS, seconds), WORKERS, lambda _: LearnedPolicy(network))
        service.run(seconds)
        found.append(reward(service))
    return float(np.mean(found))


def train(
    seed: int,
    generations: int = GENERATIONS,
    say: Callable[[int, float], None] = lambda generation, mean: None,
    seconds: float = SECONDS,
    each: Map = map,
) -> list[float]:
    """The parameters of a network. `say` is told of each generation, with the mean reward of what it has tried. What a generation
    tries is independent, so `each` may be the `map` of a pool of processes, which changes no number."""
    draw = np.random.default_rng(seed)
    found = np.zeros(PARAMETERS)
    found[: len(FEATURES)] = [START.get(name, 0.0) for name in FEATURES]
    found[len(FEATURES) : -2 * HIDDEN] = draw.normal(0, 0.3, len(FEATURES) * HIDDEN)
    moved = np.zeros(PARAMETERS)
    for generation in range(generations):
        seeds = [int(each) for each in TRAINING_SEEDS + draw.integers(0, TRAINING_SEEDS, MIXTURES)]
        directions = draw.normal(size=(PAIRS, PARAMETERS))
        networks = [found + sign * SEARCH_DEVIATION * way for way in directions for sign in (1, -1)]
        tried = [*each(score, networks, repeat(seeds), repeat(seconds))]
        ranks = np.argsort(np.argsort(tried)) / (len(tried) - 1) - 0.5
        step = (ranks[::2] - ranks[1::2]) @ directions / PAIRS
        moved = MOMENTUM * moved + (1 - MOMENTUM) * step
        found = found + RATE * moved
        say(generation, float(np.mean(tried)))
    return [round(float(value), 4) for value in found]
