"""The sharding config: what is read, what is refused and in which words, and which mesh comes of it."""

import json
from itertools import pairwise
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gt.config import Config, ExplicitShard, Rule, load, parse
from gt.errors import ConfigError, GTError
from gt.strategies import ALLOWED, HINTS, STRATEGIES

RULE_KEYS = (
    "strategy, batch_split, dimension, replicas, stages, microbatches, schedule, shard,"
    " mesh_axis, backward, compile, device"
)
TAKES_HINTS = ", ".join(HINTS)
NAMES = ", ".join(STRATEGIES)
TOP = "mesh, sharding_config, deterministic, blocks"
A_RULE = "a mapping with strategy or shard, or a list of such mappings"

GOOD = """\
mesh: {data: 2, model: 2}
sharding_config:
  layer1: {strategy: tensor_parallel, dimension: 0, replicas: 2}
  layer2: {strategy: data_parallel, batch_split: 2}
  head:
    strategy: replicate
    compile: true
  ffn:
    shard: {axis: 1, workers: [0, 1]}
    backward: ffn_backward
  ffn_backward:
    shard:
      axis: 0
      workers:
        - 1
        - 0
"""


def rules(*lines: str) -> str:
    return "sharding_config:\n" + "\n".join(f"  {line}" for line in lines)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml")
    return str(caught.value)


# Reading.


def test_a_config_says_what_its_file_says() -> None:
    config = parse(GOOD, "configs/x.yaml")
    assert config.mesh == {"data": 2, "model": 2}
    assert list(config.rules) == ["layer1", "layer2", "head", "ffn", "ffn_backward"]
    assert config.rules["layer1"][0].strategy == "tensor_parallel"
    assert config.rules["layer1"][0].dimension == 0
    assert config.rules["layer1"][0].replicas == 2
    assert config.rules["layer2"][0].batch_split == 2
    assert config.rules["head"][0].compile is True
    assert config.rules["ffn"][0].shard == ExplicitShard(axis=1, workers=(0, 1))
    assert config.rules["ffn"][0].backward == "ffn_backward"
    assert config.rules["ffn_backward"][0].shard == ExplicitShard(axis=0, workers=(1, 0))


def test_each_rule_knows_the_line_of_its_key() -> None:
    config = parse(GOOD, "configs/x.yaml")
    assert config.mesh_where == "configs/x.yaml:1"
    assert [rule.where for _, rule in config.each()] == [f"configs/x.yaml:{line}" for line in (3, 4, 5, 8, 11)]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "mesh:\nsharding_config:\n", "{}"])
def test_a_file_that_says_nothing_is_the_empty_config(text: str) -> None:
    assert parse(text).to_plain() == Config().to_plain()
    assert parse(text).rules == Config().rules == {}
    assert parse(text).mesh is Config().mesh is None


def test_a_rule_may_be_only_hints() -> None:
    rule = parse(rules("a: {compile: false}")).rules["a"][0]
    assert (rule.strategy, rule.shard, rule.compile, rule.axis) == (None, None, False, None)


def test_an_alias_repeats_a_rule_and_each_has_its_own_line() -> None:
    config = parse(rules("a: &tp {strategy: tensor_parallel}", "b: *tp"), "x.yaml")
    assert config.rules["a"][0].strategy == config.rules["b"][0].strategy == "tensor_parallel"
    assert [rule.where for _, rule in config.each()] == ["x.yaml:2", "x.yaml:3"]


@pytest.mark.parametrize(
    ("line", "axis"),
    [
        ("a: {strategy: data_parallel}", "data"),
        ("a: {strategy: tensor_parallel}", "model"),
        ("a: {strategy: tensor_parallel, mesh_axis: data}", "data"),
        ("a: {strategy: replicate}", None),
        ("a: {shard: {axis: 0, workers: [0]}}", None),
    ],
)
def test_the_axis_of_a_rule_is_its_own_or_its_strategys(line: str, axis: str | None) -> None:
    assert parse(rules(line)).rules["a"][0].axis == axis


def test_a_config_cannot_be_changed() -> None:
    config = parse(GOOD)
    with pytest.raises(ValidationError, match="frozen"):
        config.mesh = None  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.rules["layer1"][0].dimension = 1  # type: ignore[misc]


def test_plain_values_read_like_the_yaml() -> None:
    config = Config.from_plain({"sharding_config": {"a": {"strategy": "data_parallel"}}})
    assert config.to_plain() == parse(rules("a: {strategy: data_parallel}")).to_plain()
    assert config.rules["a"][0].where == "<config>"
    with pytest.raises(ConfigError, match=r"^call: sharding_config\.a: 3 is not a mapping; allowed: "):
        Config.from_plain({"sharding_config": {"a": 3}}, "call")


# Refusing.

BAD: dict[str, tuple[str, str]] = {
    "a word": ("hello", f"x.yaml:1: 'hello' is not a mapping; allowed: {ALLOWED['']}"),
    "a list": ("- mesh", f"x.yaml:1: a list is not a mapping; allowed: {ALLOWED['']}"),
    "no YAML": (
        "mesh:\n  data: 2: 3",
        "x.yaml:2: not YAML that can be read: mapping values are not allowed here; allowed: a YAML mapping",
    ),
    "a tab": (
        "mesh:\n\tdata: 2",
        "x.yaml:2: not YAML that can be read: found character '\\t' that cannot start any token; allowed: a YAML mapping",
    ),
    "a control character": (
        "mesh:\n  data: \x07",
        "x.yaml:2: not YAML that can be read: U+0007: special characters are not allowed; allowed: a YAML mapping",
    ),
    "two documents": (
        "mesh:\n---\nmesh:",
        "x.yaml:2: not YAML that can be read: but found another document; allowed: a YAML mapping",
    ),
    "an unknown alias": (
        "mesh: *nowhere",
        "x.yaml:1: not YAML that can be read: found undefined alias 'nowhere'; allowed: a YAML mapping",
    ),
    "too deep": (
        "[" * 1000,
        "x.yaml:1: not YAML that can be read: nested deeper than 16; allowed: a YAML mapping",
    ),
    "an object": (
        "mesh: !!python/object:os.system {}",
        "x.yaml:1: mesh: the tag 'tag:yaml.org,2002:python/object:os.system' has no meaning here; allowed: plain values",
    ),
    "a tagged scalar": ("mesh: !env HOME", "x.yaml:1: mesh: 'HOME' has no meaning here; allowed: plain values"),
    "a set": (
        "mesh: !!set {a, b}",
        "x.yaml:1: mesh: the tag 'tag:yaml.org,2002:set' has no meaning here; allowed: plain values",
    ),
    "a month 13": ("mesh: 2024-13-01", "x.yaml:1: mesh: '2024-13-01' has no meaning here; allowed: plain values"),
    "a merge": (
        rules("a: &a {compile: true}", "b: {<<: *a}"),
        "x.yaml:3: sharding_config.b: '<<' has no meaning here; allowed: plain values",
    ),
    "a key that is no name": (
        rules("on: {compile: true}"),
        "x.yaml:2: sharding_config: the key true is not a name; allowed: names, in quotes where YAML takes them for something else",
    ),
    "a key that is a list": (
        "[a]: 1",
        "x.yaml:1: the key a list is not a name; allowed: names, in quotes where YAML takes them for something else",
    ),
    "a key given twice": (
        rules("a: {compile: true}", "b: {compile: true}", "a: {compile: false}"),
        "x.yaml:4: sharding_config.a: also given at x.yaml:2; allowed: each key once",
    ),
    "an alias of itself": (
        "mesh: &a [*a]",
        "x.yaml:1: mesh[0]: more than 100000 values, or an alias of itself; allowed: 1 to 16 levels of plain values",
    ),
    "an unknown key at the top": (
        "mesh: {data: 2}\nshardin_config: {}",
        "x.yaml:2: shardin_config: unknown key, did you mean sharding_config?; allowed: " + TOP,
    ),
    "an unknown key like no other": ("colour: red", f"x.yaml:1: colour: unknown key; allowed: {TOP}"),
    "rules in a list": (
        "sharding_config: [a, b]",
        f"x.yaml:1: sharding_config: a list is not a mapping; allowed: {ALLOWED['sharding_config']}",
    ),
    "a mesh in a list": ("mesh: [2, 2]", f"x.yaml:1: mesh: a list is not a mapping; allowed: {ALLOWED['mesh']}"),
    "an empty mesh": ("mesh: {}", f"x.yaml:1: mesh: is empty; allowed: {ALLOWED['mesh']}"),
    "a mesh of nine axes": (
        "mesh: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1, i: 1}",
        f"x.yaml:1: mesh: has more than 8 entries; allowed: {ALLOWED['mesh']}",
    ),
    "a mesh axis of size 0": ("mesh:\n  data: 0", "x.yaml:2: mesh.data: 0 is too small; allowed: an integer >= 1"),
    "a mesh axis of size true": (
        "mesh: {data: true}",
        "x.yaml:1: mesh.data: true is not an integer; allowed: an integer >= 1",
    ),
    "a mesh axis of size 2.0": (
        "mesh: {data: 2.0}",
        "x.yaml:1: mesh.data: 2.0 is not an integer; allowed: an integer >= 1",
    ),
    "a mesh axis of no size": (
        "mesh: {data: }",
        "x.yaml:1: mesh.data: nothing is not an integer; allowed: an integer >= 1",
    ),
    "a mesh axis far too large": (
        "mesh: {data: 99999999999}",
        "x.yaml:1: mesh.data: 99999999999 is too large; allowed: an integer >= 1 and <= 2147483647",
    ),
    "a mesh axis of many digits": (
        "mesh: {data: 1" + "0" * 100 + "}",
        "x.yaml:1: mesh.data: an integer of many digits is too large; allowed: an integer >= 1 and <= 2147483647",
    ),
    "a mesh axis without a proper name": (
        "mesh: {2d: 1}",
        "x.yaml:1: mesh.2d: '2d' is not a name; allowed: a name of letters, digits and _, not starting with a digit",
    ),
    "a signal without a name": (
        rules("'': {compile: true}"),
        "x.yaml:2: sharding_config.'': '' is not a name; allowed: a name of 1 to 200 printable characters",
    ),
    "a rule that is no mapping": (
        rules("a: data_parallel"),
        "x.yaml:2: sharding_config.a: 'data_parallel' is not a mapping; allowed: " + A_RULE,
    ),
    "a rule that is missing": (
        rules("a:"),
        "x.yaml:2: sharding_config.a: nothing is not a mapping; allowed: " + A_RULE,
    ),
    "a rule that is empty": (
        rules("a: {}"),
        "x.yaml:2: sharding_config.a: the rule is empty; allowed: " + A_RULE,
    ),
    "an unknown strategy": (
        rules("a:", "  strategy: zero"),
        f"x.yaml:3: sharding_config.a.strategy: 'zero' is not a strategy; allowed: {NAMES}",
    ),
    "a misspelt strategy": (
        rules("a: {strategy: data_paralel}"),
        "x.yaml:2: sharding_config.a.strategy: 'data_paralel' is not a strategy, did you mean data_parallel?;"
        f" allowed: {NAMES}",
    ),
    "a strategy that is a number": (
        rules("a: {strategy: 3}"),
        f"x.yaml:2: sharding_config.a.strategy: 3 is not a strategy; allowed: {NAMES}",
    ),
    "no strategy": (
        rules("a: {strategy: }"),
        f"x.yaml:2: sharding_config.a.strategy: nothing is given; allowed: {NAMES}",
    ),
    "an unknown option": (
        rules("a:", "  strategy: tensor_parallel", "  dimensoin: 0"),
        f"x.yaml:4: sharding_config.a.dimensoin: unknown key, did you mean dimension?; allowed: {RULE_KEYS}",
    ),
    "the place as an option": (
        rules("a: {compile: true, where: here}"),
        f"x.yaml:2: sharding_config.a.where: unknown key; allowed: {RULE_KEYS}",
    ),
    "a dimension that is a word": (
        rules("layer1:", "  strategy: tensor_parallel", "  dimension: zero"),
        "x.yaml:4: sharding_config.layer1.dimension: 'zero' is not an integer; allowed: an integer >= 0",
    ),
    "a dimension in quotes": (
        rules("a: {strategy: tensor_parallel, dimension: '0'}"),
        "x.yaml:2: sharding_config.a.dimension: '0' is not an integer; allowed: an integer >= 0",
    ),
    "a dimension from the end": (
        rules("a: {strategy: tensor_parallel, dimension: -1}"),
        "x.yaml:2: sharding_config.a.dimension: -1 is too small; allowed: an integer >= 0",
    ),
    "no copies": (
        rules("a: {strategy: tensor_parallel, replicas: 0}"),
        "x.yaml:2: sharding_config.a.replicas: 0 is too small; allowed: an integer >= 1",
    ),
    "half a part": (
        rules("a: {strategy: data_parallel, batch_split: 0.5}"),
        "x.yaml:2: sharding_config.a.batch_split: 0.5 is not an integer; allowed: an integer >= 1",
    ),
    "an option without its value": (
        rules("a:", "  strategy: data_parallel", "  batch_split:"),
        "x.yaml:4: sharding_config.a.batch_split: nothing is given; allowed: an integer >= 1",
    ),
    "a compile that is a number": (
        rules("a: {compile: 1}"),
        "x.yaml:2: sharding_config.a.compile: 1 is not a boolean; allowed: true or false",
    ),
    "an option of another strategy": (
        rules("a: {strategy: data_parallel, dimension: 0}"),
        "x.yaml:2: sharding_config.a.dimension: the strategy data_parallel does not take it;"
        f" allowed: batch_split, {TAKES_HINTS} (the strategies tensor_parallel and sequence_parallel take dimension)",
    ),
    "an option of a strategy that takes none": (
        rules("a: {strategy: replicate, batch_split: 2}"),
        "x.yaml:2: sharding_config.a.batch_split: the strategy replicate does not take it;"
        f" allowed: {TAKES_HINTS} (the strategy data_parallel takes batch_split)",
    ),
    "an option without a strategy": (
        rules("a: {dimension: 0}"),
        "x.yaml:2: sharding_config.a.dimension: a rule of hints does not take it;"
        f" allowed: {TAKES_HINTS} (the strategies tensor_parallel and sequence_parallel take dimension)",
    ),
    "an option beside the explicit form": (
        rules("a: {shard: {axis: 0, workers: [0]}, replicas: 2}"),
        "x.yaml:2: sharding_config.a.replicas: the explicit form does not take it;"
        f" allowed: {TAKES_HINTS} (the strategy tensor_parallel takes replicas)",
    ),
    "strategy and shard": (
        rules("a:", "  strategy: replicate", "  shard: {axis: 0, workers: [0]}"),
        "x.yaml:4: sharding_config.a.shard: given beside the strategy replicate; allowed: either strategy or shard",
    ),
    "a shard that is a number": (
        rules("a: {shard: 1}"),
        "x.yaml:2: sharding_config.a.shard: 1 is not a mapping; allowed: a mapping with axis and workers",
    ),
    "a shard without workers": (
        rules("a: {shard: {axis: 1}}"),
        "x.yaml:2: sharding_config.a.shard.workers: is missing; allowed: a list of distinct integers >= 0",
    ),
    "a shard with a dimension": (
        rules("a: {shard: {axis: 0, worker: [0], workers: [0]}}"),
        "x.yaml:2: sharding_config.a.shard.worker: unknown key, did you mean workers?; allowed: axis, workers",
    ),
    "a shard on no workers": (
        rules("a: {shard: {axis: 0, workers: []}}"),
        "x.yaml:2: sharding_config.a.shard.workers: is empty; allowed: a list of distinct integers >= 0",
    ),
    "a shard on one worker without a list": (
        rules("a: {shard: {axis: 0, workers: 0}}"),
        "x.yaml:2: sharding_config.a.shard.workers: 0 is not a list; allowed: a list of distinct integers >= 0",
    ),
    "a worker that is a word": (
        rules("a:", "  shard:", "    axis: 0", "    workers:", "      - 0", "      - gpu1"),
        "x.yaml:7: sharding_config.a.shard.workers[1]: 'gpu1' is not an integer; allowed: an integer >= 0",
    ),
    "a worker below 0": (
        rules("a: {shard: {axis: 0, workers: [-1]}}"),
        "x.yaml:2: sharding_config.a.shard.workers[0]: -1 is too small; allowed: an integer >= 0",
    ),
    "a worker twice": (
        rules("a: {shard: {axis: 0, workers: [1, 0, 1]}}"),
        "x.yaml:2: sharding_config.a.shard.workers: names a worker twice; allowed: a list of distinct integers >= 0",
    ),
    "a backward that names no rule": (
        rules("ffn: {compile: true, backward: ffn_backwards}", "ffn_backward: {compile: true}"),
        "x.yaml:2: sharding_config.ffn.backward: there is no rule 'ffn_backwards', did you mean ffn_backward?;"
        " allowed: ffn, ffn_backward",
    ),
    "a mesh axis that is no name": (
        rules("a: {mesh_axis: a b}"),
        "x.yaml:2: sharding_config.a.mesh_axis: 'a b' is not a name; allowed: the name of a mesh axis",
    ),
    "a mesh axis that the mesh lacks": (
        "mesh: {x: 2, y: 2}\n" + rules("a: {strategy: data_parallel, mesh_axis: z}"),
        "x.yaml:3: sharding_config.a.mesh_axis: the mesh {x: 2, y: 2} has no axis 'z'; allowed: x, y",
    ),
    "a strategy whose axis the mesh lacks": (
        "mesh: {x: 2, y: 2}\n" + rules("a: {strategy: data_parallel}"),
        "x.yaml:3: sharding_config.a.strategy: the mesh {x: 2, y: 2} has no axis 'data';"
        " allowed: a mesh with that axis, or mesh_axis: x or y",
    ),
    "a batch_split that the mesh contradicts": (
        "mesh: {data: 2, model: 2}\n" + rules("a: {strategy: data_parallel, batch_split: 4}"),
        "x.yaml:3: sharding_config.a.batch_split: 4 contradicts the mesh {data: 2, model: 2}, whose axis data has size 2;"
        " allowed: 2",
    ),
    "replicas that the mesh contradicts": (
        "mesh: {model: 4}\n" + rules("a: {strategy: tensor_parallel, replicas: 2}"),
        "x.yaml:3: sharding_config.a.replicas: 2 contradicts the mesh {model: 4}, which holds 1 copy of its axis model;"
        " allowed: 1",
    ),
}

PIPE = "strategy: pipeline_parallel, stages: [[0, 1], [2, 3]]"
STAGES = "a list of lists of workers, all equally long, no worker twice"
BAD |= {
    "no stages": (
        rules("a: {strategy: pipeline_parallel}"),
        f"x.yaml:2: sharding_config.a.stages: is missing; allowed: {STAGES}",
    ),
    "an empty list of stages": (
        rules("a: {strategy: pipeline_parallel, stages: []}"),
        f"x.yaml:2: sharding_config.a.stages: is empty; allowed: {STAGES}",
    ),
    "a stage without workers": (
        rules("a: {strategy: pipeline_parallel, stages: [[], []]}"),
        "x.yaml:2: sharding_config.a.stages[0]: is empty; allowed: a list of workers, all stages equally long",
    ),
    "stages that are no lists": (
        rules("a: {strategy: pipeline_parallel, stages: [0]}"),
        "x.yaml:2: sharding_config.a.stages[0]: 0 is not a list; allowed: a list of workers, all stages equally long",
    ),
    "a stage of a word": (
        rules("a: {strategy: pipeline_parallel, stages: [[gpu]]}"),
        "x.yaml:2: sharding_config.a.stages[0][0]: 'gpu' is not an integer; allowed: an integer >= 0",
    ),
    "stages of unequal length": (
        rules("a:", "  strategy: pipeline_parallel", "  stages:", "    - [0, 1]", "    - [2]"),
        "x.yaml:6: sharding_config.a.stages[1]: has 1 workers, the first stage 2;"
        " allowed: a list of workers, all stages equally long",
    ),
    "stages that overlap": (
        rules("a:", "  strategy: pipeline_parallel", "  stages:", "    - [0, 1]", "    - [1, 2]"),
        "x.yaml:6: sharding_config.a.stages[1]: names worker 1, as does stage 0: stages do not overlap;"
        f" allowed: {STAGES}",
    ),
    "a stage with a worker twice": (
        rules("a: {strategy: pipeline_parallel, stages: [[1, 1]]}"),
        f"x.yaml:2: sharding_config.a.stages[0]: names worker 1 twice; allowed: {STAGES}",
    ),
    "an unknown schedule": (
        rules("a: {" + PIPE + ", schedule: 1f1c}"),
        "x.yaml:2: sharding_config.a.schedule: '1f1c' is not a schedule, did you mean 1f1b?; allowed: gpipe, 1f1b",
    ),
    "microbatches that differ": (
        rules("a: {" + PIPE + ", microbatches: 4}", "b: {" + PIPE + "}"),
        "x.yaml:3: sharding_config.b.microbatches: 1 contradicts 4 of sharding_config.a (x.yaml:2);"
        " allowed: 4: all pipelines of a session run in one order",
    ),
    "schedules that differ": (
        rules("a: {" + PIPE + "}", "b: {" + PIPE + ", schedule: gpipe}"),
        "x.yaml:3: sharding_config.b.schedule: gpipe contradicts 1f1b of sharding_config.a (x.yaml:2);"
        " allowed: 1f1b: all pipelines of a session run in one order",
    ),
    "pipelines on two axes": (
        rules("a: {" + PIPE + "}", "b: {" + PIPE + ", mesh_axis: time}"),
        "x.yaml:3: sharding_config.b.mesh_axis: time contradicts stages of sharding_config.a (x.yaml:2);"
        " allowed: stages: all pipelines of a session run in one order",
    ),
    "an unknown device": (
        rules("a: {device: gpu}"),
        "x.yaml:2: sharding_config.a.device: 'gpu' is not a device; allowed: cpu, cuda",
    ),
    "a device beside workers": (
        rules("a: {shard: {axis: 0, workers: [0]}, device: cpu}"),
        "x.yaml:2: sharding_config.a.device: given beside shard.workers, which names the workers;"
        " allowed: either device or shard.workers",
    ),
    "a device beside stages": (
        rules("a: {" + PIPE + ", device: cpu}"),
        "x.yaml:2: sharding_config.a.device: given beside stages, which names the workers;"
        " allowed: either device or stages",
    ),
    "a list of no rules": (rules("a: []"), f"x.yaml:2: sharding_config.a: is empty; allowed: {A_RULE}"),
    "a list with something else": (
        rules("a:", "  - {strategy: fully_sharded}", "  - 3"),
        f"x.yaml:4: sharding_config.a[1]: 3 is not a mapping; allowed: {A_RULE}",
    ),
    "a mistake in a list": (
        rules("a:", "  - {strategy: fully_sharded}", "  - strategy: tensor_parallel", "    dimension: -1"),
        "x.yaml:5: sharding_config.a[1].dimension: -1 is too small; allowed: an integer >= 0",
    ),
    "two rules of a list on one axis": (
        rules("a:", "  - {strategy: fully_sharded}", "  - {strategy: data_parallel}"),
        "x.yaml:4: sharding_config.a[1]: speaks of the mesh axis data, as does a[0]; allowed: one rule for each mesh axis",
    ),
    "a rule of a list that speaks of every axis": (
        rules("a:", "  - {strategy: fully_sharded}", "  - {strategy: replicate}"),
        "x.yaml:4: sharding_config.a[1]: replicate speaks of no one mesh axis, beside other rules;"
        " allowed: strategies that speak of one mesh axis each, their own or mesh_axis",
    ),
    "two words about gradients in a list": (
        rules(
            "a:",
            "  - {strategy: fully_sharded, backward: b}",
            "  - {strategy: tensor_parallel, backward: a}",
            "b: {compile: true}",
        ),
        "x.yaml:4: sharding_config.a[1].backward: also given at a[0]; allowed: once in a list of rules",
    ),
    "deterministic, more or less": (
        "deterministic: 1",
        "x.yaml:1: deterministic: 1 is not a boolean; allowed: true or false",
    ),
    "blocks for nothing": (
        "blocks: 8",
        "x.yaml:1: blocks: given without deterministic: true; allowed: deterministic: true beside it",
    ),
    "six blocks": (
        "deterministic: true\nblocks: 6",
        "x.yaml:2: blocks: 6 is not a power of two; allowed: a power of two up to 4096",
    ),
    "too many blocks": (
        "deterministic: true\nblocks: 8192",
        "x.yaml:2: blocks: 8192 is too large; allowed: a power of two up to 4096",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_file_line_key_and_what_is_allowed(name: str) -> None:
    text, message = BAD[name]
    assert refusal(text) == message


def test_all_mistakes_are_told_in_the_order_of_their_lines() -> None:
    message = refusal(rules("b: {strategy: x}", "a: {dimension: zero}", "c: {oops: 1}", "d:"))
    assert [line.split(": ")[:2] for line in message.splitlines()] == [
        ["x.yaml:2", "sharding_config.b.strategy"],
        ["x.yaml:3", "sharding_config.a.dimension"],
        ["x.yaml:4", "sharding_config.c.oops"],
        ["x.yaml:5", "sharding_config.d"],
    ]


def test_of_many_mistakes_the_rest_is_counted() -> None:
    lines = refusal(rules(*(f"s{index}:" for index in range(25)))).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "and 15 more"


def test_aliases_that_blow_up_are_refused() -> None:
    names = "abcdefghij"
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"{name}: &{name} [{', '.join(['*' + last] * 10)}]" for last, name in pairwise(names)]
    assert "more than 100000 values" in refusal("\n".join(lines))


def test_a_document_of_more_than_a_mebibyte_is_refused_unread() -> None:
    assert refusal("#" * (2**20 + 1)) == "x.yaml: larger than 1048576 bytes; allowed: a YAML file up to that size"
    assert parse("#" * 2**20) == Config()


@given(st.text(max_size=60) | st.text("ab:{}[]&*!|>-#'\"?,<\n 012", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except ConfigError as error:
        assert str(error).startswith("<config>:")  # noqa: PT017 (refusing is one of two right answers)


# Files.


def test_load_reads_a_file_also_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load(path).to_plain() == parse(GOOD).to_plain()
    assert load(str(path)).rules["layer1"][0].where == f"{path}:3"


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    for path, problem in [(tmp_path / "none.yaml", "No such file or directory"), (tmp_path, "Is a directory")]:
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert str(caught.value) == f"{path}: cannot be read: {problem}; allowed: a YAML file"


def test_a_file_that_is_not_text_or_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    for data, message in [
        (b"mesh:\n  data: \xff", f"{path}:2: not text in UTF-8; allowed: a YAML file"),
        (b"\xff" * (2**20 + 1), f"{path}: larger than 1048576 bytes; allowed: a YAML file up to that size"),
    ]:
        path.write_bytes(data)
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert str(caught.value) == message


# Meshes.

EXPLICIT = rules("a: {shard: {axis: 1, workers: [0, 3]}}")


@pytest.mark.parametrize(
    ("text", "workers", "mesh"),
    [
        ("", 4, {"workers": 1}),
        (rules("a: {compile: true}"), 4, {"workers": 1}),
        ("mesh: {data: 2, model: 2}", 4, {"data": 2, "model": 2}),
        ("mesh: {data: 2, model: 2}", 7, {"data": 2, "model": 2}),
        ("mesh: {model: 2, data: 1}", 2, {"model": 2, "data": 1}),
        (rules("a: {strategy: data_parallel}"), 5, {"data": 5}),
        (rules("a: {strategy: data_parallel, batch_split: 2}"), 5, {"data": 2}),
        (rules("a: {strategy: data_parallel}", "b: {strategy: data_parallel, batch_split: 3}"), 4, {"data": 3}),
        (rules("a: {strategy: data_parallel, mesh_axis: rows}"), 4, {"rows": 4}),
        (rules("a: {strategy: tensor_parallel}"), 3, {"model": 3}),
        (rules("a: {strategy: tensor_parallel, replicas: 1}"), 3, {"model": 3}),
        (rules("a: {strategy: tensor_parallel, replicas: 2}"), 4, {"replicas": 2, "model": 2}),
        (rules("a: {strategy: tensor_parallel, mesh_axis: data}", "b: {strategy: data_parallel}"), 4, {"data": 4}),
        (
            rules("a: {strategy: tensor_parallel, replicas: 2}", "b: {strategy: data_parallel}"),
            6,
            {"data": 2, "model": 3},
        ),
        (
            rules("a: {strategy: tensor_parallel}", "b: {strategy: data_parallel, batch_split: 2}"),
            5,
            {"data": 2, "model": 2},
        ),
        (
            rules("a: {strategy: tensor_parallel, replicas: 4}", "b: {strategy: data_parallel, batch_split: 2}"),
            8,
            {"replicas": 2, "data": 2, "model": 2},
        ),
        (rules("a: {strategy: replicate}"), 4, {"workers": 4}),
        (EXPLICIT, 4, {"workers": 4}),
        (EXPLICIT + "\n  b: {strategy: data_parallel}", 4, {"data": 4}),
        (GOOD, 4, {"data": 2, "model": 2}),
        (rules("a: {strategy: fully_sharded}"), 4, {"data": 4}),
        (rules("a: {strategy: sequence_parallel}", "b: {strategy: tensor_parallel}"), 4, {"model": 4}),
        (rules("a: {strategy: expert_parallel}"), 3, {"expert": 3}),
        (rules("a: {strategy: auto}"), 3, {"workers": 3}),
        (rules("a: {device: cpu}"), 3, {"workers": 3}),
        (rules("a: {strategy: pipeline_parallel, stages: [[0], [1]]}"), 5, {"stages": 2}),
        (rules("a: {" + PIPE + "}"), 5, {"stages": 2, "data": 2}),
        (rules("a: {" + PIPE + ", mesh_axis: data}"), 4, {"data": 2, "replicas": 2}),
        (rules("a: {" + PIPE + "}", "b: {strategy: tensor_parallel}"), 5, {"stages": 2, "model": 2}),
        (rules("a: {" + PIPE + "}", "b: {strategy: tensor_parallel, replicas: 2}"), 4, {"stages": 2, "model": 2}),
        (rules("b: {strategy: data_parallel}", "a: {" + PIPE + "}"), 4, {"stages": 2, "data": 2}),
        (
            rules(
                "a: {strategy: pipeline_parallel, stages: [[4, 5, 6, 7], [0, 1, 2, 3]]}",
                "b: [{strategy: data_parallel, batch_split: 2}, {strategy: tensor_parallel}]",
            ),
            9,
            {"stages": 2, "data": 2, "model": 2},
        ),
        (
            rules(
                "a: {strategy: pipeline_parallel, stages: [[0, 1], [2, 3]]}",
                "b: {strategy: pipeline_parallel, stages: [[2, 3], [4, 5]]}",
            ),
            6,
            {"stages": 3, "data": 2},
        ),
        ("mesh: {data: 2, stages: 2}\n" + rules("a: {strategy: pipeline_parallel, stages: [[1, 3], [2, 0]]}"), 4,
         {"data": 2, "stages": 2}),
    ],
)  # fmt: skip
def test_a_mesh_is_given_or_derived(text: str, workers: int, mesh: dict[str, int]) -> None:
    assert list(parse(text).mesh_for(workers).items()) == list(mesh.items())


ASK = "allowed: say it, for example mesh: {data: 2, model: 2}"


@pytest.mark.parametrize(
    ("text", "workers", "message"),
    [
        (
            "\nmesh: {data: 2, model: 2}",
            3,
            "x.yaml:2: mesh: {data: 2, model: 2} takes 4 workers, there are 3 workers; allowed: a mesh that takes at most 3",
        ),
        (
            rules("a: {strategy: data_parallel, batch_split: 2}"),
            1,
            "x.yaml:2: sharding_config.a.batch_split: 2 parts need as many workers, there is 1 worker; allowed: 1 to 1",
        ),
        (
            rules("a: {strategy: tensor_parallel, replicas: 4}"),
            6,
            "x.yaml:2: sharding_config.a.replicas: there are 6 workers, which 4 does not divide; allowed: 1, 2, 3, 6",
        ),
        (
            rules("a: {strategy: data_parallel}", "b: {strategy: tensor_parallel}"),
            4,
            f"x.yaml:2: mesh: nothing says how large the mesh axes data and model are; {ASK}",
        ),
        (
            rules("a: {strategy: data_parallel, batch_split: 3}", "b: {strategy: data_parallel, batch_split: 2}"),
            4,
            f"x.yaml:3: mesh: the mesh axis data would have size 2, by the rules before it 3; {ASK}",
        ),
        (
            rules("a: {strategy: data_parallel, batch_split: 4}", "b: {strategy: tensor_parallel, replicas: 2}"),
            4,
            "x.yaml:2: mesh: {data: 4, model: 2} takes 8 workers, there are 4 workers; allowed: a mesh that takes at most 4",
        ),
        (
            rules("a: {strategy: data_parallel, batch_split: 3}", "b: {strategy: tensor_parallel, replicas: 4}"),
            8,
            f"x.yaml:3: mesh: replicas is 4, but {{data: 3, model: 2}} holds 3 copies; {ASK}",
        ),
        (
            EXPLICIT,
            3,
            "x.yaml:2: sharding_config.a.shard.workers[1]: there is no worker 3, there are 3 workers; allowed: 0 to 2",
        ),
        (
            "mesh: {data: 2}\n" + EXPLICIT,
            4,
            "x.yaml:3: sharding_config.a.shard.workers[1]: there is no worker 3, the mesh is {data: 2}; allowed: 0 to 1",
        ),
        (
            rules("a: {" + PIPE + "}"),
            3,
            "x.yaml:2: sharding_config.a.stages: 2 stages of 2 take 4 workers, there are 3 workers;"
            " allowed: stages that take at most 3",
        ),
        (
            rules("a: {strategy: pipeline_parallel, stages: [[0], [4]]}"),
            4,
            "x.yaml:2: sharding_config.a.stages[1][0]: there is no worker 4, the mesh is {stages: 2}; allowed: 0 to 1",
        ),
        (
            rules("a: {strategy: pipeline_parallel, stages: [[0, 2], [1, 3]]}"),
            4,
            "x.yaml:2: sharding_config.a.stages[0]: [0, 2] are not the workers at one position of the axis stages of"
            " {stages: 2, data: 2}; allowed: [0, 1], [2, 3], in any order",
        ),
        (
            "mesh: {data: 2, stages: 2}\n" + rules("a: {" + PIPE + "}"),
            4,
            "x.yaml:3: sharding_config.a.stages[0]: [0, 1] are not the workers at one position of the axis stages of"
            " {data: 2, stages: 2}; allowed: [0, 2], [1, 3], in any order",
        ),
        (
            rules("a: {" + PIPE + "}", "b: {strategy: pipeline_parallel, stages: [[0], [1]]}"),
            4,
            "x.yaml:3: mesh: its stages have other numbers of workers than those of sharding_config.a; " + ASK,
        ),
        (
            rules("a: {strategy: pipeline_parallel, stages: [[0, 1, 2], [3, 4, 5]]}",
                  "b: {strategy: data_parallel, batch_split: 2}"),
            6,
            "x.yaml:2: mesh: each of 2 stages has 3 workers, but the rules make {stages: 2, data: 2}; " + ASK,
        ),
    ],
)  # fmt: skip
def test_a_mesh_that_does_not_fit_is_refused(text: str, workers: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml").mesh_for(workers)
    assert str(caught.value) == message


def test_a_mesh_needs_workers() -> None:
    with pytest.raises(ValueError, match="at least one worker, not 0"):
        Config().mesh_for(0)


RULES = st.one_of(
    st.builds(dict, strategy=st.sampled_from(["replicate", "auto", "fully_sharded", "sequence_parallel"])),
    st.builds(
        lambda stages, width, order: {
            "strategy": "pipeline_parallel",
            "stages": [[at * width + i for i in range(width)] for at in order if at < stages] or [[0]],
        },
        st.integers(1, 3), st.integers(1, 3), st.permutations(range(3)),
    ),
    st.fixed_dictionaries({"strategy": st.just("data_parallel")}, optional={"batch_split": st.integers(1, 6)}),
    st.fixed_dictionaries({"strategy": st.just("tensor_parallel")}, optional={"replicas": st.integers(1, 6)}),
    st.builds(
        lambda workers: {"shard": {"axis": 0, "workers": workers}}, st.lists(st.integers(0, 5), min_size=1, unique=True)
    ),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from("abcd"), RULES), st.integers(1, 12))
def test_a_mesh_never_takes_more_workers_than_there_are(plain: dict[str, object], workers: int) -> None:
    config = Config.from_plain({"sharding_config": plain})
    try:
        mesh = config.mesh_for(workers)
    except ConfigError:
        return
    size = 1
    for length in mesh.values():
        size *= length
    assert 1 <= size <= workers
    for _, rule in config.each():
        assert rule.axis is None or rule.axis in mesh
        assert rule.replicas is None or mesh["model"] * rule.replicas == size
        assert rule.batch_split in (None, mesh.get("data"))
        assert rule.shard is None or max(rule.shard.workers) < size
        assert rule.stages is None or next(iter(mesh)) == "stages"
    assert Config.from_wire(config.to_wire()) == config


# Between client and service.


def test_a_config_crosses_the_wire_with_its_places() -> None:
    config = parse(GOOD, "configs/x.yaml")
    arrived = Config.from_wire(msgpack.unpackb(msgpack.packb(config.to_wire())))
    assert arrived == config
    assert arrived.mesh_where == "configs/x.yaml:1"
    assert arrived.rules["ffn"][0].where == "configs/x.yaml:8"
    assert Config.from_wire(Config().to_wire()) == Config()


def test_several_rules_of_a_signal_cross_the_wire_each_with_its_line() -> None:
    text = rules(
        "a:", "  - strategy: fully_sharded", "  - {strategy: tensor_parallel, dimension: 1}", "b: {device: cpu}"
    )
    config = parse("deterministic: true\nblocks: 4\n" + text, "x.yaml")
    arrived = Config.from_wire(msgpack.unpackb(msgpack.packb(config.to_wire())))
    assert arrived == config
    assert [rule.where for _, rule in arrived.each()] == ["x.yaml:5", "x.yaml:6", "x.yaml:7"]
    assert arrived.block_count == 4
    over = arrived.overlay(parse(rules("b: [{strategy: auto}]"), "y.yaml"))
    assert [rule.where for _, rule in over.each()] == ["x.yaml:5", "x.yaml:6", "y.yaml:2"]
    assert over.block_count == 4
    assert over.overlay(parse("deterministic: false")).block_count == 0
    assert over.overlay(parse("deterministic: true")).block_count == 8


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {},
        {"config": {}},
        {"config": [], "mesh_where": "", "where": []},
        {"config": {}, "mesh_where": 1, "where": []},
        {"config": {}, "mesh_where": "", "where": {}},
        {"config": {}, "mesh_where": "", "where": [], "more": 1},
        {"config": {}, "mesh_where": "\n", "where": []},
        {"config": {}, "mesh_where": "x" * 5000, "where": []},
        {"config": {"sharding_config": {"a": {"compile": True}}}, "mesh_where": "", "where": []},
        {"config": {"sharding_config": {"a": {"compile": True}}}, "mesh_where": "", "where": [b"x:1"]},
        {"config": {"sharding_config": []}, "mesh_where": "", "where": []},
        {"config": {"sharding_config": {b"a": {"compile": True}}}, "mesh_where": "", "where": ["x:1"]},
        {"config": {"mesh": {1: 1}}, "mesh_where": "", "where": []},
        {"config": {"mesh": {"data": 1, "\n": 2}}, "mesh_where": "", "where": []},
        {"config": {7: 1}, "mesh_where": "", "where": []},
    ],
)
def test_what_to_wire_never_makes_is_refused(message: object) -> None:
    with pytest.raises(ConfigError, match="allowed: "):
        Config.from_wire(message)


def test_a_mistake_that_crossed_the_wire_still_names_the_file() -> None:
    message = parse(GOOD, "configs/x.yaml").to_wire()
    message["config"]["sharding_config"]["layer1"]["dimension"] = "zero"
    with pytest.raises(ConfigError, match=r"^configs/x\.yaml:3: sharding_config\.layer1\.dimension: 'zero' is not an"):
        Config.from_wire(message)


def test_the_clients_file_overrides_the_services_signal_by_signal() -> None:
    service = parse(
        "mesh: {data: 4}\n" + rules("a: {strategy: data_parallel}", "b: {strategy: replicate}"), "service.yaml"
    )
    client = parse(rules("b: {strategy: data_parallel}", "c: {compile: true}"), "client.yaml")
    both = service.overlay(client)
    assert {signal: (rule.strategy, rule.where) for signal, (rule,) in both.rules.items()} == {
        "a": ("data_parallel", "service.yaml:3"),
        "b": ("data_parallel", "client.yaml:2"),
        "c": (None, "client.yaml:3"),
    }
    assert (both.mesh, both.mesh_where) == ({"data": 4}, "service.yaml:1")
    assert service.overlay(Config()) == service
    assert Config().overlay(client).to_plain() == client.to_plain()


def test_the_clients_mesh_wins_and_contradictions_are_refused() -> None:
    service = parse("mesh: {data: 4}\n" + rules("a: {strategy: data_parallel, batch_split: 4}"), "service.yaml")
    assert service.overlay(parse("mesh: {data: 4, model: 2}")).mesh == {"data": 4, "model": 2}
    with pytest.raises(ConfigError, match=r"^service\.yaml:3: sharding_config\.a\.batch_split: 4 contradicts the mesh"):
        service.overlay(parse("mesh: {data: 2}", "client.yaml"))


def test_a_near_miss_of_a_signal_is_found() -> None:
    config = parse(GOOD)
    assert config.near_miss("layer_1") == "layer1"
    assert config.near_miss("layer1") is None
    assert config.near_miss("something") is None
    assert Config().near_miss("layer1") is None


def test_a_signal_that_a_pattern_is_for_is_no_slip() -> None:
    config = parse(rules("blocks.*: {compile: true}", "block.s: {compile: true}"))
    assert config.near_miss("blocks.3") is None
    assert config.near_miss("blocks3") == "block.s"


def test_names_that_are_alike_on_purpose_are_no_slip() -> None:
    """Layers are numbered, and modules of one model share the beginnings of their names."""
    config = parse(rules("layer1: {compile: true}", "blocks.0.attn: {compile: true}", "hidden.out: {compile: true}"))
    for signal in ("layer2", "blocks.1.attn", "blocks.0.norm", "blocks.0", "blocks.0.attn.proj", "hidden"):
        assert config.near_miss(signal) is None
    assert config.near_miss("layerr2") == "layer1"
    assert config.near_miss("hiden.out") == "hidden.out"


# For editors.


def test_the_json_schema_says_what_is_allowed() -> None:
    schema = Config.json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert list(schema["properties"]) == TOP.split(", ")
    rule = schema["$defs"]["Rule"]
    assert list(rule["properties"]) == RULE_KEYS.split(", ") == list(Rule.model_fields)
    assert rule["properties"]["strategy"]["enum"] == list(STRATEGIES)
    assert rule["properties"]["dimension"]["type"] == "integer"
    assert rule["additionalProperties"] is schema["additionalProperties"] is False
    assert "null" not in json.dumps(schema)


def test_every_option_belongs_to_a_strategy_or_to_all_rules() -> None:
    options = [option for strategy in STRATEGIES.values() for option in strategy.options]
    assert {"strategy", "shard", *options, *HINTS} == set(Rule.model_fields)
    assert not {*options} & {*HINTS}


def test_all_that_can_be_given_says_what_is_allowed() -> None:
    """Every key of the schema has its line in the table that errors quote."""
    keys = {f"sharding_config.*.{name}" for name in Rule.model_fields}
    keys |= {f"sharding_config.*.shard.{name}" for name in ExplicitShard.model_fields}
    keys |= {field.alias or name for name, field in Config.model_fields.items()}
    assert keys <= set(ALLOWED)
    assert ALLOWED["sharding_config.*.strategy"].split(", ") == list(STRATEGIES)


def test_a_config_error_is_one_of_gts_and_a_value_error() -> None:
    assert issubclass(ConfigError, GTError)
    assert issubclass(ConfigError, ValueError)
