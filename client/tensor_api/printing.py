"""Printing of tensors, in PyTorch's format. Of a large tensor only what is shown is fetched. Nothing else may be here."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gt.client.ops import join_and_pad, shape_ops
from gt.client.tensor import grad_mode, tape
from gt.ir.dtypes import bool_, get_default_dtype, int64

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["set_printoptions"]


class PrintOptions(NamedTuple):
    """The print options: how numbers are written, and how many."""

    precision: int = 4
    threshold: int = 1000
    """Elements up to which a tensor is shown whole."""
    edgeitems: int = 3
    """Elements shown at either end of a dimension of a tensor too large to be shown whole."""
    linewidth: int = 80
    sci_mode: bool | None = None
    """Whether there are exponents; None: where sizes differ much."""


_PROFILES: Final = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, threshold=1000, edgeitems=2),
    "full": PrintOptions(threshold=sys.maxsize),
}
_chosen: Final = [_PROFILES["default"]]


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Sets how tensors print from now on; `profile` 'default', 'short' or 'full' goes before the others."""
    if profile is not None and profile not in _PROFILES:
        raise ValueError(f"set_printoptions: the profile is one of {', '.join(_PROFILES)}, not {profile!r}")
    now = _chosen[0] if profile is None else _PROFILES[profile]
    most = None if threshold is None else int(min(threshold, sys.maxsize))
    given = {"precision": precision, "threshold": most, "edgeitems": edgeitems, "linewidth": linewidth}
    kept = {name: value for name, value in given.items() if value is not None}
    _chosen[0] = now._replace(**kept, sci_mode=sci_mode)


def format_tensor(tensor: Tensor) -> str:
    """`tensor([1., 2.], requires_grad=True)`; waits for the values that it shows."""
    array = _fetched(tensor)
    notes = []
    if array.size == 0:
        notes.append(f"size={tensor.shape}")
    if tensor.dtype not in (get_default_dtype(), get_default_dtype().to_complex(), bool_, int64):
        notes.append(f"dtype={tensor.dtype}")
    if tensor.requires_grad:
        edge = tensor._edge
        notes.append(f"grad_fn=<{edge.name()}>" if isinstance(edge, tape.Vertex) else "requires_grad=True")
    return f"tensor({', '.join([_body(array), *notes])})"


def format_html(tensor: Tensor) -> str:
    """The same for a notebook, under its shape, dtype and size; waits for the values that it shows."""
    shape = " × ".join(map(str, tensor.shape)) or "a number"
    head = f"gt.Tensor: {shape}, {tensor.dtype.name}, {tensor.nbytes:,} bytes"
    return f"<div><small>{html.escape(head)}</small><pre>{html.escape(format_tensor(tensor))}</pre></div>"


def _fetched(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The values; of a large tensor those at the edges alone, in an array of which nothing else takes memory."""
    edge = _chosen[0].edgeitems
    if tensor.numel() <= _chosen[0].threshold:
        return tensor.numpy()
    with grad_mode.no_grad():
        edges, places = tensor.detach(), []
        for axis, size in enumerate(tensor.shape):
            if size > 2 * edge:
                ends = [shape_ops.narrow(edges, axis, start, edge) for start in (0, size - edge)]
                edges = join_and_pad.cat(ends, axis)
                places.append([*range(edge), *range(size - edge, size)])
            else:
                places.append([*range(size)])
    values = edges.numpy()
    if values.dtype.kind not in "biufc":  # bfloat16
        values = values.astype(np.float32)
    array = np.zeros(tensor.shape, values.dtype)  # pages that nobody touches are nobody's
    array[np.ix_(*places)] = values
    return array


def _body(array: np.ndarray[Any, Any]) -> str:
    if array.size == 0:
        return "[]"
    formatter: Any = None
    if array.dtype.kind not in "biufc":  # bfloat16
        array = array.astype(np.float32)
    if array.dtype.kind == "f":
        formatter = {"float_kind": _numbers(_shown(array))}
    elif array.dtype.kind == "c":
        formatter = {"complex_kind": _complex(_shown(array))}
    how = _chosen[0]
    return np.array2string(
        array, how.linewidth, separator=", ", prefix="tensor(", formatter=formatter, threshold=how.threshold,
        edgeitems=how.edgeitems,
    )  # fmt: skip


def _shown(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements that are printed: all, or those at the edges."""
    edge = _chosen[0].edgeitems
    if array.size > _chosen[0].threshold:
        for axis, size in enumerate(array.shape):
            if size > 2 * edge:
                array = array.take([*range(edge), *range(size - edge, size)], axis)
    return array


def _complex(array: np.ndarray[Any, Any]) -> Callable[[complex], str]:
    """The format of complex numbers that stand together: each part as numbers are, the sign between them."""
    real, imag = _numbers(array.real), _numbers(np.abs(array.imag))

    def write(value: complex) -> str:
        return f"{real(value.real)}{'-' if np.signbit(value.imag) else '+'}{imag(abs(value.imag)).lstrip()}j"

    return write


def _numbers(array: np.ndarray[Any, Any]) -> Callable[[float], str]:
    """The format of floating-point numbers that stand together: whole, with so many decimals, or with exponents."""
    how = _chosen[0]
    sizes = np.abs(array[np.isfinite(array) & (array != 0)].astype(np.float64))
    wide = bool(sizes.size) and bool(sizes.max() / sizes.min() > 1000 or sizes.max() > 1e8)
    exponents, decimals = f"{{:.{how.precision}e}}".format, f"{{:.{how.precision}f}}".format
    if (sizes == np.ceil(sizes)).all():
        text = exponents if (wide if how.sci_mode is None else how.sci_mode) else "{:.0f}.".format
    else:
        text = exponents if (wide or sizes.min() < 1e-4 if how.sci_mode is None else how.sci_mode) else decimals

    def write(value: float) -> str:
        return text(value) if np.isfinite(value) else str(float(value))

    width = max((len(text(value)) for value in array[np.isfinite(array)].tolist()), default=0)
    return lambda value: write(value).rjust(width if array.ndim else 0)
