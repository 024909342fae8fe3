"""CUDA C++ on a CPU: kernels compiled by the host's own compiler, thread after thread, to see that they compute the right values.

A block's threads are coroutines that take turns at every barrier and shuffle, so what threads tell each other is tested too;
how fast a kernel is, and races between barriers, are not. For sources that include nothing.
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

COMPILER: Final = shutil.which("g++")

SHIM: Final = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>
#include <functional>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __shared__ static
struct gt_dim { unsigned x, y, z; };
static gt_dim threadIdx, blockIdx, blockDim, gridDim;
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
static ucontext_t gt_main;
static std::vector<ucontext_t> gt_threads;
static std::vector<std::vector<char>> gt_stacks;
static std::vector<char> gt_done;
static std::function<void()> gt_work;
static unsigned gt_current;
static void gt_yield() { swapcontext(&gt_threads[gt_current], &gt_main); }
static void gt_enter()
{
    gt_work();
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
static void gt_launch(unsigned grid, unsigned block, std::function<void()> work, bool turns)
{
    blockDim = {block, 1, 1};
    gridDim = {grid, 1, 1};
    gt_work = work;
    gt_threads.resize(block);
    gt_stacks.resize(block);
    for (unsigned b = 0; b < grid; ++b) {
        blockIdx = {b, 0, 0};
        if (!turns) {
            for (unsigned t = 0; t < block; ++t) { threadIdx = {t, 0, 0}; work(); }
            continue;
        }
        gt_done.assign(block, 0);
        for (unsigned t = 0; t < block; ++t) {
            getcontext(&gt_threads[t]);
            gt_stacks[t].resize(1 << 16);
            gt_threads[t].uc_stack.ss_sp = gt_stacks[t].data();
            gt_threads[t].uc_stack.ss_size = gt_stacks[t].size();
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


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gt-cuda-")


@cache
def library(source: str) -> ctypes.CDLL:
    """A source as a library in which `run_NAME(grid, block, …)` does what a launch of NAME does."""
    if COMPILER is None:
        raise RuntimeError("no C++ compiler")
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
    stem.with_suffix(".cpp").write_text(SHIM + source + "\n".join(launchers))
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing", "-std=c++17", "-w",
               str(stem.with_suffix(".cpp")), "-o", str(stem.with_suffix(".so"))]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{source}"
    return ctypes.CDLL(str(stem.with_suffix(".so")))


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
