"""Scalar batches: which steps are in one, and that they have the bits that they have one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from builders import Lines
from hot_programs import compiled, same_bits
from hypothesis import given
from hypothesis import strategies as st

from gt.ir.dtypes import float64
from gt.worker.fusion.cpu.scalar_batch import EXACT, MIN_ALIKE, ONE_BY_ONE


def correction(lines: Lines, count: int, weight: int) -> tuple[int, int]:
    """The next count, and a matrix by a bias correction of it."""
    one, base, rate = (lines.scalar("f") for _ in range(3))
    following = lines.op("add", count, one)
    power = lines.op("pow", base, following)
    factor = lines.op("sqrt", lines.op("sub", power, one))
    return following, lines.op("div", weight, lines.op("mul", factor, rate))


def test_what_is_done_alike_to_numbers_is_one_action() -> None:
    lines = Lines()
    made = [correction(lines, lines.input(), lines.input(2, 2)) for _ in range(MIN_ALIKE)]
    program, hot = compiled(lines, *(each for pair in made for each in pair))
    numbers = 5 * MIN_ALIKE
    assert len(program.actions[0]) == numbers + MIN_ALIKE
    assert len(hot.actions[0]) == 1 + MIN_ALIKE
    assert [step.instruction.op for step in hot.blocks[0][:numbers:MIN_ALIKE]] == ["add", "pow", "sub", "sqrt", "mul"]
    inputs = [np.float32(3), np.ones((2, 2), np.float32)] * MIN_ALIKE + [1.0, 0.9, 0.1] * MIN_ALIKE
    same_bits(program, hot, inputs)


def test_a_few_are_left_alone() -> None:
    lines = Lines()
    made = [correction(lines, lines.input(), lines.input(2, 2))[0] for _ in range(MIN_ALIKE - 1)]
    program, hot = compiled(lines, *made)
    assert len(hot.actions[0]) == len(program.actions[0])


@given(st.data())
def test_bits_are_those_of_the_steps(data: st.DataObject) -> None:
    """Programs of several alike parts, crossing each other, with steps between that no scalar batch has."""
    draw = data.draw
    lines = Lines()
    parts = draw(st.integers(MIN_ALIKE, MIN_ALIKE + 4))
    wide = draw(st.booleans())
    options = {"dtype": float64} if wide else {}
    values = [[lines.input(**options) for _ in range(parts)] for _ in range(2)]
    for _ in range(draw(st.integers(1, 5))):
        op = draw(st.sampled_from([*EXACT, *ONE_BY_ONE, "exp"]))
        operand = draw(st.sampled_from(values))
        if op in ("neg", "sqrt", "reciprocal", "exp"):
            values.append([lines.op(op, each) for each in operand])
            continue
        other = draw(st.none() | st.sampled_from(values))
        others = [lines.scalar("f") for _ in range(parts)] if other is None else other
        turned = others if draw(st.booleans()) else [*others[1:], others[0]]
        values.append([lines.op(op, a, b) for a, b in zip(operand, turned, strict=True)])
    made = [each for row in values[2:] for each in row]
    kept = draw(st.lists(st.sampled_from(made), min_size=1, unique=True)) if made else []
    program, hot = compiled(lines, *kept)
    numbers = st.floats(-3, 3, width=32)
    dtype = np.float64 if wide else np.float32
    inputs: list[Any] = [draw(st.sampled_from([dtype, np.array]))(draw(numbers)).astype(dtype) for _ in lines.inputs]
    same_bits(program, hot, inputs + [draw(numbers) for _ in lines.kinds])
