"""Whether there is a GPU to test on; without one this is all that is collected here."""

from __future__ import annotations

import pytest

from gt.worker.backend import backend, diagnose


def test_a_gpu_computes() -> None:
    reason = diagnose()["reason"]
    if reason:
        pytest.skip(f"no GPU: {reason}")
    computed = backend("cuda:0")
    assert computed.to_host(computed.xp.arange(5).sum()) == 10
