"""Definitions of which some instructions cannot run: what does not depend on them is planned and run as without them, the
rest has their errors, and what dies with a run dies once."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from broken_segments import SHAPE, Broken, broken
from builders import Lines
from hypothesis import given
from hypothesis import strategies as st
from one_dispatcher import RULES, Service, fault_of, leave_nothing, made, started

from gt.dispatcher.handlers.message_queues import CANCELLED_FAULT
from gt.dispatcher.handlers.runs import REDUCED_FROM
from gt.ir.instruction import INPUT, OUTPUT, Plan, ref
from gt.ir.instruction_bytes import unpack_plan
from gt.wire import messages as m

X = ref(INPUT, 0)
DEFINED = 2
"""The number of the definition that a test makes."""


def ended(each: Service) -> None:
    """End a service within a test, with the checks that else follow it."""
    each.done()
    leave_nothing(each)
    made.remove(each)


def plans(each: Service) -> list[Plan]:
    """The plans that worker 0 was told since the last time; what else it heard is dropped."""
    return [unpack_plan(told.body) for told in each.hears("w0", m.DefinePlan)]


def with_inputs(workers: int, count: int) -> Service:
    """A service whose client has put tensors 1 to `count`, and tensor 9."""
    each = started(workers, config=RULES if workers > 1 else None)
    for tensor in (*range(2, count + 1), 9):
        each.put(tensor, signal=("net",))
    each.done()
    each.told.clear()
    return each


def check_table(each: Service, base: int, definition: Broken) -> None:
    """Each survivor of a run has a value or the error of the first refused instruction on which it depends."""
    causes = definition.causes()
    for number in definition.survivors:
        entry = each.table()[base + number]
        if number in causes:
            kind, text = entry.fault
            assert (kind, text.rpartition(", at ")[2]) == (definition.bad[causes[number]], f"s.py:{causes[number]}")
            assert fault_of(each, base + number) == entry.fault
        else:
            assert entry.fault is None


@given(st.randoms(use_true_random=False), st.integers(1, 2))
def test_the_rest_of_a_definition_runs_as_it_would_alone(draw: random.Random, workers: int) -> None:
    """Workers get the plan of the definition without the refused instructions and what depends on them. Each run frees what
    dies with it once, whether anything is computed or not, and nothing is left of any tensor that its client frees."""
    definition = broken(draw)
    body, numbers = definition.remaining()
    each, other = with_inputs(workers, definition.inputs), with_inputs(workers, definition.inputs)
    each.say("c", m.Define(DEFINED, definition.body()))
    other.say("c", m.Define(DEFINED, body))
    inputs = list(range(1, definition.inputs + 1))
    bases = [100 * n for n in range(1, draw.randint(2, 9))]  # so often that a plan may be hot
    for base in bases:
        dying = draw.sample(range(len(inputs)), draw.randint(0, len(inputs))) if base == bases[-1] else []
        freed = [9] if base == bases[-1] else []
        each.run(DEFINED, base, inputs, dying=dying, freed=freed)
        told = each.told.get("w0", [])[:]
        check_table(each, base, definition)
        ends = [inputs[position] for position in dying] + freed
        if numbers:
            other.run(DEFINED, base, inputs, dying=dying, freed=freed)
            mine, alone = plans(each), plans(other)
            assert [replace(plan, survivors=()) for plan in mine] == [replace(plan, survivors=()) for plan in alone]
            for plan, without in zip(mine, alone, strict=True):
                assert plan.survivors == tuple((numbers[number], at) for number, at in without.survivors)
            (execute,) = (message for message in told if isinstance(message, m.Execute))
            assert (execute.base, list(execute.dying), list(execute.freed)) == (base, dying, freed)
            assert not any(isinstance(message, m.Release) for message in told)
        else:
            assert told == ([m.Release(1, ends)] if ends else [])
        each.done()
        other.done()
    kept = {1, *inputs} - {inputs[position] for position in dying}
    assert set(each.table()) == kept | {base + number for base in bases for number in definition.survivors}
    client = each.core.service.clients[b"c"]
    assert client.credited == client.arrived
    each.say("c", m.Free(list(each.table())), m.Drop(DEFINED))
    assert (each.table(), client.refused, client.reduced, set(client.segments)) == ({}, {}, {}, {1})
    assert each.core.service.counters.refused == bool(definition.causes())
    ended(each)
    ended(other)


def parts(*instructions: Any, survivors: list[int] | None = None, inputs: int = 1) -> bytes:
    """A definition with these instructions, each with a line of its own, all of whose outputs survive."""
    tags = [[[], 0, f"model.py:{number + 1}", []] for number in range(len(instructions))]
    lines = [[*each, number] for number, each in enumerate(instructions)]
    alive = list(range(len(instructions))) if survivors is None else survivors
    packed: bytes = msgpack.packb([[["f32", SHAPE]] * inputs, "", tags, lines, alive])
    return packed


NEG = ["neg", [X], {}]
BAD = ["softmax", [X], {"axis": -1}]
LAUNCH = ["launch", [X], {}]


def test_each_refused_instruction_has_its_own_error() -> None:
    """With its line. What depends on several has the first one's; the log names the first and counts them."""
    each = started()
    both = ["add", [ref(OUTPUT, 2), ref(OUTPUT, 0)], {}]
    each.say("c", m.Define(DEFINED, parts(BAD, NEG, LAUNCH, both, NEG)))
    assert each.hears("c", m.Failed) == []
    each.run(DEFINED, 10, [1])
    axis = ("ShapeError", "softmax: axis: an integer from 0 to 31, not -1, at model.py:1")
    assert [fault_of(each, tensor) for tensor in (10, 12, 13)] == [
        axis,
        ("ProtocolError", "there is no op 'launch', at model.py:3"),
        axis,
    ]
    assert [each.table()[tensor].fault for tensor in (11, 14)] == [None, None]
    assert each.log[-1] == f"warning: refused 2 instructions of a definition of client 1, the first: {axis[1]}"
    assert each.core.service.counters.refused == 1
    each.run(1, 80, [11])
    assert each.table()[80].fault is None


def test_later_segments_inherit_no_more_than_they_read() -> None:
    """A tensor of a refused instruction has its error wherever it is read; its neighbours from the same run are sound."""
    each = started()
    each.say("c", m.Define(DEFINED, parts(BAD, NEG)))
    each.run(DEFINED, 10, [1], dying=[0])
    each.hears("w0")
    lines = Lines()
    x, y = lines.input(4), lines.input(4)
    each.define(3, lines.segment(lines.op("neg", x), lines.op("neg", y), lines.op("add", x, y)))
    each.run(3, 20, [10, 11], dying=[0, 1])
    (execute,) = each.hears("w0", m.Execute)
    assert (list(execute.inputs), list(execute.dying)) == ([10, 11], [0, 1])
    assert [each.table()[tensor].fault for tensor in (20, 21, 22)] == [fault_of(each, 20), None, fault_of(each, 20)]
    assert set(each.table()) == {20, 21, 22}


def test_without_a_sound_survivor_nothing_is_issued_and_each_has_its_own_error() -> None:
    """Also beside inputs without a value: their readers have those inputs' errors, and no refused instruction hides them."""
    each = started()
    each.say("c", m.Put(5, ["f32", [4]], [], False, b""))
    each.say("c", m.Put(6, ["f32", [4]], ["n" * 201], False, bytes(16)))
    first, second = fault_of(each, 5), fault_of(each, 6)
    assert first != second
    each.hears("w0")
    y = ref(INPUT, 1)
    body = parts(BAD, ["neg", [y], {}], LAUNCH, NEG, ["add", [ref(OUTPUT, 1), ref(OUTPUT, 0)], {}], inputs=2)
    each.say("c", m.Define(DEFINED, body))
    each.run(DEFINED, 10, [5, 6], dying=[0], freed=[1])
    assert each.hears("w0") == [m.Release(1, [5, 1])]
    kinds = [each.table()[10 + number].fault for number in range(5)]
    assert kinds == [kinds[0], second, kinds[2], first, kinds[0]]
    assert (kinds[0][0], kinds[2][0]) == ("ShapeError", "ProtocolError")
    assert set(each.table()) == {6, 10, 11, 12, 13, 14}
    client = each.core.service.clients[b"c"]
    assert client.credited == client.arrived


def test_an_error_of_the_run_is_one_of_what_could_have_been_computed() -> None:
    """Refused instructions keep their own, when work is cancelled or the run itself is wrong."""
    each = started(capabilities=("cancel",))
    each.hello("t", "watcher")
    each.say("c", m.Define(DEFINED, parts(BAD, NEG)))
    each.put(2, bulk=True)
    each.run(DEFINED, 10, [2])
    each.say("t", m.Cancel(1, 1))
    faults = [each.table()[tensor].fault for tensor in (10, 11)]
    assert [faults[0][0], faults[1]] == ["ShapeError", CANCELLED_FAULT]
    each.run(DEFINED, 20, [1, 1])  # an input too many
    each.say("c", m.Fetch(7, 1))
    each.run(DEFINED, 30, [1, 1])
    assert [each.table()[tensor].fault[0] for tensor in (30, 31)] == ["ShapeError", "ProtocolError"]


def test_a_run_counts_survivors_that_are_not_computed() -> None:
    """Their ids must be new, too."""
    each = started()
    each.say("c", m.Define(DEFINED, parts(NEG, BAD, NEG)))
    each.put(11)
    each.hears("w0")
    each.run(DEFINED, 10, [1])
    assert not each.hears("w0", m.Execute)
    assert fault_of(each, 10)[1] == "a run makes no tensor that exists already"


def test_a_refused_instruction_without_a_survivor_costs_nothing() -> None:
    """The rest is as any other definition, and becomes as fast."""
    each = started()
    each.say("c", m.Define(DEFINED, parts(BAD, NEG, survivors=[1])))
    for base in range(10, 110, 10):
        each.run(DEFINED, base, [1])
        assert each.table()[base + 1].fault is None
        each.done()
    client = each.core.service.clients[b"c"]
    assert (client.refused, len(client.plans.by_entries)) == ({}, 1)


# results too large for all workers


LARGE: dict[str, Any] = {"shape": [1 << 40], "dtype": "f32"}


def small(workers: int = 1) -> Service:
    """A service whose workers have 10,000 bytes each."""
    each = Service(0, expected=workers)
    for n in range(workers):
        each.join(f"w{n}", memory=10_000)
    each.client()
    each.put(1)
    each.done()
    each.told.clear()
    return each


def oversized(survivors: list[int]) -> bytes:
    """A definition of -$0, two results that are too large, what depends on them, one that is not legal, and -$0 expanded."""
    two = {"shape": [1 << 41], "dtype": "f32"}
    tags = [[["net"], 0, f"model.py:{number + 1}", []] for number in range(8)]
    instructions = [
        ["neg", [X], {}, 0], ["full", [2], LARGE, 1], ["full", [2], two, 2], ["neg", [ref(OUTPUT, 2)], {}, 3],
        ["softmax", [X], {"axis": 1}, 4], ["expand", [X], {"shape": [1 << 40, 4]}, 5], ["neg", [ref(OUTPUT, 1)], {}, 6],
        ["add", [ref(OUTPUT, 0), X], {}, 7],
    ]  # fmt: skip
    packed: bytes = msgpack.packb([[["f32", SHAPE]], "f", tags, instructions, survivors])
    return packed


def test_a_result_too_large_for_all_workers_counts_as_refused() -> None:
    """Each has its own error, and so have instructions that are not legal beside it; what else there is runs, again and
    again, and a view takes no memory, whatever its size. When its definition goes, all of it goes."""
    each = small()
    each.say("c", m.Define(DEFINED, oversized([0, 1, 2, 3, 4, 5, 6, 7])))
    for base in range(10, 100, 10):
        each.run(DEFINED, base, [1], scalars=[1.0], dying=[0] if base == 90 else [])
        (execute,) = each.hears("w0", m.Execute)
        assert (execute.base, list(execute.dying)) == (base, [0] if base == 90 else [])
        faults = [each.table()[base + number].fault for number in range(8)]
        assert [fault and fault[0] for fault in faults] == [
            None, "OutOfMemory", "OutOfMemory", "OutOfMemory", "ShapeError", None, "OutOfMemory", None,
        ]  # fmt: skip
        assert faults[1] == faults[6]
        assert faults[2] == faults[3]
        assert faults[1][1].startswith("the result f32[1099511627776] of full in signal net (model.py:2) takes 4,398,")
        assert faults[2][1].startswith("the result f32[2199023255552] of full in signal net (model.py:3) takes 8,796,")
        each.done()
    assert 1 not in each.table()
    client = each.core.service.clients[b"c"]
    assert set(client.segments) == {DEFINED, REDUCED_FROM + DEFINED}
    each.run(DEFINED, 200, [], scalars=[1.0])  # an input short: what is too large has its own error all the same
    assert [each.table()[200 + number].fault[0] for number in (0, 1, 2, 4, 7)] == [
        "ProtocolError", "OutOfMemory", "OutOfMemory", "ShapeError", "ProtocolError",
    ]  # fmt: skip
    each.say("c", m.Drop(DEFINED))
    assert (client.segments, client.refused, client.reduced) == ({}, {}, {})


def test_if_all_that_survives_is_too_large_nothing_is_issued() -> None:
    """Each has its own error, from the first run on, and what dies is freed once."""
    each = small()
    each.say("c", m.Define(DEFINED, oversized([1, 2, 3])))
    for base, dying in ((10, []), (20, [0])):
        each.hears("w0")
        each.run(DEFINED, base, [1], scalars=[1.0], dying=dying)
        assert each.hears("w0") == ([m.Release(1, [1])] if dying else [])
        assert [each.table()[base + number].fault[1].split()[2] for number in (1, 2, 3)] == [
            "f32[1099511627776]", "f32[2199023255552]", "f32[2199023255552]",
        ]  # fmt: skip
    assert set(each.table()) == {11, 12, 13, 21, 22, 23}


def test_a_plan_that_does_not_fit_leaves_refused_instructions_their_errors() -> None:
    """What is legal, and no result of which is too large, has the plan's error when all of it together does not fit."""
    each = small()
    full = ["full", [2], {"shape": [2_000], "dtype": "f32"}]
    lines = [[*full, 0], [*full, 0], ["softmax", [X], {"axis": 1}, 0]]
    each.say("c", m.Define(DEFINED, msgpack.packb([[["f32", SHAPE]], "f", [[[], 0, "", []]], lines, [0, 1, 2]])))
    each.run(DEFINED, 10, [1], scalars=[1.0])
    assert [each.table()[10 + number].fault[0] for number in range(3)] == ["OutOfMemory", "OutOfMemory", "ShapeError"]
    assert not each.hears("w0", m.Execute)
    assert each.core.service.clients[b"c"].reduced == {}


@pytest.mark.parametrize("instruction", [["neg", [ref(INPUT, 3)], {}], ["neg", [ref(OUTPUT, 1)], {}]])
def test_a_reference_to_nothing_refuses_all_of_a_definition(instruction: list[Any]) -> None:
    """Nothing of it is known, so nothing of it is run, and what dies with its runs is freed."""
    each = started()
    each.say("c", m.Define(DEFINED, parts(NEG, instruction)))
    each.run(DEFINED, 10, [1], dying=[0])
    (failed,) = each.hears("c", m.Failed)
    assert (failed.kind, failed.text.endswith(" does not exist, at model.py:2")) == ("ProtocolError", True)
    assert each.hears("w0") == [m.Release(1, [1])]
    assert each.table() == {}
    assert each.log[-1].startswith("warning: refused a definition of client 1: operand ")
