"""What a card tells of its power is charged to the programs that it computed for."""

from __future__ import annotations

import pytest
from daemons import Machine

from gt.worker.base.backend import backend
from gt.worker.device.nvml import NvmlGpu

BURN = """
    import time
    x = gt.from_numpy(np.random.default_rng(0).standard_normal((2048, 2048), np.float32))
    began = time.monotonic()
    joules = None
    while not joules and time.monotonic() - began < 60:
        y = x
        for _ in range(20):
            y = (y @ x) * 1e-2
        y.sum().item()
        joules = gt.usage().get("", {}).get("joules")
    taken = time.monotonic() - began
    assert joules, f"no joules in {taken:.0f} s"
    watts, limit = joules / taken, float(sys.argv[1])
    assert 0 < watts <= limit, f"{watts:.1f} W of {limit:.0f} W"
    print(f"{joules:.1f} J in {taken:.1f} s")
    say("charged")
"""
EXCESS = 1.25
"""How far a card may go beyond its limit for a moment."""


def test_a_program_is_charged_for_the_energy_of_its_card(machine: Machine) -> None:
    """As soon as the card has told its power twice; no more than the card may take in that time."""
    computed = backend("cuda:0")
    assert computed.bus is not None
    gpu = NvmlGpu(computed.bus)
    sample = gpu.sample()
    if sample is None:
        pytest.skip(f"no NVML: {gpu.reason}")
    if sample.power < 0:
        pytest.skip("NVML says nothing of this card's power")
    limit = sample.power_limit / 1000 if sample.power_limit > 0 else 2000.0
    program = machine.program(BURN, str(EXCESS * limit))
    program.expect("charged", 120.0)
    assert program.wait() == 0
