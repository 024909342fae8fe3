"""Tensors of the device that are not on the workers yet: nobody has read them, and what was written to them came from no other.

So a model that is made on the device draws its weights when it is known which module of which model has them, as the config says
for it, and one that is read from files sends each worker its shards alone. What is drawn, and what is drawn after it, are the
numbers that there would have been at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

import gt
from gt.client.session import sessions
from gt.client.tensor import emission, emission_context

from .device_tensor import DeviceTensor
from .pytorch_internals import dense_wrapper
from .values import DTYPES, from_cpu

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["DeferredTensor"]

DRAWS: Final = frozenset({"uniform_", "normal_"})
"""Operators that write random numbers to all elements, one draw each."""
OVERWRITES: Final = DRAWS | {"zero_", "fill_"}
"""Operators after which nothing is left of what there was before."""
CHANGES: Final = frozenset({"mul_", "add_", "sub_", "div_", "clamp_", "erfinv_"})
"""Other operators by which weights are initialized."""
MAX_WRITES: Final = 16
"""Operators that are kept for one tensor; after these it is made."""


class _Values:
    """The values that one or more tensors of PyTorch will have."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, value: float) -> None:
        self._shape, self._dtype, self._value = shape, dtype, value
        self._writes: list[tuple[Any, tuple[Any, ...], dict[str, Any], tuple[int, int] | None]] = []
        self.signals: Callable[[], tuple[str, ...]] | None = None
        """Gives the signals of the module that has the tensor."""
        self.source: Any = None
        """A tensor of the CPU that has the values, and nobody else has; None where there is none."""
        self.held: Tensor | None = None

    def write(self, operator: Any, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Write later. False: that cannot be put off."""
        name = operator._schema.name.removeprefix("aten::")
        if (
            (name not in OVERWRITES and name not in CHANGES)
            or len(self._writes) >= MAX_WRITES
            or sessions.is_capturing()
            or self.source is not None
        ):
            return False
        if not all(isinstance(each, (int, float)) or each is None for each in (*args, *named.values())):
            return False
        drawn = None
        if name in DRAWS:
            drawn = gt.get_rng_state()
            gt.set_rng_state((drawn[0], drawn[1] + 1))
        if name in OVERWRITES:
            self._writes.clear()
        self._writes.append((operator, args, named, drawn))
        return True

    def made(self) -> tuple[Tensor, tuple[str, ...]]:
        """The tensor on the workers, from now on, and the signals by which it was placed now."""
        signals = self.signals() if self.signals is not None and self.held is None else ()
        if self.source is not None:
            self.become(_copy(self.source, self._dtype, signals))
        if self.held is None:
            before = gt.get_rng_state()
            with gt.no_grad(), emission_context.using(_context(signals)):
                self.held = gt.full(self._shape, self._value, dtype=DTYPES[self._dtype])
                x = DeviceTensor(self.held)
                for operator, args, named, drawn in self._writes:
                    if drawn is not None:
                        gt.set_rng_state(drawn)
                    DeviceTensor.rule_of(operator)((x, *args), named)
                if signals:
                    self.held.copy_(emission.emit("tag", (self.held,), True))
            if any(each[-1] for each in self._writes):
                gt.set_rng_state(before)
            self._writes.clear()
        return self.held, signals

    def become(self, held: Tensor) -> None:
        """Be these values instead."""
        self.held = held
        self.source = None
        self._writes.clear()


class DeferredTensor(DeviceTensor):
    """A tensor without values yet. Whoever asks for them makes it a `DeviceTensor`."""

    _values: _Values

    @staticmethod
    def __new__(cls, shape: Any, dtype: Any, value: float = 0, values: _Values | None = None) -> DeferredTensor:
        shape = tuple(shape)
        made = dense_wrapper(cls, shape, dtype)
        made._values = _Values(shape, dtype, value) if values is None else values
        made.traced = None
        return made  # type: ignore[no-any-return]

    def __init__(self, shape: Any, dtype: Any, value: float = 0, values: _Values | None = None) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name != "held":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        held, signals = self._values.made()
        self._settle(held)
        self.signals = signals
        self.is_placed_early = True
        return held

    def _become(self, other: DeviceTensor) -> None:
        """Have the values of another tensor of the device from now on."""
        held = other.held
        if held is None:
            raise AssertionError("a tensor of a graph that is traced has no values")
        self._settle(held)

    def _settle(self, held: Tensor) -> None:
        self.held = held
        del self._values
        self.__class__ = DeviceTensor

    @staticmethod
    def copy_of(source: Any, dtype: Any) -> DeferredTensor:
        """A tensor with the values of one of the CPU, which nobody else may have, as soon as it has an owner or a reader."""
        made = DeferredTensor(source.shape, dtype)
        made._values.source = source
        return made

    @property
    def is_a_copy(self) -> bool:
        """Whether it is to have the values of a tensor of the CPU."""
        return self._values.source is not None

    def belongs_to(self, signals: Callable[[], tuple[str, ...]]) -> None:
        """The tensor is one of a module, of whose signals this function is; the first to say so counts."""
        if self._values.signals is None:
            self._values.signals = signals

    def copied_from(self, source: Any) -> bool:
        """Have the values of a tensor of the CPU, if it is one, of this shape."""
        if isinstance(source, DeviceTensor) or source.device.type != "cpu" or source.shape != self.shape:
            return False
        signals = self._values.signals() if self._values.signals is not None else ()
        x = _copy(source, self.dtype, signals)
        self._values.become(x)
        self._settle(x)
        self.signals = signals
        return True

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        x = args[0] if args else None
        if type(x) is DeferredTensor and x._values.held is None:
            if operator is torch.ops.aten.detach.default:
                with torch.inference_mode(x.is_inference()):
                    return DeferredTensor(x.shape, x.dtype, values=x._values)
            if operator is torch.ops.aten.copy_.default and x.copied_from(args[1]):
                return x
            if x._values.write(operator, args[1:], kwargs or {}):
                return x
        _make(args)
        if kwargs:
            _make(tuple(kwargs.values()))
        return DeviceTensor.__torch_dispatch__(operator, types, args, kwargs)


def _make(args: Any) -> None:
    """Give values to the tensors among arguments."""
    for each in args:
        if type(each) is DeferredTensor:
            each.held  # noqa: B018 — for what it does
        elif isinstance(each, (list, tuple)):
            _make(each)


def _copy(source: Any, dtype: Any, signals: tuple[str, ...]) -> Tensor:
    """A tensor of the CPU on the workers, as the config says for a parameter of these signals."""
    with gt.no_grad(), emission_context.using(_context(signals)):
        x = from_cpu(source)
        if source.dtype != dtype:
            x = gt.cast(x, DTYPES[dtype])
        if signals:
            x.copy_(emission.emit("tag", (x,), True))
    return x


def _context(signals: tuple[str, ...]) -> emission_context.Context:
    return emission_context.interned(signals, "forward", None, False) if signals else emission_context.current()
