"""Parameters: the leaves that a module learns. Their creation says `param`, to which sharding rules bind."""

from __future__ import annotations

from typing import Any, ClassVar

from gt.client.ops import creation
from gt.client.tensor import emission, tape
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError


class Parameter(Tensor):
    """A tensor that a module registers among its parameters. Copies nothing: values never change."""

    __slots__ = ("__dict__",)
    """Programs mark parameters by attributes of their own, for their optimizer's groups."""
    _param: ClassVar[bool] = True

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        source = creation.as_tensor(data)
        if requires_grad and source.dtype.kind not in "fc":
            raise DTypeError(f"a parameter of {source.dtype} cannot require grad: pass requires_grad=False")
        value = mark_parameter(source)._value
        super().__init__(value, tape.Leaf(value, param=True) if requires_grad else None)


class Buffer(Tensor):
    """A tensor that a module registers among its buffers: part of its state, not learnt."""

    __slots__ = ("persistent",)

    def __init__(self, data: Any, *, persistent: bool = True) -> None:
        super().__init__(creation.as_tensor(data)._current())
        self.persistent = persistent
        """Whether `state_dict()` has it."""


def mark_parameter(source: Tensor) -> Tensor:
    """The values of `source` as a parameter's, in the signal that the program is inside."""
    return emission.emit("tag", (Tensor(source._current()),), True)
