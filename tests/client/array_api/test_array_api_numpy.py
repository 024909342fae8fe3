"""Every function of the Array API namespace beside NumPy's of the same name: dtypes, shapes and values.

NumPy's main namespace keeps the standard since version 2.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import array_api_standard as standard
import numpy as np
import pytest
from beside_numpy import both

import gt.array_api as xp
from gt.ir.dtypes import DType

pytestmark = pytest.mark.usefixtures("shared")

DTYPES = [getattr(xp, name) for name in standard.DTYPES]
KINDS = {
    kind: [dtype for dtype in DTYPES if dtype.kind in kind]
    for kind in ("b", "i", "f", "c", "if", "fc", "ifc", "bifc", "bi")
}
R = np.random.default_rng(7)


def numbers(dtype: DType, *shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Numbers that every function takes: small, of both signs where there are two, none of them 0."""
    draws = np.random.default_rng(seed)
    if dtype.kind == "b":
        return np.asarray(draws.integers(0, 2, shape)).astype(bool)
    if dtype.kind == "i":
        return np.asarray(draws.integers(1, 5, shape)).astype(dtype.numpy)
    x = draws.uniform(0.1, 0.9, shape) * draws.choice([-1, 1], shape)
    return np.asarray(x * np.exp(2j * draws.uniform(-1, 1, shape)) if dtype.kind == "c" else x).astype(dtype.numpy)


# element-wise

UNARY = {
    **dict.fromkeys(
        ("abs", "conj", "isfinite", "isinf", "isnan", "negative", "positive", "real", "round", "sign", "square"), "ifc",
    ),
    **dict.fromkeys(("ceil", "floor", "trunc"), "if"),
    **dict.fromkeys(
        ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log10", "log1p", "log2",
         "reciprocal", "sin", "sinh", "sqrt", "tan", "tanh"), "fc",
    ),
    "signbit": "f", "imag": "c", "bitwise_invert": "bi", "logical_not": "b",
}  # fmt: skip
BINARY = {
    **dict.fromkeys(("add", "subtract", "multiply"), "ifc"),
    **dict.fromkeys(("equal", "not_equal"), "bifc"),
    **dict.fromkeys(("maximum", "minimum", "less", "less_equal", "greater", "greater_equal", "floor_divide", "remainder"), "if"),
    **dict.fromkeys(("atan2", "copysign", "hypot", "logaddexp", "nextafter"), "f"),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), "bi"),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), "i"),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), "b"),
    "divide": "fc", "pow": "ifc",
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tensor(name: str) -> None:
    for dtype, shape in itertools.product(KINDS[UNARY[name]], ((3, 4), (), (0, 2))):
        x = numbers(dtype, *shape)
        if name in ("log", "log2", "log10", "log1p", "sqrt") and dtype.kind == "f":
            x = np.asarray(np.abs(x))
        if name == "acosh" and dtype.kind == "f":
            x = np.asarray(1 + np.abs(x))
        both(lambda lib, x: getattr(lib, name)(x), x)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tensors(name: str) -> None:
    """Of every dtype, broadcast, and with a Python number on either side."""
    for dtype in KINDS[BINARY[name]]:
        x, y = numbers(dtype, 3, 1, seed=1), numbers(dtype, 4, seed=2)
        if name == "pow" and dtype.kind == "f":
            x = np.abs(x)
        number = {"b": True, "i": 3, "f": 0.5, "c": 0.5 - 1j}[dtype.kind]
        for a, b in ((x, y), (x[0, 0].reshape(()), y), (x, number), (number, x)):
            both(lambda lib, *given: getattr(lib, name)(*given), a, b)


# everything else: one line for each

M = R.standard_normal((3, 4))
S = R.standard_normal((2, 3, 3)) + 3 * np.eye(3)
H = S @ S.swapaxes(-1, -2)
V = R.standard_normal((2, 3))
W = R.standard_normal((2, 3))
Z = R.standard_normal((3, 4)) + 1j * R.standard_normal((3, 4))
U = np.array([200, 100, 3], np.uint8)
I = R.integers(-4, 5, (3, 4)).astype(np.int16)  # noqa: E741
B = M > 0
D = np.array([2.0, -1.0, 2.0, 0.0, 3.0, -1.0, 2.0])
CALLS: dict[str, list[tuple[Any, ...]]] = {
    "arange": [
        (lambda xp: xp.arange(5),),
        (lambda xp: xp.arange(7, 1, -2, dtype=xp.int8),),
        (lambda xp: xp.arange(3, 1),),
    ],
    "asarray": [(lambda xp: xp.asarray([[1, 2], [3, 4]]),), (lambda xp: xp.asarray([2**64 - 1, 1], dtype=xp.uint64),)],
    "empty": [(lambda xp: 0 * xp.empty((2, 3), dtype=xp.float64),)],
    "empty_like": [(lambda xp, x: 0 * xp.empty_like(x), I)],
    "eye": [(lambda xp: xp.eye(3, 4, k=-1, dtype=xp.float64),), (lambda xp: xp.eye(2, k=5, dtype=xp.int32),)],
    "full": [(lambda xp: xp.full((2,), 3),), (lambda xp: xp.full((), True),)],
    "full_like": [(lambda xp, x: xp.full_like(x, 7), I), (lambda xp, x: xp.full_like(x, 7, dtype=xp.float32), I)],
    "linspace": [
        (lambda xp: xp.linspace(0, 3, 7, dtype=xp.float64),),
        (lambda xp: xp.linspace(1.0, 2.0, 5, endpoint=False, dtype=xp.float32),),
        (lambda xp: xp.linspace(1 - 1j, 2j, 5, dtype=xp.complex128),),
    ],
    "meshgrid": [(lambda xp, x, y: list(xp.meshgrid(x, y)), D[:2], D[:3])],
    "ones": [(lambda xp: xp.ones((2, 3), dtype=xp.uint16),)],
    "ones_like": [(lambda xp, x: xp.ones_like(x), I)],
    "tril": [(lambda xp, x: xp.tril(x, k=1), S)],
    "triu": [(lambda xp, x: xp.triu(x, k=-1), I)],
    "zeros": [(lambda xp: xp.zeros(3, dtype=xp.complex64),)],
    "zeros_like": [(lambda xp, x: xp.zeros_like(x, dtype=xp.bool), I)],
    "astype": [
        (lambda xp, x, to=to: xp.astype(x, getattr(xp, to)), U) for to in ("int16", "float32", "uint64", "bool")
    ],
    "clip": [
        (lambda xp, x: xp.clip(x, -1, 2), I),
        (lambda xp, x, y: xp.clip(x, max=y), M, M[0]),
        (lambda xp, x: xp.clip(x), I),
    ],
    "take": [(lambda xp, x, i: xp.take(x, i, axis=1), M, np.array([3, 0, 3]))],
    "take_along_axis": [(lambda xp, x, i: xp.take_along_axis(x, i, axis=0), M, np.array([[2, 0, 1, 1]]))],
    "matmul": [(lambda xp, x, y: xp.matmul(x, y), S, V[..., None]), (lambda xp, x, y: xp.matmul(x, y), S, V[0])],
    "matrix_transpose": [(lambda xp, x: xp.matrix_transpose(x), S)],
    "tensordot": [
        (lambda xp, x, y: xp.tensordot(x, y, axes=1), M.T, V.T),
        (lambda xp, x, y: xp.tensordot(x, y, axes=((1, 0), (2, 0))), V, S),
    ],
    "vecdot": [(lambda xp, x, y: xp.vecdot(x, y, axis=-2), Z, M), (lambda xp, x, y: xp.vecdot(x, y), U, U)],
    "broadcast_arrays": [(lambda xp, x, y: list(xp.broadcast_arrays(x, y)), M, M[0])],
    "broadcast_to": [(lambda xp, x: xp.broadcast_to(x, (2, 3, 4)), M)],
    "concat": [
        (lambda xp, x, y: xp.concat((x, y), axis=None), I, M),
        (lambda xp, x, y: xp.concat([x, y], axis=-1), M, M),
    ],
    "expand_dims": [(lambda xp, x: xp.expand_dims(x, axis=-2), M)],
    "flip": [(lambda xp, x: xp.flip(x), M), (lambda xp, x: xp.flip(x, axis=(0,)), M)],
    "moveaxis": [(lambda xp, x: xp.moveaxis(x, (0, 1), (-1, 0)), S)],
    "permute_dims": [(lambda xp, x: xp.permute_dims(x, (2, 0, 1)), S)],
    "repeat": [
        (lambda xp, x: xp.repeat(x, 2, axis=1), I),
        (lambda xp, x, n: xp.repeat(x, n, axis=0), I, np.array([1, 0, 2])),
        (lambda xp, x: xp.repeat(x, 2), I),
    ],
    "reshape": [(lambda xp, x: xp.reshape(x, (2, -1)), M), (lambda xp, x: xp.reshape(x, (12,), copy=True), M)],
    "roll": [
        (lambda xp, x: xp.roll(x, 2), M),
        (lambda xp, x: xp.roll(x, (1, -1), axis=(0, 1)), M),
        (lambda xp, x: xp.roll(x, 1, axis=(0, 1)), M),
    ],
    "squeeze": [(lambda xp, x: xp.squeeze(x, axis=(0, 2)), M[None, :, None])],
    "stack": [(lambda xp, x, y: xp.stack((x, y), axis=-1), M, M)],
    "tile": [(lambda xp, x: xp.tile(x, (2, 1, 3)), M)],
    "unstack": [(lambda xp, x: tuple(xp.unstack(x, axis=1)), M)],
    "argmax": [(lambda xp, x: xp.argmax(x), M), (lambda xp, x: xp.argmax(x, axis=1, keepdims=True), I)],
    "argmin": [(lambda xp, x: xp.argmin(x), M), (lambda xp, x: xp.argmin(x, axis=0), I)],
    "count_nonzero": [
        (lambda xp, x: xp.count_nonzero(x, axis=1, keepdims=True), I),
        (lambda xp, x: xp.count_nonzero(x, axis=()), I),
    ],
    "nonzero": [(lambda xp, x: xp.nonzero(x), I)],
    "searchsorted": [
        (lambda xp, x, y: xp.searchsorted(x, y, side="right"), np.sort(D), M),
        (lambda xp, x, y, o: xp.searchsorted(x, y, sorter=o), D, D, np.argsort(D)),
    ],
    "where": [
        (lambda xp, c, x: xp.where(c, x, 0), B, I),
        (lambda xp, c, x, y: xp.where(c, x, y), B, I, M[0].astype(np.int8)),
    ],
    "unique_all": [(lambda xp, x: xp.unique_all(x), D), (lambda xp, x: xp.unique_all(x), I)],
    "unique_counts": [(lambda xp, x: xp.unique_counts(x), I)],
    "unique_inverse": [(lambda xp, x: xp.unique_inverse(x), I)],
    "unique_values": [(lambda xp, x: xp.unique_values(x), U)],
    "argsort": [(lambda xp, x: xp.argsort(x, axis=0, stable=True), I), (lambda xp, x: xp.argsort(x, stable=True), D)],
    "sort": [(lambda xp, x: xp.sort(x, axis=0), I), (lambda xp, x: xp.sort(x), M)],
    **{
        name: [
            (lambda xp, x, name=name: getattr(xp, name)(x, axis=0, include_initial=True), x) for x in (I, U[:, None], M)
        ]
        for name in ("cumulative_sum", "cumulative_prod")
    },
    **{
        name: [
            (lambda xp, x, name=name, axis=axis: getattr(xp, name)(x, axis=axis, keepdims=True), x)
            for x in (I, M)
            for axis in (None, 0, (0, 1), ())
        ]
        for name in ("max", "min")
    },
    **{
        name: [
            (lambda xp, x, name=name, axis=axis: getattr(xp, name)(x, axis=axis), x)
            for x in (I, U[None], M, Z.astype(np.complex64))
            for axis in (None, 1, (0, 1), ())
        ]
        for name in ("sum", "prod")
    },
    **{
        name: [
            (lambda xp, x, name=name, axis=axis: getattr(xp, name)(x, axis=axis), x)
            for x in (M.astype(np.float32), M)
            for axis in (None, 1, ())
        ]
        for name in ("mean", "std", "var")
    },
    **{
        name: [
            (lambda xp, x, name=name, axis=axis: getattr(xp, name)(x, axis=axis), x)
            for x in (B, U[None], I)
            for axis in (None, 1, ())
        ]
        for name in ("all", "any")
    },
    "diff": [
        (lambda xp, x: xp.diff(x, axis=0, n=2), M),
        (lambda xp, x, y: xp.diff(x, prepend=y, append=y), I, I[:, :1]),
    ],
}
LINALG: dict[str, list[tuple[Any, ...]]] = {
    "cholesky": [(lambda xp, x: xp.linalg.cholesky(x), H), (lambda xp, x: xp.linalg.cholesky(x, upper=True), H)],
    "cross": [(lambda xp, x, y: xp.linalg.cross(x, y), V, W[0])],
    "det": [(lambda xp, x: xp.linalg.det(x), S)],
    "diagonal": [(lambda xp, x: xp.linalg.diagonal(x, offset=1), S)],
    "eigh": [(lambda xp, x: xp.linalg.eigh(x).eigenvalues, H)],
    "eigvalsh": [(lambda xp, x: xp.linalg.eigvalsh(x), H)],
    "inv": [(lambda xp, x: xp.linalg.inv(x), S)],
    "matmul": [(lambda xp, x, y: xp.linalg.matmul(x, y), S, H)],
    "matrix_norm": [
        (lambda xp, x, o=o: xp.linalg.matrix_norm(x, ord=o, keepdims=True), S) for o in ("fro", "nuc", 1, -2, math.inf)
    ],
    "matrix_power": [(lambda xp, x, n=n: xp.linalg.matrix_power(x, n), S) for n in (0, 3, -1)],
    "matrix_rank": [(lambda xp, x: xp.linalg.matrix_rank(x), np.array([[1.0, 2], [2, 4]]))],
    "matrix_transpose": [(lambda xp, x: xp.linalg.matrix_transpose(x), S)],
    "outer": [(lambda xp, x, y: xp.linalg.outer(x, y), V[0], D)],
    "pinv": [(lambda xp, x: xp.linalg.pinv(x), M)],
    "qr": [(lambda xp, x: xp.linalg.qr(x, mode="complete"), M)],
    "slogdet": [(lambda xp, x: xp.linalg.slogdet(x), S)],
    "solve": [
        (lambda xp, x, y: xp.linalg.solve(x, y), S, V[0]),
        (lambda xp, x, y: xp.linalg.solve(x, y), S[:, None], V[:, :, None]),
    ],
    "svd": [(lambda xp, x: xp.linalg.svd(x, full_matrices=False).S, M)],
    "svdvals": [(lambda xp, x: xp.linalg.svdvals(x), M)],
    "tensordot": [(lambda xp, x, y: xp.linalg.tensordot(x, y), S, S[0])],
    "trace": [(lambda xp, x: xp.linalg.trace(x, offset=-1), S)],
    "vecdot": [(lambda xp, x, y: xp.linalg.vecdot(x, y), Z, Z)],
    "vector_norm": [
        (lambda xp, x, o=o, a=a: xp.linalg.vector_norm(x, axis=a, ord=o), Z)
        for o in (0, 1, 2, 3, math.inf)
        for a in (None, 1, (0, 1))
    ],
}
FFT: dict[str, list[tuple[Any, ...]]] = {
    **{
        name: [
            (lambda xp, x, name=name, n=n: getattr(xp.fft, name)(x, n=n, axis=0, norm="ortho"), Z) for n in (None, 2, 5)
        ]
        for name in ("fft", "ifft", "hfft")
    },
    **{name: [(lambda xp, x, name=name: getattr(xp.fft, name)(x, axis=-1), M)] for name in ("rfft", "ihfft")},
    "irfft": [(lambda xp, x: xp.fft.irfft(x, n=7), Z), (lambda xp, x: xp.fft.irfft(x), Z.astype(np.complex64))],
    **{
        name: [(lambda xp, x, name=name: getattr(xp.fft, name)(x, axes=(0, 1)), Z)]
        for name in ("fftn", "ifftn", "irfftn")
    },
    "rfftn": [(lambda xp, x: xp.fft.rfftn(x, s=(2, 4), axes=(0, 1)), M)],
    "fftfreq": [(lambda xp: xp.astype(xp.fft.fftfreq(5, d=0.5), xp.float32),)],
    "rfftfreq": [(lambda xp: xp.astype(xp.fft.rfftfreq(6, d=0.25), xp.float32),)],
    "fftshift": [(lambda xp, x: xp.fft.fftshift(x, axes=(1,)), M)],
    "ifftshift": [(lambda xp, x: xp.fft.ifftshift(x), M)],
}
IN_WORDS = {"can_cast", "finfo", "from_dlpack", "iinfo", "isdtype", "result_type"}
"""What gives no tensors, or NumPy has otherwise: each has a test of its own in `test_array_api.py`."""


def test_no_function_is_left_out() -> None:
    assert {*UNARY, *BINARY, *CALLS, *IN_WORDS} == set(standard.signatures(standard.FUNCTIONS))
    assert set(LINALG) == set(standard.signatures(standard.LINALG))
    assert set(FFT) == set(standard.signatures(standard.FFT))


@pytest.mark.parametrize("name", CALLS)
def test_a_function_does_as_numpys(name: str) -> None:
    for call, *arrays in CALLS[name]:
        both(call, *arrays)


@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra_does_as_numpys(name: str) -> None:
    for call, *arrays in LINALG[name]:
        both(call, *arrays)


@pytest.mark.parametrize("name", FFT)
def test_fourier_transforms_do_as_numpys(name: str) -> None:
    for call, *arrays in FFT[name]:
        both(call, *arrays)
