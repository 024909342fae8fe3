"""Spatial transformers: `grid_sample` reads images between their elements, at the positions of a grid; `affine_grid` makes one.

Places are in units in which an image reaches from −1 to 1 along each dimension (Jaderberg et al., 2015, arXiv:1506.02025).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, creation, join_and_pad, shape_ops
from gt.client.ops.matrix_products import matmul
from gt.client.tensor import emission
from gt.client.tensor.operands import cast, of_kinds, tensor_of
from gt.errors import ShapeError
from gt.ir.dtypes import int64

from .image_resize import cubic

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["affine_grid", "grid_sample"]


def affine_grid(theta: Any, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The places that affine maps `theta` (N, 2, 3) or (N, 3, 4) take the elements of an image of `size` (N, C, …) from."""
    maps = tensor_of("affine_grid", theta)
    space = tuple(size[2:])
    count = len(space)
    if count not in (2, 3) or maps.shape != (size[0], count, count + 1):
        raise ShapeError(f"affine_grid: maps {maps.shape} do not fit an image of shape {tuple(size)}")
    lines = []
    for axis, length in enumerate(space):
        line = creation.linspace(-1, 1, length, dtype=maps.dtype) if length > 1 else creation.zeros(1, dtype=maps.dtype)
        if not align_corners:
            line = arithmetic.mul(line, (length - 1) / length)
        lines.append(emission.emit("expand", (line.reshape(*(1,) * axis, length, *(1,) * (count - axis - 1)),), space))
    points = join_and_pad.stack([*reversed(lines), creation.ones(space, dtype=maps.dtype)], count)
    flat = matmul(points.reshape(1, math.prod(space), count + 1), shape_ops.transpose(maps, 1, 2))
    return shape_ops.reshape(flat, (size[0], *space, count))


def _reflected(at: Tensor, low: float, high: float) -> Tensor:
    """As often as need be thrown back at either end."""
    span = high - low
    if span <= 0:
        return arithmetic.mul(at, 0.0)
    away = arithmetic.abs(arithmetic.sub(at, low))
    turns = arithmetic.floor(arithmetic.div(away.detach(), span))
    rest = arithmetic.sub(away, arithmetic.mul(turns, span))
    odd = arithmetic.ne(arithmetic.remainder(turns, 2.0), 0.0)
    return arithmetic.add(arithmetic.where(odd, arithmetic.sub(span, rest), rest), low)


def _padded(at: Tensor, size: int, padding: str, corners: bool) -> Tensor:
    if padding == "reflection":
        at = _reflected(at, 0.0, size - 1.0) if corners else _reflected(at, -0.5, size - 0.5)
    return at if padding == "zeros" else arithmetic.clamp(at, 0.0, float(size - 1))


def _looked_up(flat: Tensor, space: Sequence[int], places: Sequence[Tensor]) -> Tensor:
    """The elements of (N, C, elements) at whole places (N, points) along each dimension; 0 outside."""
    inside, index = None, None
    for at, size in zip(places, space, strict=True):
        within = arithmetic.logical_and(arithmetic.ge(at, 0.0), arithmetic.le(at, float(size - 1)))
        whole = cast(arithmetic.where(within, at, 0.0), int64)
        inside = within if inside is None else arithmetic.logical_and(inside, within)
        index = whole if index is None else arithmetic.add(arithmetic.mul(index, size), whole)
    assert index is not None, "there are dimensions"
    assert inside is not None, "there are dimensions"
    n, c, _ = flat.shape
    spread = emission.emit("expand", (shape_ops.unsqueeze(index, 1),), (n, c, index.shape[1]))
    found = emission.emit("gather", (flat, spread), 2)
    return arithmetic.where(shape_ops.unsqueeze(inside, 1), found, 0.0)


def grid_sample(
    input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """(N, C, H, W) looked up at the places (x, y) of a grid (N, H', W', 2), or (N, C, D, H, W) at (x, y, z).

    `mode` is 'bilinear', 'nearest' or (of images) 'bicubic'; outside is 0, or what 'border' or 'reflection' make of it.
    """
    x, where = of_kinds("grid_sample", input, "fc"), of_kinds("grid_sample", grid, "f")
    count = x.ndim - 2
    if count not in (2, 3) or where.ndim != x.ndim or where.shape[0] != x.shape[0] or where.shape[-1] != count:
        raise ShapeError(f"grid_sample: an image (N, C, …) and a grid (N, …, {count}), not {x.shape} and {where.shape}")
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and count != 2):
        raise ValueError(f"grid_sample: mode is 'bilinear', 'nearest' or, of images, 'bicubic', not {mode!r}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(f"grid_sample: padding_mode is 'zeros', 'border' or 'reflection', not {padding_mode!r}")
    n, c, *space = x.shape
    out = where.shape[1:-1]
    corners = bool(align_corners)
    flat = shape_ops.reshape(x, (n, c, math.prod(space)))
    points = shape_ops.reshape(where, (n, math.prod(out), count))
    raw = []
    for axis, size in enumerate(space):
        at = points[:, :, count - 1 - axis]
        raw.append((at + 1.0) * ((size - 1) / 2) if corners else ((at + 1.0) * float(size) - 1.0) * 0.5)
    if mode == "bicubic":
        found = _cubic(flat, space, raw, padding_mode, corners)
    else:
        at_each = [_padded(at, size, padding_mode, corners) for at, size in zip(raw, space, strict=True)]
        if mode == "nearest":
            found = _looked_up(flat, space, [arithmetic.round(at) for at in at_each])
        else:
            found = _linear(flat, space, at_each)
    return shape_ops.reshape(found, (n, c, *out))


def _summed(parts: Any) -> Tensor:
    total: Any = None
    for part in parts:
        total = part if total is None else arithmetic.add(total, part)
    return total  # type: ignore[no-any-return]  # there is a part


def _linear(flat: Tensor, space: Sequence[int], at: Sequence[Tensor]) -> Tensor:
    lows = [arithmetic.floor(each.detach()) for each in at]
    sides = [
        [(low, low + 1.0 - each), (low + 1.0, each - low)] for low, each in zip(lows, at, strict=True)
    ]  # places and their weights

    def corner(chosen: tuple[tuple[Tensor, Tensor], ...]) -> Tensor:
        weight = chosen[0][1]
        for _, more in chosen[1:]:
            weight = weight * more
        return _looked_up(flat, space, [place for place, _ in chosen]) * shape_ops.unsqueeze(weight, 1)

    return _summed(corner(chosen) for chosen in itertools.product(*sides))


def _cubic(flat: Tensor, space: Sequence[int], raw: Sequence[Tensor], padding: str, corners: bool) -> Tensor:
    lows = [arithmetic.floor(each.detach()) for each in raw]
    weights = [cubic(each - low) for each, low in zip(raw, lows, strict=True)]

    def neighbour(row: int, column: int) -> Tensor:
        places = [
            _padded(low + float(shift - 1), size, padding, corners)
            for low, shift, size in zip(lows, (row, column), space, strict=True)
        ]
        weight = weights[0][row] * weights[1][column]
        return _looked_up(flat, space, places) * shape_ops.unsqueeze(weight, 1)

    return _summed(neighbour(row, column) for row in range(4) for column in range(4))
