"""Products by the threads of the BLAS that NumPy uses: the pieces of one product side by side, each computed by one thread.

A Python thread takes 25 to 50 µs to wake and as long to report back. OpenBLAS's own threads wait by spinning for a moment and
take 3 µs. Its batched product (`cblas_sgemm_batch`) computes several products at once, each exactly as if it were alone: so
pieces are cut by whoever calls, and the bits follow from the cut, whether they are computed side by side or one after another.
(If OpenBLAS cuts a product by itself, its bits depend on the number of threads.)

A thread that spins gives way to every other program that wants its core, and so does the caller while it waits for a piece. So
on a busy machine a piece may be late by milliseconds. `BlasThreads` notices, and computes pieces one after another while they
are late. That is decided by the clock, and changes no bit.

The number of threads is a setting of the whole process. Only a process that is a worker's alone may change it, and nothing
else may compute products meanwhile.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

ROW_MAJOR: Final = 101
AS_IT_LIES: Final = 111
TRANSPOSED: Final = 112
NAMES: Final = (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", ""))
"""What OpenBLAS's functions begin and end with: NumPy's own, with integers of 64 or 32 bits, and those of distributions."""
LETTERS: Final = {"f": "s", "d": "d"}
"""What BLAS calls a dtype, by NumPy's character."""
SAMPLE_SIZES: Final = (192, 200, 144)
"""Rows, what is contracted and columns of the product by which BLAS is tried. Up to a million multiplications in a piece
OpenBLAS's batched product may use another kernel than its ordinary one: nobody may cut so small."""
MAX_LATE_SECONDS: Final = 2e-3
"""How late a piece counts, at most."""
LATE_WEIGHT: Final = 1 / 8
"""How much the last product counts in how late pieces are."""
FORGOTTEN: Final = 0.99
"""What is left of how late pieces are with each product whose pieces were computed one after another."""
SLOWER: Final = 1.01
"""How much more time a product may take the next time without being late, because the clock of a processor varies."""


class BlasFunctions(NamedTuple):
    """Functions of an OpenBLAS: to set the number of threads, and by letter the batched products; and its integers."""

    set_threads: Callable[[int], None]
    products: Mapping[str, Callable[..., None]]
    integer: type[ctypes.c_int64] | type[ctypes.c_int32]


def blas_functions() -> BlasFunctions | None:
    """Those of the BLAS that NumPy uses, if that is an OpenBLAS with batched products (0.3.30 and newer)."""
    try:
        library = ctypes.CDLL(str(importlib.import_module("numpy._core._multiarray_umath").__file__))
    except (ImportError, OSError):
        return None
    for before, after in NAMES:
        try:
            products = {letter: library[f"{before}cblas_{letter}gemm_batch{after}"] for letter in LETTERS.values()}
            set_threads = library[f"{before}openblas_set_num_threads{after}"]
        except AttributeError:
            continue
        for function in (*products.values(), set_threads):
            function.restype = None
        return BlasFunctions(set_threads, products, ctypes.c_int64 if after else ctypes.c_int32)
    return None


def blas_threads(threads: int) -> BlasThreads | None:
    """So many threads of the BLAS that NumPy uses, if it computes pieces side by side with the bits that NumPy gives each."""
    functions = blas_functions()
    if functions is None or threads == 1:
        return None
    found = BlasThreads(functions, threads)
    rows, inner, columns = SAMPLE_SIZES
    bounds = [0, rows // 2, rows]
    for dtype in map(np.dtype, LETTERS):
        a = np.sin(np.arange(rows * inner, dtype=dtype)).reshape(rows, inner)
        b = np.cos(np.arange(inner * columns, dtype=dtype)).reshape(inner, columns)
        expected = b"".join(np.matmul(a[start:stop], b).tobytes() for start, stop in itertools.pairwise(bounds))
        batch = GemmBatch(functions, dtype, SAMPLE_SIZES, -2, bounds, (False, False))
        for share in (True, False):
            out = np.zeros((rows, columns), dtype)
            batch.point(a, b, out)
            found.late = 0.0 if share else math.inf
            found.compute(batch)
            if out.tobytes() != expected:
                return None
    found.late = 0.0
    return found


class GemmBatch:
    """The arguments of one product in pieces along its rows or columns; of one layout of its operands."""

    def __init__(
        self, functions: BlasFunctions, dtype: np.dtype[Any], sizes: tuple[int, int, int], axis: int,
        bounds: Sequence[int], turned: tuple[bool, bool],
    ) -> None:  # fmt: skip
        """`sizes`: rows, what is contracted, columns; `bounds`: where the pieces begin and end along `axis` (-2 or -1);
        `turned`: which operands lie column by column."""
        rows, inner, columns = sizes
        lengths = [stop - start for start, stop in itertools.pairwise(bounds)]
        self.count = count = len(lengths)
        self.axis, self.starts, self.turned = axis, list(bounds[:-1]), turned
        real = ctypes.c_float if dtype.char == "f" else ctypes.c_double
        integers, pointers = functions.integer * count, ctypes.c_void_p * count
        self.a, self.b, self.c = pointers(), pointers(), pointers()
        self.lda, self.ldb, self.ldc = integers(), integers(), integers()
        layouts = [(ctypes.c_int * count)(*[TRANSPOSED if each else AS_IT_LIES] * count) for each in turned]
        by_rows = axis == -2
        self.arguments = (
            ROW_MAJOR, *layouts, integers(*(lengths if by_rows else [rows] * count)),
            integers(*([columns] * count if by_rows else lengths)), integers(*[inner] * count),
            (real * count)(*[1] * count), self.a, self.lda, self.b, self.ldb, (real * count)(*[0] * count), self.c, self.ldc,
            functions.integer(count), integers(*[1] * count),
        )  # fmt: skip
        self.product = functions.products[LETTERS[dtype.char]]
        self.fastest = math.inf
        """The seconds that it takes side by side, if no piece is late."""

    def point(self, a: Any, b: Any, out: Any) -> None:
        """Have its arguments be of these arrays."""
        size = out.itemsize
        for position, (array, places, leading) in enumerate(
            ((a, self.a, self.lda), (b, self.b, self.ldb), (out, self.c, self.ldc))
        ):
            address = array.__array_interface__["data"][0]
            turned = position < 2 and self.turned[position]
            width = array.strides[-1 if turned else -2] // size
            is_cut = position == 2 or (position == 0) == (self.axis == -2)
            step = array.strides[self.axis] if is_cut else 0
            for number, start in enumerate(self.starts):
                places[number] = address + start * step
                leading[number] = width


class BlasThreads:
    """`threads` of a BLAS that compute the pieces of a product, the caller among them."""

    def __init__(self, functions: BlasFunctions, threads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.functions = functions
        self.threads = threads
        self.clock = clock
        self.late = 0.0
        """The seconds by which pieces have been late recently."""

    def compute(self, batch: GemmBatch) -> None:
        """Compute the pieces: side by side, unless more would be lost by late pieces than is gained."""
        rounds = -(-batch.count // self.threads)
        if self.threads == 1 or batch.fastest * (batch.count / rounds - 1) <= self.late:
            self.late *= FORGOTTEN
            batch.product(*batch.arguments)
            return
        set_threads = self.functions.set_threads
        began = self.clock()
        set_threads(self.threads)
        try:
            batch.product(*batch.arguments)
        finally:
            set_threads(1)
        taken = self.clock() - began
        late = min(max(0.0, taken - batch.fastest), MAX_LATE_SECONDS)
        self.late += (late - self.late) * LATE_WEIGHT
        batch.fastest = min(taken, batch.fastest * SLOWER)


def lies_by_rows(array: Any) -> bool | None:
    """Whether BLAS can read a matrix row by row (True), or column by column (False); None if neither."""
    (rows, columns), (row, column), size = array.shape, array.strides, array.itemsize
    if column == size and row >= columns * size and row % size == 0:
        return True
    if row == size and column >= rows * size and column % size == 0:
        return False
    return None
