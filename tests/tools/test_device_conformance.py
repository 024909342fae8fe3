"""The check of a device finds what differs from NumPy, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gt.errors import GTError
from gt.tools.device_conformance import check_device, table
from gt.worker.base.backend import backend


def test_numpy_is_as_numpy_in_every_dtype() -> None:
    reports = list(check_device(backend("cpu"), ["add", "cumsum"]))
    assert [(each.op, each.failures, each.units) for each in reports] == [("add", [], 0.0), ("cumsum", [], 0.0)]
    assert {"bool", "uint64", "bfloat16", "complex128"} <= set(reports[0].dtypes)
    calls = sum(each.calls for each in reports)
    assert table(reports).splitlines()[-1] == f"{calls} of {calls} calls of 2 ops as NumPy's"
    with pytest.raises(GTError, match="'plus' is no op"):
        list(check_device(backend("cpu"), ["plus"]))


def test_a_wrong_element_a_wrong_dtype_and_an_error_are_told() -> None:
    """Of a device whose results come back with one of these."""

    def wrong(value: Any) -> np.ndarray[Any, Any]:
        array = np.array(value)
        if array.dtype == np.int8:
            raise OSError("no such numbers")
        if array.dtype == np.float32:
            return array.astype(np.float64)
        array.reshape(-1)[:1] += 1
        return array

    (report,) = check_device(replace(backend("cpu"), to_host=wrong), ["reciprocal"])
    found = "\n".join(report.failures)
    assert "float64[5, 4] is not f32[5,4]" in found
    assert "units in the last place" in found
    (report,) = check_device(replace(backend("cpu"), to_host=wrong), ["neg"])
    assert any("OSError: no such numbers, where NumPy has a result" in each for each in report.failures)
    assert any("1 of 20 elements differ" in each for each in report.failures)
    assert "FAILED" in table([report])
