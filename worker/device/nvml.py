"""What a worker's GPU says of itself by NVML: temperature, power, use, memory, why it is slowed down, errors of its memory.

The one place that names pynvml. A GPU is found by its address on the PCI bus and never by its number: NVML counts all GPUs of the
machine, in the order of the bus, CUDA those of CUDA_VISIBLE_DEVICES, the fastest first. Without the package (nvidia-ml-py) or a
driver nothing is told, and a line at debug says why.

A call into a driver that is unwell may take long, or never return. So a worker asks in a thread that does nothing else, and its
heartbeat takes along what has been answered by then.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from gt.wire import messages as m

log = logging.getLogger(__name__)

CHIP_SENSOR: Final = 0
"""NVML_TEMPERATURE_GPU: the sensor in the chip."""
UNCORRECTED_ERRORS: Final = 1
VOLATILE_ERRORS: Final = 0
"""Of errors: NVML_MEMORY_ERROR_TYPE_UNCORRECTED, and NVML_VOLATILE_ECC, since the driver was loaded."""
THROTTLE_REASONS: Final = {
    0x002: "application clocks", 0x004: "power cap", 0x008: "hardware slowdown", 0x010: "sync boost", 0x020: "temperature",
    0x040: "hardware temperature", 0x080: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""Why clocks are lower than they could be, by NVML's bits (nvmlClocksEventReason…). Having nothing to do is none of them."""
MIN_PERIOD_SECONDS: Final = 2.0
"""Seconds between two samples, at least."""
PERIOD_PER_SAMPLE_TIME: Final = 200
"""The least time between two samples as a multiple of what one takes, because samples cost the driver time too."""


class NvmlGpu:
    """The state of one GPU as NVML reports it. Nothing is asked before the first `sample`, and nothing more once NVML could
    not be had."""

    def __init__(self, bus: Callable[[], str], load: Callable[[], Any] | None = None) -> None:
        """`bus` gives its address ('0000:65:00.0'), `load` the package."""
        self._bus = bus
        self._load = load or (lambda: importlib.import_module("pynvml"))
        self._nvml: Any = None
        self._handle: Any = None
        self.reason = ""
        """Why nothing can be had."""

    def sample(self) -> m.Health | None:
        """How it is now; None where that cannot be had."""
        if self._handle is None and not self.reason:
            self._find()
        if self.reason:
            return None
        nvml, handle = self._nvml, self._handle
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        rates = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        slowed = self._number(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return m.Health(
            self._number(lambda: nvml.nvmlDeviceGetTemperature(handle, CHIP_SENSOR)),
            self._number(lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
            self._number(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
            self._number(lambda: rates.gpu),
            self._number(lambda: memory.used),
            self._number(lambda: memory.total),
            self._number(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED_ERRORS, VOLATILE_ERRORS)),
            [word for bit, word in THROTTLE_REASONS.items() if slowed > 0 and slowed & bit],
        )

    def driver(self) -> str:
        """The version of the driver, as in '550.54.15'; empty where that cannot be had."""
        if self._handle is None and not self.reason:
            self._find()
        if self.reason:
            return ""
        return str(self._ask(lambda: self._nvml.nvmlSystemGetDriverVersion()) or "")

    def _find(self) -> None:
        try:
            self._nvml = nvml = self._load()
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByPciBusId(self._bus())
        except Exception as error:  # noqa: BLE001 — of NVML, of CUDA or of the import: it is never why a worker ends
            self.reason = f"{type(error).__name__}: {error}"
            log.debug("no temperature or power of the GPU: %s", self.reason)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer; None where the GPU has none, as most know only some of all this."""
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError, OSError):
            return None

    def _number(self, question: Callable[[], Any]) -> int:
        answer = self._ask(question)
        return -1 if answer is None else max(-1, min(int(answer), (1 << 63) - 1))


class HealthSamples:
    """The newest sample of a GPU, taken by a thread, so that nobody waits for the driver."""

    def __init__(
        self, gpu: NvmlGpu, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._gpu = gpu
        self._clock = clock
        self._sleep = sleep
        self._newest: deque[m.Health] = deque(maxlen=1)

    def start(self) -> HealthSamples:
        """Go on asking, in a thread that ends with the process, or when nothing can be had."""
        threading.Thread(target=self._run, name="gt-nvml", daemon=True).start()
        return self

    def newest(self) -> m.Health | None:
        """The newest one that was not taken yet; None where there is none."""
        try:
            return self._newest.pop()
        except IndexError:
            return None

    def _run(self) -> None:
        while True:
            began = self._clock()
            sample = self._gpu.sample()
            if sample is None:
                return
            self._newest.append(sample)
            self._sleep(max(MIN_PERIOD_SECONDS, PERIOD_PER_SAMPLE_TIME * (self._clock() - began)))
