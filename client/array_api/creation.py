"""The standard's creation functions. `device=` is accepted everywhere and means nothing: the service decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, complex_numbers, join_and_pad, shape_ops, triangular
from gt.client.ops import creation as core
from gt.client.ops.creation import empty_like, full_like, ones_like, zeros_like
from gt.client.tensor import emission
from gt.client.tensor import tensor as tensors
from gt.client.tensor.operands import cast, clone
from gt.client.tensor_api.interop import from_dlpack
from gt.ir.dtypes import as_dtype, float64, get_default_dtype, int64, result_type

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor
    from gt.ir.dtypes import DType

__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "linspace",
    "logspace", "meshgrid", "ones", "ones_like", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor of numbers, nested lists, an array or a tensor, which is copied only when it must be, or with `copy`."""
    if isinstance(obj, tensors.Tensor):
        out = obj if dtype is None else cast(obj, dtype)
        if out is not obj and copy is False:
            raise ValueError(f"asarray: {obj.dtype} becomes {out.dtype} only in a copy")
        return clone(obj) if out is obj and copy else out
    if copy is False:
        raise ValueError("asarray: what a program holds goes to the workers, so it is copied")
    return core.tensor(_stacked(obj), dtype=_met(obj) if dtype is None else dtype)


def _met(obj: Any) -> DType | None:
    """The dtype in which the elements of lists meet, if tensors are among them; else what `tensor` makes of numbers holds."""
    dtypes: list[DType] = []
    numbers: list[Any] = []
    rest, found = [obj], False
    while rest:
        each = rest.pop()
        if isinstance(each, (list, tuple)):
            rest.extend(each)
        elif hasattr(each, "dtype"):
            dtypes.append(as_dtype(each.dtype))
        else:
            numbers.append(each)
        found = found or isinstance(each, tensors.Tensor)
    return result_type([(dtype, False) for dtype in dtypes], numbers) if found else None


def _stacked(obj: Any) -> Any:
    """Lists in which tensors stand, as lists of numbers: NumPy would take each for a sequence."""
    if isinstance(obj, (list, tuple)):
        return [_stacked(each) for each in obj]
    return obj.tolist() if isinstance(obj, tensors.Tensor) else obj


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`start`, `start + step`, … up to but without `stop`; nothing, where no step leads there."""
    if stop is None:
        start, stop = 0, start
    if (stop - start) / step <= 0:
        floating = any(isinstance(number, float) for number in (start, stop, step))
        return core.zeros((0,), dtype=dtype or (get_default_dtype() if floating else int64))
    return core.arange(start, stop, step, dtype=dtype)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor to be written later; its elements are 0."""
    return core.empty(shape, dtype=dtype)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Every element is 0."""
    return core.zeros(shape, dtype=dtype)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Every element is 1."""
    return core.ones(shape, dtype=dtype)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Every element is `fill_value`."""
    return core.full(shape, fill_value, dtype=dtype)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """1 on the k-th diagonal, 0 elsewhere."""
    rows, columns = core.shape_of("eye", (n_rows, n_rows if n_cols is None else n_cols))
    k = max(-rows, min(k, columns))  # beyond the corners there is nothing, however far
    same = arithmetic.eq(shape_ops.unsqueeze(core.arange(rows), 1), arithmetic.sub(core.arange(columns), k))
    return cast(same, get_default_dtype() if dtype is None else dtype)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Tensor:
    """`num` numbers evenly spaced from `start` to `stop`, which is the last of them or, without `endpoint`, comes after it."""
    if isinstance(start, complex) or isinstance(stop, complex):
        chosen = as_dtype(complex) if dtype is None else as_dtype(dtype)
        ends = [(complex(start).real, complex(stop).real), (complex(start).imag, complex(stop).imag)]
        parts = [linspace(*pair, num, dtype=chosen.to_real(), endpoint=endpoint) for pair in ends]
        return complex_numbers.complex(*parts)
    if endpoint:
        return core.linspace(start, stop, num, dtype=dtype)
    more = core.linspace(start, stop, num + 1, dtype=dtype)
    return emission.emit("slice", (more, 0), (0,), (num,), (1,))


def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: float = 10.0, dtype: Any = None
) -> Tensor:
    """`base` to `num` evenly spaced powers, as of NumPy's namespace: the standard has no such function."""
    powers = linspace(start, stop, num, dtype=float64, endpoint=endpoint)
    return cast(arithmetic.pow(base, powers), get_default_dtype() if dtype is None else dtype)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Vectors spread over the grid that they span."""
    return list(join_and_pad.meshgrid(*arrays, indexing=indexing))


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The lower triangles of matrices, up to the k-th diagonal."""
    return triangular.tril(x, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The upper triangles of matrices, from the k-th diagonal on."""
    return triangular.triu(x, k)
