"""Whose memory is whose: each client's is charged to its principal, which may hold so many bytes of live tensors on this worker.

While a principal's tensors surely fit, that costs one addition for each plan and put. When they might not, all that its sessions
hold is counted, in memory and outside; a plan that could hold too much then runs step by step (`LiveBytesRun`), so that only the
instruction that is over the limit fails, and what depends on it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final, NamedTuple

from gt.worker.device.buffers import Buffers
from gt.worker.program.compiler import Program, ProgramStep
from gt.worker.spill.eviction import DEVICE_TIER, Residency, ValuePlace
from gt.worker.spill.memory_accounting import Origins, Stores, memory_by_signal, who_holds
from gt.worker.spill.spill_file import SpilledValue

from .explained_error import ExplainedMemoryError


class MemoryCharge(NamedTuple):
    """To whom a client's memory is charged, as a mesh of it has said."""

    principal: str = ""
    """Its name; empty for the owner of the service."""
    live_bytes: int = 0
    """What the principal may hold here, with all its sessions; 0: there is no limit."""
    weight: float = 1.0
    """Of the principal's share of this worker's memory."""
    mesh: int = 0


THE_OWNERS: Final = MemoryCharge()


class PrincipalMemory:
    """The charges of all clients, and what each principal that has a limit holds at most."""

    def __init__(self, buffers: Buffers, origins: Origins) -> None:
        self.buffers = buffers
        self.origins = origins
        self.charges: dict[int, MemoryCharge] = {}
        """By client."""
        self.limited = False
        """Whether any principal has a limit."""
        self.bounds: dict[str, int] = {}
        """No more than this is held, as far as is known without counting."""

    def note(self, client: int, charge: MemoryCharge) -> None:
        """A client's memory is charged so from now on. Limit and weight are its principal's, and so of all that is charged to
        that."""
        if self.of(client)[:3] != charge[:3]:  # else all of them have these already
            for other, known in self.charges.items():
                if known.principal == charge.principal:
                    self.charges[other] = charge._replace(mesh=known.mesh)
        self.charges[client] = charge
        self._changed()

    def drop_mesh(self, mesh: int) -> None:
        """A mesh is no more: a client that has no other here has nothing here."""
        self._without([client for client, charge in self.charges.items() if charge.mesh == mesh])

    def forget(self, client: int) -> None:
        """A client is gone."""
        self._without([client] if client in self.charges else [])

    def leave(self) -> None:
        """All clients are gone."""
        self._without([*self.charges])

    def _without(self, clients: list[int]) -> None:
        for client in clients:
            del self.charges[client]
        if clients:
            self._changed()

    def _changed(self) -> None:
        names = {charge.principal for charge in self.charges.values() if charge.live_bytes}
        self.limited = bool(names)
        self.bounds = {name: bound for name, bound in self.bounds.items() if name in names}

    def of(self, client: int) -> MemoryCharge:
        """To whom a client's memory is charged."""
        return self.charges.get(client, THE_OWNERS)

    def owners(self, stores: Stores) -> Mapping[int, MemoryCharge] | None:
        """The charges of the clients that hold something; None if one principal has all of it."""
        found = {client: self.of(client) for client in stores}
        return found if len({charge.principal for charge in found.values()}) > 1 else None

    def admits(self, client: int, nbytes: int, stores: Stores) -> bool:
        """Whether a client's principal may surely hold so many bytes more, which count as held from now on."""
        charge = self.of(client)
        if not charge.live_bytes:
            return True
        bound = self.bounds.get(charge.principal)
        if bound is None or bound + nbytes > charge.live_bytes:
            bound = self.bounds[charge.principal] = self.held(charge.principal, stores)
            if bound + nbytes > charge.live_bytes:
                return False
        self.bounds[charge.principal] = bound + nbytes
        return True

    def take(self, client: int, nbytes: int, what: str, stores: Stores) -> None:
        """Charge so many bytes, for `what`. Raises `ExplainedMemoryError` if the principal may not hold them."""
        if not self.admits(client, nbytes, stores):
            charge = self.of(client)
            raise self.refusal(charge, self.bounds[charge.principal], nbytes, what, stores)

    def refusal(self, charge: MemoryCharge, held: int, needed: int, what: str, stores: Stores) -> ExplainedMemoryError:
        """The error of what is over a limit: how much, and what of its principal holds it."""
        own = memory_by_signal(self._own(charge.principal, stores), self.origins, self.buffers)
        return ExplainedMemoryError(
            f"over the limit of {charge.principal}, which may hold {charge.live_bytes:,} bytes on this worker with all its "
            f"sessions (live_bytes): it holds {held:,}, and {what} needs {needed:,} more. Held: {who_holds(own)}. "
            "Free tensors, or ask whoever runs the service for more"
        )

    def held(self, principal: str, stores: Stores) -> int:
        """What a principal's sessions hold, in memory and outside."""
        return sum(self.books(principal, stores).held)

    def _own(self, principal: str, stores: Stores) -> Stores:
        return {client: store for client, store in stores.items() if self.of(client).principal == principal}

    def books(self, principal: str, stores: Stores) -> Residency:
        """The books of what a principal holds."""
        books = Residency(0)
        for client, store in self._own(principal, stores).items():
            for tensor, value in store.items():
                self.enter(books, (client, tensor), value)
        return books

    def enter(self, books: Residency, place: ValuePlace, value: Any) -> None:
        """Note what is in a place now. A slot with a value in lent memory is an operand, which is in store."""
        key: Hashable
        if type(value) is SpilledValue:
            root = None if value.outside.inside is None else value.outside.inside()
            known = None if root is None else self.buffers.of(root)
            if known is not None:  # others that look at the same memory have it back already
                books.put(place, *known)
            else:
                books.put(place, value.outside, value.outside.nbytes, value.outside.tier)
        elif (known := self.buffers.of(value)) is not None:
            books.put(place, *known)
        elif not isinstance(place, int) and hasattr(value, "dtype"):
            key = ("lent", place)
            books.put(place, key, value.nbytes, DEVICE_TIER)
        else:
            books.clear(place)


class LiveBytesRun:
    """A run of a plan whose client's principal is near its limit: before each step it is known what is held."""

    def __init__(
        self, memory: PrincipalMemory, client: int, program: Program, slots: list[Any], stores: Stores
    ) -> None:
        self.memory = memory
        self.charge = memory.of(client)
        self.program = program
        self.slots = slots
        self.stores = stores
        self.books = Residency(0)

    @property
    def held(self) -> int:
        """What the principal holds now."""
        return sum(self.books.held)

    def begin_block(self) -> None:
        """A block begins, after a move perhaps, while which puts may have come: count anew."""
        self.books = self.memory.books(self.charge.principal, self.stores)
        for slot, value in enumerate(self.slots):
            if value is not None:
                self.memory.enter(self.books, slot, value)

    def check(self, step: ProgramStep, *, anew: bool) -> None:
        """Raise `ExplainedMemoryError` for a step whose result would be too much; `anew`: values may have gone out of memory or
        come back since the last one."""
        if anew:
            self.begin_block()
        needs = step.needs
        if step.instruction.op == "reshape":
            operand = self.slots[step.reads[0]]
            if type(operand) is not SpilledValue and operand.flags.c_contiguous:
                needs = 0  # it will be a view
        if needs and self.held + needs > self.charge.live_bytes:
            raise self.memory.refusal(self.charge, self.held, needs, "this instruction", self.stores)

    def done(self, step: ProgramStep) -> None:
        """A step is over: its result is in its slot, and those of what is dead are empty."""
        self.memory.enter(self.books, step.writes, self.slots[step.writes])
        for slot in step.dead:
            self.books.clear(slot)

    def end(self) -> None:
        """The plan is over: what it has left is in store."""
        self.memory.bounds[self.charge.principal] = self.held
