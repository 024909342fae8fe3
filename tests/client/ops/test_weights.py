"""Weights that only workers see: one that is out of range is an error where its result is fetched, with the user's line, and
stops nothing else."""

from collections.abc import Callable, Iterator
from math import inf, nan

import pytest

import gt

CALLS: tuple[Callable[[], gt.Tensor], ...] = (
    lambda: gt.multinomial(gt.tensor([1.0, -1.0]), 1),
    lambda: gt.multinomial(gt.tensor([1.0, inf]), 1, True),
    lambda: gt.multinomial(gt.tensor([1.0, nan]), 1),
    lambda: gt.multinomial(gt.tensor([[1.0, 1.0], [0.0, 0.0]]), 1, True),
    lambda: gt.cov(gt.ones(3), fweights=gt.tensor([1, 2, -1])),
    lambda: gt.cov(gt.ones(3), aweights=gt.tensor([1.0, 2.0, -1.0])),
    lambda: gt.bernoulli(gt.tensor([0.5, 1.5])),
    lambda: gt.bernoulli(gt.tensor([0.5, nan])),
    lambda: gt.normal(gt.zeros(2), gt.tensor([1.0, -1.0])),
    lambda: gt.poisson(gt.tensor([1.0, -1.0])),
)
LEGAL: tuple[tuple[Callable[[], gt.Tensor], object], ...] = (
    (lambda: gt.multinomial(gt.tensor([1.0, 0.0]), 1), [0]),
    (lambda: gt.cov(gt.tensor([1.0, 2.0, 9.0]), aweights=gt.tensor([1.0, 1.0, 0.0])), 0.5),
    (lambda: gt.bernoulli(gt.tensor([0.0, 1.0])), [0.0, 1.0]),
    (lambda: gt.normal(gt.ones(2), gt.tensor([0.0, 0.0])), [1.0, 1.0]),
    (lambda: gt.poisson(gt.tensor([0.0, 0.0])), [0.0, 0.0]),
)


@pytest.fixture(params=[1, 2], autouse=True)
def _workers(request: pytest.FixtureRequest) -> Iterator[None]:
    gt.connect("inproc", workers=request.param)
    yield
    gt.disconnect()


def test_a_weight_out_of_range_is_an_error_of_its_line_and_stops_nothing() -> None:
    found = [(call, call()) for call in CALLS]
    kept = gt.ones(2) * 3
    for call, value in found:
        with pytest.raises(gt.WorkerError, match="a weight, rate, deviation or probability is out of range") as caught:
            value.numpy()
        assert f"{__file__}:{call.__code__.co_firstlineno}" in str(caught.value)
    assert kept.tolist() == [3.0, 3.0]


def test_weights_within_range_are_taken_as_they_are() -> None:
    assert [call().tolist() for call, _ in LEGAL] == [expected for _, expected in LEGAL]


def test_gradients_flow_through_weights() -> None:
    w = gt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    gt.cov(gt.tensor([1.0, 2.0, 9.0]), aweights=w).backward()
    assert w.grad is not None
    assert w.grad.isfinite().all().item()
