"""Classifies each input, output and side effect of a traced call; raises `CompileError` for one it cannot classify.

Handles are named by their places among those that the trace uses, values by numbers (`client/compile/output_templates.py`).
"""

from __future__ import annotations

from typing import Any, Final

from gt.client.segment.value import TensorValue
from gt.client.tensor.tape import Leaf
from gt.client.tensor.tensor import Tensor
from gt.errors import CompileError

from .capture import CallCapture, InitialState
from .output_templates import TemplateBuilder

UNCHANGED_EDGE: Final = object()
"""Stands for an edge that stays as it was."""
ARGUMENT_SOURCE, REACHED_SOURCE, GRADIENT_SOURCE = range(3)
"""Where a trace finds a handle: among the arguments, from the function, or as the gradient of another."""


class Classification:
    """The classification of a traced call: what each input, surviving output and side effect is to the program."""

    def __init__(
        self,
        initial: InitialState,
        capture: CallCapture,
        base: int,
        record: list[tuple[Any, ...]],
        alive: bytes,
        inputs: list[int],
    ) -> None:
        self._initial = initial
        self._record = record
        self._base = base
        self._builder = capture.builder
        self.survivors = [at for at, lives in enumerate(alive) if lives]
        self._ranks = {at: rank for rank, at in enumerate(self.survivors)}
        self._accounted: set[int] = set()
        self.sources: list[tuple[int, Any]] = []
        self._used: dict[int, int] = {}
        self.found_values: list[int] = []
        self.alike: list[tuple[int, int]] = []
        self.edge_places: list[int] = []
        self._leaves = {id(edge): at for at, (_, _, edge) in enumerate(initial.before) if isinstance(edge, Leaf)}
        resting = [(at, tensor._at_rest()) for at, tensor in enumerate(initial.handles)]
        self._leaves |= {id(leaf): at for at, leaf in resting if leaf is not None}
        self._edges = {id(edge): at for at, (_, _, edge) in enumerate(initial.before) if edge is not None}
        self._gradients = {id(grad): leaf for leaf, (grad, _, _) in capture.touched.items() if grad is not None}
        self._owners: dict[int, list[tuple[int, Any]]] = {}
        for at, (value, _, _) in enumerate(initial.before):
            self._owners.setdefault(value.id, []).append((REACHED_SOURCE, at))
        for leaf, (_, gradient, _) in capture.touched.items():
            if gradient is not None and id(leaf) in self._leaves:
                self._owners.setdefault(gradient.id, []).append((GRADIENT_SOURCE, leaf))
        self._gradient_places: dict[int, int] = {}
        for slot, number in enumerate(inputs):
            if number not in self._owners:
                reader = next(entry[0].tag.site for entry in record if ~slot in entry[1:])
                raise CompileError(f"{reader}: it reads a tensor that it is not given and cannot reach by a name")
            self.found_values.append(self._owner(number))
        self.inputs = self.found_values.copy()
        self.templates = TemplateBuilder(
            capture.start, self._old, self._number, self._edge_place, self._is_steady, self._is_known
        )
        self.effects: list[tuple[int, int, int, Any]] = []
        self.given: list[int] = []
        """The handles that were given other values by `.data = …`: views of them stay with the old ones."""
        self.gradients: list[tuple[int, Any]] = []
        self.with_gradient: list[tuple[int, bool]] = []
        self._gradient_effects(capture)
        self._handle_effects()

    def finish(self) -> list[tuple[int, int]]:
        """Raise `CompileError` unless all survivors are accounted for. (place, argument) of those reached otherwise, too."""
        for at in self.survivors:
            if at not in self._accounted:
                signature = self._record[at][0]
                raise CompileError(
                    f"{signature.tag.site}: the result of {signature.op} is kept where gt.compile does not see it: return it"
                )
        return [
            (place, at)
            for at, place in self._used.items()
            if at < self._initial.arguments and self._initial.also_reached[at]
        ]

    def _use(self, at: int) -> int:
        """The place of a handle that was found among those that the trace uses."""
        known = self._used.get(at)
        if known is None:
            known = self._used[at] = len(self.sources)
            argument = at < self._initial.arguments and not self._initial.also_reached[at]
            self.sources.append((ARGUMENT_SOURCE, at) if argument else (REACHED_SOURCE, self._initial.handles[at]))
        return known

    def _use_gradient(self, leaf: Leaf) -> int:
        known = self._gradient_places.get(id(leaf))
        if known is None:
            holder = self._use(self._leaves[id(leaf)])
            known = self._gradient_places[id(leaf)] = len(self.sources)
            self.sources.append((GRADIENT_SOURCE, holder))
        return known

    def _owner(self, number: int) -> int:
        """The place of the handle whose value it is; handles that share it must share it in every call."""
        places = [
            self._use(what) if kind == REACHED_SOURCE else self._use_gradient(what)
            for kind, what in self._owners[number]
        ]
        self.alike += [(places[0], other) for other in places[1:] if (places[0], other) not in self.alike]
        return places[0]

    def _number(self, value: TensorValue) -> int:
        at = value.id - self._base
        if value.owner is self._builder and at in self._ranks:
            self._accounted.add(at)
            return self._ranks[at]
        if value.id not in self._owners:
            raise CompileError("it leaves a tensor that it neither made nor was given")
        place = self._owner(value.id)
        if place not in self.found_values:
            self.found_values.append(place)
        return ~self.found_values.index(place)

    def _old(self, tensor: Tensor) -> int | None:
        at = self._initial.places.get(id(tensor))
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
        return at is not None and (at >= self._initial.arguments or self._initial.also_reached[at])

    def _is_known(self, value: Any) -> bool:
        return id(value) in self._initial.guards.seen

    def _gradient_effects(self, capture: CallCapture) -> None:
        for leaf, (before, value, version) in capture.touched.items():
            if id(leaf) not in self._leaves:
                if leaf.value.owner is self._builder and leaf.value.id >= self._base:
                    continue  # made by the call
                raise CompileError("it looks at the gradient of a tensor that it cannot reach by a name")
            place = self._use(self._leaves[id(leaf)])
            self.with_gradient.append((place, before is not None))
            if before is not None:
                if id(before) in self._initial.places:
                    raise CompileError("it reaches a gradient both by its tensor and by another name")
                own = self._use_gradient(leaf)
                if before._value is not value:
                    self.effects.append((own, self._number(before._value), before._version - version, UNCHANGED_EDGE))
            if leaf.grad is not before:
                self.gradients.append((place, None if leaf.grad is None else self.templates.handle(leaf.grad)))

    def _handle_effects(self) -> None:
        initial = self._initial
        if any(base._version != version for base, version in initial.hidden):
            raise CompileError("it writes to what an argument is a view of")
        for at, (tensor, (view, seat)) in enumerate(zip(initial.handles, initial.cut, strict=True)):
            if tensor._view is not view:
                raise CompileError("it has a tensor share the values of another, by .data")
            now = getattr(tensor, "_view_state", None)
            if now is not seat and now is not None and now.replaced:
                self.given.append(self._use(at))
        for at, (tensor, (value, version, edge)) in enumerate(zip(initial.handles, initial.before, strict=True)):
            if tensor._value is value and tensor._version == version and tensor._edge is edge:
                continue
            if tensor._view is not None:
                if at < initial.arguments:
                    raise CompileError("it writes to an argument that is a view")
                # its base was written to, from which it is cut again at the next read
                self._accounted.add(tensor._value.id - self._base)
                continue
            kept = UNCHANGED_EDGE if tensor._edge is edge else self.templates.edge(tensor._edge)
            self.effects.append((self._use(at), self._number(tensor._value), tensor._version - version, kept))
