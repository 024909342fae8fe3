"""A client stays within the bounds of `gt/bounds.py` by itself, whatever a program computes."""

from __future__ import annotations

from typing import Any

import gt
from gt.bounds import MAX_IDS, MAX_INPUTS, MAX_OPERANDS
from gt.ir.instruction_bytes import unpack_segment
from gt.wire import messages as m


def definitions(sent: list[Any]) -> list[Any]:
    return [unpack_segment(message.body) for message in sent if isinstance(message, m.Define)]


def test_more_tensors_than_an_instruction_may_have_are_joined_in_steps(sent: list[Any]) -> None:
    """The value and the gradient are those of one `cat`."""
    count = 2 * MAX_OPERANDS + 3
    x = gt.arange(float(count)).requires_grad_()
    joined = gt.stack([x[at] for at in range(count)])
    (joined * gt.arange(float(count))).sum().backward()
    assert joined.tolist() == list(range(count))
    assert x.grad.tolist() == list(range(count))  # type: ignore[union-attr]
    most = max(len(each.inputs) for segment in definitions(sent) for each in segment.instructions)
    assert most == MAX_OPERANDS


def test_a_segment_is_cut_before_it_has_too_many_inputs(sent: list[Any]) -> None:
    """Also in the middle of what would otherwise be one segment; the values are the same."""
    tensors = [gt.full((1,), float(at)) for at in range(MAX_INPUTS + 5)]
    step = MAX_OPERANDS
    gt.ones(1).numpy()
    sums = [gt.cat(tensors[at : at + step]).sum() for at in range(0, len(tensors), step)]
    assert sum(each.item() for each in sums) == sum(range(len(tensors)))
    assert MAX_INPUTS - MAX_OPERANDS <= max(len(segment.inputs) for segment in definitions(sent)) <= MAX_INPUTS
    del tensors, sums
    gt.ones(1).numpy()
    assert max(len(each.tensors) for each in sent if isinstance(each, m.Free)) == MAX_IDS
