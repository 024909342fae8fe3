"""What a loop fetches in each turn is asked for early, and no value, death or error is another one because of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gt
from gt.client.segment.early_fetch import (
    MAX_EARLY_BYTES,
    MAX_SEGMENTS,
    MAX_SPLITS,
    MIN_LATER,
    EarlyFetches,
    Record,
    split_run,
)
from gt.client.segment.signature import Signature, TracedSegment
from gt.client.session import sessions
from gt.ir.dtypes import as_dtype
from gt.ir.instruction import Tag
from gt.ir.spec import spec
from gt.wire import messages as m

F32 = spec(as_dtype("float32"), (2,))
Step = Callable[[gt.Tensor, gt.Tensor], gt.Tensor]


def order(sent: list[Any]) -> str:
    """The runs (R) and fetches (F) that were sent since the last look."""
    said = "".join("R" if isinstance(each, m.Run) else "F" for each in sent if isinstance(each, m.Run | m.Fetch))
    sent.clear()
    return said


def descent(wrap: Callable[[Step], Step] = lambda step: step) -> Callable[[], gt.Tensor]:
    """A step of a training loop, which returns its loss."""
    w = gt.tensor([[-1.0, -0.6], [-0.2, 0.2], [0.6, 1.0]], requires_grad=True)
    x, y = gt.arange(12.0).reshape(4, 3) / 10, gt.ones(4, 2)
    optimizer = gt.optim.SGD([w], lr=0.1, momentum=0.9)

    def step(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        loss = ((x @ w).tanh() * 2 - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    wrapped = wrap(step)
    return lambda: wrapped(x, y)


def later(y: gt.Tensor) -> gt.Tensor:
    """What is computed after that which is fetched."""
    for _ in range(MIN_LATER + 1):
        y = y * 2
    return y


def test_after_two_turns_alike_the_next_asks_before_the_backward_pass(sent: list[Any]) -> None:
    """The first turn also makes the tensors."""
    step = descent()
    turns = []
    for _ in range(6):
        step().item()
        turns.append(order(sent))
    assert turns[:3] == ["RRF"] * 3
    assert turns[3:] == ["RFRR"] * 3


def test_every_third_turn(sent: list[Any]) -> None:
    """Then the third one is cut, the others are not."""
    step = descent()
    turns = []
    for _ in range(6):
        step(), step(), step().item()
        turns.append(order(sent))
    assert turns[3:] == ["RRRRRFRR"] * 3


def test_more_segments_than_are_looked_at(sent: list[Any]) -> None:
    step = descent()
    for _ in range(4):
        loss = [step() for _ in range(MAX_SEGMENTS // 2 + 1)][-1]
        loss.item()
        assert order(sent) == "RR" * (MAX_SEGMENTS // 2 + 1) + "F"


def test_a_compiled_step_is_cut_where_its_loss_is(sent: list[Any]) -> None:
    step = descent(gt.compile)
    turns = []
    for _ in range(9):
        step().item()
        turns.append(order(sent))
    assert turns[3:5] == ["RF"] * 2
    assert turns[-3:] == ["RFR"] * 3


def test_a_cut_is_remembered_while_other_loops_run(sent: list[Any]) -> None:
    """The two halves are defined once, also where evaluations come between; of many functions the last ones are remembered."""
    steps = [descent(gt.compile) for _ in range(MAX_SPLITS + 1)]

    def epoch(step: Callable[[], gt.Tensor], turns: int) -> list[Any]:
        sent.clear()
        for _ in range(turns):
            step().item()
        last = list(sent)
        gt.ones(3).sum().item()
        return [each for each in last if isinstance(each, m.Define)]

    assert len(epoch(steps[0], 9)) > 2
    for step in steps[1:-1]:
        epoch(step, 9)
    assert epoch(steps[0], 5) == []
    epoch(steps[-1], 9)
    assert epoch(steps[0], 5) == [], "those that were cut first go first"
    assert len(epoch(steps[1], 5)) == 2


def test_of_several_compiled_steps_none_is_cut(sent: list[Any]) -> None:
    """Not each of them is followed by a fetch."""
    step = descent(gt.compile)
    for _ in range(9):
        step(), step().item()
    order(sent)
    step(), step().item()
    assert order(sent) == "RRF"


@pytest.mark.parametrize("wrap", [lambda step: step, gt.compile], ids=["", "compiled"])
def test_no_bit_depends_on_it(sent: list[Any], wrap: Callable[[Step], Step]) -> None:
    """Losses that are fetched in each turn, and at the end of all."""
    each = [value.tobytes() for step in [descent(wrap)] for _ in range(9) for value in [step().numpy()]]
    assert "RF" in order(sent)
    step = descent(wrap)
    kept = [step() for _ in range(9)]
    assert [value.numpy().tobytes() for value in kept] == each


@pytest.mark.parametrize("wrap", [lambda step: step, gt.compile], ids=["", "compiled"])
def test_no_id_is_left(sent: list[Any], wrap: Callable[[Step], Step]) -> None:
    """As many tensors live after many turns as after some."""
    step = descent(wrap)
    alive = []
    for _ in range(16):
        step().item()
        gt.flush()
        alive.append(gt.stats()["tensors"])
    assert alive[8:] == alive[7:-1]
    assert "FR" in order(sent)


def test_a_turn_with_other_instructions_is_not_cut(sent: list[Any]) -> None:
    """It goes on to where it would have been sent, and after it two turns must be alike again."""
    x = gt.tensor([0.0, 1.0, 2.0, 3.0])

    def turn(factor: bool) -> float:
        y = (x * 3 if factor else x + 3).sum()
        z = later(y)
        value = y.item()
        del z
        return value

    assert [turn(True) for _ in range(3)] == [18.0] * 3
    assert order(sent).endswith("RFR")
    assert turn(False) == 18.0
    assert order(sent) == "RF"
    assert [turn(True) for _ in range(2)] == [18.0] * 2
    assert order(sent) == "RFRF"
    assert turn(True) == 18.0
    assert order(sent) == "RFR"


def test_a_value_that_is_not_fetched_after_all_is_one_fetch(sent: list[Any]) -> None:
    x = gt.tensor([0.0, 1.0, 2.0, 3.0])

    def turn() -> tuple[gt.Tensor, gt.Tensor]:
        y = (x * 3).sum()
        return y, later(y)

    for _ in range(2):
        turn()[0].item()
    order(sent)
    y, z = turn()
    assert order(sent) == "RF"
    assert z.item() == 18.0 * 2 ** (MIN_LATER + 1)
    assert order(sent) == "RF"
    assert y.item() == 18.0
    assert order(sent) == ""
    assert turn()[0].item() == 18.0
    assert order(sent) == "RF"


def test_what_was_asked_for_early_is_given_once(sent: list[Any]) -> None:
    """Each fetch has an array of its own."""
    x = gt.tensor([0.0, 1.0, 2.0, 3.0])
    for _ in range(3):
        order(sent)
        y = x * 3
        z = later(y)
        one, other = y.numpy(), y.numpy()
        del z
        one += 1
        assert other.tolist() == [0.0, 3.0, 6.0, 9.0]
        assert one.tolist() == [1.0, 4.0, 7.0, 10.0]
    assert order(sent) == "RFRF"


def test_the_error_of_an_early_fetch_is_that_of_the_fetch(sent: list[Any]) -> None:
    table, at, wrong = gt.tensor([0.0, 1.0, 2.0, 3.0]), gt.tensor([1]), gt.tensor([9])

    def turn(where: gt.Tensor) -> float:
        y = table[where].sum()
        z = later(y)
        try:
            return y.item()
        finally:
            del z

    assert [turn(at) for _ in range(3)] == [1.0] * 3
    order(sent)
    with pytest.raises(IndexError):
        turn(wrong)
    assert order(sent) == "RFR"
    assert turn(at) == 1.0


def test_a_large_value_is_not_asked_for_early(sent: list[Any]) -> None:
    x = gt.ones(MAX_EARLY_BYTES // 4 + 1)
    for _ in range(4):
        order(sent)
        y = x * 3
        z = later(y)
        y.numpy()
        del z
    assert order(sent) == "RF"


def test_a_compiled_call_after_such_a_loop_is_traced_whole(sent: list[Any]) -> None:
    x = gt.tensor([0.0, 1.0, 2.0, 3.0])
    for _ in range(3):
        y = (x * 3).sum()
        z = later(y)
        y.item()
        del z

    @gt.compile
    def function(x: gt.Tensor) -> gt.Tensor:
        return later((x * 3).sum())

    assert {function(x).item() for _ in range(4)} == {18.0 * 2 ** (MIN_LATER + 1)}
    assert function.stats["replays"] == 2


def test_on_several_workers_nothing_is_asked_for_early() -> None:
    """There a cut could place, and so round, what is computed in another way."""
    gt.connect("inproc", workers=2)
    early = sessions.builder().early
    step = descent()
    for _ in range(4):
        step().item()
        assert early.armed is None
    gt.disconnect()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 11), st.booleans()), max_size=20))
def test_only_two_alike_in_a_row_are_followed(fetches: list[tuple[int, int, bool]]) -> None:
    """Of any fetches, each of one output of three segments, or an older one: the next is expected to be as the last two were,
    and in its segment alone."""
    records: list[Record] = [[(object(), at) for at in range(4)] for _ in range(3)]
    early, base = EarlyFetches(), 100
    expected: tuple[int, int] | None = None
    before: Any = None
    for which, at, only in fetches:
        turn = [records[which], records[0], records[1]]
        for place, record in enumerate(turn):
            wanted = None if expected is None or expected[0] != place else expected[1]
            assert early.armed == wanted
            early.sent(base + 4 * place, record, None)
        assert early.armed is None
        early.fetched(base + at, base + 12 + MIN_LATER, 8, only)
        now = (at // 4, turn[at // 4][: at % 4 + 1]) if only and at >= 0 else None
        expected = now if now is not None and now == before else None
        before, base = now, base + 100


# a traced segment in two

SIGNATURES = {
    (tensors, scalars): Signature(
        "add", {}, (F32,) * tensors + ("float",) * scalars, (F32,), Tag((), "forward", "a.py:1")
    )
    for tensors in range(4)
    for scalars in range(3)
}


@st.composite
def traced_segments(draw: st.DrawFn) -> tuple[TracedSegment, int]:
    """A traced segment of which each input is read, and an output of it that lives."""
    count, inputs = draw(st.integers(1, 12)), 0
    record: Record = []
    for at in range(count):
        operands = draw(st.lists(st.integers(-inputs - 1, at - 1), max_size=3))
        for place, operand in enumerate(operands):
            if operand == -inputs - 1:
                inputs += 1
            assert operands[place] >= -inputs
        record.append((SIGNATURES[len(operands), draw(st.integers(0, 2))], *operands))
    at = draw(st.integers(0, count - 1))
    alive = bytearray(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    alive[at] = 1
    return TracedSegment(record, bytes(alive), inputs, []), at


def computed(record: Record, inputs: list[Any], scalars: list[Any]) -> list[Any]:
    """A name for each output: what it is of which tensors and scalars."""
    numbers = iter(scalars)
    made: list[Any] = []
    for signature, *operands in record:
        tensors = tuple(made[each] if each >= 0 else inputs[~each] for each in operands)
        wanted = sum(isinstance(operand, str) for operand in signature.operands)
        made.append((signature, tensors, tuple(next(numbers) for _ in range(wanted))))
    assert next(numbers, None) is None
    return made


@given(traced_segments(), st.data())
def test_both_halves_do_what_the_whole_does(case: tuple[TracedSegment, int], data: st.DataObject) -> None:
    """The same outputs of the same operands, and each tensor dies once, after its last use."""
    traced, at = case
    inputs = [f"input {slot}" for slot in range(traced.inputs)]
    count = sum(isinstance(operand, str) for entry in traced.record for operand in entry[0].operands)
    scalars = list(range(count))
    whole = computed(traced.record, inputs, scalars)
    split = split_run(traced, at)
    store = {("in", slot): name for slot, name in enumerate(inputs)}

    def run(part: TracedSegment, names: list[Any], numbers: list[int], first: int, dying: list[int]) -> None:
        made = computed(part.record, [store[name] for name in names], numbers)
        for place in dying:
            del store[names[place]]
        store.update({("out", first + n): value for n, value in enumerate(made) if part.alive[n]})

    dead = data.draw(st.lists(st.integers(0, traced.inputs - 1), unique=True)) if traced.inputs else []
    early, late = split.dying(dead)
    run(split.head, [("in", slot) for slot in split.head_inputs], scalars[: split.scalars], 0, early)
    assert store["out", at] == whole[at]
    names = [("in", slot) if slot >= 0 else ("out", ~slot) for slot in split.tail_inputs]
    run(split.tail, names, scalars[split.scalars :], at + 1, late)
    left = {("in", slot): name for slot, name in enumerate(inputs) if slot not in dead}
    left |= {("out", number): value for number, value in enumerate(whole) if traced.alive[number]}
    assert store == left
    for part in (split.head, split.tail):
        read = {~each for entry in part.record for each in entry[1:] if each < 0}
        assert read == set(range(part.inputs)), "each input is read"


def test_a_loop_that_fetches_the_loss_before_is_not_cut(sent: list[Any]) -> None:
    """The loss of the turn before is fetched in each turn, so nothing is asked for early."""
    step = descent()
    before = step()
    for _ in range(4):
        now = step()
        order(sent)
        assert before.item() >= 0
        assert order(sent) == "F"
        before = now
