"""Kernels of a deterministic session: computed block by block of a fixed grid, so that bits do not depend on the sharding.

Every call into BLAS or NumPy that rounds has a shape and a memory layout that follow from the *global* shapes alone, and
what the blocks give is added in one binary tree (`gt/sharding/block_grid.py`). A worker computes the part of the tree that
it has; a move continues it over the workers. A block without elements is left out, and a worker without blocks contributes
negative zeros: these leave every number as it is.

A matrix product is cut into tiles of at most `TILE_SIZE` in each direction. That small, OpenBLAS runs on one thread whatever it
is told (from 262,144 multiplications on it uses more), so bits do not depend on how many threads there are either. Of
complex numbers it uses more from 32,768 on, so their tiles are half as large.

Element-wise kernels need nothing here: NumPy's give an element the same bits wherever it lies in an array.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from gt.ir.spec import spec
from gt.sharding.block_grid import Tree, fold, grid, grid_dimension, tree
from gt.worker.base.kernel_call import Kernel, KernelCall, OperandPart

from .attention import AttentionStrip, AttentionStrips, Where, attention, attention_grad
from .conv_cpu import conv
from .convolution import columns
from .elementwise import nothing_of, same, wide
from .linalg import linalg, solve
from .matmul import int8_product, matmul
from .recurrence import recurrence, recurrence_grad
from .reductions import identity, reducer_of, reduction

TILE_SIZE: Final = 64
COMPLEX_TILE_SIZE: Final = 32


class BlockStretch(NamedTuple):
    """A block that has elements here: its number, and where they lie in the local operand."""

    block: int
    first: int
    last: int


class TiledSides(NamedTuple):
    """One dimension of a matrix product: its stretches, how many tiles each has, and their length.

    A stretch is filled up to whole tiles with zeros, so all tiles are alike.
    """

    stretches: tuple[BlockStretch, ...]
    tiles: int
    length: int

    @property
    def width(self) -> int:
        return self.tiles * self.length

    @property
    def full(self) -> bool:
        return all(last - first == self.width for _, first, last in self.stretches)


def _stretches(call: KernelCall, position: int, axis: int) -> tuple[BlockStretch, ...]:
    """The blocks of a dimension of an operand of which something is here."""
    size, start, stop = call.span(position, axis)
    cuts = itertools.pairwise(grid(size, call.blocks))
    found = [BlockStretch(at, a - start, b - start) for at, (a, b) in enumerate(cuts) if start <= a < b <= stop]
    if sum(stretch.last - stretch.first for stretch in found) != stop - start:
        raise AssertionError(f"{call.op}: {start} to {stop} of {size} is off the grid of {call.blocks} blocks")
    return tuple(found)


def _tree(call: KernelCall, stretches: Sequence[BlockStretch]) -> Tree:
    return tree([stretch.block for stretch in stretches], 0, call.blocks)


# reductions


def _canonical(xp: Any, x: Any, order: Sequence[int], rows: int, dtype: Any) -> Any:
    """`x` as rows, each one stretch of memory: so the bits of what is reduced do not depend on how much else there is."""
    return xp.ascontiguousarray(x.transpose(order), dtype).reshape(rows, -1)


def blocked_reduction(call: KernelCall) -> Kernel:
    """sum and prod, block by block of one of the dimensions that they join."""
    xp, op, axes, result = call.xp, call.op, call.attributes["axes"], call.result
    if not axes or result.dtype.kind not in "fc":
        return reduction(call)
    operand, dtype = call.tensor(0), result.dtype.numpy
    whole = [call.span(0, axis)[0] for axis in range(operand.ndim)]
    if 0 in (whole[axis] for axis in axes) or result.size == 0:
        nothing = identity(op, result.dtype)
        return lambda _x: xp.full(result.shape, nothing, dtype)
    dim = grid_dimension(whole, axes, call.blocks)
    stretches = _stretches(call, 0, dim)
    if not stretches:
        nothing = nothing_of(result.dtype) if op == "sum" else 1
        return lambda _x: xp.full(result.shape, nothing, dtype)
    kept = [axis for axis in range(operand.ndim) if axis not in axes]
    joined = [dim, *(axis for axis in axes if axis != dim)]
    inner = math.prod(operand.shape[axis] for axis in joined[1:])
    places = {block: slice(first * inner, last * inner) for block, first, last in stretches}
    branch, work = _tree(call, stretches), wide(result.dtype).numpy
    across = operand.ndim - 1 in axes
    reduce = reducer_of(xp, op, (1,) if across else (0,), keepdims=False)
    join = xp.add if op == "sum" else xp.multiply

    def kernel(x: Any) -> Any:
        if across:
            lines = _canonical(xp, x, [*kept, *joined], result.size, work)
            out = fold(branch, lambda block: reduce(lines[:, places[block]]), lambda a, b: join(a, b, out=a))
        else:  # line by line, as these lie in memory
            lines = _canonical(xp, x, [*joined, *kept], operand.size // result.size, work)
            if result.size == 1:  # which would be taken for one stretch of memory, and added by halves
                lines = xp.concatenate([lines, lines], 1)
            out = fold(branch, lambda block: reduce(lines[places[block]]), lambda a, b: join(a, b, out=a))[
                : result.size
            ]
        return out.reshape(result.shape).astype(dtype, copy=False)

    return kernel


def blocked_extreme(call: KernelCall) -> Kernel:
    """max and min, which are exact; of zeros they give the positive one, whatever the order."""
    kernel = reduction(call)
    return kernel if call.result.dtype.kind != "f" or not call.attributes["axes"] else lambda x: kernel(x) + 0


def row_softmax(call: KernelCall) -> Kernel:
    """softmax and log_softmax of each row by itself, as one stretch of memory."""
    xp, result, axis, logarithm = call.xp, call.result, call.attributes["axis"], call.op == "log_softmax"
    if result.size == 0:
        return same(call)
    order = [*(dim for dim in range(result.ndim) if dim != axis), axis]
    back = [order.index(dim) for dim in range(result.ndim)]
    shape = [result.shape[dim] for dim in order]
    rows = result.size // result.shape[axis]
    work = wide(result.dtype).numpy
    largest = reducer_of(xp, "max", (1,), keepdims=True)
    total = reducer_of(xp, "sum", (1,), keepdims=True)

    def kernel(x: Any) -> Any:
        lines = _canonical(xp, x, order, rows, work)
        out = xp.subtract(lines, largest(lines) + 0)
        if logarithm:
            xp.subtract(out, xp.log(total(xp.exp(out))), out)
        else:
            xp.exp(out, out)
            xp.divide(out, total(out), out)
        return out.reshape(shape).transpose(back).astype(result.dtype.numpy, copy=False)

    return kernel


# matrix products


def _sides(call: KernelCall, position: int, axis: int, inner: int = 1) -> TiledSides:
    """One dimension of a product, of which each index stands for `inner` rows or columns."""
    size = call.span(position, axis)[0]
    width = max(1, -(-size // call.blocks)) * inner
    tiles = -(-width // (COMPLEX_TILE_SIZE if call.result.dtype.kind == "c" else TILE_SIZE))
    stretches = (
        BlockStretch(block, first * inner, last * inner) for block, first, last in _stretches(call, position, axis)
    )
    return TiledSides(tuple(stretches), tiles, -(-width // tiles))


def _filled(xp: Any, x: Any, sides: TiledSides, axis: int) -> Any:
    """Every stretch along an axis (−1 or −2) filled up with zeros to whole tiles."""
    if sides.full:
        return x
    shape = list(x.shape)
    shape[axis] = len(sides.stretches) * sides.width
    out = xp.zeros(shape, x.dtype)
    rest = (slice(None),) * (-1 - axis)
    for at, (_, first, last) in enumerate(sides.stretches):
        start = at * sides.width
        out[(..., slice(start, start + last - first), *rest)] = x[(..., slice(first, last), *rest)]
    return out


def _tiled(xp: Any, x: Any, rows: TiledSides, columns: TiledSides) -> Any:
    """A matrix [..., m, n] as tiles [..., row, column, m in it, n in it], each one stretch of memory."""
    x = _filled(xp, _filled(xp, x, rows, -2), columns, -1)
    across, down = len(rows.stretches) * rows.tiles, len(columns.stretches) * columns.tiles
    return xp.ascontiguousarray(x.reshape(*x.shape[:-2], across, rows.length, down, columns.length).swapaxes(-3, -2))


def _untiled(xp: Any, x: Any, rows: TiledSides, columns: TiledSides) -> Any:
    """The inverse of `_tiled`."""
    *batch, across, down, _, _ = x.shape
    x = x.swapaxes(-3, -2).reshape(*batch, across * rows.length, down * columns.length)
    if not rows.full:
        x = xp.concatenate([x[..., start : start + size, :] for start, size in _kept(rows)], -2)
    if not columns.full:
        x = xp.concatenate([x[..., start : start + size] for start, size in _kept(columns)], -1)
    return x


def _kept(sides: TiledSides) -> list[tuple[int, int]]:
    """Where the elements of each stretch begin among the tiles, and how many they are."""
    return [(at * sides.width, last - first) for at, (_, first, last) in enumerate(sides.stretches)]


def tiled_matmul(call: KernelCall) -> Kernel:
    """Multiplies tile by tile; the tiles of a block of what is contracted are added in order, the blocks in the tree."""
    xp, result = call.xp, call.result
    dtype, size = result.dtype.numpy, call.span(0, call.tensor(0).ndim - 1)[0]
    if result.dtype.kind not in "fc" or result.size == 0 or size == 0:
        return matmul(call)
    m = _sides(call, 0, call.tensor(0).ndim - 2)
    k = _sides(call, 0, call.tensor(0).ndim - 1)
    n = _sides(call, 1, call.tensor(1).ndim - 1)
    if not k.stretches:
        return lambda _a, _b: xp.full(result.shape, nothing_of(result.dtype), dtype)
    product = _product(call, m, k, n)
    return lambda a, b: product(a, b).astype(dtype, copy=False)


def tiled_linear_int8(call: KernelCall) -> Kernel:
    """As `tiled_matmul`, by the transpose of an int8 weight."""
    x, w = call.tensor(0), call.tensor(1)
    if not call.result.size or not call.span(0, x.ndim - 1)[0]:
        return int8_product(call)
    parts = call.parts
    if parts and parts[1] is not None:
        parts = (parts[0], OperandPart(parts[1].shape[::-1], parts[1].box[::-1]))
    operands = (x, spec(call.result.dtype, w.shape[::-1]))
    multiply, dtype = tiled_matmul(replace(call, op="matmul", operands=operands, parts=parts)), call.result.dtype.numpy
    return lambda x, w: multiply(x, w.T.astype(dtype))


def _product(call: KernelCall, m: TiledSides, k: TiledSides, n: TiledSides) -> Kernel:
    """The product of two matrices by tiles, in the dtype that it is added up in."""
    xp, branch, work = call.xp, _tree(call, k.stretches), wide(call.result.dtype).numpy
    places = {stretch.block: at * k.tiles for at, stretch in enumerate(k.stretches)}

    def kernel(a: Any, b: Any) -> Any:
        left = _tiled(xp, a.astype(work, copy=False), m, k)
        right = _tiled(xp, b.astype(work, copy=False), k, n)

        def block(number: int) -> Any:
            total = None
            for at in range(places[number], places[number] + k.tiles):
                product = xp.matmul(left[..., :, None, at, :, :], right[..., None, at, :, :, :])
                total = product if total is None else xp.add(total, product, out=total)
            return total

        out = fold(branch, block, lambda x, y: xp.add(x, y, out=x))
        return _untiled(xp, out, m, n)

    return kernel


def tiled_conv(call: KernelCall) -> Kernel:
    """Convolves by a product of w [g, o, c·size] with the windows [g, c·size, n·count], tile by tile."""
    xp, result, dtype = call.xp, call.result, call.result.dtype.numpy
    if result.size == 0 or call.span(0, 2)[0] == 0:
        return conv(call)
    windows, sizes, counts = columns(call)
    inner, outer, made = math.prod(sizes), math.prod(counts), call.tensor(1).shape[1]
    m, k, n = _sides(call, 1, 1), _sides(call, 0, 2, inner), _sides(call, 0, 0, outer)
    if not k.stretches:
        return lambda _x, _w: xp.full(result.shape, -0.0, dtype)
    product = _product(call, m, k, n)
    examples, groups, channels = call.tensor(0).shape[:3]
    order = (*range(1, 3 + len(sizes)), 0, *range(3 + len(sizes), 3 + 2 * len(sizes)))

    def kernel(x: Any, w: Any) -> Any:
        right = windows(x).transpose(order).reshape(groups, channels * inner, examples * outer)
        out = product(w.reshape(groups, made, channels * inner), right)
        turned = out.reshape(groups, made, examples, outer).transpose(2, 0, 1, 3)
        return turned.reshape(result.shape).astype(dtype, copy=False)

    return kernel


class _WholeAttention(AttentionStrips):
    """Attention by whole matrices, one of the stack at a time: products by tiles, and each row by itself."""

    def __init__(self, call: KernelCall) -> None:
        super().__init__(call)
        axis = call.tensor(0).ndim - 2
        at = {"l": (0, axis), "e": (0, axis + 1), "s": (1, axis), "o": (2, axis + 1)}
        sides = {letter: _sides(call, *place) for letter, place in at.items()}
        terms = ("les", "lso") if call.op == "attention" else ("les", "slo", "los", "lse", "sle")
        self.products = {term: _product(call, *(sides[letter] for letter in term)) for term in terms}

    def __iter__(self) -> Iterator[Where]:
        return iter(np.ndindex(*self.stack))

    def strips(self) -> Iterator[AttentionStrip]:
        yield AttentionStrip(slice(0, self.stop - self.start), self.start, self.keys)

    def product(self, letters: str, a: Any, b: Any) -> Any:
        return self.xp.ascontiguousarray(self.products[letters](a, b))


def whole_attention(call: KernelCall) -> Kernel:
    """attention and attention_grad: all queries at once, with products tile by tile."""
    factory = attention if call.op == "attention" else attention_grad
    if call.result.size == 0 or 0 in call.tensor(0).shape or 0 in call.tensor(2).shape:
        return factory(call)  # zeros, or means of values
    return factory(call, _WholeAttention)


def tiled_recurrence(call: KernelCall) -> Kernel:
    """Recurrent layers and their gradients: the product of each step tile by tile."""
    grad = call.op.endswith("_grad")
    if call.result.size == 0:
        return (recurrence_grad if grad else recurrence)(call)
    rows, at = _sides(call, 0, 2 if grad else 1), 1 if grad else 2
    product = _product(call, rows, _sides(call, at, not grad), _sides(call, at, grad))

    def multiply(a: Any, b: Any, out: Any) -> None:
        out[...] = product(a, b)

    if grad:
        return recurrence_grad(call, multiply)
    return recurrence(call, multiply, _product(call, rows, _sides(call, 1, 1), _sides(call, 1, 0)))


def small_matrices(call: KernelCall) -> Kernel:
    """Solves and factorises matrices of one tile at most: LAPACK works on one matrix at a time, on one thread as long as a
    matrix is no larger than a tile."""
    specs = [call.tensor(position) for position in range(len(call.operands))]
    most = COMPLEX_TILE_SIZE if specs[0].dtype.kind == "c" else TILE_SIZE
    if all(size <= most for spec in specs for size in spec.shape[-2:]):
        return (solve if call.op == "solve" else linalg)(call)
    shapes = " and ".join(str(spec.shape) for spec in specs)

    def refuse(*_: Any) -> Any:
        raise ValueError(
            f"{call.op}: {shapes}: a deterministic session takes matrices of at most {most} rows and columns here, for of "
            "larger ones the bits depend on how many threads there are; compute it in a session that is not deterministic"
        )

    return refuse
