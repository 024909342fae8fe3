"""CUDA graphs where no GPU is: on a stand-in whose streams capture as strictly as CUDA's, all of `tests/gpu/test_graphs.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from card import installed
from cublas_on_host import Library
from cuda_on_host import COMPILER
from gpu import test_graphs

import gt
from gt.sharding import options
from gt.worker.base import backend

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to run CUDA sources with")


@pytest.fixture(autouse=True)
def _on_the_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(backend, "_cublas", Library)
    with installed():
        yield
        gt.disconnect()
        options.for_workers.clear()


globals().update({name: test for name, test in vars(test_graphs).items() if name.startswith("test_")})
