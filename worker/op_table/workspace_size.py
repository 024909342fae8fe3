"""Workspace sizes: the memory that kernels use beside their operands and their result, as far as it follows from shapes.

A plan counts it in what it needs (`Program.scratch`), and a step that runs carefully has room made for it
(`worker/memory_limit/low_memory_run.py`). So a GPU that is nearly full makes room beforehand instead of failing an allocation.
The figures are upper bounds of what kernels allocate by the array module, for ops where that is large. Not included: workspaces
whose size only a library knows, and temporaries of small element-wise steps. A kernel that still finds no memory is tried again
with everything else evicted.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import bfloat16
from gt.ir.spec import Spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.kernels import conv_cpu
from gt.worker.kernels import recurrence as recurrent
from gt.worker.kernels.attention import AttentionStrips
from gt.worker.kernels.convolution import padded_shape, windows_at_once
from gt.worker.kernels.elementwise import wide
from gt.worker.kernels.matmul import int8_scratch

INDEX_SIZE: Final = 8
"""Bytes of an index."""


def copy_size(held: Spec, dtype: Any = None) -> int:
    """Bytes of a copy in another dtype: the one to compute in, if none is said; 0 where it is that already."""
    to = wide(held.dtype).numpy if dtype is None else dtype
    return 0 if held.dtype.numpy == to else held.size * to.itemsize


def _strip(call: KernelCall) -> tuple[AttentionStrips, int, int]:
    """The strips of an attention; elements of the largest strip with all pieces that are computed at once, and queries of it."""
    strips = AttentionStrips(call)
    if not strips.keys:
        return strips, 0, 0
    pieces, rows = list(strips), list(strips.strips())
    if not pieces or not rows:
        return strips, 0, 0
    where = pieces[0]
    many = math.prod(strips.stack[len(where) :])
    if where:
        many *= where[-1].stop - where[-1].start
    jobs = len(pieces) * (len(rows) if call.op == "attention" else 1)
    threads = 1 if call.thread_pool is None else min(call.thread_pool.threads, jobs)
    queries = max(strip.rows.stop - strip.rows.start for strip in rows)
    return strips, threads * many * max((s.rows.stop - s.rows.start) * s.keys for s in rows), threads * many * queries


def attention(call: KernelCall) -> int:
    strips, elements, queries = _strip(call)
    tensors = [call.tensor(at) for at in range(3)]
    mask = call.tensor(3) if len(call.operands) > 3 else None
    return _common(strips, elements, tensors, mask) + 3 * queries * tensors[2].shape[-1] * strips.work.itemsize


def attention_grad(call: KernelCall) -> int:
    strips, elements, queries = _strip(call)
    tensors = [call.tensor(at) for at in range(4)]
    mask = call.tensor(4) if len(call.operands) > 4 else None
    size = strips.work.itemsize
    more = elements * size * (1 if strips.xp is np else 2)  # the slope, and on a GPU its product with the weights
    columns = tensors[0].shape[-1] + tensors[2].shape[-1]
    keys = (
        queries // max(1, min(queries, strips.queries)) * strips.keys
    )  # one sum for each piece that is computed at once
    sums = 2 * (queries + max(keys, strips.keys)) * columns * size
    whole = 0 if call.result.dtype.numpy == strips.work else call.result.size * size
    return _common(strips, elements, tensors, mask) + more + sums + whole


def _common(strips: AttentionStrips, elements: int, tensors: list[Spec], mask: Spec | None) -> int:
    """Weights of a strip, what hides some of them, and operands as products take them."""
    size = strips.work.itemsize
    found = elements * size + sum(copy_size(each, np.dtype(strips.half or strips.work)) for each in tensors)
    if strips.half is not None:
        found += elements * np.dtype(strips.half).itemsize
    if strips.causal:
        found += elements
    if mask is not None:
        found += elements * (1 if mask.dtype.kind == "b" or mask.dtype.numpy == strips.work else size)
    return found


def conv(call: KernelCall) -> int:
    x, w, result = call.tensor(0), call.tensor(1), call.result
    if not x.size or not w.size:  # no channels, in a shard of them: zeros
        return 0
    if call.xp is np:
        widened = result.size * wide(result.dtype).numpy.itemsize if wide(result.dtype) is not result.dtype else 0
        return copy_size(x) + copy_size(w) + conv_cpu.scratch(call) + widened
    work = wide(result.dtype).numpy.itemsize
    padded = padded_shape(x.shape, call.attributes["pads"], call.attributes["spreads"])
    step, inner, outer = windows_at_once(call)
    count, groups, made = min(step, x.shape[0]), x.shape[1], w.shape[1]
    found = copy_size(x) + copy_size(w) + count * groups * inner * outer * work + count * groups * made * outer * work
    if padded != x.shape:
        found += math.prod(padded) * work
    return found + (result.size * work if wide(result.dtype) is not result.dtype else 0)


def int8_product(call: KernelCall) -> int:
    return int8_scratch(call)


def _buffered(call: KernelCall) -> int:
    """Elements of the buffers of a NumPy function whose operands have many dimensions."""
    return 3 * np.getbufsize() if call.xp is np else 0


def max_pool(call: KernelCall) -> int:
    """Bytes of the largest along some axes before those along all; CuPy computes half precision in float32."""
    shape, sizes, work = list(call.tensor(0).shape), [0], call.result.dtype.numpy
    for axis in call.attributes["axes"][:-1]:
        shape[axis] = call.result.shape[axis]
        sizes.append(math.prod(shape))
    copies = 0
    if call.xp is not np:
        work, copies = wide(call.result.dtype).numpy, copy_size(call.tensor(0)) + copy_size(call.result)
    return (max(map(sum, itertools.pairwise([*sizes, 0]))) + _buffered(call)) * work.itemsize + copies


def max_pool_grad(call: KernelCall) -> int:
    """Bytes of the gradients that are left, what one element of each window gets of them, and whether it does; sums of half
    precision are in float32, and on a GPU everything."""
    windows, item = call.tensor(1).size, call.result.dtype.numpy.itemsize
    widened = copy_size(call.result)
    copies = widened + (copy_size(call.tensor(1)) if widened else 0)
    if call.xp is not np:
        item = wide(call.result.dtype).numpy.itemsize
        copies = 2 * widened + 2 * copy_size(call.tensor(1)) + windows * item
    return _buffered(call) * item + windows * (2 * item + 1) + copies


def recurrence(call: KernelCall) -> int:
    tensors = [call.tensor(at) for at in range(len(call.operands))]
    if not call.result.size:
        return 0
    widened = call.result.size * wide(call.result.dtype).numpy.itemsize
    whole = widened if wide(call.result.dtype) is not call.result.dtype else 0
    return sum(map(copy_size, tensors)) + recurrent.scratch(call) + whole


def argsort(call: KernelCall) -> int:
    """Bytes of a sort: places of a descending order are turned around. CuPy sorts copies of keys and places, with as much
    beside them."""
    x = call.tensor(0)
    turned = INDEX_SIZE * x.size if call.attributes["descending"] else 0
    widened = copy_size(x) if x.dtype is bfloat16 else 0
    keys = widened or x.nbytes
    return widened + turned + (0 if call.xp is np else 2 * (keys + INDEX_SIZE * x.size))


def cumulate(call: KernelCall) -> int:
    """Bytes of a sum or product from the start: halves are joined in float32; CuPy goes along another axis than the last by
    copies."""
    work = call.result.size * wide(call.result.dtype).numpy.itemsize
    halves = 2 * work if wide(call.result.dtype) is not call.result.dtype else 0
    return halves + (0 if call.xp is np else 2 * work)


def cumulated(call: KernelCall) -> int:
    x = call.tensor(0)
    doubled = 1 if call.xp is np else 3
    return copy_size(x) + doubled * x.size * (wide(x.dtype).numpy.itemsize + INDEX_SIZE) + 2 * x.size


def linalg(call: KernelCall) -> int:
    """Bytes of a factorisation: results by themselves before they are one, and what the library writes to: copies of the
    matrices, vectors by themselves, its workspace (tracemalloc sees these from NumPy 2.5 on). An exponential also has powers
    and sums."""
    x, size = call.tensor(0), _itemsize(call)
    return copy_size(x) + ((10 if call.op == "matrix_exp" else 5) * x.size + 2 * call.result.size) * size


def solve(call: KernelCall) -> int:
    stack = call.result.shape[:-2]
    matrices = [math.prod((*stack, *call.tensor(at).shape[-2:])) for at in range(2)]
    return copy_size(call.tensor(0)) + copy_size(call.tensor(1)) + 3 * sum(matrices) * _itemsize(call)


def _itemsize(call: KernelCall) -> int:
    """The bytes of an element as matrices are computed: NumPy's functions know nothing smaller than float64."""
    size = wide(call.tensor(0).dtype).numpy.itemsize
    return max(size, 16 if call.tensor(0).dtype.kind == "c" else 8) if call.xp is np else size
