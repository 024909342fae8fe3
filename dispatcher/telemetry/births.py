"""Records of the runs and puts that have made the tensors of a client.

A run that has made a tensor which lives is kept, however many have come since; of all others only the latest are. Pure state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Final

from gt.dispatcher.planner.planner import Planned
from gt.ir.instruction import Plan
from gt.wire import telemetry as t

MAX_BIRTHS: Final = 20_000
"""Births of one client above which those are dropped that have made nothing which lives."""
MAX_UNSETTLED_BIRTHS: Final = 30_000
"""The most births of one client; above, the oldest are dropped."""
BIRTHS_PER_TURN: Final = 1024
Birth = tuple[int, int, int, float, int, Planned | str]
"""What was issued, or put: order and plan (-1, -1: a put), the first tensor that it makes, when (seconds), by which client, and
the plan itself, or the signal of a put."""
_BASE: Final = itemgetter(2)


class Births:
    """The births of one client's tensors, by the first tensor that each has made; the oldest first."""

    __slots__ = ("by_base",)

    def __init__(self) -> None:
        self.by_base: dict[int, Birth] = {}

    def __len__(self) -> int:
        return len(self.by_base)

    def add(self, some: list[Birth]) -> None:
        """Record some, the oldest first."""
        self.by_base.update(zip(map(_BASE, some), some, strict=True))
        if len(self.by_base) > MAX_UNSETTLED_BIRTHS:
            self._forget_oldest(len(self.by_base) - MAX_UNSETTLED_BIRTHS)

    @property
    def is_full(self) -> bool:
        """Whether it has to be looked at which of them have made something that lives."""
        return len(self.by_base) > MAX_BIRTHS

    def _forget_oldest(self, count: int) -> None:
        for base in [*islice(self.by_base, count)]:
            del self.by_base[base]

    def begin(self) -> Generator[None, None, LivingBirths]:
        """The births so far, of which those are to be found out, in turns, that have made something which lives."""
        found = LivingBirths(self.by_base.copy())
        yield from found.sort()
        return found

    def keep(self, living: LivingBirths) -> Iterator[None]:
        """Forget, in turns, those of the births found so far that have made nothing which lives, and of the others all but the
        latest. Those recorded since are kept."""
        for at in range(0, len(living.bases), BIRTHS_PER_TURN):
            if at:
                yield
            for base in living.bases[at : at + BIRTHS_PER_TURN]:
                if base not in living.alive:
                    birth = living.by_base.pop(base)
                    if self.by_base.get(base) is birth:
                        del self.by_base[base]
        while (excess := len(self) - MAX_BIRTHS // 2) > 0:
            yield
            self._forget_oldest(min(excess, BIRTHS_PER_TURN))


class LivingBirths:
    """Births, and which of them have made something that lives, as far as that is known."""

    def __init__(self, by_base: dict[int, Birth]) -> None:
        self.by_base = by_base
        self.bases = [*by_base]
        """In order, once they are sorted."""
        self.alive: set[int] = set()

    def sort(self) -> Iterator[None]:
        """Sort them in turns; mostly they are sorted already."""
        bases = self.bases
        if len(bases) > BIRTHS_PER_TURN:
            for at in range(0, len(bases), BIRTHS_PER_TURN):
                bases[at : at + BIRTHS_PER_TURN] = sorted(bases[at : at + BIRTHS_PER_TURN])
                yield
        bases.sort()  # merges what is sorted

    def note(self, tensors: Iterable[int]) -> None:
        """Note that these tensors live."""
        bases = self.bases
        if bases:
            self.alive.update([bases[at - 1] for number in tensors if (at := bisect_right(bases, number))])

    def place(self, number: int, now: int) -> tuple[str, str, int]:
        """(signal, site, age) of a tensor, as far as that is known."""
        at = bisect_right(self.bases, number) - 1
        if at < 0:
            return "", "", -1
        _, _, base, made, _, planned = self.by_base[self.bases[at]]
        age = now - int(made * t.SECOND)
        if isinstance(planned, str):
            return (planned, "", age) if number == base else ("", "", -1)
        plan = planned.plan
        index = _survivor(plan, number - base)
        if index is None:
            return "", "", -1
        tag = plan.tags[plan.makers[index].tag]
        return "/".join(tag.signal)[: t.MAX_TEXT_LENGTH], tag.site[: t.MAX_TEXT_LENGTH], age

    def length_of(self, number: int) -> int:
        """How many instructions the plan has, if any, that may have made a tensor."""
        at = bisect_right(self.bases, number) - 1
        planned = self.by_base[self.bases[at]][5] if at >= 0 else ""
        return 0 if isinstance(planned, str) else len(planned.plan.instructions)


def _survivor(plan: Plan, number: int) -> int | None:
    """The output of a plan that is a survivor of its segment; they are in order."""
    at = bisect_left(plan.survivors, (number,))
    found, index = plan.survivors[at] if at < len(plan.survivors) else (-1, -1)
    return index if found == number else None
