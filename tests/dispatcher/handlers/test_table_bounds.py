"""Runs, frees and snapshots beside many tensors, no two of which are alike, change the table in turns, each of few steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from event_steps import (
    MAX_STEPS,
    NEGATE,
    definition,
    most_steps,
    unlike,
)
from marking_dispatcher import service
from one_dispatcher import Service, started

from gt.bounds import (
    MAX_IDS,
    MAX_INPUTS,
    MAX_SCALARS,
)
from gt.dispatcher.handlers.marks import MARK_SECONDS
from gt.dispatcher.state.events import JobTurn, Lost, Tick
from gt.dispatcher.state.message_state import MessageState
from gt.dispatcher.state.plan_cache import EFFECTS_PER_TURN
from gt.ir.instruction import INPUT, ref
from gt.ir.spec import pack_spec
from gt.sharding.placement import Shard
from gt.wire import messages as m


def test_a_run_beside_many_tensors_is_checked_in_turns() -> None:
    """Whether it fits into memory beside all that its session holds, no two of which are alike, or not."""
    count = 30_000
    room = sum(4 * (1 + n) for n in range(count))
    for memory in (0, room):
        each = started(memory=memory)
        unlike(each, count)
        assert most_steps(each, "c", m.Run(1, 1 << 60, [1], [], [], [])) < MAX_STEPS
        assert (each.table()[1 << 60].fault is None) == (not memory)


def test_unlike_tensors_are_freed_in_turns() -> None:
    """By a message of its own, or by a run."""
    each = started()
    tensors = unlike(each, 2 * MAX_IDS)
    assert most_steps(each, "c", m.Free(tensors[:MAX_IDS])) < MAX_STEPS
    assert most_steps(each, "c", m.Run(1, 1 << 60, [1], [], [], tensors[MAX_IDS:])) < MAX_STEPS
    assert set(each.table()) == {1, 1 << 60}


LARGE: Final = 3 * EFFECTS_PER_TURN


def large_run(each: Service) -> tuple[m.Run, set[int]]:
    """A run that makes, frees and ends many tensors, no two of which are alike; and what is left then."""
    tensors = unlike(each, 3 * LARGE)
    inputs, freed = tensors[:LARGE], tensors[LARGE : 2 * LARGE]
    table = each.core.service.clients[b"c"].table
    define = definition(
        inputs=[pack_spec(table[tensor].spec) for tensor in inputs],
        instructions=[["neg", [ref(INPUT, n)], {}, 0] for n in range(LARGE)],
        survivors=[*range(LARGE)],
    )
    each.say("c", define)
    each.done()
    each.hears("w0")
    left = {1, *tensors[2 * LARGE :], *((1 << 54) + n for n in range(LARGE))}
    return m.Run(7, 1 << 54, inputs, [], [*range(LARGE)], freed), left


@pytest.mark.parametrize("kind", ["inputs", "scalars"])
def test_a_run_is_planned_in_turns_whose_inputs_are_not_alike(kind: str) -> None:
    """And one with as many scalars as there may be."""
    each = started()
    tensors = unlike(each, MAX_INPUTS) if kind == "inputs" else [1]
    table, scalars = each.core.service.clients[b"c"].table, MAX_SCALARS if kind == "scalars" else 0
    define = definition(
        inputs=[pack_spec(table[tensor].spec) for tensor in tensors], kinds="f" * scalars, instructions=[NEGATE]
    )
    assert most_steps(each, "c", define, m.Run(7, 1 << 54, tensors, [0.5] * scalars, [], [])) < MAX_STEPS
    assert 1 << 54 in each.table()


def test_inputs_that_a_run_moves_get_other_entries_in_turns() -> None:
    """Parameters, all of which are cut at their first use."""
    each = started(2, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "fully_sharded"}}})
    client = each.core.service.clients[b"c"]
    tensors = unlike(each, LARGE)
    for tensor in tensors:
        entry = client.table[tensor]
        client.table[tensor] = replace(entry, resident=replace(entry.resident, param=True))
    define = definition(
        inputs=[pack_spec(client.table[tensor].spec) for tensor in tensors],
        tags=[[["net"], 0, "x.py:1", []]],
        instructions=[["neg", [ref(INPUT, n)], {}, 0] for n in range(LARGE)],
    )
    assert most_steps(each, "c", define, m.Run(7, 1 << 54, tensors, [], [], [])) < MAX_STEPS
    assert all(client.table[tensor].resident.layout == (Shard(0),) for tensor in tensors)


def sizes_while(each: Service, run: m.Run, until: Callable[[], bool]) -> list[int]:
    """How many tensors the client has after each event, from the one in which the run is issued on."""
    client, sizes = each.core.service.clients[b"c"], []
    each.idle = False
    each.say("c", run)
    while not until():
        if client.arrived > 1:
            sizes.append(len(client.table))
        each.told_by(each.core.handle(JobTurn(), each.now))
    each.core.check()
    each.idle = True
    return sizes


def test_a_run_changes_few_tensors_of_its_table_in_one_turn() -> None:
    """What its client says meanwhile waits until all are changed."""
    each = started()
    run, left = large_run(each)
    client = each.core.service.clients[b"c"]
    each.idle = False
    each.say("c", m.Free([]))  # whoever is idle takes no turns
    sizes = sizes_while(each, run, lambda: client.table.keys() == left)
    assert max(abs(b - a) for a, b in itertools.pairwise(sizes)) <= EFFECTS_PER_TURN
    assert min(sizes) < max(sizes) - LARGE
    each.event(Tick())
    (told,) = each.hears("w0", m.Execute)
    assert told.freed == run.freed
    assert not client.queue


@pytest.mark.parametrize("lost", ["w0", "c"])
def test_a_peer_is_lost_while_a_run_changes_the_table(lost: str) -> None:
    """All that the run has made is lost with a worker, and what it has freed is not there any more."""
    each = started()
    run, left = large_run(each)
    client = each.core.service.clients[b"c"]
    sizes_while(each, run, lambda: client.arrived > 1 and len(client.queue) == 1 and (run.base in client.table))
    each.event(Lost(lost.encode(), "it ended", ended=True))
    if lost == "w0":
        assert client.table.keys() == left
        assert all(entry.fault is not None for entry in client.table.values())
    assert (b"c" in each.core.service.clients) == (lost == "w0")


@pytest.mark.parametrize("share", [[], [["b"], -1, 1]], ids=["own", "published"])
def test_a_snapshot_of_many_tensors_is_begun_in_turns(share: list[Any]) -> None:
    each = started()
    tensors = unlike(each, MAX_IDS)
    body = b'{"keys": [], "state": {}, "extra": {}}'
    assert most_steps(each, "c", m.WriteSnapshot(1, "a", "0" * 16, tensors, share, body)) < MAX_STEPS
    assert each.core.service.clients[b"c"].head is MessageState.DONE


def test_a_mark_is_taken_after_what_a_run_changes() -> None:
    """Never while the table is half of what it was before the run, and half of what it is afterwards."""
    each = service(1)
    run, left = large_run(each)
    client = each.core.service.clients[b"c"]
    each.event(Tick())
    each.now += MARK_SECONDS
    sizes_while(each, run, lambda: client.arrived > 1 and len(client.queue) == 1 and (run.base in client.table))
    each.idle = False
    for _ in range(3):
        each.event(Tick())
        each.event(JobTurn())
        assert client.recovery.taking is None
        assert client.recovery.copying is None
    each.idle = True
    for _ in range(2):
        each.event(Tick())
    assert client.recovery.taking is not None
    assert client.recovery.taking.table.keys() == left
