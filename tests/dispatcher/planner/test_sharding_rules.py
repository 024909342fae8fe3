"""The sharding rows, brute-forced: every combination of placements is split, run part by part, joined and compared.

A row of the table that fails is wrong. A combination that works and is in neither the table nor the list of deliberate
omissions is missing. Nothing here repeats a rule: what is right is found out with the workers' kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from effort import PROVED, cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.planner.reshape_rules import reshape_aligned
from gt.dispatcher.planner.sharding_rules import PASSING, RULES, AxisSplit, ShardingOption, sharding_options
from gt.ir.dtypes import scalar_kind
from gt.ir.ops import OPS
from gt.ir.spec import Spec, spec
from gt.op_samples.op_samples import FAMILIES, drawn
from gt.op_samples.sample import Array, OpSample, floats, spec_of
from gt.sharding.partition import box
from gt.sharding.placement import PARTIAL_OPS, REPLICATE, Mesh, Partial, Placement, Replicate, Shard
from gt.worker.base.kernel_call import KernelCall, OperandPart
from gt.worker.op_table.op_table import KERNELS

CUTS = (AxisSplit((1, 1)), AxisSplit((2, 1, 0)), AxisSplit((1, 2, 2)))
REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
MOST_COMBINATIONS = cases(150_000)
"""The most combinations of placements of one sample that are tried; with `make prove` all of any op but the recurrent ones."""
SUM, MAX, MIN = Partial("sum"), Partial("max"), Partial("min")


# the experiment


@cache
def expected(sample: OpSample) -> Array:
    """The whole result, computed at once."""
    return run(sample, sample.operands, tuple((0, size) for size in sample.result.shape))


def table(sample: OpSample, cut: AxisSplit) -> tuple[ShardingOption, ...]:
    return sharding_options(sample.op, sample.attributes, sample.specs, (sample.result,), cut)


Box = tuple[tuple[int, int], ...]


def run(sample: OpSample, operands: tuple[Any, ...], part: Box, held: tuple[OperandPart | None, ...] = ()) -> Array:
    """The worker's kernel on local operands, for one part of the result; `held` says which parts the operands are."""
    local = tuple(spec_of(x) if isinstance(x, np.ndarray) else scalar_kind(x) for x in operands)
    result = spec(sample.result.dtype, tuple(stop - start for start, stop in part))
    call = KernelCall(np, sample.op, sample.attributes, local, result, sample.result.shape, part, held)
    with np.errstate(all="ignore"):
        return np.asarray(KERNELS[sample.op](call)(*operands))


def box_of(shape: tuple[int, ...], placement: Placement | None, cut: AxisSplit, rank: int) -> Box:
    ranges = [(0, size) for size in shape]
    if isinstance(placement, Shard):
        points = cut(shape[placement.dim])
        ranges[placement.dim] = (points[rank], points[rank + 1])
    return tuple(ranges)


@cache
def split(sample: OpSample, position: int, placement: Placement | None, cut: AxisSplit) -> list[Any]:
    """What each worker holds of an operand; the contributions to a partial value are random and make the value."""
    x, count = sample.operands[position], len(cut.weights)
    if isinstance(placement, Partial):
        return [np.asarray(part) for part in contributions(x, placement.op, count, np.random.default_rng(position))]
    if isinstance(placement, Shard):
        parts = (box_of(x.shape, placement, cut, rank) for rank in range(count))
        return [x[tuple(slice(*ends) for ends in part)] for part in parts]
    return [x] * count


def contributions(x: Array, op: str, count: int, source: np.random.Generator) -> list[Array]:
    """`count` arrays that `op` reduces to `x`. Which of them holds what matters differs by element."""
    holder = source.integers(0, count, x.shape)
    held = [holder == rank for rank in range(count)]
    if x.dtype.kind == "b":
        others = [source.random(x.shape) < 0.5 for _ in held]
        return [np.where(h, x, o & x if op == "max" else o | x) for h, o in zip(held, others, strict=True)]
    if op in ("max", "min"):
        away = [source.integers(0, 4, x.shape).astype(x.dtype) for _ in held]
        sign = -1 if op == "max" else 1
        return [np.where(h, x, x + sign * a).astype(x.dtype) for h, a in zip(held, away, strict=True)]
    if op == "prod":  # of powers of two in floats and of signs in integers, so that it is exact
        base = 2 if x.dtype.kind in "fc" else -1
        exponents = source.integers(0, 3, (count - 1, *x.shape))
        factors = [np.power(float(base), e).astype(x.dtype) for e in exponents]
        return [*factors, (x / np.multiply.reduce(factors)).astype(x.dtype)]
    parts = [(source.standard_normal(x.shape) * 3).astype(x.dtype) for _ in range(count - 1)]
    parts.append((x - np.add.reduce(parts)).astype(x.dtype))
    if x.dtype.kind in "fc":  # a NaN may come of contributions none of which is one
        parts = [np.where(np.isnan(x), end, part) for part, end in zip(parts, (np.inf, -np.inf, 1, 1, 1), strict=False)]
    return parts


def joined(parts: list[Array], placement: Placement, expected: Array, cut: AxisSplit) -> list[Array]:
    """The results that must each equal the whole: one, or when it is replicated one of every worker."""
    if isinstance(placement, Replicate):
        return parts
    if isinstance(placement, Partial):
        return [REDUCE[placement.op].reduce(parts)]
    whole = np.empty_like(expected)
    for rank, part in enumerate(parts):
        whole[tuple(slice(*ends) for ends in box_of(expected.shape, placement, cut, rank))] = part
    return [whole]


def works(sample: OpSample, row: ShardingOption, cut: AxisSplit) -> bool:
    """Whether running each part and joining the results gives the whole result."""
    held = [split(sample, position, placement, cut) for position, placement in enumerate(row.inputs)]
    (placement,) = row.outputs
    parts = []
    for rank, operands in enumerate(zip(*held, strict=True)):
        part = box_of(sample.result.shape, placement, cut, rank)
        local = tuple(
            OperandPart(spec.shape, box_of(spec.shape, placed, cut, rank)) if isinstance(spec, Spec) else None
            for spec, placed in zip(sample.specs, row.inputs, strict=True)
        )
        try:
            out = run(sample, operands, part, local)
        except Exception:  # noqa: BLE001 - whatever a kernel finds wrong with parts that do not fit
            return False
        if out.shape != tuple(stop - start for start, stop in part):
            return False
        parts.append(out)
    with np.errstate(all="ignore"):
        return all(equal(whole, expected(sample)) for whole in joined(parts, placement, expected(sample), cut))


def equal(a: Array, b: Array) -> bool:
    if b.dtype.kind not in "fc":
        return bool((a == b).all())
    return np.allclose(a, b, rtol=1e-5 if b.dtype.itemsize < 8 else 1e-9, atol=1e-9, equal_nan=True)


def placements(of: Spec | str) -> list[Placement | None]:
    """All that one operand or result may be; booleans have no sum and no product, complex numbers no order."""
    if isinstance(of, str):
        return [None]
    partials = {"b": ("max", "min"), "c": ("sum", "prod")}.get(of.dtype.kind, PARTIAL_OPS)
    return [REPLICATE, *map(Shard, range(of.ndim)), *map(Partial, partials)]


def combinations(sample: OpSample) -> Iterator[ShardingOption]:
    """All, or at the usual effort some of them, evenly spread, where there are very many."""
    choices = [placements(sample.result), *map(placements, sample.specs)]
    step = -(-math.prod(map(len, choices)) // MOST_COMBINATIONS)
    for output, *inputs in itertools.islice(itertools.product(*choices), step // 2, None, step):
        assert output is not None
        yield ShardingOption((output,), tuple(inputs))


# what is left out on purpose


def omitted(row: ShardingOption, sample: OpSample, known: tuple[ShardingOption, ...]) -> bool:
    """Whether a row that works is not in the table for a reason."""
    return any(reason(row, sample, known) for reason in (idempotent, beyond_sums, rounded, stretched, unread, judged))


def idempotent(row: ShardingOption, sample: OpSample, known: tuple[ShardingOption, ...]) -> bool:
    """The largest of equals is each of them: what is replicated passes for P(max) and P(min), whose row is known.

    So does a scalar that `where` may choose beside them.
    """

    def passes(placement: Placement | None, needed: Placement | None) -> bool:
        return placement == needed or (placement == REPLICATE and needed in (MAX, MIN))

    if sample.op == "where" and None in row.inputs and row.outputs[0] in (MAX, MIN):
        return True
    return any(
        all(map(passes, row.inputs, other.inputs)) and passes(other.outputs[0], row.outputs[0]) for other in known
    )


def beyond_sums(row: ShardingOption, sample: OpSample, known: tuple[ShardingOption, ...]) -> bool:
    """Largest, smallest and product go through functions that are monotone, or turn products into products or sums.

    Partial results of that kind end a computation, they do not go on; and what overflows in one worker's contribution
    need not overflow in the whole.
    """
    special = {Partial(name) for name in PARTIAL_OPS if name != "sum"}
    family = OPS[sample.op].family
    return family in ("unary", "cast", "binary", "scatter_add", "segment_sum", "search") and not special.isdisjoint(
        (*row.outputs, *row.inputs)
    )


def rounded(row: ShardingOption, sample: OpSample, known: tuple[ShardingOption, ...]) -> bool:
    """A sum of contributions that were cast is not the sum cast: each is rounded, and may overflow. The number next to
    another is so close to it that no comparison here tells them apart."""
    if sample.op == "nextafter":
        return SUM in (*row.outputs, *row.inputs)
    return sample.op == "cast" and row == ShardingOption((SUM,), (SUM,))


def stretched(row: ShardingOption, sample: OpSample, known: tuple[ShardingOption, ...]) -> bool:
    """A dimension of one element is "cut" by giving it to one worker, who then does all the work."""
    return any(
        isinstance(placement, Shard) and isinstance(operand, Spec) and operand.shape[placement.dim] == 1
        for placement, operand in zip(row.inputs, sample.specs, strict=True)
    )


def unread(row: ShardingOption, sample: OpSample, known: tuple[ShardingOption, ...]) -> bool:
    """The second operand of `follow` says where the result should be; its own value may be anywhere."""
    if sample.op != "follow":
        return False
    placement = row.inputs[0]
    return row.outputs[0] == placement or (placement == REPLICATE and row.outputs[0] in (MAX, MIN))


def judged(row: ShardingOption, sample: OpSample, known: tuple[ShardingOption, ...]) -> bool:
    """`weight` refuses elements of the whole below 0, whatever its contributions are."""
    return sample.op == "weight"


# the tests


def printed(row: ShardingOption) -> str:
    return f"{row.outputs[0]} = {', '.join('#' if placement is None else str(placement) for placement in row.inputs)}"


def wrong_rows(sample: OpSample, cut: AxisSplit, offered: tuple[ShardingOption, ...]) -> list[str]:
    PROVED["rows of the table, each over one cut of one sample"] += len(offered)
    return [f"{sample}: {printed(row)} over {cut.weights}" for row in offered if not works(sample, row, cut)]


def missing_rows(draws: tuple[OpSample, ...], offered: dict[AxisSplit, tuple[ShardingOption, ...]]) -> list[str]:
    """The rows that work for each draw, wherever they are not offered, and are not omitted."""
    found = []
    for row in combinations(draws[0]):
        cuts = [cut for cut in CUTS if row not in offered[cut]]
        if not cuts or omitted(row, draws[0], offered[cuts[0]]):
            continue
        if all(works(sample, row, cut) for sample, cut in itertools.product(draws, cuts)):
            found.append(f"{draws[0]}: {printed(row)}")
        else:
            PROVED["rows that are not in the table, each found wrong for some cut and draw of one sample"] += 1
    return found


def test_every_op_has_a_rule_and_samples():
    """By name or family; and no rule is left of an op that is gone."""
    families = {declared.family for declared in OPS.values()}
    assert set(RULES) == families | {"package"}
    assert set(FAMILIES) == families
    assert set(PASSING) <= families | set(OPS)


@pytest.mark.parametrize("op", OPS)
def test_no_row_is_wrong(op):
    """Splitting the operands, running each part and joining the results as the row says gives the whole result."""
    wrong = [line for draws in drawn(op) for cut in CUTS for line in wrong_rows(draws[0], cut, table(draws[0], cut))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("op", OPS)
def test_no_row_is_missing(op):
    """Every combination of placements that works is in the table, or left out for a reason that is written down."""
    missing = []
    for draws in drawn(op):
        if not draws[0].edge:
            missing += missing_rows(draws, {cut: table(draws[0], cut) for cut in CUTS})
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("op", OPS)
def test_rows_are_well_formed(op):
    """The first replicates; none comes twice; scalars alone have no placement; shards name dimensions that exist."""
    for draws in drawn(op):
        for cut in CUTS:
            offered = table(draws[0], cut)
            assert all(placement in (REPLICATE, None) for placement in (*offered[0].outputs, *offered[0].inputs))
            assert len(set(offered)) == len(offered)
            for row in offered:
                placed = [(draws[0].result, row.outputs[0]), *zip(draws[0].specs, row.inputs, strict=True)]
                assert all(placement in placements(of) for of, placement in placed)


def test_a_replicated_value_beside_a_partial_sum_is_found_to_be_wrong():
    """It would be counted once a worker: the classic mistake, which the experiment must see."""
    sample = OpSample("add", (floats(5, 4), floats(5, 4)))
    assert wrong_rows(sample, CUTS[0], (ShardingOption((SUM,), (SUM, SUM)),)) == []
    assert wrong_rows(sample, CUTS[0], (ShardingOption((SUM,), (SUM, REPLICATE)),)) == [
        "add(f64[5,4], f64[5,4]) {}: P(sum) = P(sum), R over (1, 1)"
    ]


def test_a_row_that_is_not_offered_is_found_to_be_missing():
    draws = tuple(OpSample("matmul", (floats(5, 4), floats(4, 3))) for _ in range(2))
    inner = ShardingOption((SUM,), (Shard(1), Shard(0)))
    offered = {cut: tuple(row for row in table(draws[0], cut) if row != inner) for cut in CUTS}
    assert missing_rows(draws, offered) == ["matmul(f64[5,4], f64[4,3]) {}: P(sum) = S1, S0"]


# reshapes, exactly


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of as many elements: the same factors, grouped in two ways."""
    factors = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4, 6, 0]), max_size=4))

    def grouped() -> tuple[int, ...]:
        ends = sorted(draw(st.lists(st.integers(0, len(factors)), max_size=3)))
        return tuple(math.prod(factors[a:b]) for a, b in itertools.pairwise([0, *ends, len(factors)]))

    return grouped(), grouped()


def elements(shape: tuple[int, ...], part: tuple[tuple[int, int], ...]) -> list[int]:
    numbered = np.arange(math.prod(shape)).reshape(shape)
    return np.ravel(numbered[tuple(slice(*ends) for ends in part)]).tolist()


@given(reshapes(), st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple))
@settings(max_examples=cases(100))
def test_a_reshape_is_offered_exactly_when_all_parts_hold_the_same_elements(shapes, weights):
    before, after = shapes
    cut, dtype = AxisSplit(weights), floats().dtype
    x, result = (spec(spec_of(np.empty(0, dtype)).dtype, shape) for shape in shapes)
    offered = sharding_options("reshape", {"shape": after}, (x,), (result,), cut)
    for source, target in itertools.product(range(len(before)), range(len(after))):
        same = all(
            elements(before, box_of(before, Shard(source), cut, rank))
            == elements(after, box_of(after, Shard(target), cut, rank))
            for rank in range(len(weights))
        )
        assert (ShardingOption((Shard(target),), (Shard(source),)) in offered) == same


@given(reshapes(), st.data())
@settings(max_examples=cases(100))
def test_reshape_aligned_is_exact_on_two_mesh_axes(shapes, data):
    """It says yes exactly when every rank's part of the input, in order, is its part of the output."""
    sizes = (2, 3)
    weights = tuple(tuple(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))) for n in sizes)
    mesh = Mesh(1, ("a", "b"), sizes, tuple(range(6)), weights)

    def layout(shape: tuple[int, ...]) -> tuple[Placement, ...]:
        return tuple(data.draw(st.sampled_from([REPLICATE, SUM, *map(Shard, range(len(shape)))])) for _ in sizes)

    before, after = map(layout, shapes)
    same = all(
        elements(shapes[0], box(shapes[0], before, mesh, rank))
        == elements(shapes[1], box(shapes[1], after, mesh, rank))
        for rank in range(6)
    )
    assert reshape_aligned(shapes[0], before, shapes[1], after, mesh) == same
