"""Type promotion and casts against PyTorch, for every pair of dtypes and for Python's numbers."""

import itertools

import pytest
from function_inputs import INTS, OPERATORS, X, both, torch

import gt
from gt.ir.dtypes import ALL_DTYPES

pytestmark = pytest.mark.usefixtures("session")


COMMON = [dtype for dtype in ALL_DTYPES if dtype not in (gt.uint16, gt.uint32, gt.uint64)]
"""What PyTorch computes with: of large unsigned integers it knows little more than how to store them."""
DTYPE_PAIRS = list(itertools.product(COMMON, COMMON))


@pytest.mark.parametrize("symbol", ["+", "*", "/", "==", "-"])
def test_promotion_is_pytorchs_for_every_pair_of_dtypes(symbol: str) -> None:
    function = OPERATORS[symbol]
    for (a, b), dims in itertools.product(DTYPE_PAIRS, itertools.product([(2,), ()], repeat=2)):
        if gt.float16 in (a, b) and (a.is_complex or b.is_complex):  # PyTorch has a complex dtype of half precision
            continue
        ours = [gt.ones(shape, dtype=dtype) for dtype, shape in zip((a, b), dims, strict=True)]
        yours = [torch.ones(shape, dtype=getattr(torch, dtype.name)) for dtype, shape in zip((a, b), dims, strict=True)]
        if symbol == "-" and "b" in (a.kind, b.kind):  # which PyTorch refuses wherever a boolean is
            if a is b:
                with pytest.raises(gt.DTypeError):
                    function(*ours)
            continue
        got, want = function(*ours), function(*yours)
        assert got.dtype.name == str(want.dtype).removeprefix("torch."), (a, b, dims)
        assert got.shape == tuple(want.shape)
        assert gt.promote_types(a, b).name == str(torch.promote_types(*[y.dtype for y in yours])).removeprefix("torch.")


@pytest.mark.parametrize("symbol", ["+", "*", "/", "<"])
def test_promotion_with_python_numbers_is_pytorchs(symbol: str) -> None:
    function = OPERATORS[symbol]
    for dtype, shape, scalar in itertools.product(COMMON, [(2,), ()], [True, 2, 2.0, 2 - 1j]):
        if symbol == "<" and (dtype.is_complex or type(scalar) is complex):
            continue  # which have no order
        if dtype is gt.float16 and type(scalar) is complex:
            continue  # PyTorch has a complex dtype of half precision
        ours, yours = gt.ones(shape, dtype=dtype), torch.ones(shape, dtype=getattr(torch, dtype.name))
        for got, want in (
            (function(ours, scalar), function(yours, scalar)),
            (function(scalar, ours), function(scalar, yours)),
        ):
            assert got.dtype.name == str(want.dtype).removeprefix("torch."), (dtype, shape, scalar)


def test_numbers_that_do_not_fit_are_refused_at_once() -> None:
    with pytest.raises(gt.DTypeError, match=r"add: 300 does not fit gt.uint8"):
        gt.ones(2, dtype=gt.uint8) + 300
    with pytest.raises(gt.DTypeError, match="sub"):
        gt.ones(2, dtype=bool) - gt.ones(2, dtype=bool)
    with pytest.raises(TypeError):
        gt.ones(2) + "text"
    with pytest.raises(gt.DTypeError, match="neither a tensor nor a number"):
        gt.add(gt.ones(2), "text")
    assert (gt.ones(2) == "text") is False


def test_casts_agree_and_the_methods_are_named_after_dtypes() -> None:
    names = ["float", "double", "half", "long", "int", "short", "bool"]
    for name in names:
        both(lambda x, n=name: getattr(x, n)(), lambda x, n=name: getattr(x, n)(), X * 3, rtol=1e-3)
    x = gt.tensor(X)
    assert x.to(gt.float32) is x
    assert x.to("gt") is x
    assert x.to("cpu", gt.float64).dtype is gt.float64
    assert x.to(dtype=gt.int32).dtype is gt.int32
    assert x.type_as(gt.tensor(INTS)).dtype is gt.int64
    assert x.to(gt.tensor(INTS)).dtype is gt.int64
