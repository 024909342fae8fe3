"""Every op on PyTorch's tensors, on samples in every dtype: nothing differs from NumPy's kernels."""

from __future__ import annotations

import pytest

from gt.tools.device_conformance import check_device, table
from gt.worker.base.backend import backend

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")


def test_every_op_has_numpys_results_in_every_dtype() -> None:
    reports = list(check_device(backend("torch:cpu")))
    assert not any(each.failures for each in reports), table(reports)
