"""Traces: one call of a function, seen as the run of one segment between what it found and what it left.

`trace` calls the function as always and keeps its builder from sending before the end. What the segment read, what its
survivors are to the program, and where its scalars come from is then explained; what cannot be explained is a
`CompileError`, and the call was an ordinary one. `Trace.replay` does the same again by one run: it reads the same handles,
asks optimizers and the random source for new numbers, sends the run, and leaves behind what the call left.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from gt.dtypes import get_default_dtype
from gt.errors import CompileError
from gt.instruction import MAX_INSTRUCTIONS
from gt.ops import OPS

from . import apply as emission
from . import autograd, modes, random, session
from . import tensor as core
from .autograd import Leaf
from .rebuilding import Forms, Rebuilt, Templates, same_result
from .scene import Scene, is_atom
from .segment import Builder, Signature, Stretch, Value

KEEP: Final = object()
"""In place of an edge: as it was."""
RECORDED: Final = object()
"""In place of an edge: any vertex of a tape."""
ARGUMENT, REACHED, GRADIENT = range(3)
"""Where a trace finds a handle: among the arguments, from the function, or as the gradient of another."""

_BY_REPR: Final = (float, complex, slice, np.generic)
"""Kinds of plain values that are no key themselves: NaN is not equal to itself, and 0.0 is equal to −0.0."""
_SPEC: Final = attrgetter("_value.spec")
_EDGE: Final = attrgetter("_edge")
_HOOKS: Final = attrgetter("hooks", "after")
Tensor = core.Tensor


class Passing(CompileError):
    """What hinders one call, but perhaps not the next."""


class Call:
    """The arguments of a call: the tensors in them, the objects that are no plain values, and a key for the rest."""

    __slots__ = ("key", "objects", "tensors")

    def __init__(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.tensors: list[Tensor] = []
        self.objects: list[Any] = []
        key: list[Any] = []
        for argument in args:
            self._add(argument, key)
        for name, argument in options.items():
            key.append(name)
            self._add(argument, key)
        places = {id(tensor): place for place, tensor in enumerate(self.tensors)}
        if len(places) != len(self.tensors):  # the same one twice
            key.append(tuple([places[id(tensor)] for tensor in self.tensors]))
        self.key = tuple(key)

    def _add(self, value: Any, key: list[Any]) -> None:
        kind = type(value)
        if isinstance(value, Tensor):
            edge = value._edge
            leaf = isinstance(edge, Leaf)
            if isinstance(edge, Leaf) and (edge.hooks or edge.after):
                raise CompileError("an argument has hooks")
            key += (kind, value._value.spec, None if edge is None else leaf, value._view is None)
            self.tensors.append(value)
        elif is_atom(value):
            key += (kind, repr(value) if isinstance(value, _BY_REPR) else value)
        elif isinstance(value, (tuple, list)):
            key += (kind, len(value))
            for each in value:
                self._add(each, key)
        elif isinstance(value, dict):
            key += (kind, tuple(value))
            for each in value.values():
                self._add(each, key)
        elif isinstance(value, np.ndarray):
            raise CompileError("an argument is a NumPy array, whose values may change: pass gt.from_numpy(array)")
        else:
            key += (kind, id(value))
            self.objects.append(value)


class Step(NamedTuple):
    """One parameter's step in an optimizer: whose numbers become which run-time scalars."""

    optimizer: Any
    state: dict[str, Any]
    group: dict[str, Any]
    kinds: list[type]
    """Whether each number was there: what is not, is no instruction either."""
    places: list[tuple[int, int]]
    """(place among the scalars, which number)."""


class Recording:
    """A call under way. While it is its builder's `held`, nothing is sent."""

    def __init__(self, builder: Builder, strict: bool) -> None:
        self.builder = builder
        self.strict = strict
        self.thread = threading.get_ident()
        self.reason: str | None = None
        self.draws: list[tuple[Any, tuple[int, int]]] = []
        """Every number drawn, with its generator."""
        self.source = random.source()
        self.touched: dict[Leaf, tuple[Tensor | None, Value | None]] = {}
        """Leaves whose gradient was looked at or changed, and what it was."""
        self.steps: list[tuple[Any, dict[str, Any], dict[str, Any], list[Any]]] = []
        self.start = 0

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call the function."""
        mine = self.builder
        mine.held = self
        mine.limit(MAX_INSTRUCTIONS)
        tokens = autograd.TOUCHED.set(self.touched), random.HEARD.set(self.draws)
        self.start = next(autograd.ORDER)
        try:
            return function(*args, **options)
        finally:
            autograd.TOUCHED.reset(tokens[0])
            random.HEARD.reset(tokens[1])
            self._release()

    def _release(self) -> None:
        if self.builder.held is self:
            self.builder.held = None
            self.builder.limit(self.builder.session.flush_length)

    def interrupt(self, reason: str) -> None:
        """Hold no longer: the call cannot be one run."""
        site = emission.site_of(emission.user_frame(sys._getframe(1)))
        self.reason = f"{site}: {reason}"
        self._release()
        if self.strict and threading.get_ident() == self.thread:
            raise CompileError(self.reason)

    def walked(self, oldest: int) -> None:
        """A walk back along the tape came as far as the vertex of this order."""
        if oldest < self.start:
            self.interrupt("backward() goes on into what was computed outside of the function")

    def numbers(
        self, optimizer: Any, state: dict[str, Any], group: dict[str, Any], numbers: tuple[Any, ...]
    ) -> list[Any]:
        """Note the numbers of a step; returns objects of their own, by which they are known again."""
        own = [None if number is None else float(number) * 1.0 for number in numbers]
        self.steps.append((optimizer, state, group, own))
        return own


def trace(
    roots: list[tuple[str, Any]],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    call: Call,
    strict: bool,
) -> tuple[Any, Trace | CompileError]:
    """(what the call returned, its trace or why there is none)."""
    mine = session.builder()
    try:
        found = Found(Scene(roots), call.tensors)
    except CompileError as error:
        return function(*args, **options), error
    mine.flush()
    base = mine.base
    recording = Recording(mine, strict)
    out = recording.call(function, args, options)
    if recording.reason is not None or session.builder() is not mine or mine.base != base:
        return out, CompileError(recording.reason or "the session changed in the middle")
    inputs, scalars = list(mine.inputs), list(mine.scalars)
    record, alive = mine.finish()
    try:
        return out, Trace(found, recording, base, inputs, scalars, record, alive, call, Call(args, options), out)
    except CompileError as error:
        return out, error


class Found:
    """What there was when a call began: all handles that it can reach, with values, versions and edges."""

    def __init__(self, scene: Scene, arguments: list[Tensor]) -> None:
        self.scene = scene
        self.arguments = len(arguments)
        reached = {id(tensor) for tensor, _ in scene.tensors}
        self.handles = list(arguments)
        self.paths = [f"argument tensor {place}" for place in range(len(arguments))]
        known = {id(tensor) for tensor in arguments}
        for tensor, path in scene.tensors:
            if id(tensor) not in known:
                self.handles.append(tensor)
                self.paths.append(path)
        self.met = [id(tensor) in reached for tensor in arguments]
        """Whether an argument is also reached otherwise."""
        self.hidden: list[tuple[Tensor, int]] = []
        """The bases of arguments that are views, and their versions."""
        for tensor in self.handles:
            tensor._current()
        for tensor in arguments:
            while tensor._view is not None:
                tensor = tensor._view.base
                self.hidden.append((tensor, tensor._version))
        self.places = {id(tensor): place for place, tensor in reversed(list(enumerate(self.handles)))}
        self.before = [(tensor._value, tensor._version, tensor._edge) for tensor in self.handles]


class Trace:
    """What a call did, in a form that can be done again."""

    def __init__(
        self,
        found: Found,
        recording: Recording,
        base: int,
        inputs: list[int],
        scalars: list[Any],
        record: list[tuple[Any, ...]],
        alive: bytes,
        call: Call,
        after: Call,
        out: Any,
    ) -> None:
        what = found.scene.changed()
        if what is not None:  # perhaps only once: a first step makes the states of an optimizer
            raise Passing(f"it changes what it reads: {what}")
        if not record:
            raise CompileError("it computes nothing")
        if random.source() is not recording.source:
            raise CompileError("it seeds the random numbers")
        for generator, _ in recording.draws:
            if generator is not None and id(generator) not in found.scene.seen:
                raise CompileError("it draws from a generator that it cannot reach by a name")
        for optimizer, *_ in recording.steps:
            if id(optimizer) not in found.scene.seen:
                raise CompileError(f"it makes a step of {type(optimizer).__name__}, which it cannot reach by a name")
        if [*map(id, call.tensors)] != [*map(id, after.tensors)] or [*map(id, call.objects)] != [
            *map(id, after.objects)
        ]:
            raise CompileError("it changes a list or a dictionary that it was given")
        self.confirmed = False
        self.key = (object(),)
        """By which the session's definitions know the segment."""
        self.scene = found.scene
        self.session = recording.builder.session
        self.context = emission.current()
        self.settings = settings()
        self.objects = call.objects
        self.reached = [tensor for tensor, _ in found.scene.tensors]
        self.reached_ids = {id(tensor) for tensor in self.reached}
        self.specs = [tensor._value.spec for tensor in self.reached]
        before = {id(tensor): state for tensor, state in zip(found.handles, found.before, strict=True)}
        edges = [before[id(tensor)][2] for tensor in self.reached]
        self.edges = [edge if edge is None or isinstance(edge, Leaf) else RECORDED for edge in edges]
        self.leaves = [edge for edge in edges if isinstance(edge, Leaf)]
        self.hooks = [_hooks(edge) for edge in self.leaves]
        self.paths = [path for _, path in found.scene.tensors]
        explained = Explained(found, recording, base, record, alive, inputs)
        self.sources = explained.sources
        self.inputs = explained.inputs
        self.found = explained.found
        self.alike = explained.alike
        self.effects, self.gradients, self.with_gradient = (
            explained.effects,
            explained.gradients,
            explained.with_gradient,
        )
        self.result = explained.templates.result(out)
        self.forms: Forms = explained.templates.forms
        self.edge_places = explained.edge_places
        self.shared = explained.finish()
        results = [(at, record[at][0].result) for at in explained.survivors]
        self.stretch = Stretch(record, alive, len(inputs), results)
        self.scalars = scalars
        self.draws = [generator for generator, _ in recording.draws]
        self.drawn = _drawn(record, scalars, recording.draws)
        self.steps = _steps(recording.steps, scalars)

    # guards

    def misses(self, call: Call) -> str | None:
        """None when a call with these arguments does what this one did, or what is otherwise."""
        what = self.scene.changed()
        if what is not None:
            return what
        if self.settings != settings():
            return "the signals, grad mode, dtype or session around the call"
        if [*map(_SPEC, self.reached)] != self.specs or [*map(_EDGE, self.reached)] != self.edges:
            for tensor, spec, edge, path in zip(self.reached, self.specs, self.edges, self.paths, strict=True):
                now = tensor._edge
                if tensor._value.spec is not spec:
                    return f"{path} is {tensor._value.spec}, not {spec}"
                if now is not edge and (edge is not RECORDED or now is None or type(now) is Leaf):
                    return f"whether {path} requires grad is otherwise"
        if [*map(_HOOKS, self.leaves)] != self.hooks:
            return "the hooks of a tensor"
        for kind, what_ in self.sources:
            if kind == ARGUMENT and id(call.tensors[what_]) in self.reached_ids:
                return f"argument tensor {what_} is one that the function reaches by itself"
        return None

    def _handles(self, call: Call) -> list[Tensor] | str:
        """The handles that the call uses; or what is otherwise with gradients, arguments or shared values."""
        handles: list[Tensor] = []
        for kind, what in self.sources:
            if kind == ARGUMENT:
                handles.append(call.tensors[what])
            elif kind == REACHED:
                handles.append(what)
            else:
                leaf: Any = handles[what]._edge
                gradient = leaf.grad
                if gradient is None or gradient._view is not None or gradient._edge is not None:
                    return "a gradient"
                if gradient._value.spec is not handles[what]._value.spec:
                    return "a gradient"
                handles.append(gradient)
        for place, present in self.with_gradient:
            if (handles[place]._edge.grad is not None) is not present:  # type: ignore[union-attr]  # a leaf
                return "whether there is a gradient"
        for place, argument in self.shared:
            if call.tensors[argument] is not handles[place]:
                return f"argument tensor {argument}"
        return handles

    # doing it again

    def replay(self, call: Call) -> tuple[str | None, Any]:
        """(None, what the function returns), or what is otherwise after all and None: then nothing was done."""
        handles = self._handles(call)
        if type(handles) is str:
            return handles, None
        assert type(handles) is list
        values = [h._value if h._view is None else h._current() for h in map(handles.__getitem__, self.found)]
        if len({value.id for value in values[: len(self.inputs)]}) != len(self.inputs):
            return "two of the tensors share their values", None
        for one, other in self.alike:
            if handles[one]._value is not handles[other]._value:
                return "two of the tensors no longer share their values", None
        scalars = self.scalars.copy()
        stepped = self._stepped(scalars)
        if stepped is None:
            return "a setting of an optimizer", None
        for state, counts in stepped:
            state.update(counts)
        if self.draws:
            numbers = [random.next_draw() if generator is None else generator.next() for generator in self.draws]
            for place, which in self.drawn:
                scalars[place : place + 2] = numbers[which]
        mine = session.builder()
        returned: list[Any] = []
        found, values = values, values[: len(self.inputs)]

        def bind(made: list[Value]) -> None:
            returned.append(self._left(handles, found, made))
            found.clear()

        mine.run(self.key, self.stretch, values, scalars, bind)
        return None, returned[0]

    def _stepped(self, scalars: list[Any]) -> list[tuple[dict[str, Any], dict[str, Any]]] | None:
        """Put the numbers of all steps among the scalars; what their states count then. None: a step would be another one."""
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

    def _left(self, handles: list[Tensor], found: list[Value], made: list[Value]) -> Any:
        """Leave what the call leaves; what it returns."""
        edges = {place: handles[place]._edge for place in self.edge_places}
        rebuilt = Rebuilt(self.forms, handles, edges, found, made)
        for place, number, versions, edge in self.effects:
            handle = handles[place]
            handle._value = value = rebuilt.value(number)
            handle._version += versions
            if edge is not KEEP:
                handle._edge = rebuilt.edge(edge)
            elif type(handle._edge) is Leaf:
                handle._edge.value = value
        rebuilt.make_handles(self.forms)
        for place, gradient in self.gradients:
            leaf: Any = handles[place]._edge
            leaf.grad = None if gradient is None else rebuilt.handle(gradient)
        return rebuilt.result(self.result)

    # comparing

    def differs(self, other: Trace) -> str | None:
        """None when both did the same, but for numbers that are asked for anew; or what differs, with its line."""
        mine, theirs = self.stretch.record, other.stretch.record
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
            [self.stretch.alive, self.inputs, self.found, self.alike, self.effects, self.gradients, self.with_gradient]
            == [
                other.stretch.alive,
                other.inputs,
                other.found,
                other.alike,
                other.effects,
                other.gradients,
                other.with_gradient,
            ]
            and [(kind, id(what) if kind == REACHED else what) for kind, what in self.sources]
            == [(kind, id(what) if kind == REACHED else what) for kind, what in other.sources]
            and self.forms == other.forms
            and same_result(self.result, other.result)
        )
        return None if same else "it leaves its results elsewhere than in the call before"


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
        self._edges = {id(edge): at for at, (_, _, edge) in enumerate(found.before) if edge is not None}
        self._gradients = {id(grad): leaf for leaf, (grad, _) in recording.touched.items() if grad is not None}
        self._owners: dict[int, list[tuple[int, Any]]] = {}
        for at, (value, _, _) in enumerate(found.before):
            self._owners.setdefault(value.id, []).append((REACHED, at))
        for leaf, (_, gradient) in recording.touched.items():
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
        for leaf, (before, value) in recording.touched.items():
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
                    self.effects.append((own, self._number(before._value), 1, KEEP))
            if leaf.grad is not before:
                self.gradients.append((place, None if leaf.grad is None else self.templates.handle(leaf.grad)))

    def _handle_effects(self) -> None:
        found = self._found
        if any(base._version != version for base, version in found.hidden):
            raise CompileError("it writes to what an argument is a view of")
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


def settings() -> tuple[Any, ...]:
    """What surrounds a call and is part of what it does."""
    context = emission.current()
    around = (context.signal, context.phase, context.site, context.grad, context.backward, context.lower)
    return session.current(), get_default_dtype(), modes.is_inference_mode_enabled(), around


def _hooks(leaf: Leaf) -> tuple[Any, Any]:
    return None if leaf.hooks is None else leaf.hooks.copy(), None if leaf.after is None else leaf.after.copy()


def _alike(a: Signature, b: Signature) -> bool:
    """Whether two signatures differ by nothing but their lines."""
    return a is b or (
        (a.op, a.attributes, a.operands, a.results, a.tag.signal, a.tag.phase)
        == (b.op, b.attributes, b.operands, b.results, b.tag.signal, b.tag.phase)
    )


def _reader(record: list[tuple[Any, ...]], place: int) -> str:
    """The line of the instruction that reads a scalar."""
    for entry in record:
        place -= sum(isinstance(operand, str) for operand in entry[0].operands)
        if place < 0:
            return str(entry[0].tag.site)
    raise AssertionError("every scalar is read")


def _drawn(
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


def _steps(noted: list[tuple[Any, dict[str, Any], dict[str, Any], list[Any]]], scalars: list[Any]) -> list[Step]:
    """Where the numbers of the optimizers' steps are among the scalars, found by identity."""
    places: dict[int, list[int]] = {}
    for place, scalar in enumerate(scalars):
        places.setdefault(id(scalar), []).append(place)
    out: list[Step] = []
    for optimizer, state, group, numbers in noted:
        for number in numbers:
            if number is not None and id(number) not in places:
                raise CompileError(f"{type(optimizer).__name__} computes with a number that is no run-time scalar")
        found = [(place, which) for which, n in enumerate(numbers) if n is not None for place in places[id(n)]]
        out.append(Step(optimizer, state, group, [*map(type, numbers)], found))
    return out
