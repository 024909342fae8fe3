"""Templates of a call's outputs: its handles, places on the tape and results, without their values.

A template is made from what a traced call left (`TemplateBuilder`), and filled in by every later one (`RebuiltOutputs`). A value
is named by a number: n is the n-th survivor of the segment, ~n the n-th of the values that the call found.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gt.client.segment.signature import Signature
from gt.client.segment.value import TensorValue
from gt.client.tensor.emission_context import Context
from gt.client.tensor.tape import Leaf, TapeNode, Vertex
from gt.client.tensor.tensor import Tensor, TensorState
from gt.client.tensor.views import ViewDerivation
from gt.errors import CompileError

from .guards import is_atom

_new: Final = Tensor.__new__  # not compiled


class OldHandle(NamedTuple):
    """A handle that was there before, by its place among those that the call uses."""

    place: int


class NewHandle(NamedTuple):
    """A handle that the call made."""

    number: int


class HandleTemplate(NamedTuple):
    """The template of a handle that the call made."""

    kind: type
    value: int
    edge: Any
    version: int
    base: OldHandle | NewHandle | None
    view: tuple[Any, ...]


class OldEdge(NamedTuple):
    """The place on the tape that an old handle had when the call began."""

    place: int


class LeafTemplate(NamedTuple):
    """The template of a leaf that the call made."""

    value: int
    param: bool
    grad: OldHandle | NewHandle | None


class NodeTemplate(NamedTuple):  # noqa: PLW1641  # nobody hashes templates
    """The template of a recorded instruction whose gradient is still to come."""

    signature: Signature
    context: Context
    edges: tuple[Any, ...]
    wants: tuple[bool, ...]
    saved: tuple[Any, ...] | None
    listed: bool
    output: int | None

    def __eq__(self, other: object) -> bool:  # signatures differ by line; the records are compared elsewhere
        return isinstance(other, NodeTemplate) and self[2:] == other[2:]


class VertexTemplate(NamedTuple):
    """The template of another vertex, of which one more can be made from its form."""

    kind: type[Vertex]
    parts: tuple[Any, ...]
    edges: tuple[Any, ...]
    values: tuple[int, ...]


class NewVertex(NamedTuple):
    """A vertex that the call recorded."""

    number: int


class NewLeaf(NamedTuple):
    """A leaf that the call made."""

    number: int


class SavedValue(NamedTuple):
    """A value that a recorded instruction saved."""

    value: int


class SpentEdge:
    """A place on the tape behind which nothing is left to free: every call's result can stand there."""

    def __init__(self, edge: Vertex) -> None:
        self.edge = edge

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpentEdge)

    __hash__ = None  # type: ignore[assignment]


class ContainerTemplate(NamedTuple):
    """The template of a tuple, list, dictionary or dataclass in what the function returned."""

    kind: Any
    names: tuple[Any, ...]
    parts: tuple[Any, ...]


class ConstantTemplate(NamedTuple):
    """A part of the result that no tensor is in."""

    value: Any


class OutputTemplates(NamedTuple):
    """The templates of all that a call makes, each kind in an order in which it can be made."""

    leaves: list[LeafTemplate]
    vertices: list[NodeTemplate | VertexTemplate]
    handles: list[HandleTemplate]


class TemplateBuilder:
    """Makes the templates of what one traced call left. The functions it is given say what was there before.

    `old`: the place of a handle; `value`: the number of a value; `place_of_edge`: whose edge it was; `steady`: whether it is
    that of one and the same leaf in every call; `known`: whether an object is the same one in every call.
    """

    def __init__(
        self,
        start: int,
        old: Callable[[Tensor], int | None],
        value: Callable[[TensorValue], int],
        place_of_edge: Callable[[Any], int | None],
        steady: Callable[[Any], bool],
        known: Callable[[Any], bool],
    ) -> None:
        self.start = start
        self._old = old
        self._value = value
        self._place_of_edge = place_of_edge
        self._steady = steady
        self._known = known
        self.outputs = OutputTemplates([], [], [])
        self._handles: dict[int, NewHandle] = {}
        self._edges: dict[int, Any] = {}
        self._alive: list[Any] = []

    def handle(self, tensor: Tensor) -> OldHandle | NewHandle:
        """The template of a handle, old or new."""
        place = self._old(tensor)
        if place is not None:
            return OldHandle(place)
        found = self._handles.get(id(tensor))
        if found is not None:
            return found
        self._alive.append(tensor)
        view = tensor._view
        base = None if view is None else self.handle(view.base)
        how = () if view is None else self._cut(view)
        edge = self.edge(tensor._edge)
        made = self._handles[id(tensor)] = NewHandle(len(self.outputs.handles))
        self.outputs.handles.append(
            HandleTemplate(type(tensor), self._value(tensor._value), edge, tensor._version, base, how)
        )
        return made

    def _cut(self, view: ViewDerivation) -> tuple[Any, ...]:
        starts = tuple([self.handle(at) if isinstance(at, Tensor) else at for at in view.starts])
        return view.op, view.attributes, starts, view.grad, view.seen == view.base._version

    def edge(self, edge: Any) -> Any:
        """The template of a place on the tape, old or new."""
        if edge is None:
            return None
        place = self._place_of_edge(edge)
        if place is not None:
            return OldEdge(place)
        if isinstance(edge, Leaf):
            return self._leaf(edge)
        if edge.order < self.start:
            raise CompileError("it returns a tensor recorded on a tape that it cannot reach")
        if id(edge) not in self._edges:
            self._graph(edge)
        return self._edges[id(edge)]

    def _leaf(self, leaf: Leaf) -> Any:
        found = self._edges.get(id(leaf))
        if found is None:
            self._alive.append(leaf)
            if leaf.hooks or leaf.after:
                raise CompileError("it makes a leaf with hooks")
            grad = None if leaf.grad is None else self.handle(leaf.grad)
            found = self._edges[id(leaf)] = NewLeaf(len(self.outputs.leaves))
            self.outputs.leaves.append(LeafTemplate(self._value(leaf.value), leaf.param, grad))
        return found

    def _graph(self, top: Vertex) -> None:
        """The templates of a vertex and of all behind it that the call made, the oldest first."""
        seen: dict[int, Any] = {id(top): top}
        stack: list[Any] = [top]
        outside = False
        while stack:
            for edge in stack.pop().edges:
                if edge is None or id(edge) in seen:
                    continue
                if isinstance(edge, Vertex) and edge.order >= self.start:
                    seen[id(edge)] = edge
                    stack.append(edge)
                else:
                    outside |= not self._steady(edge)
        if not outside and all(not vertex.hooks and vertex.is_spent() for vertex in seen.values()):
            self._edges[id(top)] = SpentEdge(top)
            return
        for vertex in sorted(seen.values(), key=lambda vertex: vertex.order):
            if not isinstance(self._edges.get(id(vertex)), NewVertex):
                self._edges[id(vertex)] = self._recorded(vertex)

    def _recorded(self, vertex: Vertex) -> NewVertex:
        form = vertex.form()
        if vertex.hooks or (type(vertex) is not TapeNode and form is None):
            what = "a hook" if vertex.hooks else vertex.name()
            raise CompileError(f"it returns a tensor whose gradient goes through {what}: call backward() inside")
        self._alive.append(vertex)
        if form is not None:
            behind = tuple([self.edge(edge) for edge in vertex.edges])
            values = tuple([self._value(value) for value in form.values])
            self.outputs.vertices.append(VertexTemplate(type(vertex), form.parts, behind, values))
            return NewVertex(len(self.outputs.vertices) - 1)
        assert type(vertex) is TapeNode
        kept = vertex.saved
        saved = (
            None
            if kept is None
            else tuple([SavedValue(self._value(v)) if isinstance(v, TensorValue) else v for v in kept])
        )
        edges = tuple([self.edge(edge) for edge in vertex.edges])
        output = None if vertex.output is None else self._value(vertex.output)
        listed = isinstance(kept, list)
        self.outputs.vertices.append(
            NodeTemplate(vertex.signature, vertex.context, edges, vertex.wants, saved, listed, output)
        )
        return NewVertex(len(self.outputs.vertices) - 1)

    def result(self, out: Any) -> Any:
        """The template of what the function returned."""
        if isinstance(out, Tensor):
            return self.handle(out)
        if is_atom(out) or self._known(out):
            return ConstantTemplate(out)
        kind = type(out)
        if kind in (list, tuple) or (isinstance(out, tuple) and hasattr(kind, "_fields")):
            return ContainerTemplate(kind, (), tuple([self.result(each) for each in out]))
        if kind in (dict, OrderedDict):
            return ContainerTemplate(kind, tuple(out), tuple([self.result(each) for each in out.values()]))
        if dataclasses.is_dataclass(out) and not isinstance(out, type):
            slots = {field.name: getattr(out, field.name) for field in dataclasses.fields(out)}
            fields = getattr(out, "__dict__", slots)
            return ContainerTemplate(kind, tuple(fields), tuple([self.result(each) for each in fields.values()]))
        raise CompileError(
            f"it returns a {kind.__name__}: return tensors, or tuples, lists, dicts and dataclasses of them"
        )


def same_result(a: Any, b: Any) -> bool:
    """Whether two templates of results are alike."""
    if isinstance(a, ContainerTemplate) and isinstance(b, ContainerTemplate):
        alike = a.kind is b.kind and a.names == b.names and len(a.parts) == len(b.parts)
        return alike and all(map(same_result, a.parts, b.parts))
    if isinstance(a, ConstantTemplate) and isinstance(b, ConstantTemplate):
        return a.value is b.value or (
            is_atom(a.value) and type(a.value) is type(b.value) and repr(a.value) == repr(b.value)
        )
    return bool(a == b)


class RebuiltOutputs:
    """The outputs of one later call, from old handles, the edges that they had when it began, and values found and made."""

    def __init__(
        self,
        templates: OutputTemplates,
        old: list[Tensor],
        edges: dict[int, Any],
        found: list[TensorValue],
        made: list[TensorValue],
    ) -> None:
        self.old = old
        self.edges = edges
        self.found = found
        self.made = made
        self.handles: list[Tensor] = []
        self.vertices: list[Vertex] = []
        self.leaves: list[Leaf] = [Leaf(self.value(leaf.value), param=leaf.param) for leaf in templates.leaves]
        for vertex in templates.vertices:
            self.vertices.append(self._vertex(vertex))

    def make_handles(self, templates: OutputTemplates) -> None:
        """Make the new handles, once the old ones are as the call leaves them."""
        made, found, handles = self.made, self.found, self.handles
        for template in templates.handles:
            number = template.value
            tensor: TensorState = _new(template.kind)
            tensor._value = made[number] if number >= 0 else found[~number]
            tensor._edge = None if template.edge is None else self.edge(template.edge)
            tensor._version = template.version
            tensor._view = None if template.base is None else self._view(template)
            handles.append(tensor)  # type: ignore[arg-type]  # it was made as one
        for leaf, fresh in zip(self.leaves, templates.leaves, strict=True):
            leaf.grad = None if fresh.grad is None else self.handle(fresh.grad)

    def value(self, number: int) -> TensorValue:
        """A value by its number."""
        return self.made[number] if number >= 0 else self.found[~number]

    def handle(self, template: OldHandle | NewHandle) -> Tensor:
        """A handle by its template."""
        return self.old[template.place] if type(template) is OldHandle else self.handles[template[0]]

    def edge(self, template: Any) -> Any:
        """A place on the tape by its template."""
        if template is None:
            return None
        kind = type(template)
        if kind is SpentEdge:
            return template.edge
        if kind is OldEdge:
            return self.edges[template.place]
        return self.vertices[template.number] if kind is NewVertex else self.leaves[template.number]

    def _vertex(self, template: NodeTemplate | VertexTemplate) -> Vertex:
        if isinstance(template, VertexTemplate):
            edges = tuple([self.edge(edge) for edge in template.edges])
            return template.kind.from_form(template.parts, edges, [self.value(number) for number in template.values])
        saved: Any = template.saved
        if saved is not None:
            saved = [self.value(each.value) if type(each) is SavedValue else each for each in saved]
            saved = saved if template.listed else tuple(saved)
        output = None if template.output is None else self.value(template.output)
        edges = tuple([self.edge(edge) for edge in template.edges])
        return TapeNode(template.signature, template.context, edges, template.wants, saved, output)

    def _view(self, template: HandleTemplate) -> ViewDerivation:
        assert template.base is not None
        base = self.handle(template.base)
        op, attributes, starts, grad, current = template.view
        view = object.__new__(ViewDerivation)
        view.rebase(base)
        starts = tuple([at if type(at) is int else self.handle(at) for at in starts])
        view.op, view.attributes, view.starts, view.grad = op, attributes, starts, grad
        view.seen = base._version if current else -1
        return view

    def result(self, template: Any) -> Any:
        """What the function returns."""
        kind = type(template)
        if kind is OldHandle or kind is NewHandle:
            return self.handle(template)
        if kind is ConstantTemplate:
            return template.value
        parts = [self.result(part) for part in template.parts]
        kind = template.kind
        if kind in (list, tuple):
            return kind(parts)
        if issubclass(kind, tuple):
            return kind(*parts)
        if issubclass(kind, dict):
            return kind(zip(template.names, parts, strict=True))
        made = object.__new__(kind)
        for name, part in zip(template.names, parts, strict=True):
            object.__setattr__(made, name, part)
        return made
