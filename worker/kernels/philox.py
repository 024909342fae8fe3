"""Kernels of random numbers that depend on nothing but seed, counter and the element's place in the whole tensor.

Philox4x64-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11) is keyed by
(seed, counter). Element i of the row-major global tensor takes word i of the stream that
`numpy.random.Philox(key=[seed, counter])` makes, so any box of the tensor has bitwise the same elements for any
sharding. Each element takes one word and no more: distributions that reject draws may not be in here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import DType, bfloat16, float16, float32, float64
from gt.sharding.partition import Box, extent
from gt.worker.base.backend import special
from gt.worker.base.kernel_call import Kernel, KernelCall
from gt.worker.device.device_scalars import DeviceScalar, arguments

_CHUNK: Final = 1 << 15
"""Words made at a time: they fit a core's cache, and bound the memory beside the result."""

_SKIP: Final = 2048
"""Making this many words takes as long as placing the generator anew: shorter gaps are made and thrown away."""

_DIGITS: Final[dict[DType, int]] = {bfloat16: 8, float16: 11, float32: 24, float64: 53}
"""Binary digits of the significand."""

Transform = Callable[[Any], Any]


def words(seed: int, counter: int, shape: tuple[int, ...], box: Box) -> np.ndarray[Any, Any]:
    """The uint64 words of the elements of `box` in a tensor of `shape`. Seed and counter lie in [0, 2**64)."""
    made: np.ndarray[Any, Any] = _generate(seed, counter, _region(shape, box), np.dtype(np.uint64), lambda raw: raw)
    return made


def uniform(call: KernelCall) -> Kernel:
    """Uniform in [0, 1): the top bits of each word, as many as the dtype has digits. Every value is exact, 1 never comes."""
    dtype = call.result.dtype.numpy
    bits = _DIGITS[call.result.dtype]
    shift, scale = np.uint64(64 - bits), dtype.type(2.0**-bits)
    if call.result.dtype is bfloat16 and call.xp is not np:  # exact in float32, too
        return _kernel(call, lambda raw: ((raw >> shift).astype(np.float32) * np.float32(scale)).astype(dtype))
    return _kernel(call, lambda raw: (raw >> shift).astype(dtype) * scale)


def normal(call: KernelCall) -> Kernel:
    """Standard normal: the inverse distribution function, in float64, at the middle of one of 2**52 equal cells.

    52 bits and a half make 53, which float64 holds: with one more bit the last cell would round to 1, and be infinite.
    """
    dtype = call.result.dtype.numpy
    ndtri, shift = special(call.xp).ndtri, np.uint64(12)
    return _kernel(call, lambda raw: ndtri(((raw >> shift) + 0.5) * 2.0**-52).astype(dtype))


def _kernel(call: KernelCall, transform: Transform) -> Kernel:
    if call.xp is np:
        region, dtype = _region(call.shape, call.box), call.result.dtype.numpy
        return lambda seed, counter: _generate(seed, counter, region, dtype, transform)
    make = device_words(call.xp, call.shape, call.box)
    return lambda seed, counter: transform(make(seed, counter))


@dataclass(frozen=True, slots=True)
class _Region:
    """A box of the flattened tensor in the fewest dimensions, but at least two: (start, stop, size), and strides."""

    local: tuple[int, ...]
    dims: list[tuple[int, int, int]]
    strides: list[int]
    origin: int


def _region(shape: tuple[int, ...], box: Box) -> _Region:
    dims = [(0, 1, 1)]
    for (start, stop), size in zip(box, shape, strict=True):
        left_start, left_stop, left_size = dims[-1]
        if (start, stop) == (0, size) or left_stop - left_start == 1:  # then both together are one range
            dims[-1] = (left_start * size + start, (left_stop - 1) * size + stop, left_size * size)
        else:
            dims.append((start, stop, size))
    if len(dims) == 1:
        dims.insert(0, (0, 1, 1))
    strides = [math.prod(size for _, _, size in dims[at + 1 :]) for at in range(len(dims))]
    origin = sum(start * stride for (start, _, _), stride in zip(dims, strides, strict=True))
    return _Region(extent(box), dims, strides, origin)


# on a CPU: NumPy's own generator


class _Stream:
    """Words of one stream from any place on."""

    def __init__(self, seed: int, counter: int) -> None:
        self._bits = np.random.Philox(key=np.array([seed, counter], dtype=np.uint64))
        self._start: Any = self._bits.state

    def read(self, first: int, count: int) -> np.ndarray[Any, Any]:
        # The counter counts blocks of four words and is incremented before each, so at n block n is next.
        block, skip = divmod(first, 4)
        self._start["state"]["counter"][0] = block
        self._bits.state = self._start
        return self._bits.random_raw(skip + count)[skip:]


def _generate(seed: int, counter: int, region: _Region, dtype: np.dtype[Any], transform: Transform) -> Any:
    if 0 in region.local:
        return np.empty(region.local, dtype)
    stream = _Stream(seed, counter)
    *outer, (row_start, row_stop, _), (start, stop, row) = region.dims
    rows, run = row_stop - row_start, stop - start
    if rows == 1 and not outer and run <= _CHUNK:
        return transform(stream.read(region.origin, run)).reshape(region.local)
    starts = itertools.product(*(range(a * s, b * s, s) for (a, b, _), s in zip(outer, region.strides, strict=False)))
    out = np.empty((math.prod(b - a for a, b, _ in outer), rows, run), dtype)
    # Rows are made whole, and cut, where the gaps between them are cheaper to make than to skip.
    batch = 1 if rows == 1 or row - run > _SKIP else max(1, _CHUNK // row)
    for block, offsets in zip(out, starts, strict=True):
        for at in range(0, rows, batch):
            first = sum(offsets) + (row_start + at) * row + start
            if batch > 1:
                piece = block[at : at + batch]
                piece[...] = transform(stream.read(first, len(piece) * row).reshape(-1, row)[:, :run])
            else:
                for begin in range(0, run, _CHUNK):
                    piece = block[at, begin : begin + _CHUNK]
                    piece[...] = transform(stream.read(first + begin, len(piece)))
    return out.reshape(region.local)


# on a GPU: the same words from a raw kernel

SOURCE: Final = r"""
typedef unsigned long long u64;

__device__ void philox4x64_10(u64 block, u64 key0, u64 key1, u64 *word)
{
    /* NumPy increments its counter before each block, the first too. */
    u64 c0 = block + 1, c1 = 0, c2 = 0, c3 = 0;
    for (int round = 0; round < 10; ++round) {
        u64 high0 = __umul64hi(0xD2E7470EE14C6C93ULL, c0), low0 = 0xD2E7470EE14C6C93ULL * c0;
        u64 high1 = __umul64hi(0xCA5A826395121157ULL, c2), low1 = 0xCA5A826395121157ULL * c2;
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        key0 += 0x9E3779B97F4A7C15ULL;
        key1 += 0xBB67AE8584CAA73BULL;
    }
    word[0] = c0; word[1] = c1; word[2] = c2; word[3] = c3;
}

/* Each thread makes four neighbours of the box, which mostly share a block. `origin` is the place of the box's first
   element in the whole tensor; `dims` holds, for each of its dimensions, the extent and the stride. */
extern "C" __global__ void philox_words(
    u64 *out, u64 count, u64 seed, const u64 *seed_at, u64 counter, const u64 *counter_at, u64 origin, int ndim,
    const u64 *dims)
{
    if (seed_at) seed = *seed_at;
    if (counter_at) counter = *counter_at;
    u64 first = 4 * ((u64)blockIdx.x * blockDim.x + threadIdx.x);
    u64 last = first + 4 < count ? first + 4 : count;
    u64 have = ~0ULL, word[4];
    for (u64 at = first; at < last; ++at) {
        u64 place = origin, rest = at;
        for (int d = ndim - 1; d >= 0; --d) {
            place += rest % dims[2 * d] * dims[2 * d + 1];
            rest /= dims[2 * d];
        }
        if (place / 4 != have) {
            have = place / 4;
            philox4x64_10(have, seed, counter, word);
        }
        out[at] = word[place % 4];
    }
}
"""

_THREADS: Final = 256


@lru_cache(maxsize=1)
def _raw_kernel(xp: Any) -> Any:
    return xp.RawKernel(SOURCE, "philox_words")


def device_words(xp: Any, shape: tuple[int, ...], box: Box) -> Callable[[Any, Any], Any]:
    """`words` on the device of `xp`, as a function of seed and counter, which may be on the device."""
    local = extent(box)
    count = math.prod(local)
    if not count:
        return lambda _seed, _counter: xp.empty(local, np.uint64)
    region = _region(shape, box)
    table = [[stop - start, stride] for (start, stop, _), stride in zip(region.dims, region.strides, strict=True)]
    on_device = xp.asarray(np.array(table, dtype=np.uint64))
    grid = -(-count // (4 * _THREADS))

    def make(seed: int | DeviceScalar, counter: int | DeviceScalar) -> Any:
        out = xp.empty(local, np.uint64)
        key = (*arguments(seed, np.uint64), *arguments(counter, np.uint64))
        last = (np.uint64(region.origin), np.int32(len(table)), on_device)
        _raw_kernel(xp)((grid,), (_THREADS,), (out, np.uint64(count), *key, *last))
        return out

    return make
