"""Shapes in which the members of a chain work, and the views through which they read each other. Pure logic.

The *space* of a chain is the shape of its full values. Beside them it has *columns*, of one number for each row. A strict chain
has them with the joined dimensions kept, as (rows, 1). A *loose* one has them without, too, as (rows,), and numbers of one
element; its members see through the `reshape`s between these forms.

A loose chain may be a *column reduction* instead: it joins the first dimensions, not the last, to *totals*, (1, columns) or
(columns,), that no full value reads. Of such a chain the number of joined dimensions is negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from gt.ir.ops import OPS
from gt.ir.spec import Spec
from gt.worker.base.kernel_call import KernelCall

MAX_SINGLE_BLOCK_ELEMENTS: Final = 1 << 14
"""Elements up to which one block of a GPU joins all of a tensor; larger ones are cut up among blocks, as in a column
reduction."""
Shape = tuple[int, ...]

ELEMENTWISE_FAMILIES: Final = frozenset(("unary", "binary", "where", "cast"))
"""Families of ops that work element by element."""
SOFTMAX_OPS: Final = frozenset(("softmax", "log_softmax"))
ROW_INDEX_OPS: Final = frozenset(("gather", "scatter_add"))
"""Ops that read or change one element of each row, at a place that a column has."""
LOOSE_OPS: Final = ROW_INDEX_OPS | {"full"}
"""Ops that only loose chains have."""


class FusableStep(Protocol):
    """A step as fusion sees it. `call` is None of what no chain can have; members of a chain have the same `scope`."""

    @property
    def call(self) -> KernelCall | None: ...
    @property
    def reads(self) -> tuple[int, ...]: ...
    @property
    def writes(self) -> int: ...
    @property
    def scope(self) -> str: ...


class ViewedOperand(NamedTuple):
    """What an operand is a view of: the slot behind, the shape in which it is seen, and the steps that are only views."""

    slot: int
    shape: Shape
    views: tuple[int, ...]


def space_of(call: KernelCall, *, loose: bool) -> tuple[Shape, int] | None:
    """The shape of what a step works on, and how many of its last dimensions it goes along; None of what no chain can have."""
    family = OPS[call.op].family
    if family in ELEMENTWISE_FAMILIES:
        return (call.result.shape, 0) if call.result.ndim or loose else None
    if call.op in LOOSE_OPS:
        if not loose:
            return None
        return (call.result.shape, 0) if call.op == "full" else _placed(call)
    operand = call.operands[0]
    assert isinstance(operand, Spec), "what goes along dimensions goes along a tensor's"
    ndim = operand.ndim
    if call.op in SOFTMAX_OPS:
        return (operand.shape, 1) if ndim > 1 and call.attributes["axis"] == ndim - 1 else None
    if family == "reduction" and (call.attributes["keepdims"] or loose):
        axes = tuple(call.attributes["axes"])
        if loose and axes and call.result.size == 1 and operand.size > MAX_SINGLE_BLOCK_ELEMENTS:
            return operand.shape, -ndim
        if 0 < len(axes) < ndim + loose and axes == tuple(range(ndim - len(axes), ndim)):
            return operand.shape, len(axes)
        if loose and axes == tuple(range(len(axes))) and operand.size > call.result.size > 1:
            return operand.shape, -len(axes)
    return None


def _placed(call: KernelCall) -> tuple[Shape, int] | None:
    """The space of a `gather` or `scatter_add` of one element of each row: the index has as many dimensions, and one place
    along the last."""
    whole, index = call.tensor(0).shape, call.tensor(1).shape
    if len(whole) < 2 or call.attributes["axis"] != len(whole) - 1 or whole[-1] < 2:
        return None
    return (whole, 1) if index == column_of(whole, 1) else None


def border_of(ndim: int, joined: int) -> int:
    """The dimension at which what is joined begins; in a column reduction, ends."""
    return -joined if joined < 0 else ndim - joined


def column_of(shape: Shape, joined: int) -> Shape:
    """The shape of a column: with the joined dimensions kept, as 1."""
    border = border_of(len(shape), joined)
    return (1,) * border + shape[border:] if joined < 0 else shape[:border] + (1,) * joined


def bare_of(shape: Shape, joined: int) -> Shape:
    """The shape of a column without the joined dimensions."""
    border = border_of(len(shape), joined)
    return shape[border:] if joined < 0 else shape[:border]


def is_column(shape: Shape, space: Shape, joined: int) -> bool:
    """Whether values of a shape are columns, or totals, of a loose chain."""
    return bool(joined) and shape in (column_of(space, joined), bare_of(space, joined))


def same_as(shape: Shape, longer: Shape) -> bool:
    """Whether a shape is a longer one without dimensions of one element at its end."""
    return longer[: len(shape)] == shape and all(size == 1 for size in longer[len(shape) :])


class OperandViews:
    """Finds what the operands of steps are views of. Element by element, an `expand` is only a way to look at what is there: of
    one it is the step behind it. (Not for a `cast` in a strict chain: NumPy lays its result as an expanded operand lies.)"""

    def __init__(self, steps: Sequence[FusableStep], made: dict[int, int], *, loose: bool) -> None:
        self.steps = steps
        self.made = made
        self.loose = loose
        self._found: dict[int, list[ViewedOperand]] = {}

    def operand(self, call: KernelCall, slot: int, shape: Shape) -> ViewedOperand:
        """What an operand of this shape looks at, in a slot."""
        views: list[int] = []
        reshaped = False
        looks = OPS[call.op].family in ELEMENTWISE_FAMILIES and (call.op != "cast" or self.loose)
        while looks or call.op in ROW_INDEX_OPS:
            at = self.made.get(slot)
            other = None if at is None else self.steps[at].call
            if at is None or other is None or not self._is_view(other, first=not views, reshaped=reshaped):
                break
            source = other.tensor(0)
            if other.op == "expand":
                shape = source.shape
            else:
                reshaped, shape = True, () if source.size == 1 else other.result.shape
            views.append(at)
            slot = self.steps[at].reads[0]
        return ViewedOperand(slot, shape, tuple(views))

    def _is_view(self, call: KernelCall, *, first: bool, reshaped: bool) -> bool:
        """Whether one more step is seen through."""
        if call.op not in ("expand", "reshape") or not self.loose:
            return call.op == "expand" and first
        source, result = call.tensor(0).shape, call.result.shape
        if math.prod(source) == 1:
            return True
        return not reshaped and (call.op == "expand" or same_as(source, result) or same_as(result, source))

    def behind(self, at: int) -> set[int]:
        """The steps whose values a step reads, through views."""
        found = set()
        for seen in self.of(at):
            if seen.slot in self.made:
                found.add(self.made[seen.slot])
        return found

    def of(self, at: int) -> list[ViewedOperand]:
        """What a step reads, operand by operand."""
        found = self._found.get(at)
        if found is None:
            step = self.steps[at]
            assert step.call is not None, "only what has a call looks at something"
            found = self._found[at] = [
                self.operand(step.call, slot, each.shape if isinstance(each, Spec) else ())
                for slot, each in zip(step.reads, step.call.operands, strict=True)
            ]
        return found

    def agree(self, at: int, members: set[int], space: Shape, joined: int) -> bool:
        """Whether a step reads these members of a loose chain as what they are: a column is not a row that is repeated, and
        totals are not known while a column reduction works on its full values."""
        call = self.steps[at].call
        assert call is not None, "members have calls"
        bare = bare_of(space, joined)
        short = joined > 0 and OPS[call.op].family in ELEMENTWISE_FAMILIES and call.result.shape == bare
        for seen in self.of(at):
            source = self.made.get(seen.slot)
            if source is None or source not in members:
                continue
            other = self.steps[source].call
            assert other is not None, "members have calls"
            shape = other.result.shape
            full = OPS[call.op].family not in ELEMENTWISE_FAMILIES or call.result.shape == space
            if math.prod(shape) == 1:
                if joined < 0 and full and self._of_total(source, members):
                    return False
                continue
            if joined < 0:
                if not all(each == space if full else is_column(each, space, joined) for each in (shape, seen.shape)):
                    return False
                continue
            if joined and shape == bare:
                shape = column_of(space, joined)
            if shape != (seen.shape + (1,) * joined if short else seen.shape):
                return False
        return True

    def _of_total(self, at: int, members: set[int]) -> bool:
        """Whether one of these members of a column reduction is a total, or computed of such."""
        stack, seen = [at], set()
        while stack:
            at = stack.pop()
            call = self.steps[at].call
            if call is not None and OPS[call.op].family == "reduction":
                return True
            if at not in seen:
                seen.add(at)
                stack += self.behind(at) & members
        return False
