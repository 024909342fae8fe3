"""Gradients that wait for others: those of the parts of one tensor, and of a matrix that meets few rows many times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from beside_torch import needs_torch

import gt
from gt.client.tensor import deferred_gradients
from gt.ir.instruction_bytes import unpack_segment
from gt.wire.messages import Define

try:
    import torch
except ImportError:
    torch = None

HOST = np.random.default_rng(0).standard_normal((6, 4))


def emitted(session: Any, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> Counter[str]:
    """How many instructions of each op the work emits, which is new to the session."""
    gt.synchronize()
    sent: list[Any] = []
    sink = session.sink

    def tap(messages: list[Any]) -> None:
        sent.extend(messages)
        sink(messages)

    monkeypatch.setattr(session, "sink", tap)
    work()
    gt.flush()
    segments = [unpack_segment(message.body) for message in sent if isinstance(message, Define)]
    return Counter(i.op for segment in segments for i in segment.instructions)


PARTS: dict[str, Callable[[Any], list[Any]]] = {
    "all rows": lambda x: [*x.unbind(0)],
    "all rows, from behind": lambda x: [*x.unbind(0)][::-1],
    "columns": lambda x: [*x.chunk(2, 1)],
    "with gaps": lambda x: [x[4:5], x[1:3]],
    "one": lambda x: [x[2:5]],
    "twice the same": lambda x: [x[1], x[1], x[0]],
    "overlapping": lambda x: [x[:3], x[4:], x[2:5]],
    "along two axes": lambda x: [x[:3], x[:, 1:3], x[3:]],
    "in steps": lambda x: [x[::2], x[1::2], x[:2]],
    "in two axes at once": lambda x: [x[:2, :2], x[2:, 2:]],
    "empty ones": lambda x: [x[2:2], x[:3]],
    "beside the whole": lambda x: [x[:3], x * 2, x[3:]],
}


@needs_torch
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("leaf", [True, False])
def test_gradients_of_parts_are_those_of_pytorch(name: str, leaf: bool) -> None:
    """First and second derivatives; of a leaf, and of what was computed."""

    def run(lib: Any) -> list[Any]:
        x = lib.tensor(HOST, requires_grad=True)
        parts = PARTS[name](x if leaf else x * 1.5)
        loss = sum((part**3 * (n + 1)).sum() for n, part in enumerate(parts))
        (first,) = lib.autograd.grad(loss, x, create_graph=True)
        (second,) = lib.autograd.grad((first**2).sum(), x)
        return [first.detach().numpy(), second.numpy()]

    for mine, theirs in zip(run(gt), run(torch), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10)


def test_parts_are_joined_once(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one whole tensor of zeros for each."""
    x = gt.tensor(HOST, requires_grad=True)

    def work() -> None:
        y = x * 2
        loss = (y[0] * y[1]).sum()
        for row in y[2:].unbind(0):
            loss = loss + (row * row).sum()
        loss.backward()

    ops = emitted(session, monkeypatch, work)
    assert (ops["cat"], ops["update_slice"]) == (2, 0), "the last four rows, and those with the first two"
    np.testing.assert_allclose(x.grad.numpy(), np.concatenate([4 * HOST[1:2], 4 * HOST[:1], 8 * HOST[2:]]))


def recurrent(weight: gt.Tensor, steps: int) -> gt.Tensor:
    """The sum over all steps of states of two rows."""
    state, total = gt.ones((2, weight.shape[0]), dtype=weight.dtype), gt.zeros((), dtype=weight.dtype)
    for _ in range(steps):
        state = (state @ weight).tanh()
        total = total + state.sum()
    return total


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("most", [deferred_gradients.MAX_WAITING_ELEMENTS, 100])
def test_a_matrix_that_meets_few_rows_has_one_product_for_its_gradient(
    session: Any, monkeypatch: pytest.MonkeyPatch, leaf: bool, most: int
) -> None:
    """Unless that holds too much."""
    monkeypatch.setattr(deferred_gradients, "MAX_WAITING_ELEMENTS", most)
    host = np.random.default_rng(1).standard_normal((8, 8)) / 4
    weight = gt.tensor(host, requires_grad=True)
    ops = emitted(session, monkeypatch, lambda: recurrent(weight if leaf else weight * 1.0, 6).backward())
    if most > 100:
        assert ops["matmul"] == 6 + 5 + 1 + leaf, "forward, states, and weights: of a leaf the first is not waited for"
    state, step, expected = np.ones((2, 8)), [], np.zeros((8, 8))
    for _ in range(6):
        before, state = state, np.tanh(state @ host)
        step.append((before, state))
    slope = np.zeros((2, 8))
    for before, after in reversed(step):
        inner = (slope + 1) * (1 - after**2)
        expected += before.T @ inner
        slope = inner @ host.T
    np.testing.assert_allclose(weight.grad.numpy(), expected, rtol=1e-10)


@pytest.mark.usefixtures("session")
def test_products_of_unlike_rows_are_added_up() -> None:
    weight = gt.tensor(np.eye(8), requires_grad=True)
    (weight * 1.0).sum().backward()
    y = weight * 1.0
    weight.grad = None
    total = (gt.ones((2, 8), dtype=gt.float64) @ y).sum() + (gt.ones((1, 8), dtype=gt.float64) @ y).sum()
    (total + (gt.ones((40, 8), dtype=gt.float64) @ y).sum() + y.sum()).backward()
    np.testing.assert_allclose(weight.grad.numpy(), np.full((8, 8), 44.0))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_sharded_rows_stay_where_they_are(workers: int) -> None:
    """The same gradient on several workers, whose rows are sharded."""
    gt.connect("inproc", workers=workers, config={"sharding_config": {"net": {"strategy": "data_parallel"}}})
    try:
        x = gt.from_numpy(np.random.default_rng(2).standard_normal((5, 6, 8)))
        with gt.signal.context("net"):
            net = gt.nn.LSTM(8, 8, batch_first=True, dtype=gt.float64)
            for parameter in net.parameters():
                parameter.data = gt.ones_like(parameter) / 8
            (net(x)[0] ** 2).sum().backward()
        found = [parameter.grad.numpy() for parameter in net.parameters()]
    finally:
        gt.disconnect()
    gt.connect("inproc", workers=1)
    try:
        net = gt.nn.LSTM(8, 8, batch_first=True, dtype=gt.float64)
        for parameter in net.parameters():
            parameter.data = gt.ones_like(parameter) / 8
        (net(gt.from_numpy(np.random.default_rng(2).standard_normal((5, 6, 8))))[0] ** 2).sum().backward()
        for mine, alone in zip(found, net.parameters(), strict=True):
            np.testing.assert_allclose(mine, alone.grad.numpy(), rtol=1e-10)
    finally:
        gt.disconnect()
