"""Vector batches: which steps are in one, and that they have the bits that they have one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import Lines, ran
from hot_programs import compiled, same_bits
from hypothesis import given
from hypothesis import strategies as st

from gt.ir.dtypes import float64
from gt.worker.fusion.cpu.scalar_batch import MIN_ALIKE
from gt.worker.fusion.cpu.vector_batch import FUNCTIONS, MAX_ELEMENTS

SHAPES = [(3, 4), (5,), (2, 3, 2), (1,), (4, 1), (7, 2), (6,), (2, 2), (3,), (8,)]
UNARY = ("neg", "sqrt", "reciprocal", "square")


def momentum(lines: Lines, parameter: int, gradient: int, average: int) -> tuple[int, int]:
    """The next average of gradients, and the parameter after a step along it."""
    kept, rate = lines.scalar("f"), lines.scalar("f")
    following = lines.op("add", lines.op("mul", average, kept), lines.op("square", gradient))
    return lines.op("sub", parameter, lines.op("mul", following, rate)), following


def stepped(lines: Lines, shapes: list[tuple[int, ...]], *, before: str | None = None) -> list[int]:
    """The results of a step of parameters of these shapes, whose gradients are computed in the block if `before` says how."""
    made = []
    for shape in shapes:
        parameter, gradient, average = (lines.input(*shape) for _ in range(3))
        made.append((parameter, gradient if before is None else lines.op(before, gradient), average))
    return [each for three in made for each in momentum(lines, *three)]


def values(lines: Lines, numbers: list[float]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(each.shape, np.float32) for each in lines.inputs] + numbers


def test_what_is_done_alike_to_small_tensors_is_one_action() -> None:
    """Behind everything else, such as what computes the gradients."""
    lines = Lines()
    made = stepped(lines, SHAPES, before="exp")
    program, hot = compiled(lines, *made)
    assert len(program.actions[0]) == 6 * len(SHAPES)
    assert len(hot.actions[0]) == len(SHAPES) + 1
    assert {step.instruction.op for step in hot.blocks[0][: len(SHAPES)]} == {"exp"}
    same_bits(program, hot, values(lines, [0.9, 0.1] * len(SHAPES)))
    same_bits(program, hot, values(lines, [0.1 * at for at in range(2 * len(SHAPES))]))


def test_a_few_or_large_ones_are_left_alone() -> None:
    for shapes in ([(3,)] * (MIN_ALIKE - 1), [(MAX_ELEMENTS + 1,)] * MIN_ALIKE):
        lines = Lines()
        program, hot = compiled(lines, *stepped(lines, shapes, before="exp"))
        kinds = [step.instruction.op for step in hot.blocks[0]]
        assert kinds.index("square") < len(kinds) - 1 - kinds[::-1].index("exp")
        same_bits(program, hot, values(lines, [0.9, 0.1] * len(shapes)))


def test_what_others_read_is_not_put_off() -> None:
    """A sum of what was made is there when it is due."""
    lines = Lines()
    made = stepped(lines, SHAPES)
    total = lines.op("sum", made[0], axes=(0, 1), keepdims=False)
    program, hot = compiled(lines, *made, total)
    assert hot.blocks[0][-1].instruction.op != "sum"
    same_bits(program, hot, values(lines, [0.9, 0.1] * len(SHAPES)))


@pytest.mark.parametrize("turned", [1, 3])
def test_results_lie_in_memory_as_those_of_the_steps(turned: int) -> None:
    """One operand that lies by columns changes nothing; where all do, so does the result."""
    lines = Lines()
    program, hot = compiled(lines, *stepped(lines, [(3, 4)] * MIN_ALIKE))
    inputs = values(lines, [0.9, 0.1] * MIN_ALIKE)
    inputs[:turned] = [np.asfortranarray(each) for each in inputs[:turned]]
    same_bits(program, hot, inputs)
    cold, now = ran(program, inputs), ran(hot, inputs)
    assert all(cold[slot].strides == now[slot].strides for _, slot in program.survivors)


@given(st.data())
def test_bits_are_those_of_the_steps(data: st.DataObject) -> None:
    """Programs of several alike parts, that cross each other, of which some are read by what no batch has."""
    draw = data.draw
    lines = Lines()
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=MIN_ALIKE, max_size=MIN_ALIKE + 3))
    wide = draw(st.booleans())
    options = {"dtype": float64} if wide else {}
    rows = [[lines.input(*shape, **options) for shape in shapes] for _ in range(2)]
    rates = [lines.input(**options) for _ in shapes]
    for _ in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from([*FUNCTIONS, "exp"]))
        operand = draw(st.sampled_from(rows))
        if op in (*UNARY, "exp"):
            rows.append([lines.op(op, each) for each in operand])
            continue
        kind = draw(st.sampled_from(["row", "rates", "scalars", "turned"]))
        others = {
            "row": lambda: draw(st.sampled_from(rows)), "rates": lambda: rates, "turned": lambda: [*rates[1:], rates[0]],
            "scalars": lambda: [lines.scalar("f") for _ in shapes],
        }[kind]()  # fmt: skip
        rows.append([lines.op(op, a, b) for a, b in zip(operand, others, strict=True)])
    made = [each for row in rows[2:] for each in row]
    kept = draw(st.lists(st.sampled_from(made), min_size=1, unique=True))
    program, hot = compiled(lines, *kept)
    numbers = st.floats(-3, 3, width=32)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    dtype = np.float64 if wide else np.float32
    inputs: list[Any] = [
        rng.standard_normal(each.shape).astype(dtype) if each.shape else dtype(draw(numbers)) for each in lines.inputs
    ]
    same_bits(program, hot, inputs + [draw(numbers) for _ in lines.kinds])
