"""The capture of a call that is to be traced, and the state that it began with.

While a `CallCapture` is its builder's `capture`, nothing is sent; what cannot be in a traced call interrupts it. What the call
did is classified afterwards (`client/compile/classify.py`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from gt.bounds import MAX_INSTRUCTIONS
from gt.client.ops import random
from gt.client.segment.builder import Builder
from gt.client.segment.value import TensorValue
from gt.client.tensor import call_site, tape
from gt.client.tensor.tape import Leaf
from gt.client.tensor.tensor import Tensor
from gt.errors import CompileError

from .guards import Guards, is_atom

_BY_REPR: Final = (float, complex, slice, np.generic)
"""Kinds of plain values that are no key themselves: NaN is not equal to itself, and 0.0 is equal to −0.0."""


class CallArguments:
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


class CallCapture:
    """Captures one call of a function. While it is its builder's `capture`, nothing is sent."""

    def __init__(self, builder: Builder, strict: bool) -> None:
        self.builder = builder
        self.strict = strict
        self.thread = threading.get_ident()
        self.reason: str | None = None
        self.draws: list[tuple[Any, tuple[int, int]]] = []
        """Every number drawn, with its generator."""
        self.source = random.source()
        self.touched: dict[Leaf, tuple[Tensor | None, TensorValue | None, int]] = {}
        """Leaves whose gradient was looked at or changed, and what it was: handle, value and version."""
        self.steps: list[tuple[Any, dict[str, Any], dict[str, Any], list[Any]]] = []
        self.start = 0

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call the function while its instructions are held back."""
        mine = self.builder
        mine.capture = self
        mine.limit(MAX_INSTRUCTIONS)
        tokens = tape.TOUCHED_LEAVES.set(self.touched), random.TRACED_DRAWS.set(self.draws)
        self.start = next(tape.VERTEX_NUMBERS)
        try:
            return function(*args, **options)
        finally:
            tape.TOUCHED_LEAVES.reset(tokens[0])
            random.TRACED_DRAWS.reset(tokens[1])
            self._release()

    def _release(self) -> None:
        if self.builder.capture is self:
            self.builder.capture = None
            self.builder.limit(self.builder.session.flush_length)

    def interrupt(self, reason: str) -> None:
        """End the capture: the call cannot be one run."""
        site = call_site.site_of(call_site.user_frame(sys._getframe(1)))
        self.reason = f"{site}: {reason}"
        self._release()
        if self.strict and threading.get_ident() == self.thread:
            raise CompileError(self.reason)

    def backward_reached(self, oldest: int) -> None:
        """Note that a backward pass came as far as the vertex of this order."""
        if oldest < self.start:
            self.interrupt("backward() goes on into what was computed outside of the function")

    def step_numbers(
        self, optimizer: Any, state: dict[str, Any], group: dict[str, Any], numbers: tuple[Any, ...]
    ) -> list[Any]:
        """Note the numbers of a step; returns objects of their own, by which they are known again."""
        own = [None if number is None else float(number) * 1.0 for number in numbers]
        self.steps.append((optimizer, state, group, own))
        return own


class InitialState:
    """The state that a call began with: all handles that it can reach, with values, versions and edges."""

    def __init__(self, guards: Guards, arguments: list[Tensor]) -> None:
        self.guards = guards
        self.arguments = len(arguments)
        reached = {id(tensor) for tensor, _ in guards.tensors}
        self.handles = list(arguments)
        self.paths = [f"argument tensor {place}" for place in range(len(arguments))]
        known = {id(tensor) for tensor in arguments}
        for tensor, path in guards.tensors:
            if id(tensor) not in known:
                self.handles.append(tensor)
                self.paths.append(path)
        self.also_reached = [id(tensor) in reached for tensor in arguments]
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
        self.cut = [(tensor._view, getattr(tensor, "_view_state", None)) for tensor in self.handles]
