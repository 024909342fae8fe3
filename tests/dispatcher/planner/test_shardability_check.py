"""Rules that name a dimension which a tensor lacks are refused with signal, shape and line; what merely has fewer is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import gt
from gt.sharding.config import parse


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    gt.disconnect()


def connect(rule: str) -> None:
    gt.connect("inproc", workers=2, config=parse(f"sharding_config:\n  a: {rule}\n"))


def layer() -> gt.Tensor:
    norm, linear = gt.nn.LayerNorm(4), gt.nn.Linear(4, 6)
    with gt.signal.context("a"):
        return linear(norm(gt.ones(2, 4)))


def tagged() -> gt.Tensor:
    return gt.signal.tensor(gt.ones(3, 4), "a")


def created() -> gt.Tensor:
    with gt.signal.context("a"):
        return gt.randn(3, 4)


def masked() -> gt.Tensor:
    x = gt.ones(2, 3, 4)
    with gt.signal.context("a"):
        return (x + gt.ones(3, 4)) * gt.arange(4)


COLUMNS = "{strategy: tensor_parallel, dimension: 2}"
THIRD = "{shard: {axis: 2, workers: [0, 1]}}"


@pytest.mark.parametrize(
    ("program", "rule", "shape"),
    [
        (layer, COLUMNS, r"the weight f32\[6,4\]"),
        (tagged, THIRD, r"the tensor f32\[3,4\]"),
        (created, THIRD, r"the tensor f32\[3,4\]"),
        (layer, "{strategy: sequence_parallel, dimension: 2}", r"the tensor f32\[2,4\]"),
    ],
)
def test_a_dimension_that_is_lacking_is_refused(program: Callable[[], gt.Tensor], rule: str, shape: str) -> None:
    connect(rule)
    where = r"\(.*test_shardability_check.py:\d+\)"
    told = rf"^<config>:2: signal a: \w+ cuts dimension 2, which {shape} lacks {where}; allowed: 0 or 1"
    found = program()
    with pytest.raises(gt.ConfigError, match=told):
        found.numpy()
    assert gt.ones(2).sum().item() == 2  # and the session goes on


@pytest.mark.parametrize(
    ("program", "rule"),
    [(layer, COLUMNS.replace("2", "1")), (masked, THIRD), (created, THIRD.replace("2", "1", 1))],
)
def test_what_has_fewer_beside_what_has_it_is_left_whole(program: Callable[[], gt.Tensor], rule: str) -> None:
    connect(rule)
    found = program()
    assert found.numpy().shape == found.shape
