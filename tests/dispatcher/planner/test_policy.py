"""How a session's rules become wishes on its mesh."""

import pytest
from measured_calls import counted_steps

from gt.dispatcher.planner.policy import Policy, resolve
from gt.errors import ConfigError
from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.sharding.config import parse
from gt.sharding.placement import format_layout, uniform_mesh

GRID = {"data": 2, "model": 2}


def policy(text: str, axes: dict[str, int] = GRID) -> Policy:
    workers = 1
    for size in axes.values():
        workers *= size
    return resolve(parse(text, "x.yaml"), uniform_mesh(1, axes, tuple(range(workers))))


def test_each_rule_speaks_of_its_own_axis_and_the_innermost_decides() -> None:
    """Nested signals add up over the axes; on one axis the inner one wins."""
    rules = policy(
        "sharding_config:\n"
        "  batch: {strategy: data_parallel}\n"
        "  hidden: {strategy: tensor_parallel, dimension: 0}\n"
        "  other: {strategy: tensor_parallel, dimension: 1}\n"
        "mesh: {data: 2, model: 2}\n"
    )
    data, model = rules.requests(("batch", "hidden"))
    assert data is not None
    assert model is not None
    assert (data.strategy, model.strategy, model.dimension) == ("data_parallel", "tensor_parallel", 0)
    inner = rules.requests(("hidden", "other"))[1]
    assert inner is not None
    assert inner.dimension == 1
    assert rules.requests(("unknown",)) == (None, None)


def test_a_path_is_a_name_too() -> None:
    """`a/b` in the YAML binds to b inside of a, and to no other b."""
    rules = policy("mesh: {data: 2}\nsharding_config: {a/b: {strategy: data_parallel}}\n", {"data": 2})
    assert rules.requests(("a", "b"))[0] is not None
    assert rules.requests(("b",)) == (None,)


def test_gradients_follow_the_rule_that_backward_names() -> None:
    """`backward:` puts another rule in the place of a signal's own, for what is computed going backward."""
    rules = policy(
        "sharding_config:\n"
        "  ffn: {shard: {axis: 1, workers: [0, 1]}, backward: ffn_backward}\n"
        "  ffn_backward: {shard: {axis: 0, workers: [0, 1]}}\n",
        {"workers": 2},
    )
    (forward,) = rules.requests(("ffn",))
    (backward,) = rules.requests(("ffn",), backward=True)
    assert forward is not None
    assert backward is not None
    assert (forward.dimension, backward.dimension) == (1, 0)


def test_workers_that_take_no_part_have_weight_zero() -> None:
    """An explicit shard over a block of the mesh is a shard whose other positions hold nothing."""
    rules = policy("mesh: {data: 2, model: 2}\nsharding_config: {x: {shard: {axis: 0, workers: [2, 3]}}}\n")
    data, model = rules.requests(("x",))
    assert data is not None
    assert model is not None
    assert (data.weights, model.weights) == ((0, 1), None)


def test_workers_that_are_no_block_are_refused() -> None:
    """What cannot be said by positions on each axis is refused with file, line, key and a block that could be meant."""
    with pytest.raises(ConfigError, match=r"x.yaml:2: sharding_config.x.shard.workers: \[0, 3\] is no block"):
        policy("mesh: {data: 2, model: 2}\nsharding_config: {x: {shard: {axis: 0, workers: [0, 3]}}}\n")


def strategies(rules: Policy, *path: str, backward: bool = False) -> list[str | None]:
    return [request and request.strategy for request in rules.requests(path, backward=backward)]


def test_each_strategy_speaks_of_its_own_axis() -> None:
    """A strategy asks for something on one axis; replicate and auto on all, unless one is named."""
    axes = {"stages": 2, "data": 2, "expert": 1, "model": 2}
    rules = policy(
        "mesh: {stages: 2, data: 2, expert: 1, model: 2}\n"
        "sharding_config:\n"
        "  a: {strategy: fully_sharded}\n"
        "  b: {strategy: sequence_parallel}\n"
        "  c: {strategy: expert_parallel}\n"
        "  d: {strategy: auto}\n"
        "  e: {strategy: sequence_parallel, dimension: 2, mesh_axis: data}\n"
        "  f: {strategy: auto, mesh_axis: model}\n",
        axes,
    )
    assert strategies(rules, "a") == [None, "fully_sharded", None, None]
    assert strategies(rules, "b") == [None, None, None, "sequence_parallel"]
    assert strategies(rules, "c") == [None, None, "expert_parallel", None]
    assert strategies(rules, "d") == ["auto"] * 4
    assert strategies(rules, "f") == [None, None, None, "auto"]
    assert rules.requests(("b",))[3].dimension == 1  # type: ignore[union-attr]
    assert rules.requests(("e",))[1].dimension == 2  # type: ignore[union-attr]
    assert (rules.microbatches, rules.schedule, rules.deterministic) == (1, "1f1b", 0)


def test_a_pipeline_is_positions_on_its_axis() -> None:
    """Stage i lives at position stages[i]; the session takes microbatches and schedule from it."""
    rules = policy(
        "mesh: {stages: 2, model: 2}\n"
        "sharding_config:\n"
        "  a: {strategy: pipeline_parallel, stages: [[3, 2], [0, 1]], microbatches: 4, schedule: gpipe}\n",
        {"stages": 2, "model": 2},
    )
    stages, model = rules.requests(("a",))
    assert stages is not None
    assert model is None
    assert (stages.strategy, stages.stages, stages.where) == ("pipeline_parallel", (1, 0), "x.yaml:3")
    assert (rules.microbatches, rules.schedule, rules.deterministic) == (4, "gpipe", 0)


def test_several_rules_of_one_signal_each_have_their_axis() -> None:
    """A list of rules is one signal's wishes on several axes; an inner signal overrides one of them."""
    rules = policy(
        "mesh: {data: 2, model: 2}\n"
        "sharding_config:\n"
        "  blocks: [{strategy: fully_sharded}, {strategy: tensor_parallel, dimension: 0}]\n"
        "  blocks/head: {strategy: replicate, mesh_axis: model}\n"
    )
    assert strategies(rules, "blocks") == ["fully_sharded", "tensor_parallel"]
    assert strategies(rules, "blocks", "x") == ["fully_sharded", "tensor_parallel"]
    assert strategies(rules, "blocks", "head") == ["fully_sharded", "replicate"]


def test_names_beat_patterns_and_long_patterns_short_ones() -> None:
    """All that are for a signal add up over the axes; on one axis the one that says most wins."""
    rules = policy(
        "mesh: {data: 2, model: 2}\n"
        "sharding_config:\n"
        "  blocks.3: {strategy: replicate, mesh_axis: data}\n"
        "  blocks.*: {strategy: fully_sharded}\n"
        "  '*': {strategy: data_parallel}\n"
        "  blocks.[12].attn: {strategy: tensor_parallel}\n"
        "  x.?: {strategy: fully_sharded}\n"
        "  '?.y': {strategy: data_parallel}\n"
        "  out/in*: {strategy: tensor_parallel}\n"
        "  out*: {strategy: auto}\n"
    )
    assert strategies(rules, "other") == ["data_parallel", None]
    assert strategies(rules, "blocks.7") == ["fully_sharded", None]
    assert strategies(rules, "blocks.3") == ["replicate", None]
    assert strategies(rules, "blocks.1.attn") == ["fully_sharded", "tensor_parallel"]
    assert strategies(rules, "blocks.3.attn") == ["fully_sharded", None]
    assert strategies(rules, "x.y") == ["data_parallel", None], "as long: the later in the file"
    assert strategies(rules, "out") == ["auto", "auto"]
    assert strategies(rules, "out", "inner") == ["data_parallel", "tensor_parallel"], "`*` is for inner itself"
    assert strategies(rules, "Blocks.7") == ["data_parallel", None]


def test_a_pattern_can_name_another_rule_for_its_gradients() -> None:
    """`backward:` goes with the rule, whatever its name stands for."""
    rules = policy(
        "mesh: {data: 2}\n"
        "sharding_config:\n"
        "  h.*: {strategy: data_parallel, backward: whole}\n"
        "  whole: {strategy: replicate}\n",
        {"data": 2},
    )
    assert strategies(rules, "h.1") == ["data_parallel"]
    assert strategies(rules, "h.1", backward=True) == ["replicate"]


def of_kinds(text: str, *kinds: str) -> Policy:
    return resolve(parse(text, "x.yaml"), uniform_mesh(1, GRID, (0, 1, 2, 3)), [(kind,) for kind in kinds])


def test_a_kind_of_worker_becomes_shares() -> None:
    """`device:` is the explicit form over the workers of that kind; where all are, it says nothing."""
    text = "mesh: {data: 2, model: 2}\nsharding_config:\n  x: {device: cuda}\n"
    data, model = of_kinds(text, "cpu", "cpu", "cuda", "cuda").requests(("x",))
    assert data is not None
    assert model is not None
    assert (data.strategy, data.dimension, data.weights) == ("shard", 0, (0, 1))
    assert (model.strategy, model.dimension, model.weights) == ("shard", 0, None)
    assert of_kinds(text, "cuda", "cuda", "cuda", "cuda").requests(("x",)) == (None, None)
    text = text.replace("{device", "{strategy: tensor_parallel, device")
    assert strategies(of_kinds(text, "cpu", "cpu", "cuda", "cuda"), "x") == ["shard", "tensor_parallel"]
    assert strategies(of_kinds(text, "cuda", "cuda", "cuda", "cuda"), "x") == [None, "tensor_parallel"]


def test_a_kind_of_which_there_is_none_or_no_block_is_refused() -> None:
    text = "mesh: {data: 2, model: 2}\nsharding_config:\n  x: {device: cuda}\n"
    with pytest.raises(ConfigError) as none:
        of_kinds(text, "cpu", "cpu", "cpu", "cpu")
    assert str(none.value) == (
        "x.yaml:3: sharding_config.x.device: no worker of the mesh {data: 2, model: 2} is of the kind cuda; allowed: cpu"
    )
    with pytest.raises(ConfigError, match=r"^x.yaml:3: sharding_config.x.device: \[0, 3\] is no block of the mesh"):
        of_kinds(text, "cuda", "cpu", "cpu", "cuda")


def test_a_put_goes_where_activations_of_its_signal_live() -> None:
    """What comes from the client is cut as it will be used, where it has the dimension."""
    rules = policy(
        "mesh: {data: 2, model: 2}\n"
        "sharding_config:\n"
        "  a: [{strategy: fully_sharded}, {strategy: sequence_parallel}]\n"
        "  b: {shard: {axis: 1, workers: [1, 3]}}\n"
        "  c: {strategy: tensor_parallel}\n"
    )
    layouts = {name: format_layout(rules.put_layout((name,), spec(float32, (4, 4)))) for name in "abc"}
    assert layouts == {"a": "S0|S1", "b": "S1|S1(0,1)", "c": "R|R"}
    assert format_layout(rules.put_layout(("a",), spec(float32, (4,)))) == "S0|R"
    assert format_layout(rules.put_layout(("a",), spec(float32, ()))) == "R|R"


def test_the_same_bits_are_promised_of_cpus_alone() -> None:
    text = "deterministic: true\nmesh: {data: 2, model: 2}\n"
    assert of_kinds(text, "cpu", "cpu", "cpu", "cpu").deterministic == 8
    with pytest.raises(
        ConfigError, match=r"x\.yaml:2: deterministic: only CPU workers .*; allowed: CPU workers, or no"
    ):
        of_kinds(text, "cpu", "cpu", "cuda", "cuda")


def test_the_rules_of_a_long_path_are_found_in_as_many_steps_as_it_has_names() -> None:
    """Patterns are looked for once, not once for each name; a session without rules looks for none."""
    steps = []
    for depth in (32, 128):
        policy = Policy(uniform_mesh(1, {"data": 2}, (0, 1)), {"n*": (None,), "other": (None,)})
        steps.append(counted_steps(lambda policy=policy, depth=depth: policy.requests(("n",) * depth)))  # type: ignore[misc]
    assert steps[1] < 5 * steps[0]
    empty = Policy(uniform_mesh(1, {"data": 2}, (0, 1)), {})
    assert counted_steps(lambda: empty.requests(("n",) * 100_000)) < 100
