"""The tensors that a worker stores for every client, and how they come and go without computing: puts, fetches, frees.

Part of the worker's core: no socket, clock or thread is used here, and plans play no part.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from gt.ir.spec import Spec, unpack_spec
from gt.sharding.partition import Box, box, extent
from gt.sharding.placement import Mesh, parse_layout
from gt.wire import messages as m
from gt.wire.bulk import GET, Key
from gt.wire.faults import Fault, fault_of
from gt.worker.base.backend import Backend
from gt.worker.base.events import BulkIn, BulkOut, Send, SnapshotIn, ToDispatcher
from gt.worker.device.async_copies import MAX_QUEUED_PUT_BYTES, DeviceToHostCopy, HostToDeviceCopy
from gt.worker.memory_limit.explained_error import ExplainedMemoryError
from gt.worker.memory_limit.limiter import MemoryLimiter, SpillCause
from gt.worker.memory_limit.principal_memory import PrincipalMemory
from gt.worker.program.compiler import Program
from gt.worker.spill.memory_accounting import (
    Origins,
    largest_holders,
    memory_by_signal,
    pinned_bytes,
    unstored_memory,
    who_holds,
)
from gt.worker.spill.spill_file import SpilledValue
from gt.worker.telemetry.recorder import WorkerRecording

from .deferred_checks import DeferredCheck


class Poison(NamedTuple):
    """Stands in for a value that could not be computed."""

    fault: Fault


class Absent:
    """Stands in for a tensor of which this worker has no part."""

    nbytes: Final = 0


ABSENT: Final = Absent()


class PendingFetch(NamedTuple):
    """A fetch whose answer waits for a GPU. Without `outgoing` the answer only reports that the value is sound."""

    message: m.Collect
    worker: int
    fault: Fault | None
    outgoing: DeviceToHostCopy | None
    deferred_checks: Sequence[DeferredCheck]
    began: int
    placed: bool
    """Whether it goes to where its receiver has offered a place."""

    def come(self) -> bool:
        """Whether it can be sent."""
        if self.outgoing is not None and self.outgoing.left:
            return False
        return all(deferred_check.settled() for deferred_check in self.deferred_checks)


HostMemory = Callable[[Key, bytes, Any], "tuple[np.ndarray[Any, Any] | None, bool]"]
"""Given the key and the receiver of a part of a fetch, and its value on the device: memory for it (None: new memory is made), and
whether that is where the receiver has offered a place."""


def _new_memory(_key: Key, _receiver: bytes, _value: Any) -> tuple[None, bool]:
    return None, False


def _key(message: m.Collect, worker: int) -> Key:
    return GET, message.client, message.reply, worker


class TensorStore:
    """The stored values by client and tensor, and the puts in progress. With a `limiter` their memory is limited.

    `queue` has the worker's future work, from which the `limiter` knows what is needed next. Messages to send are appended to
    `out`.
    """

    def __init__(self, backend: Backend, limiter: MemoryLimiter | None, queue: Sequence[Any], out: list[Send]) -> None:
        self.backend = backend
        self.limiter = limiter
        self.queue = queue
        self.out = out
        self.tensors: dict[int, dict[int, Any]] = {}
        """By client and tensor: an array, a NumPy scalar, `ABSENT`, a `SpilledValue`, or a `Poison`."""
        self.origins = Origins()
        self.memory = PrincipalMemory(backend.buffers, self.origins)
        """To whom clients' tensors are charged."""
        if limiter is not None:
            limiter.origins = self.origins
            limiter.memory = self.memory
        self.most = 0
        """The most bytes that the device's pool was seen to have."""
        self.explained = (-1, "")
        """Who held memory when it first ran out, in the plan of this order."""
        self.expecting: dict[tuple[int, int], tuple[bytes, Spec, Box]] = {}
        """Bulk puts that were announced and have not landed: (client, tensor) → (sender, spec, box). The shell reads it."""
        self.unwanted: set[tuple[int, int]] = set()
        """Bulk puts that were freed before they landed: they are received and dropped."""
        self.loading: set[tuple[int, int]] = set()
        """Tensors that are being read from a snapshot: (client, tensor)."""
        self.coming: dict[tuple[int, int], HostToDeviceCopy] = {}
        """For tensors on their way to a GPU that no kernel has read yet: the copy in progress."""
        self.answers: deque[PendingFetch] = deque()
        """Answers to fetches that are on their way from a GPU, in the order of the requests."""
        self.host_memory: HostMemory = _new_memory
        """Finds the memory to which a part of a fetch is copied from a GPU. The shell sets it."""

    @property
    def nbytes(self) -> int:
        """The bytes of all stored tensors; arrays that share memory each count."""
        return sum(v.nbytes for store in self.tensors.values() for v in store.values() if not isinstance(v, Poison))

    def survey(self, most: int) -> dict[str, Any]:
        """This worker's memory for `gt.memory()`, with the `most` largest holdings of each client."""
        held = memory_by_signal(self.tensors, self.origins, self.backend.buffers)
        usage, limiter = self.backend.usage(), self.limiter
        live = sum(each.live for each in held)
        self.most = max(self.most, usage.most)
        return {
            "device": self.backend.name,
            "pool_size": 0 if limiter is None else limiter.limit,
            "pool_used": live if usage.used is None else usage.used,
            "high_water": self.most if limiter is None or usage.used is not None else limiter.most,
            "pinned": pinned_bytes(self.tensors),
            "pinned_reserved": 0 if limiter is None or limiter.spill.pinned is None else limiter.spill.pinned.reserved,
            "fragmentation": usage.unused,
            "holders": [list(each) for each in largest_holders(held, most)],
            **({} if self.backend.torch is None else {"host_calls": self.backend.torch.host_counts()}),
        }

    def fault(
        self, error: BaseException, order: int = -1, program: Program | None = None, slots: Sequence[Any] = ()
    ) -> Fault:
        """An error as it travels, with the order of its plan, or -1. An error of memory names the holders."""
        kind, text = fault_of(error)
        if isinstance(error, MemoryError) and not isinstance(error, ExplainedMemoryError):
            if order < 0 or self.explained[0] != order:
                buffers = self.backend.buffers
                made = [] if program is None else unstored_memory(program, slots, self.tensors, buffers)
                self.explained = order, who_holds([*memory_by_signal(self.tensors, self.origins, buffers), *made])
            text = f"{text}. Held: {self.explained[1]}"
        return kind, text

    def put(self, message: m.Store, mesh: Mesh, rank: int, recording: WorkerRecording | None) -> None:
        """Store this worker's part of a put, or expect it, if its bytes come over the bulk socket."""
        spec = unpack_spec(message.spec)
        part = box(spec.shape, parse_layout(message.layout), mesh, rank)
        store = self.tensors.setdefault(message.client, {})
        if part is None:  # it is pinned to another worker
            store[message.tensor] = ABSENT
            return
        shape = tuple(stop - start for start, stop in part)
        if message.signal:
            self.origins.note(message.client, message.tensor, {0: "/".join(message.signal)}, store)
        if message.sender and all(shape):
            self.expecting[message.client, message.tensor] = (bytes(message.sender), spec, part)
            if recording is not None:
                recording.put_announced(message.client, message.tensor)
            return
        began = recording.clock() if recording is not None else 0
        try:
            if message.sender:
                array = np.empty(shape, spec.dtype.numpy)
            else:
                whole = np.frombuffer(message.data, spec.dtype.numpy).reshape(spec.shape)
                array = np.array(whole[tuple(slice(*pair) for pair in part)], order="C")
            store[message.tensor] = self.received(message.client, message.tensor, array)
        except Exception as error:  # noqa: BLE001 — whatever it raises becomes a fault of what it was to make
            store[message.tensor] = self._failed_put(spec, error)
        if recording is not None:
            nbytes = math.prod(shape) * spec.dtype.itemsize
            recording.transferred("put", began, message.client, message.tensor, nbytes)

    def receive_put(self, event: BulkIn, recording: WorkerRecording | None) -> None:
        """The bytes of a put have arrived."""
        key = event.client, event.tensor
        announced = self.expecting.pop(key, None)
        if announced is None:
            return
        if key in self.unwanted:
            self.unwanted.discard(key)
            self._forget_if_empty(event.client)
            return
        _, spec, _ = announced
        value: Any
        try:
            if event.array is None:
                raise MemoryError("out of memory")
            value = self.received(event.client, event.tensor, event.array)
        except Exception as error:  # noqa: BLE001 — whatever it raises becomes a fault of what it was to make
            value = self._failed_put(spec, error)
        self.tensors.setdefault(event.client, {})[event.tensor] = value
        if recording is not None:
            recording.put_landed(event.client, event.tensor, 0 if event.array is None else event.array.nbytes)
        self.out.append(ToDispatcher(m.Landed(event.client, event.tensor)))

    def load(self, message: m.LoadPart, mesh: Mesh, rank: int) -> Box | None:
        """The part of a tensor that this worker has to read from a snapshot; None if it has none."""
        spec = unpack_spec(message.spec)
        part = box(spec.shape, parse_layout(message.layout), mesh, rank)
        store = self.tensors.setdefault(message.client, {})
        if message.signal:
            self.origins.note(message.client, message.tensor, {0: "/".join(message.signal)}, store)
        if part is None:
            store[message.tensor] = ABSENT
        elif not all(extent(part)):
            store[message.tensor] = self.backend.from_host(np.empty(extent(part), spec.dtype.numpy))
        else:
            self.loading.add((message.client, message.tensor))
            return part
        return None

    def receive_load(self, event: SnapshotIn) -> None:
        """A part of a tensor was read from a snapshot, or could not be. One that was freed meanwhile is dropped."""
        key = event.client, event.tensor
        if key not in self.loading:
            return
        self.loading.discard(key)
        fault, value = event.fault, None
        if event.array is not None:
            try:
                value = self.received(*key, event.array)
            except Exception as error:  # noqa: BLE001 — whatever it raises becomes a fault of what it was to make
                kind, text = self.fault(error)
                fault = (kind, f"a tensor from a snapshot: {text}")
        if value is None:
            fault = fault or ("SnapshotError", "a part of a snapshot was not read")
            value = Poison(fault)
        self.tensors.setdefault(event.client, {})[event.tensor] = value
        self.out.append(ToDispatcher(m.Loaded(event.client, event.tensor, list(fault or ()))))

    def share_load(self, client: int, tensor: int, value: Any) -> None:
        """A part of a tensor that was to be read is here already: both look at one array, which nobody changes."""
        self.loading.discard((client, tensor))
        self.tensors[client][tensor] = value
        self.out.append(ToDispatcher(m.Loaded(client, tensor, [])))

    def _failed_put(self, spec: Spec, error: Exception) -> Poison:
        kind, text = self.fault(error)
        return Poison((kind, f"a put of {spec}: {text}"))

    def received(self, client: int, tensor: int, array: np.ndarray[Any, Any]) -> Any:
        """What arrived, as a value on the device or on its way there. Other values are evicted for it if necessary. Raises
        `ExplainedMemoryError` for what its client's principal may not hold."""
        if self.memory.limited:
            self.memory.take(client, array.nbytes, "what came", self.tensors)
        if self.limiter is not None:
            self.limiter.cause = SpillCause(client)
            self.limiter.receives(array, self.tensors, self.queue)
        staging = self.backend.staging
        if staging is None:
            return self.backend.from_host(array)
        value, incoming = staging.puts.bring(array)
        if incoming is not None:
            self.coming[client, tensor] = incoming
        return value

    def ready(self, message: Any) -> bool:
        """Whether the device has been told of all copies that the next message depends on. The last put may still wait for
        room in pinned memory, which becomes free by and by; before another put, there must be room for it to wait."""
        staging = self.backend.staging
        if staging is None or not staging.puts.waiting:
            return True
        if isinstance(message, m.Store):
            return staging.puts.waiting <= MAX_QUEUED_PUT_BYTES
        if isinstance(message, m.Execute):
            read: Iterable[int] = message.inputs
        elif isinstance(message, m.Collect):
            read = () if message.silent else (message.tensor,)
        elif isinstance(message, m.WritePart):
            read = message.tensors
        elif isinstance(message, m.TakeMark):
            read = [tensor for client, tensor in self.coming if client == message.client]
        else:
            return True
        found = [self.coming.get((message.client, tensor)) for tensor in read]
        return all(incoming is None or incoming.event is not None for incoming in found)

    def meet(self, client: int, tensors: Iterable[int]) -> None:
        """Let later kernels read these tensors: they wait for the copies to the device."""
        assert self.backend.streams is not None, "elsewhere nothing is on its way"
        for tensor in tensors:
            incoming = self.coming.pop((client, tensor), None)
            if incoming is not None:
                self.backend.streams.compute.wait_event(incoming.event)

    def free(self, client: int, tensors: list[int]) -> None:
        """Free tensors that nobody needs any more."""
        store = self.tensors.get(client, {})
        for tensor in tensors:
            store.pop(tensor, None)
            if self.coming:
                self.coming.pop((client, tensor), None)
            if self.expecting and (client, tensor) in self.expecting:
                self.unwanted.add((client, tensor))
            if self.loading:
                self.loading.discard((client, tensor))

    def release(self, client: int, tensors: list[int]) -> None:
        """Free tensors between two plans. Nothing is left of a client that has no others: its session may have moved to other
        workers, and this one does not hear of its end."""
        self.free(client, tensors)
        self._forget_if_empty(client)

    def _forget_if_empty(self, client: int) -> None:
        """Forget a client of which nothing is here, or on its way."""
        if not self.tensors.get(client, True) and not any(key[0] == client for key in (*self.expecting, *self.loading)):
            del self.tensors[client]
            self.origins.forget(client)

    def clients(self) -> set[int]:
        """The clients of which something is here, or on its way."""
        return {*self.tensors, *(key[0] for key in (*self.expecting, *self.loading, *self.coming))}

    def forget(self, client: int) -> None:
        """Forget a client that is gone, with all its tensors."""
        self.memory.forget(client)
        self.tensors.pop(client, None)
        self.origins.forget(client)
        for key in [key for key in self.expecting if key[0] == client]:
            del self.expecting[key]
            self.unwanted.discard(key)
        self.loading = {key for key in self.loading if key[0] != client}
        for key in [key for key in self.coming if key[0] == client]:
            del self.coming[key]
        self.answers = deque(answer for answer in self.answers if answer.message.client != client)

    def collect(
        self,
        message: m.Collect,
        worker: int,
        recording: WorkerRecording | None,
        deferred_checks: Sequence[DeferredCheck] = (),
        value: Any = None,
    ) -> None:
        """Send a client this worker's part of a fetched tensor; or only report that the value is sound, if another worker
        sends the same. `value` is that part, where it is not stored yet.

        From a GPU, the answer is sent when the data has arrived and its `deferred_checks` are settled (`turn`).
        """
        began = recording.clock() if recording is not None else 0
        if value is None:
            value = self.tensors.get(message.client, {}).get(message.tensor)
        if value is None:
            value = missing_tensor(message.tensor, worker)
        array, outgoing, placed = None, None, False
        if not message.silent and not isinstance(value, Poison):
            try:
                if type(value) is SpilledValue and self.limiter is not None:
                    self.limiter.cause = SpillCause(message.client)
                    value = self.limiter.fetched(value, (message.client, message.tensor), self.tensors, self.queue)
                if self.backend.staging is None:
                    array = self.backend.to_host(value)
                    if array.size and 0 in array.strides:
                        array = np.ascontiguousarray(array).reshape(value.shape)
                else:
                    if self.coming:
                        self.meet(message.client, (message.tensor,))
                    into, placed = self.host_memory(_key(message, worker), bytes(message.receiver), value)
                    outgoing = self.backend.staging.fetches.send(value, into)
            except Exception as error:  # noqa: BLE001 — out of memory: an expanded tensor takes none until it is sent
                kind, text = self.fault(error)
                value = Poison((kind, f"{text}\n  in a fetch of tensor {message.tensor}"))
        fault = value.fault if isinstance(value, Poison) else None
        if self.backend.staging is None:
            self._answer(message, worker, fault, array, began, recording)
        else:
            self.answers.append(PendingFetch(message, worker, fault, outgoing, deferred_checks, began, placed))

    def turn(self, recording: WorkerRecording | None) -> None:
        """Send the answers whose data has arrived from the device, in the order of the requests."""
        while self.answers and self.answers[0].come():
            message, worker, fault, outgoing, deferred_checks, began, placed = self.answers.popleft()
            fault = next(
                (deferred_check.fault for deferred_check in deferred_checks if deferred_check.fault is not None), fault
            )
            array = None if outgoing is None else outgoing.array
            self._answer(message, worker, fault, array, began, recording, placed=placed)

    def _answer(
        self, message: m.Collect, worker: int, fault: Fault | None, array: np.ndarray[Any, Any] | None, began: int,
        recording: WorkerRecording | None, *, placed: bool = False,
    ) -> None:  # fmt: skip
        if fault is not None:
            self.out.append(ToDispatcher(m.Part(message.request, list(fault), False, b"")))
        elif array is None:
            self.out.append(ToDispatcher(m.Part(message.request, [], False, b"")))
        else:
            part = m.Part(message.request, [], False, b"")
            self.out.append(BulkOut(part, _key(message, worker), bytes(message.receiver), array, placed))
            if recording is not None:
                recording.transferred("fetch", began, message.client, message.tensor, array.nbytes)

    def take_in(self, key: tuple[int, int], value: SpilledValue) -> Any:
        """A stored value, by client and tensor, that was evicted; there is room for it."""
        assert self.limiter is not None, "only what it put out is out"
        try:
            return self.limiter.take_in(value, key)
        except Exception as error:  # noqa: BLE001 — a disk that cannot be read
            kind, text = self.fault(error)
            return Poison((kind, f"{text}\n  when tensor {key[1]} was read that had been put out of memory"))


def missing_tensor(tensor: int, worker: int) -> Poison:
    """Stands in for a tensor that should be stored and is not: only its readers fail."""
    return Poison(("WorkerError", f"tensor {tensor} is not on worker {worker}"))


def storable(value: Any) -> Any:
    """A value as it is stored: an array, but not a small view that keeps a much larger array alive."""
    if type(value) is Poison or type(value) is SpilledValue:
        return value
    if value is None:
        return ABSENT
    if isinstance(value, np.generic):
        return np.asarray(value)
    base = value.base
    if base is not None and getattr(base, "nbytes", 0) > 2 * value.nbytes:
        return value.copy()
    return value
