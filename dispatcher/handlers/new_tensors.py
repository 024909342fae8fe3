"""Tensors that come into a session from outside, by a put or from a snapshot: which ids they may have, and what happens
when one cannot be placed."""

from __future__ import annotations

from typing import Any, Final

from gt.bounds import MAX_TENSORS
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.records import ClientRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.errors import ProtocolError
from gt.ir.spec import Spec, unpack_spec
from gt.wire import messages as m
from gt.wire.faults import Fault, error_of

MAX_ID: Final = 1 << 63
"""The upper bound of tensor ids, so that they fit every integer type that carries them."""


def check_new(client: ClientRecord, tensor: int) -> None:
    """Raise `ProtocolError` unless a client may have a new tensor of this id, and `OutOfMemory` if it has too many."""
    if tensor in client.table:
        raise ProtocolError(f"tensor {tensor} exists already")
    if not 0 <= tensor < MAX_ID:
        raise ProtocolError(f"tensor ids lie from 0 to {MAX_ID - 1}")
    if client.is_full(1):
        raise error_of("OutOfMemory", f"more than {MAX_TENSORS} live tensors in one session")


def fail_new(service: DispatcherState, client: ClientRecord, tensor: int, spec: Any, fault: Fault) -> None:
    """Give a tensor a fault instead of a value. Where its id is taken or none, or no room is left, its client is told."""
    client.arrived += 1
    if tensor in client.table or not 0 <= tensor < MAX_ID or client.is_full(1):
        service.send(client.identity, m.Failed(0, *fault))
    else:
        client.table[tensor] = Entry(_spec_or_empty(spec), 0, ResidentPlacement(()), fault)


def _spec_or_empty(raw: Any) -> Spec:
    """A spec from the wire, or an empty one if it is malformed."""
    try:
        return unpack_spec(raw)
    except ProtocolError:
        return unpack_spec(["f32", [0]])
