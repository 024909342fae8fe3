"""Kernels of attention that hold a strip of its matrix of weights at a time, never the matrix.

`softmax(q kᵀ + mask) v` has a matrix of queries by keys in its middle, and nobody wants that matrix. Here it is made for some
queries at a time, with all their keys, used and forgotten (Rabe and Staats, 2021, arXiv:2112.05682; a strip has whole
rows, so it needs no running maximum as blocks of keys do in Dao et al., 2022, arXiv:2205.14135). The gradient makes the
strips again instead of reading them. So memory grows with the number of keys, not with its square.

Strips follow from global shapes alone, and each piece of the stack is added up by one thread in the order of queries, so bits
depend neither on time nor on how many threads there are. Half precision is added up in float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from gt.ir.dtypes import HALF_DTYPES
from gt.worker.base.kernel_call import Kernel, KernelCall
from gt.worker.device.cublas import CUDA_TYPES, Gemm

from .cuda.attention_rows import AttentionRows
from .elementwise import wide
from .matmul import on_tensor_cores

STRIP_BYTES: Final = 1 << 20
"""Bytes of a strip on a CPU: it stays in a core's caches."""
DEVICE_STRIP_BYTES: Final = 16 << 20
"""Bytes of a strip on a GPU: it stays in the cache between its kernels, which are few and large even so."""
MIN_CAUSAL_STRIPS: Final = 4
"""Strips of a causal matrix, at least: the keys after the last query of a strip are left out."""

Where = tuple[Any, ...]
"""An index into the stack: numbers, and a range at most."""


class AttentionStrip(NamedTuple):
    """A strip of queries: which of those held here, the number of the first among all, and how many keys they look at."""

    rows: slice
    first: int
    keys: int


class AttentionStrips:
    """Cuts one call into pieces of the stack, and those into strips."""

    def __init__(self, call: KernelCall) -> None:
        q, v = call.tensor(0), call.tensor(2)
        self.call, self.xp = call, call.xp
        self.causal = call.attributes["causal"]
        self.stack = q.shape[:-2]
        self.keys = v.shape[-2]
        self.queries, self.start, self.stop = call.span(0, q.ndim - 2)
        self.work = wide(q.dtype).numpy
        self.half = q.dtype.numpy if q.dtype in HALF_DTYPES and on_tensor_cores(self.xp, q.dtype) else None
        cores = self.half is not None or (call.tf32 and on_tensor_cores(self.xp, wide(q.dtype)))
        dtype = wide(q.dtype) if self.half is None else q.dtype
        self.matmul = self.xp.matmul
        if cores or (call.direct is not None and dtype in CUDA_TYPES):
            self.matmul = Gemm(self.xp, dtype, call.direct, exact=not cores, summed=True)
        self.kernels = AttentionRows(self.xp, self.work, np.dtype(self.half or self.work))
        self.scale = self.work.itemsize * self.keys
        self.room = STRIP_BYTES if self.xp is np else DEVICE_STRIP_BYTES

    def __iter__(self) -> Iterator[Where]:
        """Pieces of the stack, each as much of it as has room beside each other."""
        nbytes, depth = self.queries * self.scale, len(self.stack)
        while depth and nbytes * self.stack[depth - 1] <= self.room:
            depth -= 1
            nbytes *= self.stack[depth]
        if not depth:
            yield ()
            return
        many, size = max(1, self.room // nbytes), self.stack[depth - 1]
        for outer in np.ndindex(*self.stack[: depth - 1]):
            for first in range(0, size, many):
                yield (*outer, slice(first, min(size, first + many)))

    def strips(self) -> Iterator[AttentionStrip]:
        """Of the queries, at the same places of the whole on any worker."""
        step = max(1, min(self.room // self.scale, -(-self.queries // (MIN_CAUSAL_STRIPS if self.causal else 1))))
        for first in range(self.start - self.start % step, self.stop, step):
            a, b = max(first, self.start), min(first + step, self.stop)
            keys = min(self.keys, first + step) if self.causal else self.keys
            yield AttentionStrip(slice(a - self.start, b - self.start), a, keys)

    def product(self, letters: str, a: Any, b: Any) -> Any:
        """In the dtype of sums. `letters` are those of its rows, of what is contracted and of its columns, as in the table of
        ops. A GPU takes half precision as it is: its products are added up in float32 by themselves."""
        if self.half is None:
            return self.matmul(a, b)
        return self.matmul(*(x.astype(self.half, copy=False) for x in (a, b)))

    def weights(self, q: Any, k: Any, mask: Any, strip: AttentionStrip) -> tuple[Any, Any]:
        """Of queries (…, rows, e) and the keys (…, keys, e) that they look at: e^(scores − largest), in the dtype of sums or as
        products take it, and its sums by row."""
        xp = self.xp
        out = self.product("les", q, k.swapaxes(-1, -2))
        if mask is not None and mask.dtype.kind == "b":
            xp.copyto(out, -math.inf, where=~mask)
        elif mask is not None:
            out += mask
        if self.kernels:
            return self.kernels.weights(out, strip.first, causal=self.causal, masked=mask is not None)
        if self.causal and strip.first + 1 < strip.keys:
            after = xp.arange(strip.first + 1, strip.keys) > xp.arange(strip.first, strip.first + q.shape[-2])[:, None]
            xp.copyto(out[..., strip.first + 1 :], -math.inf, where=after)
        largest = out.max(-1, keepdims=True)
        if mask is not None:  # which may leave a query nothing
            largest = xp.where(largest == -math.inf, 0, largest)
        out -= largest
        xp.exp(out, out)
        total = out.sum(-1, keepdims=True)
        return out, total if mask is None else xp.where(total == 0, 1, total)

    def slopes(self, weights: Any, slope: Any, total: Any) -> Any:
        """The gradient of the scores, from that of the weights over their sums, which is written to."""
        if self.kernels:
            return self.kernels.slopes(weights, slope, total)
        # CuPy makes products of an einsum, of one row each
        dots = np.einsum("...ls,...ls->...l", weights, slope) if self.xp is np else (weights * slope).sum(-1)
        slope -= dots[..., None] / total
        slope *= weights
        return slope

    def masked(self, mask: Any, where: Where, strip: AttentionStrip) -> Any:
        """The part of a mask that is for these queries and keys; dimensions of one element are for all."""
        if mask is None:
            return None
        index = (*where, *[slice(None)] * (len(self.stack) - len(where)), strip.rows, slice(0, strip.keys))
        kept = zip(index[len(index) - mask.ndim :], mask.shape, strict=True)
        part = mask[tuple([at if size > 1 else 0 if isinstance(at, int) else slice(None) for at, size in kept])]
        return part if mask.dtype.kind == "b" else part.astype(self.work, copy=False)

    def run(self, jobs: list[Any], work: Any) -> None:
        """`work(job)` for each, by all threads when there are any."""
        thread_pool = self.call.thread_pool
        if thread_pool is None or thread_pool.threads == 1 or len(jobs) == 1:
            for job in jobs:
                work(job)
            return
        turn = itertools.count()  # which is one step of the interpreter: no two threads take the same

        def part(_: int) -> None:
            while (number := next(turn)) < len(jobs):
                work(jobs[number])

        thread_pool.run(part)

    def cast(self, *operands: Any) -> list[Any]:
        """Operands as products take them."""
        return [x.astype(self.half or self.work, copy=False) for x in operands]


def attention(call: KernelCall, cut: Callable[[KernelCall], AttentionStrips] = AttentionStrips) -> Kernel:
    """softmax(q kᵀ + mask) v; a query that may see nothing gets zeros."""
    xp, result, dtype = call.xp, call.result, call.result.dtype.numpy
    strips = cut(call)
    if result.size == 0 or strips.keys == 0:
        return lambda *_: xp.zeros(result.shape, dtype)
    jobs = list(itertools.product(strips, strips.strips()))

    def kernel(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        q, k, v = strips.cast(q, k, v)
        out = xp.empty(result.shape, dtype)

        def work(job: tuple[Where, AttentionStrip]) -> None:
            where, strip = job
            given = strips.masked(mask, where, strip)
            weights, total = strips.weights(q[where][..., strip.rows, :], k[where][..., : strip.keys, :], given, strip)
            mixed = strips.product("lso", weights, v[where][..., : strip.keys, :]) / total
            out[where][..., strip.rows, :] = mixed.astype(dtype, copy=False)

        strips.run(jobs, work)
        return out

    return kernel


def attention_grad(call: KernelCall, cut: Callable[[KernelCall], AttentionStrips] = AttentionStrips) -> Kernel:
    """The gradients of q, k and v, flattened one after the other; of queries that are elsewhere zeros.

    With w = e^(scores), their sums t by row, and h the gradient of the result over t: dv = wᵀ h, and where
    ds = w (h vᵀ − Σ w h vᵀ / t), dq = ds k and dk = dsᵀ q.
    """
    xp, result, dtype = call.xp, call.result, call.result.dtype.numpy
    strips = cut(call)
    if result.size == 0 or strips.keys == 0 or strips.start == strips.stop:
        return lambda *_: xp.zeros(result.shape, dtype)
    (size, keys), out_size = (call.tensor(0).shape[-1], strips.keys), call.tensor(2).shape[-1]
    ends = [0, *itertools.accumulate((strips.queries * size, keys * size, keys * out_size))]
    shapes = ((strips.queries, size), (keys, size), (keys, out_size))
    jobs, rows = list(strips), list(strips.strips())
    everywhere = strips.stop - strips.start == strips.queries
    first = slice(strips.start, strips.stop)

    def kernel(q: Any, k: Any, v: Any, g: Any, mask: Any = None) -> Any:
        q, k, v, g = strips.cast(q, k, v, g)
        out = xp.empty(result.shape, strips.work)
        parts = [
            out[..., a:b].reshape((*strips.stack, *shape))
            for (a, b), shape in zip(itertools.pairwise(ends), shapes, strict=True)
        ]
        dq, dk, dv = parts
        if not everywhere:
            dq[...] = 0
        dq = dq[..., first, :]

        def work(where: Where) -> None:
            queries, key, value, gradient = (x[where] for x in (q, k, v, g))
            dk[where] = dv[where] = 0
            for strip in rows:
                seen = (..., slice(0, strip.keys), slice(None))
                mine, given = queries[..., strip.rows, :], gradient[..., strip.rows, :]
                weights, total = strips.weights(mine, key[seen], strips.masked(mask, where, strip), strip)
                given = given.astype(strips.work, copy=False) / total
                dv[where][seen] += strips.product("slo", weights.swapaxes(-1, -2), given)
                slope = strips.product("los", given, value[seen].swapaxes(-1, -2))
                slope = strips.slopes(weights, slope, total)
                dq[where][..., strip.rows, :] = strips.product("lse", slope, key[seen])
                dk[where][seen] += strips.product("sle", slope.swapaxes(-1, -2), mine)

        strips.run(jobs, work)
        return out.astype(dtype, copy=False)

    return kernel
