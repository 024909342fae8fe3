"""Convolutions on a CPU: in whichever way they are computed, and by however many threads."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.ir.dtypes import float32
from gt.ir.infer import infer
from gt.ir.spec import spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.kernels import conv_cpu
from gt.worker.kernels.conv_cpu import conv, form_of

Array = np.ndarray[Any, Any]
PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


def call_of(x: tuple[int, ...], w: tuple[int, ...], thread_pool: ThreadPool | None, **attributes: Any) -> KernelCall:
    operands = spec(float32, x), spec(float32, w)
    (result,) = infer("conv", operands, attributes)
    box = tuple((0, size) for size in result.shape)
    return KernelCall(np, "conv", attributes, operands, result, result.shape, box, thread_pool=thread_pool)


def plain(x: Array, w: Array, call: KernelCall) -> Array:
    """The same from its definition, for numbers that float32 holds exactly."""
    a = call.attributes
    space = x.shape[3:]
    extents = [(n - 1) * s + 1 for n, s in zip(space, a["spreads"], strict=True)]
    large = 40
    whole = np.zeros((*x.shape[:3], *(2 * large + n for n in extents)))
    whole[(..., *(slice(large, large + n, s) for n, s in zip(extents, a["spreads"], strict=True)))] = x
    out = np.zeros(call.result.shape)
    for at in itertools.product(*map(range, call.result.shape[3:])):
        index = [
            large - before + o * stride + np.arange(size) * apart
            for before, o, stride, size, apart in zip(
                a["pads"][::2], at, a["strides"], w.shape[3:], a["dilations"], strict=True
            )
        ]
        window = whole[(slice(None), slice(None), slice(None), *np.ix_(*index))]
        out[(..., *at)] = np.einsum("ngcij,gocij->ngo", window, w)
    return out


@settings(max_examples=cases(120), deadline=None)
@given(
    examples=st.sampled_from([1, 3, 8]), groups=st.integers(1, 2), channels=st.integers(1, 3), made=st.integers(1, 3),
    space=st.tuples(st.integers(1, 9), st.integers(1, 9)), sizes=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    strides=PAIRS, spreads=PAIRS, dilations=PAIRS, pads=st.tuples(*[st.integers(-1, 4)] * 4), near=st.sampled_from([1, 1 << 20]),
    width=st.sampled_from([1, 2, 4]), small=st.sampled_from([0, 40, 1 << 20]),
)  # fmt: skip
def test_it_is_what_a_convolution_is(
    examples: int, groups: int, channels: int, made: int, space: tuple[int, int], sizes: tuple[int, int],
    strides: tuple[int, int], spreads: tuple[int, int], dilations: tuple[int, int], pads: tuple[int, ...], near: int,
    width: int, small: int,
) -> None:  # fmt: skip
    """Padded, cropped, spread, with strides and dilations; exactly, for small integers, whoever computes it."""
    x, w = (examples, groups, channels, *space), (groups, made, channels, *sizes)
    attributes = {"strides": strides, "spreads": spreads, "dilations": dilations, "pads": pads}
    for n, k, s, d, low, high in zip(space, sizes, spreads, dilations, pads[::2], pads[1::2], strict=True):
        if (n - 1) * s + 1 + low + high < (k - 1) * d + 1:
            return
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, shape).astype(np.float32) for shape in (x, w))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv_cpu, "CACHED_WINDOW_BYTES", near)
        patch.setattr(conv_cpu, "SHIFTED_BYTES", near)
        patch.setattr(conv_cpu, "MIN_PRODUCT_COLUMNS", 8)
        patch.setattr(conv_cpu, "MIN_TILE_WIDTH", width)
        patch.setattr(conv_cpu, "MAX_SMALL_MULTIPLICATIONS", max(1, small))
        patch.setattr(conv_cpu, "MIN_SMALL_COLUMNS", 2)
        patch.setattr(conv_cpu, "MIN_ROW_ELEMENTS", width)
        patch.setattr(conv_cpu, "MIN_TURNED_ROWS", 16 * width)
        patch.setattr(conv_cpu, "MIN_SHARED_ELEMENTS", 1)
        calls = [
            call_of(x, w, thread_pool, **attributes)
            for thread_pool in (None, ThreadPool(1), ThreadPool(2), ThreadPool(3))
        ]
        found = [conv(call)(a, b) for call in calls]
    np.testing.assert_array_equal(found[0], plain(a, b, calls[0]))
    for each in found[1:]:
        assert each.tobytes() == found[0].tobytes()


@settings(max_examples=cases(60), deadline=None)
@given(
    examples=st.integers(1, 5), groups=st.integers(1, 2), channels=st.integers(2, 7), made=st.integers(2, 4),
    size=st.tuples(st.integers(2, 6), st.integers(3, 6)), counts=st.tuples(st.integers(1, 4), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(-2, 3)] * 4), near=st.sampled_from([1, 3000, 1 << 20]), shared=st.sampled_from([1, 1 << 20]),
)  # fmt: skip
def test_gradients_of_weights_are_sums_of_products_of_planes(
    examples: int, groups: int, channels: int, made: int, size: tuple[int, int], counts: tuple[int, int],
    pads: tuple[int, ...], near: int, shared: int,
) -> None:  # fmt: skip
    """Padded and cropped, of views that lie as autograd leaves them; exactly, for small integers, whoever computes them."""
    space = [k + n - 1 - low - high for k, n, low, high in zip(size, counts, pads[::2], pads[1::2], strict=True)]
    if min(space) < 1:
        return
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (channels, groups, examples, *space)).astype(np.float32).transpose(2, 1, 0, 3, 4)
    b = random.integers(-4, 5, (channels, groups, made, *size)).astype(np.float32).transpose(1, 2, 0, 3, 4)
    ones: dict[str, Any] = {"strides": (1, 1), "spreads": (1, 1), "dilations": (1, 1), "pads": pads}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv_cpu, "SHIFTED_BYTES", near)
        for name in ("MIN_PLANE_ROWS", "MIN_PLANE_COLUMNS", "MIN_SMALL_COLUMNS"):
            patch.setattr(conv_cpu, name, 1)
        patch.setattr(conv_cpu, "MIN_SHARED_ELEMENTS", shared)
        calls = [call_of(a.shape, b.shape, pool, **ones) for pool in (None, ThreadPool(1), ThreadPool(2))]
        assert {form_of(call).way for call in calls} == {"planes"}
        found = [conv(call)(a, b) for call in calls]
    np.testing.assert_array_equal(found[0], plain(a, b, calls[0]))
    for each in found[1:]:
        assert each.tobytes() == found[0].tobytes()


def test_long_products_are_cut_into_small_ones() -> None:
    """Where their result is small and they can be cut into equal ones; the sum is that of the whole but for rounding."""
    ones: dict[str, Any] = {"strides": (1, 1), "spreads": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    call = call_of((1, 1, 64, 28, 28), (1, 16, 64, 28, 28), None, **ones)
    assert conv_cpu._stretches(call, form_of(call)) == 8
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((1, count, 64, 28, 28)) for count in (1, 16))
    whole = plain(a, b, call)
    np.testing.assert_allclose(
        conv(call)(a.astype(np.float32), b.astype(np.float32)), whole, atol=1e-6 * np.abs(whole).max()
    )
    wide = call_of((16, 1, 64, 14, 14), (1, 32, 64, 14, 14), None, **ones)
    assert conv_cpu._stretches(wide, form_of(wide)) == 1


def test_shapes_choose_the_way() -> None:
    """And how many examples are taken at a time: as many as a cache holds, if that is enough for a product, or a part for each of
    two threads, of which that of the caller is larger."""
    ones: dict[str, Any] = {"strides": (1, 1), "spreads": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    forward = form_of(call_of((32, 1, 16, 14, 14), (1, 32, 16, 3, 3), None, **ones))
    assert (forward.way, forward.step) == ("columns", 18)
    strided = form_of(call_of((80, 1, 16, 28, 28), (1, 32, 16, 3, 3), None, **{**ones, "strides": (2, 2)}))
    assert (strided.way, strided.step) == ("columns", conv_cpu.CACHED_WINDOW_BYTES // (16 * 9 * 14 * 14 * 4))
    deep = form_of(call_of((32, 1, 512, 7, 7), (1, 512, 512, 3, 3), None, **ones))
    assert (deep.way, deep.step) == ("columns", 9), (
        "of which 8 MiB hold the windows, where 11 would have columns enough"
    )
    weight = form_of(call_of((16, 1, 32, 14, 14), (1, 32, 32, 14, 14), None, **ones))
    assert (weight.way, weight.step) == ("planes", 18)
    large_weight = form_of(call_of((64, 1, 32, 14, 14), (1, 64, 32, 14, 14), None, **ones))
    assert (large_weight.way, large_weight.step) == ("rows", -(-conv_cpu.MIN_PRODUCT_ROWS // 9)), "2.4 million each"
    spread = {**ones, "spreads": (2, 2), "pads": (1, 2, 1, 2)}
    assert form_of(call_of((32, 1, 32, 16, 16), (1, 16, 32, 3, 3), None, **spread)).way == "taps"
    gradient = form_of(
        call_of((8, 1, 16, 32, 32), (1, 8, 16, 64, 64), None, **{**ones, "spreads": (2, 2), "pads": (2, 2, 2, 2)})
    )
    assert gradient.way == "rows", "4,096 taps"
    large = call_of((8, 1, 4, 16, 16), (1, 4, 4, 9, 9), None, **{**spread, "pads": (8, 8, 8, 8)})
    assert form_of(large).way == "columns", "81 taps"
    both = {**spread, "strides": (2, 1)}
    assert form_of(call_of((32, 1, 32, 16, 16), (1, 16, 32, 3, 3), None, **both)).way == "columns"


@pytest.mark.parametrize(
    ("size", "apart", "pads"),
    [(16, 16, (15, 15)), (16, 16, (12, 18)), (20, 16, (19, 19)), (5, 8, (4, 6)), (33, 8, (20, 1)), (9, 4, (-1, 6))],
)
def test_what_lies_far_apart_is_laid_in_tiles(size: int, apart: int, pads: tuple[int, int]) -> None:
    """Windows as wide as the elements lie apart, wider and narrower, padded and cropped; no product is of a zero."""
    x, w = (3, 2, 5, 3, 4), (2, 3, 5, size, size)
    attributes = {"strides": (1, 1), "spreads": (apart, apart), "dilations": (1, 1), "pads": pads * 2}
    call = call_of(x, w, ThreadPool(2), **attributes)
    form = form_of(call)
    assert (form.way, form.inner, form.outer) == ("tiles", 3 * size * size, 12)
    random = np.random.default_rng(2)
    a, b = (random.integers(-4, 5, shape).astype(np.float32) for shape in (x, w))
    np.testing.assert_array_equal(conv(call)(a, b), plain(a, b, call))


def test_bits_do_not_depend_on_how_many_lanes_there_are() -> None:
    """In none of the ways."""
    random = np.random.default_rng(1)
    ones: dict[str, Any] = {"strides": (1, 1), "spreads": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    for x, w, attributes in (
        ((32, 1, 16, 20, 20), (1, 32, 16, 3, 3), ones),
        ((32, 1, 8, 14, 14), (1, 16, 8, 14, 14), ones),
        ((70, 1, 8, 20, 20), (1, 40, 8, 20, 20), ones),
        ((32, 1, 16, 16, 16), (1, 16, 16, 3, 3), {**ones, "spreads": (2, 2), "pads": (1, 2, 1, 2)}),
        ((20, 6, 8, 14, 14), (6, 1, 8, 14, 14), ones),
        ((32, 1, 24, 4, 4), (1, 3, 24, 16, 16), {**ones, "spreads": (16, 16), "pads": (15, 15, 15, 15)}),
    ):
        a, b = (random.standard_normal(shape).astype(np.float32) for shape in (x, w))
        kernels = [conv(call_of(x, w, ThreadPool(threads), **attributes)) for threads in (1, 2, 3)]
        for _ in range(3):
            assert len({kernel(a, b).tobytes() for kernel in kernels}) == 1
