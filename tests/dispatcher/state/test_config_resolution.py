"""What a config asks for is computed once, by whoever waits for it."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from gt.dispatcher.state.config_resolution import MAX_KEPT, ConfigResolution, SharedComputation
from gt.errors import ConfigError
from gt.sharding.config import Config
from gt.sharding.placement import uniform_mesh


def counting(turns: int, done: list[int], error: Exception | None = None) -> Generator[None, None, str]:
    """A computation of so many turns, which notes each."""
    for turn in range(turns):
        done.append(turn)
        yield
    if error is not None:
        raise error
    return "result"


def test_jobs_share_the_turns_of_a_computation() -> None:
    done: list[int] = []
    shared = SharedComputation(counting(6, done))
    jobs = [shared.turns() for _ in range(3)]
    for job in jobs * 2:
        next(job)
    assert done == [*range(6)]
    assert not shared.over
    for job in jobs:
        assert [*job] == []
    assert shared.over
    assert shared.result() == "result"
    assert [*shared.turns()] == []


def test_a_job_that_is_dropped_leaves_the_rest_to_others() -> None:
    done: list[int] = []
    shared = SharedComputation(counting(4, done))
    dropped = shared.turns()
    next(dropped)
    del dropped
    assert len([*shared.turns()]) == 3
    assert done == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [ConfigError("no"), ZeroDivisionError("a bug")])
def test_an_error_is_that_of_everybody_who_asks(error: Exception) -> None:
    shared = SharedComputation(counting(1, [], error))
    assert len([*shared.turns()]) == 1
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            shared.result()
        assert caught.value is error
        assert len(caught.traceback) <= 2, "it does not grow"


def test_equal_meshes_have_one_policy_and_others_their_own() -> None:
    found = ConfigResolution(Config.from_plain({"sharding_config": {"a": {"strategy": "data_parallel"}}}))
    one, same = uniform_mesh(1, {"data": 2}, (0, 1)), uniform_mesh(7, {"data": 2}, (4, 5))
    assert found.policy(one, ["cpu", "cpu"]) is found.policy(same, ["cpu", "cpu"])
    assert found.policy(one, ["cpu", "cpu"]) is not found.policy(one, ["cpu", "cuda"])
    assert found.policy(one, ["cpu", "cpu"]) is not found.policy(uniform_mesh(1, {"data": 1}, (0,)), ["cpu"])
    assert found.axes(2) is found.axes(2)
    assert found.axes(2) is not found.axes(3)


def test_few_results_are_kept() -> None:
    found = ConfigResolution(Config())
    first = found.axes(1)
    assert found.axes(1) is first
    for workers in range(2, MAX_KEPT + 2):
        found.axes(workers)
    assert found.axes(1) is not first
