"""Kernels of matrix products. On a CPU, threads of the worker share large ones: BLAS itself has one thread there.

BLAS's own threads wait by spinning. Beside a client and a dispatcher that want the same cores, or anybody else's work, they
took ten times as long as one thread takes (docs/performance.md). So what is small is computed by one thread, and what is large
is cut into pieces that threads take one after the other: a thread whose core is busy takes fewer. The pieces follow from the
shapes alone, so bits depend neither on time nor on how many threads there are. On a GPU what CuPy has no product for is
`worker/device/cublas.py`'s, and all others where they can be captured that way.

Of weights kept as int8 [n, k], floating-point numbers have products, and int8 numbers have exact ones in int32.
On a CPU neither NumPy nor BLAS multiplies int8. So rows of the weight are widened in blocks that stay in a cache, each of which
BLAS multiplies at once: memory is read for one byte of an element in place of four, and no widened weight is ever whole. Blocks
follow from shapes alone, so bits depend neither on time nor on how many threads there are.

Products of int8 numbers are whole numbers of at most 2¹⁴. Sums of `EXACT_PRODUCTS` of them are at most 2²⁴, in whatever order
they are added, and float32 has all whole numbers up to there: BLAS gives them exactly. Beyond that sums are added in int32,
unless the numbers of each row of x are so small, `EXACT_ROW` all together, that no sum is larger. As a rule they are, and how it
is done changes no bit.

Where `make native` built them, loops of machine code compute products of `MAX_LOOP_ROWS` rows at most, without a widened block,
and widen the blocks of others. Sums of whole numbers, and all products of more rows, have the same bits; floating-point products
of few rows are added up in another order than BLAS has, so their last bits may differ.

On a GPU, kernels in CUDA multiply int8 numbers, and floating-point numbers of few rows; many rows go to cuBLAS, by blocks that
are widened. Without a compiler everything does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from operator import methodcaller
from types import ModuleType
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import HALF_DTYPES, DType, bfloat16, float32
from gt.worker.base.kernel_call import Kernel, KernelCall
from gt.worker.device.cublas import CUDA_TYPES, TENSOR_CORE_TYPES, Gemm, has_tensor_cores
from gt.worker.device.openblas import AVX512_CORES, core
from gt.worker.device.thread_pool import ThreadPool

from .cuda.int8_products import Int8Products
from .elementwise import wide

int8_loops: ModuleType | None
try:
    from gt.worker.element_loops import int8_products as int8_loops
except ImportError:  # they are not built, or not for this processor
    int8_loops = None

MIN_SHARED_MULTIPLICATIONS: Final = 100_000_000
"""Multiplications from which a product is shared: milliseconds of one core, where waking another takes tens of microseconds."""
MAX_PIECES: Final = 8
MIN_STACK_PIECES: Final = 4
"""The size of a dimension of a stack, at least, along which it is cut: pieces of whole matrices take the least time."""
MIN_PIECE_SIZE: Final = 64
"""Rows or columns of a piece, at least: BLAS packs the other matrix once for each."""
ROW_PARTS: Final = 2
"""Parts of a product of many rows by one matrix below `MIN_SHARED_MULTIPLICATIONS`: row-parallel groups compute them."""
MIN_PARTED_MULTIPLICATIONS: Final = 4_000_000
"""Multiplications from which a product has parts."""
MIN_EXCHANGED_MULTIPLICATIONS: Final = 1_000_000
"""Multiplications from which a product of few rows by the columns of a matrix is worth three more calls of NumPy."""
LINE_ELEMENTS: Final = 16
"""The float32 of a line of a cache."""
EXACT_PRODUCTS: Final = 1 << 10
"""How many products of int8 numbers float32 adds up exactly: 2¹⁰ · 2¹⁴ = 2²⁴."""
EXACT_ROW: Final = 1 << 17
"""The sum of |x| of a row up to which its products with int8 numbers, at most 2⁷ · |x| each, have no sum beyond 2²⁴."""
BLOCK_ELEMENTS: Final = 1 << 19
"""Elements of a widened block on a CPU: 2 MiB of float32, as large as the caches nearest to a core."""
GPU_BLOCK_ELEMENTS: Final = 1 << 24
MAX_LOOP_ROWS: Final = 12
"""Rows of x up to which loops take less time than widening a block: they read it once for each row."""
MAX_CUDA_ROWS: Final = 32
"""Rows of x up to which a kernel reads the weight as it is; beyond, widening a block costs little beside its product."""


def has_parts(call: KernelCall) -> bool:
    """Whether a product is computed in parts: a stack of rows by one matrix, each as many matrices of the stack.

    Whoever computes it, and how many they are: so bits follow from shapes alone.
    """
    if call.op != "matmul" or call.thread_pool is None or call.xp is not np or call.result.dtype.kind != "f":
        return False
    a, b = call.tensor(0), call.tensor(1)
    if (
        a.ndim < 3
        or b.ndim != 2
        or a.shape[0] % ROW_PARTS
        or a.shape[0] < 2 * ROW_PARTS
        or call.result.dtype in HALF_DTYPES
    ):
        return False
    rows = math.prod(a.shape[:-1])
    return (
        rows >= ROW_PARTS * MIN_PIECE_SIZE
        and MIN_PARTED_MULTIPLICATIONS <= rows * a.shape[-1] * b.shape[-1] < MIN_SHARED_MULTIPLICATIONS
    )


def in_parts(a: Any, b: Any) -> Any:
    """Computes a product that has parts, by one thread."""
    out = np.empty((*a.shape[:-1], b.shape[-1]), np.result_type(a, b))
    size = a.shape[0] // ROW_PARTS
    for start in range(0, a.shape[0], size):
        part_of(a[start : start + size], b, out[start : start + size])
    return out


def part_of(a: Any, b: Any, out: Any) -> Any:
    """Computes one part of such a product: rows of a stack by one matrix."""
    np.matmul(a.reshape(-1, a.shape[-1]), b, out=out.reshape(-1, b.shape[-1]))
    return out


def product(call: KernelCall, multiplications: int, dtype: DType) -> Kernel:
    """A function that multiplies matrices of that dtype in `call`, which takes so many multiplications: `matmul(a, b, out=None)`.

    What was half precision before it was widened loses nothing by TF32.
    """
    thread_pool = call.thread_pool
    if dtype is float32 and (call.tf32 or call.result.dtype in HALF_DTYPES) and on_tensor_cores(call.xp, float32):
        return Gemm(call.xp, float32, call.direct)
    if (
        call.direct is not None
        and dtype in CUDA_TYPES
        and (dtype not in HALF_DTYPES or on_tensor_cores(call.xp, dtype))
    ):
        return Gemm(call.xp, dtype, call.direct, exact=True)
    if thread_pool is None or multiplications < MIN_SHARED_MULTIPLICATIONS:
        return call.xp.matmul  # type: ignore[no-any-return]  # xp is Any
    return SharedMatmul(thread_pool)


def on_tensor_cores(xp: Any, dtype: DType) -> bool:
    """Whether a GPU has tensor cores that multiply such numbers."""
    return xp is not np and dtype in TENSOR_CORE_TYPES and has_tensor_cores(xp, dtype)


class SharedMatmul:
    """`np.matmul` of two matrices or stacks of them, by the threads of a pool."""

    def __init__(self, thread_pool: ThreadPool) -> None:
        self.thread_pool = thread_pool

    def __call__(self, a: Any, b: Any, out: Any = None) -> Any:
        if a.ndim < 2 or b.ndim < 2:
            return np.matmul(a, b, out=out)
        stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        rows, columns = a.shape[-2], b.shape[-1]
        if out is None:
            out = np.empty((*stack, rows, columns), np.result_type(a, b))
        along = next((axis for axis, size in enumerate(stack) if size >= MIN_STACK_PIECES), None)
        if along is not None:  # whole matrices to each
            axis, size, pieces = along - len(stack) - 2, stack[along], min(MAX_PIECES, stack[along])
        else:
            axis, size = (-2, rows) if rows >= columns else (-1, columns)
            pieces = min(MAX_PIECES, size // MIN_PIECE_SIZE)
        if pieces < 2:
            return np.matmul(a, b, out=out)
        bounds = [size * piece // pieces for piece in range(pieces + 1)]
        left = [a] * pieces if axis == -1 else _cut(a, axis, bounds)
        right = [b] * pieces if axis == -2 else _cut(b, axis, bounds)
        places = _cut(out, axis, bounds)
        turn = itertools.count()  # which is one step of the interpreter: no two threads take the same

        def part(_: int) -> None:
            while (piece := next(turn)) < pieces:
                np.matmul(left[piece], right[piece], out=places[piece])

        self.thread_pool.run(part)
        return out


def _cut(array: Any, axis: int, bounds: list[int]) -> list[Any]:
    """An array in pieces along an axis, counted from the last; what lacks or repeats it is the same in each."""
    if -axis > array.ndim or (array.shape[axis] == 1 and axis < -2):
        return [array] * (len(bounds) - 1)
    rest = (slice(None),) * (-1 - axis)
    return [array[(..., slice(start, stop), *rest)] for start, stop in itertools.pairwise(bounds)]


def matmul(call: KernelCall) -> Kernel:
    """A product of matrices, or of stacks of them; half precision is added up in float32."""
    xp, result = call.xp, call.result
    if result.size == 0 or call.tensor(0).size == 0:
        return lambda _a, _b: xp.zeros(result.shape, result.dtype.numpy)
    multiply = product(call, result.size * call.tensor(0).shape[-1], result.dtype)
    folds = call.tensor(0).ndim > 2 and call.tensor(1).ndim == 2
    flat = folds or call.tensor(0).ndim == call.tensor(1).ndim == 2
    if result.dtype in HALF_DTYPES and not flat and on_tensor_cores(xp, result.dtype):
        multiply = Gemm(xp, result.dtype, call.direct)
    elif result.dtype in HALF_DTYPES and (xp is np or (result.dtype is bfloat16 and not flat)):
        # cuBLAS accumulates in float32 by itself; NumPy has no BLAS for half precision, CuPy no stacks of bfloat16
        widen, narrow = methodcaller("astype", wide(result.dtype).numpy), methodcaller("astype", result.dtype.numpy)
        return lambda a, b: narrow(multiply(widen(a), widen(b)))
    if has_parts(call):
        return in_parts
    if multiply is np.matmul and flat and exchanges(call):
        multiply = exchanged
    if folds:
        return _folded(call, multiply)
    return multiply


def exchanges(call: KernelCall) -> bool:
    """Whether a product of rows by one matrix takes less time with both exchanged, if that lies by columns, as a layer's weight
    that is turned does.

    OpenBLAS copies both operands into panels, of its second one by columns much slower than of its first. The fewer rows, the
    more that counts beside the product: now the rows are copied slowly, and the result is turned back. Its kernels for AVX-512
    give the same bits both ways, whatever lies how; others do not, and gain nothing.
    """
    rows, inner, columns = call.result.size // call.result.shape[-1], call.tensor(0).shape[-1], call.result.shape[-1]
    few = rows > 1 and 5 * rows * (columns + inner) <= 4 * columns * inner
    enough = rows * columns * inner >= MIN_EXCHANGED_MULTIPLICATIONS
    single = call.op == "matmul_int8" or call.result.dtype is float32  # what BLAS multiplies, of whole numbers too
    return few and enough and single and core() in AVX512_CORES


def exchanged(a: Any, b: Any, out: Any = None) -> Any:
    """Computes a·b as the transpose of bᵀ·aᵀ, if b lies by columns and a by rows."""
    if not (b.flags.f_contiguous and a.flags.c_contiguous):
        return np.matmul(a, b, out=out)
    rows = a.shape[0]
    # rows of a power of two bytes would lie on top of each other in a cache when they are turned
    made = np.empty((b.shape[1], rows + LINE_ELEMENTS), np.float32)[:, :rows]
    np.matmul(b.T, a.T, out=made)
    if out is None:
        return made.T.copy()
    out[...] = made.T
    return out


def _folded(call: KernelCall, multiply: Kernel) -> Kernel:
    """A stack of matrices by one matrix as one product: BLAS packs that matrix once."""
    shape = call.result.shape
    rows = (-1, call.tensor(0).shape[-1])

    def kernel(a: Any, b: Any) -> Any:
        return multiply(a.reshape(rows), b).reshape(shape)

    return kernel


def _blocks(call: KernelCall, columns: int) -> tuple[int, int]:
    """Rows and columns of a block of the weight, of so many columns at most."""
    n, k = call.tensor(1).shape
    most = BLOCK_ELEMENTS if call.xp is np else GPU_BLOCK_ELEMENTS
    columns = min(k, columns)
    return max(1, min(n, most // max(1, columns))), columns


def _is_shared(call: KernelCall) -> bool:
    return call.thread_pool is not None and call.result.size * call.tensor(0).shape[-1] >= MIN_SHARED_MULTIPLICATIONS


def int8_scratch(call: KernelCall) -> int:
    """Bytes of widened blocks, and for int8 numbers of x widened and of a block's sums, at most."""
    k = call.tensor(1).shape[1]
    whole, count = _blocks(call, k), math.prod(call.tensor(0).shape[:-1])
    threads = call.thread_pool.threads if call.thread_pool is not None and _is_shared(call) else 1
    if call.op == "linear_int8":
        more = count * whole[0] if call.xp is not np else 0
        return max(threads * math.prod(whole) + more, call.tensor(0).size) * call.result.dtype.itemsize
    parts = _blocks(call, EXACT_PRODUCTS)
    block = max(math.prod(whole) + count * whole[0], math.prod(parts) + 2 * count * parts[0])
    return (call.tensor(0).size + max(call.tensor(0).size, threads * block)) * float32.itemsize


def int8_product(call: KernelCall) -> Kernel:
    """A product of the rows of x with the transpose of an int8 weight."""
    xp, result = call.xp, call.result
    k = call.tensor(0).shape[-1]
    if not result.size or not k:
        return lambda _x, _w: xp.zeros(result.shape, result.dtype.numpy)
    exact = call.op == "matmul_int8"
    if xp is not np and (exact or result.size // result.shape[-1] <= MAX_CUDA_ROWS):
        launch = Int8Products(xp, np.dtype(np.float32) if exact else result.dtype.numpy)
        if launch:
            whole = launch.exact if exact else launch.rows
            return lambda x, w: whole(x.reshape(-1, k), w).reshape(result.shape)
    by_blocks = _BlockwiseProduct(call)
    return lambda x, w: by_blocks(x.reshape(-1, k), w).reshape(result.shape)


def _loop(call: KernelCall, exact: bool) -> Kernel | None:
    """The loop that computes the product, if there is one for it."""
    if int8_loops is None or call.xp is not np or call.result.size > MAX_LOOP_ROWS * call.result.shape[-1]:
        return None
    if exact:
        return int8_loops.exact  # type: ignore[no-any-return]  # a module that may not be there
    return int8_loops.numbers if call.result.dtype is float32 else None


class _BlockwiseProduct:
    """The product of a matrix, in blocks of the weight's rows; threads of a pool take them one after the other."""

    def __init__(self, call: KernelCall) -> None:
        self.xp, self.dtype, self.exact = call.xp, call.result.dtype.numpy, call.op == "matmul_int8"
        self.work = np.dtype(np.float32) if self.exact else self.dtype
        self.whole = _blocks(call, call.tensor(1).shape[1])
        self.parts = _blocks(call, EXACT_PRODUCTS) if self.exact else self.whole
        self.thread_pool = call.thread_pool if call.xp is np and _is_shared(call) else None
        self.multiply = exchanged if call.xp is np and exchanges(call) else call.xp.matmul
        self.loop = _loop(call, self.exact)
        self.widens = int8_loops is not None and call.xp is np and self.work == np.float32
        if not self.exact and call.xp is not np:
            self.multiply = product(call, call.result.size * call.tensor(0).shape[-1], call.result.dtype)

    def __call__(self, x: Any, w: Any) -> Any:
        out = self.xp.empty((x.shape[0], w.shape[0]), self.dtype)
        if self.loop is not None:
            return self._by_loop(x, w, out, self.loop)
        x = x.astype(self.work, copy=False)
        small = self.exact and self.xp is np and np.abs(x).sum(1).max() <= EXACT_ROW
        block, columns = self.whole if small else self.parts

        def take(blocks: Iterator[slice]) -> None:
            widened = self.xp.empty((block, columns), self.work)
            for rows in blocks:
                self._multiply(x, w[rows], widened, out[:, rows])

        self._share(w.shape[0], block, take)
        return out

    def _by_loop(self, x: Any, w: Any, out: Any, loop: Kernel) -> Any:
        """The product by a loop of machine code."""
        x = np.ascontiguousarray(x, np.int16 if self.exact else None)
        aligned = w.strides[1] == 1

        def take(blocks: Iterator[slice]) -> None:
            for rows in blocks:
                loop(x, w[rows] if aligned else np.ascontiguousarray(w[rows]), out[:, rows])

        self._share(w.shape[0], self.whole[0], take)
        return out

    def _share(self, size: int, block: int, take: Callable[[Iterator[slice]], None]) -> None:
        """Gives blocks of the weight's rows to the threads, each of which takes one after the other."""
        blocks = -(-size // block)
        turn = itertools.count()  # which is one step of the interpreter: no two threads take the same

        def part(_: int) -> None:
            taken = itertools.takewhile(lambda at: at < blocks, turn)
            take(slice(at * block, (at + 1) * block) for at in taken)

        if self.thread_pool is None or blocks == 1:
            part(0)
        else:
            self.thread_pool.run(part)

    def _multiply(self, x: Any, w: Any, widened: Any, out: Any) -> None:
        """The product with some rows of the weight."""
        columns = widened.shape[1]
        for start in range(0, w.shape[1], columns):
            part = w[:, start : start + columns]
            wide = widened[: part.shape[0], : part.shape[1]]
            if self.widens and part.strides[1] == 1:
                int8_loops.widen(part, wide)  # type: ignore[union-attr]  # it is there
            else:
                wide[...] = part
            if self.xp is np and not self.exact:  # all columns are one block
                if len(x) == 1:
                    np.dot(wide, x[0], out=out[0])  # which takes less to begin
                else:
                    self.multiply(x, wide.T, out=out)
                continue
            sums = self.multiply(x[:, start : start + columns], wide.T)
            if start:
                self.xp.add(out, sums.astype(self.dtype), out=out)
            else:
                out[...] = sums
