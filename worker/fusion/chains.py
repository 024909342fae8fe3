"""Fusion: which instructions of a block become one chain. Pure logic, independent of the array module.

A *chain* works on one *space*, the shape of its full values. Its members operate within rows of that space: element-wise, or
reducing the last `joined` dimensions to a *column* of one number per row, which other members may read (softmax and layer norm
are chains). So any subset of rows can be computed independently, and values that nobody outside reads are never stored whole.
(A column reduction, which GPUs have, reduces the first dimensions instead, `-joined` of them: see `chain_shapes.py`.) A chain
runs as one step once everything that it reads is available. A step may therefore join only if no step outside the chain lies
between it and the other members.

`cpu/strip_executor.py` computes chains on a CPU, `cuda/fused_kernel.py` on a GPU.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gt.ir.ops import OPS
from gt.ir.spec import Spec, spec
from gt.worker.base.kernel_call import KernelCall

from .chain_shapes import (
    ELEMENTWISE_FAMILIES,
    FusableStep,
    OperandViews,
    Shape,
    ViewedOperand,
    bare_of,
    column_of,
    is_column,
    space_of,
)
from .incremental import Incremental, finished
from .reduction_axis import reduction_axes

MAX_SIBLING_MEMBERS: Final = 24
"""Members up to which a chain takes in a step that reads what it reads, and nothing of it: arguments and registers are few."""
MAX_STEP_DISTANCE: Final = 64
"""Steps between two members of a chain: what is made long before it is read would only take memory."""


Key = tuple[int, Shape]
"""A slot, and the shape in which it is read."""


class ChainSource(NamedTuple):
    """What a chain reads from outside: a tensor in the shape in which it is read, or the kind of a run-time scalar."""

    slot: int
    spec: Spec | str


class ChainValue(NamedTuple):
    """The value that one member makes. `operands` count the chain's sources first and then its values; a column has one number
    a row."""

    call: KernelCall
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
    sources: tuple[ChainSource, ...]
    values: tuple[ChainValue, ...]
    outputs: tuple[int, ...]
    rowwise: tuple[tuple[int, ...], ...]


@dataclass(slots=True, eq=False)
class _GrowingChain:
    """A chain that grows, or (without a shape) a step that stays alone. `before` are the steps outside that it reads, `rows` says
    whether it is for columns."""

    shape: Shape | None
    joined: int
    members: list[int]
    before: set[int] = field(default_factory=set)
    rows: bool = False

    @property
    def chains(self) -> bool:
        return self.shape is not None


def fuse(
    steps: Sequence[FusableStep],
    wanted: Iterable[int],
    able: Callable[[KernelCall], bool],
    worth: Callable[[Chain], bool],
    *,
    loose: bool = False,
) -> list[Chain | int]:
    """The steps of a block in an order in which chains run as one; an integer is a step by itself.

    `wanted` are the slots that are read after the block; `able` says which calls an executor has, `worth` which chains pay, and
    `loose` that its chains may be (`chain_shapes.py`).
    """
    return finished(fusing(steps, wanted, able, worth, loose=loose))


def fusing(
    steps: Sequence[FusableStep],
    wanted: Iterable[int],
    able: Callable[[KernelCall], bool],
    worth: Callable[[Chain], bool],
    *,
    loose: bool = False,
) -> Incremental[list[Chain | int]]:
    """`fuse`, piece by piece."""
    made = {step.writes: at for at, step in enumerate(steps)}
    if len(made) < len(steps) or any(step.writes in step.reads for step in steps):
        return list(
            range(len(steps))
        )  # slots are written again, as sums over microbatches: order is part of the meaning
    views, kept = OperandViews(steps, made, loose=loose), set(wanted)
    reduced = reduction_axes(steps, made, kept, able, views) if loose else [0] * len(steps)
    groups = yield from _ChainSearch(steps, made, able, views, reduced).groups()
    drawer = _ChainDrawer(steps, made, kept, views, {at for group in groups if group.chains for at in group.members})
    yield from drawer.read()
    ordered: list[Chain | int] = []
    for group in _sorted(groups):
        yield
        if not group.chains:
            if group.members[0] not in drawer.seen_through:
                ordered.append(group.members[0])
            continue
        chain = yield from drawer.chain(group)
        if worth(chain):
            ordered.append(chain)
        else:
            ordered += chain.steps
    return ordered


class _ChainSearch:
    """Groups the steps in one pass, in which each joins the groups of what it reads, or begins one, or stays alone."""

    def __init__(
        self,
        steps: Sequence[FusableStep],
        made: dict[int, int],
        able: Callable[[KernelCall], bool],
        views: OperandViews,
        reduced: Sequence[int],
    ) -> None:
        self.steps = steps
        self.made = made
        self.able = able
        self.views = views
        self.loose = views.loose
        self.reduced = reduced
        self.group: list[_GrowingChain] = []
        """The group of each step so far."""
        self.readers: dict[tuple[int, bool], int] = {}
        """By slot the last step that is in a chain and reads all of a tensor; apart for column reductions and all others."""

    def groups(self) -> Incremental[list[_GrowingChain]]:
        for at, step in enumerate(self.steps):
            yield
            group = self._joined(at)
            if group is None:
                group = _GrowingChain(None, 0, [at], {self.made[slot] for slot in step.reads if slot in self.made})
            self.group.append(group)
        return list(dict.fromkeys(self.group))

    def _joined(self, at: int) -> _GrowingChain | None:
        """The group that a step is in from now on; None where it must stay alone."""
        step = self.steps[at]
        call = step.call
        if call is None or not self.able(call):
            return None
        space = space_of(call, loose=self.loose)
        if space is None:
            return None
        shape, joined = space
        before = self.views.behind(at)
        home: _GrowingChain | None = None
        for group in dict.fromkeys(self.group[each] for each in sorted(before, reverse=True)):
            near = at - group.members[-1] <= MAX_STEP_DISTANCE and self.steps[group.members[0]].scope == step.scope
            if (
                not near
                or not self._fits(at, shape, joined, group)
                or (home and group.joined and home.joined not in (0, group.joined))
            ):
                continue
            if self._reaches([each for each in before if self.group[each] not in (group, home)], group):
                continue
            if home is None:
                home = group
            else:
                home = self._united(home, group)
            home.joined = home.joined or joined
        if home is None and self.loose and joined <= 0:
            home = self._sibling(at, shape, before)
        if home is None:
            home = _GrowingChain(shape, joined, [])
        home.joined = home.joined or min(self.reduced[at], 0)
        home.rows = home.rows or self.reduced[at] > 0
        self._remember(at, shape, home)
        home.members.append(at)
        home.before.update([each for each in before if self.group[each] is not home])
        return self._with_columns(home, at, before) if self.loose else home

    def _sibling(self, at: int, shape: Shape, before: set[int]) -> _GrowingChain | None:
        """A group that reads what a step reads, whole: together they read it once."""
        for seen in self.views.of(at):
            if seen.shape != shape:
                continue
            for by_columns in (self.reduced[at] < 0, self.reduced[at] >= 0):
                other = self.readers.get((seen.slot, by_columns))
                if other is None:
                    continue
                group = self.group[other]
                near = (
                    at - group.members[-1] <= MAX_STEP_DISTANCE
                    and self.steps[group.members[0]].scope == self.steps[at].scope
                )
                fits = (
                    group.shape == shape and len(group.members) < MAX_SIBLING_MEMBERS and self._reduces_alike(at, group)
                )
                if near and fits and not self._reaches([*before], group):
                    return group
        return None

    def _reduces_alike(self, at: int, group: _GrowingChain) -> bool:
        """Whether a step may be in a group, by what each is for."""
        reduced = self.reduced[at]
        return not group.rows and group.joined in (0, reduced) if reduced < 0 else not (reduced and group.joined < 0)

    def _remember(self, at: int, shape: Shape, home: _GrowingChain) -> None:
        """Which step was the last to read a tensor that is as large as its chain's space."""
        for seen in self.views.of(at):
            if seen.shape == shape == home.shape and math.prod(shape) > 1:
                self.readers[seen.slot, home.joined < 0] = at

    def _fits(self, at: int, shape: Shape, joined: int, group: _GrowingChain) -> bool:
        """Whether a step's space is a group's or, if it goes along nothing, that of the group's columns."""
        if group.shape is None or (joined and group.joined not in (0, joined)) or not self._reduces_alike(at, group):
            return False
        if not self.loose:
            return shape == group.shape or (
                not joined and bool(group.joined) and shape == column_of(group.shape, group.joined)
            )
        along = joined or group.joined
        fits = shape == group.shape or (
            not joined and (math.prod(shape) == 1 or is_column(shape, group.shape, group.joined))
        )
        return fits and self.views.agree(at, set(group.members), group.shape, along)

    def _with_columns(self, home: _GrowingChain, at: int, before: set[int]) -> _GrowingChain:
        """The group that a step has joined, with those that make columns and numbers for it."""
        for group in dict.fromkeys(self.group[each] for each in sorted(before, reverse=True)):
            near = (
                at - group.members[-1] <= MAX_STEP_DISTANCE
                and self.steps[group.members[0]].scope == self.steps[at].scope
            )
            if group is not home and group.chains and near:
                home = self._united(home, group)
        return home

    def _united(self, home: _GrowingChain, group: _GrowingChain) -> _GrowingChain:
        """Two groups as one, if they can be; else the first."""
        assert home.shape is not None, "groups that are united are chains"
        assert group.shape is not None, "groups that are united are chains"
        wide, narrow = home, group
        if home.shape != group.shape:
            if not self.loose:
                return home
            if not _is_part(group, home):
                wide, narrow = group, home
            if not _is_part(narrow, wide):
                return home
        elif home.joined and group.joined not in (0, home.joined):
            return home
        if self._apart(home, group) or (wide.rows and narrow.joined < 0) or (narrow.rows and wide.joined < 0):
            return home
        joined = wide.joined or narrow.joined
        if self.loose and not self._agree(wide, narrow, joined):
            return home
        self._merge(wide, narrow)
        return wide

    def _agree(self, wide: _GrowingChain, narrow: _GrowingChain, joined: int) -> bool:
        """Whether the members of two groups read each other as what they would be in one."""
        assert wide.shape is not None, "a group that is a chain has a space"
        members = {*wide.members, *narrow.members}
        return all(self.views.agree(each, members, wide.shape, joined) for each in members)

    def _apart(self, one: _GrowingChain, two: _GrowingChain) -> bool:
        """Whether there is something between two groups, so that they cannot be one."""
        return self._reaches([each for each in two.before if self.group[each] is not one], one) or self._reaches(
            [each for each in one.before if self.group[each] is not two], two
        )

    def _reaches(self, starts: list[int], group: _GrowingChain) -> bool:
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

    def _merge(self, home: _GrowingChain, other: _GrowingChain) -> None:
        home.members = sorted(home.members + other.members)
        home.joined = home.joined or other.joined
        home.rows = home.rows or other.rows
        home.before |= other.before
        home.before.difference_update(home.members)
        for at in other.members:
            if at < len(self.group):  # the step that joins comes last
                self.group[at] = home


def _is_part(narrow: _GrowingChain, wide: _GrowingChain) -> bool:
    """Whether all that a group makes are columns of another, or single numbers."""
    assert narrow.shape is not None, "a group that is a chain has a space"
    assert wide.shape is not None, "a group that is a chain has a space"
    if narrow.joined:
        return False
    return math.prod(narrow.shape) == 1 or is_column(narrow.shape, wide.shape, wide.joined)


def _sorted(groups: list[_GrowingChain]) -> Iterator[_GrowingChain]:
    """Sorts groups so that each comes after all that it reads; else in the order in which they begin."""
    home = {at: group for group in groups for at in group.members}
    waits: dict[int, int] = {}
    after: dict[int, list[_GrowingChain]] = {}
    ready: list[tuple[int, _GrowingChain]] = []
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


class _ChainDrawer:
    """Draws up chains: who reads what, in numbers."""

    def __init__(
        self, steps: Sequence[FusableStep], made: dict[int, int], kept: set[int], views: OperandViews, members: set[int]
    ) -> None:
        self.steps = steps
        self.made = made
        self.kept = kept
        self.views = views
        self.members = members
        self.seen: dict[int, list[ViewedOperand]] = {}
        """What each member reads."""
        self.readers: dict[int, set[int]] = {}
        self.seen_through: set[int] = set()
        """The views that nobody needs but members of chains, who see through them."""

    def read(self) -> Incremental[None]:
        """Note who reads what."""
        for at, step in enumerate(self.steps):
            yield
            if at in self.members:
                self.seen[at] = self.views.of(at)
            for slot in step.reads:
                if slot in self.made:
                    self.readers.setdefault(self.made[slot], set()).add(at)
        every = [seen for found in self.seen.values() for seen in found]
        needed = {*self.kept, *(seen.slot for seen in every)}
        for at in sorted({view for seen in every for view in seen.views}, reverse=True):
            if self.steps[at].writes not in needed and self.readers[at] <= self.members | self.seen_through:
                self.seen_through.add(at)

    def _leaves(self, at: int, inside: set[int]) -> bool:
        """Whether anybody but these members reads what a step makes, or sees it through a view."""
        return self.steps[at].writes in self.kept or any(
            reader not in inside and not (reader in self.seen_through and not self._leaves(reader, inside))
            for reader in self.readers.get(at, ())
        )

    def chain(self, group: _GrowingChain) -> Incremental[Chain]:
        """The chain of a group, as executors see it."""
        assert group.shape is not None, "a group that is a chain has a space"
        inside = set(group.members)
        joined = group.joined
        if joined < 0 and not any(OPS[self.steps[at].call.op].family == "reduction" for at in inside):  # type: ignore[union-attr]  # members have calls
            joined = 0  # it was for totals that are made elsewhere
        bare = bare_of(group.shape, joined)
        sources: dict[tuple[int, Shape], ChainSource] = {}
        helpers: set[int] = set()
        drafts: list[tuple[KernelCall, list[Key], int]] = []
        for at in group.members:
            yield
            call = self.steps[at].call
            assert call is not None, "only what has a call is a member"
            short = joined > 0 and call.result.shape == bare and OPS[call.op].family in ELEMENTWISE_FAMILIES
            keys: list[Key] = []
            for seen, operand in zip(self.seen[at], call.operands, strict=True):
                helpers.update(seen.views)
                if self.made.get(seen.slot, -1) in inside:
                    keys.append((seen.slot, ()))
                    continue
                key = (seen.slot, seen.shape + (1,) * joined if short and seen.shape else seen.shape)
                known = operand if isinstance(operand, str) else spec(operand.dtype, key[1])
                sources.setdefault(key, ChainSource(seen.slot, known))
                keys.append(key)
            drafts.append((call, keys, self.steps[at].writes))
        numbers = {key: number for number, key in enumerate([*sources, *((slot, ()) for _, _, slot in drafts)])}
        column = column_of(group.shape, joined)
        values: list[ChainValue] = []
        outputs: list[int] = []
        for number, (at, (call, keys, slot)) in enumerate(zip(group.members, drafts, strict=True)):
            yield
            is_column = call.result.shape in (column, bare) and call.result.shape != group.shape
            values.append(ChainValue(call, tuple([numbers[each] for each in keys]), is_column, slot))
            if self._leaves(at, inside):
                outputs.append(number)
        made_of = tuple(sources.values())
        return Chain(
            tuple(sorted(inside | helpers)), group.shape, joined, made_of, tuple(values), tuple(outputs),
            (yield from _rowwise(made_of, values, outputs)),
        )  # fmt: skip


def _rowwise(
    sources: Sequence[ChainSource], values: Sequence[ChainValue], outputs: Collection[int]
) -> Incremental[tuple[tuple[int, ...], ...]]:
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
        yield
        shape = value.call.result.shape
        found: frozenset[int] = frozenset()
        if OPS[value.call.op].family not in ELEMENTWISE_FAMILIES:
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
