"""Every event is short: whatever a peer says within the bounds of `gt/bounds.py`, acting on it takes few steps, or several turns.

Counted are lines of Python, not seconds. A message goes through the decoder first, so that it is one of legal size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgpack
import pytest
from marking_dispatcher import lose, restore, service, settled_mark
from measured_calls import counted_steps
from one_dispatcher import RULES, VECTOR, Service, configure, started

from gt.bounds import (
    MAX_ALL_OPERANDS,
    MAX_DEADLINES,
    MAX_IDS,
    MAX_INPUTS,
    MAX_INSTRUCTIONS,
    MAX_NAMED_WORKERS,
    MAX_OPERANDS,
    MAX_PATH_DEPTH,
    MAX_PATH_LENGTH,
    MAX_PATTERNS,
    MAX_QUEUED_MESSAGES,
    MAX_RULES,
    MAX_SCALARS,
    MAX_TAGS,
    MAX_WORKER_EVENTS,
)
from gt.dispatcher.handlers.fetches import MAX_UNDER_WAY
from gt.dispatcher.handlers.marks import MARK_SECONDS
from gt.dispatcher.handlers.mesh_migration import MAX_TENSORS_OF_PART
from gt.dispatcher.handlers.plan_selection import SWITCH_AT
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.state.events import JobTurn, Lost, Publish, Received, Reload, Send, SessionWritten, Tick
from gt.dispatcher.state.mark_bytes import PackedParts, SessionCard, pack_session, read_mark
from gt.dispatcher.state.message_state import MessageState
from gt.dispatcher.state.plan_cache import EFFECTS_PER_TURN, Entry
from gt.dispatcher.state.records import ClientRecord
from gt.dispatcher.state.session_marks import COPIED_PER_TURN
from gt.dispatcher.state.shared_parts import MAX_SHARED_TENSORS, MIN_BYTES
from gt.ir.dtypes import float32
from gt.ir.instruction import INPUT, OUTPUT, SCALAR, ref
from gt.ir.spec import pack_spec, spec
from gt.sharding.config import Config
from gt.sharding.placement import Shard
from gt.wire import messages as m
from gt.wire import telemetry as t
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


def many_tensors(each: Service, count: int) -> list[int]:
    """Give the client so many tensors."""
    client = each.core.service.clients[b"c"]
    assert client.planner is not None
    mesh = client.planner.mesh
    tensors = [(1 << 50) + n for n in range(count)]
    client.table.update((n, Entry(VECTOR, mesh.number, ResidentPlacement(mesh.replicated))) for n in tensors)
    return tensors


def test_a_new_plan_costs_no_more_beside_many_tensors() -> None:
    """What its client holds besides is counted, not looked at one by one."""
    steps = []
    for count in (10, 10, 20_000):
        each = started()
        many_tensors(each, count)
        steps.append(most_steps(each, "c", m.Run(1, 1 << 60, [1], [], [], [])))
        each.done()
    assert max(steps[1:]) < min(steps[1:]) + 500, "the first one also fills caches that all sessions share"


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


@pytest.mark.parametrize("mesh", [{"data": 1}, {"data": 2}])
def test_a_change_of_config_goes_through_many_tensors_in_turns(mesh: dict[str, int]) -> None:
    """On the mesh that they are on, and when they have to move."""
    each = started(2, config={"mesh": {"data": 1}, "sharding_config": {}})
    tensors = many_tensors(each, 20_000)
    config = {"config": {"mesh": mesh, "sharding_config": {}}, "mesh_where": "a.yaml:1", "where": []}
    assert most_steps(each, "c", m.Configure(1, config)) < MAX_STEPS
    assert each.table().keys() >= set(tensors)


def test_as_many_frees_as_may_be_take_few_steps() -> None:
    each = started()
    tensors = many_tensors(each, MAX_IDS)
    assert most_steps(each, "c", *[m.Free(tensors)] * 20) < MAX_STEPS
    assert set(each.table()) == {1}


def test_what_was_queued_goes_on_in_turns() -> None:
    """Thousands of messages behind a put that never lands, or lands at last, are taken and acted on a few at a time."""
    each = started()
    each.put(2, bulk=True)
    each.say("c", m.Fetch(1, 2))
    first = most_steps(
        each,
        "c",
        *(m.Fetch(2 + n, 1) for n in range(MAX_UNDER_WAY - 1)),
        *(m.Put(3 + n, SPEC, [], False, bytes(16)) for n in range(40)),
    )
    later = most_steps(each, "c", *(m.Put(50 + n, SPEC, [], False, bytes(16)) for n in range(2000)))
    assert later < first + 200
    assert most_steps(each, "w0", m.Landed(1, 2)) < MAX_STEPS
    assert len(each.core.fetches.collections) == MAX_UNDER_WAY


def test_a_cancellation_of_a_long_queue_goes_on_in_turns() -> None:
    each = started(capabilities=("cancel",))
    each.hello("t", "watcher")
    each.put(2, bulk=True)
    each.say("c", m.Fetch(1, 2))
    queue = each.core.service.clients[b"c"].queue
    queue.extend([m.Fetch(2, 1)] * 5000)
    assert len(queue) < MAX_QUEUED_MESSAGES
    assert most_steps(each, "t", m.Cancel(5, 1)) < MAX_STEPS
    assert not queue


def on_wire(rules: dict[str, Any], **top: Any) -> dict[str, Any]:
    """A config as a client sends it, sound or not."""
    where = [["a"] * (len(rule) if isinstance(rule, list) else 1) for rule in rules.values()]
    return {"config": {**top, "sharding_config": rules}, "mesh_where": "a", "where": where}


def many(rule: Any, count: int = MAX_RULES) -> dict[str, Any]:
    """The same rule for so many signals, sound or not."""
    return on_wire({f"s{number}": rule for number in range(count)})


def long_names(wrong: str) -> dict[str, Any]:
    """Rules with long names that are alike, and each with the name of another rule that does not exist."""
    names = [f"{'abc' * 65}{number}" for number in range(200)]
    return on_wire({name: {"strategy": "replicate", "backward": wrong} for name in names})


AXES: list[Any] = [{"strategy": "data_parallel", "mesh_axis": f"a{number}"} for number in range(8)]
PIPELINE: dict[str, Any] = {"strategy": "pipeline_parallel", "stages": [[0]], "microbatches": 2}
SOUND: dict[str, dict[str, Any]] = {
    "replicate": many({"strategy": "replicate"}),
    "hints": many({"compile": True, "device": "cpu"}),
    "tensor parallel": many({"strategy": "tensor_parallel", "dimension": 0, "backward": "s7"}),
    "shards": many({"shard": {"axis": 0, "workers": [0]}}),
    "pipelines": many(PIPELINE),
    "axes": {**many(AXES, 512), "config": {**many(AXES, 512)["config"], "mesh": {f"a{n}": 1 for n in range(8)}}},
    "patterns": on_wire({f"{'*n' * 95}*{n}": {"strategy": "auto"} for n in range(MAX_PATTERNS)}),
    "deterministic": on_wire(many({"strategy": "data_parallel"})["config"]["sharding_config"], deterministic=True),
}
"""Configs of legal size that hold on one worker."""
WRONG: dict[str, dict[str, Any]] = {
    "an unknown rule": many({"strategy": "replicate", "backward": "unknown"}),
    "an unknown rule like others": long_names("acb" * 65),
    "an unknown rule of a long name": long_names("b" + "abc" * 66),
    "an unknown key": many({"oops": 1}),
    "unknown keys": many({f"k{number}": 1 for number in range(30_000)}, 1),
    "unknown keys at the top": on_wire({}, **{f"k{number}": 1 for number in range(30_000)}),
    "no rules": many(3),
    "a long list of no rules": many([3] * 60_000, 1),
    "too many": many({}, 20_000),
    "too many axes": on_wire({}, mesh={f"{number}": "x" for number in range(20_000)}),
    "places": {"config": {}, "mesh_where": "a", "where": ["a"] * 60_000},
    "no workers": many({"shard": {"axis": 0, "workers": ["x"] * MAX_NAMED_WORKERS}}, 15),
    "no stages": many({**PIPELINE, "stages": [["x"] * MAX_NAMED_WORKERS] * 15}, 1),
    "no worker": many({"shard": {"axis": 0, "workers": [*range(MAX_NAMED_WORKERS)]}}, 15),
    "stages of one worker": many({**PIPELINE, "stages": [[70_000 + n] for n in range(MAX_NAMED_WORKERS)]}, 9),
    "stages of many workers": many({**PIPELINE, "stages": [[*range(MAX_NAMED_WORKERS)]] * 15}, 1),
    "pipelines": on_wire({f"s{n}": {**PIPELINE, "microbatches": n + 1} for n in range(MAX_RULES)}),
    "eight rules each": many([{"strategy": "data_parallel", "mesh_axis": "a"}] * 8, 512),
    "axes of no mesh": many(AXES, 512),
}
"""Configs of legal size that are refused."""


@pytest.mark.parametrize("kind", SOUND)
def test_a_config_is_read_and_resolved_in_turns(kind: str) -> None:
    """However many rules it has. Several in a row take their turns too."""
    each = started()
    assert most_steps(each, "c", *(m.Configure(number, SOUND[kind]) for number in (5, 6, 7))) < MAX_STEPS
    client = each.core.service.clients[b"c"]
    assert client.planner is not None
    assert client.planner.policy.table.keys() == SOUND[kind]["config"]["sharding_config"].keys()


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_config_is_refused_in_turns(kind: str) -> None:
    """Also one that is wrong everywhere. What the session had stays."""
    each = started(config=RULES | {"mesh": {"data": 1}})
    before = each.core.service.clients[b"c"].planner
    assert most_steps(each, "c", m.Configure(5, WRONG[kind])) < MAX_STEPS
    client = each.core.service.clients[b"c"]
    assert client.head is MessageState.FAILED
    assert client.planner is before
    assert client.change is None


@pytest.mark.parametrize("kind", SOUND)
def test_the_first_message_under_a_config_of_many_rules_takes_few_steps(kind: str) -> None:
    """What the service's config asks for is worked out in turns, when the first put or run needs a mesh."""
    each = Service(config=SOUND[kind]["config"])
    for name in ("c", "d"):
        each.client(name)
        run = m.Run(1, 1 << 60, [2], [], [], [])
        define = definition(instructions=[NEGATE])._replace(segment=1)
        put = m.Put(2, SPEC, ["s1"], False, bytes(VECTOR.nbytes))
        assert most_steps(each, name, put, define, run) < MAX_STEPS
        assert {2, 1 << 60} == each.table(name).keys()


@pytest.mark.parametrize("kind", SOUND)
def test_a_new_config_of_the_service_takes_few_steps(kind: str) -> None:
    """Many sessions follow it, with a config of their own or without."""
    each = started()
    for number in range(40):
        each.client(f"c{number}")
        each.put(1, f"c{number}")
    each.done()
    own = {"sharding_config": {"s1": {"strategy": "replicate"}}}
    assert isinstance(configure(each, own), m.Answer)
    reload = Reload(Config.from_plain(SOUND[kind]["config"]))
    assert most_steps(each, "c", reload) < MAX_STEPS
    rules = SOUND[kind]["config"]["sharding_config"].keys()
    tables = [client.planner.policy.table.keys() for client in each.core.service.clients.values() if client.planner]
    assert tables == [rules | {"s1"}] + [rules] * 40


SAID: dict[str, tuple[str, Callable[[], Any]]] = {
    "statistics": ("c", lambda: m.Ask(1, "statistics")),
    "devices": ("c", lambda: m.Ask(1, "devices")),
    "memory": ("c", lambda: m.Ask(1, "memory")),
    "why": ("c", lambda: m.Ask(1, "why 1 1")),
    "why nonsense": ("c", lambda: m.Ask(1, "why " + "9 " * 30_000)),
    "topic": ("c", lambda: m.Ask(1, "x" * 60_000)),
    "fetch": ("c", lambda: m.Fetch(1, 1)),
    "published": (
        "c",
        lambda: m.WriteSnapshot(1, "a", "0" * 16, [1] * MAX_IDS, [["x" * 256] * 64, -1, 16], bytes(1 << 22)),
    ),
    "snapshot": ("c", lambda: m.WriteSnapshot(1, "a", "0" * 16, [1] * MAX_IDS, [], bytes(1 << 22))),
    "confirm": ("c", lambda: m.ConfirmTensors(1, [1] * MAX_IDS)),
    "restore": ("c", lambda: m.Restore(9, SPEC, DEEP, 1, "a" * 10_000, "0" * 10_000, "k" * 20_000, [])),
    "snapshots": ("c", lambda: m.Ask(1, "snapshots")),
    "report": ("w0", lambda: m.SnapshotReport(1, ["k"] * 1000, ["f"] * 1000, bytes(1 << 23))),
    "loaded": ("w0", lambda: m.Loaded(1, 1, ["k"] * 1000)),
    "resume": ("c", lambda: m.Resume(1, 1)),
    "settled": ("c", lambda: m.Settled(1)),
    "request": ("c", lambda: m.RequestMark(True)),
    "mark taken": ("w0", lambda: m.MarkTaken(1, ["k"] * 1000, 1)),
    "mark restored": ("w0", lambda: m.MarkRestored(1, 1, ["k"] * 1000)),
    "parts packed": ("w0", lambda: m.PartsPacked(1, 1, 1, ["k"] * 1000)),
    "drop": ("c", lambda: m.Drop(1)),
    "options": ("c", lambda: m.Options({f"o{number}": 1 for number in range(5000)})),
    "done": ("w0", lambda: m.Done((1 << 63) - 1)),
    "poisoned": ("w0", lambda: m.Poisoned(1, 1, "k" * 100, "x" * 60_000)),
    "landed": ("w0", lambda: m.Landed(1, 1)),
    "part": ("w0", lambda: m.Part(1, ["k"] * 1000, False, bytes(1 << 16))),
    "linked": ("w0", lambda: m.Linked((1 << 63) - 1, (1 << 63) - 1, 1)),
    "holdings": ("w0", lambda: m.Holdings(1, {"holders": [[1, "net", 1, 1, 1, 1]] * 4096})),
    "unique id": ("w0", lambda: m.UniqueId(1, [0] * MAX_IDS, 1, bytes(1 << 14))),
    "events": ("w0", lambda: m.Events(1, 0, [t.encode_event(t.Gauges(1, 0, 1, 1, 1, 1, 1, 1, 1))] * MAX_WORKER_EVENTS)),
    "watch": ("t", lambda: m.Watch(t.TRACE, 0)),
    "cancel": ("t", lambda: m.Cancel(1, 99)),
    "drain": ("t", lambda: m.Drain(1, 99, True)),
    "control": ("t", lambda: m.ControlSession(1, 1, "weight" * 4000, "9" * 30_000)),
    "usage": ("t", lambda: m.AskUsage(1)),
    "own usage": ("c", lambda: m.Ask(1, "usage")),
    "reload": ("t", lambda: m.ReloadConfig(1)),
}


@pytest.mark.parametrize("said", SAID)
def test_any_other_message_takes_few_steps(said: str) -> None:
    """At the largest size that it may have."""
    each = started(capabilities=("cancel",))
    each.hello("t", "watcher")
    if said == "events":
        each.say("t", m.Watch(t.TRACE, 0))
    peer, message = SAID[said]
    assert most_steps(each, peer, message()) < MAX_STEPS
    for event in (Tick(), Publish(5)):
        assert counted_steps(lambda event=event: each.core.handle(event, each.now)) < MAX_STEPS  # type: ignore[misc]


# sessions with many tensors, all different, which are marked, go back or are written

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


def test_a_mark_of_many_tensors_is_taken_and_restored_in_turns() -> None:
    """Also when a worker looks for its part in the files of all, and when nobody has it at last."""
    each = service(2, config=RULES)
    unlike(each)
    assert steps_of(each, Tick()) < MAX_STEPS
    each.now += MARK_SECONDS
    assert steps_of(each, Tick()) < MAX_STEPS
    (taken,) = each.hears("w0", m.TakeMark)
    for name in ("w0", "w1"):
        assert most_steps(each, name, m.MarkTaken(taken.mark, [], 1)) < MAX_STEPS
    each.core.service.workers[b"w0"].facts["supervised"] = True
    assert steps_of(each, Lost(b"w0", "it ended", ended=True)) < MAX_STEPS
    each.join("w4", marks=True)
    client = each.core.service.clients[b"c"]
    assert most_steps(each, "c", m.Resume(client.number, taken.mark)) < MAX_STEPS
    assert most_steps(each, "w1", m.MarkRestored(taken.mark, client.number, [])) < MAX_STEPS
    for _ in range(2):
        assert all(entry.fault is None for entry in client.table.values()), "it waits for the last worker"
        assert (
            most_steps(each, "w4", m.MarkRestored(taken.mark, client.number, ["SnapshotError", "damaged"])) < MAX_STEPS
        )
    assert len(client.table) == MANY + 1
    assert all(entry.fault is not None for entry in client.table.values())


def said(each: Service, peer: str, message: Any) -> int:
    """The most steps that an event takes while a message is acted on, and what follows from it; peers hear what they are told."""
    return steps_of(each, Received(peer.encode(), codec.decode(codec.encode(message), codec.TO_DISPATCHER)))


def test_peers_send_what_a_new_machine_needs_of_many_tensors_in_turns() -> None:
    """Of each other tensor it had a part that nobody else has: that is lost."""
    each = Service(0, config=RULES, expected=2)
    for name in ("w0", "w1"):
        each.join(name, marks=True, mark_folder=name)
    each.client(resends=True)
    each.put(1)
    each.done()
    tensors = unlike(each)
    client = each.core.service.clients[b"c"]
    cut = ResidentPlacement((Shard(0),))
    lost = {*tensors[::2]}
    client.table.update((tensor, replace(client.table[tensor], resident=cut)) for tensor in lost)
    mark = settled_mark(each)
    each.core.service.workers[b"w0"].facts["supervised"] = True
    assert steps_of(each, Lost(b"w0", "it ended", ended=True)) < MAX_STEPS
    each.join("w4", marks=True, mark_folder="w4")
    client = each.core.service.clients[b"c"]
    assert said(each, "c", m.Resume(client.number, mark)) < MAX_STEPS
    assert said(each, "w1", m.MarkRestored(mark, client.number, [])) < MAX_STEPS
    for _ in range(2):
        assert said(each, "w4", m.MarkRestored(mark, client.number, ["SnapshotError", "gone"])) < MAX_STEPS
    sent = []
    while told := each.hears("w1", m.PackParts):
        for pack in told:
            sent += pack.tensors
            assert said(each, "w1", m.PartsPacked(client.number, pack.packed, 100, [])) < MAX_STEPS
        each.done()
    assert {*sent} == {1, *tensors} - lost
    assert said(each, "w4", m.MarkRestored(mark, client.number, [])) < MAX_STEPS
    assert {tensor for tensor, entry in client.table.items() if entry.fault is not None} == lost
    assert len(client.table) == MANY + 1


def copying(each: Service, count: int = 3 * COPIED_PER_TURN) -> ClientRecord:
    """The client, with so many tensors of which a mark is due: the first of them are copied."""
    unlike(each, count)
    each.event(Tick())
    each.now += MARK_SECONDS
    each.idle = False
    each.event(Tick())
    client = each.core.service.clients[b"c"]
    while client.recovery.copying is None:
        each.event(JobTurn())
    return client


def test_a_mark_copies_few_tensors_in_one_turn() -> None:
    """What its client says meanwhile waits, and the mark is of the place before that."""
    each = service(2, config=RULES)
    client = copying(each)
    recovery, position, before = client.recovery, client.recovery.over, dict(client.table)
    each.run(1, 1 << 60, [1], freed=[(1 << 50) + n for n in range(100)])
    copied, sizes = recovery.copying, [0]
    assert copied is not None
    while recovery.taking is None:
        sizes.append(len(copied))
        each.event(JobTurn())
    assert max(b - a for a, b in itertools.pairwise(sizes)) <= COPIED_PER_TURN
    mark = recovery.taking
    assert mark.table == before
    assert max(map(len, copied.parts)) <= COPIED_PER_TURN, "none grows beyond that"
    assert mark.position == position
    order = [type(told) for told in each.hears("w0", m.TakeMark, m.Execute)]
    each.idle = True
    each.event(Tick())
    assert (order + [type(told) for told in each.hears("w0", m.TakeMark, m.Execute)]) == [m.TakeMark, m.Execute]
    assert client.table.keys() == {*before, 1 << 60} - {(1 << 50) + n for n in range(100)}


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("supervised", [True, False])
def test_a_mark_is_given_up_whose_table_is_being_copied_when_a_worker_is_lost(returns: bool, supervised: bool) -> None:
    """Whether the session goes back, loses its tensors, or leaves as well."""
    each = service(2, config=RULES)
    client = copying(each)
    each.core.service.workers[b"w0"].facts["supervised"] = supervised
    each.event(Lost(b"w0", "it ended", ended=True))
    if not returns:
        each.event(Lost(b"c", "it ended", ended=True))
    each.idle = True
    each.event(Tick())
    assert client.recovery.copying is None
    assert not each.hears("w1", m.TakeMark)
    assert (b"c" in each.core.service.clients) == returns
    if returns:
        assert each.core.service.clients[b"c"].recovery.awaited == supervised


def test_who_writes_what_several_workers_hold_is_found_in_few_steps() -> None:
    """Of as many tensors as are looked at, no two of them alike."""
    each = Service(0, config=RULES, expected=2)
    for name in ("w0", "w1"):
        each.join(name, marks=True, mark_folder="one")
    each.client(resends=True)
    each.put(1)
    each.done()
    client = each.core.service.clients[b"c"]
    assert client.planner is not None
    resident = ResidentPlacement(client.planner.mesh.replicated)
    for n in range(MAX_SHARED_TENSORS - 1):
        client.table[n + 2] = Entry(spec(float32, (MIN_BYTES // 4 + n,)), client.planner.mesh.number, resident)
    each.now += MARK_SECONDS
    for _ in range(2):
        assert steps_of(each, Tick()) < MAX_STEPS
        each.now += MARK_SECONDS
    told = each.hears("w0", m.ShareMark)
    assert [tensor for share in told for tensor in share.tensors] == [*range(2, MAX_SHARED_TENSORS + 1)]


@pytest.mark.parametrize("whole", [True, False])
def test_a_worker_is_lost_in_turns_by_a_session_of_many_tensors(whole: bool) -> None:
    """Whether other workers have all of them or not. A second loss meanwhile comes to its end as well."""
    each = started(3, config={"mesh": {"data": 3}, "sharding_config": {}})
    tensors = unlike(each)
    client = each.core.service.clients[b"c"]
    if not whole:
        cut = ResidentPlacement((Shard(0),))
        client.table.update((tensor, replace(client.table[tensor], resident=cut)) for tensor in tensors)
    each.hears("c")
    assert steps_of(each, Lost(b"w1", "it ended", ended=True)) < MAX_STEPS
    assert [type(told) for told in each.hears("c")] == [m.PeerLost]
    assert {entry.fault is None for tensor, entry in client.table.items() if tensor != 1} == {whole}
    each.idle = False
    each.event(Lost(b"w0", "it ended", ended=True))
    each.event(JobTurn())
    assert client.loss is not None
    assert client.head is MessageState.WAITING_CONFIG
    each.event(Lost(b"w2", "it ended", ended=True))
    each.idle = True
    assert steps_of(each, Tick()) < MAX_STEPS
    assert [type(told) for told in each.hears("c")] == [m.PeerLost] * 2
    assert client.table.keys() >= {*tensors}
    assert all(entry.fault is not None for entry in client.table.values())
    assert not each.core.service.meshes


def test_a_client_that_takes_its_session_over_again_and_again_costs_few_steps() -> None:
    """What it had is made anew in turns, and freed in turns."""
    each = service(2, config=RULES)
    unlike(each)
    each.core.service.clients[b"c"].recovery.key = bytes(16)
    mark = settled_mark(each)
    for turn in range(3):
        facts = {"bulk": b"", "resends": True, "session_key": bytes(16), "mark": mark, "sent": 9}
        assert most_steps(each, f"c{turn}", m.Hello(m.VERSION, "client", facts)) < MAX_STEPS
        client = each.core.service.clients[f"c{turn}".encode()]
        assert most_steps(each, f"c{turn}", m.Resume(client.number, mark)) < MAX_STEPS
    for name in ("w0", "w1"):
        assert most_steps(each, name, m.MarkRestored(mark, client.number, [])) < MAX_STEPS
    assert len(client.table) == MANY + 1
    assert all(entry.fault is None for entry in client.table.values())


def test_fewer_workers_are_told_of_a_mark_in_turns() -> None:
    """Of many tensors in several messages, of which the last one says so."""
    each = service(3, config={"mesh": {"data": "auto"}, "sharding_config": {}})
    tensors = unlike(each)
    mark = settled_mark(each)
    each.event(Lost(b"w1", "it ended", ended=True))
    client = each.core.service.clients[b"c"]
    assert steps_of(each, Received(b"c", m.Resume(client.number, mark))) < MAX_STEPS
    told = each.hears("w0", m.RestoreParts)
    assert [tensor for part in told for tensor in part.tensors] == [1, *tensors]
    assert [part.more for part in told] == [True] * (len(told) - 1) + [False]
    assert len(told) == -(-(MANY + 1) // MAX_TENSORS_OF_PART)


@pytest.mark.parametrize("share", [[], [["b"], -1, 1]], ids=["own", "published"])
def test_a_snapshot_of_many_tensors_is_begun_in_turns(share: list[Any]) -> None:
    each = started()
    tensors = unlike(each, MAX_IDS)
    body = b'{"keys": [], "state": {}, "extra": {}}'
    assert most_steps(each, "c", m.WriteSnapshot(1, "a", "0" * 16, tensors, share, body)) < MAX_STEPS
    assert each.core.service.clients[b"c"].head is MessageState.DONE


def test_marks_are_not_written_for_more_than_half_of_the_time_however_urgent() -> None:
    """A session asks again as soon as it has one: the next waits as long as the dispatcher took to write its file."""
    each = Service(0, config=RULES, expected=2, cards=())
    for name in ("w0", "w1"):
        each.join(name, marks=True)
    each.client(resends=True, session_key=bytes(16))
    each.put(1)
    each.done()
    for turn in range(3):
        each.say("c", m.RequestMark(True))
        (taken,) = each.hears("w0", m.TakeMark)
        each.event(SessionWritten(taken.mark, None, 200_000_000))
        for name in ("w0", "w1"):
            each.say(name, m.MarkTaken(taken.mark, [], 1))
        each.say("c", m.RequestMark(True))
        assert not each.hears("w0", m.TakeMark), turn
        each.now += 0.3
        each.event(Tick())
        (taken,) = each.hears("w0", m.TakeMark)
        each.event(SessionWritten(taken.mark, None, 0))
        for name in ("w0", "w1"):
            each.say(name, m.MarkTaken(taken.mark, [], 1))


@pytest.mark.parametrize("resends", [True, False])
def test_a_worker_that_many_sessions_lose_is_lost_in_turns(resends: bool) -> None:
    """Each of them is only noted in the event in which it is lost; with fetches under way, and marks that are being written.
    No turn takes longer because there are more sessions, also when another worker comes."""
    events, turns = [], []
    for count in (60, 120):
        each = service(1)
        each.core.service.workers[b"w0"].facts["supervised"] = True
        for number in range(count):
            each.now += 1.0
            each.client(f"c{number}", resends=resends)
            each.put(1, f"c{number}")
            each.say(f"c{number}", *(m.Fetch(asked, 1) for asked in range(3)))
        each.done()
        each.event(Tick())
        each.idle = False
        events.append(counted_steps(lambda: each.told_by_event(Lost(b"w0", "it ended", ended=True))))  # noqa: B023
        turns.append(steps_of(each, JobTurn()))
        awaited = [client.recovery.awaited for client in each.core.service.clients.values()]
        assert sum(awaited) == 1 + count * resends
        for peer in [*each.core.service.clients]:
            client = each.core.service.clients[peer]
            each.say(peer.decode(), m.Resume(client.number, 0))
            each.put(2, peer.decode())
        hello = m.Hello(m.VERSION, "worker", {"address": "ipc:///w1", "bulk": b"", "device": "cpu", "marks": True})
        events.append(counted_steps(lambda: each.told_by_event(Received(b"w1", hello))))  # noqa: B023
        turns.append(steps_of(each, JobTurn()))
        assert len(each.hears("w1", m.Store)) == 1 + count
    lost, came, lost_by_more, came_to_more = events
    assert lost_by_more - lost < 60 * STEPS_PER_SESSION
    assert came_to_more - came < 60 * STEPS_PER_SESSION
    assert max(turns) < MAX_STEPS


@pytest.mark.parametrize(
    ("kind", "written"), [("instructions", False), ("instructions", True), ("views of other shapes", True)]
)
def test_a_plan_that_a_mark_has_is_made_known_again_in_turns(kind: str, written: bool) -> None:
    """Whether the mark is as it was taken, or as it was read from the file of a session."""
    each = service(2, config=RULES)
    define, run = FIRST_RUNS[kind][0], m.Run(7, 1 << 54, [1], [], [], [])
    most_steps(each, "c", define, run, run._replace(base=1 << 53), counted=False)
    each.done()
    before = each.core.service.clients[b"c"].misses.total()
    mark = settled_mark(each)
    client = each.core.service.clients[b"c"]
    if written:
        card = SessionCard(bytes(16), "alice", mark, {}, {})
        read = read_mark(b"".join(pack_session(card, client.recovery.marks[0], PackedParts())))
        read.config = read.base = each.core.service.config
        client.recovery.marks = [read]
    lose(each, "w0")
    each.join("w4", marks=True)
    client = each.core.service.clients[b"c"]
    assert steps_of(each, Received(b"c", m.Resume(client.number, mark))) < MAX_STEPS
    restore(each, mark)
    again = run._replace(base=1 << 55)
    assert most_steps(each, "c", again) < MAX_STEPS
    assert each.table()[again.base + max(client.segments[7].survivors)].fault is None  # type: ignore[union-attr]
    assert client.misses.total() == before, "it is not made anew"
