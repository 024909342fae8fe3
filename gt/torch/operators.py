"""What an operator of PyTorch does on the device: its function of GT, how its arguments and results change, or another way.

In this order: a function of `aten_table`; what PyTorch takes it apart to, if it does so anyway; the function, method or
in-place method of GT of the same name, for GT has PyTorch's names; what PyTorch composes it from; the CPU, with a warning, once.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

import gt

from . import aten_functions, aten_table
from .aten import sequences
from .device_tensor import DeviceTensor, Rule, graph_tensor, held, same
from .foreach import PREFIX, foreach
from .fused_steps import FUSED_STEPS
from .module_paths import place, placed_as
from .pytorch_internals import DEVICE_TYPE, decomposition_of, heeding_conjugates, is_composite, is_tracing, tree_map
from .values import DTYPES, IGNORED, from_cpu, to_cpu

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["check_index", "copy", "function_of", "operator_of"]

Function = Callable[..., Any]


@cache
def operator_of(operator: Any) -> Rule:
    """How an operator is computed from tensors of PyTorch."""
    name, overload = operator._schema.name.removeprefix("aten::"), operator._overloadname
    if name.startswith(PREFIX):
        return foreach(operator, operator_of) or _other_way(operator)
    special = _SPECIAL.get(name) or _VIEWS.get(f"{name}.{overload}")
    if special is not None:
        return special
    if (
        is_composite(operator)
        and not aten_table.FUNCTIONS.keys() & {name, f"{name}.{overload}"}
        and name not in _RESHAPES
    ):
        return lambda args, kwargs: operator.decompose(*args, **kwargs)
    outputs = [each.name for each in operator._schema.arguments if each.is_out]
    if outputs:
        return _into(operator, outputs)
    if name in _RESHAPES:
        return _reshaping(_RESHAPES[name])
    if name.endswith("_") and not name.endswith("__") and operator._schema.is_mutable:
        return _in_place(operator, name)
    found = function_of(name, overload)
    if found is not None:
        return _computed(found)
    return _other_way(operator)


def function_of(name: str, overload: str) -> Function | None:
    """GT's function of tensors for an operator without side effects; None if there is none."""
    for key in (f"{name}.{overload}", name):
        found = aten_table.FUNCTIONS.get(key)
        if found is not None:
            return found
    if name in aten_table.NOT_THE_SAME:
        return None
    for home in (gt, gt.Tensor, gt.nn.functional, gt.special):
        found = getattr(home, name, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    return None


def _computed(function: Function) -> Rule:
    def rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        named = _named(kwargs) if kwargs else kwargs
        out = function(*[_operand(each) for each in args], **named)
        if type(out) is gt.Tensor:
            return DeviceTensor(out)
        return _results(out)

    return rule


def _results(out: Any) -> Any:
    """What an operator gives: tensors of PyTorch, in tuples and lists as they came."""
    if isinstance(out, gt.Tensor):
        return DeviceTensor(out)
    if isinstance(out, tuple):
        return tuple(map(_results, out))
    if isinstance(out, list):
        return list(map(_results, out))
    return out


def _operand(each: Any) -> Any:
    """An argument as GT's functions take it."""
    kind = type(each)
    if kind is DeviceTensor and each.held is not None:
        return each.held
    if kind is float or kind is int or kind is bool or each is None:
        return each
    if kind in (list, tuple, torch.Size) or kind.__name__ == "immutable_list":
        return [_operand(x) for x in each]
    if isinstance(each, torch.Tensor):
        found = getattr(each, "held", None)
        if found is not None:
            return found
        if each.device.type == DEVICE_TYPE:
            raise RuntimeError("a tensor of a graph that PyTorch is tracing has no values yet")
        if each.dim() and each.numel():
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE_TYPE}:0 and "
                f"{each.device}: move it there by .to('{DEVICE_TYPE}')"
            )
        return from_cpu(each)
    if kind is torch.dtype:
        return _dtype(each)
    if kind in (torch.SymInt, torch.SymFloat, torch.SymBool):
        return each.node.maybe_as_int() if kind is torch.SymInt else each
    if kind in (torch.device, torch.memory_format, torch.layout):
        return None
    if kind is torch.Generator:
        raise NotImplementedError(f"generators of the CPU do not draw on {DEVICE_TYPE}: seed it by torch.manual_seed")
    return each


def _dtype(dtype: Any) -> gt.DType:
    found = DTYPES.get(dtype)
    if found is None:
        raise TypeError(f"{dtype} does not exist on {DEVICE_TYPE}")
    return found


def _named(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _operand(each)
        for name, each in kwargs.items()
        if name not in IGNORED and not (each is None and name in ("dtype", "generator"))
    }


def _in_place(operator: Any, name: str) -> Rule:
    """An operator that writes to its first argument."""
    method = None if name in aten_table.NOT_THE_SAME else getattr(gt.Tensor, name, None)
    function = aten_table.IN_PLACE.get(name, method)
    if function is None:
        pure = function_of(name[:-1], operator._overloadname)
        if pure is None:
            return _other_way(operator)

        def function(x: Tensor, *args: Any, **kwargs: Any) -> None:
            x.copy_(pure(x, *args, **kwargs))

    def rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function(*[_operand(each) for each in args], **_named(kwargs))
        return args[0] if operator._schema.returns else None

    return rule


def _into(operator: Any, outputs: Sequence[str]) -> Rule:
    """An operator that writes its results to arguments."""
    from_none = not any("Tensor" in str(each.type) for each in operator._schema.arguments if not each.is_out)

    def rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        targets = [kwargs[each] for each in outputs if each in kwargs]
        rest = {name: each for name, each in kwargs.items() if name not in outputs}
        pure = _without_out(operator)
        if from_none:
            rest["device"] = targets[0].device
        made = pure(*args, **rest)
        for target, value in zip(targets, made if isinstance(made, (tuple, list)) else (made,), strict=True):
            if tuple(target.shape) == tuple(value.shape):
                target.copy_(value)
            else:
                _become(target, value.to(target.dtype).held)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return rule


def _become(target: Any, value: Tensor) -> None:
    """Make a tensor of PyTorch that of another tensor of GT, with its shape."""
    target.data = DeviceTensor(value)


def _reshaping(view: Function) -> Rule:
    """An operator that changes the shape that a tensor of PyTorch has."""

    def rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _become(args[0], view(*[_operand(each) for each in args], **_named(kwargs)))
        return args[0]

    return rule


@cache
def _without_out(operator: Any) -> Any:
    """The overload of an operator that has the same arguments but `out`."""
    packet = getattr(torch.ops.aten, operator._schema.name.removeprefix("aten::"))
    wanted = [str(each.type) for each in operator._schema.arguments if not each.is_out]
    found, most = packet, -1
    for overload in packet.overloads():
        other = getattr(packet, overload)
        if not any(each.is_out for each in other._schema.arguments):
            kinds = [
                str(each.type) for each in other._schema.arguments if each.name not in IGNORED and each.name != "dtype"
            ]
            if kinds == wanted[: len(kinds)] and len(kinds) > most:
                found, most = other, len(kinds)
    return found


def _other_way(operator: Any) -> Rule:
    """By what PyTorch composes an operator from, else on the CPU."""
    composed = decomposition_of(operator)

    def rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if composed is not None:
            out = composed(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = operator.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        return _on_cpu(operator, args, kwargs)

    return rule


def _on_cpu(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator that GT does not have, by PyTorch on the CPU."""
    _warn_of(operator)
    moved = []

    def fetched(x: Any) -> Any:
        if isinstance(x, DeviceTensor):
            copy = to_cpu(x.held)  # type: ignore[arg-type]
            moved.append((x, copy, copy.clone()))
            return copy
        return torch.device("cpu") if isinstance(x, torch.device) else x

    with heeding_conjugates():
        out = operator(*tree_map(fetched, args), **tree_map(fetched, kwargs))
    for x, copy, before in moved:
        if operator._schema.is_mutable and not torch.equal(copy, before):
            held(x).copy_(from_cpu(copy))
    known = {id(copy): x for x, copy, _ in moved}
    return tree_map(lambda x: known.get(id(x)) or DeviceTensor(from_cpu(x)) if isinstance(x, torch.Tensor) else x, out)


@cache
def _warn_of(operator: Any) -> None:
    warnings.warn(
        f"{DEVICE_TYPE} has no {operator}: it is computed on the CPU of this program", UserWarning, stacklevel=5
    )


# what changes where values are


def check_index(device: Any) -> None:
    """Raises `RuntimeError` for a device of this type that is not the one that there is."""
    if device is not None:
        found = torch.device(device)
        if found.type == DEVICE_TYPE and found.index:
            raise RuntimeError(
                f"there is one device {DEVICE_TYPE}, and this is {found}: take '{DEVICE_TYPE}', the config says on which workers "
                "tensors are"
            )


def _to_copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, device, dtype = args[0], kwargs.get("device"), kwargs.get("dtype")
    mine = x.held
    check_index(device)
    if device is not None and torch.device(device).type not in (DEVICE_TYPE, "meta"):
        out = to_cpu(mine)
        return out.to(device=device, dtype=dtype) if dtype is not None or torch.device(device).type != "cpu" else out
    return DeviceTensor(
        mine.clone() if dtype is None else gt.cast(mine, _dtype(dtype)) if dtype != x.dtype else mine.clone()
    )


def copy(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    mine = getattr(target, "held", None)
    if mine is None:  # a tensor of the CPU
        target.copy_(to_cpu(source.held))
    else:
        theirs = getattr(source, "held", None)
        if theirs is None and target.signals:
            with placed_as(target.signals):
                mine.copy_(from_cpu(source))
            place(mine, target.signals)
        else:
            mine.copy_(from_cpu(source) if theirs is None else theirs)
    return target


def _item(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].held.item()


def _same(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return same(args[0])


def _lift(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor that the program made of its own numbers; in a graph that is traced, a constant of the graph."""
    x = args[0].held
    if not is_tracing():
        return DeviceTensor(x)
    if x.numel() <= 1:  # of which PyTorch cannot make a constant here
        value = x.item() if x.numel() else 0
        return DeviceTensor(None, torch.full(tuple(x.shape), value, dtype=args[0].dtype, device=DEVICE_TYPE))
    return DeviceTensor(None, torch.ops.aten.lift_fresh(graph_tensor(x)))


def _index(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, indices = args
    if getattr(x, "held", None) is None:
        raise RuntimeError(
            f"a tensor of {x.device} takes indices of the CPU, and one is of {DEVICE_TYPE}: move it by .cpu()"
        )
    return DeviceTensor(aten_functions.index(x.held, [None if each is None else _place(each) for each in indices]))


def _place(x: Any) -> Tensor:
    """An index, which may be of the CPU."""
    found = getattr(x, "held", None)
    return from_cpu(x) if found is None else found


def _index_put_in_place(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, indices, values, *accumulate = args
    aten_functions.index_put_(
        x.held, [None if each is None else _place(each) for each in indices], _operand(values),
        bool(accumulate and accumulate[0]) or bool(kwargs.get("accumulate")),
    )  # fmt: skip
    return x


def _index_put(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _index_put_in_place((DeviceTensor(args[0].held.clone()), *args[1:]), kwargs)


def _view(function: Function, strides: Callable[..., tuple[Any, int]]) -> Rule:
    """A view whose strides, and where it begins, follow from those that PyTorch knows of the tensor: that takes less than to ask
    for them."""

    def rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0]
        out = function(*[_operand(each) for each in args])
        if out._view is None or type(x) is not DeviceTensor:
            return DeviceTensor(out)
        known, offset = strides(x, *args[1:])
        return DeviceTensor(out) if known is None else DeviceTensor(out, None, known, offset)

    return rule


def _reshaped(x: Any, size: Any) -> tuple[Any, int]:
    if not x.is_contiguous():
        return None, 0
    steps, step = [], 1
    for each in reversed(size):
        if each < 0:
            each = x.numel() // max(1, -math.prod(size))
        steps.append(step)
        step *= max(1, each)
    return steps[::-1], x.storage_offset()


def _transposed(x: Any, first: int, second: int) -> tuple[Any, int]:
    steps = list(x.stride())
    if steps:
        steps[first], steps[second] = steps[second], steps[first]
    return steps, x.storage_offset()


def _permuted(x: Any, dims: Any) -> tuple[Any, int]:
    steps = x.stride()
    return [steps[each] for each in dims], x.storage_offset()


def _selected(x: Any, dim: int, index: int) -> tuple[Any, int]:
    steps = list(x.stride())
    start = index if index >= 0 else index + x.shape[dim]
    offset = x.storage_offset() + start * steps[dim]
    del steps[dim]
    return steps, offset


_VIEWS: Final[dict[str, Rule]] = {
    "view.default": _view(gt.reshape, _reshaped),
    "t.default": _view(gt.t, lambda x: (x.stride()[::-1], x.storage_offset())),
    "transpose.int": _view(gt.transpose, _transposed),
    "permute.default": _view(gt.permute, _permuted),
    "select.int": _view(gt.select, _selected),
}
"""Operators that only look at a tensor in another way."""


def _resized(x: Tensor, size: Any) -> Tensor:
    return x.clone().resize_(tuple(size))


_RESHAPES: Final[dict[str, Function]] = {
    "squeeze_": gt.squeeze, "unsqueeze_": gt.unsqueeze, "transpose_": gt.transpose, "t_": gt.t, "resize_": _resized,
    "as_strided_": gt.as_strided, "swapaxes_": gt.transpose, "swapdims_": gt.transpose,
    "set_": lambda x, source=None, *_: gt.zeros(0, dtype=x.dtype) if source is None else source,
}  # fmt: skip
"""Operators that change the shape of their first argument, by the view that it becomes."""


def _packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, lengths, batch_first = args
    rows, counts = sequences.packed_rows(x.held, sequences.lengths_of(lengths), batch_first)
    return DeviceTensor(rows), torch.tensor(counts)


def _ctc_loss(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    log_probs, targets, inputs, outputs, *rest = args
    given = sequences.lengths_of(inputs), sequences.lengths_of(outputs)
    return torch.ops.aten.ctc_loss.IntList.decompose(log_probs, targets, *given, *rest, **kwargs)


_SPECIAL: Final[dict[str, Rule]] = {
    "_to_copy": _to_copy, "copy_": copy, "_local_scalar_dense": _item, "detach": _same, "alias": _same, "lift": _same,
    "lift_fresh": _lift, "index": _index, "_unsafe_index": _index, "index_put_": _index_put_in_place,
    "_index_put_impl_": _index_put_in_place, "index_put": _index_put, "_unsafe_index_put": _index_put,
    "_pack_padded_sequence": _packed, "ctc_loss": _ctc_loss, **FUSED_STEPS,
}  # fmt: skip
