"""The worker's table of ops: for each op of `gt/ir/ops.py` one row with all that the worker knows of it.

A row holds the factory of the kernel over NumPy or CuPy, what the op becomes in a fused chain on a CPU (`cpu_lowering.py`) and
on a GPU (`cuda_expression.py`), whether a CUDA graph may hold the kernel, the kernel of a deterministic session, and the memory
that it uses beside operands and result. `OpRow` says what each facet means. Tables by facet follow at the end, for those who
read one.

A factory is called once, when a plan is compiled, and looks at everything that is known then; the kernel that it
returns is all that is left on the hot path. Kernels never change their operands. They return arrays of exactly the
local result's shape and dtype (or, without dimensions, NumPy's scalars), perhaps views of an operand. Scalars of Python
are weakly typed, as in NumPy 2. The factories are in `worker/kernels/`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from gt.worker.base.kernel_call import KernelCall, KernelFactory
from gt.worker.kernels import deterministic
from gt.worker.kernels.attention import attention, attention_grad
from gt.worker.kernels.conv_cpu import conv
from gt.worker.kernels.convolution import max_pool, max_pool_grad, overlap_add, windows
from gt.worker.kernels.creation import arange, full
from gt.worker.kernels.elementwise import (
    bitcast,
    cast,
    complex_,
    divide_integers,
    expm1,
    log2,
    nextafter,
    part,
    power,
    relu,
    rsqrt,
    same,
    shift,
    sigmoid,
    sign,
    ufunc,
    weight,
    where,
)  # fmt: skip
from gt.worker.kernels.error_function import erf, erf_into
from gt.worker.kernels.fft import fourier
from gt.worker.kernels.indexing import gather, scatter, scatter_add, segment_sum, slice_, take, update_slice
from gt.worker.kernels.linalg import linalg, permutation, solve
from gt.worker.kernels.matmul import int8_product, matmul
from gt.worker.kernels.philox import normal, uniform
from gt.worker.kernels.recurrence import recurrence, recurrence_grad
from gt.worker.kernels.reductions import arg, reduction, softmax
from gt.worker.kernels.scans import cumulate, cumulated
from gt.worker.kernels.shape import cat, expand, permute, reshape
from gt.worker.kernels.sorting import argsort, flatnonzero, lexsort, searchsorted
from gt.worker.kernels.special_functions import bessel, dawson, incomplete_gamma, scaled_bessel, special_function

from . import workspace_size
from .cpu_lowering import (
    Lowering,
    by_special_function,
    by_ufunc,
    convert,
    lower_reduction,
    lower_relu,
    lower_rsqrt,
    lower_sigmoid,
    lower_sign,
    lower_softmax,
    lower_where,
    maximum,
    minimum,
)  # fmt: skip
from .cuda_expression import CudaExpression, absolute
from .row import Capturable, CudaNodes, CudaReduction, OpRow, Without, WorkspaceRule

ALWAYS: Final = Capturable.ALWAYS
READS_SCALARS: Final = Capturable.READS_SCALARS
DIRECT_CUBLAS: Final = Capturable.DIRECT_CUBLAS

SELDOM: Final = Without("seldom in a chain: its kernel computes it by itself")
LEFT_TO_CUPY: Final = Without("CuPy's kernel computes it by itself")
NO_CUDA_FUNCTION: Final = Without("CUDA has no such function: its kernel over CuPy composes it")
NO_COMPLEX: Final = Without("generated kernels know no complex numbers")
A_VIEW: Final = Without("its kernel gives a view, which costs nothing")
NOT_KNOWN: Final = Without("its kernel is not known to only launch")


def _ufunc(
    name: str, *, cuda: CudaExpression | Without, lower: Lowering | Without | None = None, exact_in_half: bool = False
) -> OpRow:
    """A row for an op that is one function of NumPy and CuPy of that name."""
    lower = lower or by_ufunc(getattr(np, name))
    return OpRow(ufunc(name), lower=lower, cuda=cuda, capturable=ALWAYS, exact_in_half=exact_in_half)


def _comparison(name: str, sign: str) -> OpRow:
    """A row for an op that compares its operands."""
    cuda = f"({{0}} {sign} {{1}})"
    return OpRow(ufunc(name), lower=by_ufunc(getattr(np, name)), cuda=cuda, capturable=ALWAYS, exact_scalar=True)


def _special(name: str, *, cuda: CudaExpression | Without) -> OpRow:
    """A row for an op that is one special function of SciPy and CuPy of that name."""
    return OpRow(special_function(name), lower=by_special_function(name), cuda=cuda, capturable=ALWAYS)


def _unfused(kernel: KernelFactory, *, capturable: Capturable | Without = NOT_KNOWN) -> OpRow:
    """A row for an element-wise op that no chain has."""
    return OpRow(kernel, lower=SELDOM, cuda=LEFT_TO_CUPY, capturable=capturable)


def _division(name: str, *, cuda: CudaExpression) -> OpRow:
    """A row for a division that refuses to divide integers by zero."""
    return OpRow(
        divide_integers(name), lower=by_ufunc(getattr(np, name)), cuda=cuda, capturable=ALWAYS, checks_integers=True
    )


def _shift(name: str) -> OpRow:
    """A row for a shift, by more bits than there are too."""
    return OpRow(
        shift(name), lower=by_ufunc(getattr(np, name)), cuda=f"{name}<{{t}}, {{u}}>({{0}}, {{1}})", capturable=NOT_KNOWN
    )


def _reduction(functor: str, kernel_of_sessions: KernelFactory | None = None) -> OpRow:
    """A row for a reduction; the second factory is that of deterministic sessions."""
    return OpRow(
        reduction,
        lower=lower_reduction,
        cuda=CudaReduction(functor),
        capturable=ALWAYS,
        deterministic=kernel_of_sessions,
        along_rows=True,
    )  # fmt: skip


def _softmax(nodes: str) -> OpRow:
    """A row for a softmax or its logarithm."""
    return OpRow(
        softmax,
        lower=lower_softmax,
        cuda=CudaNodes(nodes),
        capturable=ALWAYS,
        deterministic=deterministic.row_softmax,
        along_rows=True,
    )  # fmt: skip


def _scan(kernel: KernelFactory, workspace: WorkspaceRule) -> OpRow:
    """A row for what goes along an axis from its start."""
    return OpRow(kernel, workspace=workspace)


def _recurrent(kernel: KernelFactory) -> OpRow:
    return OpRow(
        kernel,
        capturable=DIRECT_CUBLAS,
        deterministic=deterministic.tiled_recurrence,
        workspace=workspace_size.recurrence,
    )


_MATRICES: Final = OpRow(linalg, deterministic=deterministic.small_matrices, workspace=workspace_size.linalg)
"""The row of what works on square or rectangular matrices by LAPACK."""


OP_TABLE: Final[dict[str, OpRow]] = {
    # creation
    "full": OpRow(full, cuda=CudaNodes("the scalar"), capturable=ALWAYS),
    "arange": OpRow(arange, capturable=ALWAYS),
    "uniform": OpRow(uniform, capturable=READS_SCALARS),
    "normal": OpRow(normal, capturable=READS_SCALARS),
    # element-wise, one operand
    "neg": _ufunc("negative", cuda="({t})-{0}", exact_in_half=True),
    "abs": _ufunc("absolute", cuda=absolute, exact_in_half=True),
    "sign": OpRow(sign, lower=lower_sign, cuda="sign<{t}>({0})", capturable=ALWAYS, exact_in_half=True),
    "exp": _ufunc("exp", cuda="exp({0})"),
    "exp2": _ufunc("exp2", cuda="exp2({0})"),
    "expm1": OpRow(expm1, lower=by_ufunc(np.expm1), cuda="expm1({0})", capturable=ALWAYS),
    "log": _ufunc("log", cuda="log({0})"),
    "log2": OpRow(log2, lower=by_ufunc(np.log2), cuda="log2({0})", capturable=ALWAYS),
    "log10": _ufunc("log10", cuda="log10({0})"),
    "log1p": _ufunc("log1p", cuda="log1p({0})"),
    "sqrt": _ufunc("sqrt", cuda="sqrt({0})"),
    "rsqrt": OpRow(rsqrt, lower=lower_rsqrt, cuda="{t}(1) / sqrt({0})", capturable=ALWAYS),
    "square": _ufunc("square", cuda="({t})({0} * {0})"),
    "reciprocal": _ufunc("reciprocal", cuda="{t}(1) / {0}"),
    "sin": _ufunc("sin", cuda="sin({0})"),
    "cos": _ufunc("cos", cuda="cos({0})"),
    "tan": _ufunc("tan", cuda="tan({0})"),
    "asin": _ufunc("arcsin", cuda="asin({0})"),
    "acos": _ufunc("arccos", cuda="acos({0})"),
    "atan": _ufunc("arctan", cuda="atan({0})"),
    "sinh": _ufunc("sinh", cuda="sinh({0})"),
    "cosh": _ufunc("cosh", cuda="cosh({0})"),
    "tanh": _ufunc("tanh", cuda="tanh({0})"),
    "asinh": _ufunc("arcsinh", cuda="asinh({0})"),
    "acosh": _ufunc("arccosh", cuda="acosh({0})"),
    "atanh": _ufunc("arctanh", cuda="atanh({0})"),
    "erf": OpRow(erf, lower=by_ufunc(erf_into), cuda="erf({0})", capturable=ALWAYS),
    "erfc": _special("erfc", cuda="erfc({0})"),
    "erfinv": _special("erfinv", cuda=LEFT_TO_CUPY),
    "lgamma": _special("gammaln", cuda="({0} == ({t})-INF ? {0} : lgamma({0}))"),
    "digamma": _special("digamma", cuda=LEFT_TO_CUPY),
    "dawsn": OpRow(dawson, lower=by_special_function("dawsn"), cuda=NO_CUDA_FUNCTION, capturable=NOT_KNOWN),
    "erfcx": _unfused(special_function("erfcx"), capturable=ALWAYS),
    "ndtri": _unfused(special_function("ndtri"), capturable=ALWAYS),
    "i0": _unfused(bessel("i0", np.inf, np.inf)),
    "i0e": _unfused(scaled_bessel("i0e", 0, -1)),
    "i1": _unfused(bessel("i1", np.inf, -np.inf)),
    "i1e": _unfused(scaled_bessel("i1e", 1, -1)),
    "bessel_j0": _unfused(bessel("j0", 0.0, 0.0)),
    "bessel_j1": _unfused(bessel("j1", 0.0, -0.0)),
    "bessel_y0": _unfused(bessel("y0", 0.0, np.nan)),
    "bessel_y1": _unfused(bessel("y1", 0.0, np.nan)),
    "k0": _unfused(special_function("k0")),
    "k0e": _unfused(scaled_bessel("k0e", 0, 1)),
    "k1": _unfused(special_function("k1")),
    "k1e": _unfused(scaled_bessel("k1e", 1, 1)),
    "sigmoid": OpRow(sigmoid, lower=lower_sigmoid, cuda="{t}(1) / ({t}(1) + exp(-{0}))", capturable=ALWAYS),
    "relu": OpRow(relu, lower=lower_relu, cuda="maximum<{t}>(({t})0, {0})", capturable=ALWAYS, exact_in_half=True),
    "floor": _ufunc("floor", cuda="floor({0})", exact_in_half=True),
    "ceil": _ufunc("ceil", cuda="ceil({0})", exact_in_half=True),
    "round": _ufunc("rint", cuda="rint({0})", exact_in_half=True),
    "trunc": _ufunc("trunc", cuda="trunc({0})", exact_in_half=True),
    "isnan": _ufunc("isnan", cuda="({0} != {0})"),
    "isfinite": _ufunc("isfinite", cuda="({0} - {0} == 0)"),
    "signbit": _ufunc("signbit", cuda="(copysign({t}(1), {0}) < 0)"),
    "conj": _ufunc("conjugate", cuda=NO_COMPLEX),
    "real": OpRow(part("real"), lower=A_VIEW, cuda=NO_COMPLEX, capturable=ALWAYS, is_view=True),
    "imag": OpRow(part("imag"), lower=A_VIEW, cuda=NO_COMPLEX, capturable=ALWAYS, is_view=True),
    "logical_not": _ufunc("logical_not", cuda="!{0}"),
    "bitwise_not": _ufunc("invert", cuda="({t})~{0}"),
    "cast": OpRow(cast, lower=by_ufunc(convert), cuda=CudaNodes("a conversion"), capturable=ALWAYS),
    "bitcast": OpRow(bitcast, capturable=ALWAYS),
    # element-wise, two operands that broadcast
    "add": _ufunc("add", cuda="({t})({0} + {1})"),
    "sub": _ufunc("subtract", cuda="({t})({0} - {1})"),
    "mul": _ufunc("multiply", cuda="({t})({0} * {1})"),
    "div": _ufunc("true_divide", cuda="({t})({0} / {1})"),
    "pow": OpRow(power, lower=by_ufunc(np.power), cuda="pow({0}, {1})", capturable=ALWAYS, checks_integers=True),
    "maximum": _ufunc("maximum", cuda="maximum<{t}>({0}, {1})", lower=by_ufunc(maximum), exact_in_half=True),
    "minimum": _ufunc("minimum", cuda="minimum<{t}>({0}, {1})", lower=by_ufunc(minimum), exact_in_half=True),
    "floor_divide": _division("floor_divide", cuda="floor_divide<{t}>({0}, {1})"),
    "remainder": _division("remainder", cuda="remainder_of<{t}>({0}, {1})"),
    "fmod": _division("fmod", cuda="fmod({0}, {1})"),
    "atan2": _ufunc("arctan2", cuda="atan2({0}, {1})"),
    "hypot": _ufunc("hypot", cuda="hypot({0}, {1})"),
    "copysign": _ufunc("copysign", cuda="copysign({0}, {1})", exact_in_half=True),
    "nextafter": _unfused(nextafter),
    "zeta": _unfused(special_function("zeta")),
    "gammainc": _unfused(incomplete_gamma("gammainc")),
    "gammaincc": _unfused(incomplete_gamma("gammaincc")),
    "gcd": _unfused(ufunc("gcd")),
    "eq": _comparison("equal", "=="),
    "ne": _comparison("not_equal", "!="),
    "lt": _comparison("less", "<"),
    "le": _comparison("less_equal", "<="),
    "gt": _comparison("greater", ">"),
    "ge": _comparison("greater_equal", ">="),
    "complex": OpRow(complex_, lower=SELDOM, cuda=NO_COMPLEX, capturable=ALWAYS),
    "logical_and": _ufunc("logical_and", cuda="({0} && {1})"),
    "logical_or": _ufunc("logical_or", cuda="({0} || {1})"),
    "logical_xor": _ufunc("logical_xor", cuda="({0} != {1})"),
    "bitwise_and": _ufunc("bitwise_and", cuda="({t})({0} & {1})"),
    "bitwise_or": _ufunc("bitwise_or", cuda="({t})({0} | {1})"),
    "bitwise_xor": _ufunc("bitwise_xor", cuda="({t})({0} ^ {1})"),
    "left_shift": _shift("left_shift"),
    "right_shift": _shift("right_shift"),
    # element-wise, three operands that broadcast
    "where": OpRow(
        where, lower=lower_where, cuda="({0} ? {1} : {2})", capturable=ALWAYS, reads_late=True, exact_scalar=True
    ),
    # reductions
    "sum": _reduction("Sum", deterministic.blocked_reduction),
    "prod": _reduction("Prod", deterministic.blocked_reduction),
    "max": _reduction("Max", deterministic.blocked_extreme),
    "min": _reduction("Min", deterministic.blocked_extreme),
    "any": _reduction("Any"),
    "all": _reduction("All"),
    "argmax": OpRow(arg, capturable=ALWAYS),
    "argmin": OpRow(arg, capturable=ALWAYS),
    # shape
    "reshape": OpRow(reshape, capturable=ALWAYS, is_view=True),
    "permute": OpRow(permute, capturable=ALWAYS, is_view=True),
    "expand": OpRow(expand, capturable=ALWAYS, is_view=True),
    "cat": OpRow(cat, capturable=ALWAYS),
    "slice": OpRow(slice_, capturable=ALWAYS, is_view=True),
    "update_slice": OpRow(update_slice, capturable=ALWAYS, in_place=partial(update_slice, own=True)),
    # indexing along one axis
    "gather": OpRow(gather, cuda=CudaNodes("the element of its row at an index"), capturable=ALWAYS),
    "scatter_add": OpRow(
        scatter_add,
        cuda=CudaNodes("its row, with a value added at an index"),
        capturable=ALWAYS,
        in_place=partial(scatter_add, own=True),
    ),
    "take": OpRow(take, capturable=ALWAYS),
    "segment_sum": OpRow(segment_sum, capturable=ALWAYS),
    "scatter": OpRow(scatter, capturable=ALWAYS, in_place=partial(scatter, own=True)),
    "flatnonzero": OpRow(flatnonzero),
    # along one axis
    "cumsum": _scan(cumulate, workspace_size.cumulate),
    "cumprod": _scan(cumulate, workspace_size.cumulate),
    "argcummax": _scan(cumulated, workspace_size.cumulated),
    "argcummin": _scan(cumulated, workspace_size.cumulated),
    "argsort": OpRow(argsort, workspace=workspace_size.argsort),
    "lexsort": OpRow(lexsort),
    "searchsorted": OpRow(searchsorted),
    # linear algebra
    "matmul": OpRow(matmul, capturable=DIRECT_CUBLAS, deterministic=deterministic.tiled_matmul),
    "linear_int8": OpRow(
        int8_product, deterministic=deterministic.tiled_linear_int8, workspace=workspace_size.int8_product
    ),
    "matmul_int8": OpRow(int8_product, workspace=workspace_size.int8_product),
    "solve": OpRow(solve, deterministic=deterministic.small_matrices, workspace=workspace_size.solve),
    "cholesky": _MATRICES,
    "inverse": _MATRICES,
    "det": _MATRICES,
    "slogdet": _MATRICES,
    "qr": _MATRICES,
    "svd": _MATRICES,
    "eigh": _MATRICES,
    "eig": _MATRICES,
    "lu": _MATRICES,
    "matrix_exp": _MATRICES,
    "permutation": OpRow(permutation),
    # Fourier transforms
    "fft": OpRow(fourier),
    "rfft": OpRow(fourier),
    "irfft": OpRow(fourier),
    # sliding windows
    "conv": OpRow(
        conv, capturable=DIRECT_CUBLAS, deterministic=deterministic.tiled_conv, workspace=workspace_size.conv
    ),
    "windows": OpRow(windows, capturable=ALWAYS, is_view=True),
    "overlap_add": OpRow(overlap_add, capturable=ALWAYS),
    "max_pool": OpRow(max_pool, capturable=ALWAYS, workspace=workspace_size.max_pool),
    "max_pool_grad": OpRow(max_pool_grad, capturable=ALWAYS, workspace=workspace_size.max_pool_grad),
    # composite
    "softmax": _softmax("e^(x − max) over its sum"),
    "log_softmax": _softmax("x − max − log Σ e^(x − max)"),
    "attention": OpRow(
        attention,
        capturable=DIRECT_CUBLAS,
        deterministic=deterministic.whole_attention,
        workspace=workspace_size.attention,
    ),
    "attention_grad": OpRow(
        attention_grad,
        capturable=DIRECT_CUBLAS,
        deterministic=deterministic.whole_attention,
        workspace=workspace_size.attention_grad,
    ),
    # recurrent layers
    **{op: _recurrent(recurrence) for op in ("lstm", "gru", "rnn")},
    **{op: _recurrent(recurrence_grad) for op in ("lstm_grad", "gru_grad", "rnn_grad")},
    # identities that carry meaning for the planner
    "tag": OpRow(same, capturable=ALWAYS, is_view=True),
    "follow": OpRow(same, capturable=ALWAYS, is_view=True),
    # an identity that looks at values
    "weight": OpRow(weight, capturable=ALWAYS),
}

# the same by facet

KERNELS: Final[dict[str, KernelFactory]] = {op: row.kernel for op, row in OP_TABLE.items()}
DETERMINISTIC_KERNELS: Final[dict[str, KernelFactory]] = {
    op: row.deterministic or row.kernel for op, row in OP_TABLE.items()
}
IN_PLACE_KERNELS: Final[dict[str, KernelFactory]] = {op: row.in_place for op, row in OP_TABLE.items() if row.in_place}
WORKSPACE_RULES: Final[dict[str, WorkspaceRule]] = {op: row.workspace for op, row in OP_TABLE.items() if row.workspace}
CPU_LOWERINGS: Final[dict[str, Lowering]] = {
    op: row.lower for op, row in OP_TABLE.items() if row.lower is not None and not isinstance(row.lower, Without)
}
CUDA_EXPRESSIONS: Final[dict[str, CudaExpression]] = {
    op: row.cuda for op, row in OP_TABLE.items() if isinstance(row.cuda, str) or callable(row.cuda)
}
CUDA_REDUCTIONS: Final[dict[str, str]] = {
    op: row.cuda.functor for op, row in OP_TABLE.items() if isinstance(row.cuda, CudaReduction)
}
CUDA_NODES: Final = frozenset(op for op, row in OP_TABLE.items() if isinstance(row.cuda, CudaNodes))
CAPTURABLE: Final[dict[str, Capturable]] = {
    op: row.capturable for op, row in OP_TABLE.items() if isinstance(row.capturable, Capturable)
}

ALONG_ROWS: Final = frozenset(op for op, row in OP_TABLE.items() if row.along_rows)
LATE_READERS: Final = frozenset(op for op, row in OP_TABLE.items() if row.reads_late)
CHECKED_INTEGERS: Final = frozenset(op for op, row in OP_TABLE.items() if row.checks_integers)
EXACT_IN_HALF: Final = frozenset(op for op, row in OP_TABLE.items() if row.exact_in_half)
EXACT_SCALARS: Final = frozenset(op for op, row in OP_TABLE.items() if row.exact_scalar)
VIEW_OPS: Final = frozenset(op for op, row in OP_TABLE.items() if row.is_view)


def workspace(call: KernelCall) -> int:
    """Bytes that the kernel of a call uses while it computes, at most; 0 for what is not known."""
    rule = WORKSPACE_RULES.get(call.op)
    return 0 if rule is None or call.blocks or not call.result.size else rule(call)
