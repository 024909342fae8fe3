"""CUDA types of the dtypes, conversions between them, and the functions that expressions of ops call besides CUDA's own.

Half precision is stored in 16 bits, computed in float and rounded after every op, as everywhere. Integers wrap; a shift by
more bits than there are leaves nothing. The expressions themselves are in the table of ops (`worker/op_table/op_table.py`).
Sources include nothing, so that a compiler is all that they need.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gt.ir.dtypes import DType, bfloat16, bool_, float16, float64
from gt.worker.kernels.elementwise import wide

STORED_TYPES: Final = {
    "bool": "bool", "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
    "uint64": "unsigned long long", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "float16": "unsigned short", "bfloat16": "unsigned short", "float32": "float", "float64": "double",
}  # fmt: skip
"""The type in memory, by the dtype's name. What is not here no kernel is written for."""
SCALAR_TYPES: Final = {"f": "double", "i": "long long", "b": "bool"}
"""The type of a run-time scalar, by its kind."""

FUNCTIONS_SOURCE: Final = r"""
#define INF __longlong_as_double(0x7ff0000000000000LL)
template <typename T> __device__ __forceinline__ T maximum(T a, T b) { return a >= b || a != a ? a : b; }
template <typename T> __device__ __forceinline__ T minimum(T a, T b) { return a <= b || a != a ? a : b; }
template <typename T> __device__ __forceinline__ T sign(T x) { return x > T(0) ? T(1) : x == T(0) || x != x ? T(0) : T(-1); }
template <typename T> __device__ __forceinline__ T magnitude(T x) { return x > T(0) ? x : (T)-x; }
template <typename T> __device__ __forceinline__ T remainder_of(T a, T b)
{
    T left = fmod(a, b);
    if (b == T(0)) return left;
    if (left == T(0)) return copysign(T(0), b);
    return (b < T(0)) != (left < T(0)) ? left + b : left;
}
template <typename T> __device__ __forceinline__ T floor_divide(T a, T b)
{
    if (b == T(0)) return a / b;
    T left = fmod(a, b), quotient = (a - left) / b;
    if (left != T(0) && (b < T(0)) != (left < T(0))) quotient -= T(1);
    if (quotient == T(0)) return copysign(T(0), a / b);
    T whole = floor(quotient);
    return quotient - whole > T(0.5) ? whole + T(1) : whole;
}
template <typename T, typename U> __device__ __forceinline__ T left_shift(T a, T b)
{
    return (U)b < 8 * sizeof(T) ? (T)((U)a << (U)b) : T(0);
}
template <typename T, typename U> __device__ __forceinline__ T right_shift(T a, T b)
{
    return (U)b < 8 * sizeof(T) ? (T)(a >> b) : a < T(1) && a != T(0) ? (T)-1 : T(0);
}
__device__ __forceinline__ long long placed(long long at, long long size, long long* wrong)
{
    if (at >= -size && at < size) return at < 0 ? at + size : at;
    atomicMax((unsigned long long*)wrong, (unsigned long long)at);
    return 0;
}
struct Sum { template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return (T)(a + b); } };
struct Prod { template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return (T)(a * b); } };
struct Max { template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return maximum<T>(a, b); } };
struct Min { template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return minimum<T>(a, b); } };
struct Any { template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return a || b; } };
struct All { template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return a && b; } };
"""


def computed(dtype: DType) -> str:
    """The type that elements of a dtype are computed in."""
    return STORED_TYPES[wide(dtype).name]


def loaded(dtype: DType, text: str) -> str:
    """The expression of an element as it is computed with, from what is stored."""
    if dtype is float16:
        return f"from_half({text})"
    return f"from_bfloat16({text})" if dtype is bfloat16 else text


def stored(dtype: DType, text: str) -> str:
    """The expression of what is stored of an element."""
    if dtype is float16:
        return f"to_half({text})"
    return f"to_bfloat16({text})" if dtype is bfloat16 else text


def rounded(dtype: DType, text: str) -> str:
    """An element with no more digits than its dtype has."""
    return loaded(dtype, stored(dtype, text)) if dtype in (float16, bfloat16) else text


def cast(source: DType, target: DType, text: str) -> str:
    """The same value in another dtype."""
    if target is bool_:
        return f"({text} != 0)"
    if target is float16 and source is float64:
        return f"from_half(to_half({text}))"
    return rounded(target, f"({computed(target)}){text}")


def number(dtype: DType, text: str, *, exact: bool) -> str:
    """A run-time scalar where it meets elements of a dtype; `exact`: as one of that dtype, which half precision else is not."""
    if exact and dtype is float16:
        return f"from_half(to_half((double){text}))"
    return rounded(dtype, f"(float){text}") if exact and dtype is bfloat16 else f"({computed(dtype)}){text}"


def identity(op: str, dtype: DType) -> str:
    """The identity of a reduction, which changes nothing when it is joined to an element."""
    kind = computed(dtype)
    if op in ("sum", "any"):
        return "0"
    if op in ("prod", "all"):
        return "1"
    if dtype.kind == "f":
        return f"({kind}){'-' if op == 'max' else ''}INF"
    if dtype.kind == "b":
        return "false" if op == "max" else "true"
    limits = np.iinfo(dtype.name)
    if op == "min":
        return f"({kind}){limits.max}{'ULL' if dtype.name == 'uint64' else 'LL'}"
    return f"({kind})({limits.min + 1}LL - 1)" if limits.min else "0"
