"""Whole GPU workers where no GPU is: on a stand-in with CuPy's manners all of `tests/gpu/test_workers.py` holds.

And CUDA sources compute, compiled by the host's own compiler, what the kernels of CPUs compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from card import CARD, Array, installed
from cuda_on_host import COMPILER
from gpu import test_workers

import gt

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to run CUDA sources with")


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


def test_the_card_captures_as_cuda_does() -> None:
    """Nothing is computed until the graph is launched, and then at the same addresses; what cannot be captured voids it."""
    x = CARD.asarray(np.arange(4.0))
    block = CARD.zeros(32, np.uint8)
    place = CARD.ndarray(x.shape, x.dtype, block.data, x.strides)
    stream = CARD.cuda.Stream(non_blocking=True)
    with stream, CARD.cuda.using_allocator(lambda _: block.data):
        stream.begin_capture()
        made = CARD.multiply(x.reshape(2, 2).reshape(4), 2.0)
        graph = stream.end_capture()
    assert not np.array_equal(made.get(), [0, 2, 4, 6])
    graph.launch()
    np.testing.assert_array_equal(place.get(), [0, 2, 4, 6])
    x[0] = 5
    graph.launch()
    np.testing.assert_array_equal(made.get(), [10, 2, 4, 6])
    refused: list[tuple[str, Callable[[], object]]] = [
        ("synchron", CARD.cuda.Device(0).synchronize),
        ("copy from memory of the host", lambda: CARD.asarray(np.ones(2))),
        ("copy to the host", x.get),
        ("value at the host", x.__bool__),
        ("cudaMalloc", lambda: CARD.exp(x)),
        ("cuBLAS", lambda: CARD.matmul(x, x)),
    ]
    for text, call in refused:
        with stream:
            stream.begin_capture()
            with pytest.raises(RuntimeError, match=f"(?i){text}"):
                call()
            with pytest.raises(RuntimeError, match="invalidated"):
                stream.end_capture()
    with pytest.raises(RuntimeError, match="default"):
        CARD.cuda.get_current_stream().begin_capture()
