"""Rows of an attention's strip on a GPU: what is between its products, in one launch each way."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .source import ACROSS_SOURCE, BFLOAT16_SOURCE, BLOCK_THREADS, HALF_SOURCE, functions, types

SOURCE: Final = r"""
/* Weights e^(scores - largest) of a row, and their sum; a row looks at no more keys than `seen` says. `scores` and `weights` may
   be the same memory. */
extern "C" __global__ void attention_weights(
    const NUMBER *scores, STORED *weights, NUMBER *total, long long keys, long long queries, long long first, int causal,
    int masked)
{
    const NUMBER *x = scores + blockIdx.x * keys;
    STORED *w = weights + blockIdx.x * keys;
    long long seen = keys;
    if (causal) {
        long long last = first + blockIdx.x % queries + 1;
        if (last < keys) seen = last;
    }
    NUMBER largest = (NUMBER)-INF, sum = 0;
    for (long long k = threadIdx.x; k < seen; k += blockDim.x) largest = Max()(largest, x[k]);
    largest = across(largest, Max());
    if (masked && largest == (NUMBER)-INF) largest = 0;
    for (long long k = threadIdx.x; k < seen; k += blockDim.x) {
        NUMBER weight = exp(x[k] - largest);
        sum += weight;
        w[k] = STORE(weight);
    }
    for (long long k = seen + threadIdx.x; k < keys; k += blockDim.x) w[k] = STORE((NUMBER)0);
    sum = across(sum, Sum());
    if (threadIdx.x == 0) total[blockIdx.x] = masked && sum == 0 ? (NUMBER)1 : sum;
}

/* The gradient of the scores of a row: w (s - sum of w s over the sum of w). `slopes` and `out` may be the same memory. */
extern "C" __global__ void attention_slopes(
    const STORED *weights, const NUMBER *slopes, STORED *out, const NUMBER *total, long long keys)
{
    const STORED *w = weights + blockIdx.x * keys;
    const NUMBER *s = slopes + blockIdx.x * keys;
    STORED *made = out + blockIdx.x * keys;
    NUMBER sum = 0;
    for (long long k = threadIdx.x; k < keys; k += blockDim.x) sum += LOAD(w[k]) * s[k];
    sum = across(sum, Sum()) / total[blockIdx.x];
    for (long long k = threadIdx.x; k < keys; k += blockDim.x) made[k] = STORE(LOAD(w[k]) * (s[k] - sum));
}
"""


def source(number: np.dtype[Any], stored: np.dtype[Any]) -> str:
    """The source of both kernels for these dtypes."""
    kind, load, store = types(stored)
    words = {"NUMBER": types(number)[0], "STORED": kind, "LOAD": load, "STORE": store}
    defined = "".join(f"#define {name} {text}\n" for name, text in words.items())
    return f"{defined}{HALF_SOURCE}{BFLOAT16_SOURCE}{ACROSS_SOURCE}{SOURCE}"


class AttentionRows:
    """Launches both kernels, for numbers of one dtype, and weights and gradients that are stored in one."""

    def __init__(self, xp: Any, number: np.dtype[Any], stored: np.dtype[Any]) -> None:
        self.xp, self.number, self.stored = xp, number, stored
        self._functions = functions(xp, source(number, stored), "attention_weights", "attention_slopes")

    def __bool__(self) -> bool:
        """Whether they could be compiled."""
        return self._functions is not None

    def _to_store(self, computed: Any) -> Any:
        """Memory for what is stored: that of the numbers, where they have the same dtype."""
        return computed if self.stored == self.number else self.xp.empty(computed.shape, self.stored)

    def weights(self, scores: Any, first: int, *, causal: bool, masked: bool) -> tuple[Any, Any]:
        """Of scores (…, queries, keys), which may be written to: e^(scores − largest of the row), stored; and the sums of rows
        (…, queries, 1). `first` is the number of the first query; a causal one looks at no key behind its own number. `masked`:
        some rows may have −inf alone, and get zeros and a sum of one."""
        assert self._functions is not None
        queries, keys = scores.shape[-2:]
        total = self.xp.empty((*scores.shape[:-1], 1), self.number)
        weights = self._to_store(scores)
        numbers = (np.int64(keys), np.int64(queries), np.int64(first), np.int32(causal), np.int32(masked))
        self._functions[0]((total.size,), (BLOCK_THREADS,), (scores, weights, total, *numbers))
        return weights, total

    def slopes(self, weights: Any, slopes: Any, total: Any) -> Any:
        """The gradient of the scores from that of the weights over their sums, which may be written to; stored."""
        assert self._functions is not None
        made = self._to_store(slopes)
        self._functions[1]((total.size,), (BLOCK_THREADS,), (weights, slopes, made, total, np.int64(slopes.shape[-1])))
        return made
