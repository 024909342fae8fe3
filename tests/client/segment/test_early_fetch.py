"""What a loop fetches in each turn is asked for with its run, and no value, death or error is another one because of it."""

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
    EarlyFetches,
    Record,
)
from gt.wire import messages as m

LATER = 9
Step = Callable[[gt.Tensor, gt.Tensor], gt.Tensor]


def order(sent: list[Any]) -> str:
    """The runs (A: one that asks for a value, R: another one) and fetches (F) that were sent since the last look."""
    known = [each for each in sent if isinstance(each, m.Run | m.Fetch)]
    said = "".join("F" if isinstance(each, m.Fetch) else "A" if each.fetch else "R" for each in known)
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
    for _ in range(LATER):
        y = y * 2
    return y


def test_after_two_turns_alike_the_run_that_makes_it_asks(sent: list[Any]) -> None:
    """The backward pass ends a segment, and the update another one; the first turn also makes the tensors."""
    step = descent()
    turns = []
    for _ in range(6):
        step().item()
        turns.append(order(sent))
    assert turns[:3] == ["RRF"] * 3
    assert turns[3:] == ["AR"] * 3


def test_what_is_fetched_from_the_segment_under_way_is_asked_for_with_its_run(sent: list[Any]) -> None:
    """Nothing need be expected for that; the value is the first of three results."""
    x = gt.arange(4.0)
    order(sent)
    y = x * 3
    others = y + 1, y + 2
    assert y.tolist() == [0.0, 3.0, 6.0, 9.0]
    assert order(sent) == "A"
    assert [each.tolist()[0] for each in others] == [1.0, 2.0]
    assert order(sent) == "FF"


def test_every_third_turn(sent: list[Any]) -> None:
    """Then the third one asks, the others do not."""
    step = descent()
    turns = []
    for _ in range(6):
        step(), step(), step().item()
        turns.append(order(sent))
    assert turns[3:] == ["RRRRAR"] * 3


def test_more_segments_than_are_looked_at(sent: list[Any]) -> None:
    step = descent()
    for _ in range(4):
        loss = [step() for _ in range(MAX_SEGMENTS // 2 + 1)][-1]
        loss.item()
        assert order(sent) == "RR" * (MAX_SEGMENTS // 2 + 1) + "F"


def test_a_run_of_a_compiled_step_asks_for_its_loss(sent: list[Any]) -> None:
    step = descent(gt.compile)
    turns = []
    for _ in range(9):
        step().item()
        turns.append(order(sent))
    assert turns[4:6] == ["RF"] * 2
    assert turns[-3:] == ["A"] * 3


def test_another_loop_in_between_makes_no_definition(sent: list[Any]) -> None:
    """Evaluations between epochs leave the compiled step as it is."""
    step = descent(gt.compile)
    for _ in range(9):
        step().item()
    sent.clear()
    for _ in range(3):
        gt.ones(3).sum().item()
    assert any(isinstance(each, m.Define) for each in sent)
    sent.clear()
    for _ in range(5):
        step().item()
    assert not any(isinstance(each, m.Define) for each in sent)
    assert order(sent) == "RFRFAAA"


def test_of_several_compiled_steps_none_asks(sent: list[Any]) -> None:
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
    assert "A" in order(sent)
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
    assert "A" in order(sent)


def test_after_a_turn_with_other_instructions_two_must_be_alike_again(sent: list[Any]) -> None:
    x = gt.tensor([0.0, 1.0, 2.0, 3.0])

    def turn(factor: bool) -> float:
        y = (x * 3 if factor else x + 3).sum()
        z = later(y)
        gt.flush()
        value = y.item()
        del z
        return value

    assert [turn(True) for _ in range(3)] == [18.0] * 3
    assert order(sent).endswith("RFRFA")
    assert turn(False) == 18.0
    assert order(sent) == "RF"
    assert [turn(True) for _ in range(2)] == [18.0] * 2
    assert order(sent) == "RFRF"
    assert turn(True) == 18.0
    assert order(sent) == "A"


def test_a_value_that_is_not_fetched_after_all_is_one_fetch(sent: list[Any]) -> None:
    x = gt.tensor([0.0, 1.0, 2.0, 3.0])

    def turn() -> tuple[gt.Tensor, gt.Tensor]:
        y = (x * 3).sum()
        z = later(y)
        gt.flush()
        return y, z

    for _ in range(2):
        turn()[0].item()
    order(sent)
    y, z = turn()
    assert order(sent) == "A"
    assert z.item() == 18.0 * 2**LATER
    assert order(sent) == "F"
    assert y.item() == 18.0
    assert order(sent) == ""
    assert turn()[0].item() == 18.0
    assert order(sent) == "RF"


def test_a_value_that_died_is_not_asked_for(sent: list[Any]) -> None:
    x = gt.tensor([0.0, 1.0, 2.0, 3.0])
    for keeps in (True, True, False):
        order(sent)
        y = (x * 3).sum()
        z = later(y)
        if not keeps:
            del y
        gt.flush()
        assert (y if keeps else z).item() == (18.0 if keeps else 18.0 * 2**LATER)
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
    assert order(sent) == "AF"


def test_the_error_of_an_early_fetch_is_that_of_the_fetch(sent: list[Any]) -> None:
    table, at, wrong = gt.tensor([0.0, 1.0, 2.0, 3.0]), gt.tensor([1]), gt.tensor([9])

    def turn(where: gt.Tensor) -> float:
        y = table[where].sum()
        z = later(y)
        gt.flush()
        try:
            return y.item()
        finally:
            del z

    assert [turn(at) for _ in range(3)] == [1.0] * 3
    order(sent)
    with pytest.raises(IndexError):
        turn(wrong)
    assert order(sent) == "A"
    assert turn(at) == 1.0


def test_a_large_value_is_not_asked_for_with_its_run(sent: list[Any]) -> None:
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

    assert {function(x).item() for _ in range(4)} == {18.0 * 2**LATER}
    assert function.stats["replays"] == 2


@pytest.mark.parametrize("strategy", ["data_parallel", "fully_sharded"])
def test_several_workers_answer_behind_the_run(strategy: str) -> None:
    """Each of them says that its part is sound."""
    losses = []
    for early in (False, True):
        gt.connect(
            "inproc", workers=2, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": strategy}}}
        )
        with gt.signal.context("net"):
            step = descent()
            kept = [step() if not early else step().numpy() for _ in range(6)]
        losses.append([each if early else each.numpy() for each in kept])
        gt.disconnect()
    assert losses[0] == losses[1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 11), st.booleans()), max_size=20))
def test_only_two_alike_in_a_row_are_followed(fetches: list[tuple[int, int, bool]]) -> None:
    """Of any fetches, each of one output of three segments, or an older one, small or large: the next is expected to be as the
    last two were, and in its segment alone."""
    records: list[Record] = [[(object(), at) for at in range(4)] for _ in range(3)]
    early, base = EarlyFetches(), 100
    expected: tuple[int, Record] | None = None
    before: Any = None
    for which, at, small in fetches:
        turn = [records[which], records[0], records[1]]
        for place, record in enumerate(turn):
            wanted = None if expected is None or expected[0] != place else expected[1]
            assert early.armed == wanted
            asks = wanted is not None and record[: len(wanted)] == wanted
            assert early.output_of(record, None) == (len(wanted) - 1 if wanted and asks else -1)
            early.sent(base + 4 * place, record, None)
        assert early.armed is None
        early.fetched(base + at, 8 if small else MAX_EARLY_BYTES + 1)
        now = (at // 4, turn[at // 4][: at % 4 + 1]) if small and at >= 0 else None
        expected = now if now is not None and now == before else None
        before, base = now, base + 100


def test_a_loop_that_fetches_the_loss_before_asks_for_nothing(sent: list[Any]) -> None:
    """The loss of the turn before is fetched in each turn, so nothing is asked for early."""
    step = descent()
    before = step()
    for _ in range(4):
        now = step()
        order(sent)
        assert before.item() >= 0
        assert order(sent) == "F"
        before = now
