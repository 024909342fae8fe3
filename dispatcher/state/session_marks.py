"""Marks: what a session was at a place of its stream, so that it can go back there after a loss.

A mark is between two messages of the client. It has all that later plans, and so the bits of values, depend on: the tensor
table, definitions, plans and how often they ran, the config and what was decided under it, and the mesh with its frozen
weights and speeds. The workers of the mesh have the values (`TakeMark` in `gt/wire/messages/marks.py`). State only:
`handlers/marks.py` takes marks, and `handlers/recovery.py` goes back to them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.dispatcher.planner.policy import Policy
from gt.sharding.placement import Mesh
from gt.wire.faults import Fault

from .config_resolution import SharedComputation
from .fatal_runs import FatalRuns
from .mark_wait import MarkWait
from .plan_cache import Entry, SavedPlan

if TYPE_CHECKING:
    from gt.dispatcher.cost.cost_model import Speeds

    from .peer_parts import Delivery
    from .records import ClientRecord

ENTRIES_PER_TURN: Final = 128
"""How many tensors of a mark get another entry in one turn; each may take some microseconds."""
COPIED_PER_TURN: Final = 4096
"""How many tensors of a table are copied in one turn."""
MAX_IDLE_REWINDS: Final = 5
"""How often in a row a session goes back without having come further than before."""
MAX_FAILURES: Final = 2
"""How many of a session's workers may fail by themselves (a device, a bug) between two marks until it does not try again: what it
runs may be the cause."""


@dataclass(slots=True, eq=False)
class SessionMark:
    """One mark. `position` counts the client's messages before it, and `done` the runs and puts among them."""

    number: int
    position: int
    done: int
    mesh: Mesh
    speeds: Speeds
    policy: Policy
    table: Mapping[int, Entry]
    segments: dict[int, Any]
    refused: dict[int, dict[int, Entry]]
    reduced: dict[int, int]
    """Of the definitions of which a reduced form is run on this mesh, the number of that."""
    plans: dict[Any, SavedPlan]
    own: Any
    config: Any
    base: Any
    """The service's config at that time."""
    verify: float
    tf32: bool
    checked: int
    """How many runs had been checked, or passed over."""
    warned: set[tuple[str, float]]
    waiting: set[int] = field(default_factory=set)
    """The workers that have yet to write their tensors, and perhaps the dispatcher itself."""
    seconds: float = 0.0
    """What the slowest worker took for that."""
    folders: tuple[str, ...] = ()
    """By rank, the folder in which the worker has written its file; empty where that is not known."""
    kinds: tuple[tuple[str, str], ...] = ()
    """By rank, the kind and model of the worker."""
    wait: MarkWait | None = None
    """How long it may take, while it is written."""
    turns: dict[int, int] = field(default_factory=dict)
    """Of the tensors whose parts one of several workers writes, which of them (`shared_parts.py`)."""


class FrozenShape(NamedTuple):
    """The weights, speeds and hosts that a session's mesh had when it was first made; another like it gets the same, because
    bits depend on them. A worker that takes a lost one's place counts to its host, wherever it is."""

    weights: tuple[tuple[int, ...], ...]
    speeds: Speeds
    hosts: tuple[int, ...] = ()
    network: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class SessionRecovery:
    """What is kept of a session so that it can go back. It passes from one incarnation of the session to the next."""

    resends: bool = False
    """Whether the client keeps its messages and can send them again."""
    key: bytes = b""
    """By which the client finds the session again at another dispatcher; empty if it does not look for it."""
    definitions: dict[int, int] = field(default_factory=dict)
    """The bytes of its definitions, by number, as far as this dispatcher has read them."""
    definition_bytes: int = 0
    """The sum of these."""
    over: int = 0
    """How many of the client's messages are over, counted from the first of the session."""
    marks: list[SessionMark] = field(default_factory=list)
    """The whole marks, oldest first: the one to which the client would go back, and newer ones."""
    taking: SessionMark | None = None
    """The mark that workers are writing."""
    copying: TableCopy | None = None
    """The copy of the session's table for a mark, while it is made."""
    due: bool = False
    """Whether a mark is to be taken as soon as nothing lands."""
    held_up: bool = False
    """Whether a mark that is due has to wait until the message at the head of the queue is over."""
    wanted: bool = False
    """Whether the client asks for a mark, as soon as it does not cost too much."""
    updating: set[int] = field(default_factory=set)
    """The numbers of its definitions that update parameters: with each run of one a step of a training ends."""
    calm: bool = False
    """Whether a step has ended, and nothing that makes tensors came since."""
    awaits_update: bool = False
    """Whether the next mark is taken as soon as a step ends."""
    next_at: float = 0.0
    """When the next mark is due, in seconds on the shell's clock; 0 before the first tensor."""
    cheap_at: float = 0.0
    """From when on another mark costs no more than marks may."""
    urgent_at: float = 0.0
    """From when on another mark may be taken at once, if that is urgent: the dispatcher does not write marks of one session for
    more than half of the time."""
    awaited: bool = False
    """Whether the client has yet to say `Resume`: whatever else it says is of the time before."""
    restoring: set[int] = field(default_factory=set)
    """The workers that have yet to give the session back what a mark has."""
    joining: set[int] = field(default_factory=set)
    """Those of them that read the files of all ranks of the mark."""
    table: SharedComputation[dict[int, Entry]] | None = None
    """The session's tensor table, while it is made of a mark's."""
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    """By worker: what it gets of a mark from peers, as it sees no file with that."""
    unreadable: set[int] = field(default_factory=set)
    """The ranks of the mark whose files no peer can read."""
    gone: dict[int, Fault] = field(default_factory=dict)
    """The tensors of the mark of which some part is nowhere, though parts of others came from peers."""
    restore_wait: MarkWait | None = None
    """How long they may take."""
    avoided: set[int] = field(default_factory=set)
    """Workers that did not give it back what a mark has."""
    since: float = 0.0
    """When it began to go back."""
    shapes: dict[Any, FrozenShape] = field(default_factory=dict)
    """By axes, sizes, number of blocks, and the order of the axes by what is exchanged along them."""
    taken: int = 0
    """How many messages the client had sent when the session went back, as far as is known."""
    known: int = 0
    """How many of them this dispatcher had taken."""
    furthest: int = 0
    """The most messages that were over at any time."""
    idle: int = 0
    """How often in a row it lost a worker without having come further."""
    failures: int = 0
    """How many of its workers have failed by themselves since its last mark, at plans that are not known."""
    fatal_runs: FatalRuns = field(default_factory=FatalRuns)
    """The runs during which workers have ended."""
    stored: int = 0
    """How many marks were whole."""
    stored_at: float = -1.0
    """When the last of them was, in seconds on the shell's clock; -1 if there was none."""
    stored_seconds: float = -1.0
    """What its slowest worker took to write it."""
    alone_on: tuple[str, str] | None = None
    """The kind of the one worker that it used last, as `kind_of` says it; None if it used several, or none yet."""
    begins: bool = False
    """Whether it begins again without a mark, and waits for workers to do so."""
    settled: int = 0
    """The position of the mark to which the client would go back."""
    restored: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """By place (the principal's, or that of what it has published), name and part files, the position of the last message by
    which a tensor came from a snapshot, if it is not settled."""
    recoveries: int = 0
    """How often it went back and on."""
    recovery_seconds: float = -1.0
    """How long the last recovery took; -1 if there was none."""

    def stop_restoring(self) -> None:
        """Wait for nobody any more who restores a mark."""
        self.restoring.clear()
        self.joining.clear()
        self.deliveries.clear()
        self.unreadable.clear()
        self.gone.clear()

    def note_definition(self, number: int, nbytes: int) -> None:
        """Note that a definition has so many bytes; 0: it is dropped."""
        self.updating.discard(number)
        self.definition_bytes += nbytes - self.definitions.pop(number, 0)
        if nbytes:
            self.definitions[number] = nbytes

    def keep_definitions(self, numbers: Container[int]) -> None:
        """Note that the session has no other definitions any more."""
        self.definitions = {number: nbytes for number, nbytes in self.definitions.items() if number in numbers}
        self.definition_bytes = sum(self.definitions.values())
        self.updating = {number for number in self.updating if number in numbers}

    def note_loss(self, *, failed: bool) -> None:
        """Note that a worker is lost, and whether it has `failed` by itself."""
        self.idle = 0 if self.over > self.furthest else self.idle + 1
        self.furthest = max(self.furthest, self.over)
        self.failures += failed

    def note_fatal(self, position: int, text: str) -> None:
        """Note that a worker was lost (`text`) while it computed the session's run at a position."""
        self.note_loss(failed=False)
        if self.fatal_runs.note(position, text):
            self.idle = 0  # it will be refused, so the next attempt is another

    @property
    def is_under_way(self) -> bool:
        """Whether the session is on its way back."""
        return self.awaited or self.begins or bool(self.restoring) or self.table is not None

    @property
    def awaited_now(self) -> set[int]:
        """The workers whose turn it is to do something so that the session has again what a mark has: in place of one that is to
        get that from peers, those that pack it."""
        packing = {parcel.source for each in self.deliveries.values() for parcel in each.asked.values()}
        waiting = {number for number, each in self.deliveries.items() if not each.told}
        return (self.restoring - waiting) | packing

    @property
    def is_hopeless(self) -> bool:
        """Whether another attempt would probably end as the last ones."""
        return self.idle > MAX_IDLE_REWINDS or self.failures >= MAX_FAILURES


class TableCopy(Mapping[int, Entry]):
    """A copy of a session's tensor table, made in turns, in which nobody changes that.

    It has several dictionaries: one of 100,000 tensors that grows moves all of them at once, which takes 2 ms.
    """

    __slots__ = ("_items", "_left", "parts")

    def __init__(self, table: Mapping[int, Entry]) -> None:
        self.parts: list[dict[int, Entry]] = []
        """What is copied so far."""
        self._items = iter(table.items())
        self._left = len(table)

    @property
    def over(self) -> bool:
        """Whether nothing is left to copy."""
        return self._left <= 0

    def turns(self) -> Iterator[None]:
        """Copies the table, but for the turns that others have taken."""
        while not self.over:
            self.parts.append(dict(islice(self._items, COPIED_PER_TURN)))
            self._left -= COPIED_PER_TURN
            yield

    def stop(self) -> None:
        """Copy no more."""
        self._left = 0

    def __getitem__(self, tensor: int) -> Entry:
        for part in self.parts:
            if tensor in part:
                return part[tensor]
        raise KeyError(tensor)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def values(self) -> ValuesView[Entry]:
        return _CopiedEntries(self)

    def items(self) -> ItemsView[int, Entry]:
        return _CopiedItems(self)


class _CopiedEntries(ValuesView[Entry]):
    """The entries of a copy, part by part."""

    _mapping: TableCopy

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(part.values() for part in self._mapping.parts)


class _CopiedItems(ItemsView[int, Entry]):
    """The tensors of a copy with their entries, part by part."""

    _mapping: TableCopy

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        return chain.from_iterable(part.items() for part in self._mapping.parts)


def capture(
    client: ClientRecord,
    table: Mapping[int, Entry],
    number: int,
    speeds: Speeds,
    base: Any,
    folders: tuple[str, ...] = (),
    kinds: tuple[tuple[str, str], ...] = (),
) -> SessionMark:
    """The mark of a session as it is now, with a copy of its `table`: between two of its messages, when none of its tensors lands
    or moves."""
    planner = client.planner
    assert planner is not None
    mesh = planner.mesh
    reduced = {segment: each.number for segment, each in client.reduced.items() if each.mesh == mesh.number}
    return SessionMark(
        number, client.recovery.over, client.arrived, mesh, speeds, planner.policy.copy(mesh), table,
        dict(client.segments), dict(client.refused), reduced, client.plans.saved_plans(), client.own, client.config,
        base, client.verify, client.tf32, client.runs, set(client.warned), set(mesh.members), folders=folders, kinds=kinds,
    )  # fmt: skip


def entries_on(table: Mapping[int, Entry], mesh: int) -> Generator[None, None, dict[int, Entry]]:
    """A mark's tensor table with another mesh in place of its own, made in turns. Memory that tensors shared is each one's own
    now."""
    return changed(table, lambda entry: entry if entry.fault is not None else replace(entry, mesh=mesh, root=None))


def lost_entries(table: Mapping[int, Entry], fault: Fault) -> Generator[None, None, dict[int, Entry]]:
    """A mark's tensor table in which every tensor has an error, its own or this one, made in turns."""
    return changed(table, lambda entry: replace(entry, fault=entry.fault or fault, root=None))


def entries_without(table: Mapping[int, Entry], gone: Mapping[int, Fault]) -> Generator[None, None, dict[int, Entry]]:
    """A tensor table in which some tensors have an error, their own or this one, made in turns."""
    found: dict[int, Entry] = {}
    for at, (tensor, entry) in enumerate(table.items(), 1):
        if not at % ENTRIES_PER_TURN:
            yield
        fault = None if entry.fault is not None else gone.get(tensor)
        found[tensor] = entry if fault is None else replace(entry, fault=fault, root=None)
    return found


def changed(table: Mapping[int, Entry], change: Callable[[Entry], Entry]) -> Generator[None, None, dict[int, Entry]]:
    """A table that nobody changes meanwhile with other entries, in turns. Tensors that were alike still are."""
    known: dict[Entry, Entry] = {}
    found: dict[int, Entry] = {}
    for at, (tensor, entry) in enumerate(table.items(), 1):
        if not at % ENTRIES_PER_TURN:
            if len(known) > ENTRIES_PER_TURN:
                known.clear()  # entries are interned, so this only saves time
            yield
        other = known.get(entry)
        if other is None:
            other = known[entry] = change(entry)
        found[tensor] = other
    return found
