"""Sharding configs as text, and the words with which errors speak of their keys."""

import pytest

from gt.errors import ConfigError
from gt.sharding.config import parse

RULE_KEYS = (
    "strategy, batch_split, dimension, replicas, stages, microbatches, schedule, shard,"
    " mesh_axis, backward, compile, device, max_plan, priority"
)
TOP = "mesh, sharding_config, deterministic, blocks, priority, weight, max_plan"
PIPE = "strategy: pipeline_parallel, stages: [[0, 1], [2, 3]]"
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
    """A config of these rules."""
    return "sharding_config:\n" + "\n".join(f"  {line}" for line in lines)


def refusal(text: str) -> str:
    """The error with which a config is refused."""
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml")
    return str(caught.value)
