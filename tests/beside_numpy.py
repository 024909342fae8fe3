"""One call on GT's Array API namespace and on NumPy's, which keeps the same standard: results must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gt
import gt.array_api as xp

Call = Callable[..., Any]


def mine(value: Any) -> Any:
    """NumPy's arrays and dtypes as GT's, in tuples and lists, too."""
    if isinstance(value, np.ndarray):
        return xp.asarray(value)
    if isinstance(value, (tuple, list)):
        return type(value)(mine(each) for each in value)
    return value


def agree(got: Any, want: Any) -> None:
    """Dtype, shape and values; of several results each."""
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        assert getattr(got, "_fields", ()) == getattr(want, "_fields", ())
        for one, other in zip(got, want, strict=True):
            agree(one, other)
        return
    want = np.asarray(want)
    assert isinstance(got, gt.Tensor)
    assert (got.dtype.numpy, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind in "fc":
        unit = 50 * np.finfo(want.dtype).eps
        np.testing.assert_allclose(got.numpy(), want, rtol=unit, atol=unit)
    else:
        np.testing.assert_array_equal(got.numpy(), want)


def both(call: Call, *arrays: Any, **arguments: Any) -> None:
    """`call(namespace, *arrays)` is the same with GT's namespace as with NumPy's."""
    agree(call(xp, *mine(arrays), **arguments), call(np, *arrays, **arguments))
