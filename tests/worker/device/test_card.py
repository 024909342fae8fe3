"""Whole GPU workers without a compiler or CuPy: on the stand-in for CuPy all of `tests/gpu/test_workers.py` holds.

Chains run step by step here; `make pretend-test` runs the same tests with the kernels that are generated for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from card import CARD, Array, installed
from gpu import test_workers

import gt


@pytest.fixture(autouse=True)
def _on_the_card() -> Iterator[None]:
    with installed():
        yield
        gt.disconnect()


globals().update({name: test for name, test in vars(test_workers).items() if name.startswith("test_")})


def test_the_card_is_as_strict_as_cupy() -> None:
    """It can fail: what CuPy refuses is refused."""
    x = CARD.asarray(np.ones(3, np.float32))
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(x)
    with pytest.raises(TypeError, match="Unsupported type"):
        CARD.add(x, np.ones(3, np.float32))
    with pytest.raises(TypeError, match="Unsupported type"):
        x[:2] = np.zeros(2, np.float32)
    with pytest.raises(TypeError, match="bfloat16"):
        CARD.add(x.astype(gt.bfloat16.numpy), 1)
    with pytest.raises(AttributeError):
        CARD.no_such_function  # noqa: B018
    assert isinstance(CARD.sum(x), Array)
    assert isinstance(x[0], Array)
    assert not hasattr(CARD.add, "reduce")


def test_the_suite_of_ops_loads() -> None:
    """Where there is a GPU every test of kernels is there once more."""
    from gpu import test_ops

    found = [name for name in vars(test_ops) if name.startswith("test_")]
    assert len(found) > 50
