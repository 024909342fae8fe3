"""Tensors out of numbers, arrays and nothing; random numbers; printing; and the way back to the program's memory."""

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from beside_torch import needs_torch

import gt
from gt.ir.dtypes import ALL_DTYPES

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.usefixtures("session")


def agree(ours: gt.Tensor, theirs: Any) -> None:
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    assert ours.shape == tuple(theirs.shape)
    theirs = theirs.to(torch.float32) if theirs.dtype is torch.bfloat16 else theirs
    np.testing.assert_allclose(ours.numpy().astype(theirs.numpy().dtype), theirs.numpy(), rtol=1e-6, atol=1e-7)


DATA: list[Any] = [
    2 - 1j, [1j, 2], np.array([1j]), np.ones(2, np.complex64), np.complex64(1j),
    1, 1.5, True, [1, 2], [1, 2.5], [True, False], [True, 2], [[1.0], [2.0]], [], [[]], (1, 2), np.arange(3),
    np.ones((2, 2)), np.float64(2.5), np.float32(2.5), np.int32(3), np.ones(2, np.float16), np.array(5),
    np.ones((0, 3), np.float32),
]  # fmt: skip


@needs_torch
@pytest.mark.parametrize("data", DATA, ids=repr)
def test_tensors_have_the_dtype_that_pytorch_gives_them(data: Any) -> None:
    agree(gt.tensor(data), torch.tensor(data))
    if not gt.tensor(data).is_complex():
        agree(gt.tensor(data, dtype=gt.float64), torch.tensor(data, dtype=torch.float64))


def test_a_tensor_is_a_copy() -> None:
    array = np.ones(3)
    x, y = gt.tensor(array), gt.from_numpy(array)
    array += 1
    assert x.tolist() == y.tolist() == [1, 1, 1]
    z = gt.tensor(x)
    z += 1
    assert x.tolist() == [1, 1, 1]
    assert gt.as_tensor(x) is x
    assert gt.as_tensor(x, dtype=gt.int32).dtype is gt.int32
    copied = x.numpy()
    copied += 1
    assert x.tolist() == [1, 1, 1]


def test_arrays_in_any_order_of_bytes_and_dimensions_arrive_whole() -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    for view in (array.T, array[::-1, ::2], array.astype(">f8"), np.asfortranarray(array)):
        np.testing.assert_array_equal(gt.from_numpy(view).numpy(), view)


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(gt.ShapeError, match="unequal lengths"):
        gt.tensor([[1], [1, 2]])
    with pytest.raises(gt.DTypeError, match="not a dtype of GT"):
        gt.tensor(["text"])
    with pytest.raises(gt.DTypeError, match="does not fit"):
        gt.tensor(1j, dtype=gt.float32)
    with pytest.raises(TypeError, match=r"numpy\.ndarray"):
        gt.from_numpy([1])


@needs_torch
@pytest.mark.parametrize("name", ["zeros", "ones"])
def test_constants_take_sizes_in_either_form(name: str) -> None:
    mine, theirs = getattr(gt, name), getattr(torch, name)
    assert mine().shape == ()
    for size in ((3,), (2, 3), ((2, 3),), ([2, 3],), (0, 2), ((),)):
        agree(mine(*size), theirs(*size))
    agree(mine(2, dtype=gt.int32, device="cpu"), theirs(2, dtype=torch.int32))
    assert mine(2, requires_grad=True).requires_grad
    with pytest.raises(gt.ShapeError, match="negative"):
        mine(-1)


@needs_torch
@pytest.mark.parametrize("value", [True, 3, 2.5, 2 - 1.5j])
def test_full_takes_the_dtype_of_its_value(value: Any) -> None:
    agree(gt.full((2, 2), value), torch.full((2, 2), value))
    for dtype in [each for each in ALL_DTYPES if each.is_complex or not isinstance(value, complex)]:
        agree(gt.full((2,), value, dtype=dtype), torch.full((2,), value, dtype=getattr(torch, dtype.name)))
    assert gt.full((2,), gt.tensor(4.0)).tolist() == [4, 4]
    with pytest.raises(gt.DTypeError, match=r"full: 300 does not fit gt\.uint8"):
        gt.full((2,), 300, dtype=gt.uint8)
    with pytest.raises(gt.DTypeError):
        gt.full((2,), float("nan"), dtype=gt.int32)


ARANGES: list[tuple[Any, ...]] = [
    (5,), (2, 7), (2, 7, 2), (2, 8, 2), (7, 2, -2), (5.0,), (0, 1, 0.1), (0, 1, 0.25), (1, 0, -0.3), (3, 3), (0.5, 3), (-2, 2),
]  # fmt: skip


@needs_torch
@pytest.mark.parametrize("arguments", ARANGES, ids=repr)
def test_ranges_agree(arguments: tuple[Any, ...]) -> None:
    agree(gt.arange(*arguments), torch.arange(*arguments))
    agree(gt.arange(*arguments, dtype=gt.float64), torch.arange(*arguments, dtype=torch.float64))


def test_ranges_that_lead_nowhere_are_refused() -> None:
    for wrong in ((0, 5, -1), (0, 5, 0), (0, float("inf"))):
        with pytest.raises(ValueError, match="arange"):
            gt.arange(*wrong)


@needs_torch
def test_arange_takes_tensors_for_numbers() -> None:
    """As in PyTorch, if they have no dimensions."""
    agree(gt.arange(1, gt.tensor(4)), torch.arange(1, torch.tensor(4)))
    agree(gt.arange(gt.tensor(0.5), gt.tensor(2.0), gt.tensor(0.5)), torch.arange(0.5, 2.0, 0.5))
    with pytest.raises(gt.DTypeError, match="is not a bool, int, float or complex"):
        gt.arange(gt.tensor([4]))


@needs_torch
def test_other_patterns_agree() -> None:
    for arguments in ((0, 1, 5), (3, -2, 4), (0, 1, 1), (0, 1, 0)):
        agree(gt.linspace(*arguments), torch.linspace(*arguments))
    for size in ((3,), (2, 4), (4, 2), (0,)):
        agree(gt.eye(*size), torch.eye(*size))
    x, y = gt.ones(2, 3, dtype=gt.float64), torch.ones(2, 3, dtype=torch.float64)
    agree(gt.zeros_like(x), torch.zeros_like(y))
    agree(gt.ones_like(x, dtype=gt.int64), torch.ones_like(y, dtype=torch.int64))
    agree(gt.full_like(x, 7), torch.full_like(y, 7))
    assert gt.empty_like(x).shape == gt.empty(2, 3).shape == (2, 3)
    agree(x.new_zeros(2), y.new_zeros(2))
    agree(x.new_ones((2, 1)), y.new_ones((2, 1)))
    agree(x.new_full((2,), 3), y.new_full((2,), 3))
    agree(x.new_tensor([1, 2]), y.new_tensor([1, 2]))


def test_the_default_dtype_can_be_set() -> None:
    assert gt.get_default_dtype() is gt.float32
    gt.set_default_dtype(gt.float64)
    try:
        assert gt.zeros(1).dtype is gt.tensor(1.5).dtype is (gt.tensor(1) / 2).dtype is gt.float64
    finally:
        gt.set_default_dtype(gt.float32)
    with pytest.raises(gt.DTypeError):
        gt.set_default_dtype(gt.int32)


def test_random_numbers_follow_from_the_seed_alone() -> None:
    gt.manual_seed(5)
    first = [gt.rand(3, 2), gt.randn(4), gt.randint(0, 10, (5,)), gt.randperm(6)]
    assert gt.initial_seed() == 5
    gt.manual_seed(5)
    second = [gt.rand(3, 2), gt.randn(4), gt.randint(0, 10, (5,)), gt.randperm(6)]
    third = [gt.rand(3, 2), gt.randn(4)]
    for a, b in zip(first, second, strict=True):
        assert gt.equal(a, b)
    for a, b in zip(first, third, strict=False):
        assert not gt.equal(a, b)
    gt.manual_seed(-1)
    assert gt.rand(2).shape == (2,)


def test_random_numbers_have_the_distribution_that_is_asked_for() -> None:
    uniform, normal = gt.rand(200, 200).numpy(), gt.randn(200, 200, dtype=gt.float64).numpy()
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    dice = gt.randint(1, 7, (3000,)).numpy()
    assert set(np.unique(dice)) == {1, 2, 3, 4, 5, 6}
    assert dice.dtype == np.int64
    assert sorted(gt.randperm(50).tolist()) == list(range(50))
    x = gt.zeros(100, 100, dtype=gt.float64)
    assert gt.rand_like(x).dtype is gt.randn_like(x).dtype is gt.float64
    assert abs(x.uniform_(2, 4).numpy().mean() - 3) < 0.05
    assert abs(x.normal_(5, 0.1).numpy().mean() - 5) < 0.05
    with pytest.raises(ValueError, match="no integer"):
        gt.randint(3, 3, (1,))


def test_draws_of_several_threads_are_all_different() -> None:
    drawn: list[float] = []
    threads = [threading.Thread(target=lambda: drawn.extend(gt.rand(50).tolist())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == 200


PRINTED: list[Any] = [
    1.5, 3, True, [1.0, 2.0], [[1, 2], [3, 4]], [0.1, 1000.25, -3.5], [True, False], np.ones((2, 2, 2), np.float32), [1e-8, 1.0],
    np.ones(2), np.ones(2, np.int32), [1e6, 1.0], [float("nan"), 1.0, float("-inf")], [float("nan"), 0.5], np.arange(2000.0) / 7,
    np.arange(3000).reshape(30, 100), [2e9, 3e9],
]  # fmt: skip


@needs_torch
@pytest.mark.parametrize("data", PRINTED, ids=lambda data: repr(data)[:30])
def test_tensors_print_as_in_pytorch(data: Any) -> None:
    expected = repr(torch.tensor(data)).replace("torch.", "gt.").replace(",  ...,", ", ...,")
    assert repr(gt.tensor(data)) == expected


def test_printing_says_what_gradients_do() -> None:
    x = gt.ones(2, requires_grad=True)
    assert repr(x) == "tensor([1., 1.], requires_grad=True)"
    assert repr(x * 2) == "tensor([2., 2.], grad_fn=<MulBackward>)"
    assert repr(gt.zeros(0, 3)) == "tensor([], size=(0, 3))"
    assert f"{gt.tensor(1.25):.1f}" == "1.2"
    assert str(gt.float32) == "gt.float32"


def test_values_come_back_in_every_form() -> None:
    x = gt.tensor([[1.5, 2.0]])
    assert x.tolist() == [[1.5, 2.0]]
    assert np.asarray(x).dtype == np.float32
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    future = x.fetch()
    np.testing.assert_array_equal(future.result(), x.numpy())
    assert future.done()
    one = gt.tensor(3)
    assert (float(one), int(one), bool(one), [0, 1, 2, 3][one]) == (3.0, 3, True, 3)
    assert gt.tensor([[2.5]]).item() == 2.5
    with pytest.raises(gt.ShapeError, match="2 elements, not one"):
        x.item()
    with pytest.raises(gt.ShapeError, match=r"ambiguous: use \.any\(\) or \.all\(\)"):
        bool(x)
    with pytest.raises(TypeError):
        [1][gt.tensor(0.0)]
    with pytest.raises(ValueError, match="has to copy"):
        np.asarray(x, copy=False)


def test_what_is_known_without_asking() -> None:
    x = gt.zeros(2, 3, dtype=gt.float64)
    assert (x.shape, x.size(), x.size(-1), x.dim(), x.ndim, x.numel()) == ((2, 3), (2, 3), 3, 2, 2, 6)
    assert (x.itemsize, x.nbytes, x.element_size(), x.device, x.is_floating_point()) == (8, 48, 8, "gt", True)
    assert x.is_contiguous()
    assert not x.t().is_contiguous()
    assert x.T.shape == (3, 2)
    assert len({x, x.t(), x}) == 2


def test_handles_are_not_pickled_but_copied() -> None:
    x = gt.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match=r"send tensor\.numpy\(\) instead"):
        pickle.dumps(x)
    twin = copy.deepcopy(x)
    assert twin.is_leaf
    assert twin.requires_grad
    assert copy.deepcopy([x, x])[0] is not x
    with pytest.raises(gt.GTError, match=r"use \.clone\(\)"):
        copy.deepcopy(x * 2)
    with pytest.raises(gt.GTError, match="only a leaf can stop requiring grad"):
        (x * 2).requires_grad_(False)


def test_gradients_can_be_set_only_where_they_belong() -> None:
    x = gt.ones(2, requires_grad=True)
    x.grad = gt.zeros(2)
    x.sum().backward()
    assert x.grad.tolist() == [1, 1]
    x.grad = None
    assert x.grad is None
    with pytest.raises(gt.GradientError):
        x.grad = gt.zeros(3)
    y = gt.ones(2)  # a leaf too, as in PyTorch, though it requires no grad
    y.grad = gt.full((2,), 3.0)
    assert y.grad.tolist() == [3, 3]
    computed = x * 2
    computed.grad = None
    with pytest.raises(gt.GradientError, match="only a leaf"):
        computed.grad = gt.zeros(2)
