"""`gt.compile` of what cannot be traced: it runs as it is, and the reason is told once, or raised."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from compiled_results import t, told

import gt
from gt.client.compile.compile import Compiled

# hindered


def clock(a: gt.Tensor) -> gt.Tensor:
    return a * ROLLS.random()


ROLLS = random.Random(0)
KEPT: list[gt.Tensor] = []
GENERATED = iter(lambda: t(1, 2, 3), None)


def fetching(a: gt.Tensor) -> gt.Tensor:
    return a if a.sum() > 0 else -a


def putting(a: gt.Tensor) -> gt.Tensor:
    return a + gt.tensor([1.0, 2.0, 3.0])


def keeping(a: gt.Tensor) -> gt.Tensor:
    KEPT.append(a * 2.0)
    return a + 1.0


def counting(a: gt.Tensor) -> gt.Tensor:
    counting.calls += 1  # type: ignore[attr-defined]
    return a * 2.0


counting.calls = 0  # type: ignore[attr-defined]


def hiding(a: gt.Tensor) -> gt.Tensor:
    hidden = iter([a * 2.0])
    KEEPER.send(hidden)
    return a + 1.0


def _keeper() -> Iterator[None]:
    kept = []
    while True:
        kept.append((yield))  # type: ignore[func-returns-value]


KEEPER: Any = _keeper()
next(KEEPER)


def reaching(a: gt.Tensor) -> gt.Tensor:
    return a + next(UNSEEN)


UNSEEN = iter([])


def returning(a: gt.Tensor) -> Any:
    return a + 1.0, object()


HINDERED = [
    (clock, r"test_compile_hindered.py:\d+: the number"),
    (fetching, r"test_compile_hindered.py:\d+: it fetches a value"),
    (putting, r"test_compile_hindered.py:\d+: it puts data"),
    (keeping, r"it changes what it reads: KEPT is \d+ entries long"),
    (counting, r"it changes what it reads: .*calls"),
    (hiding, r"test_compile_hindered.py:\d+: the result of mul is kept where"),
    (reaching, r"test_compile_hindered.py:\d+: it reads a tensor that it is not given"),
    (returning, r"it returns a object"),
]


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(("function", "reason"), HINDERED, ids=lambda value: getattr(value, "__name__", ""))
def test_what_cannot_be_traced_runs_as_it_is_and_is_told_once(function: Any, reason: str) -> None:
    """One warning with the reason, and the line where there is one; every call gives what it would have given."""
    global UNSEEN
    UNSEEN = iter([gt.ones(3) for _ in range(40)])
    ROLLS.seed(1)
    expected = [told(function(t(1, 2, at))) for at in range(20) if function is not returning]
    ROLLS.seed(1)
    compiled = gt.compile(function)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [told(compiled(t(1, 2, at))) for at in range(20)]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "runs uncompiled from now on: " in str(caught[0].message)
    assert compiled.stats["replays"] == 0
    np.testing.assert_array_equal((gt.ones(2) + 1.0).numpy(), [2, 2])
    assert re.search(reason, compiled.reason), compiled.reason
    assert function is returning or found == expected


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("function", [fetching, putting, returning], ids=lambda value: value.__name__)
def test_a_full_graph_is_demanded(function: Any) -> None:
    """With `fullgraph=True` what hinders is an error, raised in the line itself where there is one."""
    compiled = gt.compile(function, fullgraph=True)
    with pytest.raises(gt.CompileError):
        compiled(t(1, 2, 3))
    np.testing.assert_array_equal((gt.ones(2) + 1.0).numpy(), [2, 2])


# random programs


def test_a_compiled_function_is_counted_by_itself() -> None:
    """`reset()` forgets traces, counts and what hindered."""
    gt.connect("inproc", workers=1)
    compiled = gt.compile(fetching)
    assert isinstance(compiled, Compiled)
    compiled(t(1, 2, 3))
    with pytest.warns(UserWarning, match="runs uncompiled from now on"):
        compiled(t(1, 2, 3))
    compiled(t(1, 2, 3))
    assert compiled.reason is not None
    compiled.reset()
    assert compiled.reason is None
    assert compiled.stats["calls"] == 0
    gt.disconnect()


@pytest.mark.usefixtures("session")
def test_an_array_without_elements_is_no_data() -> None:
    """Caches of attention begin with one: the rest of the call is replayed."""
    joined = gt.compile(lambda x: gt.cat([gt.tensor([]), gt.from_numpy(np.zeros((0,), np.float32)), x]))
    for number in range(5):
        assert joined(gt.full((2,), number)).tolist() == [number, number]
    assert joined.stats["replays"] == 3
    assert gt.from_numpy(np.zeros((3, 0), np.int16)).dtype == gt.int16
