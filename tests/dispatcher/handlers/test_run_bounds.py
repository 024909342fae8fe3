"""Definitions and first runs of legal size are read, checked, planned and packed in turns, each of few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from event_steps import (
    DEEP,
    FIRST_RUNS,
    MAX_STEPS,
    NEGATE,
    PATTERNS,
    SPEC,
    definition,
    long,
    many_tensors,
    most_steps,
)
from one_dispatcher import RULES, VECTOR, started

from gt.bounds import (
    MAX_DEADLINES,
    MAX_IDS,
    MAX_INPUTS,
    MAX_INSTRUCTIONS,
    MAX_OPERANDS,
    MAX_PATH_DEPTH,
    MAX_SCALARS,
)
from gt.dispatcher.session_plans.plan_selection import SWITCH_AT
from gt.ir.dtypes import float32
from gt.ir.instruction import INPUT, OUTPUT, ref
from gt.ir.spec import pack_spec, spec
from gt.wire import messages as m

DEFINITIONS: dict[str, Callable[[], m.Define]] = {
    "inputs": lambda: definition(inputs=[SPEC] * MAX_INPUTS, instructions=[NEGATE]),
    "scalars": lambda: definition(kinds="f" * MAX_SCALARS, instructions=[NEGATE]),
    "tags": lambda: definition(
        tags=[[DEEP, 0, "x" * 200, [True, "", [["n" * 100, 1.0]] * MAX_DEADLINES]]] * 400, instructions=[NEGATE]
    ),
    "instructions": lambda: definition(
        instructions=[["neg", [ref(OUTPUT, n - 1) if n else ref(INPUT, 0)], {}, 0] for n in range(4000)],
        survivors=list(range(4000)),
    ),
    "operands": lambda: definition(instructions=[["cat", [ref(INPUT, 0)] * MAX_OPERANDS, {"axis": 0}, 0]] * 20),
    "refused": lambda: definition(
        tags=[[[], 0, "x" * 4000, []]],
        instructions=[["softmax", [ref(INPUT, 0)], {"axis": 1 + n % 31}, 0] for n in range(4000)],
        survivors=list(range(4000)),
    ),
    "dependent on the refused": lambda: definition(
        instructions=[["launch", [], {}, 0], *[["cat", [ref(OUTPUT, 0)] * MAX_OPERANDS, {"axis": 0}, 0]] * 20]
    ),
    "more operands than allowed": lambda: definition(
        instructions=[["cat", [ref(INPUT, 0)] * 60_000, {"axis": 0}, 0]] * 20
    ),
    "nonsense": lambda: m.Define(7, b"\x95\xdc\x40\x00" + b"\x91" * 100_000),
}


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_a_definition_is_read_in_turns(kind: str) -> None:
    """However many inputs, tags, operands or instructions it has."""
    each = started()
    assert most_steps(each, "c", DEFINITIONS[kind]()) < MAX_STEPS
    assert isinstance(each.core.service.clients[b"c"].segments[7], tuple) == (kind == "nonsense"), (
        "the others can be read"
    )


def test_a_put_in_a_deep_path_is_placed_in_few_steps() -> None:
    """As many patterns as a config may have are compared with as long a path as there may be."""
    each = started(config=PATTERNS)
    assert most_steps(each, "c", m.Put(2, SPEC, DEEP, False, bytes(VECTOR.nbytes))) < MAX_STEPS
    assert 2 in each.table()


def test_a_path_beyond_the_bounds_is_refused() -> None:
    each = started(config=PATTERNS)
    for number, path in enumerate(([""] * (MAX_PATH_DEPTH + 1), ["n" * 201], ["n" * 200] * 21)):
        assert most_steps(each, "c", m.Put(10 + number, SPEC, path, False, bytes(VECTOR.nbytes))) < MAX_STEPS
        assert "signal" in each.table()[10 + number].fault[1]


def test_a_new_plan_costs_no_more_beside_many_tensors() -> None:
    """What its client holds besides is counted, not looked at one by one."""
    steps = []
    for count in (10, 10, 20_000):
        each = started()
        many_tensors(each, count)
        steps.append(most_steps(each, "c", m.Run(1, 1 << 60, [1], [], [], [])))
        each.done()
    assert max(steps[1:]) < min(steps[1:]) + 500, "the first one also fills caches that all sessions share"


@pytest.mark.parametrize("kind", FIRST_RUNS)
def test_a_first_run_is_checked_planned_and_packed_in_turns(kind: str) -> None:
    """However many inputs, instructions or operands the segment has; so are the runs after it, until a better plan is found."""
    define, inputs, options = FIRST_RUNS[kind]
    each = started(**options)
    tensors = many_tensors(each, inputs)
    scalars = [0.5] * (kind == "survivors of other shapes")
    runs = [m.Run(7, (1 << 54) + (n << 40), tensors, scalars, [], []) for n in range(SWITCH_AT + 2)]
    assert most_steps(each, "c", define) < MAX_STEPS
    for number, run in enumerate(runs):
        alike = 1 < number < SWITCH_AT - 1  # as the one before, which was counted
        assert most_steps(each, "c", run, counted=not alike) < MAX_STEPS
        each.done()
    assert (each.table()[runs[-1].base + max(each.core.service.clients[b"c"].segments[7].survivors)].fault is None) == (
        kind != "too little memory"
    )


def test_a_plan_that_checks_itself_is_made_in_turns() -> None:
    """With as many checks as there is room for."""
    each = started(2, config=RULES)
    each.put(2, signal=("net",))
    each.say("c", m.Options({"verify": 1.0}))
    chain = [["neg", [ref(OUTPUT, n - 1) if n else ref(INPUT, 0)], {}, 0] for n in range(MAX_INSTRUCTIONS // 2)]
    define = definition(tags=[[["net"], 0, "x.py:1", []]], instructions=chain, survivors=[len(chain) - 1])
    assert most_steps(each, "c", define, m.Run(7, 1 << 54, [2], [], [], [])) < MAX_STEPS
    (checked,) = (key for key in each.core.service.clients[b"c"].plans.by_residents if len(key) == 3)
    assert each.core.service.clients[b"c"].plans.by_residents[checked].length > len(chain)


PIPED: Final[dict[str, m.Define]] = {
    "instructions": definition(
        inputs=[pack_spec(spec(float32, (64, 4)))],
        tags=[[["net", "a"], 0, "x.py:1", []], [["net", "b"], 0, "x.py:1", []]],
        instructions=[["neg", [ref(OUTPUT, n - 1) if n else ref(INPUT, 0)], {}, n // 4000] for n in range(8000)],
        survivors=[7999],
    ),
    "signals": definition(
        inputs=[pack_spec(spec(float32, (64, 4)))],
        tags=[[["net", f"{n}"], 0, "x.py:1", []] for n in range(2000)],
        instructions=[["neg", [ref(OUTPUT, n - 1) if n else ref(INPUT, 0)], {}, n] for n in range(2000)],
        survivors=[1999],
    ),
}


@pytest.mark.parametrize("memory", [0, 6000 * 1024])
@pytest.mark.parametrize("kind", PIPED)
def test_the_order_of_a_pipeline_is_found_in_turns(kind: str, memory: int) -> None:
    """So are its stages, and the memory that it takes: of 8,000 values of 1 KiB, cut into stages and microbatches."""
    stages = {"strategy": "pipeline_parallel", "stages": [[0], [1]], "microbatches": 4}
    each = started(2, config={"mesh": {"stages": 2}, "sharding_config": {"net": stages}}, memory=memory)
    each.say("c", m.Put(2, pack_spec(spec(float32, (64, 4))), ["net"], False, bytes(1024)))
    assert most_steps(each, "c", PIPED[kind], m.Run(7, 1 << 54, [2], [], [], [])) < MAX_STEPS
    (entry,) = (entry for tensor, entry in each.table().items() if tensor >= 1 << 54)
    assert entry.fault is None
    (cached,) = each.core.service.clients[b"c"].plans.values()
    assert cached.planned.plan.pipeline is not None


FAULTED: Final[dict[str, m.Define]] = {
    "instructions": long(MAX_INSTRUCTIONS),
    "operands": FIRST_RUNS["operands"][0],
}


@pytest.mark.parametrize("kind", FAULTED)
def test_who_inherits_the_fault_of_an_input_is_found_out_in_turns(kind: str) -> None:
    """As often as it is asked for, and in a run that would make tensors which exist."""
    each = started()
    assert most_steps(each, "c", m.Put(5, SPEC, [], False, b""), FAULTED[kind]) < MAX_STEPS
    survivors = each.core.service.clients[b"c"].segments[7].survivors
    for base in (1 << 50, 1 << 52):
        assert most_steps(each, "c", *[m.Run(7, base, [5], [], [], [])] * 2) < MAX_STEPS
        assert all(each.table()[base + number].fault == each.table()[5].fault for number in survivors)
        each.say("c", m.Free([base + number for number in survivors[:MAX_IDS]]))
