"""Moves that GPU workers do together by NCCL, on a stand-in for it that is as strict: the same values as in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cuda_on_host import COMPILER
from effort import cases
from fake_nccl import Net
from law import running
from law.test_law import case, holds, network_case
from many_cards import PATIENCE, Cards, cards, connect

import gt
from gt import messages as m
from gt.errors import GTError, WorkerLost
from gt.worker.events import ToPeer

ROWS = {
    "mesh": {"rows": 2},
    "sharding_config": {"a": {"shard": {"axis": 0, "workers": [0, 1]}}, "whole": {"strategy": "replicate"}},
}
COMPILES = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to run CUDA sources with")
NUMBERS = np.arange(8, dtype=np.float32)


@pytest.fixture(autouse=True)
def net() -> Iterator[Net]:
    with cards(8) as net:
        yield net
        gt.disconnect()


def gathered(numbers: Any = NUMBERS) -> Any:
    """A tensor that was cut, and all of it at each worker: an all-gather, after something was computed."""
    with gt.signal.context("a"):
        x = gt.from_numpy(numbers) + 1
    with gt.signal.context("whole"):
        return x * 2


def test_two_cards_go_together(net: Net) -> None:
    """One communicator is made, when it is first needed, and serves all moves of its group."""
    connect(["cuda:0", "cuda:1"], ROWS)
    assert not net.worlds
    for _ in range(3):
        np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)
    assert len(net.worlds) == 1
    assert {facts[0] for facts in net.made} == {"gather"}
    assert len(net.made) == 6


@pytest.mark.parametrize("devices", [["cuda:0", "cuda:0"], ["cuda:0", "cpu"], ["cpu", "cpu"]])
def test_without_a_card_each_pieces_serve(devices: list[str], net: Net) -> None:
    connect(devices, ROWS)
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)
    assert not net.worlds


def test_it_can_be_switched_off(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_NCCL", "0")
    connect(["cuda:0", "cuda:1"], ROWS)
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)
    assert not net.worlds


def test_where_one_member_can_have_no_communicator_all_use_pieces(net: Net) -> None:
    """The move itself goes on that way, and all later ones."""
    net.refuses.add(1)
    connect(["cuda:0", "cuda:1"], ROWS)
    for _ in range(2):
        np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)
    assert not net.made


def test_a_fault_travels_in_place_of_a_word() -> None:
    """Nobody calls what one member cannot: all get its error, and the next move is well."""
    connect(["cuda:0", "cuda:1"], ROWS)
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)
    with gt.signal.context("a"):
        index = gt.from_numpy(np.array([0, 9, 1, 2, 3, 4, 5, 6]))
        x = gt.take_along_dim(gt.from_numpy(NUMBERS), index, 0)
    with gt.signal.context("whole"):
        y = x * 2
    with pytest.raises(GTError, match="index 9 is out of range"):
        y.numpy()
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)


def losing(fabric: Cards, lost: Callable[[bytes, Any], bool], run: Callable[[], Any]) -> Any:
    """What `run` makes, sent at once; of all that is delivered meanwhile, messages that are `lost` are not."""
    deliver = fabric._deliver

    def some(target: bytes, message: Any) -> None:
        if not lost(target, message):
            deliver(target, message)

    fabric._deliver = some  # type: ignore[method-assign]
    made = run()
    gt.flush()
    fabric._deliver = deliver  # type: ignore[method-assign]
    return made


def tell(fabric: Cards, number: int, event: Any, now: float) -> None:
    """One event for one worker, at some time."""
    identity = b"worker-%d" % number
    for send in fabric.workers[identity].handle(event, now):
        if isinstance(send, ToPeer):
            fabric.queue.append((identity, send.address.encode(), send.message))
        else:
            fabric.say(identity, send.message)
    fabric.run()


def test_who_does_not_come_is_named() -> None:
    """A time-out says whom a plan waited for, in which collective, for how many bytes; what follows is well."""
    fabric = connect(["cuda:0", "cuda:1"], ROWS)
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)
    lost = losing(fabric, lambda _, message: isinstance(message, m.Piece) and message.source == 1, gathered)
    tell(fabric, 0, None, PATIENCE + 1)
    with pytest.raises(
        WorkerLost, match=r"waited 300 s for worker 1 in the all-gather in which 16 of 16 bytes did not"
    ) as caught:
        lost.numpy()
    assert "the last that was finished is the all-gather of f32[8] at " in str(caught.value)
    assert "test_nccl.py:" in str(caught.value)


@COMPILES
@pytest.mark.parametrize("seed", range(cases(20)))
def test_programs_hold(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law, with NCCL between all workers: under any config what one worker sees, and NumPy."""
    monkeypatch.setattr(running, "Fabric", Cards)
    holds(*case(seed), f"{seed} 1", "programs under a config, on GPU workers with NCCL")


@COMPILES
@pytest.mark.parametrize("seed", range(cases(4)))
def test_networks_hold(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Fabric", Cards)
    holds(*network_case(seed), f"{seed} 1 --networks", "networks trained, on GPU workers with NCCL")
