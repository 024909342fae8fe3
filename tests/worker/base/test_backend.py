"""Which device a worker gets, and what it is told when it cannot have the one it asked for."""

from __future__ import annotations

import logging
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from card import CARD

from gt.errors import SessionError
from gt.worker.base import backend as module
from gt.worker.base.backend import backend, count_devices, special


class FakeDevice:
    """A GPU that remembers what was asked of it."""

    current: int | None = None
    waits = 0

    def __init__(self, index: int = 0) -> None:
        self.index = index

    def use(self) -> None:
        FakeDevice.current = self.index

    def synchronize(self) -> None:
        FakeDevice.waits += 1

    def __enter__(self) -> FakeDevice:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def fake_cupy(count: int | Exception, driver: int = 12090) -> ModuleType:
    """CuPy for CUDA 12.9 on a machine with `count` GPUs, or whose driver, which is of CUDA `driver`, raises."""

    def get_device_count() -> int:
        if isinstance(count, Exception):
            raise count
        return count

    cupy: Any = ModuleType("cupy")
    runtime = SimpleNamespace(
        **{
            **vars(CARD.cuda.runtime),
            "getDeviceCount": get_device_count,
            "driverGetVersion": lambda: driver,
            "runtimeGetVersion": lambda: 12090,
        }
    )
    cupy.cuda = SimpleNamespace(**{**vars(CARD.cuda), "runtime": runtime, "Device": FakeDevice})
    cupy.ndarray, cupy.asnumpy, cupy.arange = CARD.ndarray, CARD.asnumpy, CARD.arange
    cupy.get_default_memory_pool = CARD.get_default_memory_pool
    return cupy  # type: ignore[no-any-return]  # a module with attributes of its own


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said yet, and no GPU is in use."""
    module._say_fallback.cache_clear()
    monkeypatch.setattr(FakeDevice, "current", None)


def install(monkeypatch: pytest.MonkeyPatch, cupy: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)


def test_numpy_on_request() -> None:
    cpu = backend("cpu")
    assert (cpu.xp, cpu.kind, cpu.name) == (np, "cpu", "cpu")
    x = np.arange(3.0)
    assert cpu.from_host(x) is x
    assert cpu.to_host(x) is x
    assert cpu.to_host(np.float32(2)).shape == ()
    cpu.synchronize()


@pytest.mark.parametrize(
    ("cupy", "reason"),
    [
        (None, "CuPy does not import (import of cupy halted; None in sys.modules)"),
        (
            fake_cupy(RuntimeError("cudaErrorNoDevice: no device\nand more")),
            "no CUDA driver answers (cudaErrorNoDevice: no device)",
        ),
        (
            fake_cupy(RuntimeError("cudaErrorTooOld: old"), driver=11040),
            "the driver is for CUDA 11.4 and CuPy for CUDA 12.9, so the driver must be updated (cudaErrorTooOld: old)",
        ),
        (
            fake_cupy(RuntimeError("cudaErrorInsufficientDriver: none"), driver=0),
            "no CUDA driver answers (cudaErrorInsufficientDriver: none)",
        ),
        (fake_cupy(0), "the CUDA driver finds no GPU"),
    ],
)
def test_without_a_gpu_numpy_computes_and_says_why_once(
    cupy: ModuleType | None, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, cupy)
    with caplog.at_level(logging.WARNING):
        assert [backend(None).kind for _ in range(3)] == ["cpu"] * 3
    assert [record.getMessage() for record in caplog.records] == [f"computing on the CPU with NumPy: {reason}"]
    assert count_devices() == 0
    with pytest.raises(SessionError) as caught:
        backend("cuda:0")
    assert (
        str(caught.value)
        == f"device 'cuda:0' cannot be had, {reason}: install gt-tensor[cuda12] and its driver, or say 'cpu'"
    )


def test_the_first_gpu_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_cupy(2))
    assert count_devices() == 2
    for device, name, index in ((None, "cuda:0", 0), ("cuda", "cuda:0", 0), ("cuda:1", "cuda:1", 1)):
        gpu = backend(device)
        assert (gpu.xp, gpu.kind, gpu.name) == (sys.modules["cupy"], "cuda", name)
        assert FakeDevice.current == index
        x = np.arange(3.0)
        np.testing.assert_array_equal(gpu.to_host(gpu.from_host(x)), x)
        before = FakeDevice.waits
        gpu.synchronize()
        assert FakeDevice.waits == before + 1


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_cupy(2))
    with pytest.raises(SessionError, match="'cuda:2' cannot be had, the last one here is 'cuda:1'"):
        backend("cuda:2")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", ""])
def test_a_name_that_is_no_device(device: str) -> None:
    with pytest.raises(SessionError, match="say 'cpu', 'cuda:0'"):
        backend(device)


def test_special_functions_of_numpy_are_scipys() -> None:
    assert special(np).ndtri(0.5) == 0


def test_where_cupy_can_compile_nothing_numpy_computes_or_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver and CuPy are there, and the headers that it compiles each kernel with are not."""

    def arange(_: int) -> Any:
        raise RuntimeError("Failed to find CUDA headers. Please install CUDA toolkit headers")

    cupy = fake_cupy(1)
    monkeypatch.setattr(cupy, "arange", arange)
    install(monkeypatch, cupy)
    said = "CuPy computes nothing on 'cuda:0': Failed to find CUDA headers. Please install CUDA toolkit headers"
    with pytest.raises(SessionError, match="Failed to find CUDA headers") as caught:
        backend("cuda:0")
    assert str(caught.value) == said
    with caplog.at_level(logging.WARNING):
        assert backend(None).kind == "cpu"
    assert [record.getMessage() for record in caplog.records] == [f"computing on the CPU with NumPy: {said}"]


@pytest.mark.parametrize("version", ["12", "13"])
def test_the_extras_bring_what_cupy_compiles_with(version: str) -> None:
    """A driver is all that a machine need have: headers, compiler and cuBLAS come with CuPy's own extra, `ctk`."""
    known = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))
    (cupy,) = [each for each in known["project"]["optional-dependencies"][f"cuda{version}"] if each.startswith("cupy")]
    assert cupy.startswith(f"cupy-cuda{version}x[ctk]>=")


def test_a_library_of_nccl_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's module is there without it, and has no functions."""
    cupy = fake_cupy(1)
    monkeypatch.setattr(cupy, "__version__", CARD.__version__, raising=False)
    install(monkeypatch, cupy)
    bindings = ModuleType("cupy.cuda.nccl")
    monkeypatch.setattr(bindings, "available", False, raising=False)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", bindings)
    assert module.diagnose()["NCCL"] == "not known (CuPy finds no libnccl)"


def test_cublas_is_asked_for_as_cupy_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the package, which loads the library from wherever it is installed; an import of the module alone looks nowhere."""
    libraries = ModuleType("cupy_backends.cuda.libs")
    found = {"cublas": SimpleNamespace(__file__="/where/it/is.so")}
    monkeypatch.setattr(libraries, "__getattr__", found.__getitem__, raising=False)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", libraries)
    monkeypatch.setattr(module, "library", lambda path: path)
    assert module._cublas() == "/where/it/is.so"
