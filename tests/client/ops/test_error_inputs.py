"""What PyTorch refuses, GT refuses: the inputs that PyTorch's own operator database says are errors, and some beside them.

Which kind of error it is and what it says is GT's own business. What GT accepts is in `ACCEPTED`, with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import gt

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's operator database needs expecttest: pip install expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.usefixtures("session")

OUT = "what `out=` names takes another dtype if it holds it, and may share elements: values never change"
WAITS = "whether these values are right only the workers know, and nothing waits for them"
ACCEPTED = {
    "aminmax": OUT, "bernoulli": OUT, "cat": OUT, "complex": OUT, "gather": OUT,
    "masked_select": OUT, "take": OUT,
    "cov": WAITS, "multinomial": WAITS,
}  # fmt: skip
"""By op: why GT accepts some of its inputs that PyTorch refuses."""
NUMBERS = Exception
"""The database's kind of error where a number stands for a tensor, in operators of two: there GT takes numbers."""

REFUSED = """
arange(5, 0, 1)
bincount(tensor([1]), minlength=-1)
cov(ones(3), aweights=ones(2))
nn.functional.adaptive_avg_pool1d(ones(1, 2, 4), -1)
nn.functional.adaptive_max_pool2d(ones(1, 2, 4, 4), (2, -1), return_indices=True)
nn.functional.conv2d(ones(1, 1, 4, 4), ones(1, 1, 2, 2), ones(1, dtype=float64))
nn.functional.dropout(ones(2), -0.1)
nn.functional.max_pool2d(ones(0, 4, 4), 2)
nn.functional.one_hot(tensor([0]), 0)
normal(0.0, -1.0, (3,))
normal(zeros(3), -1.0)
zeros(3).normal_(0, -1)
zeros(3).log_normal_(0, 0)
zeros(3).uniform_(2, 1)
zeros(3).exponential_(0)
zeros(3).cauchy_(0, 0)
zeros(3).geometric_(0)
ones(2, 3).sum((0, -2))
ones(2, 3).any((1, 1))
ones(1, 3).squeeze((0, 0))
ones(2, 3).flip((1, 1))
ones(2).masked_fill(ones(2) > 0, ones(1))
ones(2).index_fill(0, tensor([0]), ones(2))
quantile(ones(3), 1.5)
quantile(ones(3), -0.5)
nanquantile(ones(3), 2.0)
""".strip().splitlines()


def given(value: Any) -> Any:
    """An argument as GT takes it."""
    if isinstance(value, torch.Tensor):
        return gt.from_torch(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(given, value))
    if isinstance(value, torch.dtype):
        return getattr(gt, str(value).removeprefix("torch."))
    return value


def resolve(name: str) -> Any:
    """GT's function of PyTorch's name, or else its method."""
    found: Any = gt
    for part in name.split("."):
        found = getattr(found, part, None)
    found = getattr(gt.Tensor, name, None) if found is None else found
    return found if callable(found) else None


def wrong_inputs(op: Any) -> Iterator[Any]:
    """The database's inputs that are errors for PyTorch and can be said to GT."""
    for each in op.error_inputs_func(op, "cpu"):
        sample = each.sample_input
        values = [sample.input, *sample.args, *sample.kwargs.values()]
        flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
        tensors = [value for value in flat if isinstance(value, torch.Tensor)]
        sparse = (
            any(value.layout is not torch.strided or value.is_meta for value in tensors) or torch.sparse_coo in flat
        )
        generators = any(isinstance(value, torch.Generator) for value in flat)
        if (
            not sparse
            and not generators
            and all(value.ndim <= 64 for value in tensors)
            and each.error_type is not NUMBERS
        ):
            yield sample


def accepts(function: Any, sample: Any) -> bool:
    """Whether GT computes something."""
    try:
        options = {name: given(value) for name, value in sample.kwargs.items()}
        found = function(given(sample.input), *map(given, sample.args), **options)
        for result in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(result, gt.Tensor):
                result.numpy()
    except (gt.GTError, RuntimeError, ValueError, TypeError, IndexError, UserWarning):
        return False
    return True


OPS = {op.name: op for op in op_db if op.error_inputs_func is not None and resolve(op.name) is not None}


@pytest.mark.parametrize("name", [name for name in OPS if not name.startswith("__r")])
def test_what_pytorch_refuses_is_refused(name: str) -> None:
    function = resolve(name)
    accepted = [sample.summary() for sample in wrong_inputs(OPS[name]) if accepts(function, sample)]
    assert bool(accepted) == (name in ACCEPTED), accepted


@pytest.mark.parametrize("call", REFUSED)
def test_these_are_refused_by_both(call: str) -> None:
    for library in (torch, gt):
        with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):
            eval(call, dict(vars(library)) | {name: getattr(library, name) for name in NAMES})


NAMES = ("arange", "bincount", "cov", "float64", "nanquantile", "nn", "normal", "ones", "quantile", "tensor", "zeros")
"""What the calls name."""
