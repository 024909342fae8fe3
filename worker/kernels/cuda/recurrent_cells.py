"""Steps of an LSTM and a GRU on a GPU: all that a step computes beside its product, in one launch each way.

The product of a hidden state is (n, gate · h), what inputs bring has any strides, and the rest lies as
`worker/kernels/recurrence.py` keeps it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .source import BLOCK_THREADS, functions, types

SOURCE: Final = r"""
/* One thread has one element of one row. `fed` is what inputs bring, already times the factors of gates, as `recalled` is. Planes
   of what is kept of a step lie `plane` apart, and the same one of the next step `step`. */
__device__ __forceinline__ NUMBER logistic(NUMBER half) { return tanh(half) * (NUMBER)0.5 + (NUMBER)0.5; }

extern "C" __global__ void lstm_step(
    const NUMBER *recalled, const NUMBER *fed, long long fed_gate, long long fed_row, NUMBER *kept, long long plane,
    const NUMBER *cell, NUMBER *new_cell, NUMBER *hidden, long long size, long long count)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    long long row = at / size, column = at % size;
    const NUMBER *own = recalled + row * 4 * size + column, *in = fed + row * fed_row + column;
    NUMBER i = logistic(own[0] + in[0]), f = logistic(own[size] + in[fed_gate]);
    NUMBER g = tanh(own[2 * size] + in[2 * fed_gate]), o = logistic(own[3 * size] + in[3 * fed_gate]);
    NUMBER c = f * cell[at] + i * g;
    if (kept) {
        kept[at] = i;
        kept[plane + at] = f;
        kept[2 * plane + at] = g;
        kept[3 * plane + at] = o;
    }
    new_cell[at] = c;
    hidden[at] = o * tanh(c);
}

extern "C" __global__ void lstm_back(
    const NUMBER *kept, long long plane, long long step, const NUMBER *given, const NUMBER *recalled, NUMBER *cell,
    NUMBER *gates, long long width, long long size, long long count)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    long long row = at / size, column = at % size;
    NUMBER i = kept[at], f = kept[plane + at], g = kept[2 * plane + at], o = kept[3 * plane + at];
    NUMBER before = kept[4 * plane + at], tanh_c = tanh(kept[4 * plane + step + at]), one = 1;
    NUMBER gradient = given[at] + recalled[at];
    NUMBER c = cell[at] + gradient * ((one - tanh_c * tanh_c) * o);
    NUMBER *out = gates + row * width + column;
    out[0] = (one - i) * i * g * c;
    out[size] = (one - f) * f * before * c;
    out[2 * size] = (one - g * g) * i * c;
    out[3 * size] = (one - o) * o * tanh_c * gradient;
    cell[at] = c * f;
}

extern "C" __global__ void gru_step(
    const NUMBER *recalled, const NUMBER *fed, long long fed_gate, long long fed_row, const NUMBER *inner, NUMBER *kept,
    long long plane, const NUMBER *before, NUMBER *hidden, long long size, long long count)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    long long row = at / size, column = at % size;
    const NUMBER *own = recalled + row * 3 * size + column, *in = fed + row * fed_row + column;
    NUMBER r = logistic(own[0] + in[0]), z = logistic(own[size] + in[fed_gate]);
    NUMBER memory = own[2 * size] + (inner ? inner[column] : (NUMBER)0);
    NUMBER n = tanh(r * memory + in[2 * fed_gate]);
    if (kept) {
        kept[at] = r;
        kept[plane + at] = z;
        kept[2 * plane + at] = n;
        kept[3 * plane + at] = memory;
    }
    hidden[at] = n + z * (before[at] - n);
}

extern "C" __global__ void gru_back(
    const NUMBER *kept, long long plane, const NUMBER *given, const NUMBER *recalled, NUMBER *part, NUMBER *gates,
    long long width, long long size, long long count)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    long long row = at / size, column = at % size;
    NUMBER r = kept[at], z = kept[plane + at], n = kept[2 * plane + at], memory = kept[3 * plane + at];
    NUMBER before = kept[4 * plane + at], one = 1;
    NUMBER gradient = given[at] + recalled[at] + part[at];
    NUMBER of_new = (one - n * n) * (one - z);
    NUMBER of_memory = of_new * r, of_reset = (one - r) * of_memory * memory, of_update = (one - z) * z * (before - n);
    NUMBER *out = gates + row * width + column;
    out[0] = out[3 * size] = of_reset * gradient;
    out[size] = out[4 * size] = of_update * gradient;
    out[2 * size] = of_new * gradient;
    out[5 * size] = of_memory * gradient;
    part[at] = gradient * z;
}
"""


def source(number: np.dtype[Any]) -> str:
    """The source of all kernels for a dtype."""
    return f"#define NUMBER {types(number)[0]}\n{SOURCE}"


class RecurrentCells:
    """Launches the kernels, for numbers of one dtype. All arrays of a step are dense (n, h) if nothing else is said."""

    def __init__(self, xp: Any, number: np.dtype[Any]) -> None:
        names = ("lstm_step", "lstm_back", "gru_step", "gru_back")
        self._functions = functions(xp, source(number), *names)

    def __bool__(self) -> bool:
        """Whether they could be compiled."""
        return self._functions is not None

    def _launch(self, which: int, like: Any, *arguments: Any) -> None:
        assert self._functions is not None
        last = (np.int64(like.shape[-1]), np.int64(like.size))
        self._functions[which]((-(-like.size // BLOCK_THREADS),), (BLOCK_THREADS,), (*arguments, *last))

    def lstm_step(self, recalled: Any, fed: Any, kept: Any, cell: Any, new_cell: Any, hidden: Any) -> None:
        """Writes the new cell and hidden state, and the gates to `kept` [gate, n, h] if that is given, from a product (n, 4h) and
        what inputs bring [gate, n, h]."""
        self._launch(0, cell, recalled, fed, *_strides(fed, 2), *_kept(kept), cell, new_cell, hidden)

    def lstm_back(self, kept: Any, given: Any, recalled: Any, cell: Any, gates: Any) -> None:
        """Writes the gradients of the gates (n, 4h), and to `cell` that of the cell before, from what was kept of the step and
        the next one [k, 2, n, h], the gradients of the result and of what was recalled, and that of the cell behind."""
        self._launch(1, cell, kept, *_strides(kept, 2), given, recalled, cell, gates, np.int64(gates.shape[-1]))

    def gru_step(self, recalled: Any, fed: Any, inner: Any, kept: Any, before: Any, hidden: Any) -> None:
        """Writes the new hidden state, and gates and memory to `kept` [4, n, h] if that is given; `inner` (h) is added to what is
        recalled for the new state, if there is any."""
        added = np.uint64(0) if inner is None else inner
        self._launch(2, before, recalled, fed, *_strides(fed, 2), added, *_kept(kept), before, hidden)

    def gru_back(self, kept: Any, given: Any, recalled: Any, part: Any, gates: Any) -> None:
        """Writes the gradients (n, 6h), and to `part` what passes by the product; `part` is what the next step passed."""
        first = _strides(kept, 1)
        self._launch(3, part, kept, *first, given, recalled, part, gates, np.int64(gates.shape[-1]))


def _strides(array: Any, count: int) -> list[Any]:
    """How far apart the first indices of an array are, in elements."""
    return [np.int64(stride // array.itemsize) for stride in array.strides[:count]]


def _kept(kept: Any) -> tuple[Any, Any]:
    """Where gates are kept, and how far apart they are; nowhere if they are not."""
    return (np.uint64(0), np.int64(0)) if kept is None else (kept, *_strides(kept, 1))
