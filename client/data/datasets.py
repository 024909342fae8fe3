"""Data sets: examples by number or one after the other. PyTorch's names and rules; its own data sets work as well."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gt.client.ops import creation, gather_scatter, random, shape_ops
from gt.errors import ShapeError

__all__ = [
    "ChainDataset", "ConcatDataset", "Dataset", "IterableDataset", "StackDataset", "Subset", "TensorDataset",
    "random_split",
]  # fmt: skip


class Dataset:
    """Base class: `__getitem__(index)`, and `__len__` if the number of examples is known."""

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError(
            f"Subclasses of Dataset should implement __getitem__, as {type(self).__name__} does not."
        )

    def __add__(self, other: Any) -> ConcatDataset:
        return ConcatDataset([self, other])

    def __class_getitem__(cls, _: Any) -> type[Dataset]:
        return cls


class IterableDataset(Dataset):
    """Base class of data sets that have only `__iter__`."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __add__(self, other: Any) -> ChainDataset:  # type: ignore[override]  # as in PyTorch
        return ChainDataset([self, other])


class TensorDataset(Dataset):
    """Tensors (or arrays) of equal first size: example i is the tuple of their i-th slices.

    A whole batch is sliced or gathered by one instruction per tensor.
    """

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tuple(creation.as_tensor(tensor) for tensor in tensors)
        if not self.tensors:
            raise ValueError("TensorDataset needs at least one tensor")
        if any(t.ndim == 0 or t.shape[0] != self.tensors[0].shape[0] for t in self.tensors):
            raise ShapeError(f"Size mismatch between tensors: {', '.join(str(t.shape) for t in self.tensors)}")

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple([tensor[index] for tensor in self.tensors])

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def batch(self, indices: Sequence[int]) -> list[Any]:
        """The examples with these numbers, stacked: a slice where they follow each other, else looked up."""
        start = indices[0]
        if start >= 0 and all(index == start + place for place, index in enumerate(indices)):
            return [shape_ops.narrow(tensor, 0, start, len(indices)) for tensor in self.tensors]
        size = len(self)
        places = creation.tensor([index + size if index < 0 else index for index in indices], dtype="int64")
        return [gather_scatter.index_select(tensor, 0, places) for tensor in self.tensors]


class StackDataset(Dataset):
    """Zip data sets of equal length: example i is the tuple (or the dict) of their i-th examples."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) is bool(kwargs):
            raise ValueError("StackDataset takes data sets either by place or by name, and at least one")
        self.datasets: Any = kwargs or args
        self._all = list(kwargs.values() or args)
        if any(len(each) != len(self._all[0]) for each in self._all):
            raise ValueError("Size mismatch between datasets")

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, dict):
            return {name: each[index] for name, each in self.datasets.items()}
        return tuple([each[index] for each in self._all])

    def __len__(self) -> int:
        return len(self._all[0])


class Subset(Dataset):
    """Some examples of a data set, in the order of `indices`."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[each] for each in index]]
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset):
    """Concatenate data sets."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets should not be an empty iterable")
        if any(isinstance(each, IterableDataset) for each in self.datasets):
            raise TypeError("ConcatDataset does not support IterableDataset: use ChainDataset")
        self.cumulative_sizes = list(itertools.accumulate(len(each) for each in self.datasets))

    def __getitem__(self, index: int) -> Any:
        if index < 0:
            if -index > len(self):
                raise ValueError("absolute value of index should not exceed dataset length")
            index += len(self)
        at = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[at][index - (self.cumulative_sizes[at - 1] if at else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset):
    """Chain iterable data sets."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for each in self.datasets:
            yield from each

    def __len__(self) -> int:
        return sum(len(each) for each in self.datasets)


def random_split(dataset: Any, lengths: Sequence[float], generator: random.Generator | None = None) -> list[Subset]:
    """Split a data set randomly into parts of these lengths, or fractions that add up to 1; leftovers are distributed
    in turn.
    """
    sizes = [int(length) for length in lengths]
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1 + 1e-9:
        if any(not 0 <= part <= 1 for part in lengths):
            raise ValueError(f"random_split: fractions lie from 0 to 1, not {list(lengths)}")
        sizes = [math.floor(len(dataset) * part) for part in lengths]
        for place in range(len(dataset) - sum(sizes)):
            sizes[place % len(sizes)] += 1
    if sum(sizes) != len(dataset):
        raise ValueError("Sum of input lengths does not equal the length of the input dataset!")
    order = random.numbers(generator).permutation(len(dataset)).tolist()
    ends = list(itertools.accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def stack_examples(dataset: Any, indices: Sequence[int]) -> list[Any] | None:
    """A batch of a `TensorDataset`, or of a part of one, without going through its examples; None for anything else."""
    while type(dataset) is Subset:
        dataset, indices = dataset.dataset, [dataset.indices[index] for index in indices]
    known = type(dataset) is TensorDataset and len(indices) > 0
    return dataset.batch(indices) if known and all(type(index) is int for index in indices) else None
