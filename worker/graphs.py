"""CUDA graphs of hot programs: which passages of a program are captured, when, at which addresses, and why one is not.

A *passage* is some actions of a block, one behind the other, of which every one only tells the device what to do. It stands in
their place, and runs them as ever a few times; then it has them captured, and launches the graph from then on, which is one
call however many kernels it has. A graph reads and writes at fixed addresses, so

* it is for inputs that lie where they lay when it was captured. Inputs that come from graphs do, in a loop, and so do those that
  stay; all others are copied in, to memory of the passage;
* its results lie in *places*, each of which the passage lends to one value at a time and gets back when nobody looks at it
  any more. A result that is still held when the graph is to write it again is copied out from then on;
* what only its own kernels read lies in an arena, which all graphs of a worker share, for they run one after the other;
* run-time scalars are told to the device before the launch, where kernels of chains read them. What needs a number on the host,
  as the start of a slice, is for that number.

Logic alone: what a device does is in `capture.py`. No value depends on whether there is a graph.
"""

from __future__ import annotations

import itertools
import logging
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

from .buffers import View
from .call import Call
from .capture import Part, Seen, Taken
from .generated import Launch
from .program import VIEWS, Action, Program, Slots, Step

log = logging.getLogger(__name__)

WARM: Final = 3
"""Runs of a passage before it is captured: kernels are compiled and loaded by then, and memory has found its places."""
GRAPHS: Final = 4
"""Graphs of one passage, each for other addresses."""
LEAST: Final = 3
"""Actions of a passage that tell the device something: for fewer a launch saves nothing."""
COPIED: Final = 16 << 20
"""Bytes that a launch may have copied in and out: more takes longer than launching kernels one by one."""
CAPTURES: Final = 16
"""Captures of one passage: whoever needs more will always need another."""
PAUSE: Final = 256
"""Runs that a passage waits after its memory was taken away."""
ALIGNED: Final = 512
"""What memory of the device begins at a multiple of."""

LAUNCHES: Final = frozenset(
    (
        *("neg", "abs", "sign", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "square"),
        *("reciprocal", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("erf", "erfc", "erfinv", "lgamma", "digamma", "erfcx", "ndtri", "sigmoid", "relu", "floor", "ceil", "round"),
        *("trunc", "isnan", "isfinite", "signbit", "conj", "real", "imag", "logical_not", "bitwise_not", "cast"),
        *("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "hypot", "copysign", "eq", "ne", "lt", "le", "gt"),
        *("ge", "complex", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
        *("where", "sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "softmax", "log_softmax", "full"),
        *("reshape", "permute", "expand", "slice", "tag", "follow"),
    )
)
"""Ops whose kernels over CuPy only launch: they wait for nothing, read no memory of the host, and find out nothing about their
operands. Others are left out until they are known to."""
LOOKS: Final = VIEWS | {"slice", "tag", "follow", "real", "imag"}
"""Those among them that launch nothing, as a rule."""
UNCHECKED: Final = frozenset(("pow", "floor_divide", "remainder", "fmod"))
"""Ops of which the same holds for floats."""


PRODUCTS: Final = frozenset(("matmul", "attention"))
"""Ops of which it holds where products are not CuPy's, which calls nothing of cuBLAS while a stream captures, or are of integers,
for which CuPy has kernels."""


class Device(Protocol):
    """What is asked of a GPU; see `capture.py`."""

    def seen(self, value: Any) -> Seen: ...
    def whole(self, value: Any) -> bool: ...
    def view(self, value: Any) -> View: ...
    def block(self, nbytes: int) -> Any: ...
    def look(self, root: Any, view: View) -> Any: ...
    def beside(self, value: Any, view: View) -> Any: ...
    def again(self, value: Any) -> Any: ...
    def copy(self, block: Any, value: Any) -> None: ...
    def tell(self, block: Any, words: Sequence[int]) -> None: ...
    def place(self, block: Any, at: int) -> Any: ...
    def rehearse(self, run: Callable[[], object]) -> list[Taken]: ...
    def capture(self, run: Callable[[], object], parts: Sequence[Part]) -> Any: ...
    def launch(self, graph: Any) -> None: ...


class Refused(Exception):
    """A run goes without a graph; its text is the reason that is counted."""


def captures(call: Call | None) -> bool:
    """Whether a step only tells the device what to do."""
    if call is None or call.blocks:
        return False
    if call.op in UNCHECKED:
        return call.result.dtype.kind in "fc"
    if call.op in PRODUCTS:
        return call.direct is not None or call.result.dtype.kind in "iub"
    return call.op in LAUNCHES


# memory


class Dealt(NamedTuple):
    """Where each allocation of a passage goes: to its arena from this byte on, or (None) to a place of its own."""

    sizes: tuple[int, ...]
    offsets: tuple[int | None, ...]
    arena: int


def deal(log: Sequence[Taken]) -> Dealt:
    """Lay out memory whose lives are known: what is free again before the end lies in one arena, each in the first gap that is
    large enough; what is not has a place."""
    sizes = [taken.nbytes for taken in log if taken.nbytes >= 0]
    ended = {taken.number for taken in log if taken.nbytes < 0}
    offsets: list[int | None] = [None] * len(sizes)
    live: dict[int, tuple[int, int]] = {}
    arena = 0
    for number, nbytes in log:
        if nbytes < 0:
            live.pop(number, None)
        elif number in ended:
            size, start = -(-nbytes // ALIGNED) * ALIGNED, 0
            for first, last in sorted(live.values()):
                if first - start >= size:
                    break
                start = max(start, last)
            live[number] = (start, start + size)
            offsets[number] = start
            arena = max(arena, start + size)
    return Dealt(tuple(sizes), tuple(offsets), arena)


class Root:
    """What arrays over a place hold, as long as there are any."""

    __slots__ = ("__weakref__", "block")

    def __init__(self, block: Any) -> None:
        self.block = block


class Held:
    """Memory of the device that graphs have."""

    def __init__(self, graphs: Graphs, nbytes: int) -> None:
        self.block, self.nbytes = graphs.device.block(nbytes), nbytes
        self._graphs = graphs
        graphs.total += nbytes

    def __del__(self) -> None:
        if hasattr(self, "_graphs"):
            self._graphs.total -= self.nbytes


class Place(Held):
    """Memory for a result of a passage, lent to one value at a time."""

    def __init__(self, graphs: Graphs, nbytes: int) -> None:
        super().__init__(graphs, nbytes)
        self._lent: weakref.ref[Root] | None = None
        self.memory = graphs.device.seen(self.block).memory
        graphs.ours.add(self.memory)

    def __del__(self) -> None:
        super().__del__()
        if hasattr(self, "memory"):
            self._graphs.ours.discard(self.memory)

    @property
    def free(self) -> bool:
        return self._lent is None or self._lent() is None

    def lend(self) -> Root:
        """For a value; it is back when nobody has the root."""
        assert self.free, "one value at a time"
        root = Root(self.block)
        self._lent = weakref.ref(root)
        return root


# graphs


class Made(NamedTuple):
    """A result: which allocation it looks at, or else which input, and how; or what it always is. Beside an input the offset of
    `view` counts from the input's address."""

    slot: int
    allocation: int
    beside: int
    view: View
    always: Any = None


@dataclass(slots=True)
class Graph:
    """What was captured, and for what: where inputs lie (None: they are copied in), how, and which numbers the host knew."""

    addresses: tuple[int | None, ...]
    strides: tuple[tuple[int, ...], ...]
    hosts: tuple[str, ...]
    blocks: tuple[Held | None, ...]
    """By input the memory that it is copied to, if it is."""
    places: dict[int, Place]
    """By allocation."""
    results: list[Made]
    arena: Held | None
    graph: Any = None
    used: int = 0
    """At which run of the passage it was launched last."""


@dataclass(slots=True)
class Known:
    """What is known of a passage after a rehearsal: its memory, for inputs that lie so."""

    strides: tuple[tuple[int, ...], ...]
    hosts: tuple[str, ...]
    dealt: Dealt


class Graphs:
    """All graphs of one worker: their memory, and what is counted.

    `captured` and `launched` count graphs and launches, `without` runs of passages that had none, and instructions that are in
    no passage, by reason.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.captured = 0
        self.launched = 0
        self.without: Counter[str] = Counter()
        self.total = 0
        """Bytes of the device that graphs have, those among them that values lie in now."""
        self.ours: set[int] = set()
        """Where results lie: such memory stays where it is."""
        self.room: Callable[[int], bool] | None = None
        """Whether there is room for so many bytes more; None: there is no limit."""
        self._passages: weakref.WeakSet[Passage] = weakref.WeakSet()
        self._arenas: weakref.WeakSet[Held] = weakref.WeakSet()

    @property
    def nbytes(self) -> int:
        """Bytes of the device that graphs have, beside those that values lie in now."""
        return self.total - sum(place.nbytes for place in self.places() if not place.free)

    def places(self) -> Iterator[Place]:
        """Where results lie."""
        for passage in self._passages:
            for found in passage.places.values():
                yield from found

    def arena(self, nbytes: int) -> Held:
        """Memory that a graph may use while it runs. Raises `MemoryError`."""
        found = next((arena for arena in self._arenas if arena.nbytes >= nbytes), None)
        if found is None:
            found = Held(self, nbytes)
            self._arenas.add(found)
        return found

    def give_up(self) -> bool:
        """Memory is short: have none, for a while; whether there was any."""
        found = False
        for passage in self._passages:
            found = passage.give_up() or found
        return found

    def program(self, program: Program) -> Program:
        """The same program, whose passages are one action each."""
        actions: list[list[Action]] = []
        starts: list[Sequence[int]] = []
        for block, acts, firsts in zip(program.blocks, program.actions, program.starts, strict=True):
            ends = [*firsts[1:], len(block)][: len(firsts)]  # between two moves there may be nothing
            found = self._with_passages(acts, [block[first:end] for first, end in zip(firsts, ends, strict=True)])
            actions.append([action for action, _ in found])
            places = itertools.accumulate((count for _, count in found), initial=0)
            starts.append([firsts[at] for (_, _), at in zip(found, places, strict=False)])
        return replace(program, actions=actions, starts=starts)

    def _with_passages(self, actions: Sequence[Action], steps: Sequence[Sequence[Step]]) -> list[tuple[Action, int]]:
        """The actions of a block, those of passages as one, and how many each stands for. `steps`: those of each action."""
        found: list[tuple[Action, int]] = []
        run: list[int] = []

        def ends() -> None:
            if sum(not all(step.instruction.op in LOOKS for step in steps[at]) for at in run) >= LEAST:
                passage = Passage([actions[at] for at in run], [steps[at] for at in run], self)
                self._passages.add(passage)
                found.append((passage, len(run)))
            else:
                found.extend((actions[at], 1) for at in run)
            run.clear()

        for at, members in enumerate(steps):
            if all(captures(step.call) for step in members):
                run.append(at)
            else:
                ends()
                for op in dict.fromkeys(step.instruction.op for step in members):
                    self.without[f"{op} is not captured"] += 1
                found.append((actions[at], 1))
        ends()
        return found


class Passage:
    """Some actions as one."""

    def __init__(self, actions: Sequence[Action], steps: Sequence[Sequence[Step]], graphs: Graphs) -> None:
        self.actions = list(actions)
        self.steps = [len(members) for members in steps]
        self.graphs = graphs
        flat = [step for members in steps for step in members]
        made: set[int] = set()
        inputs: dict[int, None] = {}
        numbers: dict[int, str] = {}
        hosts: dict[int, None] = {}
        for action, members in zip(actions, steps, strict=True):
            if isinstance(action, Launch):
                numbers.update(action.numbers)
            for step in members:
                inputs.update(dict.fromkeys(slot for slot in step.tensors if slot not in made))
                if not isinstance(action, Launch):
                    hosts.update(dict.fromkeys(slot for slot in step.reads if slot not in step.tensors))
                made.add(step.writes)
        self.inputs, self.numbers, self.hosts = tuple(inputs), tuple(numbers), tuple(hosts)
        self.format = "<" + "".join(numbers.values())
        self.dead = tuple(dict.fromkeys(slot for step in flat for slot in step.dead))
        self.outputs = tuple(dict.fromkeys(step.writes for step in flat if step.writes not in self.dead))
        self.launches = [action for action in actions if isinstance(action, Launch)]
        self.runs = 0
        self.begun = 0
        """How many of its actions were done in the last run that went without a graph."""
        self.found: list[Graph] = []
        self.known: Known | None = None
        self.places: dict[int, list[Place]] = {}
        """Of each allocation that a result lies in."""
        self.lasting: set[int] = set()
        """Those whose values outlive the next run: they are copied out."""
        self.blocks: dict[int, Held] = {}
        """By position, memory that an input is copied to."""
        self.captured = 0
        self.refused = ""
        """Why it is never captured."""
        self.before: tuple[Seen, ...] = ()
        self.hosts_before: tuple[str, ...] | None = None
        self.board: Held | None = None
        """The memory in which the device finds run-time scalars."""
        self.told = b""

    def __call__(self, slots: Slots) -> None:
        graph = None
        self.begun = 0
        self.runs += 1
        if self.runs >= WARM:
            try:
                graph = self._graph(slots)
            except Refused as reason:
                self.graphs.without[str(reason)] += 1
        if graph is not None:
            self._launch(graph, slots)
        elif self.begun == 0:
            self._run(slots)

    def failing(self) -> tuple[Action, int]:
        """After an error: the action that raised it, and how many steps are before it."""
        return self.actions[self.begun], sum(self.steps[: self.begun])

    def give_up(self) -> bool:
        """Have no memory for a while; whether there was any."""
        had = bool(self.found or self.places)
        self.found, self.places, self.blocks, self.known, self.board, self.told = [], {}, {}, None, None, b""
        if had:
            self.runs = WARM - PAUSE
        return had

    # without a graph

    def _run(self, slots: Slots) -> None:
        for action in self.actions:
            action(slots)
            self.begun += 1

    # which graph

    def _graph(self, slots: Slots) -> Graph | None:
        """The graph for these inputs; None where the run was used to get to know the passage. Raises `Refused`."""
        if self.refused:
            raise Refused(self.refused)
        device = self.graphs.device
        if not all(launch.takes(slots) for launch in self.launches):
            raise Refused("a number that a tensor's dtype does not hold")
        seen = tuple([device.seen(slots[slot]) for slot in self.inputs])
        hosts = tuple([repr(slots[slot]) for slot in self.hosts])  # which tells 1 from 1.0, and 0.0 from -0.0
        before, self.before = self.before, seen
        hosts_before, self.hosts_before = self.hosts_before, hosts
        graph = self._fitting(seen, hosts)
        if graph is not None:
            return graph
        if hosts_before is not None and hosts != hosts_before:
            raise Refused("a number that the host needs changes")
        strides = tuple([each.strides for each in seen])
        if self.known is None or self.known.strides != strides or self.known.hosts != hosts:
            self._rehearse(slots, strides, hosts)
            return None
        return self._captured(slots, seen, before, self.known)

    def _fitting(self, seen: tuple[Seen, ...], hosts: tuple[str, ...]) -> Graph | None:
        """A graph that was captured: one that copies what it need not only where no other may be made. Raises `Refused`."""
        second = held = None
        ours = self.graphs.ours
        for graph in self.found:
            if graph.hosts == hosts and _lies(graph, seen):
                if not all(place.free for at, place in graph.places.items() if at not in self.lasting):
                    held = held or graph
                elif any(block and now.memory in ours for block, now in zip(graph.blocks, seen, strict=True)):
                    second = second or graph
                else:
                    return graph
        if second is None and held is not None:
            self._copy_out(held, {now.memory for now in seen})
        if len(self.found) < GRAPHS and self.captured < CAPTURES:
            return None
        return second

    def _copy_out(self, graph: Graph, inputs: set[int]) -> None:
        """Results of earlier launches are held where this graph would write, and not because they go in now: from now on they are
        copied out. Raises `Refused`."""
        held = [
            at
            for at, place in graph.places.items()
            if at not in self.lasting and not place.free and place.memory not in inputs
        ]
        if not held:
            return
        if sum(graph.places[at].nbytes for at in {*held, *self.lasting} & graph.places.keys()) > COPIED:
            raise Refused("results are held that are more than is worth copying")
        self.found.clear()
        self.lasting.update(held)
        for at in held:
            self.places[at] = []  # who holds one keeps it

    def _rehearse(self, slots: Slots, strides: tuple[tuple[int, ...], ...], hosts: tuple[str, ...]) -> None:
        """Run as ever, and learn which memory that takes. Raises what actions raise."""
        log = self.graphs.device.rehearse(lambda: self._run(slots))
        dealt = deal(log)
        if self.known is not None and self.known.dealt != dealt:  # allocations have other numbers now
            self.places, self.found, self.lasting = {}, [], set()
        self.known = Known(strides, hosts, dealt)

    # capture

    def _captured(self, slots: Slots, seen: tuple[Seen, ...], before: tuple[Seen, ...], known: Known) -> Graph:
        """A new graph. Raises `Refused`."""
        if self.captured == CAPTURES:
            raise Refused("addresses change")
        copied = self._to_copy(slots, seen, before, sum(known.dealt.sizes[at] for at in self.lasting))
        try:
            graph = self._made(slots, seen, copied, known)
        except MemoryError:
            self.give_up()
            self.runs = WARM - PAUSE
            raise Refused("memory is short") from None
        except Refused as reason:
            self.refused = str(reason)
            raise
        except Exception as error:  # noqa: BLE001 — whatever it is, the actions are there
            self.refused = f"{type(error).__name__} in a capture"
            log.warning("%d actions are not captured as a CUDA graph: %s", len(self.actions), error)
            raise Refused(self.refused) from None
        self.captured += 1
        self.graphs.captured += 1
        if len(self.found) == GRAPHS:
            self.found.remove(min(self.found, key=lambda each: each.used))
        self.found.append(graph)
        return graph

    def _to_copy(self, slots: Slots, seen: tuple[Seen, ...], before: tuple[Seen, ...], others: int) -> set[int]:
        """The inputs that a new graph is to have copied in: those that seem not to stay, the small ones first, and all as soon as
        graphs for other addresses did not help. `others`: bytes that are copied anyway."""
        graphs = self.graphs
        full = len(self.found) == GRAPHS
        copied: set[int] = set()
        for at in sorted(range(len(seen)), key=lambda at: seen[at].nbytes):
            now = seen[at]
            stays = now.memory in graphs.ours or (len(before) > at and before[at].address == now.address)
            if (full or not stays) and graphs.device.whole(slots[self.inputs[at]]):
                others += now.nbytes
                if others > COPIED:
                    break
                copied.add(at)
        return copied

    def _made(self, slots: Slots, seen: tuple[Seen, ...], copied: set[int], known: Known) -> Graph:
        """Capture. Raises `Refused`, `MemoryError`, and what a capture raises."""
        graphs, device, dealt = self.graphs, self.graphs.device, known.dealt
        stays = sum(size for size, offset in zip(dealt.sizes, dealt.offsets, strict=True) if offset is None)
        wanted = dealt.arena + sum(seen[at].nbytes for at in copied) + stays
        if graphs.room is not None and not graphs.room(wanted):
            raise MemoryError
        arena = graphs.arena(dealt.arena) if dealt.arena else None
        for at in copied:
            if at not in self.blocks:
                self.blocks[at] = Held(graphs, seen[at].nbytes)
        if self.board is None and self.numbers:
            self.board, self.told = Held(graphs, 8 * len(self.numbers)), b""
        places: dict[int, Place] = {}
        parts = []
        for at, (nbytes, offset) in enumerate(zip(dealt.sizes, dealt.offsets, strict=True)):
            if offset is not None:
                assert arena is not None, "what has an offset lies in an arena"
                parts.append(Part(arena.block, offset, nbytes))
            else:
                places[at] = self._place(at, nbytes)
                parts.append(Part(places[at].block, 0, nbytes))
        blocks = tuple(self.blocks[at] if at in copied else None for at in range(len(seen)))
        own: Slots = [*slots]
        lent: list[Any] = []
        for at, slot in enumerate(self.inputs):
            if at in copied:
                own[slot] = device.look(Root(self.blocks[at].block), device.view(own[slot])._replace(offset=0))
            lent.append(own[slot])
        there = {}
        if self.board is not None:
            there = {slot: device.place(self.board.block, at) for at, slot in enumerate(self.numbers)}

        def run() -> None:
            for action in self.actions:
                if isinstance(action, Launch):
                    action(own, there)
                else:
                    action(own)

        graph = Graph(
            tuple(None if at in copied else now.address for at, now in enumerate(seen)), known.strides, known.hosts,
            blocks, places, [], arena,
        )  # fmt: skip
        graph.graph = device.capture(run, parts)
        graph.results = [self._result(slot, own[slot], lent, places) for slot in self.outputs]
        return graph

    def _place(self, allocation: int, nbytes: int) -> Place:
        """Memory for a result: such as nobody has now. Raises `MemoryError`."""
        found = self.places.setdefault(allocation, [])
        for place in found:
            if place.free:
                return place
        found.append(Place(self.graphs, nbytes))
        return found[-1]

    def _result(self, slot: int, value: Any, inputs: Sequence[Any], places: dict[int, Place]) -> Made:
        """Where a result lies. Raises `Refused` where nobody knows."""
        device = self.graphs.device
        now, view = device.seen(value), device.view(value)
        if not now.nbytes:
            return Made(slot, -1, -1, view, value)
        for allocation, place in places.items():
            if now.memory == place.memory:
                return Made(slot, allocation, -1, view)
        for at, each in enumerate(inputs):
            there = device.seen(each)
            if now.memory == there.memory:
                return Made(slot, -1, at, view._replace(offset=now.address - there.address))
        raise Refused("a result lies where nobody knows")

    # a launch

    def _launch(self, graph: Graph, slots: Slots) -> None:
        device = self.graphs.device
        for at, held in enumerate(graph.blocks):
            if held is not None:
                device.copy(held.block, slots[self.inputs[at]])
        if self.board is not None:
            told = struct.pack(self.format, *[slots[slot] for slot in self.numbers])
            if told != self.told:
                device.tell(self.board.block, struct.unpack(f"<{len(self.numbers)}Q", told))
                self.told = told
        roots = {at: Root(place.block) if at in self.lasting else place.lend() for at, place in graph.places.items()}
        results = []
        for made in graph.results:
            if made.beside >= 0:
                results.append(device.beside(slots[self.inputs[made.beside]], made.view))
            elif made.allocation >= 0:
                results.append(device.look(roots[made.allocation], made.view))
            else:
                results.append(made.always)
        device.launch(graph.graph)
        for made, value in zip(graph.results, results, strict=True):
            slots[made.slot] = device.again(value) if made.allocation in self.lasting else value
        for slot in self.dead:
            slots[slot] = None
        self.graphs.launched += 1
        graph.used = self.runs


def _lies(graph: Graph, seen: Sequence[Seen]) -> bool:
    """Whether inputs lie where a graph reads them, or can be copied there."""
    for address, strides, now in zip(graph.addresses, graph.strides, seen, strict=True):
        if now.strides != strides or (address is not None and address != now.address):
            return False
    return True
