"""Tensors of PyTorch with NumPy's manners: indices, dtypes, memory, and the devices that can be had."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from gt.errors import SessionError
from gt.ir.dtypes import ALL_DTYPES
from gt.service.launch import devices_of
from gt.worker.base.backend import backend, is_device, kind_of_device


@pytest.mark.parametrize(
    "key",
    [
        (slice(None, None, -1),), (slice(None), slice(5, None, -2)), (..., slice(None, None, -3)), (1, slice(None, None, -1)),
        (slice(3, 3, -1),), (..., 0), (slice(1, 4, 2), 2), (None, slice(0, 2)),
    ],
)  # fmt: skip
def test_an_index_reads_and_writes_as_numpys_does(key: Any) -> None:
    """Negative steps too, which PyTorch has not."""
    torch_array = pytest.importorskip("gt.worker.torch_device.torch_array")
    ours = np.arange(42.0).reshape(6, 7)
    theirs = torch_array.TorchArray(torch_array.from_host(ours, torch_array.torch.device("cpu")).tensor.clone())
    np.testing.assert_array_equal(torch_array.to_host(theirs[key]), ours[key])
    if None not in key:
        value = np.arange(100.0, 100.0 + ours[key].size).reshape(ours[key].shape)
        theirs[key] = torch_array.from_host(value, torch_array.torch.device("cpu"))
        ours[key] = value
        np.testing.assert_array_equal(torch_array.to_host(theirs), ours)


def test_arrays_of_every_dtype_come_and_go_unchanged_and_their_memory_too() -> None:
    """Also views of larger memory, backwards and repeated: what is dumped and restored is looked at in the same way."""
    pytest.importorskip("torch")
    device = backend("torch:cpu")
    for dtype in ALL_DTYPES:
        host = np.arange(24).reshape(4, 6).astype(dtype.numpy)
        for array in (host, host.T, host[::-1], host[:, 1:5:2], np.broadcast_to(host[0], (3, 6)), host[0, 0]):
            value = device.from_host(np.asarray(array))
            assert (value.dtype, value.shape) == (dtype.numpy, array.shape)
            np.testing.assert_array_equal(device.to_host(value).astype(complex), array.astype(complex))
            known = device.buffers.of(value)
            assert known is not None
            whole = bytes(device.buffers.dump(value))
            assert len(whole) == known[1]

            def fill(memory: memoryview, whole: bytes = whole) -> None:
                memory[:] = whole

            again = device.buffers.look(device.buffers.restore(len(whole), fill), device.buffers.view(value))
            np.testing.assert_array_equal(device.to_host(again).astype(complex), array.astype(complex))


def test_a_device_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch is missing, where it lacks the device, and where a name is none."""
    assert [kind_of_device(name) for name in ("cpu", "cuda:3", "torch:cpu", "torch:cuda:1")] == [
        "cpu", "cuda", "torch:cpu", "torch:cuda",
    ]  # fmt: skip
    assert all(map(is_device, ("cpu", "cuda", "cuda:1", "torch:cpu", "torch:cuda:1", "torch:mps", "torch:xpu")))
    assert not any(map(is_device, ("torch", "torch:tpu", "torch:cpu:1", "gpu", "")))
    for name in ("torch", "torch:tpu"):
        with pytest.raises(SessionError, match="say 'cpu', 'cuda:0'"):
            backend(name)
    for module in [name for name in sys.modules if name.startswith("gt.worker.torch_")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SessionError, match=r"PyTorch does not import .*pip install gt-tensor\[torch\]"):
        backend("torch:cpu")


def test_one_device_is_for_all_workers_and_several_for_one_each() -> None:
    assert devices_of("cpu", 3) == ["cpu"] * 3
    assert devices_of("cuda:1, cpu", 2) == ["cuda:1", "cpu"]
    with pytest.raises(SessionError, match="2 devices are for that many workers, not 3"):
        devices_of("cpu,cpu", 3)
    with pytest.raises(SessionError, match="no device is called 'gpu'"):
        devices_of("gpu", 1)
