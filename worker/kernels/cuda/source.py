"""Compiles CUDA sources, and has what several of them share.

Multiplications and additions are not contracted. CuPy keeps what it compiled on disk, by its source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import bfloat16, float16

log = logging.getLogger(__name__)

COMPILER_OPTIONS: Final = ("--std=c++17", "--fmad=false")
MAX_CACHED_SOURCES: Final = 1024
"""Compiled sources that a process remembers."""
WARP_THREADS: Final = 32
BLOCK_THREADS: Final = 256
MAX_BLOCKS: Final = 2**31 - 1
"""Blocks of a launch along its first axis."""

HALF_SOURCE: Final = r"""
__device__ __forceinline__ float from_half(unsigned short x)
{
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x));
    return out;
}
__device__ __forceinline__ unsigned short to_half(float x)
{
    unsigned short out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(x));
    return out;
}
__device__ __forceinline__ unsigned short to_half(double x)
{
    unsigned short out;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(out) : "d"(x));
    return out;
}
"""
"""The device's own instructions for float16."""

BFLOAT16_SOURCE: Final = r"""
__device__ __forceinline__ float from_bfloat16(unsigned short x) { return __int_as_float((int)((unsigned int)x << 16)); }
__device__ __forceinline__ unsigned short to_bfloat16(float x)
{
    unsigned int bits = (unsigned int)__float_as_int(x);
    if (x != x) return (unsigned short)(bits >> 16 | 64);
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
"""

ACROSS_SOURCE: Final = f"""
#define INF __longlong_as_double(0x7ff0000000000000LL)
struct Sum {{
    template <typename T> __device__ __forceinline__ T operator()(T a, T b) const {{ return a + b; }}
}};
struct Max {{
    template <typename T> __device__ __forceinline__ T operator()(T a, T b) const {{ return a >= b || a != a ? a : b; }}
}};
template <typename T, typename F> __device__ __forceinline__ T across(T x, F join)
{{
    __shared__ T held[{BLOCK_THREADS // WARP_THREADS}];
    for (int step = 16; step; step >>= 1) x = join(x, __shfl_xor_sync(0xffffffffu, x, step));
    __syncthreads();
    if (threadIdx.x % {WARP_THREADS} == 0) held[threadIdx.x / {WARP_THREADS}] = x;
    __syncthreads();
    x = held[0];
    for (int warp = 1; warp < {BLOCK_THREADS // WARP_THREADS}; ++warp) x = join(x, held[warp]);
    return x;
}}
"""
"""A join of one number of each thread of a block; all get it, and the same bits. The larger of two numbers is NaN if one is."""


def types(stored: np.dtype[Any]) -> tuple[str, str, str]:
    """Of a floating-point dtype: the type in memory, the function that reads it, and the one that makes it of a number."""
    if stored == float16.numpy:
        return "unsigned short", "from_half", "to_half"
    if stored == bfloat16.numpy:
        return "unsigned short", "from_bfloat16", "to_bfloat16"
    name = "float" if stored == np.float32 else "double"
    return name, f"({name})", f"({name})"


@lru_cache(maxsize=MAX_CACHED_SOURCES)
def compiled(xp: Any, source: str) -> Callable[[str], Any]:
    """The functions of a source by name. Raises whatever the compiler does."""
    get: Callable[[str], Any] = xp.RawModule(code=source, options=COMPILER_OPTIONS).get_function
    return get


def functions(xp: Any, source: str, *names: str) -> list[Any] | None:
    """The functions of those names; None without a GPU, and where the source does not compile, which is logged."""
    if xp is np:
        return None
    try:
        get = compiled(xp, source)
        return [get(name) for name in names]
    except Exception as error:  # noqa: BLE001 — whatever the compiler raises: the caller has another way
        log.warning("%s is computed step by step: %s", ", ".join(names), str(error).splitlines()[0])
        return None
