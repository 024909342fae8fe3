"""Products with weights kept as int8 on a GPU: of int8 numbers exactly, and of a few rows of floating-point numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .source import BLOCK_THREADS, WARP_THREADS, functions, types

TILE: Final = 32
"""Rows, and columns, of the result that a block of threads computes."""
TILE_WORDS: Final = 16
"""Words of four int8 numbers that it reads at once of each row."""
ROWS_AT_ONCE: Final = 8
"""Rows of x that meet an element of the weight when it has been read."""

SOURCE: Final = r"""
/* Four numbers of a row of k from `at` on, zeros behind its end; `whole`: rows begin at multiples of four bytes. */
__device__ __forceinline__ int four(const signed char *row, long long at, long long k, int whole)
{
    if (whole && at + 4 <= k) return *(const int *)(row + at);
    unsigned int word = 0;
    for (int i = 0; i < 4 && at + i < k; ++i) word |= (unsigned int)(unsigned char)row[at + i] << 8 * i;
    return (int)word;
}

/* out [m, n] = x [m, k] by the transpose of w [n, k]: sums of four products at once, in 32 bits. */
extern "C" __global__ void int8_exact(
    const signed char *x, const signed char *w, int *out, long long m, long long n, long long k, int whole)
{
    __shared__ int left[TILE][TILE_WORDS + 1], right[TILE][TILE_WORDS + 1];
    long long across = (n + TILE - 1) / TILE;
    long long row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    int lane = threadIdx.x % TILE, first = threadIdx.x / TILE, step = blockDim.x / TILE;
    int sums[TILE * TILE / THREADS] = {0};
    for (long long start = 0; start < k; start += 4 * TILE_WORDS) {
        for (int i = threadIdx.x; i < TILE * TILE_WORDS; i += blockDim.x) {
            int r = i / TILE_WORDS, c = i % TILE_WORDS;
            long long at = start + 4 * c;
            left[r][c] = row + r < m && at < k ? four(x + (row + r) * k, at, k, whole) : 0;
            right[r][c] = column + r < n && at < k ? four(w + (column + r) * k, at, k, whole) : 0;
        }
        __syncthreads();
        for (int c = 0; c < TILE_WORDS; ++c)
            for (int i = 0; i < TILE * TILE / THREADS; ++i)
                sums[i] = __dp4a(left[first + i * step][c], right[lane][c], sums[i]);
        __syncthreads();
    }
    for (int i = 0; i < TILE * TILE / THREADS; ++i) {
        long long r = row + first + i * step;
        if (r < m && column + lane < n) out[r * n + column + lane] = sums[i];
    }
}

/* The same of a few rows of NUMBER: a warp has one row of the weight, and reads it once for every ROWS rows of x. */
extern "C" __global__ void int8_rows(
    const NUMBER *x, const signed char *w, NUMBER *out, long long m, long long n, long long k, int whole)
{
    long long column = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (column >= n) return;
    int lane = threadIdx.x % 32;
    const signed char *weights = w + column * k;
    for (long long row = 0; row < m; row += ROWS) {
        int count = m - row < ROWS ? (int)(m - row) : ROWS;
        NUMBER sums[ROWS] = {0};
        for (long long at = 4 * lane; at < k; at += 4 * 32) {
            int word = four(weights, at, k, whole), here = k - at < 4 ? (int)(k - at) : 4;
            for (int i = 0; i < here; ++i) {
                NUMBER weight = (NUMBER)(signed char)(word >> 8 * i);
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    if (r < count) sums[r] += x[(row + r) * k + at + i] * weight;
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            for (int step = 16; step; step >>= 1) sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], step);
            if (r < count && lane == 0) out[(row + r) * n + column] = sums[r];
        }
    }
}
"""


def source(number: np.dtype[Any]) -> str:
    """The source of both kernels, the second for floating-point numbers of a dtype."""
    words = {
        "NUMBER": types(number)[0],
        "TILE": TILE,
        "TILE_WORDS": TILE_WORDS,
        "THREADS": BLOCK_THREADS,
        "ROWS": ROWS_AT_ONCE,
    }
    return "".join(f"#define {name} {text}\n" for name, text in words.items()) + SOURCE


class Int8Products:
    """Launches both kernels, on matrices x [m, k] and int8 weights [n, k]."""

    def __init__(self, xp: Any, number: np.dtype[Any]) -> None:
        self.xp, self.number = xp, number
        self._functions = functions(xp, source(number), "int8_exact", "int8_rows")

    def __bool__(self) -> bool:
        """Whether they could be compiled."""
        return self._functions is not None

    def exact(self, x: Any, w: Any) -> Any:
        """The int32 product of two matrices of int8."""
        tiles = -(-x.shape[0] // TILE) * -(-w.shape[0] // TILE)
        return self._launch(0, tiles, x, w, np.dtype(np.int32))

    def rows(self, x: Any, w: Any) -> Any:
        """The product of a few rows of floating-point numbers."""
        return self._launch(1, -(-w.shape[0] // (BLOCK_THREADS // WARP_THREADS)), x, w, self.number)

    def _launch(self, which: int, blocks: int, x: Any, w: Any, dtype: np.dtype[Any]) -> Any:
        assert self._functions is not None
        x, w = self.xp.ascontiguousarray(x), self.xp.ascontiguousarray(w)
        (m, k), n = x.shape, w.shape[0]
        out = self.xp.empty((m, n), dtype)
        addresses = (w.data.ptr, x.data.ptr) if which == 0 else (w.data.ptr,)
        whole = k % 4 == 0 and not any(address % 4 for address in addresses)
        numbers = (np.int64(m), np.int64(n), np.int64(k), np.int32(whole))
        self._functions[which]((blocks,), (BLOCK_THREADS,), (x, w, out, *numbers))
        return out
