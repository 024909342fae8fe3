"""The memory limiter: keeps a worker's memory within its limit by evicting stored tensors and bringing them back in time.

While all fits, it costs one addition per plan. When a plan could exceed the limit, all memory is counted; stored tensors that
the plan does not read are evicted, those that are read again last first, which is known because plans are announced ahead. If
even that is not enough, the plan becomes a low-memory run (`low_memory_run.py`): step by step, with values evicted between two
uses.

The limit is on what slots and stores hold, and on what kernels use while they compute, as far as that is known
(`worker/op_table/workspace_size.py`). Pieces in flight and what clients lend are not in it, nor is what takes less than
`MIN_COUNTED_BYTES`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.ir.instruction import Tag
from gt.sharding.options import WORKER_OPTIONS
from gt.wire import messages as m
from gt.wire.shared_memory.ranges import round_to_pages
from gt.worker.base.backend import Backend
from gt.worker.device.buffers import Buffers
from gt.worker.device.pinned_memory import PinnedPool
from gt.worker.program.compiler import Program
from gt.worker.spill.clean_copies import CleanCopies
from gt.worker.spill.eviction import (
    DEVICE_TIER,
    FILE_TIER,
    NEVER_READ,
    PINNED_TIER,
    OverLimit,
    Residency,
    ResidentBuffer,
    ValuePlace,
)
from gt.worker.spill.memory_accounting import Origins, Stores
from gt.worker.spill.spill_file import SpilledBuffer, SpilledValue, SpillStorage

from .principal_memory import THE_OWNERS, PrincipalMemory

if TYPE_CHECKING:
    from gt.worker.cuda_graphs.graphs import CudaGraphs
    from gt.worker.telemetry.recorder import WorkerRecording

MIN_COUNTED_BYTES: Final = 4096
"""The bytes below which a buffer is not counted."""
MAX_LOOKAHEAD_MESSAGES: Final = 256
"""The most announced messages that are searched for the next read of a tensor."""


class SpillCause(NamedTuple):
    """What causes an eviction or its reversal: a client's run, at the instruction with this tag; or (plan -1) its put or
    fetch."""

    client: int = -1
    plan: int = -1
    order: int = -1
    tag: Tag | None = None


class MemoryLimiter:
    """Keeps one worker within `limit` bytes, of which the share `threshold` may be in use before anything is evicted.

    `ahead` bytes may come back before they are read, when there is room; buffers of less than `small` are not looked at.
    """

    def __init__(
        self,
        buffers: Buffers,
        spill: SpillStorage,
        limit: int,
        threshold: float = 1.0,
        *,
        ahead: int = 0,
        small: int = MIN_COUNTED_BYTES,
    ) -> None:
        self.buffers = buffers
        self.spill = spill
        self.limit = limit
        self.high = int(limit * threshold)
        self.small = small
        self.ahead = ahead
        """Bytes that may come back before they are read."""
        self.bound = 0
        """No more than this is inside, as far as is known without counting."""
        self.most = 0
        """What that has been at most."""
        self.low_memory_runs = 0
        self.copies = CleanCopies()
        self.origins = Origins()
        """In which signals the stored tensors were made; whoever stores them notes that."""
        self.memory: PrincipalMemory | None = None
        """Whose memory is whose: whoever has more than their share of it gives way first."""
        self.recording: WorkerRecording | None = None
        """Who is told what goes out and comes in, while somebody watches."""
        self.cause = SpillCause()
        self.graphs: CudaGraphs | None = None
        """Who has memory of the device beside values."""

    def shares_with(self, graphs: CudaGraphs) -> None:
        """Leave room for what graphs have, and let them have what there is room for."""
        self.graphs = graphs
        graphs.room = lambda nbytes: self.bound + graphs.total + nbytes <= self.high

    @property
    def out(self) -> int:
        """Bytes that are outside and not in memory too."""
        return max(0, self.spill.used - self.copies.nbytes)

    def admits(self, program: Program, client: int, inputs: list[int], stores: Stores, queue: Iterable[Any]) -> bool:
        """Make room for a plan beside its inputs; whether it may run as usual."""
        store = stores.get(client, {})
        outside = {value.outside for tensor in inputs if type(value := store.get(tensor)) is SpilledValue}
        need = program.need + sum(each.nbytes for each in outside)
        most = need + program.scratch
        graphs = self.graphs
        if self.bound + most + (0 if graphs is None else graphs.total) > self.high - self.spill.begun(outside):
            books = self.count(stores)
            pinned = {key for tensor in inputs if (key := books.keys.get((client, tensor))) is not None}
            try:
                others = self.spill.begun(outside) + (0 if graphs is None else graphs.nbytes)
                self.make_room(most, books, pinned, stores, queue, others)
            except (OverLimit, OSError):
                return False
            self.bound = books.used
        self.bound += need
        self.most = max(self.most, self.bound)
        self.look_ahead(stores, queue, [(client, tensor) for tensor in inputs], outside)
        return True

    def look_ahead(
        self,
        stores: Stores,
        queue: Iterable[Any],
        reading: Iterable[ValuePlace] = (),
        counted: Collection[SpilledBuffer] = (),
    ) -> None:
        """Begin to read what announced plans will, the first of them first. Where there is no room, what is read later than that
        goes out, but not what is in the places that are read now (`counted` are among them, and in the bound)."""
        if not self.ahead or not self.spill.used:
            return
        soon = next_reads(queue)
        books: Residency | None = None
        for when, outside in self.to_begin((when, _at(place, stores, [])) for place, when in soon.items()):
            missing = outside.nbytes - (self.high - self.bound - self.spill.begun(counted))
            if self.spill.pinned is None and missing > 0:
                books = books or self.count(stores)
                fixed = {key for place in reading if (key := books.keys.get(place)) is not None}
                given = self.give_way(
                    missing, when, books, fixed, stores, [], lambda place: soon.get(place, NEVER_READ)
                )
                if not given:
                    return
                self.bound -= given
            self.begin(outside)

    def begin(self, outside: SpilledBuffer) -> None:
        """Begin to read one; to pinned memory if there is room besides copies of what is inside."""
        pinned = self.spill.pinned
        if pinned is not None and not pinned.fits(outside.nbytes) and pinned.ever(outside.nbytes):
            self.copies.drop_pinned(lambda: pinned.fits(outside.nbytes))
        self.spill.begin(outside, self.buffers)

    def to_begin(self, coming: Iterable[tuple[float, Any]]) -> Iterator[tuple[float, SpilledBuffer]]:
        """Of values, each with when it is read, the first first: what is in the file, is not being read, and is among the first
        `ahead` bytes."""
        seen: set[SpilledBuffer] = set()
        nbytes = 0
        for when, value in coming:
            if type(value) is not SpilledValue or value.outside.tier != FILE_TIER or value.outside in seen:
                continue
            seen.add(value.outside)
            nbytes += value.outside.nbytes
            if nbytes > self.ahead:
                return
            if not self.spill.reads(value.outside):
                yield when, value.outside

    def give_way(
        self, nbytes: int, when: float, books: Residency, fixed: Collection[Hashable], stores: Stores, slots: list[Any],
        wanted: Callable[[ValuePlace], float],
    ) -> int:  # fmt: skip
        """Put so many bytes out for what is read at `when`, of what is wanted later; how many it were, 0 where that is not
        enough."""
        given = 0
        for key in books.give_way(nbytes, when, fixed, wanted):
            size = books.buffers[key].nbytes
            try:
                self.put_out(books, key, stores, slots, wanted)
            except OSError:  # the disk is full: whoever must have room says so
                break
            given += size
        return given if given >= nbytes else 0

    def receives(self, array: Any, stores: Stores, queue: Iterable[Any]) -> None:
        """Make room for what comes from elsewhere, as far as that is possible; nothing for what lies in lent memory."""
        self.expect(self.buffers.arriving(array), stores, queue)

    def fetched(self, value: SpilledValue, place: ValuePlace, stores: Stores, queue: Iterable[Any]) -> Any:
        """A stored value that is wanted elsewhere. Raises `OSError`, `MemoryError`."""
        self.expect(value.outside.nbytes, stores, queue)
        return self.take_in(value, place)

    def expect(self, nbytes: int, stores: Stores, queue: Iterable[Any]) -> None:
        """Make room for so many bytes, as far as that is possible."""
        if self.bound + nbytes > self.high - self.spill.begun():
            books = self.count(stores)
            try:
                self.make_room(nbytes, books, (), stores, queue, self.spill.begun())
            except (OverLimit, OSError):
                pass  # what comes is more than fits at once: the plan that reads it says so
            self.bound = books.used
        self.bound += nbytes
        self.most = max(self.most, min(self.bound, self.limit))

    def make_room(
        self,
        nbytes: int,
        books: Residency,
        pinned: Iterable[Hashable],
        stores: Stores,
        queue: Iterable[Any],
        others: int,
    ) -> None:
        """Put stored tensors out until so many bytes fit beside `others`: what was begun to be read, and what graphs have. Raises
        `OverLimit`, and `OSError` when the disk is full."""
        soon = next_reads(queue)

        def wanted(place: ValuePlace) -> float:
            return soon.get(place, NEVER_READ)

        for key in books.victims(nbytes, set(pinned), wanted, self.high - others):
            self.put_out(books, key, stores, [], wanted)

    # in and out

    def count(self, stores: Stores) -> Residency:
        """The books of all that is stored."""
        books = Residency(self.limit)
        for client, store in stores.items():
            for tensor, value in store.items():
                self.enter(books, (client, tensor), value)
        owners = None if self.memory is None else self.memory.owners(stores)
        if owners is not None:
            mine = owners.get(self.cause.client, THE_OWNERS)
            books.asks = mine.principal, mine.weight
            books.owner = lambda place: books.asks if isinstance(place, int) else owners[place[0]][::2]
        return books

    def enter(self, books: Residency, place: ValuePlace, value: Any) -> None:
        """Note what is in a place now."""
        if type(value) is SpilledValue:
            books.put(place, value.outside, value.outside.nbytes, value.outside.tier)
            return
        known = self.buffers.of(value)
        if known is None or known[1] < self.small:
            books.clear(place)
        else:
            books.put(place, *known)

    def put_out(
        self, books: Residency, key: Hashable, stores: Stores, slots: list[Any], wanted: Callable[[ValuePlace], float]
    ) -> None:
        """Copy a buffer to where there is room, unless a copy is still there, and leave a `SpilledValue` in place of each value
        that looked at it. Raises `OSError`."""
        buffer = books.buffers[key]
        held = [(place, _at(place, stores, slots)) for place in buffer.places]
        outside = self.copies.of(key, buffer.places)
        if outside is None:
            outside = self._copied(*held[0], buffer, books, wanted)
        self.copies.drop(key)
        for place, value in held:
            _lay(place, SpilledValue(outside, self.buffers.view(value)), stores, slots)
        books.turn(key, outside, outside.tier)
        self.send_on(books, wanted)

    def _copied(
        self,
        place: ValuePlace,
        value: Any,
        buffer: ResidentBuffer,
        books: Residency,
        wanted: Callable[[ValuePlace], float],
    ) -> SpilledBuffer:
        """A value's buffer, outside. Raises `OSError`."""
        try:
            self.make_pinned_room(buffer, books, wanted)
            return self._put(place, value, buffer.nbytes)
        except OSError:
            if not self.copies.kept:
                raise
        self.copies.kept.clear()  # their room on the disk may be enough
        return self._put(place, value, buffer.nbytes)

    def _put(self, place: ValuePlace, value: Any, nbytes: int) -> SpilledBuffer:
        with self._recorded("out", place, nbytes):
            return self.spill.put(value, nbytes, self.buffers)

    def make_pinned_room(self, buffer: ResidentBuffer, books: Residency, wanted: Callable[[ValuePlace], float]) -> None:
        """Have room for a buffer in pinned memory, as far as that is worth it: copies of what is inside are given up first, then
        what is wanted later than this goes on to the file, the last first. That is waited for, but there is room as long as
        `send_on` is fast enough. Raises `OSError`."""
        pinned, nbytes = self.spill.pinned, buffer.nbytes
        if pinned is None or not pinned.ever(nbytes):
            return
        self.spill.gone_on()
        if pinned.fits(nbytes):
            return
        self.copies.drop_pinned(lambda: pinned.fits(nbytes))
        when = min(map(wanted, buffer.places))
        for later_on, key in books.last_first(PINNED_TIER, (), wanted):
            if pinned.fits(nbytes) or later_on < when:
                return
            assert isinstance(key, SpilledBuffer), "what is out is known by where it is"
            if key.tier == PINNED_TIER:
                with self._recorded("full", next(iter(buffer.places)), key.nbytes):
                    self.spill.demote(key)
            books.turn(key, key, FILE_TIER)

    def send_on(self, books: Residency, wanted: Callable[[ValuePlace], float]) -> None:
        """Keep some pinned memory free for what goes out next: copies of what is inside are given up, then a thread writes what
        is wanted last to the file. Nobody waits for that."""
        pinned = self.spill.pinned
        if pinned is None or pinned.fits(pinned.spare):
            return
        self.copies.drop_pinned(lambda: pinned.fits(pinned.spare))
        missing = pinned.used + pinned.spare - pinned.limit - self.spill.going
        for _, key in books.last_first(PINNED_TIER, (), wanted):
            if missing <= 0:
                return
            assert isinstance(key, SpilledBuffer), "what is out is known by where it is"
            if key.tier != PINNED_TIER or self.spill.sends_on(key):
                continue
            try:
                self.spill.send_on(key)
            except OSError:  # whoever must have that room is told
                return
            missing -= round_to_pages(key.nbytes)

    def _recorded(self, kind: str, place: ValuePlace, nbytes: int) -> contextlib.AbstractContextManager[None]:
        """While memory goes out or comes in: whoever watches is told."""
        if self.recording is None:
            return contextlib.nullcontext()
        return self.recording.spilling(kind, self.cause, place, nbytes)

    def take_in(self, value: SpilledValue, place: ValuePlace) -> Any:
        """The array again, in memory that it shares with all that shared it before. Raises `OSError`, `MemoryError`."""
        outside = value.outside
        root = None if outside.inside is None else outside.inside()
        if root is None:
            with self._recorded("ahead" if self.spill.reads(outside) else "in", place, outside.nbytes):
                root = self.spill.restored(outside, self.buffers)
            outside.inside = weakref.ref(root)
        found = self.buffers.look(root, value.view)
        known = self.buffers.of(found)
        if known is not None:
            self.copies.keep(known[0], root, outside, place)
        return found

    def bring(self, books: Residency, key: Hashable, stores: Stores, slots: list[Any]) -> None:
        """Take a buffer in again, in all its places; whoever asks has made room for it. Raises `OSError`, `MemoryError`."""
        found = [(place, self.take_in(_at(place, stores, slots), place)) for place in books.buffers[key].places]
        for place, value in found:
            _lay(place, value, stores, slots)
        known = self.buffers.of(found[0][1])
        assert known is not None, "its memory was made here"
        books.turn(key, known[0], DEVICE_TIER)


def memory_limiter(said: Mapping[str, Any], backend: Backend, host: int = 0) -> MemoryLimiter | None:
    """The limiter of a worker with these options (`gt/sharding/options.py`); None if it has no limit, as on a CPU unless
    one is said.
    `host`: bytes of the host's memory that are this worker's, of which a GPU's values may have the same share as of the pool
    before they go to the file."""
    values = {name: said.get(name, option.default) for name, option in WORKER_OPTIONS.items()}
    limit = backend.limit(int(values["memory_pool_size"]))
    if not limit:
        return None
    share = values["cpu_spill_threshold"]
    pinned = None if backend.pinning is None or not host else PinnedPool(backend.pinning, int(host * share))
    ahead = int(values["prefetch_buffer_size"])
    return MemoryLimiter(backend.buffers, SpillStorage(pinned=pinned), limit, share, ahead=ahead)


def _at(place: ValuePlace, stores: Stores, slots: list[Any]) -> Any:
    return slots[place] if isinstance(place, int) else stores.get(place[0], {}).get(place[1])


def _lay(place: ValuePlace, value: Any, stores: Stores, slots: list[Any]) -> None:
    if isinstance(place, int):
        slots[place] = value
    else:
        stores[place[0]][place[1]] = value


def next_reads(queue: Iterable[Any]) -> dict[ValuePlace, float]:
    """For each stored tensor that an announced message reads, how many messages from now."""
    found: dict[ValuePlace, float] = {}
    for at, message in zip(range(MAX_LOOKAHEAD_MESSAGES), queue, strict=False):
        if isinstance(message, m.Execute):
            for tensor in message.inputs:
                found.setdefault((message.client, tensor), at)
        elif isinstance(message, m.Collect):
            found.setdefault((message.client, message.tensor), at)
    return found
