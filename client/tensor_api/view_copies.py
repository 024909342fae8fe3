"""PyTorch's copying forms of views: `permute_copy` and its like, whose results are no views.

A copy of a handle costs nothing: values never change, so it is the same value, and no view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.client.ops import complex_numbers, shape_ops, triangular
from gt.client.tensor.operands import clone, tensor_of
from gt.ir.dtypes import DType

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "alias_copy", "detach_copy", "diagonal_copy", "expand_copy", "narrow_copy", "permute_copy", "select_copy", "slice_copy",
    "split_copy", "split_with_sizes_copy", "squeeze_copy", "t_copy", "transpose_copy", "unbind_copy", "unfold_copy",
    "unsqueeze_copy", "view_as_complex_copy", "view_as_real_copy", "view_copy",
]  # fmt: skip

Copy = Callable[..., "Tensor"]
Copies = Callable[..., "tuple[Tensor, ...]"]


def _one(name: str, function: Callable[..., Tensor]) -> Copy:
    def copied(input: Any, *args: Any, **options: Any) -> Tensor:
        return clone(function(input, *args, **options))

    copied.__name__ = copied.__qualname__ = name
    copied.__wrapped__ = function  # type: ignore[attr-defined]  # whose signature it has
    copied.__doc__ = f"A copy. {function.__doc__}"
    return copied


def _several(name: str, function: Callable[..., tuple[Tensor, ...]]) -> Copies:
    def copied(input: Any, *args: Any, **options: Any) -> tuple[Tensor, ...]:
        return tuple([clone(each) for each in function(input, *args, **options)])

    copied.__name__ = copied.__qualname__ = name
    copied.__wrapped__ = function  # type: ignore[attr-defined]  # whose signature it has
    copied.__doc__ = f"Copies. {function.__doc__}"
    return copied


def _same(input: Any) -> Tensor:
    """The tensor."""
    return tensor_of("alias_copy", input)


def _sliced(input: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """From `start` up to but without `end` along a dimension."""
    x = tensor_of("slice_copy", input)
    at = shape_ops.axis_of("slice_copy", dim, x.shape)
    part: Tensor = x[(slice(None),) * at + (slice(start, end, step),)]
    return part


def _view(input: Any, *shape: Any, size: Any = None, dtype: Any = None) -> Tensor:
    """In another shape, or as numbers of another dtype."""
    if dtype is not None or (len(shape) == 1 and isinstance(shape[0], DType)):
        return shape_ops.view(input, *shape, dtype=dtype)
    return shape_ops.reshape(input, *shape, shape=size)


alias_copy: Copy = _one("alias_copy", _same)
detach_copy: Copy = _one("detach_copy", lambda input: _same(input).detach())
diagonal_copy: Copy = _one("diagonal_copy", triangular.diagonal)
expand_copy: Copy = _one("expand_copy", shape_ops.expand)
narrow_copy: Copy = _one("narrow_copy", shape_ops.narrow)
permute_copy: Copy = _one("permute_copy", shape_ops.permute)
select_copy: Copy = _one("select_copy", shape_ops.select)
slice_copy: Copy = _one("slice_copy", _sliced)
squeeze_copy: Copy = _one("squeeze_copy", shape_ops.squeeze)
t_copy: Copy = _one("t_copy", shape_ops.t)
transpose_copy: Copy = _one("transpose_copy", shape_ops.transpose)
unfold_copy: Copy = _one("unfold_copy", shape_ops.unfold)
unsqueeze_copy: Copy = _one("unsqueeze_copy", shape_ops.unsqueeze)
view_as_complex_copy: Copy = _one("view_as_complex_copy", complex_numbers.view_as_complex)
view_as_real_copy: Copy = _one("view_as_real_copy", complex_numbers.view_as_real)
view_copy: Copy = _one("view_copy", _view)
split_copy: Copies = _several("split_copy", shape_ops.split)
split_with_sizes_copy: Copies = _several("split_with_sizes_copy", shape_ops.split_with_sizes)
unbind_copy: Copies = _several("unbind_copy", shape_ops.unbind)
