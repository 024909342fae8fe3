"""Products on tensor cores: what cuBLAS is asked for, in which precision, of matrices that lie in any way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from gpu.test_workers import connect

import gt
import gt.nn.functional as F
from gt.client.functional import attention
from gt.ir.dtypes import DType, bfloat16, float16, float32
from gt.worker.base import backend as backends
from gt.worker.base.backend import backend
from gt.worker.device.cublas import TENSOR_CORE_CAPABILITY, Gemm, merged

Array = np.ndarray[Any, Any]
STACKS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), ()), ((3,), (3,)), ((3,), ()), ((), (2, 3)), ((2, 3), (2, 3)), ((2, 1), (3,)), ((2, 1, 4), (2, 3, 4)), ((0,), (0,)),
]  # fmt: skip


XP: Any = backend("cuda:0").xp


class Product(NamedTuple):
    """What cuBLAS was asked for: in which precision, of which type, how many matrices."""

    compute: int
    kind: int
    count: int


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Product]]:
    """All that is asked of cuBLAS beside CuPy's own products, with CuPy as the only way to it."""
    found: list[Product] = []
    gemm = XP.cuda.cublas.gemmStridedBatchedEx

    def noting(*told: Any) -> None:
        gemm(*told)
        if told[21]:  # CuPy's own products of float32 say a type there
            found.append(Product(told[21], told[8], told[20]))

    def none() -> Any:
        raise ImportError("no cuBLAS but by CuPy")

    monkeypatch.setattr(XP.cuda.cublas, "gemmStridedBatchedEx", noting)
    monkeypatch.setattr(backends, "_cublas", none)
    yield found
    gt.disconnect()
    gt.set_float32_matmul_precision("highest")


def near_tf32(found: Array, a: Array, b: Array) -> None:
    """A product of matrices whose elements were read with 10 bits of fraction or more: of the other bits some kernels round, some
    cut off, and some read them all."""
    error = np.abs(found - np.matmul(a, b, dtype=np.float64))
    assert (error <= 2**-9 * np.matmul(np.abs(a), np.abs(b)) + 1e-6).all(), error.max()


def there(x: Array) -> Any:
    """An array of the device that lies there as this one does here."""
    root = x if x.base is None else x.base
    assert isinstance(root, np.ndarray)
    offset = x.ctypes.data - root.ctypes.data
    return XP.ndarray(x.shape, x.dtype, XP.asarray(root.ravel("K")).data + offset, x.strides)


def lain(x: Array, how: str) -> Array:
    """The same numbers, of which the matrices lie otherwise."""
    if how == "turned":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "cut":  # of wider rows
        wide = np.zeros((*x.shape[:-1], x.shape[-1] + 3), x.dtype)
        wide[..., 2:-1] = x
        return wide[..., 2:-1]
    if how == "heads" and x.ndim > 2:  # of a stack whose last dimension lay inside the rows
        return np.ascontiguousarray(np.moveaxis(x, -3, -2)).swapaxes(-3, -2)
    if how == "backwards":
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    return np.ascontiguousarray(x)


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=str)
@pytest.mark.parametrize("stacks", STACKS, ids=str)
def test_every_layout_is_multiplied_as_it_lies(stacks: tuple[tuple[int, ...], tuple[int, ...]], dtype: DType) -> None:
    source = np.random.default_rng(1)
    product = Gemm(XP, dtype)
    for m, k, n in ((4, 5, 6), (1, 5, 1), (3, 1, 2), (1, 1, 1), (2, 0, 3)):
        for first, second in itertools.product(("plain", "turned", "cut", "heads", "backwards"), repeat=2):
            a = lain(source.standard_normal((*stacks[0], m, k)).astype(dtype.numpy), first)
            b = lain(source.standard_normal((*stacks[1], k, n)).astype(dtype.numpy), second)
            expected = np.matmul(a.astype(np.float32), b.astype(np.float32))
            here = [there(a), there(b)]
            found = product(*here)
            assert (found.shape, found.dtype) == (expected.shape, dtype.numpy)
            if dtype is float32:
                near_tf32(found.get(), a, b)
            else:
                near = {float16: 2e-3, bfloat16: 1e-2}[dtype]
                np.testing.assert_allclose(found.get().astype(np.float32), expected, near, near)
            into = XP.asarray(
                np.full((*expected.shape[:-1], expected.shape[-1] + 1), np.nan, np.float32).astype(dtype.numpy)
            )
            whole = XP.asarray(np.full(expected.shape, 7).astype(dtype.numpy))
            for out in (whole, into[..., 1:]):
                assert product(*here, out=out) is out
                assert out.get().tobytes() == found.get().tobytes()


def test_a_stack_takes_one_call_where_its_steps_are_even(products: list[Product]) -> None:
    product = Gemm(XP, bfloat16)
    x = XP.asarray(np.ones((6, 4, 8, 8), bfloat16.numpy))
    for operands, calls in (
        ((x, x), 1),
        ((x.swapaxes(-1, -2), x), 1),
        ((x[:, :1], x), 4),
        ((x[:1], x), 6),
        ((x[0, 0], x), 1),
    ):
        products.clear()
        product(*operands)
        assert len(products) <= calls
    many = XP.asarray(np.ones((60, 2, 60, 3, 3), bfloat16.numpy))
    products.clear()
    product(many[:, :1], many)
    assert len(products) == 1, "copied rather than called for often"
    assert merged((2, 3, 4), [(12, 4, 1), (0, 0, 0)]) == ((24,), ((1,), (0,)))
    assert merged((2, 1, 4), [(5, 9, 1), (4, 9, 1)]) == ((2, 4), ((5, 1), (4, 1)))
    assert merged((), [(), ()]) == ((), ((), ()))


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_half_precision_in_stacks_goes_to_tensor_cores(
    dtype: DType, products: list[Product], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "FUSED_FROM_WEIGHTS", 1)
    connect(["cuda:0"])
    x = gt.tensor(np.random.default_rng(0).standard_normal((2, 3, 9, 8))).to(dtype.name)
    expected = np.matmul(*(y.to("float32").numpy() for y in (x, x.transpose(-1, -2))))
    np.testing.assert_allclose((x @ x.transpose(-1, -2)).to("float32").numpy(), expected, 1e-2, 1e-2)
    kind = {float16: 2, bfloat16: 14}[dtype]
    assert {(compute, of) for compute, of, _ in products} == {(68, kind)}
    products.clear()
    out = F.scaled_dot_product_attention(x.requires_grad_(), x, x, is_causal=True)
    out.sum().backward()
    found = [y.to("float32").numpy() for y in (out.detach(), x.grad)]
    assert {(compute, of) for compute, of, _ in products} == {(68, kind)}
    gt.disconnect()
    connect(["cpu"])
    again = gt.tensor(np.random.default_rng(0).standard_normal((2, 3, 9, 8)))
    again = again.to(dtype.name).requires_grad_()
    out = F.scaled_dot_product_attention(again, again, again, is_causal=True)
    out.sum().backward()
    for a, b in zip(found, (out.detach(), again.grad), strict=True):
        np.testing.assert_allclose(a, b.to("float32").numpy(), 6e-2, 6e-2)


def test_a_convolution_of_half_precision_loses_nothing_by_tf32(products: list[Product]) -> None:
    connect(["cuda:0"])
    x, w = (gt.tensor(np.random.default_rng(at).standard_normal((2, 3, 5, 5))).to("bfloat16") for at in range(2))
    found = F.conv2d(x, w[:, :, :2, :2]).to("float32").numpy()
    assert {(compute, of) for compute, of, _ in products} == {(77, 0)}
    expected = F.conv2d(x.to("float32"), w[:, :, :2, :2].to("float32"))
    np.testing.assert_array_equal(found, expected.to("bfloat16").to("float32").numpy())


def test_tf32_is_the_sessions_own_and_holds_from_then_on(
    products: list[Product], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the digits tell; a CPU computes in float32 whatever is said."""
    a = np.random.default_rng(0).standard_normal((33, 40)).astype(np.float32)
    exact = a @ a.T

    def product() -> Array:
        x = gt.tensor(a)
        return (x @ x.T).numpy()

    connect(["cuda:0"])
    np.testing.assert_allclose(product(), exact, 1e-5, 1e-5)
    assert gt.get_float32_matmul_precision() == "highest"
    assert not products
    gt.set_float32_matmul_precision("high")
    assert gt.get_float32_matmul_precision() == "high"
    assert gt.config.get("tf32") is True
    for _ in range(4):  # hot, too
        found = product()
        near_tf32(found, a, a.T)
        assert np.abs(found - exact).max() > 1e-4, "these are the digits of float32"
    assert {compute for compute, _, _ in products} == {77}
    gt.config.set({"tf32": False})
    np.testing.assert_allclose(product(), exact, 1e-5, 1e-5)
    gt.config.set({"tf32": True})
    gt.disconnect()
    monkeypatch.setattr("gt.service.in_process.DEFAULT_DEVICE", "cuda:0")
    gt.connect("inproc", workers=1)  # a new session begins with it
    near_tf32(product(), a, a.T)
    gt.disconnect()
    products.clear()
    monkeypatch.setattr("gt.service.in_process.DEFAULT_DEVICE", "cpu")
    gt.connect("inproc", workers=1)
    np.testing.assert_allclose(product(), exact, 1e-5, 1e-5)
    assert not products


def test_an_old_card_is_not_asked_for_what_it_lacks(products: list[Product], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Ampere there are tensor cores for float16 alone."""
    for dtype in (bfloat16, float32):
        monkeypatch.setitem(TENSOR_CORE_CAPABILITY, dtype, 1000)
    gt.set_float32_matmul_precision("high")
    connect(["cuda:0"])
    x = gt.ones(3, 4, 4)
    assert (x @ x).tolist() == (x.to("bfloat16") @ x.to("bfloat16")).tolist() == [[[4.0] * 4] * 4] * 3
    assert not products
    assert (x.to("float16") @ x.to("float16")).tolist() == [[[4.0] * 4] * 4] * 3
    assert len(products) == 1
