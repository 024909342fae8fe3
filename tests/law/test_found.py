"""What the checker of the law found, each reduced to a few lines, with its story."""

from __future__ import annotations

import numpy as np

import gt


def test_a_transpose_takes_the_values_of_its_base() -> None:
    """A write through a view whose source is the view's own base takes the values that the base had before.

    `copy_` and `x[:] = y` handed the base's handle on as the new value. The write bound that handle to the transposed
    values first, and the view took those: it ended as its own transpose.
    """
    gt.connect("inproc")
    start = np.arange(9.0).reshape(3, 3)
    for write in (lambda view, base: view.copy_(base), lambda view, base: view.__setitem__(slice(None), base)):
        base = gt.tensor(start)
        view = base.T
        write(view, base)
        np.testing.assert_array_equal(view.numpy(), start)
        np.testing.assert_array_equal(base.numpy(), start.T)


def test_a_view_takes_the_values_of_its_sibling() -> None:
    """A write whose source is another view of the same base takes the values that the source had before."""
    gt.connect("inproc")
    start = np.arange(4.0)
    base = gt.tensor(start)
    first, last = base[:3], base[:0:-1]
    first.copy_(last)
    np.testing.assert_array_equal(first.numpy(), [3, 2, 1])
    np.testing.assert_array_equal(base.numpy(), [3, 2, 1, 3])
    np.testing.assert_array_equal(last.numpy(), [3, 1, 2])
