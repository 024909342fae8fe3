"""What the client accepts the dispatcher accepts: what is out of bounds raises in the user's own line, and nothing is harmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
import gt.nn.functional as F
from gt.bounds import MAX_NAME_LENGTH, MAX_OPERANDS, MAX_PATH_DEPTH
from gt.errors import DTypeError, ProtocolError, ShapeError
from gt.ir.infer import derive
from gt.ir.spec import spec

pytestmark = pytest.mark.usefixtures("session")

REFUSED: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    "a pool of a negative size": (ShapeError, lambda: F.adaptive_avg_pool1d(gt.ones(1, 1, 4), -1)),
    "a shape of too many elements": (ShapeError, lambda: gt.ones(1).expand(1 << 40, 1 << 40)),
    "a result of too many elements": (ShapeError, lambda: gt.ones(0, 1 << 40).mT @ gt.ones(0, 1 << 40)),
    "a result of too many dimensions": (ShapeError, lambda: gt.ones(*[1] * 20)[gt.zeros(*[1] * 14, dtype=gt.int64)]),
    "a size beyond the most elements": (ShapeError, lambda: gt.ones(1 << 50, 0)),
    "an array of too many dimensions": (ShapeError, lambda: gt.tensor(np.zeros([1] * 40))),
}


@pytest.mark.parametrize(("error", "call"), REFUSED.values(), ids=REFUSED)
def test_what_is_out_of_bounds_raises_in_the_users_line(error: type[Exception], call: Callable[[], Any]) -> None:
    """The call itself raises, and what was computed before and is computed after has its values."""
    before = gt.ones(3) * 2
    with pytest.raises(error) as caught:
        call()
    assert not isinstance(caught.value, ProtocolError)
    assert before.tolist() == [2, 2, 2]
    assert (before + 1).tolist() == [3, 3, 3]


def test_many_tensors_are_joined_in_steps() -> None:
    """One instruction has a bounded number of operands; a longer list is joined all the same, with gradients."""
    count = MAX_OPERANDS + 3
    x = gt.arange(count, dtype=gt.float32).requires_grad_()
    joined = gt.cat([x[n : n + 1] for n in range(count)])
    joined.sum().backward()
    assert np.array_equal(joined.detach().numpy(), np.arange(count, dtype=np.float32))
    assert x.grad is not None
    assert x.grad.sum().item() == count


def test_names_of_signals_are_bounded() -> None:
    """A name too long, or that no message can carry, raises where the signal is named; a path too deep where it is entered."""
    for name in ("x" * (MAX_NAME_LENGTH + 1), "/".join(["a"] * (MAX_PATH_DEPTH + 1)), "\ud800"):
        with pytest.raises(ValueError, match="signal"):
            gt.signal.context(name)
    with pytest.raises(ValueError, match="name"):
        gt.signal.context("a", backward="x" * (MAX_NAME_LENGTH + 1))
    with gt.signal.context("/".join(["a"] * MAX_PATH_DEPTH)):
        assert (gt.ones(2) + 1).tolist() == [2, 2]
        with pytest.raises(ValueError, match="nest at most"):
            gt.signal.enter("b")
        assert len(gt.signal.current()) == MAX_PATH_DEPTH
    assert gt.signal.current() == ()


def test_a_file_of_any_name_is_a_site() -> None:
    """The user's line is text that every message can carry, whatever the file is called."""
    source = "def double(x):\n    return x * 2\n"
    for name in ("\udc80.py", "x" * 100_000, "ü.py"):
        scope: dict[str, Any] = {"__name__": "program"}
        exec(compile(source, name, "exec"), scope)
        assert scope["double"](gt.ones(2)).tolist() == [2, 2]


def test_the_error_names_op_and_attribute() -> None:
    """What is no attribute of an instruction is refused by one check, for client and dispatcher, which says what is allowed."""
    x = spec(gt.float32, (2, 3))
    with pytest.raises(DTypeError, match="sum: keepdims: True or False, not 7"):
        derive("sum", (x,), {"axes": (0,), "keepdims": 7})
    with pytest.raises(DTypeError, match="cast: dtype: a dtype, not 'f33'"):
        derive("cast", (x,), {"dtype": "f33"})
    with pytest.raises(ShapeError, match=r"sum: axes: axes in order, each once, not \(1, 0\)"):
        derive("sum", (x,), {"axes": (1, 0), "keepdims": True})
    with pytest.raises(ShapeError, match="reshape: shape: integers from 0 to 281474976710656, not "):
        derive("reshape", (x,), {"shape": (2, -3)})
    with pytest.raises(ShapeError, match=f"cat takes at most {MAX_OPERANDS} operands, not {MAX_OPERANDS + 1}"):
        derive("cat", (x,) * (MAX_OPERANDS + 1), {"axis": 0})
