"""Moves that GPU workers do together by NCCL, on a stand-in for it that is as strict: the same values as in pieces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from card import current_device
from effort import cases
from fake_nccl import NcclCommunicator, Net
from law import running
from law.test_law import case, holds, network_case
from many_cards import PATIENCE, Cards, cards, connect

import gt
from gt.errors import GTError, WorkerLost
from gt.wire import messages as m
from gt.worker.base.events import ToPeer
from gt.worker.nccl.communicators import CollectiveCompletion, Communicators

ROWS = {
    "mesh": {"rows": 2},
    "sharding_config": {"a": {"shard": {"axis": 0, "workers": [0, 1]}}, "whole": {"strategy": "replicate"}},
}
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


def from_one(kind: type[Any]) -> Callable[[bytes, Any], bool]:
    """What worker 1 sends of a kind of message."""
    return lambda _, message: isinstance(message, kind) and getattr(message, "source", 1) == 1


def test_who_does_not_come_is_named() -> None:
    """A time-out says whom a plan waited for, in which collective, for how many bytes; what follows is well."""
    fabric = connect(["cuda:0", "cuda:1"], ROWS)
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)
    lost = losing(fabric, from_one(m.Piece), gathered)
    tell(fabric, 0, None, PATIENCE + 1)
    with pytest.raises(
        WorkerLost, match=r"waited 300 s for worker 1 in the all-gather in which 16 of 16 bytes did not"
    ) as caught:
        lost.numpy()
    assert "the last that was finished is the all-gather of f32[8] at " in str(caught.value)
    assert "test_communicators.py:" in str(caught.value)


def test_an_id_that_does_not_come_is_a_fault_too(net: Net) -> None:
    """Who waits to be joined waits no longer than for a piece; later moves make a communicator."""
    fabric = connect(["cuda:0", "cuda:1"], ROWS)
    lost = losing(fabric, lambda _, message: isinstance(message, m.UniqueId), gathered)
    assert not net.made
    for number in range(2):
        tell(fabric, number, None, PATIENCE + 1)
    with pytest.raises(WorkerLost, match="waited 300 s for workers 0, 1 in the all-gather"):
        lost.numpy()
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)


def test_a_call_that_does_not_end_is_aborted_and_named(net: Net) -> None:
    """Worker 1 stands in the move and then makes no call: worker 0 waits for its device until a watch gives up. What it made of
    that is a fault; the next move makes a new communicator."""
    fabric = connect(["cuda:0", "cuda:1"], ROWS)
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)
    lost = losing(fabric, lambda target, message: target == b"worker-1" and isinstance(message, m.Piece), gathered)
    tell(fabric, 1, None, PATIENCE + 1)
    with pytest.raises(
        WorkerLost, match="waited 300 s for NCCL to finish the all-gather with worker 1, 16 by"
    ) as caught:
        lost.numpy()
    assert "test_communicators.py:" in str(caught.value)
    assert len(net.worlds) == 1
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)
    assert len(net.worlds) == 2


def test_a_communicator_that_fails_is_given_up(net: Net) -> None:
    """What NCCL says of itself while something is under way ends that."""
    fabric = connect(["cuda:0", "cuda:1"], ROWS)
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)
    net.failed = "NCCL_ERROR_REMOTE_ERROR: a remote process exited"
    fabric.patience = 0.0  # nothing is late, but it is asked
    lost = losing(fabric, lambda target, message: target == b"worker-1" and isinstance(message, m.Piece), gathered)
    tell(fabric, 1, None, PATIENCE + 1)
    with pytest.raises(
        WorkerLost, match="NCCL_ERROR_REMOTE_ERROR: a remote process exited in NCCL to finish the all-gather"
    ):
        lost.numpy()


def test_a_communicator_that_is_lost_after_the_word_is_a_fault() -> None:
    """The others count on it: who has lost it says so at once, and does not wait for a new one that nobody makes."""
    fabric = connect(["cuda:0", "cuda:1"], ROWS)
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)

    def lose(target: bytes, message: Any) -> bool:
        if target == b"worker-1" and isinstance(message, m.Piece):
            (group,) = fabric.communicators[1].groups.values()
            group.give_up("it was lost")
        return False

    lost = losing(fabric, lose, gathered)
    with pytest.raises(GTError, match=r"NCCL's communicator was given up just now|waited 300 s for NCCL to finish"):
        lost.numpy()
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)


def test_a_lost_member_holds_up_nobody(net: Net) -> None:
    """Who stands in a move with it, or whose device does, goes on, and no communicator with it is left."""
    fabric = connect(["cuda:0", "cuda:1"], {"sharding_config": {"a": {"shard": {"axis": 0, "workers": [0, 1]}}}})
    with gt.signal.context("a"):
        x = gt.from_numpy(NUMBERS) + 1
    np.testing.assert_array_equal(x.sum().numpy(), 36)
    lost = losing(fabric, from_one(m.Piece), lambda: x.sum())
    fabric.kill(1)
    with pytest.raises(WorkerLost, match="worker 1 was lost"):
        lost.numpy()
    assert all(not each.groups for each in fabric.communicators[:1])
    assert not any(stream.head() for stream in net.streams.values())


def learnt(devices: list[str], config: Any) -> float:
    """A loss after some steps of two layers, each under a rule of its own."""
    fabric = connect(devices, config)
    gt.manual_seed(0)
    x = gt.from_numpy(np.random.default_rng(0).standard_normal((16, 12), np.float32))
    with gt.signal.context("a"):
        first = gt.nn.Linear(12, 20)
    with gt.signal.context("b"):
        second = gt.nn.Linear(20, 8)
    parameters = [*first.parameters(), *second.parameters()]
    for _ in range(4):
        with gt.signal.context("a"):
            hidden = first(x).relu()
        with gt.signal.context("b"):
            loss = second(hidden).square().mean()
        loss.backward()
        with gt.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    fabric.check()
    return float(loss.item())


def test_each_axis_has_groups_of_its_own(net: Net) -> None:
    """Communicators are made for those that meet, and no two of them wait for each other in a circle."""
    rules = {
        "a": {"strategy": "fully_sharded", "mesh_axis": "data"},
        "b": {"strategy": "tensor_parallel", "mesh_axis": "model", "dimension": 0},
    }
    found = learnt([f"cuda:{n}" for n in range(4)], {"mesh": {"data": 2, "model": 2}, "sharding_config": rules})
    assert len({tuple(sorted(world.devices.values())) for world in net.worlds.values()}) >= 4
    assert found == pytest.approx(learnt(["cpu"], None), rel=1e-4)


class Slow:
    """NCCL and the streams of a device on which nothing is over before a test says so."""

    def __init__(self) -> None:
        self.streams = self
        self.collectives = SimpleNamespace(ptr=1)
        self.over = SimpleNamespace(done=False, synchronize=lambda: None)
        self.aborted = 0

    @contextmanager
    def collective(self) -> Iterator[Any]:
        yield self.collectives

    def mark(self, _: Any) -> Any:
        return self.over

    def new_id(self) -> bytes:
        return bytes(128)

    def number(self, _: str) -> int:
        return 0

    def join(self, *_: Any) -> Any:
        return SimpleNamespace(abort=self._abort, check_async_error=lambda: None)

    def abort(self, communicator: Any) -> None:
        communicator.abort()

    def _abort(self) -> None:
        self.aborted += 1


def under_way(slow: Any) -> tuple[Communicators, CollectiveCompletion]:
    """A group of mesh 1 with a move that is not over."""
    found = Communicators(slow, PATIENCE, lambda: 0.0, lambda function: function(), lambda: None)
    group = found.group(1, (0, 1), 0)
    group.new_id(1)
    group.join(lambda: None)
    assert group.joining is not None
    group.joined(group.joining)
    return found, group.run(lambda: "a move", lambda _: None)


def test_what_is_under_way_on_a_dropped_mesh_is_wanted() -> None:
    """A tensor that was carried from it may not have come: its communicator ends when that is over."""
    slow = Slow()
    communicators, finish = under_way(slow)
    communicators.drop(1)
    communicators.look(1.0)
    communicators.end()
    assert not slow.aborted
    assert not finish.come()
    slow.over.done = True
    communicators.look(2.0)
    communicators.end()
    assert slow.aborted == 1
    assert not communicators.ending
    assert finish.come()
    assert finish.all() == [False]


def test_what_is_under_way_with_a_lost_member_is_given_up() -> None:
    slow = Slow()
    communicators, finish = under_way(slow)
    communicators.lose([2], "another mesh")
    assert not slow.aborted
    communicators.lose([1], "worker 1 was lost")
    assert slow.aborted == 1
    assert finish.come()
    assert finish.all() == [True]
    assert finish.reason == "worker 1 was lost"


def test_what_takes_too_long_on_a_dropped_mesh_is_given_up() -> None:
    slow = Slow()
    communicators, finish = under_way(slow)
    communicators.drop(1)
    communicators.look(PATIENCE + 1)
    assert finish.reason == "waited 300 s for a move"
    assert slow.aborted == 1


@pytest.mark.parametrize("seed", range(cases(20)))
def test_programs_hold(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law, with NCCL between all workers: under any config what one worker sees, and NumPy."""
    monkeypatch.setattr(running, "Fabric", Cards)
    holds(*case(seed), f"{seed} 1", "programs under a config, on GPU workers with NCCL")


@pytest.mark.parametrize("seed", range(cases(4)))
def test_networks_hold(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Fabric", Cards)
    holds(*network_case(seed), f"{seed} 1 --networks", "networks trained, on GPU workers with NCCL")


def test_what_other_threads_ask_and_abort_is_of_the_worker_s_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread begins with the first device of the host: who did not say another would take memory of a neighbour's card."""
    fabric = connect(["cuda:0", "cuda:1"], ROWS)
    np.testing.assert_array_equal(gathered().numpy(), (NUMBERS + 1) * 2)
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(NcclCommunicator, "abort", lambda _: seen.append(("abort", current_device())))
    _, communicators = fabric.communicators
    (group,) = communicators.groups.values()
    other = threading.Thread(target=group.give_up, args=("enough",))
    other.start()
    other.join()

    class Over(Exception):
        """Looked at once."""

    def look(now: float) -> None:
        seen.append(("look", current_device()))
        raise Over

    monkeypatch.setattr(communicators, "look", look)
    monkeypatch.setattr("gt.worker.nccl.communicators.WATCH_INTERVAL_SECONDS", 0.0)

    def watched() -> None:
        with pytest.raises(Over):
            communicators.watch()

    watch = threading.Thread(target=watched)
    watch.start()
    watch.join()
    assert seen == [("abort", 1), ("look", 1)]
