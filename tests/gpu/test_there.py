"""Whether there is a GPU to test on; without one this is all that is collected here."""

from __future__ import annotations

import pytest

from gt.wire.messages.codec import decode, encode
from gt.worker.base.backend import backend, diagnose
from gt.worker.device.nvml import NvmlGpu


def test_a_gpu_computes() -> None:
    reason = diagnose()["reason"]
    if reason:
        pytest.skip(f"no GPU: {reason}")
    computed = backend("cuda:0")
    assert computed.to_host(computed.xp.arange(5).sum()) == 10


def test_nvml_says_how_it_is() -> None:
    """And the heartbeat can carry what it says."""
    reason = diagnose()["reason"]
    if reason:
        pytest.skip(f"no GPU: {reason}")
    computed = backend("cuda:0")
    assert computed.bus is not None
    gpu = NvmlGpu(computed.bus)
    sample = gpu.sample()
    if sample is None:
        pytest.skip(f"no NVML: {gpu.reason}")
    assert decode(encode(sample)) == sample
    assert 0 < sample.used <= sample.total
