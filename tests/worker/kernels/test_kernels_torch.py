"""Every op against PyTorch, which had no part in writing them: values, dtypes, and what happens to NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from one_kernel import ANY, COMPLEX, FLOATS, KINDS, NUMBERS, Array, run

from gt.ir import dtypes
from gt.ir.dtype_limits import finfo
from gt.ir.ops import OPS

torch = pytest.importorskip("torch")

SHAPES = ((), (7,), (3, 1, 5), (0, 4))


def make(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Small numbers of both signs, none of them 0, so that both sides divide and take powers alike."""
    numbers = np.random.default_rng(seed)
    if dtype in FLOATS:
        signed = np.asarray(numbers.uniform(0.25, 3, shape) * numbers.choice([-1, 1], shape))
        return signed.astype(dtypes.as_dtype(dtype).numpy)
    if dtype in COMPLEX:
        sizes, angles = numbers.uniform(0.5, 2, shape), numbers.uniform(-3, 3, shape)
        return np.asarray(sizes * np.exp(1j * angles)).astype(dtype)
    return np.asarray(numbers.integers(0 if dtype == "bool" else 1, 2 if dtype == "bool" else 5, shape)).astype(dtype)


def agree(out: Any, expected: Any, units: int = 64) -> None:
    mine = dtypes.as_dtype(out.dtype)
    assert (str(expected.dtype), tuple(expected.shape)) == (f"torch.{mine.name}", out.shape)
    work = torch.complex128 if mine.kind == "c" else torch.float64
    unit = (units // 4 if mine.kind == "f" else units) * finfo(mine).eps if mine.kind in "fc" else 0
    theirs = expected.resolve_conj().to(work).numpy()
    np.testing.assert_allclose(out.astype(theirs.dtype), theirs, rtol=unit, atol=unit)


def tensors(*arrays: Any) -> list[Any]:
    return [tensor(np.asarray(x)) if isinstance(x, (np.ndarray, np.generic)) else x for x in arrays]


def tensor(x: Array) -> Any:
    """The same numbers at PyTorch, which takes no bfloat16 from NumPy."""
    if dtypes.as_dtype(x.dtype) is dtypes.bfloat16:
        return torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(x))


SELDOM = (*FLOATS[:2], "uint16", "uint32", "uint64")
"""Dtypes that PyTorch does not have for every function: half precision and the larger unsigned integers."""
NAMES = {
    "mul": "mul", "div": "true_divide", "logical_and": "logical_and", "max": "amax", "min": "amin", "neg": "neg",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "k0": "modified_bessel_k0",
    "k0e": "scaled_modified_bessel_k0", "k1": "modified_bessel_k1", "k1e": "scaled_modified_bessel_k1",
}  # fmt: skip


SCIPY_ALONE = {"dawsn"}
"""Ops that PyTorch does not have; `test_kernels.py` compares them with SciPy."""


def theirs(name: str) -> Callable[..., Any]:
    known = NAMES.get(name, name)
    function: Callable[..., Any] = getattr(torch if hasattr(torch, known) else torch.special, known)
    return function


def has(name: str, *operands: Any) -> bool:
    """Whether PyTorch computes this; of several functions it has no half precision, of others no integers."""
    try:
        theirs(name)(*operands)
    except (NotImplementedError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.family == "unary" and name not in SCIPY_ALONE])
@pytest.mark.parametrize("shape", SHAPES)
def test_unary(name: str, shape: tuple[int, ...]) -> None:
    for dtype in KINDS[OPS[name].domain]:
        x = make(dtype, shape)
        if has(name, *tensors(x)):
            # of these PyTorch's are right to some twelve digits in float64, as far as 30-digit arithmetic can tell
            agree(
                run(name, x),
                theirs(name)(*tensors(x)),
                1 << 17 if name.startswith("bessel_") and dtype == "float64" else 64,
            )
        else:
            assert dtype in SELDOM, f"PyTorch does not compute {name} of {dtype}"


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.family == "binary"])
@pytest.mark.parametrize("shape", SHAPES)
def test_binary(name: str, shape: tuple[int, ...]) -> None:
    for dtype in KINDS[OPS[name].domain]:
        if name == "complex" and dtype in FLOATS[:2]:
            continue  # of which PyTorch makes complex32, and GT complex64
        x, y = make(dtype, shape), make(dtype, (5, *shape), 1)
        if has(name, *tensors(x, y)):
            agree(run(name, x, y), theirs(name)(*tensors(x, y)))
        else:
            assert dtype in SELDOM, f"PyTorch does not compute {name} of {dtype}"


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "floor_divide", "remainder", "eq", "lt", "ge"])
@pytest.mark.parametrize("number", [2, True, 0.5])
def test_python_scalars_leave_the_dtype_alone(name: str, number: Any) -> None:
    for dtype in KINDS[OPS[name].domain]:
        x = make(dtype, (3, 4))
        fits = dtype in FLOATS + COMPLEX or (not isinstance(number, float) and (dtype != "bool" or number is True))
        if fits:  # PyTorch refuses to subtract booleans
            expected = theirs(name)(*tensors(x), int(number) if number is True and name == "sub" else number)
            agree(run(name, x, number), expected)
            if name in ("add", "mul"):
                agree(run(name, number, x), expected)


def test_nan_wins() -> None:
    for dtype in FLOATS:
        x, y = make(dtype, (3, 4)), make(dtype, (3, 4), 1)
        x[0, 1], y[1, 2] = np.nan, np.nan
        for name in ("maximum", "minimum"):
            agree(run(name, x, y), theirs(name)(*tensors(x, y)))
        agree(run("relu", x), torch.relu(*tensors(x)))
        for name in ("max", "min"):
            agree(run(name, x, axes=(1,), keepdims=True), theirs(name)(*tensors(x), (1,), True))
        agree(run("argmax", x, axis=1, keepdims=False), torch.argmax(*tensors(x), 1))


def test_where_and_cast() -> None:
    for dtype in ANY:
        condition, x, y = make("bool", (4, 1)), make(dtype, (4, 5)), make(dtype, (5,), 1)
        agree(run("where", condition, x, y), torch.where(*tensors(condition, x, y)))
        if dtype in FLOATS + COMPLEX:
            agree(run("where", condition, x, 0.0), torch.where(*tensors(condition, x), 0.0))
        for to in dtypes.ALL_DTYPES:
            warns = dtype in COMPLEX and to.kind != "c"  # at PyTorch, which says that imaginary parts go
            if (
                dtype != "bool" and not warns and not (dtype in FLOATS and to is dtypes.uint8)
            ):  # C leaves −1.5 as uint8 undefined
                agree(run("cast", x, dtype=to), tensors(x)[0].to(getattr(torch, to.name)))


@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(axes: tuple[int, ...], keepdims: bool) -> None:
    for dtype in ANY:
        x = make(dtype, (3, 2, 4))
        (t,) = tensors(x)
        for name in ("max", "min", "any", "all", "sum", "prod"):
            if dtype not in KINDS[OPS[name].domain]:
                continue
            if name == "prod":
                x = x[:, :1, :1] if dtype in NUMBERS + COMPLEX else x
                expected = tensor(x)
                for axis in reversed(axes):
                    expected = torch.prod(expected, axis, keepdim=True, dtype=t.dtype)
                expected = (
                    expected if keepdims else expected.reshape([n for i, n in enumerate(x.shape) if i not in axes])
                )
            elif name == "sum":
                expected = torch.sum(t, axes, keepdims, dtype=t.dtype)
            else:
                expected = theirs(name)(t, axes, keepdims)
            agree(run(name, x, axes=axes, keepdims=keepdims), expected)


def test_long_sums_of_float16() -> None:
    x = make("float16", (3, 4096))
    agree(run("sum", x, axes=(1,), keepdims=False), torch.sum(*tensors(x), 1))


@pytest.mark.parametrize("axis", [0, 1])
def test_along_one_axis(axis: int) -> None:
    for dtype in FLOATS:
        x = make(dtype, (5, 6))
        (t,) = tensors(x)
        agree(run("softmax", x, axis=axis), torch.softmax(t, axis))
        agree(run("log_softmax", x, axis=axis), torch.log_softmax(t, axis))
    x = np.random.default_rng(0).permutation(30).reshape(5, 6)
    for name in ("argmax", "argmin"):
        agree(run(name, x, axis=axis, keepdims=False), theirs(name)(torch.from_numpy(x), axis))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("count", [1, 7])
def test_gather_and_scatter_add(axis: int, count: int) -> None:
    shape = (count, 6) if axis == 0 else (5, count)
    index = np.random.default_rng(0).integers(0, 5, shape)
    for dtype in NUMBERS + COMPLEX:
        x, value = make(dtype, (5, 6)), make(dtype, shape, 1)
        t, i, v = tensors(x, index, value)
        agree(run("gather", x, index, axis=axis), torch.gather(t, axis, i))
        if dtype not in ("float16", "bfloat16"):  # in which it adds them up
            agree(run("scatter_add", x, index, value, axis=axis), torch.scatter_add(t, axis, i, v))


@pytest.mark.parametrize("axis", [0, 1])
def test_take_and_segment_sum(axis: int) -> None:
    index = np.random.default_rng(0).integers(0, 5, 7)
    shape = (7, 6) if axis == 0 else (5, 7)
    for dtype in NUMBERS + COMPLEX:
        x, value = make(dtype, (5, 6)), make(dtype, shape, 1)
        t, i, v = tensors(x, index, value)
        agree(run("take", x, index, axis=axis), torch.index_select(t, axis, i))
        if dtype not in ("float16", "bfloat16"):  # in which it adds them up
            total = run("segment_sum", value, index, axis=axis, size=x.shape[axis])
            agree(total, torch.zeros_like(t).index_add(axis, i, v))


def test_shapes_and_matrices() -> None:
    for dtype in NUMBERS + COMPLEX:
        x, y = make(dtype, (2, 3, 4)), make(dtype, (4, 5), 1)
        t, u = tensors(x, y)
        agree(run("matmul", x, y), torch.matmul(t, u))
        agree(run("matmul", np.swapaxes(y, 0, 1), y), torch.matmul(u.T, u))
        agree(run("permute", x, axes=(2, 0, 1)), t.permute(2, 0, 1))
        agree(run("reshape", x, shape=(4, 6)), t.reshape(4, 6))
        agree(run("expand", y, shape=(3, 4, 5)), u.expand(3, 4, 5))
        agree(run("cat", x, x, axis=1), torch.cat([t, t], 1))
        agree(run("slice", x, 1, 0, axes=(1, 2), sizes=(2, 2), steps=(1, 2)), t[:, 1:3, 0:4:2])
