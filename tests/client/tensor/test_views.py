"""Views and in-place writes: the same random sequences of operations on GT's tensors and on PyTorch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from beside_torch import needs_torch
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import gt

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.usefixtures("shared")

SHAPE = (2, 3, 4)


def factors(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Other shapes of as many elements."""
    count = int(np.prod(shape))
    pairs = [(a, count // a) for a in range(1, count + 1) if count % a == 0]
    return [(count,), *pairs, *((a, b // 2, 2) for a, b in pairs if b % 2 == 0)]


@st.composite
def cuts(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[str, Callable[[Any], Any]]:
    """A view of a tensor of `shape`, the same in both libraries."""
    kinds = ["reshape", "unsqueeze", "squeeze", "detach"]
    if shape:
        kinds += ["slice", "select", "permute", "transpose", "flatten", "split", "chunk"]
    kind = draw(st.sampled_from(kinds))
    axis = draw(st.integers(0, max(len(shape) - 1, 0)))
    size = shape[axis] if shape else 1
    if kind == "reshape":
        to = draw(st.sampled_from(factors(shape)))
        return f"reshape{to}", lambda x: x.reshape(to)
    if kind == "unsqueeze":
        return f"unsqueeze{axis}", lambda x: x.unsqueeze(axis)
    if kind == "squeeze":
        return "squeeze", lambda x: x.squeeze()
    if kind == "detach":
        return "detach", lambda x: x.detach()
    if kind == "slice":
        start = draw(st.integers(0, size - 1))
        step = draw(st.integers(1, 2))
        key = (slice(None),) * axis + (slice(start, None, step),)
        return f"slice{key}", lambda x: x[key]
    if kind == "select":
        index = draw(st.integers(-size, size - 1))
        return f"select{axis, index}", lambda x: x[(slice(None),) * axis + (index,)]
    if kind == "permute":
        order = draw(st.permutations(range(len(shape))))
        return f"permute{order}", lambda x: x.permute(*order)
    if kind == "transpose":
        return f"transpose{axis}", lambda x: x.transpose(0, axis)
    if kind == "flatten":
        return f"flatten{axis}", lambda x: x.flatten(axis)
    part = draw(st.integers(0, 1))
    if kind == "split":
        return f"split{axis, part}", lambda x: x.split(1 + size // 2, axis)[part % len(x.split(1 + size // 2, axis))]
    return f"chunk{axis, part}", lambda x: x.chunk(2, axis)[part % len(x.chunk(2, axis))]


WRITES: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("add_(y)", lambda x, y: x.add_(y)),
    ("mul_(2)", lambda x, y: x.mul_(2)),
    ("zero_()", lambda x, y: x.zero_()),
    ("fill_(3)", lambda x, y: x.fill_(3)),
    ("copy_(y)", lambda x, y: x.copy_(y)),
    ("sub_(y)", lambda x, y: x.sub_(y)),
    ("+= 1", lambda x, y: x.__iadd__(1)),
    ("*= x + 1", lambda x, y: x.__imul__(y + 1)),
    ("[...] = 5", lambda x, y: x.__setitem__(..., 5)),
    ("[0] = 2", lambda x, y: x.__setitem__(0, 2) if x.ndim else None),
    ("clamp_", lambda x, y: x.clamp_(-1, 4)),
    ("tanh_", lambda x, y: x.tanh_()),
]


@needs_torch
@settings(max_examples=cases(50))
@given(st.data())
def test_writes_through_views_reach_the_same_elements_as_in_pytorch(data: st.DataObject) -> None:
    array = np.arange(24.0).reshape(SHAPE) / 7
    ours, yours = [gt.tensor(array)], [torch.tensor(array)]
    log = []
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(ours) - 1))
        if data.draw(st.booleans()):
            name, cut = data.draw(cuts(ours[at].shape))
            log.append(f"{len(ours)} = {at}.{name}")
            ours.append(cut(ours[at]))
            yours.append(cut(yours[at]))
        else:
            name, write = data.draw(st.sampled_from(WRITES))
            log.append(f"{at} {name}")
            values = np.cos(np.arange(ours[at].numel())).reshape(ours[at].shape)
            write(ours[at], gt.tensor(values))
            write(yours[at], torch.tensor(values))
    for mine, theirs in zip(ours, yours, strict=True):
        assert mine.shape == tuple(theirs.shape), log
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-12, err_msg=str(log))


GRAD_WRITES = [each for each in WRITES if each[0] not in ("clamp_", "tanh_")]


@needs_torch
@settings(max_examples=cases(50))
@given(st.data())
def test_gradients_go_through_writes_and_views_as_in_pytorch(data: st.DataObject) -> None:
    array = np.arange(24.0).reshape(SHAPE) / 7
    leaf, their_leaf = gt.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    ours, yours = [leaf * 2], [their_leaf * 2]
    extra, their_extra = [], []
    log = []
    for _ in range(data.draw(st.integers(1, 7))):
        at = data.draw(st.integers(0, len(ours) - 1))
        if data.draw(st.booleans()):
            name, cut = data.draw(
                cuts(ours[at].shape).filter(lambda c: not c[0].startswith(("detach", "split", "chunk")))
            )
            log.append(f"{len(ours)} = {at}.{name}")
            ours.append(cut(ours[at]))
            yours.append(cut(yours[at]))
        else:
            name, write = data.draw(st.sampled_from(GRAD_WRITES))
            values = np.cos(np.arange(ours[at].numel())).reshape(ours[at].shape)
            extra.append(gt.tensor(values, requires_grad=True))
            their_extra.append(torch.tensor(values, requires_grad=True))
            quiet = data.draw(st.integers(0, 4)) == 0
            log.append(f"{at} {name} {'quiet' if quiet else ''}")
            if quiet:
                with gt.no_grad():
                    write(ours[at], extra[-1])
                with torch.no_grad():
                    write(yours[at], their_extra[-1])
            else:
                write(ours[at], extra[-1])
                write(yours[at], their_extra[-1])
    total, their_total = 0, 0
    for n, (mine, theirs) in enumerate(zip(ours, yours, strict=True)):
        np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), rtol=1e-12, err_msg=str(log))
        assert theirs.requires_grad or not mine.requires_grad, log  # PyTorch says yes even where nothing can flow
        total, their_total = total + (mine * (n + 1)).sum(), their_total + (theirs * (n + 1)).sum()
    if total.requires_grad:
        total.backward()
    if their_total.requires_grad:
        their_total.backward()
    for mine, theirs in zip([leaf, *extra], [their_leaf, *their_extra], strict=True):
        expected = np.zeros(theirs.shape) if theirs.grad is None else theirs.grad.numpy()
        got = np.zeros(mine.shape) if mine.grad is None else mine.grad.numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12, err_msg=str(log))


def test_an_expanded_view_cannot_be_written() -> None:
    x = gt.zeros(1, 3)
    wide = x.expand(4, 3)
    for write in (lambda: wide.add_(1), lambda: wide[0].zero_(), lambda: wide.__setitem__(0, 1)):
        with pytest.raises(gt.OverlapError, match=r"expanded view.*use \.clone\(\) first"):
            write()
    x += 1
    assert wide.tolist() == [[1, 1, 1]] * 4
    same = x.expand(1, 3)
    same += 1
    assert x.tolist() == [[2, 2, 2]]


def test_a_leaf_that_requires_grad_is_written_only_outside_the_tape() -> None:
    x = gt.ones(3, requires_grad=True)
    for write in (lambda: x.add_(1), lambda: x[0].zero_(), lambda: x.__setitem__(0, 1), lambda: x.view(3, 1).zero_()):
        with pytest.raises(gt.GTError, match=r"in place outside gt\.no_grad"):
            write()
    seen = []
    x.register_hook(lambda g: seen.append(g.tolist()))
    (x * 2).sum().backward()
    with gt.no_grad():
        x += 1
        x[0] = 5
    assert x.is_leaf
    assert x.requires_grad
    assert x.grad.tolist() == [2, 2, 2]
    (x * x).sum().backward()
    assert x.grad.tolist() == [12, 6, 6]
    assert seen == [[2, 2, 2], [10, 4, 4]]


def test_data_and_detach_write_through_off_the_tape() -> None:
    x = gt.ones(3, requires_grad=True)
    x.data += 1
    x.detach()[0] = 7
    assert x.tolist() == [7, 2, 2]
    assert x.requires_grad
    x.data = gt.zeros(3)
    assert x.tolist() == [0, 0, 0]
    assert x.is_leaf


def test_what_was_cut_before_keeps_the_values_that_data_is_replaced_by_others() -> None:
    weight = gt.nn.Parameter(gt.tensor([1.0, 2.0]))
    first, average = weight[0], gt.tensor([5.0, 6.0])
    for _ in range(3):  # averaged weights for an evaluation, as programs have it, and back
        kept = weight.data
        weight.data = average
        assert weight.tolist() == [5, 6]
        assert kept.tolist() == [1, 2]
        weight.data = kept
        assert weight.tolist() == [1, 2]
    with gt.no_grad():
        weight += 1
    assert kept.tolist() == [2, 3]
    assert first.tolist() == 2  # type: ignore[comparison-overlap]  # of no dimensions
    (weight * weight).sum().backward()
    assert weight.grad.tolist() == [4, 6]


def test_tensors_that_data_joined_see_each_others_writes() -> None:
    flat = gt.arange(6.0)
    weight = gt.nn.Parameter(gt.zeros(2, 2))
    weight.data = flat[1:5].view(2, 2)
    flat *= 2
    assert weight.tolist() == [[2, 4], [6, 8]]
    weight.data += 1
    assert flat.tolist() == [0, 3, 5, 7, 9, 10]
    a, b = gt.zeros(2), gt.ones(2)
    old = a.data, b.data
    a.data, b.data = old[1], old[0]
    a += 5
    assert (a.tolist(), b.tolist(), old[1].tolist()) == ([6, 6], [0, 0], [6, 6])
    a.data = a.data.clamp_(0, 4)
    assert a.tolist() == [4, 4]


def test_setting_the_data_of_a_view_leaves_its_base_alone() -> None:
    x = gt.ones(3)
    y = x.detach()
    y.data = gt.zeros(4)
    y += 1
    assert x.tolist() == [1, 1, 1]
    assert y.tolist() == [1, 1, 1, 1]


def test_what_one_place_in_a_tensor_selects_is_a_view() -> None:
    """As PyTorch has it: a place counts as an integer does, and stays what it was when the cut was made."""
    x = gt.zeros(3, 4)
    row = gt.argmax(gt.tensor([0.0, 2.0, 1.0]))
    x[row][0] = 5
    part = x[1:, ..., row]
    row += 1
    part += 1
    x[row, gt.tensor(-1)].fill_(7)
    assert x.tolist() == [[0, 0, 0, 0], [5, 1, 0, 0], [0, 1, 0, 7]]
    x += 1
    assert part.tolist() == [2, 2]
    assert x[row].stride() == (1,)
    copy = x[[0]]
    copy += 1
    assert x[0].tolist() == [1, 1, 1, 1]


def test_gradients_pass_what_one_place_selects() -> None:
    x = gt.ones(3, requires_grad=True)
    y = x * 2
    y[gt.tensor(1)].mul_(3)
    (y * y).sum().backward()
    assert x.grad.tolist() == [8, 72, 8]
    with pytest.raises(gt.GradientError, match="a view of a leaf"):
        x[gt.tensor(0)].add_(1)


def test_ravel_copies_what_does_not_lie_in_rows() -> None:
    x = gt.zeros(2, 3, dtype=gt.complex64)
    gt.ravel(x.imag).fill_(1)
    assert x.tolist() == [[0, 0, 0], [0, 0, 0]]
    gt.ravel(x)[0] = 2
    assert x.tolist() == [[2, 0, 0], [0, 0, 0]]


def test_the_own_shape_is_a_view_wherever_the_elements_lie() -> None:
    x = gt.zeros(2, 3)
    diagonal = x.t().diagonal()
    diagonal.view(2).fill_(1)
    diagonal.reshape(2)[1] = 5
    diagonal.view_as(diagonal).mul_(2)
    assert x.tolist() == [[2, 0, 0], [0, 10, 0]]


def test_a_conjugate_is_a_view() -> None:
    x = gt.tensor([[1 + 2j, 3j]])
    x.conj()[0, 0] = 5j
    x.mH.mul_(2)
    assert x.tolist() == [[-10j, 6j]]
    copy = x.conj_physical()
    copy += 1
    assert x.tolist() == [[-10j, 6j]]


def test_writes_pass_views_of_parts_of_numbers_bits_and_windows() -> None:
    """As in PyTorch, where these lie in the memory of their base, with the same strides and offsets."""
    cuts: list[Any] = [
        lambda g, x: g.view_as_real(g.view_as_complex(x.view(2, 3, 2, 2))),
        lambda g, x: g.view_as_complex(x.view(2, 3, 2, 2))[1:].imag,
        lambda g, x: g.real(g.view_as_complex(x.view(2, 3, 2, 2)).conj()),
        lambda g, x: x.view(g.int16)[1:],
        lambda g, x: x[1].view(g.int64),
        lambda g, x: x.unfold(1, 1, 2),
    ]
    for cut in cuts:
        base, other = gt.arange(24.0).reshape(2, 3, 4) + 1, torch.arange(24.0).reshape(2, 3, 4) + 1
        view, expected = cut(gt, base), cut(torch, other)
        assert (view.stride(), view.storage_offset()) == (expected.stride(), expected.storage_offset())
        view[0].mul_(2)
        expected[0].mul_(2)
        other.add_(1)
        base.add_(1)
        assert base.tolist() == other.tolist()
        assert view.tolist() == expected.tolist()
    with pytest.raises(gt.OverlapError, match="windows that overlap"):
        gt.arange(6.0).unfold(0, 3, 1).zero_()


def test_a_detached_copy_that_requires_grad_stays_a_leaf_of_its_own() -> None:
    x = gt.ones(3)
    leaf = x.detach().requires_grad_()
    x += 1
    assert leaf.tolist() == [2, 2, 2]
    (leaf * leaf).sum().backward()
    assert leaf.grad.tolist() == [4, 4, 4]
    assert not x.requires_grad


def test_a_write_is_cast_to_the_tensors_own_dtype_or_refused() -> None:
    x = gt.ones(3, dtype=gt.float32)
    x += gt.ones(3, dtype=gt.float64)
    assert x.dtype is gt.float32
    n = gt.ones(3, dtype=gt.int64)
    n += gt.ones(3, dtype=gt.int32)
    n += True
    assert n.tolist() == [3, 3, 3]
    with pytest.raises(gt.DTypeError, match=r"add_: a result of gt.float32 cannot be written to a tensor of gt.int64"):
        n += 0.5
    with pytest.raises(gt.DTypeError):
        n /= 2
    with pytest.raises(gt.ShapeError, match=r"add_: a result of shape \(2, 3\) does not fit the shape \(3,\)"):
        x += gt.ones(2, 3)


def test_what_was_recorded_does_not_change_when_a_tensor_is_written() -> None:
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    y = x * 1
    z = y * y
    y += 10
    z.sum().backward()
    assert x.grad.tolist() == [2, 4]


def test_clones_are_independent() -> None:
    x = gt.ones(3)
    y = x.clone()
    y += 1
    assert x.tolist() == [1, 1, 1]
    leaf = gt.ones(3, requires_grad=True)
    copy = leaf.clone()
    copy += 1
    copy.sum().backward()
    assert leaf.grad.tolist() == [1, 1, 1]
    assert copy.tolist() == [2, 2, 2]
