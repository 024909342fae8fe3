"""Every function of tensors under one roof, and those that neural networks need: products, activations, losses.

What is here composes others; element-wise functions are in `arithmetic.py`, reductions in `reductions.py`, shapes and
indexing along an axis in `shaping.py`, what transformers need in `transformer.py`. It is `gt.nn.functional`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.errors import ShapeError

from . import (
    activations,
    alignment,
    arithmetic,
    arranging,
    bags,
    calculus,
    complexes,
    convolution,
    counting,
    distances,
    elementwise,
    gathering,
    losses,
    margins,
    matrices,
    normalization,
    pooling,
    products,
    random,
    reductions,
    resampling,
    sampling,
    scattering,
    shaping,
    sorting,
    statistics,
    unpooling,
)  # fmt: skip
from . import apply as emission
from .activations import *  # noqa: F403
from .alignment import *  # noqa: F403
from .arithmetic import *  # noqa: F403
from .arithmetic import add, eq, isclose, mul, tensor_of, where
from .arranging import *  # noqa: F403
from .attention import scaled_dot_product_attention
from .bags import *  # noqa: F403
from .calculus import *  # noqa: F403
from .complexes import *  # noqa: F403
from .convolution import *  # noqa: F403
from .counting import *  # noqa: F403
from .distances import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .gathering import *  # noqa: F403
from .losses import *  # noqa: F403
from .margins import *  # noqa: F403
from .matrices import *  # noqa: F403
from .normalization import *  # noqa: F403
from .pooling import *  # noqa: F403
from .products import *  # noqa: F403
from .reductions import *  # noqa: F403
from .resampling import *  # noqa: F403
from .sampling import *  # noqa: F403
from .scattering import *  # noqa: F403
from .shaping import *  # noqa: F403
from .sorting import *  # noqa: F403
from .statistics import *  # noqa: F403
from .transformer import embedding, layer_norm, rms_norm
from .unpooling import *  # noqa: F403

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = [
    "allclose", "alpha_dropout", "bilinear", "bmm", "dot", "dropout", "dropout1d", "dropout2d", "dropout3d", "embedding",
    "equal", "feature_alpha_dropout", "layer_norm", "linear", "matmul", "mm", "rms_norm", "scaled_dot_product_attention",
]  # fmt: skip
__all__ += activations.__all__
__all__ += alignment.__all__
__all__ += arithmetic.__all__
__all__ += arranging.__all__
__all__ += bags.__all__
__all__ += calculus.__all__
__all__ += complexes.__all__
__all__ += convolution.__all__
__all__ += counting.__all__
__all__ += distances.__all__
__all__ += elementwise.__all__
__all__ += gathering.__all__
__all__ += losses.__all__
__all__ += margins.__all__
__all__ += matrices.__all__
__all__ += normalization.__all__
__all__ += pooling.__all__
__all__ += products.__all__
__all__ += reductions.__all__
__all__ += resampling.__all__
__all__ += sampling.__all__
__all__ += scattering.__all__
__all__ += shaping.__all__
__all__ += sorting.__all__
__all__ += statistics.__all__
__all__ += unpooling.__all__


# products


def matmul(input: Any, other: Any) -> Tensor:
    """The matrix product: vectors count as a row or a column, leading dimensions broadcast."""
    a, b = tensor_of("matmul", input), tensor_of("matmul", other)
    left, right = a._value.spec.shape, b._value.spec.shape
    if len(left) >= 2 and len(right) >= 2:
        return emission.apply_two("matmul", a, b)
    if not left or not right:
        raise ShapeError(f"matmul: {left} @ {right}: both operands have at least one dimension")
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] != inner:
        raise ShapeError(f"matmul: {left} @ {right}: inner sizes {left[-1]} and {inner} differ")
    shape = (*left[:-1],) if len(right) == 1 else (*right[:-2], right[-1])
    if len(left) == 1:
        a = emission.apply("reshape", (a,), (1, *left))
    if len(right) == 1:
        b = emission.apply("reshape", (b,), (*right, 1))
        shape = left[:-1]
    return emission.apply("reshape", (emission.apply("matmul", (a, b)),), shape)


def _product(name: str, input: Any, other: Any, ndim: int) -> Tensor:
    a, b = tensor_of(name, input), tensor_of(name, other)
    if a.ndim != ndim or b.ndim != ndim:
        raise ShapeError(f"{name}: {a.shape} @ {b.shape}: both operands have {ndim} dimensions")
    if ndim == 3 and a.shape[0] != b.shape[0]:
        raise ShapeError(f"{name}: {a.shape} @ {b.shape}: batch sizes {a.shape[0]} and {b.shape[0]} differ")
    return matmul(a, b)


def mm(input: Any, mat2: Any) -> Tensor:
    """The product of two matrices."""
    return _product("mm", input, mat2, 2)


def bmm(input: Any, mat2: Any) -> Tensor:
    """The products of two batches of matrices."""
    return _product("bmm", input, mat2, 3)


def dot(input: Any, tensor: Any) -> Tensor:
    """The inner product of two vectors."""
    return _product("dot", input, tensor, 1)


def linear(input: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input @ weightᵀ + bias`, with a weight of shape (out, in)."""
    if weight.ndim == 2:
        x = tensor_of("linear", input)
        if x.ndim and x.shape[-1] != weight.shape[1]:
            raise ShapeError(
                f"linear: input {x.shape} and weight {weight.shape}: "
                f"inner sizes {x.shape[-1]} and {weight.shape[1]} differ"
            )
        weight = emission.apply_one("permute", weight, (1, 0))
    out = matmul(input, weight)
    return out if bias is None else arithmetic.add(out, arithmetic.cast(bias, out.dtype))


def bilinear(input1: Any, input2: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x1 · weight[o] · x2 + bias[o]` for each o, with a weight of shape (out, in1, in2)."""
    a, b = tensor_of("bilinear", input1), tensor_of("bilinear", input2)
    out, first, second = weight.shape
    if a.shape[:-1] != b.shape[:-1] or (a.shape[-1], b.shape[-1]) != (first, second):
        raise ShapeError(f"bilinear: inputs {a.shape} and {b.shape} do not fit the weight {weight.shape}")
    turned = shaping.reshape(shaping.permute(weight, 1, 0, 2), (first, out * second))
    halfway = shaping.reshape(matmul(a, turned), (*a.shape[:-1], out, second))
    total = matmul(halfway, shaping.unsqueeze(b, -1))
    result = shaping.squeeze(total, -1)
    return result if bias is None else arithmetic.add(result, arithmetic.cast(bias, result.dtype))


# dropout


def _drop(name: str, x: Tensor, shape: tuple[int, ...], p: float, training: bool, inplace: bool) -> Tensor:
    """Zeros where a draw of `shape`, which broadcasts, says so; the rest scaled by 1 / (1 − p)."""
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: a probability lies from 0 to 1, not {p}")
    if not training or p == 0:
        return x
    if p == 1:
        out = mul(x, 0.0)
    else:
        draw = random.draw("uniform", shape, x.dtype)
        out = where(emission.apply("ge", (draw, float(p))), mul(x, 1 / (1 - p)), 0.0)
    return x._write(name, out) if inplace else out


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element is 0 with probability `p`, the others are scaled by 1 / (1 − p); outside training nothing is."""
    x = tensor_of("dropout", input)
    return _drop("dropout", x, x.shape, p, training, inplace)


def _drop_channels(name: str, input: Any, field: int, p: float, training: bool, inplace: bool) -> Tensor:
    x = tensor_of(name, input)
    if x.ndim not in (field + 1, field + 2):
        raise ShapeError(f"{name} takes (N, C, …) or (C, …) with {field} more dimensions, not shape {x.shape}")
    return _drop(name, x, (*x.shape[:-field], *(1,) * field), p, training, inplace)


def dropout1d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, L) or (C, L)."""
    return _drop_channels("dropout1d", input, 1, p, training, inplace)


def dropout2d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, H, W) or (C, H, W)."""
    return _drop_channels("dropout2d", input, 2, p, training, inplace)


def dropout3d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, D, H, W) or (C, D, H, W)."""
    return _drop_channels("dropout3d", input, 3, p, training, inplace)


def alpha_dropout(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean 0 and variance 1 of what goes through `selu` (Klambauer et al., 2017, arXiv:1706.02515)."""
    x = tensor_of("alpha_dropout", input)
    return _alpha_dropped("alpha_dropout", x, x.shape, p, training, inplace)


def feature_alpha_dropout(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels of (N, C, …)."""
    x = tensor_of("feature_alpha_dropout", input)
    if training and x.ndim < 2:
        raise ShapeError(f"feature_alpha_dropout takes (N, C, …), not shape {x.shape}")
    return _alpha_dropped("feature_alpha_dropout", x, (*x.shape[:2], *(1,) * (x.ndim - 2)), p, training, inplace)


def _alpha_dropped(name: str, x: Tensor, shape: tuple[int, ...], p: float, training: bool, inplace: bool) -> Tensor:
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: a probability lies from 0 to 1, not {p}")
    if not training or p == 0:
        return x
    if p == 1:
        out = mul(x, 0.0)
    else:
        low = -1.7580993408473766
        scale = ((1 - p) * (1 + p * low**2)) ** -0.5
        kept = emission.apply("ge", (random.draw("uniform", shape, x.dtype), float(p)))
        out = add(mul(where(kept, x, low), scale), -scale * low * p)
    return x._write(name, out) if inplace else out


# comparisons that wait for an answer


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one shape and equal elements; waits."""
    return input.shape == other.shape and bool(reductions.all(eq(input, other)))


def allclose(input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all elements are close, as `isclose` has it; waits."""
    return bool(reductions.all(isclose(input, other, rtol, atol, equal_nan)))
