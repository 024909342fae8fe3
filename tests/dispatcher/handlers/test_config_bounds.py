"""Configs of legal size, sound or wrong, are read, resolved and followed in turns, each of few steps."""

from __future__ import annotations

from typing import Any

import pytest
from event_steps import (
    MAX_STEPS,
    NEGATE,
    SPEC,
    definition,
    many_tensors,
    most_steps,
)
from one_dispatcher import RULES, VECTOR, Service, configure, started

from gt.bounds import (
    MAX_NAMED_WORKERS,
    MAX_PATTERNS,
    MAX_RULES,
)
from gt.dispatcher.state.events import Reload
from gt.dispatcher.state.message_state import MessageState
from gt.sharding.config import Config
from gt.wire import messages as m


@pytest.mark.parametrize("mesh", [{"data": 1}, {"data": 2}])
def test_a_change_of_config_goes_through_many_tensors_in_turns(mesh: dict[str, int]) -> None:
    """On the mesh that they are on, and when they have to move."""
    each = started(2, config={"mesh": {"data": 1}, "sharding_config": {}})
    tensors = many_tensors(each, 20_000)
    config = {"config": {"mesh": mesh, "sharding_config": {}}, "mesh_where": "a.yaml:1", "where": []}
    assert most_steps(each, "c", m.Configure(1, config)) < MAX_STEPS
    assert each.table().keys() >= set(tensors)


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
