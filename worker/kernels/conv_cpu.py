"""Convolutions on a CPU: some examples at a time, by as many threads as there are.

There are five ways, of which shapes choose one. *Columns*: windows are copied next to each other ("im2col"), each a column of a
matrix, and the arithmetic is a product (or, where products are small, one for each row of the weight, of windows that nobody
copies). *Rows*: the same turned, each window a row, where windows are longer than there are
many, as in the gradient of a weight: then runs of elements stay together in the copy. *Planes*: the same where the planes of
windows have small products: nobody copies windows, and the products of all channels (the examples of a batch, in such a
gradient) are added. The other two are for an input that is spread apart by zeros, as in a transposed convolution, and multiply no
zeros: each element of the window meets the input as it is. *Taps*: these products are laid where they belong and added, one
element of the window after the other. *Tiles*: where the input is spread far apart, as many elements of the window as lie between
two of the input's are laid at once: side by side they fill the result.

How many examples are taken at a time follows from shapes alone, so bits do not depend on who computes them. They are many: a
thread that calls NumPy often takes the interpreter's lock as often, and whoever waits for that sleeps, and wakes late.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from gt.worker.base.kernel_call import Kernel, KernelCall

from .convolution import columns, padded_shape, strided, windows_at_once
from .convolution import conv as anywhere
from .elementwise import wide
from .matmul import product

CACHED_WINDOW_BYTES: Final = 1 << 20
"""Bytes of windows that are copied at once: what a core's own cache holds."""
SHIFTED_BYTES: Final = 4 << 20
"""Bytes of shifted copies and their products at once, where windows are not copied: more calls would take more time than nearer
caches save."""
FIRST_PART: Final = 9 / 16
"""The part of the examples that the caller takes where two threads suffice: the other one has to wake."""
MIN_PRODUCT_COLUMNS: Final = 512
"""Columns that a product has at least, if there are so many: for fewer, BLAS would arrange the weight more often."""
MIN_PRODUCT_ROWS: Final = 64
"""The same of rows."""
MIN_TURNED_ROWS: Final = 128
"""Rows, at least, for which the weight is copied turned: BLAS takes less time then, and of 100 rows the copy takes as much."""
MAX_SMALL_MULTIPLICATIONS: Final = 1_000_000
"""Multiplications of a small product, at most: with AVX-512 OpenBLAS computes it without rearranging its operands."""
MIN_SMALL_COLUMNS: Final = 64
"""Windows of an example, at least, for which it has a small product of its own."""
MIN_ROW_ELEMENTS: Final = 24
"""Elements of a window's row in all channels, at least, for which a product is made of each row of windows where it lies."""
MIN_PLANE_ROWS: Final = 24
"""Windows that lie in one row in all examples, at least, for which planes are multiplied where they lie."""
MIN_PLANE_COLUMNS: Final = 8
"""Rows of the weight for that."""
MAX_SMALL_ELEMENTS: Final = 1024
"""Elements of a result, at most, for which a long product is cut into small ones that are added up."""
MAX_TAPS: Final = 64
"""Elements of a window, at most, that are taken one by one."""
MIN_TILE_WIDTH: Final = 4
"""How far apart elements of the last dimension lie at least where tiles are laid: these are copied in runs as long."""
MIN_SHARED_ELEMENTS: Final = 256 << 10
"""Windows' elements from which threads share a convolution: it takes tens of microseconds to wake them."""


class ConvForm(NamedTuple):
    """How a convolution is computed: in which way, of how many examples at a time (of planes: channels), and how large the matrix
    of one is."""

    way: str
    step: int
    inner: int
    outer: int
    """Of columns and rows: the elements of a window, and the windows of an example; of planes the elements of one, and all
    windows; of taps and tiles the products, and the positions."""


def form_of(call: KernelCall) -> ConvForm:
    """The form of a convolution that is not empty."""
    x, w = call.tensor(0), call.tensor(1)
    sizes, counts, space = w.shape[3:], call.result.shape[3:], x.shape[3:]
    groups, itemsize = x.shape[1], wide(call.result.dtype).numpy.itemsize
    most, inner, outer = windows_at_once(call)
    way = _spread_way(call)
    if way is not None:
        inner, outer = math.prod(sizes) * w.shape[1], math.prod(space)
        near = CACHED_WINDOW_BYTES // (groups * inner * outer * itemsize)
        near = max(near, -(-MIN_PRODUCT_ROWS // outer)) if way == "tiles" else near
        return ConvForm(way, max(1, min(x.shape[0], near)), inner, outer)
    if _has_planes(call):
        inner, outer = math.prod(sizes), x.shape[0] * outer
        shifted = math.prod(_shifted_shape(call, "rows")) // x.shape[2] * x.shape[0]
        near = SHIFTED_BYTES // ((shifted + groups * w.shape[1] * inner) * itemsize)
        return ConvForm("planes", _in_two(x.shape[2], near, groups * inner * outer), inner, outer)
    rows = sizes[-1] > counts[-1]
    form = ConvForm("rows" if rows else "columns", 1, inner, outer)
    if rows:
        near = max(CACHED_WINDOW_BYTES // (groups * inner * outer * itemsize), -(-MIN_PRODUCT_ROWS // outer))
        return form._replace(step=max(1, min(x.shape[0], most, near)))
    near = max(CACHED_WINDOW_BYTES // (groups * inner * outer * itemsize), -(-MIN_PRODUCT_COLUMNS // outer))
    if _has_products_of_rows(call, form):
        held = math.prod(_shifted_shape(call, "columns")) + groups * w.shape[3] * w.shape[1] * outer
        near = max(near, SHIFTED_BYTES // (held * itemsize))
    return form._replace(step=_in_two(x.shape[0], min(most, near), groups * inner * outer))


def _in_two(count: int, near: int, elements: int) -> int:
    """How many examples, each of so many elements, are taken at a time where about `near` would be: if two parts suffice and
    threads share them, so many that there are two."""
    first = min(math.ceil(count * FIRST_PART), count - 1)
    if first and near >= first and count * elements >= MIN_SHARED_ELEMENTS:
        return first
    return max(1, min(count, near))


def _spread_way(call: KernelCall) -> str | None:
    """The way of an input that is spread apart, if it is and meeting each element of the window takes less than windows do."""
    x, w, a = call.tensor(0), call.tensor(1), call.attributes
    sizes, space = w.shape[3:], x.shape[3:]
    apart = a["spreads"]
    if max(apart) == 1 or max(a["strides"]) > 1 or math.prod(space) > math.prod(call.result.shape[3:]):
        return None
    if max(a["dilations"]) == 1 and apart[-1] >= MIN_TILE_WIDTH:
        return "tiles"
    return "taps" if math.prod(sizes) <= MAX_TAPS else None


def _count(call: KernelCall, form: ConvForm) -> int:
    """Of how many examples, or channels, some are taken at a time."""
    return call.tensor(0).shape[2 if form.way == "planes" else 0]


def _shared(call: KernelCall, form: ConvForm) -> bool:
    """Whether several threads share a convolution."""
    count, groups = _count(call, form), call.tensor(0).shape[1]
    large = count * groups * form.inner * form.outer >= MIN_SHARED_ELEMENTS
    return call.thread_pool is not None and call.thread_pool.threads > 1 and form.step < count and large


def scratch(call: KernelCall) -> int:
    """Bytes that the kernel of a convolution that is not empty uses beside casts of its operands and result, at most."""
    form, x, w, a = form_of(call), call.tensor(0), call.tensor(1), call.attributes
    groups = x.shape[1]
    elements = groups * form.step * form.inner * form.outer
    if form.way == "taps":
        beside = w.size
    elif form.way == "tiles":
        whole = [(n + (k - 1) // s) * s for n, k, s in zip(x.shape[3:], w.shape[3:], a["spreads"], strict=True)]
        elements += form.step * groups * (x.shape[2] * form.outer + w.shape[1] * math.prod(whole))
        elements += 3 * np.getbufsize()  # of a ufunc, whose operands have many dimensions
        beside = w.size
    elif form.way == "planes":
        made = math.prod(call.result.shape)
        elements = form.step * (math.prod(_shifted_shape(call, "rows")) // x.shape[2] * x.shape[0] + made)
        elements += form.step * w.size // x.shape[2]
        beside = (-(-x.shape[2] // form.step) + 1) * made
    else:
        elements += (
            form.step * math.prod(call.result.shape[1:]) * (1 + (_stretches(call, form) if form.way == "rows" else 0))
        )
        shape = padded_shape(x.shape, a["pads"], a["spreads"])
        beside = w.size if form.way == "rows" and not _has_dots(call) and _is_turned(call, form) else 0
        if form.way == "columns" and _has_products_of_rows(call, form):
            elements += groups * form.step * form.outer * (w.shape[3] * w.shape[1] - form.inner)
        if _has_long_runs(call, form.way):
            elements += form.step * math.prod(_shifted_shape(call, form.way))
            beside = w.size if form.way == "columns" else beside
        elif shape != x.shape:
            elements += form.step * math.prod(shape[1:])
    thread_pool = call.thread_pool
    times = (
        min(thread_pool.threads, -(-_count(call, form) // form.step))
        if thread_pool is not None and _shared(call, form)
        else 1
    )
    return (times * elements + beside) * wide(call.result.dtype).numpy.itemsize


def conv(call: KernelCall) -> Kernel:
    """The kernel of a convolution, on whatever device."""
    x, w, result = call.tensor(0), call.tensor(1), call.result
    if call.xp is not np or result.size == 0 or x.size == 0 or w.size == 0:
        return anywhere(call)
    dtype, work = result.dtype.numpy, wide(result.dtype).numpy
    form = form_of(call)
    examples, groups = x.shape[:2]
    made, counts, count = w.shape[1], result.shape[3:], _count(call, form)
    chunks = [(start, min(start + form.step, count)) for start in range(0, count, form.step)]
    thread_pool = call.thread_pool if _shared(call, form) else None
    times = form.step * groups * form.inner * form.outer * (x.shape[2] if form.way in ("taps", "tiles") else made)
    matmul = product(call, times, wide(result.dtype)) if len(chunks) == 1 else np.matmul
    compute = {"columns": _columns, "rows": _rows, "planes": _planes, "taps": _taps, "tiles": _tiles}[form.way](
        call, form, matmul
    )

    def kernel(x: Any, w: Any) -> Any:
        x, w = x.astype(work, copy=False), w.astype(work, copy=False)
        out = np.empty((examples, groups, made, *counts), work)
        part = compute(x, w, out)
        if thread_pool is None:
            for chunk in chunks:
                part(*chunk)
        else:
            turn: Iterator[int] = (
                itertools.count()
            )  # which is one step of the interpreter: no two threads take the same

            def thread(_: int) -> None:
                while (number := next(turn)) < len(chunks):
                    part(*chunks[number])

            thread_pool.run(thread)
        if isinstance(part, _PlaneProducts):
            part.add_up(out)
        return out.astype(dtype, copy=False)

    return kernel


Part = Callable[[int, int], None]
"""Computes the examples from one to another."""
Way = Callable[[Any, Any, Any], Part]
"""From operands and the memory of the result."""


def _has_long_runs(call: KernelCall, way: str) -> bool:
    """Whether windows are copied by whole planes, once the input has been shifted: windows several elements wide, or several of
    them side by side."""
    a, ends = call.attributes, (call.tensor(1).shape[-1], call.result.shape[-1])
    if len(a["strides"]) < 2 or max(a["strides"]) > 1 or max(a["spreads"]) > 1:
        return False
    return ends[0] > 1 if way == "columns" else ends[1] > 1 and a["dilations"][-1] == 1


def _shifted_shape(call: KernelCall, way: str) -> tuple[int, ...]:
    """One example, of columns once for each element of a window's last dimension: [g, c, size, padded …, count]; of rows once for
    each window side by side: [g, c, count, padded …, size]."""
    x, a = call.tensor(0), call.attributes
    whole = padded_shape(x.shape, a["pads"], a["spreads"])
    size, count = call.tensor(1).shape[-1], call.result.shape[-1]
    times, length = (size, count) if way == "columns" else (count, size)
    return (*x.shape[1:3], times, *whole[3:-1], length)


Places = list[tuple[tuple[Any, ...], tuple[Any, ...]]]
"""Where each copy lies in memory of a shifted shape, and what of an input it is."""


def _shifts(call: KernelCall, way: str) -> Places:
    """The copies along the last dimension that `_shifted_shape` is of. What they do not reach is zero."""
    x, a = call.tensor(0), call.attributes
    shape, width = _shifted_shape(call, way), x.shape[-1]
    times, length = shape[2], shape[-1]
    apart = a["dilations"][-1] if way == "columns" else 1
    to: list[slice] = []
    source: list[slice] = []
    for size, before, whole in zip(x.shape[3:-1], a["pads"][:-2:2], shape[3:-1], strict=True):
        low, high = max(0, -before), max(0, -before, min(size, whole - before))
        source.append(slice(low, high))
        to.append(slice(low + before, high + before))
    places: Places = []
    for number in range(times):
        first = number * apart - a["pads"][-2]  # the element that meets the first place
        low, high = max(0, -first), min(length, width - first)
        if low < high:
            place = (..., number, *to, slice(low, high))
            places.append((place, (..., *source, slice(low + first, high + first))))
    return places


Windows = Callable[[Any, list[Any]], tuple[Any, Any]]
"""A function that takes some examples to their windows, and to the memory that these are in, if it may come again: as long as
somebody needs the windows it is not in the list, from which it is taken."""


def _anew(windows: Callable[[Any], Any]) -> Windows:
    """Windows in memory that does not come again."""
    return lambda x, _: (windows(x), None)


def _shifted(call: KernelCall, way: str, step: int) -> Windows:
    """At most `step` examples of a local x to their windows: columns [n, g, c, last size, other sizes …, count …], or rows [n, g,
    c, size …, count …].

    Along the last dimension x is copied once for each shift; windows along the others are another look at that, in which a whole
    plane (of the result, or of a window) lies in one stretch. Zeros around the copies are written once for memory.
    """
    a, sizes = call.attributes, call.tensor(1).shape[3:]
    shape, places = _shifted_shape(call, way), _shifts(call, way)
    ndim = len(sizes)
    others = range(4 + ndim, 3 + 2 * ndim)
    order = (0, 1, 2, 3, *others, *range(4, 4 + ndim))
    if way == "rows":
        order = (0, 1, 2, *others, 3 + ndim, *range(4, 3 + ndim), 3)

    def of(x: Any, spare: list[Any]) -> tuple[Any, Any]:
        try:
            memory = spare.pop()
        except IndexError:  # no thread has left any
            memory = np.zeros((step, *shape), x.dtype)
        copies = memory[: x.shape[0]]
        for place, taken in places:
            copies[place] = x[taken]
        windows = strided(np, copies, 4, sizes[:-1], a["strides"][:-1], a["dilations"][:-1])
        return windows.transpose(order), memory

    return of


def _has_own_product(made: int, form: ConvForm) -> bool:
    """Whether each example has a product of columns of its own: one of many columns, or a small one."""
    small = form.outer >= MIN_SMALL_COLUMNS and made * form.inner * form.outer <= MAX_SMALL_MULTIPLICATIONS
    return small or form.outer >= MIN_PRODUCT_COLUMNS


def _has_products_of_rows(call: KernelCall, form: ConvForm) -> bool:
    """Whether what is copied once for each shift is multiplied where it lies: by each row of the weight, a small product."""
    w = call.tensor(1).shape
    row = w[2] * w[-1]
    small = row >= MIN_ROW_ELEMENTS and row * w[1] * form.outer <= MAX_SMALL_MULTIPLICATIONS
    return small and len(w) == 5 and w[3] > 1 and form.outer >= MIN_SMALL_COLUMNS and _has_long_runs(call, "columns")


def _products_of_rows(call: KernelCall, form: ConvForm, matmul: Kernel) -> Way:
    """Columns of which none is copied: the windows of a plane that begin with the same row lie in one stretch of it."""
    shifted = _shifted(call, "columns", form.step)
    groups, made, channels, height, width = call.tensor(1).shape

    def way(x: Any, w: Any, out: Any) -> Part:
        left = w.transpose(0, 3, 1, 2, 4).reshape(groups, height, made, channels * width)
        flat = out.reshape(*out.shape[:3], form.outer)
        spare: list[Any] = []

        def part(first: int, last: int) -> None:
            windows, memory = shifted(x[first:last], spare)  # [n, g, c, width, height, count …]
            example, group, _, shift, row, _, one = windows.strides
            shape = (last - first, groups, height, channels * width, form.outer)
            right = np.lib.stride_tricks.as_strided(windows, shape, (example, group, row, shift, one))
            products, total = matmul(left, right), flat[first:last]
            np.add(products[:, :, 0], products[:, :, 1], total)
            for number in range(2, height):
                np.add(total, products[:, :, number], total)
            spare.append(memory)

        return part

    return way


def _columns(call: KernelCall, form: ConvForm, matmul: Kernel) -> Way:
    if _has_products_of_rows(call, form):
        return _products_of_rows(call, form, matmul)
    plain, sizes, _ = columns(call)
    windows = _anew(plain)
    groups, made = call.tensor(0).shape[1], call.tensor(1).shape[1]
    ndim = 3 + 2 * len(sizes)
    turned = (0, 1, 2, *range(3, 3 + len(sizes)))
    if _has_long_runs(call, "columns"):
        windows = _shifted(call, "columns", form.step)
        turned = (0, 1, 2, 2 + len(sizes), *range(3, 2 + len(sizes)))
    order = (*range(1, 3 + len(sizes)), 0, *range(3 + len(sizes), ndim))
    together = form.step > 1 and not _has_own_product(made, form)

    def way(x: Any, w: Any, out: Any) -> Part:
        left = w.transpose(turned).reshape(groups, made, form.inner)
        flat = out.reshape(*out.shape[:3], form.outer)
        spare: list[Any] = []

        def part(first: int, last: int) -> None:
            count = last - first
            whole, memory = windows(x[first:last], spare)
            if together:  # one wide product for all examples
                right = whole.transpose(order).reshape(groups, form.inner, count * form.outer)
                joined = matmul(left, right)
                flat[first:last] = joined.reshape(groups, made, count, form.outer).transpose(2, 0, 1, 3)
            else:
                matmul(left, whole.reshape(count, groups, form.inner, form.outer), out=flat[first:last])
            if memory is not None:
                spare.append(memory)

        return part

    return way


def _has_dots(call: KernelCall) -> bool:
    """Whether each window meets one weight alone, in planes of one stretch each: in the gradient of a depthwise weight."""
    return call.tensor(1).shape[1] == 1 and len(call.attributes["strides"]) == 2 and _has_long_runs(call, "rows")


def _dots(call: KernelCall, step: int) -> Way:
    """Rows that are read where they lie: a dot product for each plane of a window, added up over channels."""
    planes = _shifted(call, "rows", step)
    groups, channels, height, width = (call.tensor(1).shape[at] for at in (0, 2, 3, 4))

    def way(x: Any, w: Any, out: Any) -> Part:
        right = w.reshape(1, groups, channels, 1, 1, height * width)
        spare: list[Any] = []

        def part(first: int, last: int) -> None:
            windows, memory = planes(x[first:last], spare)  # [n, g, c, size …, count …]
            *lead, _, one, down, across = windows.strides
            shape = (*windows.shape[:3], *windows.shape[5:], height * width)
            left = np.lib.stride_tricks.as_strided(windows, shape, (*lead, down, across, one))
            np.sum(np.vecdot(left, right), 2, out=out[first:last, :, 0])
            spare.append(memory)

        return part

    return way


def _is_turned(call: KernelCall, form: ConvForm) -> bool:
    """Whether the weight is copied turned for a product of rows that is not cut into small ones."""
    return call.tensor(0).shape[0] * form.outer >= MIN_TURNED_ROWS and _stretches(call, form) == 1


def _stretches(call: KernelCall, form: ConvForm) -> int:
    """Into how many equal stretches windows as long as in the gradient of a weight are cut, whose products are added up."""
    elements = form.step * form.outer * call.tensor(1).shape[1]
    least = -(-elements * form.inner // MAX_SMALL_MULTIPLICATIONS)
    if elements > MAX_SMALL_ELEMENTS or least == 1:
        return 1
    return next((count for count in range(least, 4 * least) if form.inner % count == 0), 1)


def _rows(call: KernelCall, form: ConvForm, matmul: Kernel) -> Way:
    if _has_dots(call):
        return _dots(call, form.step)
    plain, sizes, _ = columns(call)
    windows = _shifted(call, "rows", form.step) if _has_long_runs(call, "rows") else _anew(plain)
    groups, made = call.tensor(0).shape[1], call.tensor(1).shape[1]
    ndim = 3 + 2 * len(sizes)
    order = (1, 0, *range(3 + len(sizes), ndim), *range(2, 3 + len(sizes)))  # [g, n, count …, c, size …]
    stretches = _stretches(call, form)
    length, turned = form.inner // stretches, _is_turned(call, form)

    def way(x: Any, w: Any, out: Any) -> Part:
        if turned:
            right = np.ascontiguousarray(np.moveaxis(w, 1, -1)).reshape(groups, 1, form.inner, made)
        else:
            right = w.reshape(groups, made, stretches, length).transpose(0, 2, 3, 1)
        flat = out.reshape(*out.shape[:3], form.outer)
        spare: list[Any] = []

        def part(first: int, last: int) -> None:
            count = last - first
            whole, memory = windows(x[first:last], spare)
            left = whole.transpose(order).reshape(groups, count * form.outer, stretches, length).swapaxes(1, 2)
            joined = matmul(left, right)
            joined = joined[:, 0] if stretches == 1 else joined.sum(1)
            flat[first:last] = joined.reshape(groups, count, form.outer, made).transpose(1, 0, 3, 2)
            if memory is not None:
                spare.append(memory)

        return part

    return way


def _has_planes(call: KernelCall) -> bool:
    """Whether windows longer than there are many are planes of channels that have small products, each of windows that begin in
    the same row: as in the gradient of a weight of many inputs and outputs."""
    x, w, a = call.tensor(0).shape, call.tensor(1).shape, call.attributes
    if len(w) != 5 or max(*a["strides"], *a["spreads"], *a["dilations"]) > 1 or w[-1] <= call.result.shape[-1]:
        return False
    rows, plane = x[0] * call.result.shape[-1], math.prod(w[3:])
    small = rows * plane * w[1] <= MAX_SMALL_MULTIPLICATIONS
    return small and rows >= MIN_PLANE_ROWS and w[1] >= MIN_PLANE_COLUMNS and plane >= MIN_SMALL_COLUMNS and x[2] > 1


class _PlaneProducts:
    """Products of planes that are read where they lie, as `_products_of_rows` reads them, channel by channel."""

    def __init__(self, call: KernelCall, form: ConvForm, matmul: Kernel, x: Any, w: Any) -> None:
        self.x, self.w = x.transpose(2, 1, 0, 3, 4), w.transpose(2, 0, 3, 4, 1)  # [c, g, n, …], [c, g, size …, o]
        self.places, self.matmul, self.plane = _shifts(call, "rows"), matmul, form.inner
        shape = _shifted_shape(call, "rows")
        self.shape = (shape[0], x.shape[0], *shape[2:])
        self.counts = call.result.shape[3:]
        self.sums: dict[int, Any] = {}

    def __call__(self, first: int, last: int) -> None:
        channels, (groups, examples, across, *_) = last - first, self.shape
        copies = np.zeros((channels, *self.shape), self.x.dtype)
        for place, taken in self.places:
            copies[place] = self.x[first:last][taken]
        channel, group, _, shift, row, one = copies.strides
        shape = (self.counts[0], channels, groups, examples * across, self.plane)
        left = np.lib.stride_tricks.as_strided(copies, shape, (row, channel, group, shift, one))
        right = np.ascontiguousarray(self.w[first:last]).reshape(channels, groups, self.plane, -1)
        self.sums[first] = self.matmul(left, right).sum(1)

    def add_up(self, out: Any) -> None:
        """Writes the sum over all channels, in their order, whoever computed them."""
        parts = [self.sums[first] for first in sorted(self.sums)]
        total = parts[0]
        for part in parts[1:]:
            np.add(total, part, total)
        examples, groups, made = out.shape[:3]
        out[...] = total.reshape(self.counts[0], groups, examples, self.counts[1], made).transpose(2, 1, 4, 0, 3)


def _planes(call: KernelCall, form: ConvForm, matmul: Kernel) -> Way:
    return lambda x, w, _out: _PlaneProducts(call, form, matmul, x, w)


def _taps(call: KernelCall, form: ConvForm, matmul: Kernel) -> Way:
    x, w, a = call.tensor(0), call.tensor(1), call.attributes
    examples, groups, channels, *space = x.shape
    made, sizes, counts = w.shape[1], w.shape[3:], call.result.shape[3:]
    places: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = []
    for number, at in enumerate(np.ndindex(*sizes)):
        to: list[slice] = []
        source: list[slice] = []
        for tap, apart, spread, before, size, count in zip(
            at, a["dilations"], a["spreads"], a["pads"][::2], space, counts, strict=True
        ):
            start = before - tap * apart  # where the first element would lie
            low = max(0, -(start // spread))
            high = max(low, min(size, (count - 1 - start) // spread + 1))
            source.append(slice(low, high))
            to.append(slice(start + low * spread, start + low * spread + max(0, (high - low - 1) * spread + 1), spread))
        if all(each.start < each.stop for each in source):
            places.append(((..., *to), (slice(None), slice(None), number, slice(None), *source)))
    count = math.prod(sizes)

    def way(x: Any, w: Any, out: Any) -> Part:
        turned = w.reshape(groups, made, channels, count).transpose(0, 3, 1, 2).reshape(groups, count * made, channels)
        flat = x.reshape(examples, groups, channels, form.outer)

        def part(first: int, last: int) -> None:
            here = out[first:last]
            here[...] = 0
            products = matmul(turned, flat[first:last]).reshape(last - first, groups, count, made, *space)
            for to, source in places:
                place = here[to]
                np.add(place, products[source], place)

        return part

    return way


class _Block(NamedTuple):
    """As many elements of the window as lie between two of the input's, along each axis; or what is left of the window."""

    taps: tuple[slice, ...]
    """Those elements, last to first: so they lie in the result."""
    columns: slice
    """Their columns of the products."""
    laid: tuple[slice, ...]
    """Where they lie in the whole: of each axis the tiles, and the places in a tile."""
    shape: tuple[int, ...]


def _blocks(made: int, sizes: tuple[int, ...], space: Sequence[int], spreads: Sequence[int]) -> list[_Block]:
    """The blocks of a window, in its order."""
    counts = [-(-size // apart) for size, apart in zip(sizes, spreads, strict=True)]
    found: list[_Block] = []
    column = 0
    for at in np.ndindex(*counts):
        taps: list[slice] = []
        laid: list[slice] = []
        for number, count, size, apart, length in zip(at, counts, sizes, spreads, space, strict=True):
            first, last = number * apart, min(size, (number + 1) * apart)
            taps.append(slice(last - 1, first - 1 if first else None, -1))
            start = count - 1 - number
            laid += [slice(start, start + length), slice(apart - (last - first), apart)]
        shape = tuple([len(range(*each.indices(size))) for each, size in zip(taps, sizes, strict=True)])
        width = made * math.prod(shape)
        found.append(_Block(tuple(taps), slice(column, column + width), tuple(laid), shape))
        column += width
    return found


def _tiles(call: KernelCall, form: ConvForm, matmul: Kernel) -> Way:
    x, w, a = call.tensor(0), call.tensor(1), call.attributes
    examples, groups, channels, *space = x.shape
    made, sizes, counts, spreads = w.shape[1], w.shape[3:], call.result.shape[3:], a["spreads"]
    blocks, ndim = _blocks(made, sizes, space, spreads), len(sizes)
    tiles = [n + (k - 1) // s for n, k, s in zip(space, sizes, spreads, strict=True)]
    split = [size for pair in zip(tiles, spreads, strict=True) for size in pair]
    width = made * math.prod(sizes)
    to: list[slice] = []
    source: list[slice] = []
    for before, apart, size, count, number in zip(a["pads"][::2], spreads, sizes, counts, tiles, strict=True):
        start = before + 1 - -(-size // apart) * apart  # where the first tile would begin
        low, high = max(0, start), min(count, start + number * apart)
        to.append(slice(low, max(low, high)))
        source.append(slice(low - start, max(low, high) - start))
    lengths = tuple([number * apart for number, apart in zip(tiles, spreads, strict=True)])
    in_place = source == [slice(0, length) for length in lengths] and lengths == counts
    reached = all(each == slice(0, count) for each, count in zip(to, counts, strict=True))
    covered = len(blocks) == 1 and blocks[0].shape == tuple(spreads)
    # products [g, n, position …, o, tap …] as they lie in tiles [n, g, o, position, tap, …]
    order = (1, 0, 2 + ndim, *(place for axis in range(ndim) for place in (2 + axis, 3 + ndim + axis)))
    inner = (0, 2, 1, *range(3, 3 + ndim))

    def way(x: Any, w: Any, out: Any) -> Part:
        right = np.empty((groups, channels, width), w.dtype)
        for block in blocks:
            piece = w[(..., *block.taps)].transpose(inner)
            right[..., block.columns] = piece.reshape(groups, channels, -1)
        flat = x.reshape(examples, groups, channels, form.outer)

        def part(first: int, last: int) -> None:
            count, here = last - first, out[first:last]
            left = flat[first:last].transpose(1, 0, 3, 2).reshape(groups, count * form.outer, channels)
            products = matmul(left, right)
            shape = (count, groups, made, *split)
            whole: Any = here.reshape(shape) if in_place else np.empty(shape, here.dtype)
            if not covered:
                whole[...] = 0
            for block in blocks:
                piece = products[..., block.columns].reshape(groups, count, *space, made, *block.shape).transpose(order)
                if covered:
                    whole[...] = piece
                else:
                    place = whole[(..., *block.laid)]
                    np.add(place, piece, place)
            if not in_place:
                if not reached:
                    here[...] = 0
                tiled = whole.reshape(count, groups, made, *lengths)
                here[(..., *to)] = tiled[(..., *source)]

        return part

    return way
