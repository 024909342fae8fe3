"""How a GPU is found and asked: by its place on the bus, whatever it does not tell, and without a word where there is none; and
that nobody waits for its answers."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gt.wire.messages import Health
from gt.wire.messages.codec import decode, encode
from gt.worker.device.nvml import (
    CHIP_SENSOR,
    MIN_PERIOD_SECONDS,
    PERIOD_PER_SAMPLE_TIME,
    THROTTLE_REASONS,
    UNCORRECTED_ERRORS,
    VOLATILE_ERRORS,
    HealthSamples,
    NvmlGpu,
)

TOLD = Health(41, 312_500, 700_000, 93, 5 << 30, 80 << 30, 2, ["power cap", "hardware temperature"])
"""By the second GPU of `Nvml`."""


class NVMLError(Exception):
    """As pynvml's."""


class Nvml:
    """A machine with two GPUs, of which the second tells everything and the first little; it remembers what was asked."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.begun = 0
        self.asked: list[str] = []

    def nvmlInit(self) -> None:
        self.begun += 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> int:
        self.asked.append(bus)
        return {"0000:17:00.0": 0, "0000:65:00.0": 1}[bus]

    def _only(self, handle: int, value: Any) -> Any:
        if handle == 0:
            raise NVMLError("Not Supported")
        return value

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == CHIP_SENSOR
        return 40 + handle

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._only(handle, 312_500)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return self._only(handle, 700_000)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._only(handle, SimpleNamespace(gpu=93, memory=12))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=5 << 30, total=80 << 30)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self._only(handle, 0x1 | 0x4 | 0x40 | 1 << 40)

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        assert (kind, counter) == (UNCORRECTED_ERRORS, VOLATILE_ERRORS)
        return self._only(handle, 2)


def test_a_gpu_is_found_by_its_place_on_the_bus_and_asked_for_all_it_knows() -> None:
    nvml = Nvml()
    gpu = NvmlGpu(lambda: "0000:65:00.0", lambda: nvml)
    assert nvml.begun == 0, "nobody has asked yet"
    assert gpu.sample() == gpu.sample() == TOLD
    assert (nvml.begun, nvml.asked) == (1, ["0000:65:00.0"])


def test_the_driver_says_its_version() -> None:
    nvml = Nvml()
    assert NvmlGpu(lambda: "0000:17:00.0", lambda: nvml).driver() == "550.54.15"
    elsewhere = NvmlGpu(lambda: "0000:99:00.0", lambda: nvml)
    assert elsewhere.driver() == ""
    assert elsewhere.reason


def test_what_a_gpu_does_not_tell_is_not_known() -> None:
    assert NvmlGpu(lambda: "0000:17:00.0", Nvml).sample() == Health(40, -1, -1, -1, 5 << 30, 80 << 30, -1, [])


def test_whatever_a_driver_says_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that mean "not available", or nothing, end neither the worker nor its heartbeat."""
    for name, said in (("Temperature", -300), ("PowerUsage", 1 << 64), ("CurrentClocksThrottleReasons", (1 << 64) - 1)):
        monkeypatch.setattr(Nvml, f"nvmlDeviceGet{name}", lambda *_, said=said: said)
    sample = NvmlGpu(lambda: "0000:65:00.0", Nvml).sample()
    assert sample == TOLD._replace(temperature=-1, power=(1 << 63) - 1, slowed=list(THROTTLE_REASONS.values()))
    assert decode(encode(sample)) == sample


def _missing() -> Any:
    raise ModuleNotFoundError("No module named 'pynvml'")


def _no_driver() -> Any:
    nvml = Nvml()

    def begin() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    nvml.nvmlInit = begin  # type: ignore[method-assign]
    return nvml


@pytest.mark.parametrize(
    ("bus", "load", "reason"),
    [
        ("0000:65:00.0", _missing, "ModuleNotFoundError: No module named 'pynvml'"),
        ("0000:65:00.0", _no_driver, "NVMLError: NVML Shared Library Not Found"),
        ("0000:99:00.0", Nvml, "KeyError: '0000:99:00.0'"),
    ],
)
def test_without_the_package_the_driver_or_the_gpu_one_line_at_debug_says_so_and_nothing_is_asked_again(
    bus: str, load: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = NvmlGpu(lambda: bus, load)
    with caplog.at_level(logging.DEBUG):
        assert gpu.sample() is None
        assert gpu.sample() is None
    assert [record.getMessage() for record in caplog.records] == [f"no temperature or power of the GPU: {reason}"]
    assert gpu.reason == reason


class Turns:
    """A clock and what sleeps by it: a thread that sleeps stands still until it is woken."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.asleep, self.woken = threading.Semaphore(0), threading.Semaphore(0)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.asleep.release()
        self.woken.acquire()

    def pass_by(self) -> None:
        """The next sample is there."""
        self.woken.release()
        assert self.asleep.acquire(timeout=30)


class Sick(Nvml):
    """A driver of which a call does not return, or not soon."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.answers = threading.Event(), threading.Event()

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        self.called.set()
        assert self.answers.wait(30)
        return super().nvmlDeviceGetMemoryInfo(handle)


def _ended() -> None:
    """The thread that asks is no more."""
    for thread in threading.enumerate():
        if thread.name == "gt-nvml":
            thread.join(30)
            assert not thread.is_alive()


def test_nobody_waits_for_a_driver_that_hangs() -> None:
    """The heartbeat gets nothing as long as a call does not return, at once and as often as it asks; then it gets the sample."""
    nvml, turns = Sick(), Turns()
    gpu = NvmlGpu(lambda: "0000:65:00.0", lambda: nvml)
    samples = HealthSamples(gpu, turns.clock, turns.sleep).start()
    assert nvml.called.wait(30)
    assert [samples.newest() for _ in range(100)] == [None] * 100
    nvml.answers.set()
    assert turns.asleep.acquire(timeout=30)
    assert samples.newest() == TOLD
    gpu.reason = "the test is over"
    turns.woken.release()
    _ended()


def test_a_sample_is_taken_along_once_and_only_the_newest() -> None:
    """What nobody took in time is forgotten; between two samples pass two seconds, or two hundred times as long as one took."""
    nvml, turns = Nvml(), Turns()
    gpu = NvmlGpu(lambda: "0000:65:00.0", lambda: nvml)
    samples = HealthSamples(gpu, turns.clock, turns.sleep).start()
    assert turns.asleep.acquire(timeout=30)
    assert [samples.newest(), samples.newest()] == [TOLD, None]
    turns.pass_by()
    nvml.nvmlDeviceGetTemperature = lambda *_: setattr(turns, "now", turns.now + 0.5) or 99  # type: ignore[method-assign]
    turns.pass_by()
    assert [samples.newest(), samples.newest()] == [TOLD._replace(temperature=99), None]
    assert turns.slept == [MIN_PERIOD_SECONDS, MIN_PERIOD_SECONDS, PERIOD_PER_SAMPLE_TIME * 0.5]
    gpu.reason = "the test is over"
    turns.woken.release()
    _ended()


def test_without_nvml_the_thread_that_asks_ends() -> None:
    samples = HealthSamples(NvmlGpu(lambda: "0000:65:00.0", _missing)).start()
    _ended()
    assert samples.newest() is None


def test_the_real_package_has_the_names_and_numbers_that_are_used() -> None:
    nvml = pytest.importorskip("pynvml")
    for name in vars(Nvml):
        assert name.startswith("_") or hasattr(nvml, name), name
    assert (nvml.NVML_TEMPERATURE_GPU, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC) == (
        CHIP_SENSOR, UNCORRECTED_ERRORS, VOLATILE_ERRORS,
    )  # fmt: skip
    bits = {
        value
        for name, value in vars(nvml).items()
        if name.startswith("nvmlClocksEventReason") and isinstance(value, int) and value.bit_count() == 1
    }
    assert bits == {*THROTTLE_REASONS, nvml.nvmlClocksEventReasonGpuIdle}
