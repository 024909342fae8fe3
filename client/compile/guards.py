"""Guards of a compiled function: on all that it can reach besides its arguments, tensors and the Python objects that steer it.

A compiled function (`client/compile/compile.py`) does as it did when it was traced, so all that could make it do otherwise is
guarded: closures, the globals that its code names, attributes of modules and of the program's own objects, settings of
optimizers, through lists, dictionaries and the functions that it calls. Nothing is emitted here, and nothing changed.

What the standard library and installed packages hold is not looked into: it is guarded by identity.
"""

from __future__ import annotations

import argparse
import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import numpy as np

from gt.client.nn.module import Module
from gt.client.optim.optimizer import Optimizer
from gt.client.tensor import tape
from gt.client.tensor.tensor import Tensor
from gt.errors import CompileError
from gt.ir.dtypes import DType

from .same_objects import same_objects  # not compiled

MAX_GUARDED_OBJECTS: Final = 50_000
"""Objects that are guarded at most: they are looked at in every call."""
_ATOMS: Final = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    DType,
    Enum,
    np.generic,
    range,
    slice,
    type(Ellipsis),
)
_READS_SETTINGS: Final = frozenset({"param_groups", "state_dict", "defaults"})
"""Attributes through which a function reads an optimizer's settings itself: then they are part of what it does."""
_READS_ANY: Final = frozenset(
    {"getattr", "setattr", "hasattr", "vars", "attrgetter", "asdict", "__dict__", "__getattribute__"}
)
"""By which code reaches attributes that it does not name: then all of them are looked at."""
_MAKERS: Final = frozenset({"__init__", "__new__", "__post_init__"})
_NOT_STATE: Final = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__name__", "__builtins__", "__file__"}
)
_MISSING: Final = object()


def is_atom(value: Any) -> bool:
    """Whether it is a plain value, which is compared by equality."""
    return isinstance(value, _ATOMS)


def same_atom(a: Any, b: Any) -> bool:
    """Whether two plain values are the same one: of one type, and NaN is itself."""
    return type(a) is type(b) and is_atom(a) and (repr(a) == repr(b) if type(a) in (float, complex) else bool(a == b))


class ObjectGuard:
    """A guard on the objects that one place held, each with its path."""

    __slots__ = ("names", "reads", "values")

    def __init__(self, reads: list[Callable[[], Iterable[Any]]], names: Callable[[int], str]) -> None:
        self.reads = reads
        self.names = names
        self.values = self.read()

    def read(self) -> list[Any]:
        """The objects that the place holds now."""
        return [*chain.from_iterable([read() for read in self.reads])]

    def changed(self) -> str | None:
        """Which object is another one now, in words; None when all are the same. What is equal and plain is the same."""
        now = self.read()
        if len(now) != len(self.values):
            return f"{self.names(-1)} is {len(now)} entries long, not {len(self.values)}"
        for place, (new, old) in enumerate(zip(now, self.values, strict=True)):
            if new is not old and not same_atom(new, old):
                return f"{self.names(place)} is {_describe(new)}" + (f", not {_describe(old)}" if is_atom(old) else "")
        self.values = now
        return None


def _describe(value: Any) -> str:
    if value is _MISSING:
        return "missing"
    text = repr(value) if is_atom(value) else f"another {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "…"


class Guards:
    """The guards on all that was reached from some roots: `object_guards`, and `tensors` with their paths."""

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self.object_guards: list[ObjectGuard] = []
        self.tensors: list[tuple[Tensor, str]] = []
        self.seen: dict[int, Any] = {}
        """By id; they are kept alive, so that an id stays whose it is."""
        self._optimizers: list[tuple[Optimizer, str]] = []
        self._attributes: set[str] = set()
        """All attributes that any code found so far names."""
        self._owners: list[AttributeOwner] = []
        self._classes: set[type] = set()
        self._left: deque[tuple[str, Any]] = deque(roots)
        self._size = 0
        while self._left or self._visit_attributes():
            self._visit(*self._left.popleft())
        for owner in self._owners:
            self._guard_attributes(owner)
        by_value = not _READS_SETTINGS.isdisjoint(self._attributes)
        for optimizer, path in self._optimizers:
            settings = functools.partial(_settings, optimizer, by_value=by_value)
            self._guard([settings], lambda _, path=path: f"a setting in {path}")  # type: ignore[misc]  # bound at once
        del self._left, self._owners, self._classes
        reads: list[Any] = [read for guard in self.object_guards for read in guard.reads]
        tables = [getattr(read, "__self__", None) for read in reads]
        empty = [isinstance(table, dict) and not table for table in tables]
        self._reads = [read for read, none in zip(reads, empty, strict=True) if not none]
        self._empty = [table for table, none in zip(tables, empty, strict=True) if none]
        self._values = [each for guard in self.object_guards for each in guard.values]

    def changed(self) -> str | None:
        """What is not as it was found, in words; None when all guards hold."""
        try:
            now = [*chain.from_iterable([read() for read in self._reads])]
            if same_objects(now, self._values) and not any(self._empty):
                return None
        except KeyError as error:
            return f"{error.args[0]} is gone"
        for guard in self.object_guards:
            what = guard.changed()
            if what is not None:
                return what
        self._values = [each for guard in self.object_guards for each in guard.values]
        return None

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, _ATOMS) or id(value) in self.seen:
            return
        self.seen[id(value)] = value
        if isinstance(value, Tensor):
            self._tensor(path, value)
        elif isinstance(value, Module):
            self._module(path, value)
        elif isinstance(value, Optimizer) and _is_ours(type(value)):
            self._optimizer(path, value)
        elif isinstance(value, (dict, list, tuple, deque, set, frozenset)):
            self._container(path, value)
        elif isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
            self._left += [(path, value.__func__), (f"{path}.__self__", getattr(value, "__self__", None))]
        elif isinstance(value, functools.partial):
            self._left += [(path, value.func), (path, value.args), (path, value.keywords)]
        elif isinstance(value, property):
            self._left += [(path, value.fget), (path, value.fset)]
        elif isinstance(value, type):
            self._attributes |= _MAKERS  # it may be called
            self._class(path, value)
        elif not isinstance(value, (types.ModuleType, np.ndarray)):
            self._instance(path, value)

    def _guard(self, reads: list[Callable[[], Iterable[Any]]], names: Callable[[int], str]) -> None:
        guard = ObjectGuard(reads, names)
        self._size += len(guard.values)
        if self._size > MAX_GUARDED_OBJECTS:
            raise CompileError(f"it can reach more than {MAX_GUARDED_OBJECTS} Python objects ({names(-1)} among them)")
        self.object_guards.append(guard)
        self._left += [(names(place), each) for place, each in enumerate(guard.values) if not isinstance(each, _ATOMS)]

    def _container(self, path: str, value: Any) -> None:
        if isinstance(value, dict):
            keys = list(value)
            places = [*[f"{path}[{key!r}]" for key in keys], *[f"a key of {path}"] * len(keys)]
            self._guard(
                [value.values, value.__iter__], lambda place: places[place] if 0 <= place < len(places) else path
            )
        elif isinstance(value, tuple):
            self._left += [(f"{path}[{place}]", each) for place, each in enumerate(value)]
        else:
            self._guard([value.__iter__], lambda place: f"{path}[{place}]" if place >= 0 else path)
        if not _is_library(type(value).__module__):
            self._instance(path, value)

    def _add_owner(self, path: str, table: Any, whole: bool) -> None:
        self._owners.append(AttributeOwner(path, table, whole))

    def _visit_attributes(self) -> bool:
        """Visit attributes that code found since then names; whether there are any."""
        everything = not _READS_ANY.isdisjoint(self._attributes)
        for owner in self._owners:
            for name in list(owner.table):
                called = name.startswith("__") and name not in _MAKERS
                wanted = owner.whole or everything or called or name in self._attributes
                if wanted and name not in owner.names and name not in _NOT_STATE:
                    owner.names[name] = None
                    self._left.append((f"{owner.path}.{name}", owner.table[name]))
        return bool(self._left)

    def _guard_attributes(self, owner: AttributeOwner) -> None:
        names, path = list(owner.names), owner.path
        if names:
            read = functools.partial(itemgetter(names[0], *names), owner.table)  # of one name alone it gives no tuple
            self._guard([read], lambda place: f"{path}.{names[max(place - 1, 0)]}")

    def _tensor(self, path: str, tensor: Tensor) -> None:
        self.tensors.append((tensor, path))
        if tensor._view is not None:
            self._left.append((f"the base of {path}", tensor._view.base))
        if isinstance(tensor._edge, tape.Leaf):
            self._left += [(f"a hook of {path}", hook) for hook in (tensor._edge.hooks or ())]

    def _module(self, path: str, module: Module) -> None:
        state = vars(module)
        tables = [state[name] for name in ("_parameters", "_buffers", "_modules") if name in state]
        hooks = [table for name, table in state.items() if name.endswith("_hooks") and isinstance(table, list)]
        tables_of_hooks = hooks if state.get("_hooked") else []
        for table in (*tables, *hooks, state.get("_state_hooks"), state.get("_transient")):
            self.seen[id(table)] = table  # guarded here, or nothing that a call looks at
        names = [name for table in tables for name in table]
        reads: list[Any] = [*[table.values for table in tables], *[table.__iter__ for table in tables_of_hooks]]
        self._guard(reads, lambda place: f"{path}.{names[place]}" if 0 <= place < len(names) else path)
        if _is_ours(type(module)):
            self._guard([state.values], lambda place: f"{path}.{list(state)[place]}")
            return
        self._attributes.add("forward")
        self._add_owner(path, state, False)
        self._guard(
            [functools.partial(itemgetter("training", "_hooked"), state)], lambda place: f"{path}.training or its hooks"
        )
        self._class(path, type(module))

    def _optimizer(self, path: str, optimizer: Optimizer) -> None:
        self._optimizers.append((optimizer, path))
        self._guard([functools.partial(_parts, optimizer)], lambda _: f"what {path} updates or its state")
        for group in optimizer.param_groups:
            self.seen[id(group)] = group
        for state in optimizer.state.values():
            self.seen[id(state)] = state

    def _function(self, path: str, function: types.FunctionType) -> None:
        cells = function.__closure__ or ()
        self._left.append((path, getattr(function, "__wrapped__", None)))
        if _is_library(function.__globals__.get("__name__", "")):  # a decorator, perhaps
            self._left += [(path, _content(cell)) for cell in cells]
            return
        table, attributes, imported = _names(function.__code__)
        self._attributes |= attributes
        self._look_up(function.__globals__, table)
        modules = [function.__globals__.get(name) for name in table] + [sys.modules.get(name) for name in imported]
        for module in modules:
            if (
                isinstance(module, types.ModuleType)
                and not _is_library(module.__name__)
                and id(module) not in self.seen
            ):
                self.seen[id(module)] = module
                self._add_owner(module.__name__, vars(module), False)
        free = function.__code__.co_freevars
        if cells:
            self._guard([lambda: [_content(cell) for cell in cells]], lambda place: free[place])
        self._left += [(path, function.__defaults__), (path, function.__kwdefaults__), (path, function.__dict__)]

    def _look_up(self, scope: dict[str, Any], names: Iterable[str]) -> None:
        present = [name for name in names if name in scope]
        if present:
            read = functools.partial(itemgetter(present[0], *present), scope)
            self._guard([read], lambda place: present[max(place - 1, 0)])

    def _class(self, path: str, kind: type) -> None:
        for each in kind.__mro__:
            if each not in self._classes and not _is_library(each.__module__):
                self._classes.add(each)
                self._add_owner(each.__name__, vars(each), False)

    def _instance(self, path: str, value: Any) -> None:
        kind = type(value)
        if hasattr(value, "__wrapped__"):  # another compiled function, one with a cache, …
            self._left.append((path, value.__wrapped__))
            return
        open_to_all = isinstance(value, (types.SimpleNamespace, argparse.Namespace)) or _is_ours(kind)
        if not open_to_all and _is_library(kind.__module__):
            return
        if hasattr(value, "__dict__"):
            self._add_owner(path, vars(value), _is_ours(kind))
        slots = [name for each in kind.__mro__ for name in _slots(each)]
        if slots and not _is_ours(kind):
            self._guard(
                [lambda: [getattr(value, name, _MISSING) for name in slots]], lambda place: f"{path}.{slots[place]}"
            )
        self._class(path, kind)


class AttributeOwner:
    """An object with attributes: which of them are guarded. `whole`: GT's own code looks at any of them."""

    __slots__ = ("names", "path", "table", "whole")

    def __init__(self, path: str, table: Any, whole: bool) -> None:
        self.path = path
        self.table = table
        self.whole = whole
        self.names: dict[str, None] = {}


def _parts(optimizer: Optimizer) -> Iterable[Any]:
    """The parameters and hooks of an optimizer, and the handles of its states; not the numbers in them, which are live."""
    parts: list[Any] = [*optimizer._before, *optimizer._after]
    for group in optimizer.param_groups:
        parts += group["params"]
    for state in optimizer.state.values():
        parts += [value for value in state.values() if isinstance(value, Tensor)]
    return parts


def _settings(optimizer: Optimizer, by_value: bool) -> Iterable[Any]:
    """The settings that say what a step is. Floating-point ones are live, unless the function reads them itself."""
    settings = [value for group in optimizer.param_groups for key, value in group.items() if key != "params"]
    settings = [each for value in settings for each in (value if type(value) is tuple else (value,))]
    return settings if by_value else [value for value in settings if type(value) is not float]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned, or deleted
        return _MISSING


def _slots(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if name not in ("__dict__", "__weakref__")]


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "gt"


@functools.lru_cache(maxsize=1024)
def _is_library(name: str) -> bool:
    """Whether a module is the standard library's, an installed package's or GT's own."""
    root = name.partition(".")[0]
    if root in sys.stdlib_module_names or root == "gt":
        return root != "__main__"
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], frozenset[str], frozenset[str]]:
    """(the globals, the attributes, the modules) that a function's code names, with those of functions defined in it."""
    table: dict[str, None] = {}
    attributes: set[str] = set()
    imported: set[str] = set()
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name.endswith(("_GLOBAL", "_NAME")) and name != "IMPORT_NAME":
            table[instruction.argval] = None
        elif name == "IMPORT_NAME":
            imported.add(instruction.argval)
        elif "ATTR" in name or name in ("LOAD_METHOD", "IMPORT_FROM"):
            attributes.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            more, others, modules = _names(constant)
            table |= dict.fromkeys(more)
            attributes |= others
            imported |= modules
    attributes |= _READS_ANY & set(table)
    return tuple(table), frozenset(attributes), frozenset(imported)
