"""The data loader, which makes batches of examples, and samplers: PyTorch's names and arguments.

Batches are made in the thread that asks for them. Arguments about worker processes and pinned memory are accepted: of
tensors, making a batch only emits instructions, so there is nothing to wait for that others could do meanwhile. What reads
files is for `prefetch.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gt.client.ops import creation, join_and_pad, random
from gt.client.tensor.tensor import Tensor

from .datasets import stack_examples

__all__ = [
    "BatchSampler", "DataLoader", "DistributedSampler", "RandomSampler", "Sampler", "SequentialSampler", "SubsetRandomSampler",
    "WeightedRandomSampler", "default_collate", "get_worker_info",
]  # fmt: skip


# which examples, in which order


class Sampler:
    """Base class: `__iter__` yields indices of examples."""

    def __init__(self, data_source: Any = None) -> None:
        """There is nothing to keep."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __class_getitem__(cls, _: Any) -> type[Sampler]:
        return cls


class SequentialSampler(Sampler):
    """All indices in order."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """All indices in random order, repeated up to `num_samples`; or independent draws, with `replacement`."""

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: random.Generator | None = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if num_samples is not None and num_samples <= 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")

    @property
    def num_samples(self) -> int:
        """How many numbers there are."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        numbers, size, left = random.numbers(self.generator), len(self.data_source), self.num_samples
        if self.replacement:
            yield from numbers.integers(0, size, left).tolist()
            return
        while left > 0 and size:
            yield from numbers.permutation(size)[:left].tolist()
            left -= size

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Given indices, in random order."""

    def __init__(self, indices: Sequence[int], generator: random.Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for place in random.numbers(self.generator).permutation(len(self.indices)):
            yield self.indices[place]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """`num_samples` indices drawn in proportion to weights, which need not add up to 1."""

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: random.Generator | None = None,
    ) -> None:
        self.weights = np.asarray(weights, dtype=np.float64)
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator
        if self.weights.ndim != 1 or num_samples <= 0:
            raise ValueError(f"weights of one dimension and a positive num_samples, not {weights!r} and {num_samples}")

    def __iter__(self) -> Iterator[int]:
        shares = self.weights / self.weights.sum()
        numbers = random.numbers(self.generator)
        yield from numbers.choice(len(shares), self.num_samples, self.replacement, shares).tolist()

    def __len__(self) -> int:
        return self.num_samples


class DistributedSampler(Sampler):
    """The share of one of several processes in a data set: every `num_replicas`-th index from `rank` on.

    A GT program is one process, so that by default its share is all. Shares are filled up from the beginning to one length,
    or cut to one with `drop_last`. The order is drawn anew for each `set_epoch`; it is NumPy's, not PyTorch's.
    """

    def __init__(
        self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True, seed: int = 0,
        drop_last: bool = False,
    ) -> None:  # fmt: skip
        self.dataset = dataset
        self.num_replicas = 1 if num_replicas is None else num_replicas
        self.rank = 0 if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"DistributedSampler: rank {self.rank} is none of {self.num_replicas}")
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        size = len(dataset)
        self.num_samples = size // self.num_replicas if drop_last else -(-size // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Has the next iteration be in the order of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        order = np.random.default_rng(self.seed + self.epoch).permutation(size) if self.shuffle else np.arange(size)
        yield from np.resize(order, self.total_size)[self.rank :: self.num_replicas].tolist()

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Group the indices of another sampler into lists of `batch_size`; the last may be shorter, unless `drop_last`."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        if batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        batch: list[Any] = []
        for number in self.sampler:
            batch.append(number)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]  # a sampler without a length has no batches to count
        return count // self.batch_size if self.drop_last else math.ceil(count / self.batch_size)


# batches


def default_collate(batch: Sequence[Any]) -> Any:
    """Combine examples into a batch: stack tensors and arrays (also PyTorch's), turn numbers into a tensor, and do
    the same inside tuples, lists and mappings; strings are unchanged.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return join_and_pad.stack(list(batch))
    if hasattr(first, "__array__") and hasattr(first, "dtype"):
        return creation.tensor(np.stack([np.asarray(each) for each in batch]))
    if isinstance(first, float):
        return creation.tensor(list(batch), dtype="float64")
    if isinstance(first, int):
        return creation.tensor(list(batch))
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return {key: default_collate([each[key] for each in batch]) for key in first}
    if isinstance(first, Sequence):
        if any(len(each) != len(first) for each in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        columns = [default_collate(column) for column in zip(*batch, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else columns
    raise TypeError(
        f"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {type(first)}"
    )


def get_worker_info() -> None:
    """None: batches are made in the program's own process."""


class DataLoader:
    """Iterate over batches of a data set; `batch_size=None` yields single examples."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: random.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        self.dataset = dataset
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.generator = generator
        kinds = {kind.__name__ for kind in type(dataset).__mro__}  # PyTorch's is one, too
        self._iterable = "IterableDataset" in kinds or not hasattr(dataset, "__getitem__")
        if self._iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader with an iterable data set takes no shuffle, sampler or batch_sampler")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        self.batch_size = batch_size
        self.drop_last = drop_last
        if sampler is None and not self._iterable and batch_sampler is None:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.sampler = sampler
        if batch_sampler is None and batch_size is not None and sampler is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_sampler = batch_sampler
        self._collates = batch_size is not None or batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if self._collates else _convert)
        self._stacks = collate_fn is None

    def __iter__(self) -> Iterator[Any]:
        if self._iterable:
            yield from self._stream()
        elif self.batch_sampler is None:
            assert self.sampler is not None
            for number in self.sampler:
                yield self.collate_fn(self.dataset[number])
        else:
            for numbers in self.batch_sampler:
                yield self._batch(list(numbers))

    def _batch(self, numbers: list[Any]) -> Any:
        whole = stack_examples(self.dataset, numbers) if self._stacks else None
        if whole is not None:
            return whole
        if hasattr(self.dataset, "__getitems__"):
            return self.collate_fn(self.dataset.__getitems__(numbers))
        return self.collate_fn([self.dataset[number] for number in numbers])

    def _stream(self) -> Iterator[Any]:
        """Batches of what has no numbers."""
        if self.batch_size is None:
            yield from map(self.collate_fn, self.dataset)
            return
        for batch in BatchSampler(self.dataset, self.batch_size, self.drop_last):
            yield self.collate_fn(batch)

    def __len__(self) -> int:
        if self._iterable:
            count = len(self.dataset)
            if self.batch_size is None:
                return count
            return count // self.batch_size if self.drop_last else math.ceil(count / self.batch_size)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type]


def _convert(example: Any) -> Any:
    """One example as it is, arrays as tensors."""
    return creation.tensor(example) if isinstance(example, np.ndarray) else example
