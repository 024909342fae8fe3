"""A trace of a call: one call of a function as the run of one segment, with the state before it and after it.

`trace` calls the function as always and keeps its builder from sending before the end (`client/compile/capture.py`). What the
segment read, what its survivors are to the program, and where its scalars come from is then classified
(`client/compile/classify.py`); what cannot be classified is a `CompileError`, and the call was an ordinary one.
`CallTrace.replay` does the same again by one run: it reads the same handles, asks optimizers and the random source for new
numbers, sends the run, and leaves behind what the call left.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from gt.client.ops import random
from gt.client.segment.signature import Signature, TracedSegment
from gt.client.segment.value import TensorValue
from gt.client.session import sessions
from gt.client.tensor import emission_context, grad_mode, views
from gt.client.tensor.tape import Leaf
from gt.client.tensor.tensor import Tensor, TensorState
from gt.errors import CompileError
from gt.ir.dtypes import get_default_dtype
from gt.ir.ops import OPS

from .capture import CallArguments, CallCapture, InitialState
from .classify import ARGUMENT_SOURCE, REACHED_SOURCE, UNCHANGED_EDGE, Classification
from .guards import Guards
from .output_templates import OutputTemplates, RebuiltOutputs, same_result

ANY_VERTEX: Final = object()
"""Stands for an edge that may be any vertex of a tape."""
_SPEC: Final = attrgetter("_value.spec")
_EDGE: Final = attrgetter("_edge")
_HOOKS: Final = attrgetter("hooks", "after")


class TransientCompileError(CompileError):
    """The error for what keeps one call from being traced, but perhaps not the next."""


class OptimizerStep(NamedTuple):
    """One parameter's step in an optimizer: which of its numbers become which run-time scalars."""

    optimizer: Any
    state: dict[str, Any]
    group: dict[str, Any]
    kinds: list[type]
    """Whether each number was there: what is not, is no instruction either."""
    places: list[tuple[int, int]]
    """(place among the scalars, which number)."""


def trace(
    roots: list[tuple[str, Any]],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    call: CallArguments,
    strict: bool,
) -> tuple[Any, CallTrace | CompileError]:
    """Call a function and trace it: (what the call returned, its trace or why there is none)."""
    mine = sessions.builder()
    try:
        initial = InitialState(Guards(roots), call.tensors)
    except CompileError as error:
        return function(*args, **options), error
    mine.flush()
    base = mine.base
    capture = CallCapture(mine, strict)
    out = capture.call(function, args, options)
    if capture.reason is not None or sessions.builder() is not mine or mine.base != base:
        return out, CompileError(capture.reason or "the session changed in the middle")
    inputs, scalars = list(mine.inputs), list(mine.scalars)
    record, alive = mine.finish()
    try:
        return out, CallTrace(
            initial, capture, base, inputs, scalars, record, alive, call, CallArguments(args, options), out
        )
    except CompileError as error:
        return out, error


class CallTrace:
    """A traced call, which can be replayed."""

    def __init__(
        self,
        initial: InitialState,
        capture: CallCapture,
        base: int,
        inputs: list[int],
        scalars: list[Any],
        record: list[tuple[Any, ...]],
        alive: bytes,
        call: CallArguments,
        after: CallArguments,
        out: Any,
    ) -> None:
        what = initial.guards.changed()
        if what is not None:  # perhaps only once: a first step makes the states of an optimizer
            raise TransientCompileError(f"it changes what it reads: {what}")
        if not record:
            raise CompileError("it computes nothing")
        if random.source() is not capture.source:
            raise CompileError("it seeds the random numbers")
        for generator, _ in capture.draws:
            if generator is not None and id(generator) not in initial.guards.seen:
                raise CompileError("it draws from a generator that it cannot reach by a name")
        for optimizer, *_ in capture.steps:
            if id(optimizer) not in initial.guards.seen:
                raise CompileError(f"it makes a step of {type(optimizer).__name__}, which it cannot reach by a name")
        if [*map(id, call.tensors)] != [*map(id, after.tensors)] or [*map(id, call.objects)] != [
            *map(id, after.objects)
        ]:
            raise CompileError("it changes a list or a dictionary that it was given")
        self.confirmed = False
        self.key = (object(),)
        """By which the session's definitions know the segment."""
        self.guards = initial.guards
        self.session = capture.builder.session
        self.context = emission_context.current()
        self.settings = settings()
        self.objects = call.objects
        self.reached = [tensor for tensor, _ in initial.guards.tensors]
        self.reached_ids = {id(tensor) for tensor in self.reached}
        self.specs = [tensor._value.spec for tensor in self.reached]
        before = {id(tensor): state for tensor, state in zip(initial.handles, initial.before, strict=True)}
        edges = [before[id(tensor)][2] for tensor in self.reached]
        self.edges = [edge if edge is None or isinstance(edge, Leaf) else ANY_VERTEX for edge in edges]
        self.leaves = [edge for edge in edges if isinstance(edge, Leaf)]
        self.hooks = [_hooks(edge) for edge in self.leaves]
        self.paths = [path for _, path in initial.guards.tensors]
        classification = Classification(initial, capture, base, record, alive, inputs)
        self.sources = classification.sources
        self.inputs = classification.inputs
        self.found_values = classification.found_values
        self.alike = classification.alike
        self.given = classification.given
        self.effects, self.gradients, self.with_gradient = (
            classification.effects,
            classification.gradients,
            classification.with_gradient,
        )
        self.result = classification.templates.result(out)
        self.outputs: OutputTemplates = classification.templates.outputs
        self.edge_places = classification.edge_places
        self.shared = classification.finish()
        results = [(at, record[at][0].result) for at in classification.survivors]
        self.traced = TracedSegment(record, alive, len(inputs), results)
        self.scalars = scalars
        self.draws = [generator for generator, _ in capture.draws]
        self.drawn = _draw_places(record, scalars, capture.draws)
        self.steps = _steps(capture.steps, scalars)

    # guards

    def misses(self, call: CallArguments) -> str | None:
        """The first guard that a call with these arguments fails, in words; None when all hold."""
        what = self.guards.changed()
        if what is not None:
            return what
        if self.settings != settings():
            return "the signals, grad mode, dtype or session around the call"
        if [*map(_SPEC, self.reached)] != self.specs or [*map(_EDGE, self.reached)] != self.edges:
            for tensor, spec, edge, path in zip(self.reached, self.specs, self.edges, self.paths, strict=True):
                now = tensor._edge
                if tensor._value.spec is not spec:
                    return f"{path} is {tensor._value.spec}, not {spec}"
                if now is not edge and (edge is not ANY_VERTEX or now is None or type(now) is Leaf):
                    return f"whether {path} requires grad is otherwise"
        if [*map(_HOOKS, self.leaves)] != self.hooks:
            return "the hooks of a tensor"
        for kind, what_ in self.sources:
            if kind == ARGUMENT_SOURCE and id(call.tensors[what_]) in self.reached_ids:
                return f"argument tensor {what_} is one that the function reaches by itself"
        return None

    def _handles(self, call: CallArguments) -> list[Tensor] | str:
        """The handles that the call uses; or, in words, the guard on gradients, arguments or shared values that fails."""
        handles: list[Tensor] = []
        for kind, what in self.sources:
            if kind == ARGUMENT_SOURCE:
                handles.append(call.tensors[what])
            elif kind == REACHED_SOURCE:
                handles.append(what)
            else:
                holder: TensorState = handles[what]
                edge = holder._edge
                leaf: Leaf | None = edge if type(edge) is Leaf else holder._leaf()  # type: ignore[attr-defined]  # a method
                gradient: TensorState | None = None if leaf is None else leaf.grad
                if gradient is None or gradient._view is not None or gradient._edge is not None:
                    return "a gradient"
                if gradient._value.spec is not holder._value.spec:
                    return "a gradient"
                handles.append(gradient)  # type: ignore[arg-type]  # it is one
        for place, present in self.with_gradient:
            holder = handles[place]
            edge = holder._edge
            leaf = edge if type(edge) is Leaf else holder._leaf()
            if (leaf is not None and leaf.grad is not None) is not present:
                return "whether there is a gradient"
        for place, argument in self.shared:
            if call.tensors[argument] is not handles[place]:
                return f"argument tensor {argument}"
        return handles

    # replay

    def replay(self, call: CallArguments) -> tuple[str | None, Any]:
        """(None, what the function returns); or (the guard that fails after all, None): then nothing was done."""
        handles = self._handles(call)
        if type(handles) is str:
            return handles, None
        assert type(handles) is list
        values = [h._value if h._view is None else h._current() for h in map(handles.__getitem__, self.found_values)]
        if len({value.id for value in values[: len(self.inputs)]}) != len(self.inputs):
            return "two of the tensors share their values", None
        for one, other in self.alike:
            if handles[one]._value is not handles[other]._value:
                return "two of the tensors no longer share their values", None
        scalars = self.scalars.copy()
        stepped = self._next_steps(scalars)
        if stepped is None:
            return "a setting of an optimizer", None
        for state, counts in stepped:
            state.update(counts)
        if self.draws:
            numbers = [random.next_draw() if generator is None else generator.next() for generator in self.draws]
            for place, which in self.drawn:
                scalars[place : place + 2] = numbers[which]
        mine = sessions.builder()
        returned: list[Any] = []
        found, values = values, values[: len(self.inputs)]

        def bind(made: list[TensorValue]) -> None:
            returned.append(self._apply_effects(handles, found, made))
            found.clear()

        mine.run(self.key, self.traced, values, scalars, bind)
        return None, returned[0]

    def _next_steps(self, scalars: list[Any]) -> list[tuple[dict[str, Any], dict[str, Any]]] | None:
        """Put the numbers of all steps among the scalars; returns what their states count then, None if a step would differ."""
        stepped: list[tuple[dict[str, Any], dict[str, Any]]] = []
        ahead: dict[int, dict[str, Any]] = {}
        counted: Any = None
        for optimizer, state, group, kinds, places in self.steps:
            before = ahead.get(id(state), state)  # further on when it is the second step within one call
            now = (id(group), kinds, before.get("step"), before.get("mu_product"))
            if now != counted:  # mostly all parameters of a group have made as many steps
                counts = optimizer._counts(before, group)
                numbers = optimizer._numbers(counts, group)
                if [*map(type, numbers)] != kinds:
                    return None
                counted = now
            if counts:
                ahead[id(state)] = counts
                stepped.append((state, counts))
            for place, which in places:
                scalars[place] = numbers[which]
        return stepped

    def _apply_effects(self, handles: list[Tensor], found: list[TensorValue], made: list[TensorValue]) -> Any:
        """Apply the side effects of the call; returns what it returns."""
        edges = {place: handles[place]._edge for place in self.edge_places}
        rebuilt = RebuiltOutputs(self.outputs, handles, edges, found, made)
        for place in self.given:
            views.leave(handles[place])
        for place, number, versions, edge in self.effects:
            handle: TensorState = handles[place]
            value: TensorValue = rebuilt.value(number)
            handle._value = value
            handle._version += versions
            if edge is not UNCHANGED_EDGE:
                handle._edge = rebuilt.edge(edge)
            elif type(handle._edge) is Leaf:
                handle._edge.value = value
        rebuilt.make_handles(self.outputs)
        for place, gradient in self.gradients:
            holder: TensorState = handles[place]
            at = holder._edge
            leaf: Any = at if type(at) is Leaf else holder._leaf()  # type: ignore[attr-defined]  # a method
            leaf.grad = None if gradient is None else rebuilt.handle(gradient)
        return rebuilt.result(self.result)

    # comparison

    def differs(self, other: CallTrace) -> str | None:
        """How another trace differs from this one, with its line; None when only numbers differ that are asked for anew."""
        mine, theirs = self.traced.record, other.traced.record
        for a, b in zip(mine, theirs, strict=False):
            if a[1:] != b[1:] or not _alike(a[0], b[0]):
                return f"{b[0].tag.site}: another instruction ({b[0].op}) than in the call before ({a[0].op})"
        if len(mine) != len(theirs):
            longer = max(mine, theirs, key=len)
            site = longer[min(len(mine), len(theirs))][0].tag.site
            return f"{site}: {len(theirs)} instructions, in the call before {len(mine)}"
        if self.drawn != other.drawn or self.draws != other.draws:
            return "it does not draw its random numbers as in the call before"
        if [(step[3], step[4]) for step in self.steps] != [(step[3], step[4]) for step in other.steps]:
            return "an optimizer makes another step than in the call before"
        live = {place for step in self.steps for place, _ in step.places}
        live |= {place + more for place, _ in self.drawn for more in (0, 1)}
        for place, (a, b) in enumerate(zip(self.scalars, other.scalars, strict=True)):
            if place not in live and repr(a) != repr(b):
                return f"{_reader(theirs, place)}: the number {b!r}, in the call before {a!r}"
        same = (
            self._output_places() == other._output_places()
            and [(kind, id(what) if kind == REACHED_SOURCE else what) for kind, what in self.sources]
            == [(kind, id(what) if kind == REACHED_SOURCE else what) for kind, what in other.sources]
            and self.outputs == other.outputs
            and same_result(self.result, other.result)
        )
        return None if same else "it leaves its results elsewhere than in the call before"

    def _output_places(self) -> list[Any]:
        places = [self.traced.alive, self.inputs, self.found_values, self.alike]
        return [*places, self.effects, self.given, self.gradients, self.with_gradient]


def settings() -> tuple[Any, ...]:
    """The settings around a call that are part of what it does."""
    context = emission_context.current()
    around = (context.signal, context.phase, context.site, context.grad, context.backward, context.lower, context.hints)
    return sessions.current(), get_default_dtype(), grad_mode.is_inference_mode_enabled(), around


def _hooks(leaf: Leaf) -> tuple[Any, Any]:
    return None if leaf.hooks is None else leaf.hooks.copy(), None if leaf.after is None else leaf.after.copy()


def _alike(a: Signature, b: Signature) -> bool:
    """Whether two signatures differ by nothing but their lines."""
    return a is b or (
        (a.op, a.attributes, a.operands, a.results, a.tag.signal, a.tag.phase, a.tag.hints)
        == (b.op, b.attributes, b.operands, b.results, b.tag.signal, b.tag.phase, b.tag.hints)
    )


def _reader(record: list[tuple[Any, ...]], place: int) -> str:
    """The line of the instruction that reads a scalar."""
    for entry in record:
        place -= sum(isinstance(operand, str) for operand in entry[0].operands)
        if place < 0:
            return str(entry[0].tag.site)
    raise AssertionError("every scalar is read")


def _draw_places(
    record: list[tuple[Any, ...]], scalars: list[Any], heard: list[tuple[Any, tuple[int, int]]]
) -> list[tuple[int, int]]:
    """(place of a seed among the scalars, which draw of the call it is)."""
    out: list[tuple[int, int]] = []
    numbers = {pair: which for which, (_, pair) in enumerate(heard)}
    if len(numbers) != len(heard):
        raise CompileError("it draws the same random numbers from two generators")
    place = 0
    for entry in record:
        signature = entry[0]
        if OPS[signature.op].family == "random":
            which = numbers.get((scalars[place], scalars[place + 1]))
            if which is None:
                raise CompileError(f"{signature.tag.site}: it draws random numbers that were drawn before")
            out.append((place, which))
        place += sum(isinstance(operand, str) for operand in signature.operands)
    return out


def _steps(
    noted: list[tuple[Any, dict[str, Any], dict[str, Any], list[Any]]], scalars: list[Any]
) -> list[OptimizerStep]:
    """Where the numbers of the optimizers' steps are among the scalars, found by identity."""
    places: dict[int, list[int]] = {}
    for place, scalar in enumerate(scalars):
        places.setdefault(id(scalar), []).append(place)
    out: list[OptimizerStep] = []
    for optimizer, state, group, numbers in noted:
        for number in numbers:
            if number is not None and id(number) not in places:
                raise CompileError(f"{type(optimizer).__name__} computes with a number that is no run-time scalar")
        found = [(place, which) for which, n in enumerate(numbers) if n is not None for place in places[id(n)]]
        out.append(OptimizerStep(optimizer, state, group, [*map(type, numbers)], found))
    return out
