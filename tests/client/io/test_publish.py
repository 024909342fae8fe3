"""Publishing as a program does it, on a service in this process: what it publishes comes back, also when its session is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session import sessions
from gt.errors import PublishConflict, SnapshotError

SHARDED: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "fully_sharded"}}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GT_SNAPSHOTS", str(tmp_path))
    gt.connect("inproc")
    yield
    gt.disconnect()


def arrays(tensor: Any) -> list[Any]:
    """The arrays that workers have of a tensor."""
    here: Any = sessions.current()
    client = here.link.fabric.dispatcher.service.by_number
    (number,) = client
    return [worker.stored.tensors[number].get(tensor._value.id) for worker in here.link.fabric.workers.values()]


def test_a_tensor_comes_back_without_a_copy() -> None:
    weights = gt.randn(5, 7) * 2
    assert gt.publish("weights", weights) == 1
    found = gt.subscribe("weights")
    assert np.array_equal(found.numpy(), weights.numpy())
    assert arrays(found)[0] is arrays(weights)[0]
    found += 1
    assert np.array_equal(gt.subscribe("weights").numpy(), weights.numpy()), "a version never changes"


def test_shards_come_back_without_a_copy_where_they_are() -> None:
    gt.disconnect()
    gt.connect("inproc", workers=2, config=SHARDED)
    with gt.signal.context("net"):
        layer = gt.nn.Linear(6, 5)
        layer(gt.randn(4, 6))
    gt.flush()
    gt.publish("layer", layer)
    found = gt.subscribe("layer")
    assert found.keys() == layer.state_dict().keys()
    for name, tensor in layer.state_dict().items():
        assert np.array_equal(found[name].numpy(), tensor.numpy())
        assert [one is other for one, other in zip(arrays(found[name]), arrays(tensor), strict=True)] == [True, True]


def test_what_was_published_outlives_the_session_and_its_mesh() -> None:
    weights = {"a": gt.randn(4, 6), "b": [gt.arange(3), 1.5, None]}
    kept = weights["a"].numpy(), weights["b"][0].numpy()
    gt.publish("weights", weights)
    gt.disconnect()
    gt.connect("inproc", workers=2, config=SHARDED)
    found = gt.subscribe("weights")
    assert np.array_equal(found["a"].numpy(), kept[0])
    assert np.array_equal(found["b"][0].numpy(), kept[1])
    assert found["b"][1:] == [1.5, None]
    with gt.signal.context("net"):
        placed = gt.subscribe("weights")["a"] + 1
    gt.flush()
    assert np.array_equal(placed.numpy(), kept[0] + 1)


def test_versions_and_compare_and_swap() -> None:
    a = gt.ones(3)
    assert gt.publish("a", a, expect=0) == 1
    with pytest.raises(PublishConflict, match="'a' is at version 1, and not at version 0"):
        gt.publish("a", a, expect=0)
    assert gt.publish("a", a * 2, expect=1, keep=2) == 2
    assert gt.subscribe("a", version=1).numpy().tolist() == [1, 1, 1]
    assert gt.subscribe("a").numpy().tolist() == [2, 2, 2]
    gt.publish("a", a * 3)
    with pytest.raises(SnapshotError, match="'a' has no version 2 any more, or not yet: the newest is 3"):
        gt.subscribe("a", version=2)


def test_what_is_published_is_listed_until_it_is_revoked() -> None:
    gt.publish("a", gt.ones(3), to="everyone")
    gt.publish("b", [gt.ones(3), gt.ones(2)], to=["team", "alice"])
    assert [(each.name, each.version, each.nbytes, each.tensors, each.to) for each in gt.published()] == [
        ("a", 1, 12, 1, ("everyone",)), ("b", 1, 20, 2, ("team", "alice")),
    ]  # fmt: skip
    mine = gt.subscribe("a")
    gt.revoke("a")
    assert [each.name for each in gt.published()] == ["b"]
    with pytest.raises(SnapshotError, match="nothing named 'a' is shared with you"):
        gt.subscribe("a")
    with pytest.raises(SnapshotError, match="you have published nothing named 'a'"):
        gt.revoke("a")
    assert mine.numpy().tolist() == [1, 1, 1], "who has it keeps it"
    assert gt.publish("a", mine) == 2, "no number is given twice"


def test_what_cannot_be_published() -> None:
    for what in (3, {"a": 1}, object(), []):
        with pytest.raises(TypeError, match="publish"):
            gt.publish("a", what)
    with pytest.raises(TypeError, match="to= is a name, or several"):
        gt.publish("a", gt.ones(1), to=[3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="expect= is the number of a version"):
        gt.publish("a", gt.ones(1), expect=-1)
    with pytest.raises(SnapshotError, match="no name for a snapshot"):
        gt.publish("../a", gt.ones(1))
    with pytest.raises(gt.errors.IndexOutOfRange):
        gt.publish("a", gt.take(gt.ones(3), gt.tensor([7])))
    assert gt.published() == []
