"""By what PyTorch's workers compute an op, and that their session has NumPy's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.daemon.host import host_facts
from gt.errors import IndexOutOfRange
from gt.ir.ops import OPS
from gt.ir.spec import Spec, spec
from gt.service.in_process import Fabric, InprocLink
from gt.sharding.config import Config
from gt.worker.base.kernel_call import KernelCall

torch_kernels = pytest.importorskip("gt.worker.torch_kernels.kernel_choice")
functional = pytest.importorskip("gt.worker.torch_kernels.functional")
torch_devices = pytest.importorskip("gt.worker.torch_device.torch_devices")

DATA_PARALLEL = {"mesh": {"data": 2}, "sharding_config": {"*": {"strategy": "data_parallel"}}}


def call_of(
    device: Any, op: str, operands: tuple[Spec, ...], result: Spec, blocks: int = 0, **attributes: Any
) -> KernelCall:
    box = tuple((0, size) for size in result.shape)
    return KernelCall(device.xp, op, attributes, operands, result, result.shape, box, blocks=blocks)


def test_every_name_is_an_ops_and_none_is_computed_twice() -> None:
    assert set(functional.FUNCTIONAL) <= set(OPS)
    assert set(OPS) >= torch_kernels.HOST_OPS
    assert not torch_kernels.HOST_OPS & set(functional.FUNCTIONAL)


def test_what_pytorch_lacks_numpy_computes_and_it_is_counted() -> None:
    device = torch_devices.open_device("torch:cpu")
    kernels = torch_kernels.TorchKernels(device, prefers_host=False)
    floats, words = spec(gt.float32, (2, 3)), spec(gt.uint16, (2, 3))
    by = {
        "add of float32": kernels.choose(call_of(device, "add", (floats, floats), floats))[0],
        "softmax of float32": kernels.choose(call_of(device, "softmax", (floats,), floats, axis=1))[0],
        "add of uint16": kernels.choose(call_of(device, "add", (words, words), words))[0],
        "in a deterministic session": kernels.choose(call_of(device, "softmax", (floats,), floats, blocks=4, axis=1))[
            0
        ],
    }
    computed = torch_kernels.Computed
    assert list(by.values()) == [computed.KERNEL, computed.FUNCTIONAL, computed.HOST, computed.HOST]
    for op, way in (
        ("add", computed.HOST),
        ("softmax", computed.FUNCTIONAL),
    ):  # in the host's memory each computes what it is best at
        operands, more = ((floats, floats), {}) if op == "add" else ((floats,), {"axis": 1})
        call = call_of(device, op, operands, floats, **more)
        assert torch_kernels.TorchKernels(device).choose(call)[0] is way
    kernel = kernels.kernel(call_of(device, "add", (words, words), words))
    value = device.from_host(np.full((2, 3), 40_000, np.uint16))
    assert device.to_host(kernel(value, value)).tolist() == [[80_000 - 65_536] * 3] * 2
    assert dict(device.host_calls) == {("add", "uint16"): 1}


def test_a_sharded_session_has_the_numbers_of_numpys_workers() -> None:
    """Products, a sum over both workers, random numbers bit for bit, and an error at the line that made it."""
    found = {}
    for device in ("cpu", "torch:cpu"):
        fabric = Fabric(2, Config.from_plain(DATA_PARALLEL), devices=[device] * 2)
        session = Session(InprocLink(fabric), "inproc", idle_flush=False)
        session.open({**host_facts(), "bulk": b""}, 1.0)
        sessions.adopt(session)
        gt.manual_seed(3)
        with gt.signal.context("all"):
            x = gt.randn(6, 5)
            y = (x @ x.T).softmax(1).sum(0)
        found[device] = x.numpy(), y.numpy()
        calls = [worker.host_calls for worker in gt.memory().workers]
        assert calls == [{"normal float32": 1} if device == "torch:cpu" else {}] * 2
        with pytest.raises(IndexOutOfRange, match="index 9 is out of range"):
            gt.index_select(x, 0, gt.tensor([9])).numpy()
        gt.disconnect()
    np.testing.assert_array_equal(found["torch:cpu"][0], found["cpu"][0])
    np.testing.assert_allclose(found["torch:cpu"][1], found["cpu"][1], rtol=1e-5)


def test_a_deterministic_session_has_the_bits_of_numpys_workers() -> None:
    """Also as many of each kind."""
    config = {"mesh": {"data": 2}, "deterministic": True, "sharding_config": {"*": {"strategy": "data_parallel"}}}
    found = []
    for devices in (["cpu"] * 2, ["torch:cpu"] * 2, ["cpu", "torch:cpu"]):
        fabric = Fabric(2, Config.from_plain(config), devices=devices)
        session = Session(InprocLink(fabric), "inproc", idle_flush=False)
        session.open({**host_facts(), "bulk": b""}, 1.0)
        sessions.adopt(session)
        gt.manual_seed(5)
        with gt.signal.context("all"):
            x = gt.randn(64, 33)
            found.append(((x.T @ x).softmax(1).sum(0) * x.tanh().mean(0)).numpy())
        gt.disconnect()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
