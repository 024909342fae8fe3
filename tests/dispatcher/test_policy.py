"""How a session's rules become wishes on its mesh."""

import pytest

from gt.config import parse
from gt.dispatcher.policy import Policy, resolve
from gt.errors import ConfigError
from gt.placement import uniform_mesh

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
    data, model = rules.wishes(("batch", "hidden"))
    assert data is not None
    assert model is not None
    assert (data.strategy, model.strategy, model.dimension) == ("data_parallel", "tensor_parallel", 0)
    inner = rules.wishes(("hidden", "other"))[1]
    assert inner is not None
    assert inner.dimension == 1
    assert rules.wishes(("unknown",)) == (None, None)


def test_a_path_is_a_name_too() -> None:
    """`a/b` in the YAML binds to b inside of a, and to no other b."""
    rules = policy("mesh: {data: 2}\nsharding_config: {a/b: {strategy: data_parallel}}\n", {"data": 2})
    assert rules.wishes(("a", "b"))[0] is not None
    assert rules.wishes(("b",)) == (None,)


def test_gradients_follow_the_rule_that_backward_names() -> None:
    """`backward:` puts another rule in the place of a signal's own, for what is computed going backward."""
    rules = policy(
        "sharding_config:\n"
        "  ffn: {shard: {axis: 1, workers: [0, 1]}, backward: ffn_backward}\n"
        "  ffn_backward: {shard: {axis: 0, workers: [0, 1]}}\n",
        {"workers": 2},
    )
    (forward,) = rules.wishes(("ffn",))
    (backward,) = rules.wishes(("ffn",), backward=True)
    assert forward is not None
    assert backward is not None
    assert (forward.dimension, backward.dimension) == (1, 0)


def test_workers_that_take_no_part_have_weight_zero() -> None:
    """An explicit shard over a block of the mesh is a shard whose other positions hold nothing."""
    rules = policy("mesh: {data: 2, model: 2}\nsharding_config: {x: {shard: {axis: 0, workers: [2, 3]}}}\n")
    data, model = rules.wishes(("x",))
    assert data is not None
    assert model is not None
    assert (data.weights, model.weights) == ((0, 1), None)


def test_workers_that_are_no_block_are_refused() -> None:
    """What cannot be said by positions on each axis is refused with file, line, key and a block that could be meant."""
    with pytest.raises(ConfigError, match=r"x.yaml:2: sharding_config.x.shard.workers: \[0, 3\] is no block"):
        policy("mesh: {data: 2, model: 2}\nsharding_config: {x: {shard: {axis: 0, workers: [0, 3]}}}\n")
