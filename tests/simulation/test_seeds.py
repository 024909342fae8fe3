"""Some simulated services of each kind at every commit, and every seed that ever failed. `make simulate` tries more."""

from __future__ import annotations

import pytest
from effort import EFFORT, PROVED, cases
from simulation.running import simulate

SEEDS = cases(510)
BATCHES = [range(start, min(start + 10, SEEDS)) for start in range(0, SEEDS, 10)]
EVERYBODY = max(30, SEEDS)
"""How many services are simulated with everything that may happen."""
STRIDE = 1 if EFFORT >= 1 else 2
"""Of how many seeds that are drawn one is tried, in kinds that take half a second each."""
FAILED = (
    33,
    35,
    43,
    47,
    51,
    64,
    71,
    74,
    80,
    85,
    89,
    90,
    93,
    102,
    116,
    121,
    127,
    146,
    155,
    207,
    235,
    242,
    300446,
    304072,
)
"""Seeds that have failed: workers cut off while they joined, sessions left behind by a `gt.connect` that failed, traces of a
session on a worker that it had left, a second worker lost while the first was to be replaced. In the last of them the network
did what none does: what a connection had lost before it was answered came again behind the answer."""

RECOVERIES_FAILED = (45, 54, 61, 112, 400166, 400607, 400901)
"""Seeds that have failed when workers and dispatchers alone are lost: configs that came while a worker was started again, memory
that was given back while a mark had it, and values that were dropped because their receiver had yet to connect again."""


ELASTIC_FAILED = (284, 1001271)
"""Seeds that have failed when workers come and go: a worker left that a session on its way back to a mark was to need, and a
session waited for a lost worker to come back while a drained one was put in its place."""


MUTES_FAILED = (35, 500026)
"""Seeds that have failed when workers do not say what came of marks: bulk data for a client that came back was dropped, and a
worker whose heartbeats had reached the next dispatcher before its hello was not heard again."""


UNKEPT_FAILED = (207, 500122, 500123)
"""Seeds that have failed without marks: memory for a put on a worker that the session had left, and a put whose workers' grants
came before the word that another worker was lost."""


WATCHED_FAILED = (2002,)
"""A seed that has failed with watchers: a client came back as soon as its session had ended, and its new connection for bulk data
found the stream of the one before."""


LIMITS_FAILED = (18,)
"""A seed that has failed with limits: a program's connect gave up while the dispatcher stood still, and the session that it had
begun was in the way of the next one for as long as the process lived."""


SHRINKING_FAILED = (510038,)
"""A seed that has failed when workers never come back: a put that was freed before it came left a table without tensors on a
worker that the session had left."""


@pytest.mark.parametrize("first", range(0, EVERYBODY, 10))
def test_no_seed_fails(first: int) -> None:
    """Every fetched value is right, every error is one that what happened explains, every program gets to its end, and nothing
    of it is left."""
    outcomes = [simulate(seed) for seed in range(first, min(first + 10, EVERYBODY))]
    PROVED["simulated services with everybody in them"] += len(outcomes)
    assert sum(outcome.answers for outcome in outcomes) > len(outcomes), "they compute"
    assert sum(outcome.reconnects for outcome in outcomes) > 0, "and connections break"


@pytest.mark.parametrize("seeds", BATCHES[3::10], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_watchers_see_all_and_disturb_nobody(seeds: range) -> None:
    """They come, go, read slowly and are killed while workers and programs are; who comes at the end sees what there is."""
    outcomes = [simulate(seed, watches=True, recovers=seed % 2 == 1) for seed in seeds]
    PROVED["simulated services that are watched"] += len(outcomes)
    assert sum(outcome.events for outcome in outcomes) > 100 * len(outcomes)


@pytest.mark.parametrize("seeds", BATCHES[1::5], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_snapshots_are_whole_or_not_there_whatever_happens(seeds: range) -> None:
    """A snapshot that was taken is there until one that was taken after it is, whoever dies while files are written; and all that
    holds without snapshots holds with them."""
    outcomes = [simulate(seed, saves=True) for seed in seeds[::2]]
    PROVED["simulated services whose programs take snapshots"] += len(outcomes)
    assert sum(outcome.restored for outcome in outcomes) > 0


@pytest.mark.parametrize("seeds", BATCHES[3::20], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_what_is_published_is_whole_and_stays(seeds: range) -> None:
    """Versions come one after the other, whoever dies; a session that goes back has again the versions that it had."""
    outcomes = [simulate(seed, publishes=True, recovers=True) for seed in seeds[::10]]
    PROVED["simulated services whose programs publish"] += len(outcomes)
    PROVED["versions read of what was published"] += sum(outcome.subscribed for outcome in outcomes)


@pytest.mark.parametrize("seeds", BATCHES[1::20], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_sessions_that_move_keep_their_values(seeds: range) -> None:
    """Sessions on one worker are told to go on on others, while workers and dispatchers die: no program hears of anything."""
    outcomes = [simulate(seed, moves=True) for seed in seeds[::5]]
    PROVED["simulated services whose sessions move"] += len(outcomes)
    PROVED["sessions that moved to another worker"] += sum(outcome.moved for outcome in outcomes)


@pytest.mark.parametrize("seed", LIMITS_FAILED)
def test_limits_hold_whatever_happens(seed: int) -> None:
    """Nobody ever has more sessions than granted, and every program gets to its end."""
    assert simulate(seed, limits=True).waited > 0
    PROVED["simulated services with limits"] += 1


@pytest.mark.parametrize("seeds", BATCHES[2::5], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_lost_workers_cost_time_and_nothing_else(seeds: range) -> None:
    """Programs hear of no worker that is started again, and every value is right."""
    outcomes = [simulate(seed, recovers=True) for seed in seeds[::STRIDE]]
    PROVED["simulated services that lose workers and nothing else"] += len(outcomes)
    PROVED["sessions that went back and on"] += sum(outcome.recoveries for outcome in outcomes)
    assert sum(outcome.recoveries for outcome in outcomes) > 0


@pytest.mark.parametrize("seeds", BATCHES[:-1:10], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_plans_that_end_workers_are_refused_and_nothing_else_is(seeds: range) -> None:
    """The same, and one program asks again and again for what ends a worker: it is told so, and nobody hears of anything else."""
    outcomes = [simulate(seed, ends_workers=True) for seed in seeds[:: 2 * STRIDE]]
    PROVED["simulated services in which a program ends workers"] += len(outcomes)
    assert sum(outcome.refused for outcome in outcomes) > 0


@pytest.mark.parametrize("seeds", BATCHES[2::10], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_lost_workers_cost_no_snapshot(seeds: range) -> None:
    """Those under way are written again, and restored tensors are there although their snapshots were replaced; in the end there
    are no files but those of whole snapshots."""
    outcomes = [simulate(seed, saves=True, recovers=True) for seed in seeds[:: 3 * STRIDE]]
    PROVED["simulated services that take snapshots and lose workers"] += len(outcomes)
    assert sum(outcome.recoveries for outcome in outcomes) > 0
    assert sum(outcome.restored for outcome in outcomes) > 0


@pytest.mark.parametrize("seeds", BATCHES[3::10], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_workers_come_and_go(seeds: range) -> None:
    """Besides being killed, workers are drained, and some are spares: programs hear of nothing, and every value is right."""
    outcomes = [simulate(seed, elastic=True) for seed in seeds[len(seeds) > 1 :: 3]]
    PROVED["simulated services whose workers come and go"] += len(outcomes)
    PROVED["workers that were drained"] += sum(outcome.drained for outcome in outcomes)
    assert sum(outcome.drained for outcome in outcomes) > 0 or len(outcomes) < 5


def test_workers_never_come_back() -> None:
    """Programs go on with those that remain, hear of nothing, and every value is right."""
    outcomes = [simulate(seed, shrinks=True) for seed in (422, *range(4, 4 + cases(15)))]
    PROVED["simulated services that lose workers for good"] += len(outcomes)
    PROVED["sessions that went on with fewer workers"] += sum(outcome.shrunk for outcome in outcomes)
    assert sum(outcome.shrunk for outcome in outcomes) > 0


def test_what_others_hold_whole_is_kept_without_marks() -> None:
    """Errors are those of lost workers, and whatever has a value has the right one."""
    outcomes = [simulate(seed, unkept=True) for seed in (*UNKEPT_FAILED, 2, *range(cases(10)))]
    PROVED["simulated services without marks that lose workers"] += len(outcomes)
    assert sum(outcome.kept for outcome in outcomes) > 0


def test_peers_send_new_machines_what_they_hold() -> None:
    """No worker sees the files of another. Errors are those of what nobody else holds, and whatever has a value has the right
    one."""
    outcomes = [simulate(seed, apart=True) for seed in sorted({4, 10, *range(1, 1 + cases(15))})]
    PROVED["simulated services whose workers see no files of others"] += len(outcomes)
    assert sum(outcome.delivered for outcome in outcomes) > 0


@pytest.mark.parametrize("seeds", BATCHES[3::10], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_programs_that_give_up_their_connections_go_on_by_others(seeds: range) -> None:
    """Besides workers that are killed, programs are out of reach for longer than their lease: they hear of nothing, either."""
    outcomes = [simulate(seed, parts=True) for seed in seeds[::4]]
    PROVED["simulated services whose programs give up their connections"] += len(outcomes)
    assert sum(outcome.recoveries for outcome in outcomes) > 0


@pytest.mark.parametrize("seeds", BATCHES[3::10], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_workers_that_live_and_do_not_answer_are_not_waited_for(seeds: range) -> None:
    """They do not say what came of marks: sessions go on without them, or are told that their tensors are lost."""
    outcomes = [simulate(seed, mutes=True) for seed in seeds[min(5, len(seeds) - 1) :: 4]]
    PROVED["simulated services whose workers do not answer"] += len(outcomes)
    assert sum(outcome.answers for outcome in outcomes) > len(outcomes)


@pytest.mark.parametrize("seeds", BATCHES[3::10], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_dispatchers_hand_over_to_the_next(seeds: range) -> None:
    """They take marks and end in order, and programs hear of nothing."""
    outcomes = [simulate(seed, hands_over=True) for seed in seeds[::5]]
    PROVED["simulated services whose dispatchers hand over"] += len(outcomes)
    assert sum(outcome.answers for outcome in outcomes) > len(outcomes)


@pytest.mark.parametrize("seed", RECOVERIES_FAILED)
def test_recoveries_that_have_failed_do_not_again(seed: int) -> None:
    simulate(seed, recovers=True)


@pytest.mark.parametrize("seed", MUTES_FAILED)
def test_what_has_failed_with_workers_that_do_not_answer_does_not_again(seed: int) -> None:
    simulate(seed, mutes=True)


@pytest.mark.parametrize("seed", ELASTIC_FAILED)
def test_comings_and_goings_that_have_failed_do_not_again(seed: int) -> None:
    simulate(seed, elastic=True)


@pytest.mark.parametrize("seed", SHRINKING_FAILED)
def test_shrinking_services_that_have_failed_do_not_again(seed: int) -> None:
    simulate(seed, shrinks=True)


@pytest.mark.parametrize("seed", WATCHED_FAILED)
def test_watched_services_that_have_failed_do_not_again(seed: int) -> None:
    simulate(seed, watches=True)


@pytest.mark.parametrize("seed", [seed for seed in FAILED if seed >= EVERYBODY])  # the others are among the first
def test_seeds_that_have_failed_do_not_again(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("seed", [1, 105])
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    """Message by message, with sizes and times, so that a failure can be looked into."""
    assert simulate(seed) == simulate(seed)
