"""Kernels of a deterministic session: the right values, and bits that do not depend on what else is in the array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from one_kernel import COMPLEX, FLOATS, KINDS, Array, check, elements, few, filled, operand_of, wide

from gt.ir.dtype_limits import finfo
from gt.ir.dtypes import as_dtype
from gt.ir.infer import infer
from gt.ir.ops import OPS
from gt.worker.base.kernel_call import KernelCall
from gt.worker.kernels.deterministic import COMPLEX_TILE_SIZE, TILE_SIZE
from gt.worker.op_table.op_table import DETERMINISTIC_KERNELS, KERNELS

ROUNDING = sorted(name for name, op in OPS.items() if op.family in ("unary", "binary") and op.result != "bool")
FLOATING = [name for name in ROUNDING if OPS[name].domain != "bool"]


def blocked(name: str, *operands: Any, blocks: int = 8, **attributes: Any) -> Any:
    specs = tuple(map(operand_of, operands))
    (result,) = infer(name, specs, attributes)
    box = tuple((0, size) for size in result.shape)
    with np.errstate(all="ignore"):
        out = DETERMINISTIC_KERNELS[name](
            KernelCall(np, name, attributes, specs, result, result.shape, box, blocks=blocks)
        )(*operands)
    assert (out.dtype, out.shape) == (result.dtype.numpy, result.shape)
    return out


def test_only_what_rounds_has_a_kernel_of_its_own() -> None:
    own = {name for name in OPS if DETERMINISTIC_KERNELS[name] is not KERNELS[name]}
    matrices = {"solve"} | {name for name, op in OPS.items() if op.family == "linalg"}
    attention = {"attention", "attention_grad"}
    recurrent = {name for name, op in OPS.items() if op.family in ("recurrence", "recurrence_grad")}
    sums = {"sum", "prod", "max", "min", "softmax", "log_softmax", "matmul", "linear_int8", "conv"}
    assert own == sums | attention | recurrent | matrices


@few
@given(st.sampled_from(("sum", "prod", "max", "min")), st.sampled_from(FLOATS + COMPLEX), st.data())
def test_reductions(name: str, dtype: str, data: st.DataObject) -> None:
    name = "sum" if name in ("max", "min") and dtype in COMPLEX else name
    x = data.draw(filled(dtype, hnp.array_shapes(min_dims=1, max_dims=3, max_side=20)))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, x.ndim - 1), min_size=1))))
    keepdims = data.draw(st.booleans())
    out = blocked(name, x, axes=axes, keepdims=keepdims)
    with np.errstate(all="ignore"):
        largest = float(np.abs(wide(x)).sum(axes).max(initial=1.0)) if name == "sum" else 1.0
        expected = getattr(np, name)(wide(x), axis=axes, keepdims=keepdims)
    if name == "prod" or not np.isfinite(largest):
        if dtype in FLOATS:
            np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    else:
        unit = 64 * finfo(dtype).eps
        np.testing.assert_allclose(wide(out), wide(expected.astype(out.dtype)), rtol=unit, atol=unit * largest)


@few
@given(
    st.sampled_from(FLOATS + COMPLEX),
    *[st.integers(1, 200)] * 3,
    st.sampled_from((1, 8, 32)),
)
def test_products(dtype: str, m: int, k: int, n: int, blocks: int) -> None:
    draws = np.random.default_rng([m, k, n])
    kind, turn = as_dtype(dtype).numpy, 1j if dtype in COMPLEX else 0
    a = (draws.standard_normal((2, m, k)) + turn * draws.standard_normal(k)).astype(kind)
    b = (draws.standard_normal((k, n)) - turn * draws.standard_normal(n)).astype(kind)
    out = blocked("matmul", a, b, blocks=blocks)
    expected = wide(a) @ wide(b)
    unit = (16 if dtype in COMPLEX else 4) * finfo(dtype).eps
    np.testing.assert_allclose(wide(out), expected, rtol=unit, atol=unit * k**0.5 * 4)


@few
@given(st.sampled_from(("softmax", "log_softmax")), st.sampled_from(FLOATS), st.data())
def test_softmax_of_each_row_by_itself(name: str, dtype: str, data: st.DataObject) -> None:
    x = data.draw(filled(dtype, st.tuples(st.integers(1, 5), st.integers(1, 40))))
    out = blocked(name, x, axis=1)
    with np.errstate(all="ignore"):
        check(out, KERNELS[name](_call(name, x, axis=1))(x))
    for row in range(len(x)):
        assert blocked(name, x[row : row + 1].copy(), axis=1).tobytes() == out[row].tobytes()
    assert blocked(name, x.T.copy(), axis=0).T.tobytes() == out.tobytes()


def _call(name: str, *operands: Any, **attributes: Any) -> KernelCall:
    specs = tuple(map(operand_of, operands))
    (result,) = infer(name, specs, attributes)
    return KernelCall(np, name, attributes, specs, result, result.shape, tuple((0, size) for size in result.shape))


def test_no_tile_is_large_enough_for_threads() -> None:
    """OpenBLAS uses one thread for up to 262,144 multiplications, of complex numbers 32,768."""
    assert TILE_SIZE**3 <= 262_144
    assert COMPLEX_TILE_SIZE**3 <= 32_768


@pytest.mark.parametrize("name", FLOATING)
def test_elementwise_kernels_need_no_blocks(name: str) -> None:
    """Wherever an element lies, however many there are and however they lie in memory, it gets the same bits."""
    draws = np.random.default_rng(0)
    arity = OPS[name].arity or 1
    for dtype in [kind for kind in KINDS[OPS[name].domain] if kind in FLOATS + COMPLEX]:
        whole = [_varied(draws, dtype) for _ in range(arity)]
        expected = _bits(blocked(name, *whole))
        for _ in range(60):
            first = int(draws.integers(0, 256))
            part = slice(first, first + int(draws.integers(1, 40)), int(draws.choice([1, 1, 2, 3])))
            operands = [_laid(x[part], int(draws.integers(0, 4))) for x in whole]
            np.testing.assert_array_equal(_bits(blocked(name, *operands)), expected[part], f"{name} of {dtype}")


def _varied(draws: np.random.Generator, dtype: str) -> Array:
    """Numbers among which are all that kernels treat apart."""
    special = np.array([0.0, -0.0, 2.0, 0.5, 1, -1, 3, -2, np.inf, -np.inf, np.nan])
    x = np.where(draws.random(257) < 0.4, draws.choice(special, 257), draws.standard_normal(257) * 3)
    if dtype in COMPLEX:
        x = np.stack([x, draws.permutation(x)], -1).view(np.complex128)[:, 0]
    return x.astype(as_dtype(dtype).numpy)


def _laid(x: Array, how: int) -> Array:
    """The same numbers, otherwise in memory."""
    if how == 0:
        return x
    room = np.zeros((len(x) + 1, 3), x.dtype)
    if how == 1:
        room[1:, 1] = x
        return room[1:, 1]
    return np.ascontiguousarray(x) if how == 2 else np.concatenate([x[:1], x])[1:]


def _bits(x: Array) -> Array:
    """What can be compared: all NaN are one."""
    x = np.array(x)
    x[np.isnan(x)] = 0
    return x.view(np.uint8).reshape(*x.shape, x.itemsize)


@few
@given(hnp.arrays("float32", st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=elements("float32")), st.data())
def test_sums_by_index_do_not_depend_on_how_many_columns_there_are(x: Array, data: st.DataObject) -> None:
    index = data.draw(hnp.arrays("int64", len(x), elements=st.integers(0, 5)))
    whole = blocked("segment_sum", x, index, axis=0, size=6)
    for column in range(x.shape[1]):
        alone = blocked("segment_sum", np.ascontiguousarray(x[:, [column]]), index, axis=0, size=6)
        np.testing.assert_array_equal(_bits(alone[:, 0]), _bits(np.ascontiguousarray(whole[:, column])))
