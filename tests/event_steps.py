"""Counts the steps of a dispatcher's events: lines of Python, not seconds, in the longest event or turn.

A message goes through the decoder first, so that it is one of legal size. Definitions and tensors here are as many as may be.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack
from measured_calls import counted_steps
from one_dispatcher import VECTOR, Service

from gt.bounds import (
    MAX_ALL_OPERANDS,
    MAX_IDS,
    MAX_INPUTS,
    MAX_INSTRUCTIONS,
    MAX_OPERANDS,
    MAX_PATH_DEPTH,
    MAX_PATH_LENGTH,
    MAX_PATTERNS,
    MAX_TAGS,
)
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.state.events import JobTurn, Received, Reload, Send
from gt.dispatcher.state.plan_cache import Entry
from gt.ir.dtypes import float32
from gt.ir.instruction import INPUT, OUTPUT, SCALAR, ref
from gt.ir.spec import pack_spec, spec
from gt.wire import messages as m
from gt.wire.messages import codec

MAX_STEPS = 40_000
"""Lines of Python that an event may take: about 2 ms at 50 ns each."""
STEPS_PER_SESSION = 40
"""And for each of the sessions that it concerns, of which there are at most some 900, if they are all alike."""
SPEC = pack_spec(VECTOR)
DEEP = ["n" * (MAX_PATH_LENGTH // MAX_PATH_DEPTH - 1)] * MAX_PATH_DEPTH
"""A path of signals as long as one may be."""
PATTERNS: dict[str, Any] = {
    "mesh": {"data": 1},
    "sharding_config": {f"{'*n' * 8}*{number}": {"strategy": "data_parallel"} for number in range(MAX_PATTERNS)},
}


def most_steps(each: Service, peer: str, *messages: Any, counted: bool = True) -> int:
    """The most steps that one event takes while these messages are acted on, and all that follows from them; 0 if they are not to
    be `counted`, which takes longer than to act on them."""
    found = 0

    def act(event: Any) -> None:
        nonlocal found
        if counted:
            found = max(found, counted_steps(lambda: each.core.handle(event, each.now)))
        else:
            each.core.handle(event, each.now)

    for message in messages:
        if isinstance(message, Reload):
            act(message)
            continue
        act(Received(peer.encode(), codec.decode(codec.encode(message), codec.TO_DISPATCHER)))
    for _ in range(100_000):
        if not each.core.busy:
            break
        act(JobTurn())
    assert not each.core.busy
    each.core.check()
    return found


def definition(
    *, inputs: list[Any] = [SPEC], kinds: str = "", tags: list[Any] = [[[], 0, "x.py:1", []]],  # noqa: B006 — never changed
    instructions: list[Any], survivors: list[int] = [0],  # noqa: B006
) -> m.Define:  # fmt: skip
    return m.Define(7, msgpack.packb([inputs, kinds, tags, instructions, survivors]))


NEGATE = ["neg", [ref(INPUT, 0)], {}, 0]


def many_tensors(each: Service, count: int) -> list[int]:
    """Give the client so many tensors."""
    client = each.core.service.clients[b"c"]
    assert client.planner is not None
    mesh = client.planner.mesh
    tensors = [(1 << 50) + n for n in range(count)]
    client.table.update((n, Entry(VECTOR, mesh.number, ResidentPlacement(mesh.replicated))) for n in tensors)
    return tensors


def wide(count: int) -> m.Define:
    """Sums of as many pairs of inputs, each of which survives."""
    sums = [["add", [ref(INPUT, 2 * n), ref(INPUT, 2 * n + 1)], {}, 0] for n in range(count // 2)]
    return definition(inputs=[SPEC] * count, instructions=sums, survivors=[*range(count // 2)])


def long(count: int, survivors: int | None = None) -> m.Define:
    """As many instructions one after the other, of which the last ones survive, or each."""
    chain = [["neg", [ref(OUTPUT, n - 1) if n else ref(INPUT, 0)], {}, 0] for n in range(count)]
    return definition(instructions=chain, survivors=[*range(count)][-(survivors or count) :])


FIRST_RUNS: Final[dict[str, tuple[m.Define, int, dict[str, Any]]]] = {
    "inputs": (wide(MAX_INPUTS), MAX_INPUTS, {}),
    "instructions": (long(MAX_INSTRUCTIONS, survivors=MAX_INSTRUCTIONS // 2), 1, {}),
    "survivors of other shapes": (
        definition(
            kinds="f",
            instructions=[["full", [ref(SCALAR, 0)], {"shape": [1 + n], "dtype": "f32"}, 0] for n in range(MAX_IDS)],
            survivors=[*range(MAX_IDS)],
        ),
        1,
        {},
    ),
    "views of other shapes": (
        definition(
            instructions=[["expand", [ref(INPUT, 0)], {"shape": [1 + n, 4]}, 0] for n in range(MAX_IDS)],
            survivors=[*range(MAX_IDS)],
        ),
        1,
        {},
    ),
    "operands": (
        definition(
            instructions=[["cat", [ref(INPUT, 0)] * MAX_OPERANDS, {"axis": 0}, 0]] * (MAX_ALL_OPERANDS // MAX_OPERANDS)
        ),
        1,
        {},
    ),
    "deep signals": (
        definition(
            tags=[[[f"{n}", *DEEP[1:]], 0, "x.py:1", []] for n in range(400)],
            instructions=[["neg", [ref(INPUT, 0)], {}, n] for n in range(400)],
        ),
        1,
        {"config": PATTERNS},
    ),
    "tags": (
        definition(
            tags=[[[f"{n}"], 0, "x.py:1", []] for n in range(MAX_TAGS // 2)],
            instructions=[["neg", [ref(INPUT, 0)], {}, n] for n in range(MAX_TAGS // 2)],
        ),
        1,
        {},
    ),
    "tags without signals": (
        definition(
            tags=[[[], 0, f"x.py:{n}", []] for n in range(MAX_TAGS)],
            instructions=[["neg", [ref(INPUT, 0)], {}, n] for n in range(MAX_TAGS)],
        ),
        1,
        {},
    ),
    "little memory": (long(4096, survivors=1), 1, {"memory": 4096 * VECTOR.nbytes}),
    "too little memory": (long(2048), 1, {"memory": 1024 * VECTOR.nbytes}),
}


MANY: Final = 8000


def unlike(each: Service, count: int = MANY) -> list[int]:
    """Give the client so many tensors, no two of which are alike."""
    client = each.core.service.clients[b"c"]
    assert client.planner is not None
    mesh = client.planner.mesh
    resident = ResidentPlacement(mesh.replicated)
    tensors = [(1 << 50) + n for n in range(count)]
    for n, tensor in enumerate(tensors):
        client.table[tensor] = Entry(spec(float32, (1 + n,)), mesh.number, resident)
    return tensors


def steps_of(each: Service, event: Any) -> int:
    """The most steps that an event takes, or a turn of what follows from it."""
    found, event_now = 0, event
    while True:
        sends: list[Send] = []
        found = max(found, counted_steps(lambda: sends.extend(each.core.handle(event_now, each.now))))  # noqa: B023
        each.told_by(sends)
        if not each.core.busy:
            return found
        event_now = JobTurn()
