"""Runs of plans that are cut: others have their turns between two parts, and whatever happens there, the session sees a run that
is whole or has failed."""

from __future__ import annotations

from typing import Any

import pytest
from builders import Lines
from marking_dispatcher import service
from one_dispatcher import VECTOR, Service, fault_of, started

from gt.dispatcher.planner.plan_parts import PASSED_NUMBERS
from gt.dispatcher.state.events import Lost
from gt.dispatcher.state.message_state import WAITING_CREDIT, WAITING_SHARE
from gt.ir.instruction import Segment
from gt.ir.instruction_bytes import unpack_plan
from gt.wire import messages as m

CUT: dict[str, Any] = {"max_plan": "1us"}
LONG = 10**8
"""The nanoseconds of a long part."""


def chain(length: int) -> Segment:
    """As many instructions, of which the first and the last survive."""
    lines = Lines()
    first = value = lines.op("neg", lines.input(*VECTOR.shape))
    for _ in range(length - 1):
        value = lines.op("exp", value)
    return lines.segment(first, value)


def cut(workers: int = 1, length: int = 4, **more: Any) -> Service:
    """A service with a client "c" that has put tensor 1 and defined segment 2, whose plan has as many parts as instructions."""
    each = started(workers, config={**CUT, **more})
    each.define(2, chain(length))
    return each


def executes(each: Service, worker: str = "w0") -> list[m.Execute]:
    return each.hears(worker, m.Execute)


def client_of(each: Service, name: str = "c") -> Any:
    return each.core.service.clients[name.encode()]


def test_a_long_plan_is_as_many_plans_and_one_run() -> None:
    """Each part reads what the one before has left, under numbers that the client does not use; the client has one credit."""
    each = cut()
    each.run(2, 10, [1], dying=[0])
    told = each.hears("w0", m.DefinePlan, m.Execute)
    plans = {one.plan: unpack_plan(one.body) for one in told if isinstance(one, m.DefinePlan)}
    ran = [one for one in told if isinstance(one, m.Execute)]
    assert [[i.op for i in plans[one.plan].instructions] for one in ran] == [["neg"], ["exp"], ["exp"], ["exp"]]
    assert [one.order for one in ran] == sorted(one.order for one in ran)
    made = [[one.base + offset for offset, _ in plans[one.plan].survivors] for one in ran]
    assert made == [[10], [10 + PASSED_NUMBERS + 1], [10 + PASSED_NUMBERS + 2], [13]]
    assert [one.inputs for one in ran] == [[1], made[0], made[1], made[2]]
    assert [[one.inputs[at] for at in one.dying] for one in ran] == [[1], [], made[1], made[2]]
    assert {*each.table()} == {10, 13}
    each.hears("c")
    each.done()
    assert [one[0] for one in each.hears("c", m.Credit)] == [2]  # the put, and the run


def test_others_have_their_turns_between_two_parts() -> None:
    """Of whoever comes in between, a plan is issued before the next part."""
    each = cut()
    each.client("d")
    each.put(1, "d")
    each.define(1, client="d")
    for base in (10, 20, 30):
        each.run(2, base, [1])
        while each.core.service.issued:
            for order in [*each.core.service.issued]:
                each.say("w0", m.Done(order, [LONG]))
    executes(each)
    each.run(2, 40, [1])
    each.run(1, 5, [1], "d")
    assert client_of(each).head is WAITING_SHARE
    assert {*each.table()} == {1, 10, 13, 20, 23, 30, 33}, "of the run nothing is there until it is whole"
    order = []
    while running := executes(each):
        order += [one.client for one in running]
        each.done()
    mine, other = client_of(each).number, client_of(each, "d").number
    assert order.count(mine) == 4
    assert mine in order[order.index(other) :], "the other one's turn came before the last part"
    assert {40, 43} <= {*each.table()}


def test_a_run_waits_for_credit_between_parts() -> None:
    each = cut(length=80)
    each.run(2, 100, [1])
    assert client_of(each).head is WAITING_CREDIT
    count = len(executes(each))
    while client_of(each).queue:
        each.done()
        count += len(executes(each))
    assert count == 80


def test_the_same_run_again_is_cut_as_before() -> None:
    """The plan, with its parts, is known to the workers; it is found again by its inputs."""
    each = cut()
    plans = []
    for n in range(10):
        each.run(2, 100 + 10 * n, [1])
        plans.append([one.plan for one in executes(each)])
        each.done()
    assert plans[0] == plans[-1]
    each.say("c", m.Drop(2))
    assert [one.plan for one in each.hears("w0", m.DropPlan)] == plans[0]


def underway(workers: int = 1, **more: Any) -> Service:
    """A run of 80 parts of which some are issued."""
    each = cut(workers, 80, **more)
    each.run(2, 100, [1], dying=[0], freed=[])
    assert client_of(each).underway is not None
    return each


def test_cancelled_work_leaves_nothing_of_a_run_underway() -> None:
    """What its parts have left at workers is freed, and what it was to make has an error."""
    each = underway()
    left = {one.base for one in executes(each)}
    each.core.queues.cancel(client_of(each))
    each.told_by(each.core.service.out)
    each.core.service.out.clear()
    freed = {tensor for one in each.hears("w0", m.Release) for tensor in one.tensors}
    assert left - {100} <= freed
    assert {1, 100, 179} <= freed
    assert client_of(each).underway is None
    assert fault_of(each, 179)[0] == "Cancelled"
    each.done()


def test_a_client_that_leaves_in_between_leaves_nothing() -> None:
    each = underway()
    each.event(Lost(b"c", "it left"))
    assert m.Forget in map(type, each.hears("w0"))


@pytest.mark.parametrize("rules", [{"mesh": {"data": 2}, "sharding_config": {}}, {}])
def test_a_run_that_loses_a_worker_in_between_fails_as_a_whole(rules: dict[str, Any]) -> None:
    """Whether another worker has the session's tensors or not; the next run is cut and whole again."""
    each = underway(2, **rules)
    members = client_of(each).mesh.members
    each.event(Lost(f"w{members[-1]}".encode(), "it was killed"))
    assert client_of(each).underway is None
    assert fault_of(each, 179)[0] == fault_of(each, 100)[0] == "WorkerLost"
    assert 1 not in each.table(), "what was to die with it is dead"


def test_no_mark_is_taken_of_a_run_underway() -> None:
    """A mark that is due comes when the run is whole, and before the next one."""
    each = service(1, config=CUT)
    each.define(2, chain(80))
    client = client_of(each)
    each.run(2, 100, [1])
    each.run(2, 300, [1])
    assert client.underway is not None
    client.recovery.due = True
    each.core.marks.take(client)
    assert client.recovery.held_up
    assert client.recovery.taking is None
    while client.recovery.taking is None:
        each.done()
    assert client.recovery.taking.position == client.recovery.over
    assert 100 in client.recovery.taking.table
    assert 300 not in client.recovery.taking.table
    each.done()


def test_what_such_a_run_asks_for_is_collected_behind_its_last_part() -> None:
    each = cut()
    each.run(2, 10, [1], fetch=[7, 3])
    *parts, collect = each.hears("w0", m.Execute, m.Collect)
    assert [part.fetch for part in parts] == [[]] * 4
    assert (collect.reply, collect.tensor) == (7, 13)
