"""Tensors to and from other libraries: NumPy's protocols, DLPack, PyTorch.

NumPy's functions of GT tensors (`np.sum(t)`, `np.add(t, 1)`, `np.concatenate([t, u])`) compute on the workers and give tensors:
a table says which function of GT each is, and what its arguments are called there. What is not in the table is NumPy's own
business: it gets the values, as an array, and gives arrays.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NoReturn

import numpy as np

from gt.client.functional import functional
from gt.client.ops import comparisons, creation
from gt.client.tensor.tensor import Tensor
from gt.ir.dtypes import as_dtype, bfloat16, promote

_RENAMED: Final = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "bitwise_not": "bitwise_not", "invert": "bitwise_not", "conjugate": "conj",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "power": "pow", "rint": "round",
    "true_divide": "div", "divide": "div", "subtract": "sub", "multiply": "mul", "negative": "neg", "fabs": "abs",
    "mod": "remainder", "degrees": "rad2deg", "radians": "deg2rad", "equal": "eq", "less_equal": "le", "less": "lt",
    "greater": "gt", "greater_equal": "ge", "not_equal": "ne",
}  # fmt: skip
"""NumPy's universal functions that GT has under another name."""

_ARGUMENTS: Final[dict[str, dict[str, str]]] = {
    "sum": {"a": "input", "axis": "dim", "keepdims": "keepdim"},
    "prod": {"a": "input", "axis": "dim", "keepdims": "keepdim"},
    "mean": {"a": "input", "axis": "dim", "keepdims": "keepdim"},
    "amax": {"a": "input", "axis": "dim", "keepdims": "keepdim"},
    "amin": {"a": "input", "axis": "dim", "keepdims": "keepdim"},
    "any": {"a": "input", "axis": "dim", "keepdims": "keepdim"},
    "all": {"a": "input", "axis": "dim", "keepdims": "keepdim"},
    "argmax": {"a": "input", "axis": "dim", "keepdims": "keepdim"},
    "argmin": {"a": "input", "axis": "dim", "keepdims": "keepdim"},
    "cumsum": {"a": "input", "axis": "dim"},
    "cumprod": {"a": "input", "axis": "dim"},
    "clip": {"a": "input", "a_min": "min", "a_max": "max"},
    "concatenate": {"arrays": "tensors", "axis": "dim"},
    "stack": {"arrays": "tensors", "axis": "dim"},
    "vstack": {"tup": "tensors"},
    "hstack": {"tup": "tensors"},
    "expand_dims": {"a": "input", "axis": "dim"},
    "squeeze": {"a": "input", "axis": "dim"},
    "ravel": {"a": "input"},
    "moveaxis": {"a": "input"},
    "swapaxes": {"a": "input"},
    "broadcast_to": {"array": "input", "shape": "size"},
    "flip": {"m": "input", "axis": "dims"},
    "roll": {"a": "input", "shift": "shifts", "axis": "dims"},
    "tile": {"A": "input", "reps": "dims"},
    "tril": {"m": "input", "k": "diagonal"},
    "triu": {"m": "input", "k": "diagonal"},
    "outer": {"a": "input", "b": "vec2"},
    "inner": {"a": "input", "b": "other"},
    "kron": {"a": "input", "b": "other"},
    "tensordot": {"axes": "dims"},
    "einsum": {},
    "where": {"x": "input", "y": "other"},
    "zeros_like": {"a": "input"},
    "ones_like": {"a": "input"},
    "full_like": {"a": "input"},
    "empty_like": {"a": "input"},
    "nan_to_num": {"x": "input"},
    "take_along_axis": {"arr": "input", "axis": "dim"},
    "count_nonzero": {"a": "input", "axis": "dim"},
    "round": {"a": "input"},
    "diff": {"a": "input", "axis": "dim"},
    "real": {"val": "input"},
    "imag": {"val": "input"},
}
"""NumPy's functions that GT has with the same meaning, and GT's names of their arguments."""

_SAME: Final = {
    "concatenate": "cat", "expand_dims": "unsqueeze", "take_along_axis": "take_along_dim", "max": "amax", "min": "amin",
}  # fmt: skip


def ufunc(self: Tensor, function: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
    """`__array_ufunc__`: what a NumPy universal function of a tensor is."""
    if out is not None or any(isinstance(x, np.ndarray) and x.dtype == object for x in inputs):
        raise TypeError(f"np.{function.__name__} cannot write to out= when an operand is a GT tensor: use its result")
    if method == "reduce" and function in _REDUCED:
        return _call(_REDUCED[function], inputs, {"axis": 0, **options})
    name = _RENAMED.get(function.__name__, function.__name__)
    chosen = getattr(functional, name, None)
    if (
        method != "__call__"
        or chosen is None
        or (set(options) - {"dtype", "where"})
        or options.get("where", True) is not True
    ):
        return getattr(function, method)(*map(_array, inputs), **options)
    result = chosen(*map(_operand, inputs))
    return result if options.get("dtype") is None else result.to(as_dtype(options["dtype"]))


_REDUCED: Final[dict[np.ufunc, str]] = {
    np.add: "sum", np.multiply: "prod", np.maximum: "amax", np.minimum: "amin", np.logical_and: "all", np.logical_or: "any",
}  # fmt: skip


def array_function(self: Tensor, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
    """`__array_function__`: what a NumPy function of a tensor is."""
    name = function.__name__
    special = _SPECIAL.get(function)
    if special is not None:
        return special(*args, **kwargs)
    name = "amax" if name == "max" else "amin" if name == "min" else name
    if name in _ARGUMENTS and (hasattr(functional, _SAME.get(name, name)) or hasattr(creation, name)):
        return _call(name, args, dict(kwargs))
    return function(*map(_array, args), **{key: _array(value) for key, value in kwargs.items()})


def torch_function(
    kind: type[Tensor], function: Callable[..., Any], types: Any, args: Any, kwargs: Any = None
) -> NoReturn:
    """`__torch_function__`: PyTorch's functions take no tensor of GT. PyTorch's own error would say that it takes a Tensor, not a
    Tensor."""
    name = getattr(function, "__name__", "a function")
    raise TypeError(
        f"PyTorch's {name} takes no GT tensor: convert it with .torch(), or call gt.{name} of gt.from_torch(x)"
        if hasattr(functional, name)
        else f"PyTorch's {name} takes no GT tensor: convert it with .torch()"
    )


WRITERS: Final = frozenset({("scipy.ndimage._ni_support", "_get_output")})
"""Functions of other libraries that make an array of an argument in order to write to it. Their names are private: one that is
called otherwise writes to a copy again, and a test fails."""


def refuse_output(caller: FrameType) -> None:
    """Raise `TypeError` where the values of a tensor are asked for in order to be written, which the tensor would never know."""
    if (caller.f_globals.get("__name__"), caller.f_code.co_name) in WRITERS:
        raise TypeError(
            "scipy.ndimage cannot write to a GT tensor as output=: leave it out, and use what the function returns"
        )


def _array(value: Any) -> Any:
    """The values of tensors, wherever they are in an argument."""
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_array, value))
    return value


def _call(name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """GT's function for one of NumPy's, its arguments renamed; those that say nothing are dropped."""
    names, dtype = _ARGUMENTS[name], kwargs.pop("dtype", None)
    given = {key: value for key, value in kwargs.items() if value is not None and value is not np._NoValue}
    for key in ("out", "where", "initial"):
        if key in given and not (key == "where" and given[key] is True):
            raise TypeError(f"np.{name} of a GT tensor takes no {key}=")
        given.pop(key, None)
    function = getattr(functional, _SAME.get(name, name), None) or getattr(creation, name)
    result = function(*map(_operand, args), **{names.get(key, key): _operand(value) for key, value in given.items()})
    return result if dtype is None else result.to(as_dtype(dtype))


def _operand(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return creation.from_numpy(value)
    if isinstance(value, np.dtype):
        return as_dtype(value)
    if isinstance(value, (list, tuple)) and any(isinstance(each, np.ndarray) for each in value):
        return type(value)(map(_operand, value))
    return value


def _transpose(a: Tensor, axes: Any = None) -> Tensor:
    return functional.permute(a, tuple(range(a.ndim))[::-1] if axes is None else tuple(axes))


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    """NumPy's: a product with a number, or over the last dimension of `a` and the last but one (or only one) of `b`."""
    if out is not None:
        raise TypeError("np.dot of a GT tensor takes no out=")
    if np.isscalar(a) or np.isscalar(b):
        return functional.mul(a, b)
    x, y = (each if isinstance(each, Tensor) else _operand(np.asarray(each)) for each in (a, b))
    if not x.ndim or not y.ndim:
        return functional.mul(x, y)
    dtype = promote(x.dtype, y.dtype)
    return functional.tensordot(x.to(dtype), y.to(dtype), ([x.ndim - 1], [max(y.ndim - 2, 0)]))


def _close(name: str) -> Callable[..., Any]:
    """isclose and allclose: NumPy's take numbers and lists for either operand, GT's (PyTorch's) only tensors."""

    def function(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
        x, y = (each if isinstance(each, Tensor) else _operand(np.asarray(each)) for each in (a, b))
        return getattr(functional, name)(x, y, rtol, atol, equal_nan)

    return function


def _spread(name: str) -> Callable[..., Tensor]:
    """var and std: NumPy's divide by n, GT's (PyTorch's) by n − 1 unless told otherwise."""

    def function(
        a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: Any = False
    ) -> Tensor:
        if out is not None:
            raise TypeError(f"np.{name} of a GT tensor takes no out=")
        x = a if dtype is None else a.to(as_dtype(dtype))
        found: Tensor = getattr(functional, name)(x, axis, correction=ddof, keepdim=keepdims is True)
        return found

    return function


def _where(condition: Any, *cases: Any) -> Any:
    """NumPy's, to which a number is true unless it is 0."""
    condition = condition if isinstance(condition, Tensor) else creation.from_numpy(np.asarray(condition))
    if condition.dtype.kind != "b":
        condition = functional.ne(condition, 0)
    return functional.where(condition, *map(_operand, cases))


_SPECIAL: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    np.transpose: _transpose,
    np.reshape: lambda a, shape, order="C", **_: functional.reshape(a, shape),
    np.allclose: _close("allclose"),
    np.dot: _dot,
    np.isclose: _close("isclose"),
    np.where: _where,
    np.var: _spread("var"),
    np.std: _spread("std"),
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: a.numel() if axis is None else a.shape[axis],
    np.copy: lambda a, **_: a.clone(),
    np.array_equal: lambda a1, a2, **_: comparisons.equal(_operand(a1), _operand(a2)),
    np.result_type: lambda *given: np.result_type(*(x.dtype.numpy if isinstance(x, Tensor) else x for x in given)),
    np.array_repr: lambda arr, *_, **__: repr(arr),
    np.array_str: lambda arr, *_, **__: str(arr),
}


# DLPack


CPU: Final = (1, 0)
"""DLPack's name of a CPU's memory."""


def dlpack(
    self: Tensor, max_version: tuple[int, int] | None, dl_device: tuple[int, int] | None, copy: bool | None
) -> Any:
    """`__dlpack__`: a capsule with a copy of the values, in this process's memory; waits."""
    if copy is False:
        raise BufferError("the values of a GT tensor live on its workers: DLPack has to copy them")
    if dl_device not in (None, CPU):
        raise BufferError(f"the values of a GT tensor are copied to this process's memory, not to device {dl_device}")
    if self.dtype is not bfloat16:
        return self.numpy().__dlpack__(max_version=max_version)
    return _renamed(self.numpy().view(np.int16).__dlpack__(max_version=max_version), _BFLOAT)


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor with the values of another library's array on a CPU, which is copied. Raises `BufferError` when `copy=False`."""
    if isinstance(ext_tensor, Tensor):
        return ext_tensor
    if copy is False:
        raise BufferError("from_dlpack: the values go to the workers, so they are copied")
    if str(getattr(ext_tensor, "dtype", "")).removeprefix("torch.") != bfloat16.name:
        return creation.from_numpy(np.from_dlpack(ext_tensor))
    if tuple(ext_tensor.__dlpack_device__()) != CPU:
        raise BufferError("from_dlpack: bfloat16 is copied from a CPU's memory only")
    integers = np.from_dlpack(_Capsule(_renamed(ext_tensor.__dlpack__(), _INTEGER)))
    return creation.from_numpy(integers.view(bfloat16.numpy))


_INTEGER: Final = 0
_BFLOAT: Final = 4
"""DLPack's codes of integers and of bfloat16, which NumPy does not know: it takes and gives the 16 bits as integers."""

_DTYPE_CODE_AT: Final = {b"dltensor": 20, b"dltensor_versioned": 52}
"""Where the dtype's code is in what a capsule of this name points to: `DLManagedTensor`, `DLManagedTensorVersioned`."""


def _renamed(capsule: Any, code: int) -> Any:
    """The capsule, of which nobody has taken the tensor yet, with another code of its dtype."""
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = name_of(capsule)
    ctypes.c_uint8.from_address(pointer_of(capsule, name) + _DTYPE_CODE_AT[name]).value = code
    return capsule


class _Capsule:
    """A capsule on a CPU, as NumPy takes it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


# PyTorch


def from_torch(tensor: Any) -> Tensor:
    """A tensor with the dtype, values and `requires_grad` of a PyTorch tensor, which is copied."""
    if not (hasattr(tensor, "detach") and hasattr(tensor, "numpy")):
        raise TypeError(f"from_torch takes a torch.Tensor, not {type(tensor).__name__}")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if as_dtype(str(tensor.dtype)) is bfloat16:
        torch = importlib.import_module("torch")
        found = creation.from_numpy(plain.view(torch.int16).numpy().view(bfloat16.numpy))
    else:
        found = creation.from_numpy(plain.numpy())
    return found.requires_grad_(tensor.requires_grad) if tensor.requires_grad else found


def to_torch(self: Tensor) -> Any:
    """`Tensor.torch()`: a PyTorch tensor on the CPU with these values, without a gradient; waits. Needs PyTorch."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise ImportError("Tensor.torch() needs PyTorch: install it, or use .numpy()") from None
    array = self.numpy()
    if self.dtype is bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)
