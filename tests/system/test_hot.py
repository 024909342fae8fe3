"""Hot programs, seen by whoever uses a session: the same values and the same errors as cold ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.errors import IndexOutOfRange
from gt.sharding.config import Config
from gt.worker.execution import optimize
from gt.worker.execution.optimize import HOT_RUN
from gt.worker.fusion.incremental import at_once

RULES = Config.from_plain({"sharding_config": {"net": {"strategy": "data_parallel"}}})


def chain(x: gt.Tensor) -> gt.Tensor:
    """Enough steps for a chain, with a sum along rows."""
    return ((x * 2.0).exp() + x).tanh() * x.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_failure_in_a_hot_program_is_what_it_was_in_a_cold_one(workers: int) -> None:
    """Only what depends on the failing instruction fails, with its op and line, and the next run is well again."""
    gt.connect("inproc", workers=workers, config=RULES)
    x = gt.from_numpy(np.random.default_rng(0).standard_normal((6, 6), np.float32))
    errors, goods, bads = set(), set(), set()
    for run in range(2 * HOT_RUN):
        wrong = run in (1, HOT_RUN + 1)
        index = gt.from_numpy(np.full((6, 2), 9 if wrong else 1))
        with gt.signal.context("net"):
            good = chain(x)
            bad = chain(good.gather(1, index))
        goods.add(good.numpy().tobytes())
        if wrong:
            with pytest.raises(IndexOutOfRange, match="test_hot") as error:
                bad.numpy()
            errors.add(str(error.value))
        else:
            bads.add(bad.numpy().tobytes())
    assert (len(goods), len(bads), len(errors)) == (1, 1, 1)


def test_a_chain_that_cannot_run_is_computed_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """When there is no memory for a chain, its steps are tried one by one: what they can make is made."""
    raised = []

    def compiled(*_: Any) -> Any:
        def action(_: Any) -> None:
            raised.append(1)
            raise MemoryError("no memory for a chain")

        return at_once(action)

    monkeypatch.setattr(optimize.strip_executor, "compile_chain", compiled)
    gt.connect("inproc", workers=1)
    x = gt.from_numpy(np.random.default_rng(0).standard_normal((6, 6), np.float32))
    assert len({chain(x).numpy().tobytes() for _ in range(HOT_RUN + 2)}) == 1
    assert len(raised) == 3


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (2, 0, 3), (0,)])
def test_what_has_no_elements_gets_hot(shape: tuple[int, ...]) -> None:
    """Rows of nothing have no strips: their length was divided by, and the worker ended."""
    gt.connect("inproc", workers=1)
    x = gt.zeros(*shape)
    for _ in range(HOT_RUN + 2):
        nothing = (((x + 1) * 2).relu() - 3).abs() * x + 1
        total = ((nothing.sum(-1, keepdim=True) + 1) * 2 - 3).abs() * 2 + 1
        assert nothing.numpy().shape == shape
        np.testing.assert_array_equal(total.numpy(), np.full((*shape[:-1], 1), 3.0, np.float32))
