"""The states of a plan on a worker: which transitions happen, which are refused, and who may send what."""

from __future__ import annotations

import numpy as np
import pytest
from builders import Lines
from one_mesh import WHOLE, Ranks, gathered, numbers

from gt.errors import ProtocolError
from gt.wire import messages as m
from gt.worker.execution.plan_state import MEANINGS, SUSPENDED, TRANSITIONS, PlanState
from gt.worker.message_table import ORDERED, SENDERS, UNORDERED, Sender


def test_the_table_is_whole() -> None:
    """Every state has a row and a meaning, can be reached from the first and reaches the last, which leads nowhere."""
    assert list(TRANSITIONS) == list(MEANINGS) == list(PlanState)
    reached = {PlanState.QUEUED}
    while more := {following for state in reached for following in TRANSITIONS[state]} - reached:
        reached |= more
    assert reached == set(PlanState)
    ends = {PlanState.FINISHED}
    while more := {state for state, following in TRANSITIONS.items() if ends & following.keys()} - ends:
        ends |= more
    assert ends == set(PlanState)
    assert [state for state, following in TRANSITIONS.items() if not following] == [PlanState.FINISHED]
    assert {state for state in TRANSITIONS if state.value.startswith("waiting")} - SUSPENDED == {
        PlanState.WAITING_FOR_PUT
    }


def test_a_plan_waits_for_a_move_until_the_last_piece_has_come() -> None:
    """A plan is suspended in its move, plans behind it are queued; the piece lets both run to their ends."""
    group, plan, _ = gathered(2)
    core = group.cores[0]
    assert core.plan_state is None
    group.all(group.execute(plan, [1]))
    assert core.running is not None
    first = core.running
    assert (core.plan_state, first.state) == (PlanState.WAITING_FOR_MOVE, PlanState.WAITING_FOR_MOVE)
    group.all(group.execute(plan, [1], base=200))
    assert core.plan_state is PlanState.WAITING_FOR_MOVE
    group.settle()
    assert core.plan_state is None
    assert first.state is PlanState.FINISHED
    assert core.executed == 2


def test_an_announced_plan_is_queued() -> None:
    """What was announced and not handled yet is queued: a plan, but no other message."""
    group = Ranks(1)
    group.store(1, numbers(3))
    lines = Lines()
    plan, _ = group.define(lines.segment(lines.op("neg", lines.input(3))), [WHOLE])
    core = group.cores[0]
    core.announce(m.Ping())
    assert core.plan_state is None
    core.announce(group.execute(plan, [1]))
    assert core.plan_state is PlanState.QUEUED
    core.handle(None, 0.0)
    assert core.plan_state is None
    np.testing.assert_array_equal(group.stored(100), -numbers(3))


def test_a_transition_that_the_table_lacks_is_refused() -> None:
    """A plan that has finished starts no more, and one in a move does not finish in it."""
    group, plan, _ = gathered(2)
    group.all(group.execute(plan, [1]))
    running = group.cores[0].running
    assert running is not None
    with pytest.raises(AssertionError, match="a plan that is waiting for a move does not become finished"):
        running.enter(PlanState.FINISHED)
    group.settle()
    with pytest.raises(AssertionError, match="a plan that is finished does not become running"):
        running.enter(PlanState.RUNNING)


def test_every_message_to_a_worker_has_one_row() -> None:
    """What a dispatcher or a peer may send is handled either in order or at once; the rest is refused with its name."""
    assert not UNORDERED.keys() & ORDERED.keys()
    of_shell = {m.Goodbye, m.Subscribe, m.Unsubscribe, m.Switch, m.Lapse, m.Unswitch}
    assert not SENDERS.keys() & of_shell
    assert {kind for kind, sender in SENDERS.items() if sender is Sender.PEER} == {m.Piece, m.Read, m.Probe, m.Echo}
    assert all(sender is Sender.DISPATCHER for sender, _ in ORDERED.values())
    with pytest.raises(ProtocolError, match="Credit is nothing that a dispatcher says to a worker"):
        Ranks(1).tell(0, m.Credit(1))
