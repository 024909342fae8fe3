"""Writes the CUDA C++ of a chain: one kernel, in which nothing that only members of the chain read is ever stored.

Pure: the same chain gives the same text, and sizes are arguments, so that chains that differ in sizes alone are one source
(but rows of other lengths may want more threads). A chain without columns has a thread for every few neighbours of its
space. One with columns has a warp or a block for each row, which goes along the row once for every column that needs another
first, and once for what is as long as the row: what it reads again is in the caches. Where it can, a thread
moves 16 bytes at once; for what lies otherwise there is a second entry, element by element.

How each op is written is in the table of ops (`worker/op_table/`), who launches kernels in `fused_kernel.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gt.ir.dtypes import DType
from gt.ir.spec import Spec
from gt.worker.fusion.chain_shapes import ROW_INDEX_OPS
from gt.worker.fusion.chains import Chain
from gt.worker.fusion.merge_dims import MergedSpace, merged_space
from gt.worker.kernels.cuda.source import BFLOAT16_SOURCE, BLOCK_THREADS, HALF_SOURCE, WARP_THREADS
from gt.worker.op_table.cuda_expression import written
from gt.worker.op_table.op_table import CUDA_EXPRESSIONS, CUDA_REDUCTIONS, EXACT_IN_HALF, EXACT_SCALARS

from . import column_reduction, cuda_types
from .column_reduction import ColumnReduction
from .index_math import divided, places, product
from .node_list import GATHER_NODE, INDEX_NODE, SCATTER_NODE, CudaNode, nodes_of

ENTRY: Final = "chain"
WIDE_ENTRY: Final = "chain_wide"
PACK_BYTES: Final = 16
"""Bytes that a thread moves at once, of the widest array."""
ROW_THREADS: Final = ((1024, WARP_THREADS), (4096, 128), (16384, 256))
"""Lengths of rows, and how many threads share one; longer ones have `MAX_ROW_THREADS`."""
MAX_ROW_THREADS: Final = 512


@dataclass(frozen=True, slots=True)
class GeneratedKernel:
    """A generated source, and what launches of it need. With `lanes` so many threads have a row; else each has `pack`
    neighbours. Arguments are `sizes`, then sources and outputs of the chain in order; of a run-time scalar its value, and where
    it is on the device if it is to be read there. With `checked` one more: where an index that is out of range is told. The
    wide entry wants sizes that divide, and aligned memory."""

    source: str
    sizes: tuple[int, ...]
    large: bool
    """Whether places need 64 bits."""
    lanes: int
    rows: int
    pack: int
    """Elements that a thread of the wide entry moves at once; 1 where there is no such entry."""
    packed: tuple[int, ...]
    """Sources of which it moves so many."""
    checked: tuple[int, ...] = ()
    """Values of the chain that have an index, in the order in which what is wrong with theirs is told."""
    column_reduction: ColumnReduction | None = None
    """Of a column reduction how its blocks share the space."""


def kernel_of(chain: Chain) -> GeneratedKernel:
    """The kernel of a chain whose calls are all `able`."""
    return CudaWriter(chain).kernel()


@dataclass(slots=True)
class CudaWriter:
    """Writes the kernel of one chain."""

    chain: Chain
    nodes: list[CudaNode] = field(init=False)
    outputs: list[int] = field(init=False)
    space: MergedSpace = field(init=False)
    levels: list[int] = field(init=False)
    """Of each source and node how many columns, one after the other, must be known before it is."""
    wanted: set[int] = field(init=False)
    """Sources and nodes from which an output is made."""
    places: dict[int, int] = field(init=False)
    """The nodes that are places, and which of them each is."""

    def __post_init__(self) -> None:
        self.nodes, self.outputs = nodes_of(self.chain)
        self.space = merged_space(self.chain)
        first = len(self.chain.sources)
        found = (first + number for number, node in enumerate(self.nodes) if node.op == INDEX_NODE)
        self.places = {number: at for at, number in enumerate(found)}
        self.levels = [0] * len(self.chain.sources)
        for node in self.nodes:
            self.levels.append(max((self.levels[arg] for arg in node.args), default=0) + (node.op in CUDA_REDUCTIONS))
        self.wanted = set()
        stack = list(self.outputs)
        while stack:
            number = stack.pop()
            if number not in self.wanted:
                self.wanted.add(number)
                stack += self.arguments(number)

    # facts

    @property
    def reduces_columns(self) -> bool:
        return self.chain.joined < 0

    @property
    def rowwise(self) -> bool:
        return not self.reduces_columns and any(
            node.op in CUDA_REDUCTIONS or node.op == INDEX_NODE for node in self.nodes
        )

    @property
    def edge(self) -> int:
        """The first dimension along which a row lies; of a chain without columns the first of all."""
        return self.space.edge if self.rowwise else 0

    def node(self, number: int) -> CudaNode | None:
        """None of a source."""
        at = number - len(self.chain.sources)
        return self.nodes[at] if at >= 0 else None

    def dtype(self, number: int) -> DType | None:
        """None of a run-time scalar."""
        node = self.node(number)
        if node is not None:
            return node.dtype
        known = self.chain.sources[number].spec
        return known.dtype if isinstance(known, Spec) else None

    def single(self, number: int) -> bool:
        """Whether a source is a number, or one element."""
        return self.space.patterns[number] is None

    def along(self, number: int) -> bool:
        """Whether a source has more than one element in a row, or in all where there are no rows."""
        pattern = self.space.patterns[number]
        return pattern is not None and any(pattern[self.edge :])

    def steps(self, number: int) -> bool:
        """Whether neighbours along the last dimension are neighbours in a source, too."""
        pattern = self.space.patterns[number]
        return pattern is not None and self.along(number) and pattern[-1]

    def varies(self, number: int) -> bool:
        """Whether a source or node differs from element to element of a row."""
        node = self.node(number)
        if node is None:
            return self.along(number)
        if node.op in CUDA_REDUCTIONS or node.op == GATHER_NODE:
            return False
        return node.op == SCATTER_NODE or any(self.varies(arg) for arg in node.args)

    # the whole

    def kernel(self) -> GeneratedKernel:
        shape, edge = self.space.shape, self.space.edge if self.reduces_columns else self.edge
        rows, columns = math.prod(shape[:edge]), math.prod(shape[edge:])
        arrays = [self.dtype(number) for number in range(len(self.chain.sources)) if self.steps(number)]
        long = [output for output in range(len(self.outputs)) if not self.short(output)]
        arrays += [self.dtype(self.outputs[output]) for output in long if self.varies(self.outputs[output])]
        widest = max((dtype.itemsize for dtype in arrays if dtype is not None), default=PACK_BYTES)
        pack = PACK_BYTES // widest if len(shape) > edge and shape[-1] % (PACK_BYTES // widest) == 0 else 1
        lanes = 0
        if self.rowwise:
            lanes = next((lanes for length, lanes in ROW_THREADS if columns <= length), MAX_ROW_THREADS)
        cut = column_reduction.column_reduction_of(self, rows, columns, pack) if self.reduces_columns else None
        large = math.prod(shape) >= 1 << 31
        entries = [(ENTRY, 1), *([(WIDE_ENTRY, pack)] if pack > 1 else [])]
        return GeneratedKernel(
            self._source(lanes, large, entries), shape, large, lanes, rows if lanes else math.prod(shape), pack,
            tuple(number for number in range(len(self.chain.sources)) if self.steps(number)),
            tuple(number for number, value in enumerate(self.chain.values) if value.call.op in ROW_INDEX_OPS), cut,
        )  # fmt: skip

    def _source(self, lanes: int, large: bool, entries: Sequence[tuple[str, int]]) -> str:
        parameters = ", ".join(self._parameters())
        names = ", ".join(parameter.split()[-1] for parameter in self._parameters())
        lines = [
            f"typedef {'unsigned long long' if large else 'unsigned int'} place_t;",
            *f"{HALF_SOURCE}{BFLOAT16_SOURCE}".strip().splitlines(),
            *cuda_types.FUNCTIONS_SOURCE.strip().splitlines(),
            "template <typename T, int V> struct alignas(sizeof(T) * V) Pack { T v[V]; };",
            *(
                _across(lanes)
                if lanes
                else column_reduction.PRELUDE.strip().splitlines()
                if self.reduces_columns
                else ()
            ),
            f"template <int V> __device__ __forceinline__ void body({parameters})",
            "{",
            *(f"    {line}" for line in self._scalars()),
            *(f"    {line}" for line in self._lines(lanes)),
            "}",
        ]
        threads = lanes if lanes > WARP_THREADS else BLOCK_THREADS
        for name, pack in entries:
            lines += [
                f'extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters})',
                "{",
                f"    body<{pack}>({names});",
                "}",
            ]
        return "\n".join(lines) + "\n"

    def _parameters(self) -> Iterator[str]:
        for axis in range(len(self.space.shape)):
            yield f"place_t n{axis}"
        for number, source in enumerate(self.chain.sources):
            if isinstance(source.spec, str):
                yield f"{cuda_types.SCALAR_TYPES[source.spec]} v{number}"
                yield f"const {cuda_types.SCALAR_TYPES[source.spec]}* __restrict__ p{number}"
            else:
                yield f"const {cuda_types.STORED_TYPES[source.spec.dtype.name]}* __restrict__ p{number}"
        for output in range(len(self.outputs)):
            yield f"{cuda_types.STORED_TYPES[self._stored(output).name]}* __restrict__ o{output}"
        if self.places:
            yield "long long* wrong"
        if self.reduces_columns:
            yield from column_reduction.parameters(self)

    def _lines(self, lanes: int) -> Iterator[str]:
        """The body, in one of three forms."""
        return column_reduction.lines_of(self) if self.reduces_columns else self._rows(lanes) if lanes else self._flat()

    def _scalars(self) -> Iterator[str]:
        """Run-time scalars: passed, or where the device has them."""
        for number, source in enumerate(self.chain.sources):
            if number in self.wanted and isinstance(source.spec, str):
                yield f"const {cuda_types.SCALAR_TYPES[source.spec]} x{number} = p{number} ? *p{number} : v{number};"

    def _stored(self, output: int) -> DType:
        dtype = self.dtype(self.outputs[output])
        assert dtype is not None, "an output is a tensor"
        return dtype

    # values

    def _expression(self, node: CudaNode) -> str:
        if node.op == SCATTER_NODE:
            row, place, value = (f"x{arg}" for arg in node.args)
            added = cuda_types.rounded(
                node.dtype, written(CUDA_EXPRESSIONS["add"], [row, value], cuda_types.computed(node.dtype))
            )
            return f"((long long)(at + j) == {place} ? {added} : {row})"
        if node.op == "full":
            (number,) = node.args
            return cuda_types.number(node.dtype, f"x{number}", exact=True)
        kind = next((dtype for arg in node.args if (dtype := self.dtype(arg)) is not None), node.dtype)
        if node.op == "where":
            kind = node.dtype
        scalar = False
        args = []
        for arg in node.args:
            name = f"x{arg}"
            if self.dtype(arg) is None:
                scalar = True
                name = cuda_types.number(kind, name, exact=node.op in EXACT_SCALARS)
            args.append(name)
        if node.op == "cast":
            return cuda_types.cast(kind, node.dtype, args[0])
        text = written(CUDA_EXPRESSIONS[node.op], args, cuda_types.computed(kind))
        if node.op == "where" or node.dtype.kind == "b" or (node.op in EXACT_IN_HALF and not scalar):
            return text
        return cuda_types.rounded(node.dtype, text)

    def needed(self, wanted: Sequence[int], *, columns: bool) -> list[int]:
        """What has to be computed for some nodes: of columns or of full values, each after its arguments."""
        seen: set[int] = set()
        stack = list(wanted)
        while stack:
            number = stack.pop()
            if number in seen:
                continue
            seen.add(number)
            node = self.node(number)
            if node is not None and node.op not in CUDA_REDUCTIONS and (columns or self.varies(number)):
                stack += node.args
        return [n for n in sorted(seen) if self.varies(n) != columns]

    def computed(self, numbers: Sequence[int]) -> Iterator[str]:
        for number in numbers:
            node = self.node(number)
            if node is not None and node.op == GATHER_NODE:
                yield from self._picked(number, node)
            elif node is not None and node.op == INDEX_NODE:
                at = f"wrong + {self.places[number]}"
                yield f"const long long x{number} = placed((long long)x{node.args[0]}, (long long)columns, {at});"
            elif node is not None and node.op not in CUDA_REDUCTIONS:
                yield f"const {cuda_types.computed(node.dtype)} x{number} = {self._expression(node)};"

    def _picked(self, number: int, node: CudaNode) -> Iterator[str]:
        """One element of the row, which all of its threads compute."""
        source, place = node.args
        inside = self.needed([source], columns=False)
        if not inside:
            yield f"const {cuda_types.computed(node.dtype)} x{number} = x{source};"
            return
        put = any(each is not None and each.op == SCATTER_NODE for each in map(self.node, inside))
        yield f"{cuda_types.computed(node.dtype)} x{number};"
        yield "{"
        for line in (
            f"const place_t at = (place_t)x{place}{', j = 0' if put else ''};",
            *self._dimensions(inside),
            *self.reads(inside, packs=False),
            *self.elements(inside, packs=False),
            f"x{number} = x{source};",
        ):
            yield f"    {line}"
        yield "}"

    # reading and writing

    def _offset(self, number: int) -> str:
        """Where the elements of a source begin that a thread reads."""
        pattern = self.space.patterns[number]
        assert pattern is not None, "a single element is at its beginning"
        edge, ndim = self.edge, len(pattern)
        if edge == 0:
            return "at" if all(pattern) else places([axis for axis in range(ndim) if pattern[axis]], "d") or "0"
        trailing = [axis for axis in range(edge, ndim) if pattern[axis]]
        parts = []
        if any(pattern[:edge]):
            times = "".join(f" * n{axis}" for axis in trailing)
            lead = [axis for axis in range(edge) if pattern[axis]]
            parts.append(f"({'row' if len(lead) == edge else places(lead, 'd')}){times}")
        if trailing:
            parts.append("at" if len(trailing) == ndim - edge else f"({places(trailing, 'd')})")
        return " + ".join(parts) or "0"

    def whole(self) -> Iterator[str]:
        """Elements that are the same for all threads."""
        for number, source in enumerate(self.chain.sources):
            if number in self.wanted and self.single(number) and isinstance(source.spec, Spec):
                dtype = source.spec.dtype
                yield f"const {cuda_types.computed(dtype)} x{number} = {cuda_types.loaded(dtype, f'p{number}[0]')};"

    def reads(self, numbers: Sequence[int], *, packs: bool = True) -> Iterator[str]:
        for number in numbers:
            if self.node(number) is not None:
                continue
            dtype = self.dtype(number)
            assert dtype is not None, "what is read is a tensor"
            kind = cuda_types.STORED_TYPES[dtype.name]
            if packs and self.steps(number):
                whole = f"*reinterpret_cast<const Pack<{kind}, V>*>(p{number} + {self._offset(number)})"
                yield f"const Pack<{kind}, V> q{number} = {whole};"
            else:
                yield f"const {kind} q{number} = p{number}[{self._offset(number)}];"

    def elements(self, numbers: Sequence[int], *, packs: bool = True) -> Iterator[str]:
        """One element of each, in the loop over those of a pack."""
        for number in numbers:
            dtype = self.dtype(number)
            if self.node(number) is None and dtype is not None:
                text = f"q{number}.v[j]" if packs and self.steps(number) else f"q{number}"
                yield f"const {cuda_types.computed(dtype)} x{number} = {cuda_types.loaded(dtype, text)};"
        yield from self.computed(numbers)

    def passing(self, wanted: Sequence[int], inside: Sequence[str], after: Sequence[str] = ()) -> Iterator[str]:
        """Some neighbours at once: read, computed, and what is done with each."""
        numbers = self.needed(wanted, columns=False)
        yield from self._dimensions(numbers)
        yield from self.reads(numbers)
        yield "#pragma unroll"
        yield "for (int j = 0; j < V; ++j) {"
        for line in (*self.elements(numbers), *inside):
            yield f"    {line}"
        yield "}"
        yield from after

    def _dimensions(self, numbers: Sequence[int]) -> Iterator[str]:
        """The places along each dimension of a row, or of all; where a source asks for them."""
        read = [number for number in numbers if self.node(number) is None]
        ndim = len(self.space.shape)
        asked = self.asked(read, self.edge, ndim)
        if self.reduces_columns:
            lead = range(self.space.edge)
            yield from divided("row", lead, asked.intersection(lead))
            yield from divided("column", range(self.space.edge, ndim), asked.difference(lead))
        else:
            yield from divided("at", range(self.edge, ndim), asked)

    def asked(self, numbers: Iterable[int], first: int, last: int) -> set[int]:
        """The dimensions, of some that follow on each other, in which a place is asked for by sources that lack others."""
        found: set[int] = set()
        for number in numbers:
            pattern = self.space.patterns[number]
            if pattern is not None and not all(pattern[first:last]):
                found.update(axis for axis in range(first, last) if pattern[axis])
        return found

    def written(self, wanted: Sequence[int]) -> tuple[list[str], list[str], list[str]]:
        """Before, in and after the loop over the elements of a pack, what writes outputs that are as long as a row."""
        before, inside, after = [], [], []
        start = "row * columns + at" if self.rowwise else "at"
        for output in wanted:
            dtype, number = self._stored(output), self.outputs[output]
            kind = cuda_types.STORED_TYPES[dtype.name]
            before.append(f"Pack<{kind}, V> r{output};")
            inside.append(f"r{output}.v[j] = {cuda_types.stored(dtype, f'x{number}')};")
            after.append(f"*reinterpret_cast<Pack<{kind}, V>*>(o{output} + {start}) = r{output};")
        return before, inside, after

    # the two forms

    def _flat(self) -> Iterator[str]:
        """Each thread has some neighbours of the whole space."""
        yield f"const place_t count = {product(range(len(self.space.shape)))};"
        yield "const place_t at = ((place_t)blockIdx.x * blockDim.x + threadIdx.x) * V;"
        yield "if (at >= count) return;"
        yield from self.whole()
        yield from self.computed(self.needed(self.outputs, columns=True))
        for output in range(len(self.outputs)):
            if self.alone(output):
                yield f"if (at == 0) {self.write_one(output, '0')}"
        wanted = [output for output in range(len(self.outputs)) if not self.alone(output)]
        before, inside, after = self.written(wanted)
        yield from before
        yield from self.passing([self.outputs[output] for output in wanted], inside, after)

    def _rows(self, lanes: int) -> Iterator[str]:
        """Some threads have a row: they go along it for each level of columns, and once for what is as long as it."""
        edge, ndim = self.edge, len(self.space.shape)
        yield f"const place_t rows = {product(range(edge))}, columns = {product(range(edge, ndim))};"
        yield f"const place_t lane = threadIdx.x % {lanes};"
        yield f"const place_t row = (place_t)blockIdx.x * (blockDim.x / {lanes}) + threadIdx.x / {lanes};"
        yield "if (row >= rows) return;"
        read = [number for number in self.wanted if self.node(number) is None]
        yield from divided("row", range(edge), self.asked(read, 0, edge))
        yield from self.whole()
        loop = f"for (place_t at = lane * V; at < columns; at += {lanes} * V) {{"
        joined = [arg for number in self.joins() for arg in self.arguments(number)]
        columns = self.needed([*self.outputs, *self.joins(), *joined], columns=True)
        done: set[int] = set()
        yield from self._columns(columns, 0, done)
        for level in range(1, max(self.levels, default=0) + 1):
            joins = [number for number in self.joins() if self.levels[number] == level]
            inside = []
            for number in joins:
                node = self.node(number)
                assert node is not None, "a join is a node"
                kind = cuda_types.computed(node.dtype)
                yield f"{kind} a{number} = {cuda_types.identity(node.op, node.dtype)};"
                inside.append(f"a{number} = {CUDA_REDUCTIONS[node.op]}()(a{number}, x{node.args[0]});")
            yield loop
            for line in self.passing([arg for number in joins for arg in self.arguments(number)], inside):
                yield f"    {line}"
            yield "}"
            for number in joins:
                node = self.node(number)
                assert node is not None, "a join is a node"
                text = cuda_types.rounded(node.dtype, f"across(a{number}, {CUDA_REDUCTIONS[node.op]}())")
                yield f"const {cuda_types.computed(node.dtype)} x{number} = {text};"
                done.add(number)
            yield from self._columns(columns, level, done)
        full = [output for output in range(len(self.outputs)) if not self.short(output) and not self.alone(output)]
        if full:
            before, inside, after = self.written(full)
            yield loop
            for line in (*before, *self.passing([self.outputs[output] for output in full], inside, after)):
                yield f"    {line}"
            yield "}"
        for output in range(len(self.outputs)):
            if self.alone(output):
                yield f"if (row == 0 && lane == 0) {self.write_one(output, '0')}"
            elif output not in full:
                yield f"if (lane == 0) {self.write_one(output, 'row')}"

    def write_one(self, output: int, at: str) -> str:
        return f"o{output}[{at}] = {cuda_types.stored(self._stored(output), f'x{self.outputs[output]}')};"

    def short(self, output: int) -> bool:
        """Whether an output has one element a row."""
        node = self.node(self.outputs[output])
        assert node is not None, "an output is a node"
        return node.column

    def alone(self, output: int) -> bool:
        """Whether an output has one element, and the space more."""
        made = self.chain.values[self.chain.outputs[output]].call.result
        return made.size == 1 < math.prod(self.space.shape)

    def arguments(self, number: int) -> tuple[int, ...]:
        node = self.node(number)
        return () if node is None else node.args

    def joins(self) -> list[int]:
        """The columns that are joined."""
        first = len(self.chain.sources)
        return sorted(n for n in self.wanted if n >= first and self.nodes[n - first].op in CUDA_REDUCTIONS)

    def _columns(self, numbers: Sequence[int], level: int, done: set[int]) -> Iterator[str]:
        """What is the same along a row, as soon as the columns of a level are known."""
        for number in numbers:
            if number in done or self.levels[number] > level:
                continue
            done.add(number)
            dtype = self.dtype(number)
            if self.node(number) is None and not self.single(number):
                assert dtype is not None, "what is no single element is a tensor"
                element = cuda_types.loaded(dtype, f"p{number}[{self._offset(number)}]")
                yield f"const {cuda_types.computed(dtype)} x{number} = {element};"
            yield from self.computed([number])


def _across(lanes: int) -> list[str]:
    """A join over the threads of a row; all get it, and the same bits."""
    lines = [
        "template <typename T> __device__ __forceinline__ T swapped(T x, int step)",
        "{ return __shfl_xor_sync(0xffffffffu, x, step); }",
        *(
            f"template <> __device__ __forceinline__ {kind} swapped({kind} x, int step) "
            f"{{ return ({kind})__shfl_xor_sync(0xffffffffu, (int)x, step); }}"
            for kind in ("bool", "signed char", "unsigned char", "short", "unsigned short")
        ),
        "template <typename T, typename F> __device__ __forceinline__ T across(T x, F join)",
        "{",
        "    for (int step = 16; step; step >>= 1) x = join(x, swapped<T>(x, step));",
    ]
    if lanes > WARP_THREADS:
        lines += [
            f"    __shared__ T held[{lanes // WARP_THREADS}];",
            "    __syncthreads();",
            f"    if (threadIdx.x % {WARP_THREADS} == 0) held[threadIdx.x / {WARP_THREADS}] = x;",
            "    __syncthreads();",
            "    x = held[0];",
            f"    for (int warp = 1; warp < {lanes // WARP_THREADS}; ++warp) x = join(x, held[warp]);",
        ]
    return [*lines, "    return x;", "}"]
