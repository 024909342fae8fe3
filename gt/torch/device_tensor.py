"""Tensors of PyTorch whose values are on the workers: each has a tensor of GT, and operators become GT's functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import ref

import torch

from gt.client.session import sessions

from .pytorch_internals import (
    DEVICE_TYPE,
    TensorSubclassManners,
    dense_wrapper,
    flat_graph_tensor,
    rebuilt_on_device,
    tree_map,
    wrapper,
)
from .storage import DeviceStorage, FileStorage, address
from .values import TORCH_DTYPES, from_cpu, to_cpu

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["DeviceTensor", "Rule", "graph_tensor", "held", "on_device", "same"]

Rule = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Computes an operator from its arguments, by position and by name."""
_DATA: Final = torch.Tensor.data


class DeviceTensor(torch.Tensor):  # type: ignore[misc]  # PyTorch has no types here
    """A tensor on the device. Its values are those of `held`; where PyTorch traces a graph, those of a tensor of the graph."""

    held: Tensor | None
    """The tensor on the workers; None in a graph."""
    traced: Any
    """The plain tensor that graphs know; None until one asks."""

    offset: int = 0
    """In a graph, where the tensor's elements begin in what it shares with others: a graph is made for one such place."""
    signals: tuple[str, ...] = ()
    """Those of the module by whose name it was placed; empty where it was not."""
    is_placed_early: bool = False
    """Whether that was when it was made or registered: its module may have become a part of others since."""

    rule_of: ClassVar[Callable[[Any], Rule]]
    """How an operator is computed: `operators.operator_of`, which `device` puts here."""
    rules: ClassVar[dict[int, Rule]] = {}
    """What it said, by an operator's identity, for to compare two takes longer. PyTorch keeps operators for good."""

    __torch_function__ = TensorSubclassManners

    @staticmethod
    def __new__(cls, held: Tensor | None, traced: Any = None, strides: Any = None, offset: int = 0) -> DeviceTensor:
        if held is None:
            offset = offset or traced.storage_offset()
            made = wrapper(cls, traced.shape, strides or traced.stride(), offset, traced.dtype)
        elif strides is not None:  # which were known
            made = wrapper(cls, held.shape, strides, offset, TORCH_DTYPES[held.dtype])
        elif held._view is None:
            made = dense_wrapper(cls, held.shape, TORCH_DTYPES[held.dtype])
        else:
            made = wrapper(cls, held.shape, held.stride(), held.storage_offset(), TORCH_DTYPES[held.dtype])
        made.held = held
        made.traced = traced
        if StateWatch.active is not None and held is not None:
            StateWatch.active.made(held)
        return made  # type: ignore[no-any-return]

    def __init__(self, held: Tensor | None, traced: Any = None, strides: Any = None, offset: int = 0) -> None: ...

    def __tensor_flatten__(self) -> tuple[list[str], int]:
        if StateWatch.active is not None:
            StateWatch.active.note((self,))
        if self.traced is None:
            self.traced = graph_tensor(self.held)
        return ["traced"], self.offset if self.held is None else self.held.storage_offset()

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Any], context: int, size: Any, stride: Any) -> DeviceTensor:
        traced = parts["traced"]
        made = DeviceTensor(getattr(traced, "held", None), traced, stride, context)
        made.offset = context
        return made

    @property
    def data(self) -> Any:
        """The same values without gradients, as PyTorch's. What is assigned to it this tensor is from then on; in a step
        that is one message (`gt.torch.step`) it gets the values alone."""
        return _DATA.__get__(self)

    @data.setter
    def data(self, other: Any) -> None:
        mine, theirs = self.held, getattr(other, "held", None)
        if (
            (StateWatch.active is not None or sessions.is_capturing())
            and mine is not None
            and theirs is not None
            and (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        ):  # a step that is one message writes to the tensors that it found
            mine.copy_(theirs)
            return
        _DATA.__set__(self, other)
        self._become(other)

    def _become(self, other: DeviceTensor) -> None:
        """Have the values of another tensor of the device from now on, and share them with it."""
        self.held, self.traced = other.held, other.traced

    def _is_view(self) -> bool:
        """Whether a graph that is traced has to know of what a tensor is a view: it takes each input by itself."""
        return self.held is None and bool(torch.Tensor._is_view(self))

    def set_(self, *source: Any) -> Any:
        """As PyTorch's; of a tensor of a graph, which has no memory, strides and offset alone."""
        if self.held is not None and source and isinstance(source[0], FileStorage):
            self.data = DeviceTensor(source[0].tensor(self.dtype, *source[1:]))
            return self
        if self.held is not None:
            return torch.Tensor.set_(self, *source)
        _, offset, _, strides = source
        self.data = DeviceTensor(None, self.traced, strides, offset)
        self.offset = offset
        return self

    def __coerce_same_metadata_as_tangent__(self, expected: Any, kind: type | None = None) -> DeviceTensor:
        """A gradient as a graph expects it, which may have come as a tensor without values."""
        return self

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.is_inference_mode_enabled() and operator.is_view and not args[0].is_inference():
            # a view of a tensor from outside counts what is written to that one, so PyTorch wants a new tensor as those outside
            with torch.inference_mode(False), torch.no_grad():
                out = cls.__torch_dispatch__(operator, types, args, kwargs)
                return tree_map(lambda x: same(x) if isinstance(x, DeviceTensor) else x, out)
        named = kwargs or {}
        if StateWatch.active is not None:
            StateWatch.active.note((args, named))
        if _is_traced(args) or (named and _is_traced(tuple(named.values()))):
            return _in_graph(operator, args, named)
        rule = cls.rules.get(id(operator))
        if rule is None:
            rule = cls.rules[id(operator)] = cls.rule_of(operator)
        return rule(args, named)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        if self.held is None:
            return f"DeviceTensor({self.traced!r})"
        text = repr(to_cpu(self.held))
        note = f", device='{self.device}'" + (", requires_grad=True" if self.requires_grad else "")
        inside = f"{text[:-1]}{note})"
        return f"Parameter containing:\n{inside}" if getattr(self, "_is_param", False) else inside

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def numpy(self, *, force: bool = False) -> Any:
        """The values, as an array of the CPU, if `force` says that they may be fetched. Raises `TypeError` else."""
        if not force:
            raise TypeError(
                f"can't convert a tensor of {self.device} to an array of NumPy: use .cpu() to fetch it first"
            )
        return self.detach().cpu().numpy(force=True)

    def tolist(self) -> Any:
        """The values, as numbers in lists; waits."""
        return self.detach().cpu().tolist()

    def untyped_storage(self) -> Any:
        """What says with which tensors this one shares its values."""
        return torch.Tensor.untyped_storage(self) if self.held is None else DeviceStorage(self.held)

    def storage(self) -> Any:
        """As `untyped_storage`, counting in elements."""
        return torch.Tensor.storage(self) if self.held is None else DeviceStorage(self.held, self.held.itemsize)

    _typed_storage = storage

    def data_ptr(self) -> int:
        """A number that says where the first element lies in what tensors share. It is no address."""
        return torch.Tensor.data_ptr(self) if self.held is None else address(self.held)

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceTensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        if not self.is_leaf:
            raise RuntimeError(
                "only tensors that the program made itself, the leaves of its graphs, can be copied by deepcopy"
            )
        with torch.no_grad():
            copy = self.detach().clone()
        copy.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copy._is_param = True
        memo[id(self)] = copy
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        return copy  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return rebuilt_on_device, (self._for_a_file(), self.dtype, str(self.device), self.requires_grad)

    def _for_a_file(self) -> Any:
        """The values as a tensor of the CPU: the same one for tensors that are the same, such as tied weights, as long as who
        writes them keeps it."""
        value = None if self.held is None else self.held._value
        number = id(value)
        known = _BEING_WRITTEN.get(number)
        copy = known[0]() if known is not None else None
        if copy is None:
            copy = self.detach().cpu()
            _BEING_WRITTEN[number] = (ref(copy, lambda _: _BEING_WRITTEN.pop(number, None)), value)
        return copy


_BEING_WRITTEN: Final[dict[int, tuple[Any, Any]]] = {}
"""By the identity of a value, a tensor of the CPU with a copy of it, which a file that is being written has, and the value."""


class StateWatch:
    """Watches which tensors a function finds on the device, inside a `with`: those that were there before."""

    active: ClassVar[StateWatch | None] = None

    def __init__(self) -> None:
        self.state: list[Tensor] = []
        self.leaves: dict[int, DeviceTensor] = {}
        """By their ids, tensors that may have a gradient of their own."""
        self._known: dict[int, Tensor] = {}
        """By their ids, tensors that were found or made, which therefore live on."""

    def __enter__(self) -> StateWatch:
        StateWatch.active = self
        return self

    def __exit__(self, *_: object) -> None:
        StateWatch.active = None

    def made(self, x: Tensor) -> None:
        """A tensor was made."""
        self._known.setdefault(id(x), x)

    def found(self, x: Tensor) -> None:
        """A tensor was read."""
        if id(x) not in self._known:
            self._known[id(x)] = x
            self.state.append(x)

    def note(self, args: Any) -> None:
        """An operator has these arguments."""
        for each in args.values() if type(args) is dict else args:
            if type(each) is DeviceTensor:
                if each.held is not None:
                    self.found(each.held)
                if each.requires_grad and each.is_leaf:
                    self.leaves[id(each)] = each
            elif type(each) in (list, tuple, dict):
                self.note(each)


def same(x: DeviceTensor) -> DeviceTensor:
    """Another tensor of PyTorch with the same tensor of GT."""
    made = wrapper(DeviceTensor, x.shape, x.stride(), x.storage_offset(), x.dtype)
    made.held = x.held
    made.traced = None
    if StateWatch.active is not None and x.held is not None:
        StateWatch.active.made(x.held)
    return made  # type: ignore[no-any-return]


def on_device(x: Tensor) -> DeviceTensor:
    """A tensor of PyTorch with the values of one of GT, which it is from now on."""
    return DeviceTensor(x)


def held(x: Any) -> Tensor:
    """The tensor of GT that a tensor of PyTorch is; one of the CPU is copied."""
    if isinstance(x, DeviceTensor) and x.held is not None:
        return x.held
    found = getattr(x, "held", None)
    return from_cpu(x) if found is None else found


def graph_tensor(x: Tensor | None) -> Any:
    """A plain tensor of the device that stands for `x` where PyTorch runs a graph."""
    if x is None:
        raise AssertionError("a tensor of the device has values or is traced")
    made = flat_graph_tensor(tuple(x.shape), TORCH_DTYPES[x.dtype])
    made.held = x
    made.untyped_storage = partial(DeviceStorage, x)
    return made


def _is_traced(args: Any) -> bool:
    """Whether a tensor among arguments is one that is traced."""
    for each in args:
        if type(each) is DeviceTensor:
            if each.held is None:
                return True
        elif type(each) in (list, tuple) and _is_traced(each):
            return True
    return False


def _in_graph(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator of tensors that are traced, by what graphs know of them."""

    def inner(x: Any) -> Any:
        if not isinstance(x, DeviceTensor):
            return x
        x.__tensor_flatten__()
        return x.traced

    out = operator(*tree_map(inner, args), **tree_map(inner, kwargs))
    if operator._schema.is_mutable and operator._schema.name.endswith("_"):
        return args[0] if operator._schema.returns else None
    return tree_map(
        lambda x: DeviceTensor(None, x) if isinstance(x, torch.Tensor) and x.device.type == DEVICE_TYPE else x, out
    )
