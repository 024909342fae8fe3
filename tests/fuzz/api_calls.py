"""Calls of the whole public API with extreme arguments: negative, huge and zero sizes, NaN, wrong types, limits of integers.

`violation` makes one call and says which rule it broke, if any: the call raises one clear error, or its result can be fetched;
no tensor from before or after is harmed; it ends.
"""

from __future__ import annotations

import inspect
import math
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

import gt
import gt.nn.functional as F
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.errors import GTError, IndexOutOfRange, OutOfMemory, ProtocolError, SessionError, WorkerError
from gt.public_api.function_table import FUNCTIONS
from gt.service.in_process import Fabric, InprocLink

CALL_SECONDS: Final = 20
"""Seconds after which a call counts as one that does not end."""
MEMORY_BYTES: Final = 1 << 28
"""What the worker says that it has, so that large tensors are refused and not computed."""
CLEAR_ERRORS: Final = (GTError, TypeError, ValueError, IndexError, OverflowError, MemoryError, NotImplementedError)
"""What a call may raise, but for errors of the protocol and of the session."""
FETCH_ERRORS: Final = (OutOfMemory, IndexOutOfRange)
"""What the values of arguments, or sizes, may do to a result."""
NUMERIC_ERRORS: Final = ("LinAlgError: ", "ZeroDivisionError: ", "ValueError: pow: ", "ValueError: a weight, rate, ")
"""How errors of workers begin that numbers make: a matrix without inverse, integers divided by zero or to a negative power,
weights below zero."""
GLOBAL_STATE: Final = frozenset({
    "set_default_device", "set_deterministic_debug_mode", "use_deterministic_algorithms", "set_num_threads",
    "set_num_interop_threads", "set_flush_denormal", "set_rng_state", "seed", "manual_seed",
})  # fmt: skip
"""Functions that change what all others do."""
NOT_CALLED: Final = frozenset({
    "backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "share_memory_", "apply_", "map_",
    "map2_", "as_subclass", "cuda", "to_torch", "pin_memory", "data_ptr", "untyped_storage", "storage",
})  # fmt: skip
"""Methods that are about the tape, about devices that may not be there, or take functions."""
OPERATORS: Final = (
    "__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__", "__matmul__", "__and__",
    "__or__", "__xor__", "__lshift__", "__rshift__", "__radd__", "__rsub__", "__rmul__", "__rtruediv__", "__rpow__",
    "__neg__", "__abs__", "__invert__", "__lt__", "__le__", "__eq__", "__ne__", "__getitem__", "__setitem__",
    "__iadd__", "__imul__",
)  # fmt: skip
NOT_GIVEN: Final = frozenset({"out", "device", "generator", "file"})
"""Parameters that are left alone."""

SHAPES: Final = ((), (0,), (1,), (3,), (3, 3), (3, 4), (0, 3), (2, 3, 4), (2, 2, 4, 4), (1, 2, 3, 3, 3), (1,) * 32)
NAMES_OF_TENSORS: Final = frozenset({
    "input", "x", "self", "other", "tensor", "a", "b", "mat1", "mat2", "vec", "batch1", "batch2", "tensor1", "tensor2",
    "index", "mask", "condition", "target", "weight", "end", "A", "B", "values", "sorted_sequence", "boundaries",
    "query", "key", "value", "mat", "src", "source", "test_elements", "elements",
})  # fmt: skip
NAMES_OF_LISTS: Final = frozenset({"tensors", "operands", "matrices", "arrays"})
EXTREME_NUMBERS: Final[tuple[Any, ...]] = (
    0, 1, -1, 2, 3, 7, -2, 33, 1000, -(1 << 31) - 1, 1 << 44, (1 << 48) + 1, (1 << 62), (1 << 63) - 1, 1 << 63,
    -(1 << 63), -(1 << 63) - 1, (1 << 64) - 1, 1 << 64, 10**30, 10**400, -0.0, 0.5, 1.5, -2.5, 1e300, 1e-320, math.nan,
    math.inf, -math.inf, 1j, complex(math.nan, math.inf), True, False,
)  # fmt: skip
EXTREME_OTHERS: Final[tuple[Any, ...]] = (
    None, "", "mean", "x", "\ud800", b"x", (), [], [0], [1, 2], (-1,), (2, -1), (0, 1, 2), (1 << 62, 1 << 62), (1 << 70,),
    [math.nan], [[1, 2], [3]], {}, {1: 2}, object, ..., slice(None), slice(None, None, -1), slice(1 << 70), gt.float32,
    gt.bool_, np.float32(1.5), np.int64(-3), np.array([1.0, 2.0]), np.array("x"), range(3), [1] * 40,
)  # fmt: skip
MODEST_NUMBERS: Final = (0, 1, 2, -1, 1, 2, 0.5)


class Endless(BaseException):
    """A call did not end in time."""


@contextmanager
def ending(seconds: float) -> Iterator[None]:
    """Raise `Endless` in what takes longer, in processor time: nothing here waits, and a machine may stand still."""

    def late(*_: Any) -> None:
        raise Endless

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def encoded_session() -> Iterator[Session]:
    """A session in this thread whose messages are encoded and decoded, as by sockets; it is the default one."""
    gt.disconnect()
    opened = Session(
        InprocLink(Fabric(1, None, codec=True, facts=[{"memory": MEMORY_BYTES}])), "inproc", idle_flush=False
    )
    opened.open({"bulk": b""}, 5)
    sessions.adopt(opened)
    try:
        yield opened
    finally:
        gt.disconnect()


def public_calls() -> dict[str, Callable[..., Any]]:
    """Every public function of tensors, by what a program calls it."""
    calls: dict[str, Callable[..., Any]] = {
        f"gt.{row.name}": getattr(gt, row.name)
        for rows in FUNCTIONS.values()
        for row in rows
        if row.public and row.name not in GLOBAL_STATE
    }
    calls |= {
        f"F.{name}": getattr(F, name) for name in dir(F) if not name.startswith("_") and callable(getattr(F, name))
    }
    for space in (gt.linalg, gt.fft, gt.special):
        short = space.__name__.rpartition(".")[2]
        calls |= {
            f"{short}.{name}": getattr(space, name)
            for name in dir(space)
            if not name.startswith("_")
            and callable(getattr(space, name))
            and not isinstance(getattr(space, name), type)
        }
    methods = [name for name in dir(gt.Tensor) if not name.startswith("_") and name not in NOT_CALLED]
    calls |= {
        f"Tensor.{name}": getattr(gt.Tensor, name)
        for name in (*methods, *OPERATORS)
        if callable(getattr(gt.Tensor, name))
    }
    return calls


def drawn_tensor(draw: random.Random) -> gt.Tensor:
    """A small tensor of some dtype and shape, with extreme values now and then."""
    shape = draw.choice(SHAPES)
    dtype = draw.choice(
        (gt.float32,) * 5 + (gt.float64, gt.int64, gt.int64, gt.bool_, gt.complex64, gt.float16, gt.uint8, gt.int32)
    )
    kind = draw.random()
    if dtype.kind == "b":
        return gt.ones(shape) > kind
    if kind < 0.5:
        return gt.ones(shape, dtype=dtype)
    if kind < 0.8 or dtype.kind == "c":
        return gt.arange(math.prod(shape), dtype=gt.int64).reshape(shape).to(dtype)
    if dtype.kind == "f":
        return gt.full(shape, draw.choice((math.nan, math.inf, -math.inf, 0.0, -1.5)), dtype=dtype)
    limits = gt.iinfo(dtype)
    return gt.full(shape, draw.choice((limits.min, limits.max, 0)), dtype=dtype)


def drawn_argument(draw: random.Random, name: str, extreme: bool) -> Any:
    """An argument for a parameter of this name, as it should be or extreme."""
    if name in NAMES_OF_LISTS and draw.random() < 0.9:
        return [drawn_tensor(draw) for _ in range(draw.randrange(4))]
    if not extreme:
        return drawn_tensor(draw) if name in NAMES_OF_TENSORS else draw.choice(MODEST_NUMBERS)
    kind = draw.random()
    if kind < 0.55:
        return draw.choice(EXTREME_NUMBERS)
    return draw.choice(EXTREME_OTHERS) if kind < 0.9 else drawn_tensor(draw)


def drawn_call(draw: random.Random, called: Callable[..., Any], method: bool) -> tuple[list[Any], dict[str, Any]]:
    """Arguments for a function: mostly some extreme ones among modest ones."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    share = draw.choice((0.1, 0.3, 0.3, 0.6))
    parameters = list(inspect.signature(called).parameters.values())
    if method:
        positional.append(drawn_tensor(draw))
        parameters = parameters[1:]
    in_row = True
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD or parameter.name in NOT_GIVEN:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [drawn_argument(draw, "size", draw.random() < share) for _ in range(draw.randrange(4))]
            in_row = False
        elif parameter.default is not parameter.empty and draw.random() < 0.6:
            in_row = False  # it keeps its default, so that those behind it are named
        else:
            argument = drawn_argument(draw, parameter.name, draw.random() < share)
            if parameter.kind is parameter.KEYWORD_ONLY or not in_row:
                named[parameter.name] = argument
            else:
                positional.append(argument)
    return positional, named


def tensors_in(value: Any) -> Iterator[gt.Tensor]:
    """The tensors in a result, however nested."""
    if isinstance(value, gt.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value[:50]:
            yield from tensors_in(each)


def violation(name: str, called: Callable[..., Any], seed: int) -> str | None:
    """What is wrong with one drawn call of a function, in the session under way; None if nothing is."""
    draw = random.Random(f"{name} {seed}")
    gt.manual_seed(0)
    try:
        with ending(CALL_SECONDS):
            before = gt.ones(3) * 2
            positional, named = drawn_call(draw, called, name.startswith("Tensor."))
            wrong = _outcome(name, called, positional, named)
            if wrong is None and (before.tolist() != [2, 2, 2] or (gt.ones(3) * 2).tolist() != [2, 2, 2]):
                wrong = "another tensor has other values"
    except Endless:
        wrong = f"it did not end within {CALL_SECONDS} s"
    except Exception as error:  # noqa: BLE001 — an innocent tensor was harmed, or the arguments could not be made
        wrong = f"it harmed others: {type(error).__name__}: {error}"
    return None if wrong is None else f"{name}, seed {seed}: {wrong}"


def _is_clear(error: Exception) -> bool:
    """Whether a call may raise this: what its arguments cause, or a library that is not there and that it tells to install."""
    if isinstance(error, ImportError):
        return "install" in str(error)
    return isinstance(error, CLEAR_ERRORS) and not isinstance(error, (ProtocolError, SessionError))


def _outcome(name: str, called: Callable[..., Any], positional: list[Any], named: dict[str, Any]) -> str | None:
    def shown() -> str:
        return ", ".join([*map(_brief, positional), *(f"{key}={_brief(value)}" for key, value in named.items())])

    try:
        result = called(*positional, **named)
    except Exception as error:  # noqa: BLE001 — which ones are clear is the question
        return None if _is_clear(error) else f"({shown()}) raised {type(error).__name__}: {error}"
    for tensor in tensors_in(result):
        try:
            tensor.numpy()
        except FETCH_ERRORS:
            pass
        except WorkerError as error:
            if not str(error).startswith(NUMERIC_ERRORS):
                return f"({shown()}) gave a result whose fetch raised {type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001
            return f"({shown()}) gave a result whose fetch raised {type(error).__name__}: {error}"
    return None


def _brief(value: Any) -> str:
    if isinstance(value, gt.Tensor):
        return f"{value.dtype.short}{list(value.shape)}"
    if isinstance(value, list):
        return f"[{', '.join(map(_brief, value[:5]))}]"
    if isinstance(value, int) and abs(value) > 1 << 70:
        return f"2**{value.bit_length() - 1} or more"
    return repr(value)
