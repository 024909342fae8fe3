"""CUDA graphs where no GPU is: on a stand-in whose streams capture as strictly as CUDA's, all of `tests/gpu/test_graphs.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from card import installed
from cuda_on_host import COMPILER
from gpu import test_graphs

import gt
from gt import options

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to run CUDA sources with")


@pytest.fixture(autouse=True)
def _on_the_card() -> Iterator[None]:
    with installed():
        yield
        gt.disconnect()
        options.for_workers.clear()


globals().update({name: test for name, test in vars(test_graphs).items() if name.startswith("test_")})
