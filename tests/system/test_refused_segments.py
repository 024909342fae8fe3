"""A client whose own check does not work: instructions that are not legal reach the service, and cost what depends on them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import numpy as np
import pytest
from builders import Array
from hypothesis import given
from hypothesis import strategies as st

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.daemon.host import CONNECT_TIMEOUT
from gt.ir.instruction import INPUT, OUTPUT, ref
from gt.service.in_process import Fabric, InprocLink
from gt.sharding.config import Config
from gt.wire import messages as m

SHARDED = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
SHAPE = (6, 4)


class BreakingLink(InprocLink):
    """Makes some instructions of every definition that a client sends illegal: their op is one of its own, which nobody
    knows. `faults` says, by dependency alone, which of the client's tensors cannot have a value, and the op that is to blame.
    """

    def __init__(self, fabric: Fabric, breaks: Callable[[str], bool]) -> None:
        super().__init__(fabric)
        self.breaks = breaks
        """Whether to break an instruction with this op."""
        self.broken = 0
        self.definitions: dict[int, tuple[list[Any], list[int]]] = {}
        self.faults: dict[int, str] = {}

    def send(self, message: m.Message) -> None:
        """As `InprocLink`."""
        if isinstance(message, m.Define):
            message = self._break(message)
        if isinstance(message, m.Run):
            self._blame(message)
        super().send(message)

    def _break(self, message: m.Define) -> m.Define:
        parts = msgpack.unpackb(message.body, strict_map_key=False)
        for instruction in parts[3]:
            if self.breaks(instruction[0]):
                instruction[0] = f"broken{self.broken}"
                self.broken += 1
        self.definitions[message.segment] = parts[3], parts[4]
        return m.Define(message.segment, msgpack.packb(parts))

    def _blame(self, run: m.Run) -> None:
        instructions, survivors = self.definitions[run.segment]
        refused: dict[int, int] = {}
        inherited = {
            ref(INPUT, at): self.faults[number] for at, number in enumerate(run.inputs) if number in self.faults
        }
        for number, (op, operands, _, _) in enumerate(instructions):
            of = [refused[r] for r in operands if r in refused]
            if of or op.startswith("broken"):
                refused[ref(OUTPUT, number)] = min(of, default=number)
                continue
            lost = [inherited[r] for r in operands if r in inherited]
            if lost:
                inherited[ref(OUTPUT, number)] = lost[0]
        for number in survivors:
            made = ref(OUTPUT, number)
            if made in refused:
                self.faults[run.base + number] = instructions[refused[made]][0]
            elif made in inherited:
                self.faults[run.base + number] = inherited[made]


@contextmanager
def broken_session(breaks: Callable[[str], bool], workers: int) -> Iterator[BreakingLink]:
    """A session through such a link, whose messages are encoded and decoded, as by sockets. Nothing is left at its end."""
    fabric = Fabric(workers, Config.from_plain(SHARDED) if workers > 1 else None, codec=True)
    link = BreakingLink(fabric, breaks)
    session = Session(link, "inproc", idle_flush=False)
    session.open({"bulk": b""}, CONNECT_TIMEOUT)
    before = sessions.swap(session)
    try:
        yield link
        gt.synchronize()
        fabric.dispatcher.check()
        (client,) = fabric.dispatcher.service.clients.values()
        assert client.table == {}
        assert client.credited == client.arrived
        for worker in fabric.workers.values():
            worker.check()
            assert not any(worker.stored.tensors.values())
    finally:
        sessions.swap(before)
        session.close()


def grown(draw: random.Random, pairs: list[tuple[gt.Tensor, Array]]) -> tuple[gt.Tensor, Array]:
    """One more tensor, computed from some of these, and its value by NumPy as if every instruction were legal."""
    (a, x), (b, y) = draw.choice(pairs), draw.choice(pairs)
    made: tuple[gt.Tensor, Array] = draw.choice(
        [
            lambda: (-a, -x),
            lambda: (a + b, x + y),
            lambda: (gt.maximum(a, b), np.maximum(x, y)),
            lambda: (a * 0.5, x * np.float32(0.5)),
            lambda: (gt.full(SHAPE, 3.0), np.full(SHAPE, 3, np.float32)),
            lambda: (a.abs().reshape(SHAPE[::-1]).reshape(SHAPE), np.abs(x)),
            lambda: ((a - b).sum(0, keepdim=True) + a, (x - y).sum(0, keepdims=True) + x),
        ]
    )()
    return made


@given(st.randoms(use_true_random=False), st.integers(1, 2))
def test_tensors_have_their_values_or_the_error_of_what_they_depend_on(draw: random.Random, workers: int) -> None:
    """Programs of several segments, some instructions of which are broken on their way: every fetch gives what NumPy computes,
    or names the first broken instruction on which it depends."""
    share = draw.choice((0.05, 0.15, 0.4))
    with broken_session(lambda _: draw.random() < share, workers) as link:
        arrays = [np.arange(24, dtype=np.float32).reshape(SHAPE) / (n + 1) - 5 for n in range(2)]
        pairs = [(gt.tensor(array), array) for array in arrays]
        for _ in range(draw.randint(1, 25)):
            with gt.signal.context(draw.choice(("net", "other"))):
                pairs.append(grown(draw, pairs))
            if draw.random() < 0.3:
                del pairs[draw.randrange(len(pairs))]
            if draw.random() < 0.1 or not pairs:
                gt.flush()
                pairs.append((gt.tensor(arrays[0]), arrays[0]))
        gt.flush()
        for tensor, array in pairs:
            blame = link.faults.get(tensor._value.id)
            if blame is None:
                np.testing.assert_allclose(tensor.numpy(), array, rtol=1e-4, atol=1e-4)
            else:
                with pytest.raises(
                    gt.ProtocolError, match=rf"there is no op '{blame}', at .*{__name__.split('.')[-1]}"
                ):
                    tensor.numpy()
        del pairs, tensor, array


def test_a_loop_goes_on_around_a_refused_instruction() -> None:
    """The other results of each step are right, from the first time to when their plan is hot."""
    with broken_session(lambda op: op == "exp", 1) as link:
        weight = gt.ones(3)
        for _ in range(12):
            before = weight * 2.0
            broken = gt.exp(before)
            after = before + 1.0
            lost = broken + after
            weight = after - before
            assert weight.tolist() == [1, 1, 1]
            assert (before.tolist(), after.tolist()) == ([2, 2, 2], [3, 3, 3])
            for tensor in (broken, lost):
                with pytest.raises(gt.ProtocolError, match="there is no op 'broken"):
                    tensor.numpy()
        assert link.broken < 12, "its definition is known from the second step or so on"
        del weight, before, broken, after, lost, tensor
