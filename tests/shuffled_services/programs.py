"""What simulated clients run: segments on integers, whose sums are exact in any order, under configs that shard them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builders import Lines

from gt.ir.dtypes import float32, int64
from gt.ir.instruction import Segment
from gt.ir.instruction_bytes import pack_segment

DISPATCHER = "dispatcher"
MONITOR = "monitor"
PUBLISHER = "publisher"
"""The dispatcher's other socket, by which groups are told."""
ROWS, COLUMNS = 5, 4
SIGNALS: tuple[tuple[str, ...], ...] = ((), ("net",), ("net", "up"), ("down",), ("rows",))
LIMIT = 1000
"""Only tensors of smaller numbers are computed with, so that sums are exact in any order."""

UP = {"strategy": "tensor_parallel", "dimension": 0, "mesh_axis": "model"}
DOWN = {"strategy": "tensor_parallel", "dimension": 1, "mesh_axis": "model"}
BATCH = {"strategy": "data_parallel", "mesh_axis": "data"}
CONFIGS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"mesh": {"data": 2}, "sharding_config": {"net": BATCH}},
    {"mesh": {"model": 2}, "sharding_config": {"up": UP, "down": DOWN}},
    {"mesh": {"data": 1, "model": 2}, "sharding_config": {"net": BATCH, "up": UP, "down": DOWN}},
    {"sharding_config": {"net": {"strategy": "data_parallel"}}},
    {"mesh": {"data": 3}, "sharding_config": {"net": BATCH, "rows": {"shard": {"axis": 0, "workers": [0, 2]}}}},
    {"mesh": {"data": 2, "model": 2}, "sharding_config": {"net": BATCH, "up": UP, "down": DOWN}},
)
NEEDS = (1, 2, 2, 2, 1, 3, 4)
PIPED = {
    "sharding_config": {
        "net": {"strategy": "pipeline_parallel", "stages": [[0], [1]], "microbatches": 2, "mesh_axis": "pipe"},
    }
}  # fmt: skip


class Fault:
    """What stands for the value of a tensor that must fail with an error of this kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


# the segments that clients run


def segments(signal: tuple[str, ...]) -> list[Segment]:
    """Little programs over matrices, each with its operations in one signal."""

    def program(write: Callable[[Lines, int], tuple[int, ...]]) -> Segment:
        lines = Lines()
        return lines.segment(*write(lines, lines.input(ROWS, COLUMNS)))

    def op(lines: Lines, name: str, *operands: int, **attributes: Any) -> int:
        return lines.op(name, *operands, signal=signal, **attributes)

    def layer(lines: Lines, x: int) -> tuple[int, ...]:
        w = lines.input(COLUMNS, COLUMNS)
        h = op(lines, "matmul", x, op(lines, "permute", w, axes=(1, 0)))
        return (op(lines, "relu", h),)

    def gradient(lines: Lines, x: int) -> tuple[int, ...]:
        w = lines.input(COLUMNS, COLUMNS)
        g = op(lines, "matmul", op(lines, "permute", x, axes=(1, 0)), x)
        return (op(lines, "follow", g, w), op(lines, "sum", g, axes=(0,), keepdims=False))

    def total(lines: Lines, x: int) -> tuple[int, ...]:
        rows = op(lines, "max", x, axes=(0,), keepdims=True)
        return (op(lines, "sub", x, op(lines, "expand", rows, shape=(ROWS, COLUMNS))), op(lines, "add", x, x))

    def picked(lines: Lines, x: int) -> tuple[int, ...]:
        index = lines.input(ROWS, 1, dtype=int64)
        column = op(lines, "gather", x, index, axis=1)
        return (op(lines, "sum", column, axes=(0, 1), keepdims=False), op(lines, "relu", x))

    def scaled(lines: Lines, x: int) -> tuple[int, ...]:
        w = op(lines, "full", lines.scalar("i"), shape=(COLUMNS, COLUMNS), dtype=float32)
        return (op(lines, "mul", x, lines.scalar("f")), op(lines, "tag", w, param=True))

    def turned(lines: Lines, x: int) -> tuple[int, ...]:
        flat = op(lines, "reshape", op(lines, "permute", x, axes=(1, 0)), shape=(ROWS, COLUMNS))
        return (op(lines, "add", flat, x),)

    return [program(write) for write in (layer, gradient, total, picked, scaled, turned)]


LIBRARY = [segment for signal in SIGNALS for segment in segments(signal)]
PACKED = [pack_segment(segment) for segment in LIBRARY]
