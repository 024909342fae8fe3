"""`emit` and its fast forms emit the same: one signature, the same references, tape, result and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.client.session import sessions
from gt.client.tensor import emission
from gt.client.tensor.tape import Leaf, TapeNode
from gt.errors import GTError

pytestmark = pytest.mark.usefixtures("shared")


def called(form: Callable[..., Any], *arguments: Any) -> Any:
    return form(*arguments)


inside = FunctionType(called.__code__, {"__name__": "gt.client.ops.caller"})
"""Calls a form as GT's functions do: the fast forms take the frame around their caller for the user's."""

UNARY = [("neg",), ("exp",), ("sin",), ("abs",), ("cast", gt.float64), ("permute", (1, 0)), ("tanh",)]
BINARY = ["add", "sub", "mul", "div", "maximum", "atan2", "matmul"]
WITH_FLOAT = ["add", "sub", "mul", "div", "maximum", "pow"]
OPERATORS = {
    "add": gt.Tensor.__add__, "sub": gt.Tensor.__sub__, "mul": gt.Tensor.__mul__, "div": gt.Tensor.__truediv__,
}  # fmt: skip
CONTEXTS = {
    "no_grad": gt.no_grad,
    "autocast": lambda: gt.autocast("cpu", dtype=gt.bfloat16),
    "signal": lambda: gt.signal.context("some/signal"),
    "hint": lambda: gt.signal.context("hinted", hot=True),
    "inference": gt.inference_mode,
}


# operands


def put(dtype: Any) -> gt.Tensor:
    return gt.tensor([[1.5, -2.0, 0.25], [3.0, 0.5, -1.0], [2.0, 4.0, 0.75]], dtype=dtype)


def leaf(dtype: Any) -> gt.Tensor:
    return put(dtype).requires_grad_()


def recorded(dtype: Any) -> gt.Tensor:
    return leaf(dtype) * 2.0


def flushed(dtype: Any) -> gt.Tensor:
    made = recorded(dtype)
    gt.flush()
    return made


def view(dtype: Any) -> gt.Tensor:
    return recorded(dtype)[1:].unsqueeze(0).squeeze(0)[[0, 1, 0]].t()


def stale_view(dtype: Any) -> gt.Tensor:
    """A view whose base was written to: it derives its value again where it is next used."""
    base = recorded(dtype)
    shown = base.t()
    base.mul_(0.5)
    return shown


def of_another_thread(dtype: Any) -> gt.Tensor:
    made: list[gt.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(recorded(dtype)))
    thread.start()
    thread.join()
    return made[0]


OPERANDS = [put, leaf, recorded, flushed, view, stale_view, of_another_thread]


# what is compared


def by_gt(op: str, operands: tuple[Any, ...], rest: tuple[Any, ...], form: Any, fast_first: bool) -> tuple[Any, Any]:
    """The results of `emit` and of a fast form that GT's functions call, both from one line."""
    general, fast = lambda: inside(emission.emit, op, operands, *rest), lambda: inside(form, op, *operands, *rest)
    first, second = (fast, general) if fast_first else (general, fast)
    made = [attempt(each) for each in (first, second)]
    return (made[1], made[0]) if fast_first else (made[0], made[1])


def by_user(op: str, operands: tuple[Any, ...], form: Any, fast_first: bool) -> tuple[Any, Any]:
    """The results of `emit` and of an operator, which programs call themselves, both from one line."""
    general, fast = lambda: inside(emission.emit, op, operands), lambda: form(*operands)
    first, second = (fast, general) if fast_first else (general, fast)
    made = [attempt(each) for each in (first, second)]
    return (made[1], made[0]) if fast_first else (made[0], made[1])


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error that it raises."""
    try:
        return call()
    except GTError as error:
        return error


def entry(x: gt.Tensor) -> tuple[Any, ...]:
    """The instruction of a tensor, in the segment under way."""
    builder = sessions.builder()
    found: tuple[Any, ...] = builder.record[x._value.id - builder.base]
    return found


def tape(edge: Any) -> Any:
    """What is recorded from a place on the tape on."""
    if not isinstance(edge, TapeNode):
        return edge if edge is None or isinstance(edge, Leaf) else type(edge)
    saved = [value if isinstance(value, float) else value is not None for value in edge.saved]
    below = [tape(other) for other in edge.edges]
    return edge.signature, edge.context, edge.wants, saved, edge.output is not None, below


def agree(general: Any, fast: Any, *, one_instruction: bool) -> None:
    if isinstance(general, GTError):
        assert type(fast) is type(general)
        assert str(fast) == str(general)
        return
    assert type(fast) is gt.Tensor
    assert fast._value.spec == general._value.spec
    assert entry(fast)[0] is entry(general)[0], "one signature"
    if one_instruction:  # autocast casts the operands of each by themselves
        assert entry(fast) == entry(general)
    assert tape(fast._edge) == tape(general._edge)
    assert (fast._view, fast._version) == (general._view, general._version) == (None, 0)
    values = [
        x.detach().numpy().astype(np.float64) for x in (fast, general)
    ]  # NumPy compares NaN of bfloat16 by itself
    np.testing.assert_array_equal(*values)


@st.composite
def contexts(draw: st.DrawFn) -> list[str]:
    return draw(st.lists(st.sampled_from(sorted(CONTEXTS)), max_size=2, unique=True))


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    """Each test begins with a segment of its own."""
    gt.flush()
    yield
    gt.flush()


operands = st.sampled_from(OPERANDS)
every_operand = pytest.mark.parametrize("make", OPERANDS)
dtypes = st.sampled_from([gt.float32, gt.float64, gt.bfloat16])


@every_operand
@settings(max_examples=cases(30), deadline=None)
@given(op=st.sampled_from(UNARY), dtype=dtypes, within=contexts(), fast_first=st.booleans())
def test_one_operand(op: tuple[Any, ...], make: Any, dtype: Any, within: list[str], fast_first: bool) -> None:
    gt.flush()
    with ExitStack() as stack:
        x = make(dtype)
        for name in within:
            stack.enter_context(CONTEXTS[name]())
        for _ in range(3):  # the second and third time the fast form finds the signature by the frame alone
            pair = by_gt(op[0], (x,), op[1:], emission.emit_unary, fast_first)
            agree(*pair, one_instruction="autocast" not in within)


@every_operand
@settings(max_examples=cases(30), deadline=None)
@given(
    op=st.sampled_from(BINARY),
    right=operands,
    dtype=dtypes,
    within=contexts(),
    fast_first=st.booleans(),
    mismatch=st.booleans(),
)
def test_two_operands(
    op: str, make: Any, right: Any, dtype: Any, within: list[str], fast_first: bool, mismatch: bool
) -> None:
    gt.flush()
    with ExitStack() as stack:
        x, y = make(dtype), gt.ones(2, 5, dtype=dtype) if mismatch else right(dtype)
        for name in within:
            stack.enter_context(CONTEXTS[name]())
        for _ in range(3):
            pair = by_gt(op, (x, y), (), emission.emit_binary, fast_first)
            agree(*pair, one_instruction="autocast" not in within)


@every_operand
@settings(max_examples=cases(30), deadline=None)
@given(
    op=st.sampled_from(WITH_FLOAT),
    dtype=dtypes,
    number=st.floats(0.5, 4.0),
    within=contexts(),
    fast_first=st.booleans(),
)
def test_an_operand_and_a_float(
    op: str, make: Any, dtype: Any, number: float, within: list[str], fast_first: bool
) -> None:
    gt.flush()
    with ExitStack() as stack:
        x = make(dtype)
        for name in within:
            stack.enter_context(CONTEXTS[name]())
        for _ in range(3):
            pair = by_gt(op, (x, number), (), emission.emit_with_float, fast_first)
            agree(*pair, one_instruction="autocast" not in within)
            assert sessions.builder().scalars[-2:] in ([number, number], []) or "autocast" in within


@every_operand
@settings(max_examples=cases(30), deadline=None)
@given(
    op=st.sampled_from(sorted(OPERATORS)),
    right=st.one_of(operands, st.floats(0.5, 4.0)),
    dtype=dtypes,
    within=contexts(),
    fast_first=st.booleans(),
)
def test_operators(op: str, make: Any, right: Any, dtype: Any, within: list[str], fast_first: bool) -> None:
    gt.flush()
    with ExitStack() as stack:
        x, y = make(dtype), right if isinstance(right, float) else right(dtype)
        for name in within:
            stack.enter_context(CONTEXTS[name]())
        for _ in range(3):
            pair = by_user(op, (x, y), OPERATORS[op], fast_first)
            agree(*pair, one_instruction="autocast" not in within)


@pytest.mark.parametrize("form", ["general", "fast"])
def test_an_error_is_raised_at_once_and_leaves_nothing_behind(form: str) -> None:
    x, y = gt.ones(2, 3), gt.ones(4, 5)
    before = list(sessions.builder().record)
    with pytest.raises(gt.ShapeError):
        emission.emit("add", (x, y)) if form == "general" else inside(emission.emit_binary, "add", x, y)
    assert sessions.builder().record == before
