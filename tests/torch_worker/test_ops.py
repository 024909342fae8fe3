"""Every kernel on PyTorch's tensors: the tests of tests/worker once more, against the same judges.

Each file is loaded anew with a `one_kernel` whose other array module is PyTorch's on a CPU. Names say where a test comes from.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest
from loading import loaded

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

from gt.worker.torch_device.torch_devices import open_device
from gt.worker.torch_kernels.kernel_choice import TorchKernels

TESTS: Final = Path(__file__).parents[1]
FILES: Final = (
    "test_kernels",
    "test_kernels_linalg",
    "test_kernels_order",
    "test_kernels_shape",
    "test_kernels_torch",
    "test_recurrence",
)


def once_more() -> None:
    """The tests of all files, as tests of this one."""
    device = open_device("torch:cpu")
    one_kernel = loaded(TESTS / "one_kernel.py", "one_kernel_on_torch")
    one_kernel.OTHER = device.xp  # type: ignore[attr-defined]
    one_kernel.CHOOSE = TorchKernels(device, prefers_host=False).kernel  # type: ignore[attr-defined]
    before = sys.modules.get("one_kernel")
    sys.modules["one_kernel"] = one_kernel  # and all else that is imported now stays: PyTorch is not loaded twice
    try:
        for file in FILES:
            try:
                module = loaded(TESTS / "worker" / "kernels" / f"{file}.py", f"{file}_on_torch")
            except pytest.skip.Exception:
                continue
            for name, found in vars(module).items():
                if name.startswith("test_"):
                    globals()[f"{file}_{name.removeprefix('test_')}"] = found
    finally:
        del sys.modules["one_kernel"]
        if before is not None:
            sys.modules["one_kernel"] = before


once_more()
