"""Convolutions, pooling and padding as XLA has them: GT's `conv`, `windows` and `overlap_add` are as general."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gt
from gt.client.tensor import emission

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["convolution", "padded", "pooled", "scattered_to_best"]


def convolution(
    x: Tensor,
    w: Tensor,
    *,
    dimension_numbers: Any,
    window_strides: Sequence[int],
    padding: Sequence[Sequence[int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    feature_group_count: int,
    batch_group_count: int,
    **_: Any,
) -> Tensor:
    """XLA's ConvGeneralDilated, with groups of features or of the batch."""
    lhs, rhs, out = dimension_numbers
    x, w = gt.permute(x, tuple(lhs)), gt.permute(w, tuple(rhs))  # (N, C, …) and (O, I, …)
    (n, c, *space), (o, i, *kernel) = x.shape, w.shape
    groups = feature_group_count * batch_group_count
    if batch_group_count > 1:
        grouped = gt.transpose(gt.reshape(x, (groups, n // groups, c, *space)), 0, 1)
    else:
        grouped = gt.reshape(x, (n, groups, c // groups, *space))
    weights = gt.reshape(w, (groups, o // groups, i, *kernel))
    pads = tuple(int(each) for pair in padding for each in pair)
    found = emission.emit(
        "conv", (grouped, weights), tuple(window_strides), pads, tuple(lhs_dilation), tuple(rhs_dilation)
    )
    found = gt.reshape(found, (found.shape[0], o, *found.shape[3:]))
    return gt.permute(found, tuple(sorted(range(found.ndim), key=tuple(out).__getitem__)))


def padded(x: Any, value: Any, *, padding_config: Sequence[Sequence[int]]) -> Tensor:
    """XLA's pad: `value` at both ends and between the elements; negative numbers cut off."""
    if not isinstance(value, gt.Tensor) and all(
        before >= 0 <= after and not between for before, after, between in padding_config
    ):
        return gt.pad(
            x, [each for before, after, _ in reversed(padding_config) for each in (before, after)], value=value
        )
    for axis, (before, after, between) in enumerate(padding_config):
        size = x.shape[axis]
        if between and size > 1:
            spread = gt.unsqueeze(x, axis + 1)
            room = list(spread.shape)
            room[axis + 1] = between
            filled = gt.broadcast_to(_filling(value, x), tuple(room))
            spread = gt.cat([spread, filled], axis + 1)
            sizes = list(x.shape)
            sizes[axis] = size * (between + 1)
            x = gt.narrow(gt.reshape(spread, tuple(sizes)), axis, 0, (size - 1) * (between + 1) + 1)
        first, last = max(0, -before), x.shape[axis] - max(0, -after)
        if (first, last) != (0, x.shape[axis]):
            x = gt.narrow(x, axis, first, last - first)
        parts = [x]
        for at, count in ((0, before), (len(parts) + 1, after)):
            if count > 0:
                room = list(x.shape)
                room[axis] = count
                parts.insert(at, gt.broadcast_to(_filling(value, x), tuple(room)))
        x = gt.cat(parts, axis) if len(parts) > 1 else x
    return x  # type: ignore[no-any-return]


def _filling(value: Any, x: Tensor) -> Tensor:
    return value if isinstance(value, gt.Tensor) else gt.full((), value, dtype=x.dtype)


def _windows(
    x: Tensor, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """Each window, one dimension more at the end for each axis that has one; and these axes."""
    axes = [at for at in range(x.ndim) if sizes[at] > 1 or strides[at] > 1]
    if not axes:
        return x, axes
    chosen = [tuple(int(of[at]) for at in axes) for of in (sizes, strides, dilations)]
    return emission.emit("windows", (x,), tuple(axes), *chosen), axes


def pooled(function: Callable[..., Any], start: Any) -> Callable[..., Tensor]:
    """A reduction over windows; `start` is what padding holds."""

    def rule(
        x: Tensor,
        *,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Sequence[Sequence[int]],
        base_dilation: Sequence[int],
        window_dilation: Sequence[int],
    ) -> Tensor:
        if start and x.dtype.kind in "iu":
            limits = gt.iinfo(x.dtype)
            value: Any = limits.min if start < 0 else limits.max
        else:
            value = start
        config = [(*pair, spread - 1) for pair, spread in zip(padding, base_dilation, strict=True)]
        x = padded(x, value, padding_config=config)
        cut, axes = _windows(x, window_dimensions, window_strides, window_dilation)
        return function(cut, tuple(range(x.ndim, cut.ndim))) if axes else x

    return rule


def scattered_to_best(
    source: Tensor,
    operand: Tensor,
    *,
    select_prim: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[Sequence[int]],
) -> Tensor:
    """The gradient of pooling by the greatest or least: each window's goes to its first best element."""
    greatest = select_prim.name == "ge"
    worst = float("-inf") if greatest else float("inf")
    whole = padded(operand, worst, padding_config=[(*pair, 0) for pair in padding])
    ones = (1,) * whole.ndim
    cut, axes = _windows(whole, window_dimensions, window_strides, ones)
    if not axes:
        return source
    count = cut.shape[: whole.ndim]
    flat = gt.reshape(cut, (*count, -1))
    best = (gt.argmax if greatest else gt.argmin)(flat, whole.ndim)
    chosen = gt.eq(gt.unsqueeze(best, -1), gt.arange(flat.shape[-1], dtype=gt.int64))
    parts = gt.reshape(gt.where(chosen, gt.unsqueeze(source, -1), 0), cut.shape)
    sizes, strides = ([each[at] for at in axes] for each in (whole.shape, window_strides))
    out = emission.emit("overlap_add", (parts,), tuple(axes), tuple(sizes), tuple(strides), (1,) * len(axes))
    return padded(out, 0, padding_config=[(-before, -after, 0) for before, after in padding])
