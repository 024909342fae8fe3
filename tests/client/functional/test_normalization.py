"""Normalization over neighbouring channels, beside PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import gt
from gt.nn import functional as F

CHANNELS = 5


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 9, 30])
def test_any_number_of_neighbours_is_what_pytorch_says(size: int) -> None:
    """Also more than there are channels."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(size).standard_normal((2, CHANNELS, 4, 3)).astype(np.float32)
    judge = torch.nn.functional.local_response_norm(torch.tensor(x), size).numpy()
    np.testing.assert_allclose(F.local_response_norm(gt.tensor(x), size).numpy(), judge, rtol=1e-6)


def test_neighbours_that_are_not_there_cost_nothing() -> None:
    """However many they are; and there is at least one."""
    x = gt.ones(1, CHANNELS, 3)
    F.local_response_norm(x, 2 * CHANNELS).numpy()
    before = gt.stats()["service"]["instructions"]
    F.local_response_norm(x, 10**9).numpy()
    assert gt.stats()["service"]["instructions"] - before < 100
    with pytest.raises(gt.ShapeError, match="size is at least 1, not 0"):
        F.local_response_norm(x, 0)
