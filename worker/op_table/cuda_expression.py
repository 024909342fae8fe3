"""CUDA expressions of ops: from one element of each operand, what NumPy's function of that name gives.

Most are templates, in which `{0}`, `{1}` and `{2}` are the operands, `{t}` is the type in which they are computed and `{u}` the
unsigned type of the same size. The functions that are not CUDA's own are in `worker/fusion/cuda/cuda_types.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

CudaExpression = str | Callable[[Sequence[str], str], str]
"""A template, or what writes an expression of the operands and the type in which they are computed."""


def written(expression: CudaExpression, args: Sequence[str], t: str) -> str:
    """The expression of these operands, computed in type `t`; its value is of that type, or a truth."""
    return expression.format(*args, t=t, u=_unsigned(t)) if isinstance(expression, str) else expression(args, t)


def _unsigned(t: str) -> str:
    return t if t.startswith("unsigned") else f"unsigned {'char' if t == 'signed char' else t}"


def absolute(args: Sequence[str], t: str) -> str:
    """The absolute value: CUDA's function of floating-point numbers clears the sign of a NaN, too."""
    return f"fabs({args[0]})" if t in ("float", "double") else f"magnitude<{t}>({args[0]})"
