"""Basic indexing against NumPy: what is read, what is written, and where gradients go."""

from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import gt

pytestmark = pytest.mark.usefixtures("shared")

SHAPES = st.lists(st.integers(0, 5), min_size=0, max_size=4).map(tuple)


@st.composite
def subscripts(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    """A shape and any mix of integers, slices, None and Ellipsis that it allows."""
    shape = draw(SHAPES)
    named = draw(st.integers(0, len(shape)))
    from_end = draw(st.booleans())
    bound = st.none() | st.integers(-7, 7)
    items: list[Any] = []
    for size in shape[len(shape) - named :] if from_end else shape[:named]:
        slices = st.builds(slice, bound, bound, st.none() | st.integers(-3, 3).filter(bool))
        items.append(draw(slices | st.integers(-size, size - 1) if size else slices))
    if from_end or draw(st.booleans()):
        items.insert(0 if from_end else len(items), Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    return shape, items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


def numbered(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.arange(float(np.prod(shape))).reshape(shape)


@settings(max_examples=cases(105))
@given(subscripts())
def test_reading_is_as_in_numpy(case: tuple[tuple[int, ...], Any]) -> None:
    shape, key = case
    array = numbered(shape)
    part = gt.tensor(array)[key]
    assert part.shape == array[key].shape
    np.testing.assert_array_equal(part.numpy(), array[key])


@settings(max_examples=cases(50))
@given(subscripts(), st.data())
def test_writing_broadcasts_as_in_numpy(case: tuple[tuple[int, ...], Any], data: st.DataObject) -> None:
    shape, key = case
    array = numbered(shape)
    target = array[key].shape
    kept = data.draw(st.integers(0, len(target)))
    small = tuple(1 if data.draw(st.booleans()) else size for size in target[len(target) - kept :])
    value = -1.0 - numbered(small)
    x, scalar = gt.tensor(array), gt.tensor(array)
    x[key] = gt.tensor(value)
    scalar[key] = 7
    expected, same = array.copy(), array.copy()
    expected[key] = value
    same[key] = 7
    np.testing.assert_array_equal(x.numpy(), expected)
    np.testing.assert_array_equal(scalar.numpy(), same)


@settings(max_examples=cases(30))
@given(subscripts())
def test_gradients_go_where_the_elements_came_from(case: tuple[tuple[int, ...], Any]) -> None:
    shape, key = case
    weight = np.asarray(np.cos(numbered(shape)) + 2)
    x = gt.tensor(numbered(shape), requires_grad=True)
    part = x[key]
    part.backward(gt.tensor(np.asarray(weight[key])))
    expected = np.zeros(shape)
    expected[key] = weight[key]
    np.testing.assert_array_equal(x.grad.numpy(), expected)

    base, value = gt.tensor(numbered(shape), requires_grad=True), gt.tensor(weight[key], requires_grad=True)
    y = base * 1
    y[key] = value
    (y + base).backward(gt.tensor(weight))
    outside = np.array(2 * weight)
    outside[key] = np.asarray(weight)[key]
    np.testing.assert_array_equal(base.grad.numpy(), outside)
    np.testing.assert_array_equal(value.grad.numpy(), weight[key])


def test_one_subscript_is_one_slice_with_moving_starts(session: Any) -> None:
    x = gt.zeros(100, 8)
    x.numpy()
    made = []
    for start in range(10, 50, 10):
        part = x[start : start + 10, None, start % 8 :: 8]
        del part
        gt.flush()
        made.append(session.definitions.made)
    assert len(set(made)) == 1


@pytest.mark.parametrize("key", [3, -4, (0, 5), (slice(None), -6)])
def test_an_integer_out_of_range_is_an_index_error_at_once(key: Any) -> None:
    x = gt.zeros(3, 5)
    with pytest.raises(IndexError, match=r"out of range for dimension \d of shape \(3, 5\)"):
        x[key]
    with pytest.raises(IndexError):
        x[key] = 1


@pytest.mark.parametrize(
    "key",
    [True, 1.5, "a", [0, 1], np.array([0, 1]), (slice(None), True), slice(True), slice(0, 1.5)],
    ids=lambda key: type(key).__name__,
)
def test_what_is_not_basic_indexing_is_refused(key: Any) -> None:
    with pytest.raises(TypeError):
        gt.zeros(3, 5)[key]


def test_tensors_as_indices_are_refused_saying_what_to_use() -> None:
    x = gt.zeros(3)
    for index in (gt.tensor(1), gt.tensor([0, 1]), x > 0):
        with pytest.raises(TypeError, match=r"gt.gather or gt.index_select, for a mask gt.where.*\.item\(\)"):
            x[index]
    with pytest.raises(TypeError, match="item"):
        x[: gt.tensor(2)]


def test_too_many_indices_and_two_ellipses_are_refused() -> None:
    with pytest.raises(IndexError, match=r"3 indices for shape \(3, 5\)"):
        gt.zeros(3, 5)[0, 0, 0]
    with pytest.raises(IndexError, match="at most one Ellipsis"):
        gt.zeros(3, 5)[..., ...]


def test_a_value_that_does_not_fit_is_refused() -> None:
    x = gt.zeros(3, 5)
    with pytest.raises(gt.ShapeError, match=r"a value of shape \(4,\) does not broadcast to \(3, 2\)"):
        x[:, :2] = gt.zeros(4)
    with pytest.raises(gt.DTypeError, match="neither a tensor nor a number"):
        x[0] = "text"


def test_what_is_written_is_cast() -> None:
    x = gt.zeros(3, dtype=gt.int64)
    x[0] = gt.tensor(2.7)
    x[1] = np.float32(3.2)
    x[2] = True
    assert x.tolist() == [2, 3, 1]


def test_lengths_and_iteration() -> None:
    x = gt.tensor([[1, 2], [3, 4]])
    assert len(x) == 2
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    assert 3 in x
    assert 5 not in x
    with pytest.raises(TypeError):
        len(gt.tensor(1))
    with pytest.raises(TypeError):
        iter(gt.tensor(1))
