"""What several threads copy is what one would have copied."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gt.wire.shared_memory import parallel_copy
from gt.wire.shared_memory.parallel_copy import MAX_COPY_THREADS, copy_array, copy_threads


@pytest.mark.parametrize("kind", ["f4", "?", "c16", ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1001), (3, 50, 7), (999,), (2, 2), (1,), ()])
def test_every_element_is_copied_once(kind: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece, turned and cut; also where there are fewer elements than threads, and nothing beside the target."""
    monkeypatch.setattr(parallel_copy, "MIN_PARALLEL_BYTES", 2)
    whole = np.arange(int(np.prod(shape))).reshape(shape).astype(kind)
    for source in (whole, whole.T, whole[..., ::-1] if shape else whole):
        around = np.zeros((3, *source.shape), source.dtype)
        copy_array(around[1:2].reshape(source.shape), source, threads=4)
        assert around[1].tobytes() == source.tobytes()
        assert not around[0].any()
        assert not around[2].any()


def test_threads_are_a_part_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((1, 1), (4, 1), (8, 2), (16, 4), (128, MAX_COPY_THREADS)):
        monkeypatch.setattr(parallel_copy.os, "sched_getaffinity", lambda _, n=cores: range(n))
        copy_threads.cache_clear()
        assert copy_threads() == expected
    copy_threads.cache_clear()
