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
    [1.5, "a", [0.5], np.array([0.5]), (slice(None), 1.5), slice(True), slice(0, 1.5)],
    ids=lambda key: type(key).__name__,
)
def test_what_is_not_basic_indexing_is_refused(key: Any) -> None:
    with pytest.raises(TypeError):
        gt.zeros(3, 5)[key]


def test_a_tensor_may_bound_a_slice_as_in_pytorch() -> None:
    assert gt.arange(4)[gt.tensor(1) : gt.tensor(3)].tolist() == [1, 2]
    for wrong in (gt.tensor(1.5), gt.ones(2, dtype=gt.int64)):
        with pytest.raises(TypeError, match="only a single integer is an index"):
            gt.zeros(3)[:wrong]


@st.composite
def listings(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    """A shape and slices, None and Ellipsis among index arrays that broadcast, or with one mask."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple))
    common = draw(st.lists(st.integers(0, 3), max_size=2).map(tuple))
    items: list[Any] = []
    axis, masks = 0, 0
    while axis < len(shape):
        kind = draw(st.sampled_from(["slice", "places", "mask", "none"]))
        if kind == "none":
            items.append(None)
            continue
        if kind == "mask" and not masks and common in ((), (1,)):
            count = draw(st.integers(1, len(shape) - axis))
            mask = np.zeros(shape[axis : axis + count], bool)
            for _ in range(draw(st.integers(0, 3)) if common == () else 1):
                mask[tuple(draw(st.integers(0, size - 1)) for size in mask.shape)] = True
            if any(isinstance(item, np.ndarray) for item in items):
                mask[...] = False
                mask.flat[draw(st.integers(0, mask.size - 1))] = True
            items.append(mask)
            axis, masks = axis + count, 1
            common = () if mask.sum() == 1 else (int(mask.sum()),)
            continue
        if kind == "places":
            kept = common[draw(st.integers(0, len(common))) :]
            sides = tuple(1 if draw(st.booleans()) else size for size in kept)
            numbers = st.lists(
                st.integers(-shape[axis], shape[axis] - 1), min_size=int(np.prod(sides)), max_size=int(np.prod(sides))
            )
            items.append(np.array(draw(numbers), np.int64).reshape(sides))
        else:
            items.append(
                draw(st.sampled_from([slice(None), slice(1, None), slice(None, None, 2), slice(None, None, -1)]))
            )
        axis += 1
    if not any(isinstance(item, np.ndarray) for item in items):
        items[items.index(next(item for item in items if item is not None))] = np.array([0, -1])
    return shape, tuple(items)


def on_workers(key: Any) -> Any:
    return tuple(gt.tensor(item) if isinstance(item, np.ndarray) else item for item in key)


@settings(max_examples=cases(60))
@given(listings(), st.data())
def test_places_and_masks_are_read_and_written_as_in_numpy(
    case: tuple[tuple[int, ...], Any], data: st.DataObject
) -> None:
    shape, key = case
    array = numbered(shape)
    try:
        expected = array[key]
    except IndexError:
        return  # what was drawn does not broadcast
    base = gt.tensor(array, requires_grad=True)
    part = base[on_workers(key)]
    assert part.shape == expected.shape
    np.testing.assert_array_equal(part.detach().numpy(), expected)
    if part.numel():
        part.backward(gt.ones(part.shape, dtype=part.dtype))
        counted = np.zeros(shape)
        np.add.at(counted, key, 1)
        np.testing.assert_array_equal(base.grad.numpy(), counted)

    kept = data.draw(st.integers(0, expected.ndim))
    sides = tuple(1 if data.draw(st.booleans()) else size for size in expected.shape[expected.ndim - kept :])
    value = -1.0 - numbered(sides)
    written, scalar = gt.tensor(array), gt.tensor(array)
    written[on_workers(key)] = gt.tensor(value)
    scalar[on_workers(key)] = 7
    same = array.copy()
    array[key] = value
    same[key] = 7
    counted = np.zeros(shape)
    np.add.at(counted, key, 1)
    if counted.max() <= 1:  # in which order NumPy writes to one place it does not promise
        np.testing.assert_array_equal(written.numpy(), array)
    np.testing.assert_array_equal(scalar.numpy(), same)


@pytest.mark.parametrize("truth", [True, False, np.True_, np.False_, np.array(True), np.array(False)])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_a_truth_is_a_new_dimension_as_in_numpy(truth: Any, shape: tuple[int, ...]) -> None:
    mine, theirs = gt.ones(shape), np.ones(shape)
    assert mine[truth].shape == theirs[truth].shape
    mine[truth] = 5
    theirs[truth] = 5
    assert mine.tolist() == theirs.tolist()


def test_numbers_are_applied_before_places_as_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    array, places = numbered((3, 4, 5)), np.array([2, 0, 1])
    for key in ((0, slice(None), places), (places, slice(None), -1), (1, places), (places, 2), (Ellipsis, 0, places)):
        expected = torch.tensor(array)[tuple(torch.tensor(k) if isinstance(k, np.ndarray) else k for k in key)]
        np.testing.assert_array_equal(gt.tensor(array)[on_workers(key)].numpy(), expected.numpy())


def test_writing_through_a_view_by_places_reaches_its_base() -> None:
    x = gt.zeros(3, 4)
    x[1:].t()[gt.tensor([0, 3])] = 5
    x[0][[True, False, True, False]] = gt.tensor([1.0, 2.0])
    assert x.tolist() == [[1, 0, 2, 0], [5, 0, 0, 5], [5, 0, 0, 5]]


def test_writing_where_a_mask_holds_fetches_nothing(session: Any) -> None:
    x = gt.arange(6.0)
    before = session.definitions.made
    x[x > 2] = 0
    x[x == 0] = gt.tensor([7.0, 8.0, 9.0, 10.0])
    assert session.definitions.made == before
    assert x.tolist() == [7, 1, 2, 8, 9, 10]
    x[x > 8] = gt.tensor([0.0, 0.0, 0.0])  # which holds twice
    with pytest.raises(IndexError, match="index 3 is out of range"):
        x.numpy()


def test_places_out_of_range_are_an_error_at_the_fetch_and_masks_at_once() -> None:
    x = gt.zeros(3, 4)
    with pytest.raises(IndexError, match="index 4 is out of range for axis 0 of size 4"):
        x[gt.tensor([0]), gt.tensor([4])].numpy()
    with pytest.raises(IndexError, match=r"a mask of shape \(4,\) does not fit shape \(3, 4\) from dimension 0 on"):
        x[gt.zeros(4, dtype=bool)]
    with pytest.raises(gt.DTypeError, match="integers or booleans"):
        x[gt.zeros(4)]


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
