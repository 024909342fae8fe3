"""Factories of kernels over sliding windows: convolutions as matrix products, windows as views, and their transpose.

On a GPU a convolution copies the windows of as many examples as fit into `DEVICE_WINDOW_BYTES` next to each other ("im2col"), and
leaves the arithmetic to a matrix product (on a CPU: `conv_cpu.py`). Windows themselves are another look at what is there,
which takes no memory. The largest of windows is found axis by axis, and its gradient by one element of all windows after the
other; on a CPU threads take some examples each, which changes no bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import float32
from gt.ir.infer import conv_extent, window_count
from gt.worker.base.kernel_call import Kernel, KernelCall

from .elementwise import wide
from .matmul import product

pool_loops: ModuleType | None
try:
    from gt.worker.element_loops import max_pool as pool_loops
except ImportError:  # they are not built, or not for this processor
    pool_loops = None

WINDOW_BYTES: Final = 8 << 20
"""Bytes of windows that are copied at once on a CPU: about what caches hold."""
DEVICE_WINDOW_BYTES: Final = 256 << 20
"""The same on a GPU, whose products are long only if they are of many examples."""
MIN_SHARED_ELEMENTS: Final = 256 << 10
"""Elements from which threads share a max pooling: it takes tens of microseconds to wake them."""
CALLER_HEAD_START: Final = 0.125
"""By how much of a piece that of the caller is larger: until the other threads have begun."""
MIN_EXAMPLE_WINDOWS: Final = 256
"""Windows of one example below which those of several examples go into one matrix product."""


def strided(xp: Any, x: Any, first: int, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """Windows of `sizes` over the dimensions of `x` from `first` on: […, count …, size …], a view."""
    lead, space = x.strides[:first], x.strides[first : first + len(sizes)]
    counts = [
        (length - conv_extent(size, dilation)) // stride + 1
        for length, size, stride, dilation in zip(x.shape[first:], sizes, strides, dilations, strict=False)
    ]
    rest = x.shape[first + len(sizes) :]
    return xp.lib.stride_tricks.as_strided(
        x,
        (*x.shape[:first], *counts, *rest, *sizes),
        (
            *lead,
            *(step * stride for step, stride in zip(space, strides, strict=True)),
            *x.strides[first + len(sizes) :],
            *(step * dilation for step, dilation in zip(space, dilations, strict=True)),
        ),
    )


def spread(xp: Any, x: Any, pads: Sequence[int], spreads: Sequence[int]) -> Any:
    """`x` with its last dimensions spread apart by zeros and padded or cropped; `x` itself where nothing changes."""
    if not any(pads) and all(each == 1 for each in spreads):
        return x
    shape, to, source = padded_shape(x.shape, pads, spreads), [], []
    first = x.ndim - len(spreads)
    for axis, (step, before) in enumerate(zip(spreads, pads[::2], strict=True), first):
        size = x.shape[axis]
        low = max(0, -(before // step))
        high = min(size, (shape[axis] - 1 - before) // step + 1)
        source.append(slice(low, max(low, high)))
        to.append(slice(before + low * step, before + low * step + max(0, conv_extent(high - low, step)), step))
    out = xp.zeros(shape, x.dtype)
    if all(each.start < each.stop for each in source):
        out[(..., *to)] = x[(..., *source)]
    return out


def padded_shape(shape: Sequence[int], pads: Sequence[int], spreads: Sequence[int]) -> tuple[int, ...]:
    """The shape that `spread` gives an array."""
    first = len(shape) - len(spreads)
    ends = zip(shape[first:], spreads, pads[::2], pads[1::2], strict=True)
    return (*shape[:first], *(max(0, conv_extent(size, step) + before + after) for size, step, before, after in ends))


def windows_at_once(call: KernelCall) -> tuple[int, int, int]:
    """The split of a convolution: of how many examples windows are copied at once, if there are so many; the elements of one
    window; the windows of an example."""
    sizes, counts = call.tensor(1).shape[3:], call.result.shape[3:]
    groups, channels = call.tensor(0).shape[1:3]
    inner, outer = channels * math.prod(sizes), math.prod(counts)
    room = WINDOW_BYTES if call.xp is np else DEVICE_WINDOW_BYTES
    step = max(1, room // (groups * inner * outer * wide(call.result.dtype).itemsize))
    return step, inner, outer


def columns(call: KernelCall) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """A function that takes a local x to its windows [n, g, c, size …, count …], and the sizes and counts of those."""
    xp, a = call.xp, call.attributes
    sizes, counts = call.tensor(1).shape[3:], call.result.shape[3:]
    order = (0, 1, 2, *range(3 + len(counts), 3 + 2 * len(counts)), *range(3, 3 + len(counts)))

    def of(x: Any) -> Any:
        padded = spread(xp, x, a["pads"], a["spreads"])
        return strided(xp, padded, 3, sizes, a["strides"], a["dilations"]).transpose(order)

    return of, sizes, counts


def conv(call: KernelCall) -> Kernel:
    xp, x, w, result = call.xp, call.tensor(0), call.tensor(1), call.result
    dtype, work = result.dtype.numpy, wide(result.dtype).numpy
    if result.size == 0 or x.size == 0 or w.size == 0:
        return lambda _x, _w: xp.zeros(result.shape, dtype)
    windows, sizes, _ = columns(call)
    examples, groups = x.shape[:2]
    made = w.shape[1]
    step, inner, outer = windows_at_once(call)
    together = outer < MIN_EXAMPLE_WINDOWS and step > 1
    matmul = product(call, min(step, examples) * groups * made * inner * outer, wide(result.dtype))

    def kernel(x: Any, w: Any) -> Any:
        x, w = x.astype(work, copy=False), w.astype(work, copy=False)
        whole, left = windows(x), w.reshape(groups, made, inner)
        out = xp.empty((examples, groups, made, outer), work)
        for start in range(0, examples, step):
            part = whole[start : start + step]
            count = part.shape[0]
            if together:  # one wide product for all examples
                turned = part.transpose((*range(1, 3 + len(sizes)), 0, *range(3 + len(sizes), part.ndim)))
                joined = matmul(left, turned.reshape(groups, inner, count * outer))
                out[start : start + count] = joined.reshape(groups, made, count, outer).transpose(2, 0, 1, 3)
            else:
                matmul(left, part.reshape(count, groups, inner, outer), out=out[start : start + count])
        return out.reshape(result.shape).astype(dtype, copy=False)

    return kernel


def windows(call: KernelCall) -> Kernel:
    xp, a, result = call.xp, call.attributes, call.result
    axes, ndim = a["axes"], call.tensor(0).ndim
    if result.size == 0:
        return lambda _x: xp.zeros(result.shape, result.dtype.numpy)
    order = (*(axis for axis in range(ndim) if axis not in axes), *axes)
    back = [order.index(axis) for axis in range(ndim)]
    back += range(ndim, ndim + len(axes))

    def kernel(x: Any) -> Any:
        turned = x.transpose(order)
        return strided(xp, turned, ndim - len(axes), a["sizes"], a["strides"], a["dilations"]).transpose(back)

    return kernel


def overlap_add(call: KernelCall) -> Kernel:
    xp, a, result = call.xp, call.attributes, call.result
    axes, ndim = a["axes"], result.ndim
    x = call.tensor(0)
    work = wide(result.dtype).numpy
    extents = (conv_extent(size, apart) for size, apart in zip(x.shape[ndim:], a["dilations"], strict=True))
    tiled = all(
        extent == size == stride and x.shape[axis] * stride == result.shape[axis]
        for axis, extent, size, stride in zip(axes, extents, x.shape[ndim:], a["strides"], strict=True)
    )
    places = []
    for at in itertools.product(*map(range, x.shape[ndim:])):
        to: list[slice] = [slice(None)] * ndim
        for axis, offset, stride, dilation in zip(axes, at, a["strides"], a["dilations"], strict=True):
            first = offset * dilation
            to[axis] = slice(first, first + conv_extent(x.shape[axis], stride), stride)
        places.append((tuple(to), (..., *at)))

    def lay(x: Any) -> Any:
        """Windows side by side."""
        out = xp.empty(result.shape, result.dtype.numpy)
        for to, source in places:
            out[to] = x[source]
        return out

    if tiled:
        return lay

    def kernel(x: Any) -> Any:
        out = xp.zeros(result.shape, work)
        for to, source in places:
            out[to] += x[source].astype(work, copy=False)
        return out.astype(result.dtype.numpy, copy=False)

    return kernel


def _along(size: int, window: int, stride: int, dilation: int) -> list[slice]:
    """Along one axis, for each element of a window where those of all windows are."""
    reach = conv_extent(window_count(size, window, stride, dilation), stride)
    return [slice(at * dilation, at * dilation + reach, stride) for at in range(window)]


def _places(call: KernelCall) -> list[list[slice]]:
    """The same for each axis of a pooling."""
    a, x = call.attributes, call.tensor(0).shape
    forms = zip(a["axes"], a["sizes"], a["strides"], a["dilations"], strict=True)
    return [_along(x[axis], *form) for axis, *form in forms]


def _by_examples(call: KernelCall, part: Callable[..., None]) -> Callable[..., None]:
    """`part(*arrays)` of all examples, or of some after the other by the threads of a pool."""
    thread_pool, examples = call.thread_pool, call.tensor(0).shape[0]
    if thread_pool is None or thread_pool.threads == 1 or examples < 2 or call.tensor(0).size < MIN_SHARED_ELEMENTS:
        return part
    if 0 in call.attributes["axes"]:
        return part
    # a piece for each thread, as each call of NumPy takes the interpreter's lock; the caller's is larger, as others have to wake
    pieces = min(thread_pool.threads, examples)
    shares = [0.0, *(piece + CALLER_HEAD_START for piece in range(1, pieces)), pieces]
    bounds = [math.floor(examples * share / pieces) for share in shares]

    def shared(*arrays: Any) -> None:
        turn = itertools.count()  # which is one step of the interpreter: no two threads take the same

        def thread(_: int) -> None:
            while (piece := next(turn)) < pieces:
                part(*[array[bounds[piece] : bounds[piece + 1]] for array in arrays])

        thread_pool.run(thread)

    return shared


def max_pool(call: KernelCall) -> Kernel:
    """The largest along one axis after the other, which is that of the window."""
    xp, result = call.xp, call.result
    places = []
    for axis, along in zip(call.attributes["axes"], _places(call), strict=True):
        lead = (slice(None),) * axis
        places.append([(*lead, each) for each in along])

    def part(x: Any, out: Any) -> None:
        made = x
        for along in places:
            source, made = made, made[along[0]]
            for number, place in enumerate(along[1:]):
                to = out if along is places[-1] else made if number else None
                made = xp.maximum(made, source[place], out=to)
        if made is not out:
            out[...] = made

    compute = _by_examples(call, part)

    work = result.dtype.numpy if xp is np else wide(result.dtype).numpy  # CuPy compares no bfloat16

    def kernel(x: Any) -> Any:
        out = xp.empty(result.shape, work)
        compute(x.astype(work, copy=False), out)
        return out.astype(result.dtype.numpy, copy=False)

    return kernel


def max_pool_grad(call: KernelCall) -> Kernel:
    """What is left of the gradients of windows goes to one element after the other that is the largest; the last takes all."""
    xp, a, dtype = call.xp, call.attributes, call.result.dtype
    work, bits = wide(dtype).numpy, np.dtype(f"i{dtype.numpy.itemsize}")
    if call.tensor(1).size == 0:
        return lambda *_: xp.zeros(call.result.shape, dtype.numpy)
    shape = call.tensor(0).shape
    places = []
    for at in itertools.product(*_places(call)):
        place = [slice(None)] * len(shape)
        for axis, each in zip(a["axes"], at, strict=True):
            place[axis] = each
        places.append(tuple(place))
    forms = list(zip(a["axes"], a["sizes"], a["strides"], a["dilations"], strict=True))
    apart = all(conv_extent(size, dilation) <= stride for _, size, stride, dilation in forms)
    covered = apart and all(size * call.tensor(1).shape[axis] == shape[axis] for axis, size, _, _ in forms)

    sizes = [(axis, size) for axis, size, _, dilation in forms if size > 1 or dilation > 1]
    pairs = covered and len(shape) > 1 and sizes == [(len(shape) - 2, 2), (len(shape) - 1, 2)]
    loops = pool_loops if pairs and xp is np and dtype is float32 else None

    def part(x: Any, largest: Any, given: Any, out: Any) -> None:
        if loops is not None:
            arrays = (x, largest, given.view(bits), out.view(bits))
            loops.gradient(*[np.ascontiguousarray(each).reshape(-1, *each.shape[-2:]) for each in arrays])
            return
        unordered = xp is not np or bool(np.isnan(largest).any())
        left = given.view(bits).copy() if xp is np else given
        if not covered:
            out[...] = 0
        for place in places:
            if place is places[-1]:
                taken = left
            else:
                found = xp.equal(x[place], largest)
                if unordered:
                    found |= xp.isnan(x[place])
                if xp is np:  # a choice by bits takes less time than one by `where`
                    taken = found.astype(bits)
                    np.multiply(left, taken, taken)
                    np.subtract(left, taken, left)
                else:
                    taken, left = xp.where(found, left, 0), xp.where(found, 0, left)
            taken = taken.view(dtype.numpy) if xp is np else taken
            if apart:
                out[place] = taken
            else:
                out[place] += taken.astype(work, copy=False)

    compute = _by_examples(call, part)
    held = dtype.numpy if xp is np else work

    def kernel(*operands: Any) -> Any:
        out = xp.empty(shape, held if apart else work)
        compute(*[each.astype(held, copy=False) for each in operands], out)
        return out.astype(dtype.numpy, copy=False)

    return kernel
