"""`torch.autocast("gtx")`: which operators compute in half precision, which in float32, which in the widest dtype they are given.

The lists are those that PyTorch documents for its accelerators ("Automatic Mixed Precision", op reference).
"""

from __future__ import annotations

from typing import Any, Final

import torch

from .pytorch_internals import DEVICE_TYPE, outside_of_autocast

__all__ = ["register_autocast"]

HALF_OPERATORS: Final = (
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "einsum", "linalg_multi_dot", "linalg_vecdot", "linear",
    "matmul", "mm", "mv", "prelu", "scaled_dot_product_attention", "lstm.input", "gru.input",
)  # fmt: skip
"""Products: in the dtype of the region."""
FLOAT32_OPERATORS: Final = (
    "acos", "asin", "cosh", "cosine_embedding_loss", "cdist", "cosine_similarity", "cross_entropy_loss", "cumprod", "cumsum",
    "dist", "erfinv", "exp", "expm1", "group_norm", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "layer_norm",
    "log", "log10", "log1p", "log2", "log_softmax.int", "logsumexp", "margin_ranking_loss", "mse_loss", "multi_margin_loss",
    "multilabel_margin_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "norm.Scalar", "norm.ScalarOpt_dim", "poisson_nll_loss",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "prod", "prod.dim_int", "reciprocal", "renorm", "rsqrt", "sinh",
    "smooth_l1_loss", "soft_margin_loss", "softmax.int", "softplus", "sum", "sum.dim_IntList", "tan", "triplet_margin_loss",
    "binary_cross_entropy_with_logits",
)  # fmt: skip
"""What loses too much in half precision: in float32."""
WIDEST_DTYPE_OPERATORS: Final = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cat", "cross", "dot", "grid_sampler", "index_put", "scatter_add", "stack",
    "tensordot",
)  # fmt: skip
"""In the widest dtype of their arguments."""
_HALF_DTYPES: Final = (torch.float16, torch.bfloat16)


def register_autocast(library: Any) -> None:
    """Make the lists known to PyTorch."""
    for names, target in ((HALF_OPERATORS, _lower), (FLOAT32_OPERATORS, _wide), (WIDEST_DTYPE_OPERATORS, _widest)):
        for name in names:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
            if operator is not None:
                library.impl(name, _cast(operator, target), "AutocastPrivateUse1")


def _cast(operator: Any, target: Any) -> Any:
    def computed(*args: Any, **kwargs: Any) -> Any:
        with outside_of_autocast():
            dtype = target(args)
            return operator(*_casted(args, dtype), **{name: _casted(each, dtype) for name, each in kwargs.items()})

    return computed


def _casted(value: Any, dtype: Any) -> Any:
    """Floating-point tensors among arguments in another dtype; float64 stays."""
    if isinstance(value, torch.Tensor):
        floating = value.is_floating_point() and value.dtype != torch.float64 and value.device.type == DEVICE_TYPE
        return value.to(dtype) if floating and value.dtype != dtype else value
    if isinstance(value, (list, tuple)):
        return type(value)(_casted(each, dtype) for each in value)
    return value


def _lower(args: Any) -> Any:
    return torch.get_autocast_dtype(DEVICE_TYPE)


def _wide(args: Any) -> Any:
    return torch.float32


def _widest(args: Any) -> Any:
    found = [each.dtype for each in _tensors(args) if each.is_floating_point()]
    wide = [dtype for dtype in found if dtype not in _HALF_DTYPES]
    return wide[0] if wide else found[0] if len(set(found)) == 1 else torch.float32


def _tensors(args: Any) -> list[Any]:
    found: list[Any] = []
    for each in args:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, (list, tuple)):
            found += _tensors(each)
    return found
