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


PIPELINE = {"strategy": "pipeline_parallel", "stages": [[0], [1]], "microbatches": 2}


def test_a_pipeline_is_one_for_what_runs_backward_under_another_rule() -> None:
    """The planner looked for the pipeline's rule among those of gradients, where `backward:` had put another."""
    rules = {"net": {**PIPELINE, "backward": "other"}, "other": {"strategy": "replicate"}}
    gt.connect("inproc", config={"mesh": {"stages": 2}, "sharding_config": rules})
    start = np.arange(8.0)
    weight = gt.nn.Parameter(gt.tensor(start))
    loss = weight.mean()
    with gt.signal.context("loss", backward="net"):
        loss.square().backward()
    np.testing.assert_array_equal(weight.grad.numpy(), np.full(8, 2 * 3.5 / 8))


def test_what_was_joined_in_time_is_not_joined_on_the_way_elsewhere() -> None:
    """A value whose microbatches had been joined was moved on from the microbatches, in one step that nobody can take.

    On the way to a layout was one in which there was a copy already; its step was left out, and the next one began where
    that one should have.
    """
    rules = {"net": {**PIPELINE, "stages": [[0, 1]]}, "net/one": {"shard": {"axis": 0, "workers": [1]}}}
    gt.connect("inproc", config={"mesh": {"x": 2, "stages": 1}, "sharding_config": rules})
    start = np.arange(24.0).reshape(2, 12)
    ones = gt.ones(12, dtype="float64")
    with gt.signal.context("net"):
        x = gt.tensor(start) * 1
    with gt.signal.context("net/one"):
        total = x @ ones
        picked = gt.index_select(total, 0, gt.arange(12) % 2)
    np.testing.assert_array_equal(total.numpy(), start.sum(1))
    np.testing.assert_array_equal(picked.numpy(), np.tile(start.sum(1), 6))
