"""The learned policy: what holds of it whatever its network says, and of the network that comes with GT."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_dispatcher import Service

from gt.dispatcher.pacing.learned_policy import (
    PARAMETERS,
    PATIENCE_SECONDS,
    WEIGHTS_PATH,
    LearnedPolicy,
    Network,
    learned_network,
    service_policy,
)
from gt.dispatcher.pacing.turns import FairTurns, RankedTurns
from gt.dispatcher.pacing_simulator.figures import figures
from gt.dispatcher.pacing_simulator.programs import SimulatedProgram, made, trainer
from gt.dispatcher.pacing_simulator.service import SimulatedService
from gt.dispatcher.pacing_simulator.training import train


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_nothing_starves_whatever_the_network_says(seed: int) -> None:
    """Networks that are drawn: who has waited for long goes first, so equal programs have a turn every few seconds at least."""
    network = Network(np.random.default_rng(seed).normal(0, 3, PARAMETERS))
    programs = [
        SimulatedProgram(n, "trainer", n, (0,), lambda: trainer(0.02)(random.Random(1)), hungry=True) for n in range(8)
    ]
    service = SimulatedService(programs, 1, lambda _: LearnedPolicy(network))
    service.run(8.0)
    for number in service.sessions:
        begun = [0.0, *(begin for _, begin, _, of in service.spans if of == number), 8.0]
        assert max(np.diff(begun)) < PATIENCE_SECONDS + 1.0


def test_the_network_that_comes_with_gt_is_fairer_than_a_queue() -> None:
    """And small. On programs that it was not trained on."""
    assert WEIGHTS_PATH.stat().st_size < 50_000
    services = [SimulatedService(made(1, 2, 2.0), 2, lambda _: LearnedPolicy(learned_network()))]
    services[0].run(2.0)
    found = figures("learned", services).jain
    assert found is not None
    assert found > 0.8


def test_training_is_by_its_seed_alone() -> None:
    """One generation: the same parameters again, and others than those at the start."""
    once = train(3, 1, seconds=0.1)
    assert once == train(3, 1, seconds=0.1)
    assert once != train(3, 0)


def test_other_parameters_are_refused() -> None:
    """Too few, or such as are no numbers."""
    for wrong in ([1.0], [float("nan")] * PARAMETERS):
        with pytest.raises(ValueError, match="finite"):
            Network(wrong)


def test_a_dispatcher_has_the_policy_that_it_is_given() -> None:
    """The fair one by default."""
    assert isinstance(Service().core.service.pacer.turns_of, FairTurns)
    given = Service(policy=service_policy("learned")).core.service.pacer.turns_of
    assert isinstance(given, RankedTurns)
    assert isinstance(given.policy, LearnedPolicy)
