"""The kernel of a column reduction: element by element, and totals over the first dimensions, each read and made in one go.

A block has a strip of neighbouring columns and a part of the rows. Each of its threads goes down a few columns of every so
many-th row, so that neighbours read what lies side by side; then the block joins what its threads have. With several parts each
block leaves its own in memory, and whoever of a strip comes last joins them, in the order of the rows: so the bits depend on
sizes alone, whatever came first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from gt.ir.dtypes import DType
from gt.worker.kernels.cuda.source import BLOCK_THREADS
from gt.worker.kernels.elementwise import wide
from gt.worker.op_table.op_table import CUDA_REDUCTIONS

from . import cuda_types
from .index_math import divided, product

if TYPE_CHECKING:
    from .codegen import CudaWriter

MAX_STRIP_THREADS: Final = 32
"""Threads along a strip, if there are as many columns and not too few rows."""
MAX_BLOCKS: Final = 512
"""Into how many blocks the rows are cut up: as many as keep a large device busy."""
MIN_THREAD_ROWS: Final = 8
"""Rows that each thread has at least, before they are cut up."""

PRELUDE: Final = f"""
template <int V, typename T, typename F> __device__ __forceinline__ void down(T (&x)[V], F join, unsigned int width)
{{
    __shared__ T held[V * {BLOCK_THREADS}];
    for (int j = 0; j < V; ++j) held[j * {BLOCK_THREADS} + threadIdx.x] = x[j];
    for (unsigned int apart = {BLOCK_THREADS} / 2; apart >= width; apart >>= 1) {{
        __syncthreads();
        if (threadIdx.x < apart)
            for (T* at = held + threadIdx.x; at < held + V * {BLOCK_THREADS}; at += {BLOCK_THREADS}) *at = join(*at, at[apart]);
    }}
    __syncthreads();
    for (int j = 0; j < V; ++j) x[j] = held[j * {BLOCK_THREADS} + threadIdx.x % width];
    __syncthreads();
}}
"""
"""The join over the threads that have the same columns, in a fixed order; all of them get it."""


class ColumnReduction(NamedTuple):
    """How blocks share the space of a column reduction. Behind all other arguments are `width` and `parts`, for every total
    memory for what the parts have, and a count for each strip that begins at 0; where there is one part, no memory."""

    columns: int
    width: int
    """Threads along a strip."""
    parts: int
    """Into how many the rows are cut up: a power of two, so that counts may go on from launch to launch."""
    kinds: tuple[DType, ...]

    def strips(self, pack: int) -> int:
        """How many strips there are where each thread has `pack` columns."""
        return -(-self.columns // (self.width * pack))


def column_reduction_of(writer: CudaWriter, rows: int, columns: int, pack: int) -> ColumnReduction:
    """The cut of a column reduction, by its sizes alone."""
    width = min(MAX_STRIP_THREADS, 1 << (-(-columns // pack) - 1).bit_length())
    width = max(width, BLOCK_THREADS >> (rows - 1).bit_length())
    strips = -(-columns // (width * pack))
    parts = max(1, min(MAX_BLOCKS // strips, rows // (BLOCK_THREADS // width * MIN_THREAD_ROWS)))
    kinds = []
    for number in writer.joins():
        dtype = writer.dtype(number)
        assert dtype is not None, "a join is a node"
        kinds.append(wide(dtype))
    return ColumnReduction(columns, width, 1 << (parts.bit_length() - 1), tuple(kinds))


def parameters(writer: CudaWriter) -> Iterator[str]:
    """The parameters of a kernel besides sizes, sources and outputs."""
    yield "unsigned int width"
    yield "unsigned int parts"
    for number in writer.joins():
        yield f"{_kind(writer, number)}* t{number}"
    yield "unsigned int* turns"


def lines_of(writer: CudaWriter) -> Iterator[str]:
    """The lines of the kernel's body."""
    ndim, edge = len(writer.space.shape), writer.space.edge
    joins = writer.joins()
    of_totals = {output for output, number in enumerate(writer.outputs) if _is_below(writer, number)}
    alone = [output for output in range(len(writer.outputs)) if writer.alone(output) and output not in of_totals]
    below = [o for o in range(len(writer.outputs)) if o in of_totals or (writer.short(o) and o not in alone)]
    full = [output for output in range(len(writer.outputs)) if output not in below and output not in alone]
    joined = [arg for number in joins for arg in writer.arguments(number)]
    yield f"const place_t rows = {product(range(edge))}, columns = {product(range(edge, ndim))};"
    yield "const place_t strip = blockIdx.x / parts, part = blockIdx.x % parts;"
    yield "const place_t lane = threadIdx.x % width;"
    yield "const place_t column = (strip * width + lane) * V;"
    yield "const place_t height = (rows + parts - 1) / parts;"
    yield "const place_t end = rows < (part + 1) * height ? rows : (part + 1) * height;"
    yield from writer.whole()
    yield from writer.computed(_upfront(writer, [*joined, *writer.outputs]))
    for output in alone:
        yield f"if (blockIdx.x == 0 && threadIdx.x == 0) {writer.write_one(output, '0')}"
    for number in joins:
        yield f"{_kind(writer, number)} a{number}[V];"
        yield f"for (int j = 0; j < V; ++j) a{number}[j] = {_identity(writer, number)};"
    yield "if (column < columns) {"
    yield f"    for (place_t row = part * height + threadIdx.x / width; row < end; row += {BLOCK_THREADS} / width) {{"
    inside = [_add(writer, number, f"a{number}[j]", f"x{writer.arguments(number)[0]}") for number in joins]
    before, kept, after = writer.written(full)
    if full or any(all(writer.space.patterns[number] or (False,)) for number in range(len(writer.chain.sources))):
        yield "        const place_t at = row * columns + column;"
    for line in (
        *before,
        *writer.passing([*joined, *(writer.outputs[each] for each in full)], [*inside, *kept], after),
    ):
        yield f"        {line}"
    yield "    }"
    yield "}"
    yield from _downwards(writer, joins)
    yield "if (parts > 1) {"
    for line in _in_parts(writer, joins):
        yield f"    {line}"
    yield "}"
    if below:
        yield "if (threadIdx.x < width && column < columns)"
        yield "    for (int j = 0; j < V; ++j) {"
        for line in _below(writer, joins, below):
            yield f"        {line}"
        yield "    }"


def _downwards(writer: CudaWriter, joins: Sequence[int]) -> Iterator[str]:
    for number in joins:
        yield f"down<V>(a{number}, {_name(writer, number)}(), width);"


def _in_parts(writer: CudaWriter, joins: Sequence[int]) -> Iterator[str]:
    """The lines by which a block leaves its part, and the last of a strip makes of it."""
    yield "if (threadIdx.x < width && column < columns)"
    yield "    for (int j = 0; j < V; ++j) {"
    for number in joins:
        yield f"        t{number}[part * columns + column + j] = a{number}[j];"
    yield "    }"
    yield "__threadfence();"
    yield "__shared__ bool last;"
    yield "__syncthreads();"
    yield "if (threadIdx.x == 0) last = (atomicAdd(turns + strip, 1u) + 1) % parts == 0;"
    yield "__syncthreads();"
    yield "if (!last) return;"
    yield "__threadfence();"
    for number in joins:
        yield f"for (int j = 0; j < V; ++j) a{number}[j] = {_identity(writer, number)};"
    yield "if (column < columns)"
    yield f"    for (place_t other = threadIdx.x / width; other < parts; other += {BLOCK_THREADS} / width)"
    yield "        for (int j = 0; j < V; ++j) {"
    for number in joins:
        there = f"((volatile {_kind(writer, number)}*)t{number})[other * columns + column + j]"
        yield f"            {_add(writer, number, f'a{number}[j]', f'({_kind(writer, number)}){there}')}"
    yield "        }"
    yield from _downwards(writer, joins)


def _below(writer: CudaWriter, joins: Sequence[int], outputs: Sequence[int]) -> Iterator[str]:
    """The lines of what is computed of totals, column by column, and written."""
    edge, ndim = writer.space.edge, len(writer.space.shape)
    needed: set[int] = set()
    stack = [writer.outputs[output] for output in outputs]
    while stack:
        number = stack.pop()
        if number not in needed:
            needed.add(number)
            if number not in joins:
                stack += writer.arguments(number)
    read = [number for number in sorted(needed) if writer.node(number) is None and writer.varies(number)]
    if writer.asked(read, 0, ndim):
        yield "const place_t at = column + j;"
    yield from divided("at", range(edge, ndim), writer.asked(read, 0, ndim) & set(range(edge, ndim)))
    for number in joins:
        if number in needed:
            dtype = writer.dtype(number)
            assert dtype is not None, "a join is a node"
            yield f"const {_kind(writer, number)} x{number} = {cuda_types.rounded(dtype, f'a{number}[j]')};"
    yield from writer.reads(read, packs=False)
    yield from writer.elements(read, packs=False)
    here = [number for number in sorted(needed) if _is_below(writer, number) or writer.varies(number)]
    yield from writer.computed([number for number in here if number not in joins])
    for output in outputs:
        yield writer.write_one(output, "column + j")


def _upfront(writer: CudaWriter, wanted: Sequence[int]) -> list[int]:
    """The nodes that are one number for all columns."""
    return [number for number in writer.needed(wanted, columns=True) if not _is_below(writer, number)]


def _is_below(writer: CudaWriter, number: int) -> bool:
    """Whether it is a total, or computed of such."""
    return writer.levels[number] > 0


def _name(writer: CudaWriter, number: int) -> str:
    node = writer.node(number)
    assert node is not None, "a join is a node"
    return CUDA_REDUCTIONS[node.op]


def _add(writer: CudaWriter, number: int, to: str, value: str) -> str:
    return f"{to} = {_name(writer, number)}()({to}, {value});"


def _kind(writer: CudaWriter, number: int) -> str:
    dtype = writer.dtype(number)
    assert dtype is not None, "a join is a node"
    return cuda_types.computed(dtype)


def _identity(writer: CudaWriter, number: int) -> str:
    node = writer.node(number)
    assert node is not None, "a join is a node"
    return cuda_types.identity(node.op, node.dtype)
