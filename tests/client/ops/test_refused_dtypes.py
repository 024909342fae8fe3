"""Whole numbers where PyTorch refuses them: GT refuses them too, or computes what it computes of the same numbers in float64.

So nothing is cut off or wraps around that PyTorch would have refused. `make prove` looks at all ops, `make test` at some.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from effort import thinned

import gt

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's operator database needs expecttest: pip install expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch_arguments import Given, resolve

pytestmark = pytest.mark.usefixtures("session")

OTHERWISE = {"randint_like": "what is drawn is cast to the dtype of the operand, so of booleans all but 0 is true"}
"""By op: why GT computes something else of them."""
REFUSALS = (gt.GTError, RuntimeError, ValueError, TypeError, IndexError, ZeroDivisionError)
OPS = {op.full_name: op for op in op_db if resolve(op.name) is not None and not op.name.startswith("_")}


def cast(value: Any, old: Any, new: Any) -> Any:
    """An argument in which tensors of one dtype have another."""
    if isinstance(value, torch.Tensor):
        return value.to(new) if value.dtype is old else value
    if isinstance(value, (list, tuple)):
        return type(value)(cast(each, old, new) for each in value)
    return value


def computed(op: Any, sample: Any, old: Any, new: Any) -> list[Any]:
    """What GT computes of a sample with tensors of another dtype."""
    given = Given()
    args = [given(cast(each, old, new)) for each in (sample.input, *sample.args)]
    options = {name: given(cast(each, old, new)) for name, each in sample.kwargs.items()}
    gt.manual_seed(0)
    found = resolve(op.name)(*args, **options)
    results = found if isinstance(found, (list, tuple)) else [found]
    return [each.numpy().astype(np.complex128) for each in results if isinstance(each, gt.Tensor)]


def refused(op: Any, sample: Any, old: Any) -> Iterator[Any]:
    """The dtypes of whole numbers for which PyTorch says that the op is not."""
    for dtype in (torch.bool, torch.int64, torch.uint8):
        if dtype not in op.supported_dtypes("cpu"):
            try:
                op.op(cast(sample.input, old, dtype), *cast(sample.args, old, dtype), **sample.kwargs)
            except Exception:  # noqa: BLE001  # of whichever kind
                yield dtype


@pytest.mark.parametrize("name", thinned([*OPS], 12))
def test_whole_numbers_that_pytorch_refuses_lose_nothing(name: str) -> None:
    op = OPS[name]
    old = next((dtype for dtype in (torch.float32, torch.float64) if dtype in op.supported_dtypes("cpu")), None)
    sample = None if old is None else next(iter(op.sample_inputs("cpu", old, requires_grad=False)), None)
    for dtype in refused(op, sample, old) if sample is not None else ():
        whole = type(sample)(cast(sample.input, old, dtype), args=cast(sample.args, old, dtype), kwargs=sample.kwargs)
        whole.kwargs = {key: cast(each, old, dtype) for key, each in sample.kwargs.items()}
        try:
            found = computed(op, whole, dtype, dtype)
        except REFUSALS:
            continue
        wide = computed(op, whole, dtype, torch.float64)
        same = all(np.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True) for a, b in zip(found, wide, strict=True))
        assert same or name in OTHERWISE, f"{dtype}: {found} is not {wide}"
