"""Random numbers: NumPy's stream word for word, the same for any cut, and what the distributions make of the words."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gt.ir import dtypes
from gt.ir.spec import spec
from gt.sharding.partition import Box, extent
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device.device_scalars import DeviceScalar
from gt.worker.kernels import philox
from gt.worker.op_table.op_table import KERNELS

Array = np.ndarray[Any, Any]

WORDS = [5705853004827290377, 6584680345644299050, 680768428710196683]
UNIFORM = [0.30931491118583454, 0.3569562367935075, 0.036904530468356844]
NORMAL = [-0.49779318146245555, -0.3666066145254146, -1.787795166825708]

SEEDS = st.integers(0, 2**64 - 1)


def stream(seed: int, counter: int, count: int) -> Array:
    """The plain stream, from its beginning."""
    return np.random.Philox(key=np.array([seed, counter], dtype=np.uint64)).random_raw(count)


def cut(whole: Array, box: Box) -> Array:
    return whole[tuple(slice(*side) for side in box)]


@st.composite
def boxes(draw: st.DrawFn, max_side: int = 7) -> tuple[tuple[int, ...], Box]:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=max_side))
    sides = []
    for size in shape:
        start = draw(st.integers(0, size))
        part = (start, draw(st.integers(start, size)))
        sides.append(draw(st.sampled_from([(0, size), part])))
    return shape, tuple(sides)


def draw_numbers(
    name: str, dtype: dtypes.DType, shape: tuple[int, ...], box: Box, seed: int = 1, counter: int = 2
) -> Any:
    attributes = {"shape": shape, "dtype": dtype}
    call = KernelCall(np, name, attributes, ("i", "i"), spec(dtype, extent(box)), shape, box)
    out = KERNELS[name](call)(seed, counter)
    assert (out.dtype, out.shape) == (dtype.numpy, extent(box))
    return out


def whole(shape: tuple[int, ...]) -> Box:
    return tuple((0, size) for size in shape)


# the words


@settings(max_examples=cases(80))
@given(seed=SEEDS, counter=SEEDS, case=boxes(), chunk=st.integers(1, 40), skip=st.integers(0, 40))
def test_any_box_has_the_words_of_the_plain_stream(
    seed: int, counter: int, case: tuple[tuple[int, ...], Box], chunk: int, skip: int
) -> None:
    """Contiguous or not, in pieces of any size, rows made whole or one by one."""
    shape, box = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(philox, "_CHUNK", chunk)
        patch.setattr(philox, "_SKIP", skip)
        mine = philox.words(seed, counter, shape, box)
    assert mine.dtype == np.uint64
    np.testing.assert_array_equal(mine, cut(stream(seed, counter, math.prod(shape)).reshape(shape), box))


@pytest.mark.parametrize("columns", [(0, 100), (1, 8999), (5000, 9000)])
def test_large_boxes_are_made_in_pieces(columns: tuple[int, int]) -> None:
    """Both ways to cross a gap, at the sizes that choose between them."""
    shape = (20, 3, 9000)
    expected = stream(1, 2, math.prod(shape)).reshape(shape)
    for box in (((0, 20), (0, 3), columns), ((3, 19), (1, 3), columns), ((5, 6), (0, 3), columns)):
        np.testing.assert_array_equal(philox.words(1, 2, shape, box), cut(expected, box))


def test_the_far_end_of_a_huge_tensor_is_reached_at_once() -> None:
    size = 2**48
    last = philox.words(1, 2, (size,), ((size - 3, size),))
    bits = np.random.Philox(key=[1, 2])
    bits.advance(size // 4 - 1)
    np.testing.assert_array_equal(last, bits.random_raw(4)[1:])


def rounds(seed: int, counter: int, block: int) -> list[int]:
    """Philox4x64-10 as the paper writes it, in Python's integers."""
    mask = 2**64 - 1
    c0, c1, c2, c3 = block + 1, 0, 0, 0
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * c2, 2**64)
        c0, c1, c2, c3 = high1 ^ c1 ^ seed, low1, high0 ^ c3 ^ counter, low0
        seed, counter = (seed + 0x9E3779B97F4A7C15) & mask, (counter + 0xBB67AE8584CAA73B) & mask
    return [c0, c1, c2, c3]


@settings(max_examples=cases(20))
@given(seed=SEEDS, counter=SEEDS)
def test_the_paper_and_numpy_agree(seed: int, counter: int) -> None:
    """So whoever writes the rounds again, for another device, can check against either."""
    expected = [word for block in range(3) for word in rounds(seed, counter, block)]
    assert philox.words(seed, counter, (12,), ((0, 12),)).tolist() == expected


HOST = r"""
#define __device__ static
#define __global__
#define __umul64hi(a, b) ((unsigned long long)(((unsigned __int128)(a) * (b)) >> 64))
struct Place { unsigned x; };
static Place blockIdx, blockDim, threadIdx;
"""

LAUNCH = r"""
extern "C" void launch(unsigned grid, unsigned threads, u64 *out, u64 count, u64 seed, u64 *seed_at, u64 counter,
                       u64 *counter_at, u64 origin, int ndim, const u64 *dims)
{
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x)
            philox_words(out, count, seed, seed_at, counter, counter_at, origin, ndim, dims);
}
"""


class Device:
    """NumPy in CuPy's place: raw kernels are compiled for this machine, and their threads run one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def RawKernel(self, source: str, name: str) -> Any:  # noqa: N802  # as CuPy calls it
        assert name == "philox_words"
        code, library = self.folder / "kernel.cpp", self.folder / "kernel.so"
        code.write_text(HOST + source + LAUNCH)
        subprocess.run(["c++", "-O1", "-shared", "-fPIC", "-o", library, code], check=True)
        launch = ctypes.CDLL(str(library)).launch
        u64, pointer = ctypes.c_uint64, ctypes.c_void_p
        launch.argtypes = [ctypes.c_uint, ctypes.c_uint, pointer, *(u64,) * 6, ctypes.c_int, pointer]

        def call(grid: tuple[int], threads: tuple[int], arguments: tuple[Any, ...]) -> None:
            out, *numbers, dims = arguments
            passed = [each.ctypes.data if isinstance(each, np.ndarray) else each for each in numbers]
            assert all(type(each) in (np.uint64, int) for each in passed[:-1])
            launch(*grid, *threads, out.ctypes.data, *map(int, passed), dims.ctypes.data)

        return call


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    return Device(tmp_path_factory.mktemp("kernel"))


@settings(max_examples=cases(40))
@given(seed=SEEDS, counter=SEEDS, case=boxes(max_side=12))
def test_the_raw_kernel_makes_the_same_words(
    device: Device, seed: int, counter: int, case: tuple[tuple[int, ...], Box]
) -> None:
    """The CUDA source itself, of which nothing but its few keywords is CUDA."""
    shape, box = case
    make, expected = philox.device_words(device, shape, box), philox.words(seed, counter, shape, box)
    np.testing.assert_array_equal(make(seed, counter), expected)
    held = [np.array([number], np.uint64) for number in (seed, counter)]
    np.testing.assert_array_equal(make(*(DeviceScalar(1, place) for place in held)), expected)


def test_distributions_on_a_device_are_made_of_the_same_words(device: Device) -> None:
    shape, box = (6, 5), ((1, 5), (2, 5))
    attributes = {"shape": shape, "dtype": dtypes.float32}
    call = KernelCall(device, "uniform", attributes, ("i", "i"), spec(dtypes.float32, (4, 3)), shape, box)
    out = KERNELS["uniform"](call)(1, 2)
    np.testing.assert_array_equal(out, draw_numbers("uniform", dtypes.float32, shape, box))


# the distributions


@pytest.mark.parametrize("name", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64])
@settings(max_examples=cases(10))
@given(case=boxes())
def test_any_box_has_the_numbers_of_the_whole(
    name: str, dtype: dtypes.DType, case: tuple[tuple[int, ...], Box]
) -> None:
    shape, box = case
    every = draw_numbers(name, dtype, shape, whole(shape))
    np.testing.assert_array_equal(draw_numbers(name, dtype, shape, box), cut(every, box))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64])
def test_moments(dtype: dtypes.DType) -> None:
    """Within six standard errors, for two seeds and two counters, which have nothing in common."""
    count = 200_000
    seen = []
    for seed, counter in ((0, 0), (0, 1), (2**64 - 1, 0)):
        x = draw_numbers("uniform", dtype, (count,), ((0, count),), seed, counter).astype(float)
        assert x.min() >= 0
        assert x.max() < 1
        assert abs(x.mean() - 0.5) < 6 * math.sqrt(1 / 12 / count) + 2.0**-11 * (dtype is dtypes.float16)
        assert abs(x.var() - 1 / 12) < 6 * math.sqrt(1 / 180 / count)
        z = draw_numbers("normal", dtype, (count,), ((0, count),), seed, counter).astype(float)
        assert abs(z.mean()) < 6 * math.sqrt(1 / count)
        assert abs(z.var() - 1) < 6 * math.sqrt(2 / count)
        assert abs((z**4).mean() - 3) < 6 * math.sqrt(96 / count)
        seen.append(z)
    assert (np.abs(np.corrcoef(seen) - np.eye(3)) < 6 / math.sqrt(count)).all()


def test_the_outermost_words_give_finite_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No uniform number is 1 and no normal one infinite, and the normal ones are as far from 0 on both sides."""
    extremes = np.array([0, 2**64 - 1], dtype=np.uint64)
    monkeypatch.setattr(philox._Stream, "read", lambda self, first, count: extremes)
    for dtype in (dtypes.float16, dtypes.float32, dtypes.float64):
        low, high = draw_numbers("uniform", dtype, (2,), ((0, 2),))
        assert low == 0
        assert high == np.nextafter(dtype.numpy.type(1), dtype.numpy.type(0))
        left, right = draw_numbers("normal", dtype, (2,), ((0, 2),))
        assert left == -right
        assert 8 < right < 9


def test_golden_numbers() -> None:
    """They never change: a program's seed is a promise."""
    assert philox.words(1, 2, (3,), ((0, 3),)).tolist() == WORDS
    box = ((0, 3),)
    np.testing.assert_array_equal(draw_numbers("uniform", dtypes.float64, (3,), box), UNIFORM)
    np.testing.assert_allclose(draw_numbers("normal", dtypes.float64, (3,), box), NORMAL, rtol=1e-15)
