"""Runs one call as workers would: whole, or cut and joined as a sharding option says, with the kernels that workers have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from gt.dispatcher.planner.sharding_rules import AxisSplit, ShardingOption, sharding_options
from gt.ir.spec import Spec, spec
from gt.sharding.placement import Partial, Placement, Shard
from gt.worker.base.backend import Backend
from gt.worker.base.kernel_call import KernelCall, OperandPart
from gt.worker.op_table.package_kernel import kernel_factory

from .cases import Array, Case

WEIGHTS: Final = ((1, 1), (2, 1, 1), (1, 0, 3))
"""How an axis is cut: evenly, unevenly, and so that one worker has nothing."""
_JOIN: Final[dict[str, Callable[..., Any]]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def options_of(case: Case, weights: tuple[int, ...]) -> tuple[ShardingOption, ...]:
    """Every sharding option of a call, as the dispatcher has them."""
    return sharding_options(case.op, case.attributes, case.specs, (case.result,), AxisSplit(weights))


def run_whole(case: Case, backend: Backend) -> Array:
    """The result of one worker that has everything."""
    whole = tuple((0, size) for size in case.result.shape)
    return _run(case, backend, case.operands, case.result, whole, ())


def run_option(case: Case, backend: Backend, option: ShardingOption, weights: tuple[int, ...]) -> Iterator[Array]:
    """The results of all workers along an axis, each from its part of the operands."""
    split = AxisSplit(weights)
    parts = [
        _parts(operand, placement, split) if isinstance(operand, np.ndarray) else [(operand, None)] * len(weights)
        for operand, placement in zip(case.operands, option.inputs, strict=True)
    ]
    (placement,) = option.outputs
    for rank in range(len(weights)):
        box = _box(case.result.shape, placement, split, rank)
        result = spec(case.result.dtype, tuple(stop - start for start, stop in box))
        held = [of[rank] for of in parts]
        yield _run(case, backend, tuple(x for x, _ in held), result, box, tuple(part for _, part in held))


def joined(results: list[Array], option: ShardingOption) -> list[Array]:
    """The whole from what workers have; of a replicated result what each has."""
    (placement,) = option.outputs
    if isinstance(placement, Shard):
        return [np.concatenate(results, axis=placement.dim)]
    if isinstance(placement, Partial):
        total = results[0]
        for each in results[1:]:
            total = _JOIN[placement.op](total, each)
        return [np.asarray(total)]
    return results


def _box(
    shape: tuple[int, ...], placement: Placement | None, split: AxisSplit, rank: int
) -> tuple[tuple[int, int], ...]:
    ranges = [(0, size) for size in shape]
    if isinstance(placement, Shard):
        cuts = split(shape[placement.dim])
        ranges[placement.dim] = cuts[rank], cuts[rank + 1]
    return tuple(ranges)


def _parts(whole: Array, placement: Placement | None, split: AxisSplit) -> list[tuple[Array, OperandPart | None]]:
    """What each worker holds of an operand; of a sum that is to be added up, parts that are unlike each other."""
    count = len(split.weights)
    boxes = [_box(whole.shape, placement, split, rank) for rank in range(count)]
    if isinstance(placement, Partial):
        assert placement.op == "sum", "only sums pass through an op of a package"
        shares = [(whole * (rank + 2)).astype(whole.dtype) for rank in range(count - 1)]
        last = whole.copy()
        for share in shares:
            last -= share
        pieces = [*shares, last]
    else:
        pieces = [whole[tuple(itertools.starmap(slice, box))] for box in boxes]
    return [(piece, OperandPart(whole.shape, box)) for piece, box in zip(pieces, boxes, strict=True)]


def _run(
    case: Case,
    backend: Backend,
    operands: tuple[Any, ...],
    result: Spec,
    box: tuple[tuple[int, int], ...],
    parts: tuple[OperandPart | None, ...],
) -> Array:
    """Call the kernel that a worker would call with these parts."""
    specs = tuple(
        spec(of.dtype, operand.shape) if isinstance(of, Spec) else of
        for of, operand in zip(case.specs, operands, strict=True)
    )
    call = KernelCall(backend.xp, case.op, case.attributes, specs, result, case.result.shape, box, parts)
    kernel = kernel_factory(case.op, 0)(call)
    found = kernel(
        *[
            backend.from_host(np.ascontiguousarray(operand).reshape(operand.shape))
            if isinstance(operand, np.ndarray)
            else operand
            for operand in operands
        ]
    )
    return np.asarray(backend.to_host(found) if hasattr(found, "__array__") or backend.kind != "cpu" else found)
