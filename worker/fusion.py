"""Fusion: which instructions of a block become one chain. Pure logic, independent of the array module.

A *chain* works on one *space*, the shape of its full values. Its members operate within rows of that space: element-wise,
or reducing the last `joined` dimensions to a *column* of one number per row, which other members may read (softmax and
layer norm are chains). So any subset of rows can be computed independently, and values that nobody outside reads are never
stored whole. A chain runs as one step once everything that it reads is available. A step may therefore join only if no
step outside the chain lies between it and the other members.

`strips.py` computes chains on a CPU, `generated.py` on a GPU.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from gt.ops import OPS
from gt.spec import Spec

from .call import Call

MAP: Final = frozenset(("unary", "binary", "where", "cast"))
"""Families of ops that work element by element."""
ALONG: Final = frozenset(("softmax", "log_softmax"))
WINDOW: Final = 64
"""Steps between two members of a chain: what is made long before it is read would only take memory."""


class Fusable(Protocol):
    """What is asked of a step. `call` is None of what no chain can have; members of a chain have the same `scope`."""

    @property
    def call(self) -> Call | None: ...
    @property
    def reads(self) -> tuple[int, ...]: ...
    @property
    def writes(self) -> int: ...
    @property
    def scope(self) -> str: ...


class Source(NamedTuple):
    """What a chain reads from outside: a tensor, or the kind of a run-time scalar."""

    slot: int
    spec: Spec | str


class Value(NamedTuple):
    """What one member makes. `operands` count the chain's sources first and then its values; a column has one number a row."""

    call: Call
    operands: tuple[int, ...]
    column: bool
    slot: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Members that run as one. `steps` are their places, with the `expand`s that they see through; `outputs` the values that
    others read. It is what its steps are, to the last bit, if of each group of sources in `rowwise` one lies row by row in
    memory, as an array that was made by itself does."""

    steps: tuple[int, ...]
    shape: tuple[int, ...]
    joined: int
    sources: tuple[Source, ...]
    values: tuple[Value, ...]
    outputs: tuple[int, ...]
    rowwise: tuple[tuple[int, ...], ...]


@dataclass(slots=True, eq=False)
class _Group:
    """A chain that grows, or (without a shape) a step that stays alone. `before` are the steps outside that it reads."""

    shape: tuple[int, ...] | None
    joined: int
    members: list[int]
    before: set[int] = field(default_factory=set)


def fuse(
    steps: Sequence[Fusable], wanted: Iterable[int], able: Callable[[Call], bool], worth: Callable[[Chain], bool]
) -> list[Chain | int]:
    """The steps of a block in an order in which chains run as one; an integer is a step by itself.

    `wanted` are the slots that are read after the block; `able` says which calls an executor has, `worth` which chains pay.
    """
    made = {step.writes: at for at, step in enumerate(steps)}
    if len(made) < len(steps) or any(step.writes in step.reads for step in steps):
        return list(
            range(len(steps))
        )  # slots are written again, as sums over microbatches: order is part of the meaning
    groups = _Search(steps, made, able).groups()
    drawer = _Drawer(steps, made, set(wanted), {at for group in groups if group.shape for at in group.members})
    ordered: list[Chain | int] = []
    for group in _sorted(groups):
        if group.shape is None:
            if group.members[0] not in drawer.seen_through:
                ordered.append(group.members[0])
            continue
        chain = drawer.chain(group)
        if worth(chain):
            ordered.append(chain)
        else:
            ordered += chain.steps
    return ordered


class _Search:
    """One pass over the steps, in which each joins the groups of what it reads, or begins one, or stays alone."""

    def __init__(self, steps: Sequence[Fusable], made: dict[int, int], able: Callable[[Call], bool]) -> None:
        self.steps = steps
        self.made = made
        self.able = able
        self.group: list[_Group] = []
        """The group of each step so far."""

    def groups(self) -> list[_Group]:
        for at, step in enumerate(self.steps):
            group = self._joined(at)
            if group is None:
                group = _Group(None, 0, [at], {self.made[slot] for slot in step.reads if slot in self.made})
            self.group.append(group)
        return list(dict.fromkeys(self.group))

    def _joined(self, at: int) -> _Group | None:
        """The group that a step is in from now on; None where it must stay alone."""
        step = self.steps[at]
        call = step.call
        if call is None or not self.able(call):
            return None
        space = _space(call)
        if space is None:
            return None
        shape, joined = space
        before = {source for slot in step.reads if (source := _through(self.steps, self.made, call, slot)) is not None}
        home: _Group | None = None
        for group in dict.fromkeys(self.group[each] for each in sorted(before, reverse=True)):
            near = at - group.members[-1] <= WINDOW and self.steps[group.members[0]].scope == step.scope
            if (
                not near
                or not _fits(shape, joined, group)
                or (home and group.joined and home.joined not in (0, group.joined))
            ):
                continue
            if self._reaches([each for each in before if self.group[each] not in (group, home)], group):
                continue
            if home is None:
                home = group
            elif home.shape == group.shape and not self._apart(home, group):
                self._merge(home, group)
            home.joined = home.joined or joined
        if home is None:
            home = _Group(shape, joined, [])
        home.members.append(at)
        home.before |= before
        home.before.difference_update(home.members)
        return home

    def _apart(self, one: _Group, two: _Group) -> bool:
        """Whether there is something between two groups, so that they cannot be one."""
        return self._reaches([each for each in two.before if self.group[each] is not one], one) or self._reaches(
            [each for each in one.before if self.group[each] is not two], two
        )

    def _reaches(self, starts: list[int], group: _Group) -> bool:
        """Whether one of these steps depends on a group."""
        first = group.members[0]
        seen: set[int] = set()
        while starts:
            other = self.group[starts.pop()]
            if other is group:
                return True
            if (
                id(other) not in seen and other.members[-1] >= first
            ):  # what ends before a group begins reads nothing of it
                seen.add(id(other))
                starts += other.before
        return False

    def _merge(self, home: _Group, other: _Group) -> None:
        home.members = sorted(home.members + other.members)
        home.joined = home.joined or other.joined
        home.before |= other.before
        home.before.difference_update(home.members)
        for at in other.members:
            self.group[at] = home


def _space(call: Call) -> tuple[tuple[int, ...], int] | None:
    """The shape of what a step works on, and how many of its last dimensions it goes along; None of what no chain can have."""
    family = OPS[call.op].family
    if family in MAP:
        return (call.result.shape, 0) if call.result.ndim else None
    operand = call.operands[0]
    assert isinstance(operand, Spec), "what goes along dimensions goes along a tensor's"
    ndim = operand.ndim
    if call.op in ALONG:
        return (operand.shape, 1) if ndim > 1 and call.attributes["axis"] == ndim - 1 else None
    if family == "reduction" and call.attributes["keepdims"]:
        axes = tuple(call.attributes["axes"])
        if 0 < len(axes) < ndim and axes == tuple(range(ndim - len(axes), ndim)):
            return operand.shape, len(axes)
    return None


def _fits(shape: tuple[int, ...], joined: int, group: _Group) -> bool:
    """Whether a step's space is a group's or, if it goes along nothing, that of the group's columns."""
    if group.shape is None or (joined and group.joined not in (0, joined)):
        return False
    return shape == group.shape or (not joined and bool(group.joined) and shape == _column(group.shape, group.joined))


def _column(shape: tuple[int, ...], joined: int) -> tuple[int, ...]:
    return shape[: len(shape) - joined] + (1,) * joined


def _through(steps: Sequence[Fusable], made: dict[int, int], call: Call, slot: int) -> int | None:
    """The step that makes an operand, None if it comes from outside. Element by element, an `expand` is only a way to look
    at what is there: of one it is the step behind it. (Not for a `cast`: NumPy lays its result as an expanded operand lies.)"""
    at = made.get(slot)
    if at is not None and OPS[call.op].family in MAP and call.op != "cast":
        other = steps[at].call
        if other is not None and other.op == "expand":
            return made.get(steps[at].reads[0])
    return at


def _sorted(groups: list[_Group]) -> Iterator[_Group]:
    """Each group after all that it reads; else in the order in which they begin."""
    home = {at: group for group in groups for at in group.members}
    waits: dict[int, int] = {}
    after: dict[int, list[_Group]] = {}
    ready: list[tuple[int, _Group]] = []
    for group in groups:
        needed = {id(home[at]) for at in group.before}
        waits[id(group)] = len(needed)
        for other in needed:
            after.setdefault(other, []).append(group)
        if not needed:
            ready.append((group.members[0], group))
    heapq.heapify(ready)
    count = 0
    while ready:
        _, group = heapq.heappop(ready)
        count += 1
        yield group
        for later in after.get(id(group), ()):
            waits[id(later)] -= 1
            if not waits[id(later)]:
                heapq.heappush(ready, (later.members[0], later))
    assert count == len(groups), "no chain waits for itself"


class _Drawer:
    """Draws up chains: who reads what, in numbers."""

    def __init__(self, steps: Sequence[Fusable], made: dict[int, int], kept: set[int], members: set[int]) -> None:
        self.steps = steps
        self.made = made
        self.kept = kept
        self.readers: dict[int, set[int]] = {}
        for at, step in enumerate(steps):
            for slot in step.reads:
                if slot in made:
                    self.readers.setdefault(made[slot], set()).add(at)
        self.seen_through = {at for at in range(len(steps)) if self._only_seen_through(at, members)}
        """The `expand`s that nobody needs but members of chains, who see through them."""

    def _only_seen_through(self, at: int, members: set[int]) -> bool:
        call, readers = self.steps[at].call, self.readers.get(at, set())
        return (
            call is not None and call.op == "expand" and bool(readers) and self.steps[at].writes not in self.kept
            and readers <= members and all(self._sees_through(each, at) for each in readers)
        )  # fmt: skip

    def _leaves(self, at: int, inside: set[int]) -> bool:
        """Whether anybody but these members reads what a step makes, or sees it through an `expand`."""
        return self.steps[at].writes in self.kept or any(
            reader not in inside and not (reader in self.seen_through and self.readers[reader] <= inside)
            for reader in self.readers.get(at, ())
        )

    def _sees_through(self, reader: int, at: int) -> bool:
        call = self.steps[reader].call
        return call is not None and _through(self.steps, self.made, call, self.steps[at].writes) != at

    def chain(self, group: _Group) -> Chain:
        """What an executor is told of a group."""
        assert group.shape is not None, "a group that is a chain has a space"
        inside = set(group.members)
        sources: dict[int, Source] = {}
        helpers: set[int] = set()
        drafts: list[tuple[Call, list[int], int]] = []
        for at in group.members:
            call = self.steps[at].call
            assert call is not None, "only what has a call is a member"
            slots = []
            for slot, operand in zip(self.steps[at].reads, call.operands, strict=True):
                place = self.made.get(slot)
                if place is not None and _through(self.steps, self.made, call, slot) != place:
                    behind = self.steps[place].call
                    assert behind is not None, "an expand has a call"
                    helpers.add(place)
                    slot, operand = self.steps[place].reads[0], behind.operands[0]
                if self.made.get(slot, -1) not in inside:
                    sources.setdefault(slot, Source(slot, operand))
                slots.append(slot)
            drafts.append((call, slots, self.steps[at].writes))
        numbers = {slot: number for number, slot in enumerate([*sources, *(slot for _, _, slot in drafts)])}
        column = _column(group.shape, group.joined) if group.joined else None
        values = tuple(
            Value(call, tuple(numbers[each] for each in slots), call.result.shape == column != group.shape, slot)
            for call, slots, slot in drafts
        )
        outputs = tuple(number for number, at in enumerate(group.members) if self._leaves(at, inside))
        made_of = tuple(sources.values())
        return Chain(
            tuple(sorted(inside | helpers)), group.shape, group.joined, made_of, values, outputs,
            _rowwise(made_of, values, outputs),
        )  # fmt: skip


def _rowwise(
    sources: tuple[Source, ...], values: tuple[Value, ...], outputs: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Groups of sources, of each of which one must lie row by row in memory.

    NumPy lays a result as its operands lie: row by row as soon as one that has the result's shape does. What is added up
    must lie so, for the order of additions follows from it.
    """
    wants: list[frozenset[int]] = []
    laid: list[frozenset[int]] = []
    """For each source and value the sources of which one must lie so; empty where it does so anyhow."""
    shapes: list[tuple[int, ...]] = []
    for number, source in enumerate(sources):
        shapes.append(source.spec.shape if isinstance(source.spec, Spec) else ())
        laid.append(frozenset((number,)) if len(shapes[-1]) > 1 else frozenset())
    for number, value in enumerate(values):
        shape = value.call.result.shape
        found: frozenset[int] = frozenset()
        if OPS[value.call.op].family not in MAP:
            wants.append(laid[value.operands[0]])
        else:
            whole = [laid[operand] for operand in value.operands if shapes[operand] == shape]
            if not whole:  # made of what is smaller: all of it must
                wants += [laid[operand] for operand in value.operands]
            elif all(whole):
                found = found.union(*whole)
            if number in outputs:
                wants.append(found)
        shapes.append(shape)
        laid.append(found)
    return tuple(tuple(sorted(each)) for each in dict.fromkeys(wants) if each)
