"""PyTorch's operators on the device, by PyTorch's samples of them: results and gradients are those of the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import pytest
import torch
from beside_torch import samples_of
from effort import EFFORT
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

import gt.torch

SAMPLES: Final = max(1, round(2 * EFFORT))
RANDOM: Final = (
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
    "nn.functional.multi_head_attention_forward", "nn.functional.rrelu", "normal",
    "pca_lowrank", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
    "svd_lowrank", "uniform",
)  # fmt: skip
"""They draw other numbers."""
UNKNOWN: Final = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Their values may be anything."""
ELSEWHERE: Final = {
    "as_strided.partial_views": "a copy on the device has no memory beyond the view",
    "chalf": "no complex numbers of half precision", "to_sparse": "no sparse tensors",
    "tensor_split": "PyTorch wants the places on the CPU, from any device",
    "histc": "an element at the border of two bins may round to either",
}  # fmt: skip
ON_CPU: Final = (
    "bessel", "chebyshev", "ctc_loss", "embedding_bag", "fractional",
    "airy", "hash_tensor", "hermite", "histogram", "laguerre",
    "legendre", "linalg.ldl", "linear_cross_entropy", "log_ndtr",
    "masked_scatter", "multi_margin", "multilabel_margin", "ndtri",
    "segment_reduce", "sparse", "trilinear", "upsample_bilinear2d_aa", "zeta", "erfcx", "geqrf", "interpolate",
    "_upsample_nearest_exact", "i0e", "i1",
)  # fmt: skip
"""Parts of names of operators that are computed on the CPU, or need one that is."""
SETTLED: Final[dict[str, Callable[[Any], Any]]] = {
    "linalg.eig": lambda out: (out[0].sum(-1), out[0].abs().sum(-1), out[1].abs().sum((-2, -1))),
    "linalg.eigvals": lambda out: (out.sum(-1), out.abs().sum(-1)),
    "linalg.eigh": lambda out: (out[0], out[1].abs()),
}
"""What is compared of results that are determined only up to their order, and vectors only up to signs or phases."""
OPS: Final = [
    op for op in op_db
    if torch.float32 in op.dtypes and op.name.removeprefix("torch.") not in (*RANDOM, *UNKNOWN) and "sparse" not in op.name
    and not op.name.startswith("jiterator")
    and not op.name.startswith("nn.functional.dropout")
]  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore")


def named(op: Any) -> str:
    return f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}"


def to_device(x: Any) -> Any:
    return x.detach().to("gtx").requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


def gradients(out: Any, inputs: list[Any]) -> tuple[Any, ...]:
    """Of the sum of all results."""
    found = [
        x.abs().sum() if x.is_complex() else x.sum()
        for x in tree_leaves(out)
        if isinstance(x, torch.Tensor) and x.requires_grad
    ]
    return torch.autograd.grad(sum(found), inputs, allow_unused=True) if found else ()


def wanting(args: Any) -> list[Any]:
    return [x for x in tree_leaves(args) if isinstance(x, torch.Tensor) and x.requires_grad]


@pytest.mark.parametrize("op", OPS, ids=named)
def test_an_operator_is_that_of_the_cpu(op: Any) -> None:
    """Values, dtypes, shapes and gradients. What is computed on the CPU is known to be."""
    if named(op) in ELSEWHERE or op.name in ELSEWHERE:
        pytest.skip(ELSEWHERE.get(named(op)) or ELSEWHERE[op.name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in islice(samples_of(op, torch.float32, requires_grad=op.supports_autograd), SAMPLES):
            args = (sample.input, sample.args, sample.kwargs)
            try:
                expected = op(sample.input, *sample.args, **sample.kwargs)
            except (RuntimeError, ValueError, TypeError):
                continue  # a sample for GPUs
            there = tree_map(to_device, args)
            settled = SETTLED.get(op.name, lambda out: out)
            expected, found = settled(expected), settled(op(there[0], *there[1], **there[2]))
            for a, b in zip(tree_leaves(expected), tree_leaves(found), strict=True):
                if isinstance(a, torch.Tensor):
                    torch.testing.assert_close(b.detach().cpu(), a.detach(), equal_nan=True, rtol=2e-4, atol=2e-4)
            if not op.supports_autograd:
                continue
            for a, b in zip(gradients(expected, wanting(args)), gradients(found, wanting(there)), strict=True):
                if a is not None:
                    torch.testing.assert_close(b.cpu(), a, equal_nan=True, rtol=1e-3, atol=1e-3)


def test_what_is_computed_on_the_cpu_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else falls back to it."""
    from gt.torch import operators

    fallen: set[str] = set()
    monkeypatch.setattr(operators, "_warn_of", lambda operator: fallen.add(str(operator)))
    for op in OPS:
        if any(part in named(op) for part in ON_CPU) or named(op) in ELSEWHERE or op.name in ELSEWHERE:
            continue
        for sample in islice(samples_of(op, torch.float32, requires_grad=False), 1):
            input, args, kwargs = tree_map(to_device, (sample.input, sample.args, sample.kwargs))
            op(input, *args, **kwargs)
        assert not fallen, f"{named(op)} needs {fallen}"


def test_the_device_is_registered() -> None:
    assert gt.torch.DeviceTensor.rule_of is not None
