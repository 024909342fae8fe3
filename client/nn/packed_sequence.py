"""Sequences of different lengths as one tensor: padded to the longest, or packed without padding, as recurrent networks read
them.

How long sequences are is known to the program, so where each element goes is worked out at the client; elements move once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gt.client.ops import arithmetic, creation, join_and_pad, shape_ops
from gt.client.tensor import emission
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence", "pad_sequence",
    "unpack_sequence", "unpad_sequence",
]  # fmt: skip


class PackedSequence(NamedTuple):
    """Sequences, the longest first: all their first elements, then all their second, and so on.

    `batch_sizes` says how many sequences have such an element. The indices say which sequence was which.
    """

    data: Tensor
    batch_sizes: tuple[int, ...]
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def to(self, *args: Any, **options: Any) -> PackedSequence:
        """With the elements in another dtype."""
        return self._replace(data=self.data.to(*args, **options))

    def cpu(self) -> PackedSequence:
        return self

    def cuda(self, device: Any = None) -> PackedSequence:
        return self


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The order that undoes an order."""
    return None if permutation is None else permutation.argsort()


def _as_list(lengths: Any) -> list[int]:
    return [int(each) for each in (lengths.tolist() if hasattr(lengths, "tolist") else lengths)]


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack sequences (T, N, …), or with `batch_first` (N, T, …), of these lengths: integers, or a tensor, which is fetched."""
    x = shape_ops.transpose(input, 0, 1) if batch_first else input
    sizes = np.array(_as_list(lengths), np.int64)
    if x.ndim < 2 or len(sizes) != x.shape[1] or not len(sizes) or sizes.min() < 1 or sizes.max() > x.shape[0]:
        raise ShapeError(
            f"pack_padded_sequence: lengths from 1 to {x.shape[0]}, one for each of {x.shape[1]} sequences, not {sizes.tolist()}"
        )
    order = np.argsort(-sizes, kind="stable")
    if enforce_sorted:
        if (np.diff(sizes) > 0).any():
            raise ValueError(
                "pack_padded_sequence: lengths are not descending; pass enforce_sorted=False to have them sorted"
            )
        order = np.arange(len(sizes))
    counts = tuple(int((sizes > step).sum()) for step in range(int(sizes.max())))
    places = np.concatenate([step * x.shape[1] + order[:count] for step, count in enumerate(counts)])
    flat = shape_ops.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))
    data = emission.emit("take", (flat, creation.tensor(places)), 0)
    if enforce_sorted:
        return PackedSequence(data, counts)
    return PackedSequence(data, counts, creation.tensor(order), creation.tensor(np.argsort(order)))


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sequences (T, N, …) again, in their first order, and their lengths."""
    data, counts = sequence.data, _as_list(sequence.batch_sizes)
    steps, count = len(counts), counts[0]
    total = steps if total_length is None else total_length
    if total < steps:
        raise ValueError(f"pad_packed_sequence: total_length {total} is less than the longest sequence, {steps}")
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    column = np.arange(count)
    order = column if sequence.unsorted_indices is None else np.array(sequence.unsorted_indices.tolist(), np.int64)
    inside = np.zeros((total, count), np.bool_)
    places = np.zeros((total, count), np.int64)
    for step, (start, size) in enumerate(zip(starts, counts, strict=True)):
        inside[step] = order < size
        places[step] = np.where(inside[step], start + order, 0)
    out = emission.emit("take", (data, creation.tensor(places)), 0)
    kept = creation.tensor(inside.reshape(total, count, *[1] * (data.ndim - 1)))
    out = arithmetic.where(kept, out, padding_value)
    lengths = creation.tensor(inside.sum(0).astype(np.int64))
    return (shape_ops.transpose(out, 0, 1) if batch_first else out), lengths


def pad_sequence(
    sequences: Tensor | Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences of different lengths, (T, …) each, side by side: (T, N, …), or with `batch_first` (N, T, …)."""
    listed = list(sequences)
    if not listed or any(each.ndim < 1 or each.shape[1:] != listed[0].shape[1:] for each in listed):
        raise ShapeError(f"pad_sequence: shapes {[each.shape for each in listed]} differ in more than their lengths")
    if padding_side not in ("right", "left"):
        raise ValueError(f"pad_sequence: padding_side is 'right' or 'left', not {padding_side!r}")
    longest = max(each.shape[0] for each in listed)
    rows = []
    for each in listed:
        missing = longest - each.shape[0]
        ends = (0, missing) if padding_side == "right" else (missing, 0)
        rows.append(join_and_pad.pad(each, (*(0,) * (2 * (each.ndim - 1)), *ends), value=padding_value))
    return join_and_pad.stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences that were put side by side, each of its own length."""
    x = padded_sequences if batch_first else shape_ops.transpose(padded_sequences, 0, 1)
    return [x[at, :length] for at, length in enumerate(_as_list(lengths))]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences of different lengths, (T, …) each."""
    lengths = [each.shape[0] for each in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that were packed, in their first order."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
