"""Hints: part of what is said about an instruction, followed where that is legal, and never part of a value."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session import sessions
from gt.errors import ProtocolError
from gt.ir.hints import NO_HINTS, Hints, pack_hints, unpack_hints
from gt.ir.instruction_bytes import unpack_segment
from gt.sharding.collectives import ALGORITHMS
from gt.wire.messages import Define
from gt.worker.execution.optimize import HOT_RUN

DATA_PARALLEL = {"sharding_config": {"step": {"strategy": "data_parallel"}}}
RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 6), np.float32)
W = RNG.standard_normal((5, 6), np.float32)


def programs() -> list[Any]:
    """What the workers have compiled."""
    return [p for worker in sessions.current().link.fabric.workers.values() for p in worker.programs.compiled.values()]


def gradient(turns: int = 1, **hints: Any) -> list[np.ndarray[Any, Any]]:
    """The gradients of some steps of a linear layer, which are sums over all workers."""
    layer = gt.nn.Linear(6, 5)
    found = []
    with gt.no_grad():
        layer.weight.copy_(gt.from_numpy(W))
        layer.bias.zero_()
    x = gt.from_numpy(X)
    for _ in range(turns):
        with gt.signal.context("step", **hints):
            loss = layer(x).tanh().sum()
        layer.zero_grad()
        loss.backward()
        found += [p.grad.numpy() for p in layer.parameters()]
    return found


# what may be said


@pytest.mark.parametrize(
    ("hints", "error", "allowed"),
    [
        ({"fast": True}, TypeError, "there is no hint 'fast'; allowed: hot, comm, deadline"),
        ({"comm": "rign"}, ValueError, "comm='rign'; allowed: one of direct, two-step, ring, tree"),
        ({"comm": None}, ValueError, "comm=None; allowed: one of"),
        ({"hot": 1}, ValueError, "hot=1; allowed: true or false"),
        ({"deadline": 0}, ValueError, "deadline=0; allowed: a number of seconds above 0"),
        ({"deadline": float("nan")}, ValueError, "deadline=nan; allowed: a number"),
        ({"deadline": "soon"}, ValueError, "deadline='soon'; allowed: a number"),
    ],
)
def test_what_is_no_hint_is_refused_with_what_is_allowed(hints: dict[str, Any], error: Any, allowed: str) -> None:
    with pytest.raises(error) as caught:
        gt.signal.context("a", **hints)
    assert allowed in str(caught.value)


def test_hints_nest_and_are_those_of_the_gradients_too(monkeypatch: pytest.MonkeyPatch) -> None:
    session = gt.connect("inproc", workers=1)
    x = gt.ones(2, requires_grad=True)
    gt.flush()
    sent: list[Any] = []
    monkeypatch.setattr(session, "sink", sent.extend)
    with gt.signal.context("outer", comm="ring", deadline=2):
        y = x * 2
        with gt.signal.context("inner", hot=True, comm="tree", deadline=0.5), gt.no_grad():
            x + 1
        y = y * 3
    y.sum().backward()
    outer = Hints(False, "ring", (("outer", 2.0),))
    inner = Hints(True, "tree", (("outer", 2.0), ("outer/inner", 0.5)))
    (body,) = [message.body for message in sent if isinstance(message, Define)]
    segment = unpack_segment(body)
    found = [segment.tags[i.tag] for i in segment.instructions]
    assert [tag.hints for tag in found[:4]] == [outer, inner, outer, NO_HINTS]
    assert {tag.hints for tag in found if tag.phase == "backward" and tag.signal} == {outer}
    assert {tag.hints for tag in found if not tag.signal} == {NO_HINTS}


def test_what_differs_in_a_hint_alone_is_another_definition_and_each_is_found_again() -> None:
    session = gt.connect("inproc", workers=1)
    x = gt.ones(2)
    gt.flush()

    def turn(**hints: Any) -> None:
        with gt.signal.context("a", **hints):
            y = x * 2
        assert y.tolist() == [2, 2]

    for _ in range(3):
        turn()
        turn(hot=True)
        turn(deadline=3.0)
    assert session.definitions.misses["new"] == 1 + 3  # that of `x` and the three
    assert session.definitions.hits == 6


def test_a_compiled_function_is_traced_anew_under_another_hint() -> None:
    gt.connect("inproc", workers=1)

    @gt.compile
    def double(x: gt.Tensor) -> gt.Tensor:
        return x * 2

    x = gt.ones(2)
    for hints in ({}, {"hot": True}, {}):
        for _ in range(3):
            with gt.signal.context("a", **hints):
                assert double(x).tolist() == [2, 2]
    assert double.stats["traces"] == 4
    assert double.stats["replays"] == 5


# how they travel


@pytest.mark.parametrize("hints", [NO_HINTS, Hints(True), Hints(False, "ring", (("a/b", 0.5), ("a/b/c", 1.0)))])
def test_hints_travel_as_they_are(hints: Hints) -> None:
    assert unpack_hints(pack_hints(hints)) == hints


@pytest.mark.parametrize(
    "raw",
    [None, [1], [1, "", []], [True, "rign", []], [True, "", {}], [True, "", [["a", -1.0]]], [True, "", [["a"]]],
     [True, "", [[1, 1.0]]], [True, "", [["a", float("inf")]]], [False, "", [["a", 1.0]] * 65]],
)  # fmt: skip
def test_hints_of_another_form_are_refused(raw: object) -> None:
    with pytest.raises(ProtocolError):
        unpack_hints(raw)


# what follows from them


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_reduces_take_the_algorithm_that_is_asked_for_and_give_the_same(algorithm: str) -> None:
    gt.connect("inproc", workers=1)
    alone = gradient()
    gt.connect("inproc", workers=4, config=DATA_PARALLEL)
    for mine, theirs in zip(gradient(2, comm=algorithm), alone * 2, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    reduced = [(program.rank, move) for program in programs() for move in program.moves if move.reduce]
    assert {move.collective for _, move in reduced} == {"all-reduce"}
    partners: dict[int, set[int]] = {}
    for rank, move in reduced:
        partners.setdefault(rank, set()).update(move.targets)
    assert (
        partners
        == {
            "direct": {rank: {0, 1, 2, 3} - {rank} for rank in range(4)},
            "two-step": {rank: {0, 1, 2, 3} - {rank} for rank in range(4)},
            "ring": {rank: {(rank + 1) % 4} for rank in range(4)},
            "tree": {0: {1, 2}, 1: {0}, 2: {0, 3}, 3: {2}},
            "hierarchical": {rank: {0, 1, 2, 3} - {rank} for rank in range(4)},
        }[algorithm]
    )
    sent = {sending.targets for rank, move in reduced if rank == 0 for sending in move.sendings}
    assert (sent == {(1, 2, 3)}) == (algorithm == "direct")


def test_where_bits_may_not_depend_on_workers_an_algorithm_that_adds_otherwise_is_not_taken() -> None:
    config = {"deterministic": True, **DATA_PARALLEL}
    found = []
    for workers in (1, 4):
        for hints in ({}, {"comm": "ring"}, {"comm": "two-step"}):
            gt.connect("inproc", workers=workers, config=config)
            found.append(b"".join(part.tobytes() for part in gradient(**hints)))
    assert len({*found}) == 1


def test_what_is_said_to_be_hot_is_fused_at_its_first_run_and_has_the_same_bits() -> None:
    def chain(x: gt.Tensor, **hints: Any) -> bytes:
        with gt.signal.context("chain", **hints):
            y = ((x * 2.0).exp() + x).tanh() * x.sum(dim=1, keepdim=True)
        return bytes(y.numpy().tobytes())

    gt.connect("inproc", workers=1)
    x = gt.from_numpy(X)
    cold = chain(x)
    (program,) = programs()
    assert len(program.actions[0]) == len(program.blocks[0])
    assert program.runs == 1
    assert chain(x, hot=True) == cold
    hot = programs()[-1]
    assert len(hot.actions[0]) < len(hot.blocks[0])
    assert hot.runs == HOT_RUN


def test_a_deadline_that_a_plan_should_miss_is_mentioned_once(caplog: pytest.LogCaptureFixture) -> None:
    gt.connect("inproc", workers=1)
    x = gt.ones(512, 512)
    with caplog.at_level(logging.WARNING, logger="gt"):
        for turn in range(3):
            with gt.signal.context("fast", deadline=1e-6):
                y = x @ x
                if turn == 2:
                    y = y @ x  # another plan
            with gt.signal.context("slow", deadline=1000):
                y = y + 1
            y.sum().item()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("signal fast: should take 0.00")
    assert said.endswith("s in one plan, and its deadline is 1e-06 s")
