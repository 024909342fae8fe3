"""PyTorch's operators of sequences that say on the CPU how long they are: packed ones, and the CTC loss.

PyTorch wants lengths on the CPU whatever the device is, and computes with them there; so do these.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import gt

__all__ = ["lengths_of", "packed_rows"]


def lengths_of(lengths: Any) -> list[int]:
    """Lengths, which came as a tensor or in a list."""
    return [int(each) for each in (lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths)]


def packed_rows(x: gt.Tensor, lengths: Sequence[int], batch_first: bool) -> tuple[gt.Tensor, list[int]]:
    """What `_pack_padded_sequence` does with a padded batch of sequences, the longest first: the rows that are no padding, by
    time and then by sequence, and how many sequences there are at each time. Raises `RuntimeError` where PyTorch does."""
    batch, longest = (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
    if len(lengths) != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} (batch_size={batch})"
        )
    if any(first < second for first, second in itertools.pairwise(lengths)):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True: pass enforce_sorted=False"
        )
    if not lengths or lengths[-1] <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    if lengths[0] > longest:
        raise RuntimeError(f"a sequence of {lengths[0]} steps in a batch of {longest} steps")
    there = np.arange(lengths[0])[:, None] < np.asarray(lengths)
    times, sequences = np.nonzero(there)
    places = sequences * longest + times if batch_first else times * batch + sequences
    rows = gt.reshape(x, (batch * longest, *x.shape[2:]))
    return gt.index_select(rows, 0, gt.tensor(places)), [int(each) for each in there.sum(1)]
