"""How a GPU is found and asked: by its place on the bus, whatever it does not tell, and without a word where there is none."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from gt.telemetry import Device
from gt.worker.nvml import CELSIUS, REASONS, UNCORRECTED, VOLATILE, Gpu


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
        assert sensor == CELSIUS
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
        assert (kind, counter) == (UNCORRECTED, VOLATILE)
        return self._only(handle, 2)


def test_a_gpu_is_found_by_its_place_on_the_bus_and_asked_for_all_it_knows() -> None:
    nvml = Nvml()
    gpu = Gpu(lambda: "0000:65:00.0", lambda: nvml)
    assert nvml.begun == 0, "nobody watches yet"
    expected = Device(9, 3, 41, 312_500, 700_000, 93, 5 << 30, 80 << 30, 2, ["power cap", "hardware temperature"])
    assert gpu.sample(9, 3) == gpu.sample(9, 3) == expected
    assert (nvml.begun, nvml.asked) == (1, ["0000:65:00.0"])


def test_the_driver_says_its_version() -> None:
    nvml = Nvml()
    assert Gpu(lambda: "0000:17:00.0", lambda: nvml).driver() == "550.54.15"
    elsewhere = Gpu(lambda: "0000:99:00.0", lambda: nvml)
    assert elsewhere.driver() == ""
    assert elsewhere.reason


def test_what_a_gpu_does_not_tell_is_not_known() -> None:
    assert Gpu(lambda: "0000:17:00.0", Nvml).sample(9, 3) == Device(9, 3, 40, -1, -1, -1, 5 << 30, 80 << 30, -1, [])


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
    gpu = Gpu(lambda: bus, load)
    with caplog.at_level(logging.DEBUG):
        assert gpu.sample(9, 3) is None
        assert gpu.sample(9, 3) is None
    assert [record.getMessage() for record in caplog.records] == [f"no temperature or power of the GPU: {reason}"]
    assert gpu.reason == reason


def test_the_real_package_has_the_names_and_numbers_that_are_used() -> None:
    nvml = pytest.importorskip("pynvml")
    for name in vars(Nvml):
        assert name.startswith("_") or hasattr(nvml, name), name
    assert (nvml.NVML_TEMPERATURE_GPU, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC) == (
        CELSIUS, UNCORRECTED, VOLATILE,
    )  # fmt: skip
    bits = {
        value
        for name, value in vars(nvml).items()
        if name.startswith("nvmlClocksEventReason") and isinstance(value, int) and value.bit_count() == 1
    }
    assert bits == {*REASONS, nvml.nvmlClocksEventReasonGpuIdle}
