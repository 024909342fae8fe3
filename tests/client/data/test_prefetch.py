"""Batches made ahead: the same batches, in order, whatever happens to the iterable, the loop or the session."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import gt
from gt import data
from gt.client.data import prefetch
from gt.client.session import sessions
from gt.sharding.placement import format_layout
from gt.wire.messages import Put

try:
    import torch
    from torch.utils import data as torch_data
except ImportError:
    torch = None

pytestmark = pytest.mark.usefixtures("session")
PATIENCE = 20.0
"""Seconds after which a test fails that waits for what has to happen."""


def until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do, and says to nobody."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


def batches(count: int) -> Iterator[np.ndarray[Any, Any]]:
    for number in range(count):
        yield np.full((4, 2), number, np.float32)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gt-prefetch"]


@pytest.fixture(autouse=True)
def _none_left_behind() -> Iterator[None]:
    yield
    if threads():
        gc.collect()
    until(lambda: not threads())


def test_batches_come_in_order_as_tensors_and_again_in_the_next_pass() -> None:
    ahead = data.prefetch([np.full(2, number, np.float32) for number in range(5)])
    assert len(ahead) == 5
    for _ in range(2):
        found = list(ahead)
        assert all(type(batch) is gt.Tensor and batch.dtype is gt.float32 for batch in found)
        assert [batch.tolist() for batch in found] == [[n, n] for n in range(5)]
    with pytest.raises(TypeError, match="has no len"):
        len(data.prefetch(batches(3)))
    assert list(data.prefetch([])) == []


def test_what_is_in_a_batch_is_found_and_its_form_is_kept() -> None:
    Pair = namedtuple("Pair", "x y")  # that is how programs make them
    known = gt.ones(2)
    array, words = np.arange(3), np.array(["a", "b"])
    example = {"pair": Pair(array, [array, "text"]), "rest": (7, None, known), "words": words, "number": np.float32(2)}
    for found in data.prefetch([example] * 2):
        assert type(found["pair"]) is Pair
        assert found["pair"].x.tolist() == found["pair"].y[0].tolist() == [0, 1, 2]
        assert found["pair"].y[1] == "text"
        assert found["rest"] == (7, None, known)
        assert found["rest"][2] is known
        assert found["words"] is words
        assert type(found["number"]) is np.float32


def test_an_array_may_be_used_again_once_the_next_batch_is_asked_for() -> None:
    def one_buffer() -> Iterator[Any]:
        buffer = np.zeros(3, np.float32)
        for number in range(6):
            buffer[:] = number
            yield buffer

    assert [batch.tolist() for batch in data.prefetch(one_buffer(), depth=4)] == [[n] * 3 for n in range(6)]


def test_at_most_depth_batches_are_ahead_and_so_many_are() -> None:
    made: list[int] = []
    taken = 0

    def counted() -> Iterator[Any]:
        for number in range(20):
            assert number - taken <= 3
            made.append(number)
            yield np.full(1, number)

    feed = iter(data.prefetch(counted(), depth=3))
    assert made == []  # nothing before it is asked for
    for batch in feed:
        taken += 1
        assert batch.item() == taken - 1
        wanted = list(range(min(20, taken + 3)))
        until(partial(made.__eq__, wanted))


@pytest.mark.parametrize("good", [0, 1, 4])
def test_an_error_comes_behind_the_batches_before_it_with_its_own_line(good: int) -> None:
    def failing() -> Iterator[Any]:
        yield from batches(good)
        raise OSError("the disk is gone")

    feed = iter(data.prefetch(failing()))
    assert [next(feed).numpy()[0, 0] for _ in range(good)] == list(range(good))
    with pytest.raises(OSError, match="the disk is gone") as caught:
        next(feed)
    assert any(entry.name == "failing" for entry in caught.traceback)
    assert list(feed) == []


@pytest.mark.parametrize("how", ["close", "with", "drop", "break"])
def test_a_loop_that_is_left_ends_the_thread_and_lets_the_generator_clean_up(how: str) -> None:
    cleaned = threading.Event()

    def endless() -> Iterator[Any]:
        try:
            while True:
                yield np.ones(2)
        finally:
            cleaned.set()

    source = endless()
    if how == "break":
        for _ in data.prefetch(source):
            break
    else:
        feed = iter(data.prefetch(source))
        next(feed)
        assert len(threads()) == 1
        if how == "close":
            feed.close()
            assert list(feed) == []
        elif how == "with":
            with feed:
                next(feed)
        else:
            del feed
    assert cleaned.wait(PATIENCE)
    until(lambda: not threads())


def test_batches_are_put_under_the_signal_and_computed_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    link = sessions.current().link
    plain = link.send
    monkeypatch.setattr(link, "send", lambda message: (sent.append(message), plain(message))[1])
    with gt.signal.context("outer"):
        found = list(data.prefetch(batches(3), signal="batch/x"))
    assert [batch.numpy()[0, 0] for batch in found] == [0, 1, 2]
    assert [message.signal for message in sent if isinstance(message, Put)] == [["outer", "batch", "x"]] * 3

    def computed() -> Iterator[Any]:
        for number in range(3):
            assert gt.signal.current() == ("batch",)
            yield gt.ones(2) * number

    assert [batch.tolist() for batch in data.prefetch(computed(), signal="batch")] == [[0, 0], [1, 1], [2, 2]]


def test_batches_lie_where_the_rule_of_the_signal_says() -> None:
    config = {"sharding_config": {"batch": {"strategy": "data_parallel"}}}
    opened = gt.connect("inproc", workers=2, config=config)
    (client,) = opened.link.fabric.dispatcher.service.clients.values()
    for batch in data.prefetch(batches(3), signal="batch"):
        assert format_layout(client.table[batch._value.id].resident.layout) == "S0"
        assert batch.shape == (4, 2)


def test_a_program_draws_the_same_random_numbers_with_and_without() -> None:
    def epoch(ahead: Callable[[Any], Any]) -> list[Any]:
        gt.manual_seed(5)
        loader = data.DataLoader(data.TensorDataset(np.arange(12)), 3, shuffle=True)
        found = []
        for (batch,) in ahead(loader):
            found.append((batch.tolist(), gt.rand(2).tolist()))
        return found

    assert epoch(data.prefetch) == epoch(lambda loader: loader)


def test_what_the_iterable_draws_is_the_same_every_time() -> None:
    def noisy() -> Iterator[Any]:
        for _ in range(4):
            yield gt.rand(2)

    def run(pause: bool) -> list[Any]:
        gt.manual_seed(5)
        found = []
        for batch in data.prefetch(noisy(), depth=4):
            if pause:
                until(lambda: not any(thread.is_alive() for thread in threads()))
            found.append((batch.tolist(), gt.rand(1).item()))
        return found

    first = run(pause=True)
    assert first == run(pause=False)
    assert len({tuple(batch) for batch, _ in first}) == 4


def test_a_thread_starts_no_session_of_its_own() -> None:
    go_on = threading.Event()

    def slow() -> Iterator[Any]:
        yield np.ones(1)
        go_on.wait(PATIENCE)
        yield np.ones(2)
        yield np.ones(3)

    feed = iter(data.prefetch(slow(), depth=1))
    next(feed)
    gt.disconnect()
    go_on.set()
    with pytest.raises(gt.SessionError, match="ended"):
        list(feed)
    assert sessions.active() is None
    gt.connect("inproc", workers=1)  # for the fixture


def test_batches_go_into_compiled_steps() -> None:
    layer = gt.nn.Linear(2, 3)
    optimizer = gt.optim.SGD(layer.parameters(), lr=0.1)

    @gt.compile
    def step(x: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        loss = (layer(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(batch).item() for batch in data.prefetch([np.ones((4, 2), np.float32)] * 8)]
    assert losses == sorted(losses, reverse=True)
    assert step.stats["replays"] > 0


@pytest.mark.skipif(torch is None, reason="PyTorch's loader")
def test_batches_of_pytorch_become_tensors() -> None:
    x, y = torch.arange(20).reshape(10, 2) / 2, torch.arange(10)
    loader = torch_data.DataLoader(torch_data.TensorDataset(x, y), batch_size=4)
    ahead = data.prefetch(loader, signal="batch")
    assert len(ahead) == 3
    found = list(ahead)
    assert [type(part) for part in found[0]] == [gt.Tensor] * 2
    np.testing.assert_array_equal(np.concatenate([a.numpy() for a, _ in found]), x.numpy())
    assert [b.tolist() for _, b in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_depth_that_is_none_and_a_signal_that_is_none_are_refused_at_once() -> None:
    for depth in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="depth is a number of batches from 1"):
            data.prefetch([], depth=depth)
    with pytest.raises(ValueError, match="a signal is a name"):
        data.prefetch([], signal="a//b")


LEFT = """
import os, sys, time
import numpy as np
import gt
gt.connect("inproc", workers=1)
def endless():
    while True:
        yield np.ones(100_000, np.float32)
feed = iter(gt.data.prefetch(endless(), depth=3))
for _ in range(20):
    batch = next(feed)
child = os.fork()
if not child:
    try:
        next(feed)
    except gt.SessionError as error:
        os._exit(7 if "forked" in str(error) else 8)
    os._exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), batch.sum().item())
"""


def test_a_program_ends_while_batches_are_made_and_a_fork_is_told() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LEFT]  # of forks, from Python 3.12 on
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7 100000.0\n", "")


def test_a_thread_that_is_stopped_at_the_end_of_a_program_is_waited_for() -> None:
    feed = iter(data.prefetch(batches(1000)))
    next(feed)
    (thread,) = threads()
    prefetch._stop_all()
    assert not thread.is_alive()
    assert list(feed) == []
