"""What every input, survivor and effect of a traced call is to the program, or a `CompileError` that says what is none.

Handles are named by their places among those that the trace uses, values by numbers (`rebuilding.py`).
"""

from __future__ import annotations

from typing import Any, Final

from gt.client.segment.value import Value
from gt.client.tensor.tape import Leaf
from gt.client.tensor.tensor import Tensor
from gt.errors import CompileError

from .capture import Found, Recording
from .output_templates import Templates

KEEP: Final = object()
"""In place of an edge: as it was."""
ARGUMENT, REACHED, GRADIENT = range(3)
"""Where a trace finds a handle: among the arguments, from the function, or as the gradient of another."""


class Explained:
    """What every input, survivor and effect of a traced call is to the program."""

    def __init__(
        self,
        found: Found,
        recording: Recording,
        base: int,
        record: list[tuple[Any, ...]],
        alive: bytes,
        inputs: list[int],
    ) -> None:
        self._found = found
        self._record = record
        self._base = base
        self._builder = recording.builder
        self.survivors = [at for at, lives in enumerate(alive) if lives]
        self._ranks = {at: rank for rank, at in enumerate(self.survivors)}
        self._explained: set[int] = set()
        self.sources: list[tuple[int, Any]] = []
        self._used: dict[int, int] = {}
        self.found: list[int] = []
        self.alike: list[tuple[int, int]] = []
        self.edge_places: list[int] = []
        self._leaves = {id(edge): at for at, (_, _, edge) in enumerate(found.before) if isinstance(edge, Leaf)}
        resting = [(at, tensor._at_rest()) for at, tensor in enumerate(found.handles)]
        self._leaves |= {id(leaf): at for at, leaf in resting if leaf is not None}
        self._edges = {id(edge): at for at, (_, _, edge) in enumerate(found.before) if edge is not None}
        self._gradients = {id(grad): leaf for leaf, (grad, _, _) in recording.touched.items() if grad is not None}
        self._owners: dict[int, list[tuple[int, Any]]] = {}
        for at, (value, _, _) in enumerate(found.before):
            self._owners.setdefault(value.id, []).append((REACHED, at))
        for leaf, (_, gradient, _) in recording.touched.items():
            if gradient is not None and id(leaf) in self._leaves:
                self._owners.setdefault(gradient.id, []).append((GRADIENT, leaf))
        self._gradient_places: dict[int, int] = {}
        for slot, number in enumerate(inputs):
            if number not in self._owners:
                reader = next(entry[0].tag.site for entry in record if ~slot in entry[1:])
                raise CompileError(f"{reader}: it reads a tensor that it is not given and cannot reach by a name")
            self.found.append(self._owner(number))
        self.inputs = self.found.copy()
        self.templates = Templates(
            recording.start, self._old, self._number, self._edge_place, self._is_steady, self._is_known
        )
        self.effects: list[tuple[int, int, int, Any]] = []
        self.given: list[int] = []
        """The handles that were given other values by `.data = …`: views of them stay with the old ones."""
        self.gradients: list[tuple[int, Any]] = []
        self.with_gradient: list[tuple[int, bool]] = []
        self._gradient_effects(recording)
        self._handle_effects()

    def finish(self) -> list[tuple[int, int]]:
        """Raise `CompileError` unless all survivors are accounted for. (place, argument) of those reached otherwise, too."""
        for at in self.survivors:
            if at not in self._explained:
                signature = self._record[at][0]
                raise CompileError(
                    f"{signature.tag.site}: the result of {signature.op} is kept where gt.compile does not see it: return it"
                )
        return [(place, at) for at, place in self._used.items() if at < self._found.arguments and self._found.met[at]]

    def _use(self, at: int) -> int:
        """The place of a handle that was found among those that the trace uses."""
        known = self._used.get(at)
        if known is None:
            known = self._used[at] = len(self.sources)
            argument = at < self._found.arguments and not self._found.met[at]
            self.sources.append((ARGUMENT, at) if argument else (REACHED, self._found.handles[at]))
        return known

    def _use_gradient(self, leaf: Leaf) -> int:
        known = self._gradient_places.get(id(leaf))
        if known is None:
            holder = self._use(self._leaves[id(leaf)])
            known = self._gradient_places[id(leaf)] = len(self.sources)
            self.sources.append((GRADIENT, holder))
        return known

    def _owner(self, number: int) -> int:
        """Whose value it is; those who share it must share it in every call."""
        places = [
            self._use(what) if kind == REACHED else self._use_gradient(what) for kind, what in self._owners[number]
        ]
        self.alike += [(places[0], other) for other in places[1:] if (places[0], other) not in self.alike]
        return places[0]

    def _number(self, value: Value) -> int:
        at = value.id - self._base
        if value.owner is self._builder and at in self._ranks:
            self._explained.add(at)
            return self._ranks[at]
        if value.id not in self._owners:
            raise CompileError("it leaves a tensor that it neither made nor was given")
        place = self._owner(value.id)
        if place not in self.found:
            self.found.append(place)
        return ~self.found.index(place)

    def _old(self, tensor: Tensor) -> int | None:
        at = self._found.places.get(id(tensor))
        if at is not None:
            return self._use(at)
        leaf = self._gradients.get(id(tensor))
        return None if leaf is None or id(leaf) not in self._leaves else self._use_gradient(leaf)

    def _edge_place(self, edge: Any) -> int | None:
        at = self._edges.get(id(edge))
        if at is None:
            return None
        place = self._use(at)
        if place not in self.edge_places:
            self.edge_places.append(place)
        return place

    def _is_steady(self, edge: Any) -> bool:
        at = self._leaves.get(id(edge))
        return at is not None and (at >= self._found.arguments or self._found.met[at])

    def _is_known(self, value: Any) -> bool:
        return id(value) in self._found.scene.seen

    def _gradient_effects(self, recording: Recording) -> None:
        for leaf, (before, value, version) in recording.touched.items():
            if id(leaf) not in self._leaves:
                if leaf.value.owner is self._builder and leaf.value.id >= self._base:
                    continue  # made by the call
                raise CompileError("it looks at the gradient of a tensor that it cannot reach by a name")
            place = self._use(self._leaves[id(leaf)])
            self.with_gradient.append((place, before is not None))
            if before is not None:
                if id(before) in self._found.places:
                    raise CompileError("it reaches a gradient both by its tensor and by another name")
                own = self._use_gradient(leaf)
                if before._value is not value:
                    self.effects.append((own, self._number(before._value), before._version - version, KEEP))
            if leaf.grad is not before:
                self.gradients.append((place, None if leaf.grad is None else self.templates.handle(leaf.grad)))

    def _handle_effects(self) -> None:
        found = self._found
        if any(base._version != version for base, version in found.hidden):
            raise CompileError("it writes to what an argument is a view of")
        for at, (tensor, (view, seat)) in enumerate(zip(found.handles, found.cut, strict=True)):
            if tensor._view is not view:
                raise CompileError("it has a tensor share the values of another, by .data")
            now = getattr(tensor, "_seat", None)
            if now is not seat and now is not None and now.replaced:
                self.given.append(self._use(at))
        for at, (tensor, (value, version, edge)) in enumerate(zip(found.handles, found.before, strict=True)):
            if tensor._value is value and tensor._version == version and tensor._edge is edge:
                continue
            if tensor._view is not None:
                if at < found.arguments:
                    raise CompileError("it writes to an argument that is a view")
                # its base was written to, from which it is cut again at the next read
                self._explained.add(tensor._value.id - self._base)
                continue
            kept = KEEP if tensor._edge is edge else self.templates.edge(tensor._edge)
            self.effects.append((self._use(at), self._number(tensor._value), tensor._version - version, kept))
