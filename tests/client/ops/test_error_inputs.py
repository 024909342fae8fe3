"""What PyTorch refuses, GT refuses: the inputs that PyTorch's own operator database says are errors, and some beside them.

Each is tried as a call of the public function and, where there is one, of the tensor's method. Which kind of error it is and what
it says is GT's own business. What GT accepts is in `ACCEPTED`, with the reason. `make prove` tries all of them, `make test` some.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

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

UNBOUND = "`2 + x` calls it with a tensor first, and nobody calls a method of the class with a number: all would pay for a check"
ACCEPTED = {
    **dict.fromkeys(("__radd__", "__rdiv__", "__rmul__", "__rand__", "__ror__", "__rxor__"), UNBOUND),
    "clamp_max": "PyTorch takes this number too",
    "clamp_min": "PyTorch takes this number too",
    "__rsub__": "PyTorch takes these numbers too",
    "isclose": "either operand may be a number, as NumPy has it",
}  # fmt: skip
"""By op: why GT accepts some of its inputs that the database says PyTorch refuses."""

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
nn.functional.avg_pool2d(ones(1, 1, 4, 4, dtype=uint8), 2)
nn.functional.conv_transpose2d(ones(1, 1, 4, 4, dtype=uint8), ones(1, 1, 2, 2, dtype=uint8))
nn.functional.cosine_similarity(ones(2, 3, dtype=complex64), ones(2, 3, dtype=complex64))
nn.functional.cross_entropy(ones(2, 3), tensor([0, 1]), ones(3, dtype=float64))
nn.functional.gaussian_nll_loss(tensor([1]), tensor([2]), tensor([3]))
nn.functional.grid_sample(ones(1, 1, 2, 2, dtype=uint8), ones(1, 2, 2, 2), align_corners=False)
nn.functional.hardtanh(tensor([True]), -0.5, 0.5)
nn.functional.huber_loss(tensor([1], dtype=uint8), tensor([2], dtype=uint8))
nn.functional.interpolate(ones(1, 1, 4, dtype=uint8), 3, mode="linear")
nn.functional.kl_div(tensor([1]), tensor([2]), reduction="batchmean")
nn.functional.local_response_norm(ones(1, 2, 2, dtype=complex64), 2)
nn.functional.mse_loss(ones(2, dtype=complex64), ones(2, dtype=complex64))
nn.functional.multilabel_soft_margin_loss(tensor([[1]], dtype=uint8), tensor([[1]]))
nn.functional.nll_loss(tensor([[1, 2]], dtype=uint8), tensor([0]))
nn.functional.smooth_l1_loss(tensor([1], dtype=uint8), tensor([2], dtype=uint8))
addcmul(tensor([True]), tensor([True]), tensor([True]))
arange(3, dtype=bool)
tensor([True]).clamp(False, True)
histc(ones(2, dtype=complex64), 2)
isposinf(ones(2, dtype=complex64))
isneginf(ones(2, dtype=complex64))
lerp(tensor([1]), tensor([2]), 0.5)
native_layer_norm(tensor([1, 2]), (2,), None, None, 1e-5)
ones(2, dtype=complex64).round(decimals=1)
special.hermite_polynomial_h(ones(2, dtype=complex64), 2)
tensor([True]).index_reduce(0, tensor([0]), tensor([True]), "mean")
tensor([True]).scatter_reduce(0, tensor([0]), tensor([True]), "mean")
trapezoid(tensor([True, False]))
cat(ones(2, 3))
ones(2).maximum(1)
ones(2).logical_and_(True)
quantile(ones(3), 1.5)
quantile(ones(3), -0.5)
nanquantile(ones(3), 2.0)
""".strip().splitlines()


def wrong_inputs(op: Any) -> Iterator[Any]:
    """The database's inputs that are errors for PyTorch and can be said to GT, which knows no sparse layouts."""
    for each in op.error_inputs_func(op, "cpu"):
        sample = each.sample_input
        values = [sample.input, *sample.args, *sample.kwargs.values()]
        flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
        tensors = [value for value in flat if isinstance(value, torch.Tensor)]
        sparse = (
            any(value.layout is not torch.strided or value.is_meta for value in tensors) or torch.sparse_coo in flat
        )
        generators = any(isinstance(value, torch.Generator) for value in flat)
        if not sparse and not generators and all(value.ndim <= 64 for value in tensors):
            yield sample


def accepts(function: Any, sample: Any) -> bool:
    """Whether GT computes something."""
    try:
        given = Given()
        options = {name: given(value) for name, value in sample.kwargs.items()}
        found = function(given(sample.input), *map(given, sample.args), **options)
        for result in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(result, gt.Tensor):
                result.numpy()
    except (gt.GTError, RuntimeError, ValueError, TypeError, IndexError, UserWarning):
        return False
    return True


OPS = {op.name: op for op in op_db if op.error_inputs_func is not None and resolve(op.name) is not None}


def methods(name: str, sample: Any) -> Iterator[Any]:
    """The function, and the method of the same name where a tensor comes first."""
    yield resolve(name)
    method = getattr(gt.Tensor, name, None)
    if isinstance(sample.input, torch.Tensor) and OPS[name].method_variant is not None and callable(method):
        yield method


@pytest.mark.parametrize("name", thinned([*OPS], 60))
def test_what_pytorch_refuses_is_refused(name: str) -> None:
    accepted = [
        (function, sample.summary())
        for sample in wrong_inputs(OPS[name])
        for function in methods(name, sample)
        if accepts(function, sample)
    ]
    assert bool(accepted) == (name in ACCEPTED), accepted


@pytest.mark.parametrize("call", REFUSED)
def test_these_are_refused_by_both(call: str) -> None:
    for library in (torch, gt):
        with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):
            eval(call, dict(vars(library)) | {name: getattr(library, name) for name in NAMES})


NAMES = (
    "addcmul", "arange", "bincount", "bool", "cat", "complex64", "cov", "float64", "histc", "isneginf", "isposinf", "lerp",
    "nanquantile", "native_layer_norm", "nn", "normal", "ones", "quantile", "special", "tensor", "trapezoid", "uint8", "zeros",
)  # fmt: skip
"""What the calls name."""
