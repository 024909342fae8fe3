"""Programs whose whole service is lost again and again, and goes back to a mark: they have the values that they have without."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.service.in_process import Fabric, InprocLink
from gt.wire import messages as m
from gt.wire.messages import codec
from gt.wire.reliable_stream import Frames

LOSS_CHANCE = 0.04
MARK_CHANCE = 0.1
RULES = {"mesh": {"data": 2}, "sharding_config": {"batch": {"strategy": "data_parallel"}}}


class LosingLink(InprocLink):
    """A link to a service that is lost at random, with all it has. A mark of it is what it had heard: it hears it again."""

    def __init__(self, workers: int, chance: random.Random) -> None:
        super().__init__(Fabric(workers, None))
        self.resend_bytes = 1 << 30
        self.workers = workers
        self.chance = chance
        self.log: list[m.Message] = []
        """What the service has heard, after a Hello."""
        self.marks = {0: 0}
        """By number the position."""
        self.said: list[m.Message] = []
        self.number = self.losses = 0
        self.silent = False
        """Whether the client has not heard yet that it must go back."""

    def encode(self, message: m.Message) -> Frames:
        return codec.encode(message)

    def send(self, message: m.Message) -> Any:
        frames = codec.encode(message)
        self.send_frames(frames)
        return frames

    def send_frames(self, frames: Frames) -> None:
        message = codec.decode(list(frames))
        if isinstance(message, m.Resume):
            self.silent = message.session != self.number
            if not self.silent:
                self.go_back(self.marks[message.mark])
        elif isinstance(message, m.Settled):
            self.marks = {number: position for number, position in self.marks.items() if number >= message.mark}
        elif isinstance(message, m.Hello):
            super().send(message)
        elif not self.silent and not isinstance(message, m.Ping):
            self.log.append(message)
            super().send(message)
            self.said += super().receive()
            self.happen()

    def go_back(self, position: int) -> None:
        """The service has what it had at this position, and says nothing of it."""
        del self.log[position:]
        self.fabric = Fabric(self.workers, None)
        for message in (m.Hello(m.VERSION, "client", {"bulk": b""}), *self.log):
            super().send(message)
        super().receive()

    def happen(self) -> None:
        """Something may happen to the service."""
        drawn = self.chance.random()
        if drawn < LOSS_CHANCE:
            self.losses += 1
            self.number, self.silent = self.number + 1, True
            self.said.append(m.Rewind(self.number, "everything was lost", -1))
        elif drawn < LOSS_CHANCE + MARK_CHANCE:
            number = max(self.marks) + 1
            self.marks[number] = len(self.log)
            done = sum(isinstance(message, (m.Run, m.Put, m.Restore)) for message in self.log)
            self.said.append(m.Durable(number, len(self.log), done))

    def receive(self) -> list[m.Message]:
        """A part of what the service has said."""
        if not self.silent:
            self.said += super().receive()
        count = self.chance.randint(0, len(self.said))
        found, self.said = self.said[:count], self.said[count:]
        return found

    def alive(self) -> None:  # type: ignore[override]
        """Somebody starts it again."""


def descent() -> list[bytes]:
    """A model that is trained, with a fetch now and then."""
    model = gt.nn.Sequential(gt.nn.Linear(5, 7), gt.nn.Tanh(), gt.nn.Linear(7, 3))
    optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
    seen = []
    for number in range(12):
        with gt.signal.context("batch"):
            x = gt.from_numpy(np.random.default_rng(number).standard_normal((8, 5)).astype(np.float32))
        loss = ((gt.nn.functional.dropout(model(x), 0.2) - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 3 == 0:
            seen.append(loss.numpy().tobytes())
    return seen + [parameter.numpy().tobytes() for parameter in model.parameters()]


def futures() -> list[bytes]:
    """Many values that are asked for before any has come, of tensors that die meanwhile."""
    x, asked = gt.randn(6, 4), []
    for number in range(90):
        x = gt.tanh(x * 1.1 + number)
        if number % 5 == 0:
            asked.append((x.sum(0) / 3).fetch())
        if number % 17 == 0:
            gt.flush()
    return [future.result().tobytes() for future in asked]


def settled() -> list[bytes]:
    """Configs and seeds that change in between."""
    seen = []
    for number in range(6):
        gt.manual_seed(number)
        with gt.signal.context("batch"):
            x = gt.randn(8, 3)
        gt.load_config(RULES if number % 2 else {"sharding_config": {}})
        seen.append((x @ x.T).numpy().tobytes())
    return seen


def result(link: InprocLink, program: Callable[[], list[bytes]]) -> list[bytes]:
    session = Session(link, "losing", idle_flush=False)
    before = sessions.swap(session)
    try:
        session.open({"bulk": b""}, 5.0)
        gt.manual_seed(0)
        gt.load_config(RULES)
        return program()
    finally:
        sessions.swap(before)
        session.close()


@pytest.mark.parametrize("program", [descent, futures, settled])
@settings(max_examples=cases(10), deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_program_does_not_notice_that_everything_was_lost(program: Callable[[], list[bytes]], seed: int) -> None:
    whole = result(InprocLink(Fabric(2, None)), program)
    assert result(LosingLink(2, random.Random(seed)), program) == whole


def test_services_are_lost() -> None:
    """What the tests above try does happen."""
    link = LosingLink(2, random.Random(1))
    result(link, descent)
    assert link.losses > 2
    assert max(link.marks) > 2
