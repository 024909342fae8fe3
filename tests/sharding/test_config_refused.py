"""Sharding configs that are refused, and in which words: file, line, key, what is wrong and what is allowed."""

from itertools import pairwise

import pytest
from config_samples import PIPE, RULE_KEYS, TOP, refusal, rules
from hypothesis import given
from hypothesis import strategies as st

from gt.errors import ConfigError
from gt.sharding.config import Config, parse
from gt.sharding.strategies import ALLOWED_TEXTS, HINT_KEYS, STRATEGIES

TAKES_HINTS = ", ".join(HINT_KEYS)
NAMES = ", ".join(STRATEGIES)
A_RULE = "a mapping with strategy or shard, or a list of such mappings"


BAD: dict[str, tuple[str, str]] = {
    "a word": ("hello", f"x.yaml:1: 'hello' is not a mapping; allowed: {ALLOWED_TEXTS['']}"),
    "a list": ("- mesh", f"x.yaml:1: a list is not a mapping; allowed: {ALLOWED_TEXTS['']}"),
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
    "a signal at the top": (
        "layer1: {shard: {axis: 0}}\nlayer2: [{strategy: data_parallel}]",
        f"x.yaml:1: layer1: unknown key, did you mean sharding_config.layer1?; allowed: {TOP}\n"
        f"x.yaml:2: layer2: unknown key, did you mean sharding_config.layer2?; allowed: {TOP}",
    ),
    "an unknown key like no other": ("colour: red", f"x.yaml:1: colour: unknown key; allowed: {TOP}"),
    "rules in a list": (
        "sharding_config: [a, b]",
        f"x.yaml:1: sharding_config: a list is not a mapping; allowed: {ALLOWED_TEXTS['sharding_config']}",
    ),
    "a mesh in a list": ("mesh: [2, 2]", f"x.yaml:1: mesh: a list is not a mapping; allowed: {ALLOWED_TEXTS['mesh']}"),
    "an empty mesh": ("mesh: {}", f"x.yaml:1: mesh: is empty; allowed: {ALLOWED_TEXTS['mesh']}"),
    "a mesh of nine axes": (
        "mesh: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1, i: 1}",
        f"x.yaml:1: mesh: has more than 8 entries; allowed: {ALLOWED_TEXTS['mesh']}",
    ),
    "a mesh axis of size 0": (
        "mesh:\n  data: 0",
        "x.yaml:2: mesh.data: 0 is too small; allowed: auto, or an integer >= 1",
    ),
    "a mesh axis of size true": (
        "mesh: {data: true}",
        "x.yaml:1: mesh.data: true is not an integer; allowed: auto, or an integer >= 1",
    ),
    "a mesh axis of size 2.0": (
        "mesh: {data: 2.0}",
        "x.yaml:1: mesh.data: 2.0 is not an integer; allowed: auto, or an integer >= 1",
    ),
    "a mesh axis of no size": (
        "mesh: {data: }",
        "x.yaml:1: mesh.data: nothing is not an integer; allowed: auto, or an integer >= 1",
    ),
    "a mesh axis of a word": (
        "mesh: {data: Auto}",
        "x.yaml:1: mesh.data: 'Auto' is not an integer; allowed: auto, or an integer >= 1",
    ),
    "two mesh axes that are auto": (
        "mesh: {data: auto, stages: 2, model: auto}",
        "x.yaml:1: mesh.model: is auto, as is data; allowed: auto for one axis, an integer >= 1 for each other",
    ),
    "parts of a batch beside auto": (
        "mesh: {data: auto}\n" + rules("a: {strategy: data_parallel, batch_split: 2}"),
        "x.yaml:3: sharding_config.a.batch_split: the size of the axis data of the mesh {data: auto} follows from the workers;"
        " allowed: no batch_split",
    ),
    "copies beside auto": (
        "mesh: {data: auto, model: 2}\n" + rules("a: {strategy: tensor_parallel, replicas: 2}"),
        "x.yaml:3: sharding_config.a.replicas: the number of copies of the mesh {data: auto, model: 2} follows from the workers;"
        " allowed: no replicas",
    ),
    "other copies of what is auto": (
        "mesh: {data: 2, model: auto}\n" + rules("a: {strategy: tensor_parallel, replicas: 3}"),
        "x.yaml:3: sharding_config.a.replicas: 3 contradicts the mesh {data: 2, model: auto}, which holds 2 copies of its axis"
        " model; allowed: 2",
    ),
    "stages beside auto": (
        "mesh: {stages: 2, data: auto}\n" + rules("a: {strategy: pipeline_parallel, stages: [[0], [1]]}"),
        "x.yaml:3: sharding_config.a.stages: name workers, of which the mesh {stages: 2, data: auto} may have more or fewer;"
        " allowed: a mesh of integers",
    ),
    "a mesh axis far too large": (
        "mesh: {data: 99999999999}",
        "x.yaml:1: mesh.data: 99999999999 is too large; allowed: auto, or an integer >= 1 and <= 2147483647",
    ),
    "a mesh axis of many digits": (
        "mesh: {data: 1" + "0" * 100 + "}",
        "x.yaml:1: mesh.data: an integer of many digits is too large; allowed: auto, or an integer >= 1 and <= 2147483647",
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
    "more microbatches than there may be": (
        rules("a: {" + PIPE + ", microbatches: 100000000}"),
        "x.yaml:2: sharding_config.a.microbatches: 100000000 is too large; allowed: an integer from 1 to 1024",
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
        "x.yaml:2: sharding_config.a.device: 'gpu' is not a device; allowed: cpu, cuda, torch:cpu, torch:cuda, torch:mps, torch:xpu, of a GPU with :N, each with @HOST; gt:N",
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
    "an urgent class": (
        "priority: urgent",
        "x.yaml:1: priority: 'urgent' is not a priority; allowed: auto, interactive, normal, batch",
    ),
    "a weight of nothing": ("weight: 0", "x.yaml:1: weight: 0 is too small; allowed: a number from 0.01 to 100"),
    "a heavy weight": ("weight: 101.5", "x.yaml:1: weight: 101.5 is too large; allowed: a number from 0.01 to 100"),
    "a weight in words": (
        "weight: much",
        "x.yaml:1: weight: 'much' is not a number; allowed: a number from 0.01 to 100",
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


def test_more_rules_patterns_or_workers_than_there_may_be_are_refused() -> None:
    hint = "{compile: true}"
    assert "has more than 1024 entries" in refusal(rules(*(f"s{index}: {hint}" for index in range(1025))))
    assert parse(rules(*(f"s{index}: {hint}" for index in range(1024)))).rules.keys() >= {"s1023"}
    assert "has 65 names that are patterns; allowed: at most 64" in refusal(
        rules(*(f"s{index}*: {hint}" for index in range(65)))
    )
    workers = ", ".join(map(str, range(4097)))
    assert "has more than 4096 entries" in refusal(rules("a: {shard: {axis: 0, workers: [" + workers + "]}}"))


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
