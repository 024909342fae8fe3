"""Workers' cores of one mesh, whose pieces a test delivers: for tests of what workers do."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from builders import Array, Lines

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import Policy
from gt.errors import WorkerError
from gt.ir.dtypes import as_dtype, int64
from gt.ir.instruction import MOVE, Plan, Segment
from gt.ir.instruction_bytes import pack_plan
from gt.ir.spec import pack_spec, spec
from gt.sharding.placement import REPLICATE, Layout, Shard, format_layout, uniform_mesh
from gt.wire import messages as m
from gt.wire.messages import codec
from gt.wire.shared_memory.slab import Slab
from gt.worker.base.backend import backend
from gt.worker.base.events import BulkOut, Forgotten, MarkWork, ToDispatcher, ToPeer, Unreachable
from gt.worker.core import WorkerCore
from gt.worker.transfer.compression import Packer
from gt.worker.transfer.link_probe import LinkProbes

CLIENT = 5
SLOT = 256
CUT: Layout = (Shard(0),)
WHOLE: Layout = (REPLICATE,)
made: list[Ranks] = []
"""What the test under way has made, for `tests/worker/conftest.py`."""


class Heap:
    """Shared memory without the sharing: what all workers of a test lend. A slot that is free again is overwritten."""

    everything: dict[int, Array]

    def __init__(self, worker: int, everything: dict[int, Array], slots: int) -> None:
        self.everything = everything
        self.slab = Slab(slots)
        self.gone: set[int] = set()
        self.own = everything[worker] = np.zeros(slots * SLOT, np.uint8)

    def know(self, worker: int, address: str) -> None:
        assert address == str(worker)

    def forget(self, worker: int) -> None:
        self.gone.add(worker)
        self.slab.lost(worker)

    def reaches(self, worker: int) -> bool:
        return worker not in self.gone

    def lend(self, nbytes: int, readers: list[int]) -> tuple[int, int, Array] | None:
        lent = self.slab.lend(readers) if nbytes <= SLOT else None
        return lent and (lent[0], lent[1] * SLOT, self.own[lent[1] * SLOT :][:nbytes])

    def back(self, reader: int, loans: list[int]) -> None:
        self.slab.back(reader, loans)
        for slot in self.slab.free:
            self.own[slot * SLOT :][:SLOT] = 77

    def view(self, worker: int, offset: int, nbytes: int) -> Array:
        if offset + nbytes > self.everything[worker].size:
            raise WorkerError("beyond")
        return self.everything[worker][offset:][:nbytes]


class Ranks:
    """The workers of one mesh. Pieces that they send wait in `pieces`, as (target, piece), until a test delivers them.

    With `slots` each worker lends so many slots of shared memory. `turn` is that of the cores. With a `packer` their
    links are measured, by the test's clock. `on_card`: they are on one card, and lend its memory.
    """

    def __init__(
        self, size: int, slots: int = 0, turn: int | None = None, packer: Packer | None = None, *, on_card: bool = False
    ) -> None:
        memory: dict[int, Array] = {}
        self.heaps = [Heap(rank, memory, slots) for rank in range(size)] if slots else []
        self.mesh = uniform_mesh(1, {"workers": size}, tuple(range(size)))
        self.planner = Planner(self.mesh, Policy(self.mesh, {}))
        computed = [backend("cuda:0" if on_card else "cpu") for _ in range(size)]
        self.cards = [each.card_memory() if each.card_memory else None for each in computed]
        self.cores = [
            WorkerCore(each, heap, turn=turn, links=LinkProbes() if packer else None, packer=packer, card=card)
            for each, heap, card in zip(computed, self.heaps or [None] * size, self.cards, strict=True)
        ]
        self.said: list[list[Any]] = [[] for _ in range(size)]
        self.pieces: list[tuple[int, Any]] = []
        self.unreachable: list[tuple[int, int]] = []
        self.orders = itertools.count(1)
        self.plans = itertools.count(1)
        self.now = 0.0
        body = [["workers"], [size], list(range(size)), [[1] * size], []]
        for rank in range(size):
            self.tell(rank, m.Welcome(rank, {}))
            self.tell(rank, m.DefineMesh(1, body, [self.address(n) for n in range(size)]))
        self.everything = range(size)
        made.append(self)

    def address(self, rank: int) -> str:
        """Where a worker is, and its memory of the card, if it lends that."""
        card = self.cards[rank]
        return str(rank) if card is None else card.announce(f"{rank}#")

    def tell(self, rank: int, event: Any) -> list[Any]:
        """One event for one worker; what it says to the dispatcher."""
        said: list[Any] = []
        for send in self.cores[rank].handle(event, self.now):
            if isinstance(send, ToPeer):
                self.pieces.append((int(send.address.partition("#")[0]), codec.decode(codec.encode(send.message))))
            elif isinstance(send, Unreachable):
                self.unreachable.append((rank, send.worker))
            elif isinstance(send, (BulkOut, Forgotten, MarkWork)):
                said.append(send)
            else:
                assert isinstance(send, ToDispatcher)
                said.append(send.message)
        self.cores[rank].check()
        self.said[rank] += said
        return said

    def all(self, event: Any) -> None:
        for rank in self.everything:
            self.tell(rank, event)

    def deliver(self, index: int = 0) -> None:
        target, piece = self.pieces.pop(index)
        self.tell(target, piece)

    def settle(self) -> None:
        while self.pieces or any(core.busy or core.asks for core in self.cores):
            if self.pieces:
                self.deliver()
            for rank, core in enumerate(self.cores):
                if core.busy or core.asks:
                    self.tell(rank, None)

    def define(self, segment: Segment, layouts: list[Layout], policy: Policy | None = None) -> tuple[int, Plan]:
        """Plan a segment from where its inputs are; tell every worker."""
        planner = Planner(self.mesh, policy) if policy else self.planner
        plan = planner.plan(segment, tuple(ResidentPlacement(layout) for layout in layouts)).plan
        number = next(self.plans)
        self.all(m.DefinePlan(number, pack_plan(plan)))
        return number, plan

    def execute(self, plan: int, inputs: list[int], base: int = 100, **more: Any) -> m.Execute:
        fields: dict[str, Any] = {"scalars": [], "dying": [], "freed": [], **more}
        return m.Execute(next(self.orders), plan, CLIENT, base, inputs, **fields)

    def store(self, tensor: int, array: Array, layout: Layout = WHOLE) -> None:
        known = spec(as_dtype(array.dtype), array.shape)
        form = format_layout(layout)
        data = array.tobytes()
        self.all(m.Store(next(self.orders), CLIENT, tensor, pack_spec(known), 1, form, [], b"", data))

    def stored(self, tensor: int, rank: int = 0) -> Any:
        return self.cores[rank].stored.tensors[CLIENT][tensor]

    def faults(self, rank: int = 0) -> list[str]:
        """The errors that a worker has reported, by their first lines."""
        return [said.text.splitlines()[0] for said in self.said[rank] if isinstance(said, m.Poisoned)]


def numbers(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def gathered(size: int) -> tuple[Ranks, int, Array]:
    """A plan that gathers a tensor cut over `size` workers, and adds to it."""
    group = Ranks(size)
    array = numbers(size * 2, 3)
    group.store(1, array, CUT)
    lines = Lines()
    x = lines.input(size * 2, 3)
    total = lines.op("sum", x, axes=(0,), keepdims=False)
    plan, planned = group.define(lines.segment(lines.op("relu", total)), [CUT])
    assert [i.op for i in planned.instructions] == ["sum", MOVE, "relu"]
    return group, plan, array


def picking() -> Segment:
    """A gather at an index that only some may hold out of range, a sum of it, and an unrelated result."""
    lines = Lines()
    x, index = lines.input(4, 3), lines.input(4, 1, dtype=int64)
    picked = lines.op("gather", x, index, axis=1)
    total = lines.op("sum", picked, axes=(0, 1), keepdims=False)
    after = lines.op("mul", total, total)
    return lines.segment(picked, total, after, lines.op("neg", x))
