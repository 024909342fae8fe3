"""CUDA C++ on a CPU: kernels compiled by the host's own compiler, thread after thread, to see that they compute the right values.

A block's threads are coroutines that take turns at every barrier and shuffle, so what threads tell each other is tested too;
blocks come one after another, in every other launch the last one first. How fast a kernel is, and races between barriers, are
not. For sources that include nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from gt.worker.fusion.cuda.cuda_types import HALF_SOURCE

COMPILER: Final = shutil.which("g++")

SHIM: Final = r"""
#include <cmath>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
using namespace std;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __shared__ static
struct gt_dim { unsigned x, y, z; };
static gt_dim threadIdx, blockIdx, blockDim, gridDim;
static inline unsigned long long atomicMax(unsigned long long *at, unsigned long long x)
{
    unsigned long long was = *at;
    if (x > was) *at = x;
    return was;
}
static inline unsigned atomicAdd(unsigned *at, unsigned x)
{
    unsigned was = *at;
    *at += x;
    return was;
}
static inline void __threadfence() {}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
static inline float __int_as_float(int x) { float out; memcpy(&out, &x, 4); return out; }
static inline int __float_as_int(float x) { int out; memcpy(&out, &x, 4); return out; }
static inline double __longlong_as_double(long long x) { double out; memcpy(&out, &x, 8); return out; }
static inline float from_half(unsigned short x) { _Float16 half; memcpy(&half, &x, 2); return (float)half; }
static inline unsigned short bits_of(_Float16 half) { unsigned short out; memcpy(&out, &half, 2); return out; }
static inline unsigned short to_half(float x) { return bits_of((_Float16)x); }
static inline unsigned short to_half(double x) { return bits_of((_Float16)x); }
static ucontext_t gt_main, gt_threads[1024];
static char *gt_stacks, gt_done[1024];
static void (*gt_work)(void *);
static void *gt_told;
static unsigned gt_current;
static void gt_yield() { swapcontext(&gt_threads[gt_current], &gt_main); }
static void gt_enter()
{
    gt_work(gt_told);
    gt_done[gt_current] = 1;
    gt_yield();
}
static void __syncthreads() { gt_yield(); }
static unsigned long long gt_lane[1024];
template <typename T> static T __shfl_xor_sync(unsigned, T value, int mask)
{
    unsigned at = gt_current;
    memcpy(&gt_lane[at], &value, sizeof(T));
    gt_yield();
    T found;
    memcpy(&found, &gt_lane[at ^ mask], sizeof(T));
    gt_yield();
    return found;
}
template <typename F> static void gt_launch(unsigned grid, unsigned block, F work, bool turns)
{
    const size_t size = 1 << 16;
    blockDim = {block, 1, 1};
    gridDim = {grid, 1, 1};
    gt_work = [](void *told) { (*(F *)told)(); };
    gt_told = &work;
    if (!gt_stacks) gt_stacks = (char *)malloc(1024 * size);
    static bool gt_backwards;
    gt_backwards = !gt_backwards;
    for (unsigned b = 0; b < grid; ++b) {
        blockIdx = {gt_backwards ? grid - 1 - b : b, 0, 0};
        if (!turns) {
            for (unsigned t = 0; t < block; ++t) { threadIdx = {t, 0, 0}; work(); }
            continue;
        }
        memset(gt_done, 0, sizeof gt_done);
        for (unsigned t = 0; t < block; ++t) {
            getcontext(&gt_threads[t]);
            gt_threads[t].uc_stack.ss_sp = gt_stacks + t * size;
            gt_threads[t].uc_stack.ss_size = size;
            gt_threads[t].uc_link = &gt_main;
            makecontext(&gt_threads[t], gt_enter, 0);
        }
        for (unsigned left = block; left;) {
            left = 0;
            for (unsigned t = 0; t < block; ++t)
                if (!gt_done[t]) {
                    gt_current = t;
                    threadIdx = {t, 0, 0};
                    swapcontext(&gt_main, &gt_threads[t]);
                    left += !gt_done[t];
                }
        }
    }
}
"""
ENTRY: Final = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\)', re.DOTALL)
CTYPES: Final = {
    np.dtype(kind): made
    for kind, made in (
        (np.bool_, ctypes.c_bool), (np.int32, ctypes.c_int32), (np.uint32, ctypes.c_uint32), (np.int64, ctypes.c_int64),
        (np.uint64, ctypes.c_uint64), (np.float32, ctypes.c_float), (np.float64, ctypes.c_double),
    )
}  # fmt: skip


FLAGS: Final = ["-shared", "-fPIC", "-O0", "-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing", "-std=c++14", "-w"]


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where sources and libraries lie, beside what they all begin with: compiled once, since it is most of the time."""
    made = tempfile.TemporaryDirectory(prefix="gt-cuda-")
    header = Path(made.name) / "shim.h"
    header.write_text(SHIM)
    _compile("-x", "c++-header", str(header), "-o", f"{header}.gch")
    return made


def _compile(*arguments: str) -> None:
    if COMPILER is None:
        raise RuntimeError("no C++ compiler")
    done = subprocess.run([COMPILER, *FLAGS, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@cache
def library(source: str) -> ctypes.CDLL:
    """A source as a library in which `run_NAME(grid, block, …)` does what a launch of NAME does."""
    launchers = []
    turns = "true" if "__syncthreads" in source or "__shfl" in source else "false"
    for name, parameters in ENTRY.findall(source):
        names = ", ".join(re.findall(r"(\w+)\s*(?:,|$)", parameters))
        launchers.append(
            f'extern "C" void run_{name}(unsigned gt_grid, unsigned gt_block, {parameters})\n'
            f"{{ gt_launch(gt_grid, gt_block, [=] {{ {name}({names}); }}, {turns}); }}\n"
        )
    assert launchers, "a source has an entry"
    stem = Path(_folder().name) / hashlib.sha256(source.encode()).hexdigest()[:24]
    source = source.replace(HALF_SOURCE.strip(), "")  # the device's instructions; the shim has the same
    written, made = stem.with_suffix(".cpp"), stem.with_suffix(".so")
    written.write_text('#include "shim.h"\n' + source + "\n".join(launchers))
    try:
        _compile(str(written), "-o", str(made))
    except AssertionError as error:
        error.add_note(source)
        raise
    return ctypes.CDLL(str(made))


def passed(value: Any) -> Any:
    """An argument of a launch as C takes it: arrays of the device by their address."""
    pointer = getattr(getattr(value, "data", None), "ptr", None)
    if pointer is not None:
        return ctypes.c_void_p(pointer)
    return CTYPES[np.asarray(value).dtype](value)


class Module:
    """What stands for CuPy's RawModule."""

    def __init__(self, source: str) -> None:
        self.library = library(source)

    def get_function(self, name: str) -> Any:
        """A launch: `function((grid,), (block,), arguments)`."""
        function = getattr(self.library, f"run_{name}")
        function.restype = None

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            function(ctypes.c_uint(grid[0]), ctypes.c_uint(block[0]), *map(passed, arguments))

        return launch
