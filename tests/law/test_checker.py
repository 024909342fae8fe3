"""The checker of the law can fail: with a mistake planted in the rules or in an exchange, drawn programs find it.

Each of these is a mistake that somebody has made somewhere: what it would take is one line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import pytest
from law.__main__ import case, exact_case, failure, smallest
from law.places import Place

from gt.dispatcher.cost import cost_model
from gt.dispatcher.planner import choices, option_ranking, sharding_rules
from gt.dispatcher.planner.sharding_rules import ShardingOption
from gt.sharding.placement import REPLICATE, Partial
from gt.worker.op_table import op_table, package_kernel
from gt.worker.transfer import move

SEEDS = 200
"""Among the first that many programs each mistake is found."""

Plant = Callable[[pytest.MonkeyPatch], None]


def _lost(op: str, partial: str) -> Plant:
    return lambda patch: patch.setitem(sharding_rules._PARTIAL_RESULTS, op, Partial(partial))


def _passing(op: str, *patterns: str) -> Plant:
    return lambda patch: patch.setitem(sharding_rules.PASSING, op, (("sum",), patterns))


def _rule(family: str, change: Callable[[ShardingOption], Iterable[ShardingOption]]) -> Plant:
    right = sharding_rules.RULES[family]
    return lambda patch: patch.setitem(
        sharding_rules.RULES, family, lambda case: itertools.chain.from_iterable(map(change, right(case)))
    )


def _whole_without_adding(row: ShardingOption) -> Iterable[ShardingOption]:
    """A cut through what is contracted, as if each worker had the whole product."""
    yield ShardingOption((REPLICATE,), row.inputs) if row.outputs == (Partial("sum"),) else row


def _no_reduction(patch: pytest.MonkeyPatch) -> None:
    """Of the contributions to one part the first is taken for the value."""
    patch.setattr(move, "reducer", lambda operation, xp: lambda first, later: first)


def _equal_cuts(row: ShardingOption) -> Iterable[ShardingOption]:
    """Along an axis that is read in steps each worker has the part that it needs."""
    yield row
    if all(placement == REPLICATE for placement in row.inputs[:1]):
        yield ShardingOption(row.outputs, (row.outputs[0], *row.inputs[1:]))


MISTAKES: dict[str, Plant] = {
    "the largest of parts, as a sum": _lost("max", "sum"),
    "a replicated value beside a partial sum": _passing("add", "PP", "PR", "RP"),
    "a function of partial sums, as if it were linear": _passing("unary", "P"),
    "a softmax of each part": lambda patch: patch.setitem(sharding_rules.RULES, "along", sharding_rules.RULES["unary"]),
    "a cut through what is contracted, as the whole": _rule("matmul", _whole_without_adding),
    "a slice of each part": _rule("slice", _equal_cuts),
    "an all-reduce that adds nothing": _no_reduction,
}


def _in_order_of_rank(operation: Callable[..., Any], sources: list[Any], out: Any) -> Any:
    total = reduce(operation, sources)
    if out is not None:
        out[...] = total
    return total


INEXACT: dict[str, Plant] = {
    "contributions added in order of rank": lambda patch: patch.setattr(move, "_paired", _in_order_of_rank),
    "a sum of parts that are no subtree": lambda patch: patch.setattr(option_ranking, "keeps_bits", lambda *_: True),
    "a block cut by two axes": lambda patch: patch.setattr(choices, "keep_bits", lambda *_: True),
    "kernels that round by what a worker has": lambda patch: patch.setattr(
        package_kernel, "DETERMINISTIC_KERNELS", op_table.KERNELS
    ),
    "equal shards": lambda patch: patch.setattr(cost_model, "deal", lambda blocks, count: (1,) * count),
}
"""Mistakes that change no value but its last bits."""


FIRST: dict[str, int] = {
    "the largest of parts, as a sum": 22,
    "a replicated value beside a partial sum": 24,
    "a function of partial sums, as if it were linear": 11,
    "a softmax of each part": 3,
    "a cut through what is contracted, as the whole": 11,
    "a slice of each part": 11,
    "an all-reduce that adds nothing": 22,
    "contributions added in order of rank": 11,
    "a block cut by two axes": 27,
}
"""Where to look first for what takes long to find from the start; if it is elsewhere now, it is found there."""


def first_found(
    drawn: Callable[[int], tuple[Any, list[Place]]] = case, first: int = 0
) -> tuple[int, BaseException] | None:
    """The first seed, from `first` on and around, of which some case fails."""
    for seed in (*range(first, SEEDS), *range(first)):
        program, places = drawn(seed)
        for place in places:
            error = failure(program, place)
            if error is not None:
                return seed, error
    return None


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong values, or a failure on a worker: no planted mistake goes unseen."""
    MISTAKES[mistake](monkeypatch)
    assert first_found(first=FIRST.get(mistake, 0)) is not None, f"{mistake} was not found in {SEEDS} programs"


@pytest.mark.parametrize("mistake", INEXACT)
def test_a_planted_mistake_in_the_last_bit_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    INEXACT[mistake](monkeypatch)
    assert first_found(exact_case, FIRST.get(mistake, 0)) is not None, f"{mistake} was not found in {SEEDS} programs"


def test_what_is_found_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing program shrinks to the few steps that it takes, on one place, and still fails."""
    _no_reduction(monkeypatch)
    seed, _ = first_found(first=FIRST["an all-reduce that adds nothing"]) or pytest.fail("nothing was found")
    program, places = case(seed)
    place = next(place for place in places if failure(program, place) is not None)
    small, _ = smallest(program, place)
    assert len(small.setup) + len(small.body) <= min(5, len(program.setup) + len(program.body))
    assert small.repeats == 1
