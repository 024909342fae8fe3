"""Signals: names in the program to which the YAML binds rules. They never change values.

`context(name)` nests; a name with slashes is several nested ones. Hints are logged; what is made of them, if anything, is
said in `gt/ir/hints.py`. `attach(model)` names what a model's modules compute by their places in it, without a word in the
model's code.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from gt.bounds import MAX_NAME_LENGTH
from gt.errors import GTError
from gt.ir.hints import check, hints_within
from gt.ir.signal_path import path_error

from . import emission, emission_context
from .operands import tensor_of

if TYPE_CHECKING:
    from gt.client.nn.module import Module

    from .tensor import Tensor

__all__ = ["attach", "context", "current", "detach", "enter", "exit", "tensor"]

_log = logging.getLogger("gt")
_NONE: Final[Mapping[str, Any]] = {}
MAX_REMEMBERED_NAMES: Final = 1 << 12
"""Names whose parts are remembered."""


def _components(name: str) -> tuple[str, ...]:
    return _parts(str(name))


@lru_cache(MAX_REMEMBERED_NAMES)
def _parts(name: str) -> tuple[str, ...]:
    """The signals that a name joins. Raises `ValueError`."""
    parts = tuple(name.split("/"))
    if not all(parts):
        raise ValueError(f"a signal is a name, or several joined by '/', not {name[:MAX_NAME_LENGTH]!r}")
    wrong = path_error(parts)
    if wrong is not None:
        raise ValueError(wrong)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a signal's name is text that UTF-8 can express, not {name[:MAX_NAME_LENGTH]!r}") from None
    return parts


def _push(
    parts: tuple[str, ...], backward: tuple[str, ...] | None, hints: Mapping[str, Any] = _NONE
) -> emission_context.Context:
    """Enter the signal `parts` within the current one; returns the context before."""
    now = emission_context.current()
    path = now.signal + parts
    outer = now.signal if now.backward is None else now.backward
    if backward is not None:
        back: tuple[str, ...] | None = outer + parts[:-1] + backward
    else:
        back = None if now.backward is None else now.backward + parts
    wrong = path_error(path) or path_error(back or ())
    if wrong is not None:
        raise ValueError(f"{wrong}; the outermost are {'/'.join(path[:3])}")
    said = hints_within(now.hints, path, hints)
    return emission_context.enter(emission_context.interned(path, now.phase, now.site, now.grad, back, now.lower, said))


def _restore(before: emission_context.Context) -> None:
    """Back to the signal of `before`; a grad mode or phase changed in between stays."""
    now = emission_context.current()
    signal, backward, hints = before.signal, before.backward, before.hints
    emission_context.enter(emission_context.interned(signal, now.phase, now.site, now.grad, backward, now.lower, hints))


class context(ContextDecorator):  # noqa: N801  # read as gt.signal.context(...)
    """Put everything computed inside into this signal. `backward` names the gradients' signal, in place of the last
    component.

    Hints apply to what is computed inside and to its gradients. They are logged, may be ignored, and change values at
    most by the order of additions:

    * `hot=True` compiles at the first run.
    * `comm="ring"` ("direct", "two-step", "tree", "hierarchical") chooses the all-reduce algorithm, where it is legal.
    * `deadline=0.05` warns once if the signal is predicted to take longer, in seconds, in some plan.

    Raises `TypeError` for unknown hints, and `ValueError` for invalid values, for names of more than 200
    characters, and on entry if more than 128 signals nest or their names together have more than 4,096 characters.
    """

    def __init__(self, name: str, backward: str | None = None, **hints: Any) -> None:
        self._parts = _components(name)
        self._backward = None if backward is None else _components(backward)
        self._before: list[emission_context.Context] = []
        self._hints = hints
        check("signal.context", hints)
        for hint, value in hints.items():
            _log.info("signal %s: hint %s=%r is noted; it changes no value", name, hint, value)

    def _recreate_cm(self) -> context:
        fresh = object.__new__(context)
        fresh._parts, fresh._backward, fresh._hints, fresh._before = self._parts, self._backward, self._hints, []
        return fresh

    def __enter__(self) -> None:
        self._before.append(_push(self._parts, self._backward, self._hints))

    def __exit__(self, *_: object) -> None:
        _restore(self._before.pop())


def enter(name: str) -> None:
    """Enter a signal until `exit(name)`."""
    _push(_components(name), None)


def exit(name: str) -> None:
    """Leave the signal that was entered last. Raises `GTError` if its name is different."""
    now = emission_context.current()
    parts = _components(name)
    if now.signal[-len(parts) :] != parts:
        inside = "/".join(now.signal) or "no signal"
        raise GTError(f"signal.exit({name!r}): the program is inside {inside}")
    backward = None if now.backward is None else now.backward[: -len(parts)]
    signal = now.signal[: -len(parts)]
    if backward == signal:
        backward = None
    emission_context.enter(
        emission_context.interned(signal, now.phase, now.site, now.grad, backward, now.lower, now.hints)
    )


def current() -> tuple[str, ...]:
    """The path of the surrounding signals, outermost first."""
    return emission_context.current().signal


def tensor(x: Any, name: str) -> Tensor:
    """`x`, placed as the signal `name` says."""
    with context(name):
        return emission.emit("tag", (tensor_of("signal.tensor", x),), False)


def attach(model: Module, prefix: str = "") -> None:
    """Run each module of `model`, forward and backward, in a signal of its dotted name: `blocks.0.norm` inside
    `blocks.0`.

    Names are those of `named_modules()`, after `prefix` and a dot if there is one; the model itself gets the signal
    `prefix`, or none. Modules that only contain others, such as lists, also surround their contents. Attaching again
    replaces the signals.
    """
    if prefix and len(_components(prefix)) > 1:
        raise ValueError(f"a prefix is one name, not several joined by '/': {prefix!r}")
    detach(model)
    for name, module in model.named_modules(prefix=prefix):
        parts = name.removeprefix(prefix).removeprefix(".").split(".") if name != prefix else []
        outer = [prefix] if prefix else []
        dotted = [".".join([*outer, *parts[: end + 1]]) for end in range(len(parts))]
        if outer or dotted:
            module.__dict__["_signals"] = (*outer, *dotted)


def detach(model: Module) -> None:
    """Undo `attach`."""
    for module in model.modules():
        module.__dict__.pop("_signals", None)


@contextmanager
def attached(signals: tuple[str, ...]) -> Iterator[None]:
    """Inside of these signals, entering those that the program is not inside of already."""
    now = emission_context.current().signal
    before = _push(tuple(name for name in signals if name not in now), None)
    try:
        yield
    finally:
        _restore(before)
