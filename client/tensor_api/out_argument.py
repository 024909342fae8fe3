"""`out=`: results that are written to tensors which the program has already.

The functions themselves return new tensors. The public face wraps those for which PyTorch takes `out=` (`filling`), so the
methods of tensors, and everything inside of GT, pay nothing for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from types import FunctionType
from typing import Any, Final

from gt.client.ops import creation
from gt.client.tensor import emission_context, views
from gt.client.tensor.operands import tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, GradientError, OverlapError, ShapeError

__all__ = ["all_filling", "filling"]

_MADE: Final = frozenset(
    {
        "arange", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm", "zeros",
        "fftfreq", "rfftfreq",
    }
)  # fmt: skip
"""What makes numbers out of nothing makes them in the dtype of `out`."""
_APART: Final = frozenset(
    {
        "cat", "cross", "dstack", "gather", "hstack", "index_select", "kthvalue", "masked_select", "median", "mode",
        "nanmedian", "stack", "take", "take_along_dim", "vstack",
    }
)  # fmt: skip
"""Functions that read an element again after they have written others, so PyTorch refuses an `out` that shares memory with an
operand. Other functions may write to an operand itself."""
_EXACT: Final = frozenset(
    {
        "aminmax", "complex", "gather", "index_select", "kthvalue", "masked_select", "median", "mode", "multinomial",
        "nanmedian", "polar", "sort", "take", "take_along_dim", "topk",
    }
)  # fmt: skip
"""Functions whose `out` must have the dtype of the result. Others cast the result to the dtype of `out`, if that can hold it."""


def filling(function: Callable[..., Any], home: str, tensors: str = "") -> Callable[..., Any]:
    """The function with one more argument: `out=`, a tensor, or several for several results, to which they are written.

    It returns `out`. A tensor of another shape takes that of the result, unless it is a view. `home` is the module of the
    public face under whose name it is found; `tensors` says which of two operands are tensors alone (`FunctionRow`).
    """

    names = tuple(signature(function).parameters)
    short = None if hasattr(function, "also_named") else _SHORT.get(names)
    made = (short or _any)(function) if not tensors else _taking_tensors(function, tensors == "both")
    wrapped = wraps(function)(made)
    wrapped.__module__ = home
    return wrapped


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(input: Any, *, out: Any = None) -> Any:
        return function(input) if out is None else _written(function, out, (input,), {})

    return call


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(input: Any, other: Any, *, out: Any = None) -> Any:
        return function(input, other) if out is None else _written(function, out, (input, other), {})

    return call


def _taking_tensors(function: Callable[..., Any], both: bool) -> Callable[..., Any]:
    name = function.__name__

    def call_first(input: Any, other: Any, *, out: Any = None) -> Any:
        if not isinstance(input, Tensor):
            input = tensor_of(name, input)
        return function(input, other) if out is None else _written(function, out, (input, other), {})

    def call_both(input: Any, other: Any, *, out: Any = None) -> Any:
        if not isinstance(input, Tensor):
            input = tensor_of(name, input)
        if not isinstance(other, Tensor):
            other = tensor_of(name, other)
        return function(input, other) if out is None else _written(function, out, (input, other), {})

    return call_both if both else call_first


def _any(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, out: Any = None, **options: Any) -> Any:
        if out is not None:
            return _written(function, out, args, options)
        return function(*args, **options) if options else function(*args)

    return call


_SHORT: Final = {("input",): _unary, ("input", "other"): _binary}
"""What is called most costs least."""


def _written(function: Callable[..., Any], out: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Calls the function, and writes its results to `out`."""
    name = function.__name__
    outs = list(out) if isinstance(out, Sequence) else [out]
    _check(name, outs, (*args, *options.values()))
    if name in _MADE and options.get("dtype") is None:
        options["dtype"] = outs[0].dtype
    results = function(*args, **options)
    if name in _EXACT:
        _check_dtypes(name, outs, results)
    if isinstance(results, Tensor) and len(outs) == 1:
        return _filled(name, outs[0], results)
    if not isinstance(results, Sequence) or len(results) != len(outs):
        count = len(results) if isinstance(results, Sequence) else 1
        raise TypeError(f"{name}: {len(outs)} tensors in out= for {count} results")
    filled = [_filled(name, each, result) for each, result in zip(outs, results, strict=True)]
    return type(results)(*filled) if hasattr(results, "_fields") else tuple(filled)


def all_filling(home: str, functions: dict[str, Any]) -> dict[str, Any]:
    """The functions among these names, each with `out=`."""
    return {name: filling(each, home) for name, each in functions.items() if isinstance(each, FunctionType)}


def _check(name: str, outs: Sequence[Any], operands: Sequence[Any]) -> None:
    for each in outs:
        if not isinstance(each, Tensor):
            raise TypeError(f"{name}: out= is a tensor, or several, not {type(each).__name__}")
    for operand in operands:
        for each in operand if isinstance(operand, (list, tuple)) else (operand,):
            if isinstance(each, Tensor):
                for out in outs:
                    _check_overlap(name, out, each)
    if emission_context.current().grad and any(isinstance(x, Tensor) and x.requires_grad for x in (*outs, *operands)):
        raise GradientError(f"{name}: no gradient flows to what out= names: leave it out, or call in gt.no_grad()")


def _check_overlap(name: str, out: Tensor, operand: Tensor) -> None:
    """Raises `OverlapError` if `out` shares elements with an operand that the function may not write to."""
    shared = views.overlap(out, operand)
    if shared == "partly" or (shared == "whole" and name in _APART):
        raise OverlapError(f"{name}: out= has elements of an operand: leave it out, or pass the operand's .clone()")


def _check_dtypes(name: str, outs: Sequence[Tensor], results: Any) -> None:
    for out, result in zip(outs, [results] if isinstance(results, Tensor) else results, strict=False):
        if out.dtype is not result.dtype:
            raise DTypeError(f"{name}: out= is of the result's dtype, {result.dtype}, not of {out.dtype}")


def _filled(name: str, out: Tensor, new: Tensor) -> Tensor:
    if out.shape == new.shape:
        return out._write(name, new)
    if out._view is not None:
        raise ShapeError(f"{name}: a view of shape {out.shape} in out= cannot take a result of shape {new.shape}")
    if out.numel():
        warnings.warn(
            f"{name}: out= of shape {out.shape} takes the shape {new.shape} of the result: make it of that shape, or empty",
            stacklevel=3,
        )
    fresh = creation.empty(new.shape, dtype=out.dtype)
    views.share(out, fresh._write(name, new))
    return out
