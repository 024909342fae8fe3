"""The samples of every op: sizes are such that cuts are uneven; broadcasting, empty and one-element dimensions all occur."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

import numpy as np

from gt.ir.ops import OPS

from .composite_samples import (
    alongs,
    attentions,
    compressions,
    convs,
    follows,
    int8_products,
    matrices,
    overlaps,
    poolings,
    recurrences,
    row_orders,
    searches,
    sliding,
    solves,
    swaps,
    tags,
    transforms,
    weights,
)
from .elementwise_samples import (
    args,
    binaries,
    bitcasts,
    casts,
    cats,
    creations,
    expands,
    gathers,
    matmuls,
    permutes,
    reductions,
    reshapes,
    segment_sums,
    slices,
    takes,
    unaries,
    wheres,
)
from .sample import OpSample, random

FAMILIES: Final[dict[str, Callable[[str], Iterator[OpSample]]]] = {
    "creation": creations, "random": creations, "unary": unaries, "cast": casts, "bitcast": bitcasts,
    "binary": binaries, "where": wheres,
    "reduction": reductions, "arg": args, "reshape": reshapes, "permute": permutes, "expand": expands, "cat": cats,
    "slice": slices, "update_slice": slices, "gather": gathers, "scatter_add": gathers, "take": takes,
    "scatter": gathers, "segment_sum": segment_sums, "matmul": matmuls, "int8_product": int8_products,
    "attention": attentions, "attention_grad": attentions, "recurrence": recurrences, "recurrence_grad": recurrences,
    "solve": solves, "linalg": matrices, "fft": transforms,
    "conv": convs, "windows": sliding, "overlap_add": overlaps,
    "max_pool": poolings, "max_pool_grad": poolings,
    "along": alongs, "search": searches, "compress": compressions, "permutation": swaps,
    "rows": row_orders, "tag": tags, "follow": follows, "weight": weights,
}  # fmt: skip
DRAWS: Final = 6
"""How often the samples of an op are drawn."""


@cache
def drawn(op: str) -> list[tuple[OpSample, ...]]:
    """The samples of an op, each drawn several times: by accident a combination may work for one draw, not for all."""
    random.bit_generator.state = np.random.default_rng(list(op.encode())).bit_generator.state
    family = OPS[op].family
    return list(zip(*(FAMILIES[family](op) for _ in range(DRAWS)), strict=True))
