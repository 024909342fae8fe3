"""What PyTorch refuses, GT refuses: the inputs that PyTorch's own operator database says are errors, and some beside them.

Each is tried as a call of the public function and, where there is one, of the tensor's method. Which kind of error it is and what
it says is GT's own business. What GT accepts is in `ACCEPTED`, with the reason. `make prove` tries all of them, `make test` some.
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

UNBOUND = "`2 + x` calls it with a tensor first, and nobody calls a method of the class with a number: all would pay for a check"
ACCEPTED = {
    **dict.fromkeys(("__radd__", "__rdiv__", "__rmul__", "__rand__", "__ror__", "__rxor__"), UNBOUND),
    "clamp_max": "PyTorch takes this number too",
    "clamp_min": "PyTorch takes this number too",
    "__rsub__": "PyTorch takes these numbers too",
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
quantile(ones(3), 1.5)
quantile(ones(3), -0.5)
nanquantile(ones(3), 2.0)
""".strip().splitlines()


class Given:
    """The arguments of one call as GT takes them: tensors that share storage in PyTorch do so here."""

    def __init__(self) -> None:
        self._roots: dict[Any, Any] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self, value))
        if isinstance(value, torch.dtype):
            return getattr(gt, str(value).removeprefix("torch."))
        return value

    def _tensor(self, value: Any) -> Any:
        if not value.numel():  # without elements there is no storage to tell them apart
            return self._roots.setdefault(id(value), gt.from_torch(value))
        key = (value.untyped_storage().data_ptr(), value.dtype)
        place = (tuple(value.shape), value.stride(), value.storage_offset())
        if (
            key not in self._roots
            and value.is_contiguous()
            and value.numel() == len(value.untyped_storage()) // value.itemsize
        ):
            self._roots[key] = (gt.from_torch(value), place)
        elif key not in self._roots:
            whole = value.as_strided((len(value.untyped_storage()) // value.itemsize,), (1,), 0)
            self._roots[key] = (gt.from_torch(whole), None)
        root, same = self._roots[key]
        return root if same == place else gt.as_strided(root, *place)


def resolve(name: str) -> Any:
    """GT's function of PyTorch's name, or else its method."""
    found: Any = gt
    for part in name.split("."):
        found = getattr(found, part, None)
    found = getattr(gt.Tensor, name, None) if found is None else found
    return found if callable(found) else None


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


@pytest.mark.parametrize("name", OPS)
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


NAMES = ("arange", "bincount", "cov", "float64", "nanquantile", "nn", "normal", "ones", "quantile", "tensor", "zeros")
"""What the calls name."""
