"""`gt.function` and `gt.move`: functions and tensors that a program itself places on workers of its session.

Both are signals with a rule, as the YAML has them (`gt/sharding/config.py`), which the session is told at the first use. A
config that says something of such a signal is followed: the program says where, and whoever runs it says where instead.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gt.sharding.device_names import ALLOWED_DEVICES, is_device
from gt.sharding.options import PLAN_PRIORITIES

if TYPE_CHECKING:
    from gt.client.session.session import Session
    from gt.client.tensor.tensor import Tensor

__all__ = ["function", "move"]

OPTIONS: Final = ("device", "priority", "retry", "name")
"""The options of `gt.function`."""
MAX_RETRIES: Final = 100
_named: Final[dict[str, tuple[Any, ...]]] = {}
"""What the regions of this process say, by the names of their signals."""


def function(
    function: Callable[..., Any] | None = None, /, *, device: Any = None, priority: str | None = None, retry: int = 0,
    name: str | None = None, **unknown: Any,
) -> Any:  # fmt: skip
    """Make a function a traced region: its work is compiled as by `gt.compile`, and placed, ranked and retried as said here.

    `device` says where it is computed: 'cpu', 'cuda', 'cuda:1', 'cuda:1@HOST', 'gt:3' (worker 3), a worker's number, or one of
    `gt.devices()`. `priority` is the class of its plans: 'interactive', 'normal' or 'batch'; at most what the operator grants.
    `retry` (0 to 100) is how often a call is made anew that workers could not finish: with `gt.OutOfMemory` or
    `gt.WorkerLost`. With it, a call waits for its results, and one that raises leaves all tensors as they were. `name` is that
    of the region's signal, to which configs bind rules; the default is the function's with its module. What a config says of
    that signal counts more than what is said here. Values never depend on any of it.

    Works on functions and methods, with or without arguments. Raises `TypeError` for an unknown option and for what is no
    function, `ValueError` for a value that is not allowed, and at the first call `gt.ConfigError` for a device that the session
    may not use. See docs/functions.md.
    """
    if unknown:
        raise TypeError(f"gt.function has no option {next(iter(unknown))!r}; its options are {', '.join(OPTIONS)}")
    caller = sys._getframe(1)
    where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    rule: dict[str, str] = {} if device is None else {"device": device_name("gt.function", device)}
    if priority is not None:
        if priority not in PLAN_PRIORITIES:
            raise ValueError(f"gt.function: priority={priority!r}; allowed: {', '.join(PLAN_PRIORITIES)}")
        rule["priority"] = priority
    if type(retry) is not int or not 0 <= retry <= MAX_RETRIES:
        raise ValueError(f"gt.function: retry={retry!r}; allowed: a whole number from 0 to {MAX_RETRIES}")
    if function is None:
        return lambda decorated: _region(decorated, rule, retry, name, where)
    return _region(function, rule, retry, name, where)


def move(tensor: Any, worker: Any) -> Tensor:
    """The tensor on a worker: by its number, a name such as 'cuda:1' or 'gt:3', or one of `gt.devices()`. Differentiable.

    What is there already is not copied. What is computed from it follows it, unless a signal says otherwise. `device` of the
    result is the worker's name. Raises `ValueError` for what names no worker, and `gt.ConfigError` for one that the session may
    not use.
    """
    from gt.client.session import sessions
    from gt.client.tensor import devices, operands, signal_context

    name = device_name("gt.move", worker)
    given = operands.tensor_of("move", tensor)
    if given.device == name:
        return given
    signal = f"moved to {name}"
    caller = sys._getframe(1)
    _tell(sessions.current(), signal, {"device": name}, f"{caller.f_code.co_filename}:{caller.f_lineno}")
    moved = signal_context.tensor(given, signal)
    if not sessions.is_capturing():  # of a replay of the call nobody would say it
        devices.note(moved, name)
    return moved


def device_name(what: str, device: Any) -> str:
    """The name by which a rule says a device. Raises `ValueError`."""
    number = device if type(device) is int else getattr(device, "worker", None)
    name = str(device) if number is None else f"gt:{number}"
    if not is_device(name):
        raise ValueError(
            f"{what}: {device!r} names no device; allowed: {ALLOWED_DEVICES}, a number, one of gt.devices()"
        )
    return name


def _region(function: Any, rule: dict[str, str], retry: int, name: str | None, where: str) -> Any:
    from gt.client.compile.traced_region import TracedRegion
    from gt.client.tensor import signal_context

    if not callable(function) or isinstance(function, type) or hasattr(function, "named_modules"):
        raise TypeError(
            f"gt.function takes a function, not {function!r}: decorate a method, or a function that calls it"
        )
    if isinstance(function, TracedRegion):
        raise TypeError(f"gt.function: {function!r} is one already: give all options at once")
    if any(test(function) for test in _NOT_CALLS):
        raise TypeError(
            "gt.function takes functions that return: a coroutine or generator can call one for each of its steps"
        )
    signal = _signal(function, name, (*rule.items(), retry))
    signal_context.context(signal)  # it is one name

    def announce(session: Session) -> None:
        if rule:
            _tell(session, signal, rule, where)

    return TracedRegion(function, signal, announce, retry)


_NOT_CALLS: Final = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def _signal(function: Any, name: str | None, said: tuple[Any, ...]) -> str:
    """The name of a region's signal: as given, or one of its own."""
    if name is not None:
        if "/" in name:
            raise ValueError(f"gt.function: a name is one signal, not several joined by '/': {name!r}")
        return name
    called = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    found, count = called[-180:], 1
    while _named.setdefault(found, said) != said:
        count += 1
        found = f"{called[-180:]}#{count}"
    return found


def _tell(session: Session, signal: str, rule: dict[str, str], where: str) -> None:
    """Have a session follow a rule for a signal, if its config does not say already what the rule says."""
    from .session import shard_by, with_region

    session.regions[signal] = rule, where
    config = with_region(session.config, signal, rule, where)
    if config is not session.config:
        shard_by(session, config)
