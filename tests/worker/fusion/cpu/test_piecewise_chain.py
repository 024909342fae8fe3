"""Piecewise chains: which members run as one, and that they have the bits that they have one by one; skipped where the loops of
machine code are not built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import Lines, ran
from hot_programs import compiled
from hypothesis import given
from hypothesis import strategies as st

from gt.ir.dtypes import bool_
from gt.worker.fusion.cpu import piecewise_chain
from gt.worker.fusion.cpu.piecewise_chain import FUNCTIONS, MAX_ELEMENTS, MIN_ROW
from gt.worker.program.compiler import Program

pytestmark = pytest.mark.skipif(
    piecewise_chain.piecewise is None, reason="no loops of machine code: make native builds them"
)
Array = np.ndarray[Any, Any]
UNARY = ("neg", "abs", "square", "sqrt", "reciprocal", "exp", "log", "tanh", "relu")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
PAIRS = ("add", "sub", "mul", "div", "maximum", "minimum", *COMPARISONS)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, 3e38], np.float32)


def bits(x: Array) -> bytes:
    """All but which NaN it is: loops of the same function may take another operand's."""
    return np.where(np.isnan(x), np.float32(np.nan), x).tobytes() if x.dtype == np.float32 else x.tobytes()


def same(program: Program, hot: Program, inputs: list[Any]) -> list[Array]:
    """The results of a program, which are the same when it is hot, lie alike in memory, and leave operands as they were."""
    before = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs]
    with np.errstate(all="ignore"):
        cold, now = ran(program, inputs), ran(hot, inputs)
    for x, y in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(x, y)
    for _, slot in program.survivors:
        assert (cold[slot].dtype, cold[slot].shape) == (now[slot].dtype, now[slot].shape)
        assert np.isfortran(cold[slot]) == np.isfortran(now[slot])
        assert bits(cold[slot]) == bits(now[slot])
    assert [x is None for x in cold] == [x is None for x in now], "the same slots are empty"
    return [now[slot] for _, slot in program.survivors]


def summed(lines: Lines, count: int, *shape: int) -> list[int]:
    """Values that nothing else holds, the sums of two: a chain with which they die may take their memory."""
    return [lines.op("sum", lines.input(2, *shape), axes=(0,), keepdims=False) for _ in range(count)]


def tensor(random: np.random.Generator, *shape: int) -> Array:
    x = random.standard_normal(shape, dtype=np.float32)
    x[random.random(shape) < 0.1] = random.choice(SPECIAL)
    return x


def test_every_function_is_named_by_an_op_that_is_drawn() -> None:
    logical = {"logical_not", "logical_and", "logical_or"}
    assert set(FUNCTIONS) == ({*UNARY, *PAIRS} - {"relu"}) | logical


@given(st.data())
def test_bits_are_those_of_the_steps(data: st.DataObject) -> None:
    """Programs of tensors, rows of them and numbers, some of which lie by columns, over several pieces."""
    draw = data.draw
    row = draw(st.sampled_from([MIN_ROW, 100, 2049]))
    shape = (draw(st.integers(1, 4)), row)
    lines, random = Lines(), np.random.default_rng(draw(st.integers(0, 99)))
    floats = [lines.input(*shape), lines.input(*shape), lines.input(row), lines.input(1, row), lines.input()]
    floats += summed(lines, 3, *shape)
    inputs: list[Any] = [tensor(random, *each.shape) for each in lines.inputs]
    for at in draw(st.sampled_from([(), (0,), (0, 1)])):
        inputs[at] = np.asfortranarray(inputs[at])
    masks = [lines.input(*shape, dtype=bool_)]
    inputs.append(random.random(shape) < 0.5)
    made: list[int] = []
    for _ in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(["unary", "pair", "pair", "where", "logical"]))
        pool = [*floats[:2], *floats[5:]]
        a = draw(st.sampled_from(pool))
        b = lines.scalar("f") if draw(st.integers(0, 3)) == 0 else draw(st.sampled_from(floats))
        if kind == "unary":
            new = lines.op(draw(st.sampled_from(UNARY)), a)
        elif kind == "pair":
            new = lines.op(draw(st.sampled_from(PAIRS)), *draw(st.permutations([a, b])))
        elif kind == "where":
            new = lines.op("where", draw(st.sampled_from(masks)), *draw(st.permutations([a, b])))
        else:
            new = lines.op("logical_and", *(draw(st.sampled_from(masks)) for _ in range(2)))
        made.append(new)
        (masks if lines.spec(new).dtype is bool_ else floats).append(new)
    kept = draw(st.lists(st.sampled_from(made), min_size=1, unique=True))
    program, hot = compiled(lines, *kept)
    numbers = [draw(st.sampled_from([0.0, -0.0, 0.1, 3.0, 1e39])) for _ in lines.kinds]
    same(program, hot, [*inputs, *numbers])


def test_a_bias_and_a_relu_are_one_action_and_so_is_the_gradient_of_it() -> None:
    lines = Lines()
    x, bias, slope = lines.input(128, 256), lines.input(256), lines.input(128, 256)
    out = lines.op("relu", lines.op("add", x, bias))
    back = lines.op("where", lines.op("le", out, lines.scalar("f")), lines.scalar("f"), slope)
    program, hot = compiled(lines, out, back)
    assert len(hot.actions[0]) == 1
    random = np.random.default_rng(0)
    same(program, hot, [tensor(random, 128, 256), tensor(random, 256), tensor(random, 128, 256), 0.0, 0.0])


@pytest.mark.parametrize("turned", [0, 1, 2])
def test_an_update_lies_as_the_step_by_step_one_and_takes_memory_that_dies(turned: int) -> None:
    lines = Lines()
    weight, gradient = lines.input(40, 70), lines.input(40, 70)
    new = lines.op("sub", weight, lines.op("mul", gradient, lines.scalar("f")))
    program, hot = compiled(lines, new)
    random = np.random.default_rng(0)
    inputs: list[Any] = [tensor(random, 40, 70), tensor(random, 40, 70), 0.1]
    inputs[:turned] = [np.asfortranarray(each) for each in inputs[:turned]]
    same(program, hot, inputs)


def test_each_result_of_an_optimizer_takes_the_memory_of_another_value_that_dies() -> None:
    """Both averages and the weights of Adam's step are results of one chain, with which their old values die."""
    lines = Lines()
    average, gradient, spread, weight = summed(lines, 4, 32, 64)
    number = lines.scalar
    average = lines.op("add", lines.op("mul", average, number("f")), lines.op("mul", gradient, number("f")))
    square = lines.op("mul", lines.op("square", gradient), number("f"))
    spread = lines.op("add", lines.op("mul", spread, number("f")), square)
    step = lines.op("div", average, lines.op("add", lines.op("sqrt", spread), number("f")))
    weight = lines.op("sub", weight, lines.op("mul", step, number("f")))
    program, hot = compiled(lines, average, spread, weight)
    random = np.random.default_rng(0)
    same(program, hot, [*(random.random((2, 32, 64), np.float32) for _ in range(4)), 0.9, 0.1, 1e-3, 0.999, 1e-8, 1e-3])


@pytest.mark.parametrize("shape", [(MAX_ELEMENTS + 1,), (3, MIN_ROW - 1)])
def test_what_is_too_large_or_has_short_rows_is_left_to_numpy(shape: tuple[int, ...]) -> None:
    lines = Lines()
    x, row = lines.input(*shape), lines.input(*shape[-1:])
    _, hot = compiled(lines, lines.op("neg", lines.op("add", x, row)))
    assert not any("piecewise" in getattr(action, "__qualname__", "") for action in hot.actions[0])


def test_a_number_that_is_too_large_raises_as_in_numpy() -> None:
    lines = Lines()
    x = lines.input(100)
    program, hot = compiled(lines, lines.op("neg", lines.op("mul", x, lines.scalar("i"))))
    for each in (program, hot):
        with pytest.raises(OverflowError):
            ran(each, [np.ones(100, np.float32), 10**400])
