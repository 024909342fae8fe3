"""Real GPU workers where no GPU is: processes whose CuPy is the stand-in, and late; their shells ask what has come.

That they train as CPUs do is shown on the pretend device, by `tests/gpu/test_processes.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from daemons import Machine

pytestmark = pytest.mark.process
TESTS = Path(__file__).parents[1]
CUPY = f"""
import sys
sys.path.append({str(TESTS)!r})
from card import CARD, SPECIAL
CARD.timeline.quick = False
sys.modules["cupy"] = CARD
sys.modules["cupyx.scipy.special"] = SPECIAL
"""
"""What is imported in place of CuPy."""
PYNVML = f"""
import sys
sys.path.append({str(TESTS / "worker" / "device")!r})
from test_nvml import Nvml
class Hot(Nvml):
    def nvmlDeviceGetHandleByPciBusId(self, bus):
        return 1
sys.modules["pynvml"] = Hot()
"""
"""And of pynvml: a GPU that is too hot."""
LARGE = """
    gt.config.set({"memory_pool_size": "64MB"})
    from gt.service.launch import Local
    from gt.service import session
    local = Local(1, devices=["cuda:0"])
    session._join(local.address, None, 60.0, local)
    host = np.arange(3_000_000, dtype=np.float64)
    x = gt.from_numpy(host) + 1
    late = [x.fetch() for _ in range(3)]
    x = x * 2
    for one in late:
        np.testing.assert_array_equal(one.result(), host + 1)
    np.testing.assert_array_equal(x.numpy(), host * 2 + 2)
    say("the same")
"""


@pytest.fixture(autouse=True)
def _on_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes find the stand-in when they import CuPy."""
    (tmp_path / "cupy.py").write_text(CUPY, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("GT_GRAPHS", "0")  # the stand-in captures nothing


def test_fetches_of_more_than_the_pinned_memory_that_they_pass_through(machine: Machine) -> None:
    program = machine.program(LARGE)
    program.expect("the same", 120.0)
    assert program.wait() == 0


def test_a_worker_says_how_its_gpu_is_though_nobody_watches(machine: Machine, tmp_path: Path) -> None:
    """Its heartbeat has it, so the dispatcher's log does and a program that asks does."""
    (tmp_path / "pynvml.py").write_text(PYNVML, "utf-8")
    dispatcher = machine.command("dispatcher", "--address", "tcp://127.0.0.1:*", "--log-level", "info")
    address = dispatcher.expect("listening at").split()[-1]
    machine.command("worker", "--address", address, "--device", "cuda:0")
    assert "slowed down: hardware temperature (41 °C, 312 W)" in dispatcher.expect("the GPU of worker 0")
    program = machine.program("gt.connect(sys.argv[1]); say(gt.devices()[0].health)", address)
    assert "slowed=('power cap', 'hardware temperature')" in program.expect("Health(age=")
    assert program.wait() == 0
