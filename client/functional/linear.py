"""Linear maps: a matrix of weights applied to the last dimension."""

from __future__ import annotations

from typing import Any

from gt.client.ops import arithmetic, shape_ops
from gt.client.ops.matrix_products import matmul
from gt.client.tensor import emission
from gt.client.tensor.operands import cast, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError


def linear(input: Any, weight: Any, bias: Tensor | None = None) -> Tensor:
    """`input @ weightᵀ + bias`, with a weight of shape (out, in)."""
    weight = tensor_of("linear", weight)
    if weight.ndim == 2:
        x = tensor_of("linear", input)
        if x.ndim and x.shape[-1] != weight.shape[1]:
            raise ShapeError(
                f"linear: input {x.shape} and weight {weight.shape}: "
                f"inner sizes {x.shape[-1]} and {weight.shape[1]} differ"
            )
        weight = emission.emit_unary("permute", weight, (1, 0))
    out = matmul(input, weight)
    return out if bias is None else arithmetic.add(out, cast(bias, out.dtype))


def bilinear(input1: Any, input2: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x1 · weight[o] · x2 + bias[o]` for each o, with a weight of shape (out, in1, in2)."""
    a, b = tensor_of("bilinear", input1), tensor_of("bilinear", input2)
    out, first, second = weight.shape
    if a.shape[:-1] != b.shape[:-1] or (a.shape[-1], b.shape[-1]) != (first, second):
        raise ShapeError(f"bilinear: inputs {a.shape} and {b.shape} do not fit the weight {weight.shape}")
    turned = shape_ops.reshape(shape_ops.permute(weight, 1, 0, 2), (first, out * second))
    halfway = shape_ops.reshape(matmul(a, turned), (*a.shape[:-1], out, second))
    total = matmul(halfway, shape_ops.unsqueeze(b, -1))
    result = shape_ops.squeeze(total, -1)
    return result if bias is None else arithmetic.add(result, cast(bias, result.dtype))
