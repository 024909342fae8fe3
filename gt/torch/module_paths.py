"""Where in its model a module is, from the moment at which PyTorch registers it, and parameters placed by that.

PyTorch does not tell a module its name. Hooks on registration do, and so does a model of which all is moved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

import torch
from torch.nn.modules import module as registration

import gt
from gt.client.session import sessions
from gt.client.tensor import call_site, emission, emission_context
from gt.ir.signal_path import path_error

from .deferred_tensor import DeferredTensor
from .device_tensor import DeviceTensor
from .pytorch_internals import DEVICE_TYPE, is_tracing, not_traced, read_in_one_thread, read_late, wrap_apply
from .values import DTYPES

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["install", "path_of", "place", "placed_as", "signals_of_path"]

_PARENTS: Final[WeakKeyDictionary[Any, tuple[Any, str]]] = WeakKeyDictionary()
"""By a module, what has it, and by which name."""
SENT_AT_ONCE: Final = 1 << 20
"""Bytes of a tensor that workers have whole from which the program tells them at once that they need not."""
_WRAPPERS: Final = ("_orig_mod",)
"""Names of modules that compiled models have around the program's, and graphs leave out."""


def install() -> None:
    """Learn of every module, parameter and buffer that is registered from now on, and of every model that is moved.

    `torch.compile` looks into none of that, also where compiled code registers, as a slice of a `ModuleList` does: the table of
    modules would be an input of what it compiles, and loses entries whenever modules die."""
    registration.register_module_module_registration_hook(not_traced(_module_registered))
    tensor_registered = not_traced(_tensor_registered)
    registration.register_module_parameter_registration_hook(tensor_registered)
    registration.register_module_buffer_registration_hook(tensor_registered)
    wrap_apply(not_traced(_applied))
    read_in_one_thread()


def path_of(module: Any) -> str:
    """The dotted name of a module in the outermost module that is known to have it; empty for that one itself."""
    parts: list[str] = []
    seen = {id(module)}
    while True:
        parent, name = _PARENTS.get(module, (None, ""))
        parent = None if parent is None else parent()
        if parent is None or id(parent) in seen:
            return ".".join(reversed(parts))
        if parent._modules.get(name) is not module:  # a list into which another was put
            name = next((key for key, each in parent._modules.items() if each is module), "")
            if not name:
                return ".".join(reversed(parts))
        if name not in _WRAPPERS:
            parts.append(name)
        seen.add(id(parent))
        module = parent


def signals_of_path(path: str) -> tuple[str, ...]:
    """The signals of the module with a dotted name: the names of the modules around it and its own; none of the model itself."""
    parts = path.split(".") if path else []
    signals = tuple(".".join(parts[: end + 1]) for end in range(len(parts)))
    return () if path_error(signals) else signals


def place(x: Tensor, signals: tuple[str, ...]) -> None:
    """Place a parameter or a buffer as these signals say of parameters."""
    if not signals:
        return
    with placed_as(signals):
        x.copy_(emission.emit("tag", (x,), True))


def placed_as(signals: tuple[str, ...]) -> emission_context.using:
    """A context in which what is emitted belongs to a parameter with these signals."""
    return emission_context.using(emission_context.interned(signals, "forward", _line(), False))


def _line() -> str:
    """The program's line: the innermost outside of PyTorch, whose generated code belongs to no module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        call_site.is_internal(frame.f_globals) or frame.f_code.co_filename.startswith(_PYTORCH)
    ):
        frame = frame.f_back
    return call_site.site_of(frame)


_PYTORCH: Final = f"{torch.__path__[0]}/"


def _module_registered(parent: Any, name: str, module: Any) -> None:
    if module is None:
        return
    known, old = _PARENTS.get(module, (None, ""))
    before = None if known is None else known()
    if before is None or before._modules.get(old) is not module:  # else it is shared, and the first is what counts
        _PARENTS[module] = (ref(parent), name)
        _place_again(module, f"{path_of(parent)}.{name}")
    read_late(_later)


def _later(values: Any, dtype: Any) -> Any:
    """What `from_pretrained` gives to a module in place of a tensor that it read, not sent before it is known whose it is."""
    mine = values.dtype if dtype is None else dtype
    return (
        DeferredTensor.copy_of(values, mine)
        if mine in DTYPES and values.dtype in DTYPES
        else values.to(DEVICE_TYPE, mine)
    )


def _place_again(part: Any, path: str) -> None:
    """Place what was placed by a name that a module, or one inside, does not have any more, for it is a part of another now."""
    for inner, module in part.named_modules():
        for x in (*module._parameters.values(), *module._buffers.values()):
            if type(x) is DeviceTensor and x.is_placed_early and not is_tracing():
                names = [each for each in (*path.split("."), *inner.split(".")) if each and each not in _WRAPPERS]
                _place_as(x, signals_of_path(".".join(names)))


def _place_as(x: DeviceTensor, signals: tuple[str, ...]) -> None:
    x.is_placed_early = True
    if not signals or signals == x.signals:
        return
    x.signals = signals
    with gt.no_grad():
        place(x.held, signals)  # type: ignore[arg-type]
    if x.nbytes >= SENT_AT_ONCE:
        sessions.current().flush()


def _tensor_registered(module: Any, name: str, x: Any) -> None:
    kind = type(x)
    if kind is DeferredTensor:
        owner = ref(module)
        x.belongs_to(lambda: _signals_of(owner()))
        if x.is_a_copy:
            x.held  # noqa: B018 — for what it does
    elif kind is DeviceTensor and not x.signals and not is_tracing():
        _place_as(x, _signals_of(module))


def _signals_of(module: Any) -> tuple[str, ...]:
    return () if module is None else signals_of_path(path_of(module))


def _applied(model: Any, apply: Callable[..., Any], function: Callable[[Any], Any]) -> Any:
    """A model all of whose tensors a function changes, such as one that moves them: each goes to where its module's name says."""
    signals: dict[int, tuple[str, ...]] = {}
    above = path_of(model)
    tensors = []
    for path, module in model.named_modules():
        inside = [each for each in (above, *path.split(".")) if each and each not in _WRAPPERS]
        for table in (module._parameters, module._buffers):
            for name, each in table.items():
                if each is not None and id(each) not in signals:
                    signals[id(each)] = signals_of_path(".".join(inside))
                    tensors.append((table, name, signals[id(each)]))

    def placed(x: Any) -> Any:
        mine = signals.get(id(x), ())
        if not mine:
            return function(x)
        with placed_as(mine):
            out = function(x)
        if out is not x and type(out) is DeferredTensor:
            out.belongs_to(lambda: mine)
        elif out is not x and type(out) is DeviceTensor:
            with gt.no_grad():
                place(out.held, mine)  # type: ignore[arg-type]
        return out

    made = apply(model, placed)
    for table, name, mine in tensors:
        if type(table[name]) is DeviceTensor:
            table[name].signals = mine
    return made
