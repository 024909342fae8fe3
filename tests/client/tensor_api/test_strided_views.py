"""What changes how a tensor is seen, beside PyTorch: strides, in-place changes of shape, and places in storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("shared")


def both(*shape: int) -> tuple[Any, Any]:
    """The same numbers in GT and in PyTorch."""
    values = np.arange(float(np.prod(shape)), dtype=np.float32).reshape(shape)
    return gt.tensor(values), torch.tensor(values)


def agree(mine: Any, theirs: Any) -> None:
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    assert mine.shape == tuple(theirs.shape)


CUTS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1),
    "sliced": lambda x: x[1:, 2:],
    "stepped": lambda x: x[::2, 1::2],
    "row": lambda x: x[2],
    "diagonal": lambda x: x.diagonal(),
    "strided": lambda x: x.as_strided((3, 2), (6, 2), 1),
    "strided again": lambda x: x.as_strided((3, 2), (6, 2), 1)[1:].t(),
}


@pytest.mark.parametrize("name", CUTS)
def test_strides_and_offsets_are_pytorchs(name: str) -> None:
    mine, theirs = (CUTS[name](x) for x in both(4, 6))
    agree(mine, theirs)
    assert mine.stride() == tuple(theirs.stride())
    assert mine.storage_offset() == theirs.storage_offset()
    agree(mine.as_strided((2,), (3,)), theirs.as_strided((2,), (3,)))
    agree(mine.as_strided((2, 2), (1, 5), 3), theirs.as_strided((2, 2), (1, 5), 3))


@pytest.mark.parametrize("name", CUTS)
def test_writes_go_through_strides(name: str) -> None:
    mine, theirs = both(4, 6)
    for x in (mine, theirs):
        CUTS[name](x).as_strided((2, 2), (7, 3), 2).mul_(-1)
    agree(mine, theirs)


def test_writes_that_would_meet_are_refused() -> None:
    with pytest.raises(gt.OverlapError, match="twice"):
        gt.zeros(4).as_strided((3, 2), (1, 1)).add_(1)
    with pytest.raises(gt.ShapeError, match="reaches element 6"):
        gt.zeros(4).as_strided((3,), (3,))


def test_gradients_of_strides() -> None:
    mine, theirs = both(4, 6)
    for x, module in ((mine, gt), (theirs, torch)):
        x.requires_grad_()
        module.as_strided(x * 2, (3, 4), (2, 3), 1).square().sum().backward()
    agree(mine.grad, theirs.grad)
    x, src = gt.arange(6.0).requires_grad_(), gt.ones(2, requires_grad=True)
    out = gt.as_strided_scatter(x, src, (2,), (3,), 1)
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0, 1.0, 5.0]
    (out * gt.arange(6.0)).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 2.0, 3.0, 0.0, 5.0]
    assert src.grad.tolist() == [1.0, 4.0]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(0),
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(1, 0),
    "t_": lambda x: x.t_(),
    "as_strided_": lambda x: x.as_strided_((2, 3), (3, 1), 1),
    "resize_ smaller": lambda x: x.resize_(3, 2),
    "resize_ same": lambda x: x.resize_((6, 4)),
    "set_": lambda x: x.set_(x.t()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_shapes_change_in_place(name: str) -> None:
    mine, theirs = both(4, 6)
    assert CHANGES[name](mine) is mine
    CHANGES[name](theirs)
    agree(mine, theirs)
    for x in (mine, theirs):
        x.add_(1)
    agree(mine, theirs)


@pytest.mark.parametrize("name", ["unsqueeze_", "transpose_", "t_"])
def test_what_changed_in_place_shares_its_elements(name: str) -> None:
    pairs = []
    for x in both(4, 6):
        row, other = x[1], x.view(-1)
        CHANGES[name](x)
        x.mul_(2)
        row.add_(100)
        pairs.append((x, row, other))
    for mine, theirs in zip(*pairs, strict=True):
        agree(mine, theirs)


def test_gradients_go_through_a_change_in_place() -> None:
    leaf = gt.ones(2, 3, requires_grad=True)
    out = leaf * 2
    out.t_().unsqueeze_(0)
    assert out.shape == (1, 3, 2)
    out.square().sum().backward()
    assert leaf.grad.tolist() == [[8.0] * 3] * 2
    with pytest.raises(gt.GradientError, match="in place"):
        leaf.t_()
    with pytest.raises(gt.GradientError, match="no gradient"):
        out.resize_(2)


def test_what_resize_adds_is_zero() -> None:
    assert gt.ones(2).resize_(2, 2).tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert gt.ones(2).resize_as_(gt.zeros(1, 3)).tolist() == [[1.0, 1.0, 0.0]]
    assert gt.ones(2).set_().shape == (0,)


def test_who_shares_elements() -> None:
    x = gt.zeros(3, 4)
    assert x.data_ptr() == x[1:].data_ptr() == x.t().data_ptr() != gt.zeros(3, 4).data_ptr()
    assert x.is_set_to(x.view(3, 4))
    assert not x.is_set_to(x[1:])
    assert x.t().dim_order() == (1, 0)


def test_functions_of_python_element_by_element() -> None:
    assert gt.tensor([1.0, 2.0]).apply_(lambda v: v + 1).tolist() == [2.0, 3.0]
    assert gt.tensor([1, 2]).map_(gt.tensor([3, 4]), lambda a, b: a * b).tolist() == [3, 8]


def test_new_tensors_of_a_dtype() -> None:
    x = gt.zeros(2, dtype=gt.float64)
    assert x.new(2, 3).shape == (2, 3)
    assert x.new([1, 2]).dtype is gt.float64
    assert x.new().shape == (0,)
    assert x.new_empty_strided((2, 3), (1, 2)).shape == (2, 3)


def test_in_place_functions_write() -> None:
    x = gt.tensor([-1.0, 4.0])
    assert gt.relu_(x) is x
    assert gt.sqrt_(x).tolist() == [0.0, 2.0]
    assert gt.fill_(x, 3).tolist() == [3.0, 3.0]


def test_runs_of_slices_are_reduced() -> None:
    data = gt.tensor([1.0, 2.0, 3.0, 4.0])
    lengths = gt.tensor([1, 0, 3])
    for reduce in ("sum", "mean", "max", "min", "prod"):
        theirs = torch.segment_reduce(torch.tensor(data.numpy()), reduce, lengths=torch.tensor([1, 0, 3]))
        agree(gt.segment_reduce(data, reduce, lengths=lengths), theirs)
    with pytest.raises(TypeError, match="either lengths or offsets"):
        gt.segment_reduce(data, "sum")


def test_nonzero_of_a_known_number_fetches_nothing() -> None:
    x = gt.tensor([[0, 3], [4, 0], [5, 6]])
    for size in (0, 2, 4, 7):
        agree(gt.nonzero_static(x, size=size), torch.nonzero_static(torch.tensor(x.numpy()), size=size))


def test_products_with_householder_reflections() -> None:
    wide = gt.ormqr(gt.zeros(0, 2, 5), gt.zeros(0, 2), gt.zeros(0, 2, 3))  # of more columns than rows the first count
    assert wide.shape == (0, 2, 3)
    a = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    raw, tau = torch.geqrf(a)
    other = torch.arange(20.0, dtype=torch.float64).reshape(4, 5)
    for left, side in ((True, other), (False, other.T)):
        for transpose in (False, True):
            theirs = torch.ormqr(raw, tau, side, left, transpose)
            mine = gt.ormqr(*(gt.tensor(x.numpy().copy()) for x in (raw, tau, side)), left, transpose)
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=1e-12)


def test_printing_follows_options() -> None:
    try:
        gt.set_printoptions(precision=2)
        assert repr(gt.tensor([1 / 3, 2.0])) == "tensor([0.33, 2.00])"
        gt.set_printoptions(profile="default", sci_mode=True)
        assert repr(gt.tensor([0.5])) == "tensor([5.0000e-01])"
        gt.set_printoptions(threshold=4, edgeitems=1)
        assert repr(gt.arange(6)) == "tensor([0, ..., 5])"
        with pytest.raises(ValueError, match="profile"):
            gt.set_printoptions(profile="long")
    finally:
        gt.set_printoptions(profile="default")


def test_older_names() -> None:
    assert gt.vander(gt.tensor([1, 2, 3])).tolist() == np.vander([1, 2, 3]).tolist()
    assert gt.vander(gt.tensor([1.0, 2.0]), 3, True).tolist() == np.vander([1.0, 2.0], 3, increasing=True).tolist()
    assert gt.range(1, 4).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert gt.typename(gt.zeros(1)) == "gt.FloatTensor"
    assert gt.get_num_threads() > 0
    assert str(gt.get_default_device()) == "gt"
