"""The parts of a snapshot that a worker writes: references to its arrays as they are at that place in the order."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir.spec import Spec, unpack_spec
from gt.sharding.partition import Box, written_box
from gt.sharding.placement import Mesh, parse_layout
from gt.wire import messages as m
from gt.wire.faults import Fault, error_of
from gt.worker.memory_limit.limiter import SpillCause
from gt.worker.spill.spill_file import SpilledValue

from .deferred_checks import DeferredChecks
from .tensor_store import Poison, TensorStore, missing_tensor


def parts_to_write(
    stored: TensorStore, message: m.WritePart, mesh: Mesh, rank: int, worker: int, checks: DeferredChecks | None
) -> list[tuple[int, Spec, Box, np.ndarray[Any, Any]]]:
    """Positions, specs, boxes, and this worker's arrays on the host. Nothing overwrites an array to which somebody else holds a
    reference. Raises the error of a value that has none, also of one that another worker would write."""
    kinds = [(unpack_spec(spec), parse_layout(layout)) for spec, layout in message.kinds]
    store = stored.tensors.get(message.client, {})
    found = []
    for tensor, position, kind in zip(message.tensors, message.positions, message.which, strict=True):
        spec, layout = kinds[kind]
        part = written_box(spec.shape, layout, mesh, rank, position)
        key, value = (message.client, tensor), store.get(tensor)
        if value is None:
            value = missing_tensor(tensor, worker)
        fault = value.fault if isinstance(value, Poison) else settled_fault(stored, checks, key)
        if fault is not None:
            raise error_of(*fault)
        if part is None:
            continue
        if type(value) is SpilledValue and stored.limiter is not None:
            stored.limiter.cause = SpillCause(message.client)
            value = stored.limiter.fetched(value, key, stored.tensors, stored.queue)
        if stored.coming:
            stored.meet(message.client, (tensor,))
        found.append((position, spec, part, stored.backend.to_host(value)))
    return found


def settled_fault(stored: TensorStore, checks: DeferredChecks | None, key: tuple[int, int]) -> Fault | None:
    """The error that a deferred check of a value has found, once the device has answered all."""
    found = () if checks is None else checks.of(key)
    if not all(check.settled() for check in found):
        stored.backend.synchronize()
    for check in found:
        if not check.settled():
            return "WorkerError", f"tensor {key[1]}: the device has not said whether it was computed without an error"
        if check.fault is not None:
            return check.fault
    return None
