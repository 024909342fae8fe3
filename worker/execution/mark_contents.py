"""Converts a session's tensors to the form in which a mark keeps them, and back: the same bits in the same layout in memory,
because the order in which NumPy and BLAS add depends on it.

A tensor is a view of a buffer, and buffers are written whole, as evicted ones are (`worker/spill/spill_file.py`); what is stored
takes at least half of its buffer (`storable`). A buffer in the memory of the client, which a put has lent, is not written: the
client outlives the worker, and keeps it as it is. So tensors that shared memory share it again, and an array that owned its
memory, which may be overwritten when nobody else has it (`worker/device/exclusive_array.py`), owns it again. Of a tensor that
another rank writes, which holds the same, only that is written, unless another tensor needs its buffer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from gt.wire.shared_memory.lending import lent_place
from gt.worker.base.events import MarkBuffer, MarkContents, Marked, MarkedReplica, MarkedView
from gt.worker.device.buffers import Buffers, BufferView
from gt.worker.device.deferred_reads import DeferredRead, DeferredReads
from gt.worker.memory_limit.limiter import SpillCause
from gt.worker.spill.memory_accounting import Origins
from gt.worker.spill.spill_file import SpilledValue, SpillStorage

from .deferred_checks import DeferredChecks
from .snapshot_parts import settled_fault
from .tensor_store import ABSENT, Poison, TensorStore

Array = np.ndarray[Any, Any]
NOWHERE: Final[Mapping[int, int]] = MappingProxyType({})


class _Collected:
    """The contents of a mark, as far as they are known. `elsewhere`: by tensor, the rank that writes it."""

    def __init__(self, elsewhere: Mapping[int, int]) -> None:
        self.elsewhere = elsewhere
        self.buffers: list[MarkBuffer] = []
        self.numbers: dict[Hashable, int] = {}
        self.tensors: dict[int, Marked] = {}
        self.reads: dict[int, DeferredRead] = {}
        """By number of a buffer, of those on the device."""

    def own_first(self, values: Mapping[int, Any]) -> list[tuple[int, Any]]:
        """The tensors, those last that others write: of them those are taken along that lie in a buffer of others."""
        if not self.elsewhere:
            return [*values.items()]
        return sorted(values.items(), key=lambda item: item[0] in self.elsewhere)

    def leave(self, tensor: int, key: Hashable, view: BufferView) -> bool:
        """Leave a tensor to the rank that writes it. Returns False if this rank writes it, or has its buffer anyway."""
        rank = self.elsewhere.get(tensor)
        if rank is None or key in self.numbers:
            return False
        self.tensors[tensor] = MarkedReplica(rank, view)
        return True

    def add_host(self, tensor: int, value: Any, *, kept: bool) -> None:
        """Add an array or a scalar of NumPy. `kept`: it is not overwritten before the mark is dropped."""
        array: Array = np.asarray(value)
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        lent = lent_place(root) if kept else None
        view = BufferView(array.dtype, array.shape, array.strides, 0)
        if lent is None and array is value and self.leave(tensor, id(root), view):
            return
        lowest = _forwards(root)
        number = self.numbers.get(id(root))
        if number is None:
            number = self.numbers[id(root)] = len(self.buffers)
            content = root if kept and lent is None else None
            self.buffers.append(MarkBuffer(lambda: (_bytes(lowest),), lent=lent, content=content))
        offset = _address(array) - _address(lowest) if array is not lowest and array.size else 0
        owns = array is value and array.base is None and array.flags.c_contiguous and _is_plain(array)
        self.tensors[tensor] = MarkedView(number, view._replace(offset=offset), owns, isinstance(value, np.generic))

    def add_spilled(self, tensor: int, value: SpilledValue, spill: SpillStorage) -> None:
        """Add a value that is in the file of spilled values, and stays at its place there as long as somebody refers to it."""
        outside = value.outside
        if self.leave(tensor, outside, value.view):
            return
        number = self.numbers.get(outside)
        if number is None:
            number = self.numbers[outside] = len(self.buffers)
            self.buffers.append(MarkBuffer(partial(spill.parts, outside)))
        self.tensors[tensor] = MarkedView(number, value.view, owns=False, scalar=False)

    def add_device(
        self, tensor: int, value: Any, buffers: Buffers, reads: DeferredReads, after: tuple[Any, ...]
    ) -> None:
        """Add a value of a device, whose memory is held until it is read; it is as it will be behind the events `after`."""
        known = buffers.of(value)
        if known is None:  # it has no elements
            self.add_host(tensor, np.empty(value.shape, value.dtype), kept=False)
            return
        key, view = ("device", known[0]), buffers.view(value)
        if self.leave(tensor, key, view):
            return
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.buffers)
            read = self.reads[number] = reads.later(value.data.mem, after)
            self.buffers.append(MarkBuffer(read.parts, release=read.release))
        self.tensors[tensor] = MarkedView(number, view, owns=False, scalar=False)

    def contents(self, signals: Mapping[int, str]) -> MarkContents:
        return MarkContents(self.buffers, self.tensors, signals)


def _is_plain(array: Array) -> bool:
    """Whether an array has the strides of a new one in row-major order. An axis of length 1 may have any other, on which depends
    which kernel BLAS chooses."""
    stride = array.itemsize
    for count, found in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if found != stride:
            return False
        stride *= count
    return True


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _forwards(array: Array) -> Array:
    """The same elements without negative strides, so that the first of them is at the lowest address."""
    if array.flags.c_contiguous:
        return array
    turned: tuple[Any, ...] = (..., *(slice(None, None, -1 if stride < 0 else 1) for stride in array.strides))
    forwards: Array = array[turned]
    return forwards


def _bytes(lowest: Array) -> memoryview:
    """All bytes from the first to the last that an array without negative strides looks at."""
    if lowest.flags.c_contiguous:
        return lowest.reshape(-1).view(np.uint8).data
    size = lowest.itemsize
    span = size + sum((count - 1) * stride for count, stride in zip(lowest.shape, lowest.strides, strict=True))
    flat = np.lib.stride_tricks.as_strided(lowest, (span // size,), (size,), writeable=False)
    return flat.view(np.uint8).data


def host_contents(
    values: Mapping[int, Any],
    client: int,
    origins: Origins,
    elsewhere: Mapping[int, int] = NOWHERE,
    *,
    kept: bool = True,
) -> MarkContents:
    """The contents of a mark of a worker whose values are the host's, and stay as they are until the mark is dropped. Any thread
    may make them. `elsewhere`: by tensor, the rank that writes it in place of this one; without `kept` all bytes are in it."""
    found = _Collected(elsewhere)
    for tensor, value in found.own_first(values):
        if value is ABSENT or isinstance(value, Poison):
            found.tensors[tensor] = value.fault if isinstance(value, Poison) else None
        else:
            found.add_host(tensor, value, kept=kept)
    return found.contents(signals_by_tensor(values, client, origins))


def device_contents(
    stored: TensorStore, client: int, checks: DeferredChecks | None, elsewhere: Mapping[int, int] = NOWHERE,
    identify: Callable[[MarkContents], tuple[MarkContents, Collection[int]]] | None = None,
    in_graphs: Collection[int] = (),
) -> MarkContents:  # fmt: skip
    """The contents of a mark of a worker whose memory is limited, or a GPU's. What is held for it is given up as soon as it is
    written, and what was evicted is read where it is then. `elsewhere`: as above; `identify` finds what earlier marks have, and
    which buffers are new; `in_graphs`: the addresses of memory to which CUDA graphs write."""
    found = _Collected(elsewhere)
    store, limiter, reads = stored.tensors.get(client, {}), stored.limiter, stored.backend.reads
    after = () if reads is None else reads.cut()
    coming: set[int] = set()
    for tensor, value in found.own_first(store):
        fault = settled_fault(stored, checks, (client, tensor))
        if value is ABSENT or isinstance(value, Poison):
            found.tensors[tensor] = value.fault if isinstance(value, Poison) else None
        elif fault is not None:
            found.tensors[tensor] = fault
        elif type(value) is SpilledValue:
            assert limiter is not None, "only what it put out is out"
            found.add_spilled(tensor, value, limiter.spill)
        elif reads is None:
            found.add_host(tensor, stored.backend.to_host(value), kept=False)
        else:
            found.add_device(tensor, value, stored.backend.buffers, reads, after)
            if (client, tensor) in stored.coming and isinstance(view := found.tensors[tensor], MarkedView):
                coming.add(view.buffer)
    contents = found.contents(signals_by_tensor(store, client, stored.origins))
    if identify is None:
        return contents
    contents, new = identify(contents)
    if reads is not None:
        fresh = [found.reads[number] for number in sorted(new) if number in found.reads and number not in coming]
        _set_aside(fresh, reads, stored, in_graphs)
    return contents


def _set_aside(
    fresh: list[DeferredRead], reads: DeferredReads, stored: TensorStore, in_graphs: Collection[int]
) -> None:
    """Copy buffers on the device, as many as half of what is free there has room for; of the others, what graphs write to is
    copied to the host at once."""
    limiter, room = stored.limiter, sys.maxsize
    if limiter is not None:
        room = (limiter.limit - (stored.backend.usage().used or 0)) // 2
    fitting: list[DeferredRead] = []
    others: list[DeferredRead] = []
    for read in fresh:
        (fitting if read.nbytes <= room else others).append(read)
        room -= read.nbytes if read.nbytes <= room else 0
    for read in (*others, *reads.set_aside(fitting)):
        if read.address in in_graphs:
            read.bring_now()


def signals_by_tensor(values: Mapping[int, Any], client: int, origins: Origins) -> dict[int, str]:
    """The signals in which tensors of a client were made, where there are any."""
    tensors = list(values)
    return {tensor: signal for tensor, signal in zip(tensors, origins.signals(client, tensors), strict=True) if signal}


def restore_contents(stored: TensorStore, client: int, contents: MarkContents) -> None:
    """Store the tensors of a mark for a client. Others are evicted for them if necessary. Raises `MemoryError` and `OSError`, and
    then the client has some of them."""
    store = stored.tensors.setdefault(client, {})
    views: dict[int, list[tuple[int, MarkedView]]] = {}
    for tensor, value in contents.tensors.items():
        if isinstance(value, MarkedView):
            views.setdefault(value.buffer, []).append((tensor, value))
        else:
            assert not isinstance(value, MarkedReplica), "what was read has the files of other ranks in it"
            store[tensor] = ABSENT if value is None else Poison(value)
    for tensor, signal in contents.signals.items():
        stored.origins.note(client, tensor, {0: signal}, contents.tensors)
    if stored.limiter is not None:
        stored.limiter.cause = SpillCause(client)
    for number, buffer in enumerate(contents.buffers):
        looks = _looking_at(stored, buffer)
        for tensor, value in views.get(number, ()):
            store[tensor] = looks(value)


def _looking_at(stored: TensorStore, buffer: MarkBuffer) -> Any:
    """What makes the values that look at a buffer, whose memory is the worker's from now on."""
    limiter, backend = stored.limiter, stored.backend
    array = buffer.array
    arrived = (lambda value: value) if backend.torch is None else backend.from_host
    assert array is not None, "what was read has an array"
    if backend.staging is None:
        if limiter is not None:
            limiter.receives(array, stored.tensors, stored.queue)
        memory = array.reshape(-1).view(np.uint8)

        def look(value: MarkedView) -> Any:
            view = value.view
            if value.owns:
                return arrived(array)
            looking: Array = np.ndarray(view.shape, view.dtype, memory, view.offset, view.strides)
            return looking[()] if value.scalar else arrived(looking)

        return look
    if not array.nbytes:
        return lambda value: backend.from_host(np.empty(value.view.shape, value.view.dtype))
    if limiter is not None:
        limiter.expect(array.nbytes, stored.tensors, stored.queue)

    def fill(memory: memoryview) -> None:
        memory[:] = array.reshape(-1).view(np.uint8).data

    root = backend.buffers.restore(array.nbytes, fill)
    return lambda value: backend.buffers.look(root, value.view)
