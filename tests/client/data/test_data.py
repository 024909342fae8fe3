"""Data sets, samplers and loaders beside PyTorch's."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
from beside_torch import needs_torch

import gt
from gt import data

try:
    import torch
    from torch.utils import data as torch_data
except ImportError:
    torch = None

pytestmark = pytest.mark.usefixtures("session")

X = np.arange(22, dtype=np.float32).reshape(11, 2)
Y = np.arange(11)


def rows(batches: Any) -> list[list[int]]:
    """The examples of each batch."""
    return [batch[1].tolist() for batch in batches]


def test_batches_go_through_all_examples_in_order() -> None:
    loader = data.DataLoader(data.TensorDataset(X, Y), batch_size=4, num_workers=2, pin_memory=True)
    batches = list(loader)
    assert rows(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    np.testing.assert_array_equal(np.concatenate([batch[0].numpy() for batch in batches]), X)
    assert len(loader) == 3
    assert len(data.DataLoader(data.TensorDataset(X, Y), 4, drop_last=True)) == 2
    assert rows(data.DataLoader(data.TensorDataset(X, Y), 4, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_shuffled_batches_are_another_order_of_the_same_that_a_seed_repeats() -> None:
    made = lambda: data.DataLoader(  # noqa: E731
        data.TensorDataset(X, Y), 4, shuffle=True, generator=gt.Generator().manual_seed(3)
    )
    loader = made()
    first, second = rows(loader), rows(loader)
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(11))
    assert rows(made()) == first
    for batch in made():
        np.testing.assert_array_equal(batch[0].numpy(), X[batch[1].numpy()])
    gt.manual_seed(1)
    once = rows(data.DataLoader(data.TensorDataset(X, Y), 4, shuffle=True))
    gt.manual_seed(1)
    assert rows(data.DataLoader(data.TensorDataset(X, Y), 4, shuffle=True)) == once


def test_parts_and_chains_of_data_sets() -> None:
    whole = data.TensorDataset(X, Y)
    first, second = data.random_split(whole, [8, 3], gt.Generator().manual_seed(0))
    assert sorted(rows(data.DataLoader(first, 8))[0] + rows(data.DataLoader(second, 3))[0]) == list(range(11))
    assert [len(part) for part in data.random_split(whole, [0.5, 0.25, 0.25])] == [6, 3, 2]
    with pytest.raises(ValueError, match="does not equal the length"):
        data.random_split(whole, [1, 2])
    joined = whole + data.Subset(whole, [3, 1])
    assert len(joined) == 13
    assert joined[11][1].item() == 3
    assert joined[-1][1].item() == 1
    assert rows(data.DataLoader(joined, 13)) == [[*range(11), 3, 1]]
    both = data.StackDataset(x=whole, y=whole)
    assert both[2]["y"][1].item() == 2
    with pytest.raises(gt.ShapeError, match="Size mismatch"):
        data.TensorDataset(X, Y[:3])


def test_samplers_say_what_and_in_which_order() -> None:
    whole = data.TensorDataset(X, Y)
    weighted = data.WeightedRandomSampler([0, 0, 1, 0, 1] + [0] * 6, 20)
    assert set(chain(*rows(data.DataLoader(whole, 5, sampler=weighted)))) == {2, 4}
    assert set(data.SubsetRandomSampler([5, 7])) == {5, 7}
    assert len(list(data.RandomSampler(whole, replacement=True, num_samples=30))) == 30
    assert sorted(data.RandomSampler(whole, num_samples=22)) == sorted([*range(11), *range(11)])
    assert rows(data.DataLoader(whole, batch_sampler=[[1, 0], [10]])) == [[1, 0], [10]]
    for wrong in ({"sampler": [0], "shuffle": True}, {"batch_sampler": [[0]], "batch_size": 2}):
        with pytest.raises(ValueError, match="mutually exclusive"):
            data.DataLoader(whole, **wrong)


class Stream(data.IterableDataset):
    """Numbers, one after the other."""

    def __iter__(self) -> Iterator[Any]:
        yield from range(5)


def test_what_has_no_numbers_is_batched_as_it_comes() -> None:
    assert [batch.tolist() for batch in data.DataLoader(Stream(), 2)] == [[0, 1], [2, 3], [4]]
    assert [batch.tolist() for batch in data.DataLoader(Stream() + Stream(), 4, drop_last=True)] == [
        [0, 1, 2, 3],
        [4, 0, 1, 2],
    ]
    assert list(data.DataLoader(Stream(), None)) == [0, 1, 2, 3, 4]


Point = namedtuple("Point", "x y")
EXAMPLES: list[Any] = [
    {"a": 1.5, "b": (1, "one")},
    [np.float32(2), np.arange(3)],
    Point(True, 2),
    "text",
]


@needs_torch
@pytest.mark.parametrize("example", EXAMPLES, ids=["mapping", "arrays", "named", "string"])
def test_examples_are_put_together_as_in_pytorch(example: Any) -> None:
    def same(got: Any, want: Any) -> None:
        if isinstance(want, torch.Tensor):
            assert str(got.dtype).removeprefix("gt.") == str(want.dtype).removeprefix("torch.")
            np.testing.assert_array_equal(got.numpy(), want.numpy())
        elif isinstance(want, dict):
            assert list(got) == list(want)
            for key in want:
                same(got[key], want[key])
        elif isinstance(want, str):
            assert got == want
        else:
            assert type(got) is type(want)
            for a, b in zip(got, want, strict=True):
                same(a, b)

    same(data.default_collate([example] * 3), torch_data.default_collate([example] * 3))


@needs_torch
def test_pytorchs_data_sets_and_loaders_do_as_well() -> None:
    whole = torch_data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    (x, y), *_ = data.DataLoader(whole, 4)
    assert isinstance(x, gt.Tensor)
    np.testing.assert_array_equal(x.numpy(), X[:4])
    assert y.dtype is gt.int64
    for theirs in torch_data.DataLoader(whole, 4):
        assert gt.tensor(theirs[0]).shape == tuple(theirs[0].shape)
        assert gt.equal(gt.as_tensor(theirs[1]), gt.tensor(theirs[1].numpy()))


def test_a_loop_over_shuffled_batches_makes_no_new_plans() -> None:
    model = gt.nn.Linear(2, 3)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    loader = data.DataLoader(data.TensorDataset(X, Y % 3), 4, shuffle=True, drop_last=True)

    def epoch() -> tuple[int, int]:
        for x, y in loader:
            optimizer.zero_grad()
            gt.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        counted = gt.stats()
        return counted["definitions_made"], counted["plans_made"]

    for _ in range(3):
        epoch()
    assert epoch() == epoch()
