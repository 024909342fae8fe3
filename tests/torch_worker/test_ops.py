"""Every kernel on PyTorch's tensors: the tests of tests/worker/kernels once more, against the same judges."""

from __future__ import annotations

import pytest
from loading import kernel_tests

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

from gt.worker.torch_device.torch_devices import open_device
from gt.worker.torch_kernels.kernel_choice import TorchKernels

DEVICE = open_device("torch:cpu")
globals().update(kernel_tests(DEVICE.xp, "torch", CHOOSE=TorchKernels(DEVICE, prefers_host=False).kernel))
