"""Whole services in one process under a seeded scheduler: messages between different peers overtake each other at will,
workers and clients are killed and join at random points, some clients talk nonsense.

What must hold, whatever the seed: every value that arrives is right, every request is answered, every run is credited,
all invariants hold after every event, and when the clients have left nothing of them is left anywhere. A failing seed is
replayed by `simulate(seed)`.
"""

from __future__ import annotations

import pytest
from effort import cases
from shuffled_services.network import Network, simulate
from shuffled_services.programs import DISPATCHER, PIPED

from gt.dispatcher.membership import WORKER_LEASE_SECONDS
from gt.dispatcher.state.events import Tick

SEEDS = cases(40)
BATCHES = [range(start, min(start + 8, SEEDS)) for start in range(0, SEEDS, 8)]


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_services_in_which_everybody_lives(seeds: range) -> None:
    """Honest clients on living workers: every value is right, and only what must fail does."""
    networks = [simulate(seed) for seed in seeds]
    assert sum(client.answers for each in networks for client in each.clients.values()) > len(seeds), "it computes"
    assert sum(each.published for each in networks) > len(seeds), "and some workers are told as a group"


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_services_in_which_some_die(seeds: range) -> None:
    """Workers and clients die and join: nobody waits for ever, and whoever still gets a value gets the right one."""
    for seed in seeds:
        simulate(seed, kills=True)


@pytest.mark.parametrize("seeds", BATCHES[: -(-len(BATCHES) // 2)], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_services_in_which_work_is_cancelled(seeds: range) -> None:
    """A monitor cancels clients at random moments, while some die: every fetch is answered, by the right value or by what
    happened, every run is credited, and nothing is left behind."""
    cancelled = [simulate(seed, cancels=True, kills=seed % 2 == 0).cancelled for seed in seeds]
    assert any(cancelled)


@pytest.mark.parametrize("seeds", BATCHES[: -(-len(BATCHES) // 4)], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_services_in_which_a_pipeline_is_cancelled(seeds: range) -> None:
    """The same under a config of stages and microbatches: who is not cancelled has every value right."""
    networks = [simulate(seed, cancels=True, config=PIPED) for seed in seeds]
    assert any(each.cancelled for each in networks)
    assert sum(client.answers for each in networks for client in each.clients.values()) > len(seeds)


@pytest.mark.parametrize("seeds", BATCHES[: -(-len(BATCHES) // 2)], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_services_in_which_some_talk_nonsense(seeds: range) -> None:
    """Clients that send what cannot be harm nobody: others' values are right, and nothing of theirs is left behind."""
    for seed in seeds:
        simulate(seed, nonsense=True, kills=seed % 2 == 0)


def test_a_seed_replays() -> None:
    """The same seed is the same run, message by message, so that a failure can be looked into."""
    first, second = simulate(3, kills=True, nonsense=True), simulate(3, kills=True, nonsense=True)
    assert first.said == second.said
    assert first.dispatcher.service.counters == second.dispatcher.service.counters
    assert first.random.getstate() == second.random.getstate()


def test_silence_is_noticed() -> None:
    """A worker that stops answering without ending is lost by the clock, and whoever waited for it goes on."""
    network = next(network for seed in range(100) if (network := Network(seed)).first == 1)
    (client,) = list(network.clients.values())[:1]
    network.settle()
    for _ in range(30):
        client.act()
    (name,) = network.workers
    del network.workers[name]
    network.killed_workers += 1
    network.settle()
    for send in network.dispatcher.handle(Tick(), WORKER_LEASE_SECONDS + 1):
        for peer in send.to:
            network.send(DISPATCHER, peer.decode(), send.message)
    network.settle()
    client.satisfied()
