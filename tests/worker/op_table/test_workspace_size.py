"""What kernels use while they compute: known beforehand, not less than they take, and room is made for it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from builders import Array, Lines
from one_kernel import operand_of
from one_mesh import CLIENT, WHOLE, Ranks

from gt.errors import DTypeError
from gt.ir import dtypes
from gt.ir.infer import infer
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device.buffers import HostBuffers
from gt.worker.kernels import recurrence
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.memory_limit.low_memory_run import LowMemoryRun
from gt.worker.op_table.op_table import KERNELS, WORKSPACE_RULES, workspace
from gt.worker.spill.spill_file import SpilledValue, SpillStorage

SLACK = 128 << 10
"""Bytes of what is small and does not grow, as NumPy's buffers are."""
LIBRARY = frozenset(("cholesky", "inverse", "det", "slogdet", "qr", "svd", "eigh", "eig", "lu", "matrix_exp", "solve"))
"""Ops for which a library has memory that Python is not told of."""
POOLS = [
    {"axes": (1,), "sizes": (2,), "strides": (2,), "dilations": (1,)},
    {"axes": (1, 2), "sizes": (2, 2), "strides": (2, 1), "dilations": (1, 1)},
]
CONV = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "spreads": (1, 1)}


def numbers(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape)


def whole_numbers(*shape: int) -> Array:
    return np.random.default_rng(3).integers(-128, 128, shape, np.int8)


def attended(gradient: bool, causal: bool, masked: bool) -> tuple[str, tuple[Array, ...], dict[str, Any]]:
    q, k, v = (numbers(2, 3, length, 16) for length in (300, 400, 400))
    mask = (numbers(300, 400) > 0,) if masked else ()
    name, given = ("attention_grad", (q, k, v, numbers(2, 3, 300, 16))) if gradient else ("attention", (q, k, v))
    return name, (*given, *mask), {"causal": causal}


RECURRENT = ("lstm", "gru", "rnn", "lstm_grad", "gru_grad", "rnn_grad")


def recurrent(op: str, reverse: bool) -> tuple[str, tuple[Array, ...], dict[str, Any]]:
    gates, kept, count = {"lstm": (4, 6, 2), "gru": (3, 5, 1), "rnn": (1, 1, 1)}[op.removesuffix("_grad")]
    more = {"relu": reverse} if op.startswith("rnn") else {}
    rows, steps, size = 20, 30, 40
    weight = numbers(gates * size, size)
    states = [numbers(rows, size)] * count
    if op.endswith("_grad"):
        given = (numbers(kept, steps + 1, rows, size), weight, numbers(steps, rows, size), *states)
        return op, given, {"reverse": reverse, "states": True, **more}
    more = more or {"kept": not reverse}
    return op, (numbers(steps, rows, 35), numbers(gates * size, 35), weight, *states), {"reverse": reverse, **more}


def symmetric(size: int) -> Array:
    x = numbers(size, size)
    return x @ x.T + size * np.eye(size)


CASES: list[tuple[str, tuple[Array, ...], dict[str, Any]]] = [
    *(attended(g, c, m) for g in (False, True) for c in (False, True) for m in (False, True)),
    ("conv", (numbers(64, 1, 8, 24, 24), numbers(1, 16, 8, 3, 3)), CONV),
    ("conv", (numbers(3, 2, 8, 40, 40), numbers(2, 4, 8, 5, 5)), {**CONV, "strides": (2, 2)}),
    ("conv", (numbers(40, 2, 8, 8, 8), numbers(2, 4, 8, 8, 8)), {**CONV, "spreads": (8, 8), "pads": (7,) * 4}),
    ("conv", (numbers(40, 2, 8, 8, 8), numbers(2, 4, 8, 9, 9)), {**CONV, "spreads": (8, 8), "pads": (5,) * 4}),
    ("conv", (numbers(24, 1, 40, 14, 14), numbers(1, 16, 40, 14, 14)), CONV),
    ("conv", (numbers(24, 1, 40, 8, 8), numbers(1, 16, 40, 10, 10)), {**CONV, "pads": (2, 1, 1, 2)}),
    *(("max_pool", (numbers(20, 40, 60),), pool) for pool in POOLS),
    *(("max_pool_grad", (numbers(20, 40, 60), numbers(20, 20, 59), numbers(20, 20, 59)), pool) for pool in POOLS[1:]),
    *(recurrent(op, reverse) for op in RECURRENT for reverse in (False, True)),
    *(("argsort", (numbers(50, 2000),), {"axis": axis, "descending": d}) for axis in (0, 1) for d in (False, True)),
    *((name, (numbers(100, 1000),), {"axis": 1}) for name in ("cumsum", "cumprod", "argcummax", "argcummin")),
    *((name, (symmetric(200),), {}) for name in ("cholesky", "inverse", "det", "matrix_exp")),
    *((name, (symmetric(200),), {}) for name in ("slogdet", "eigh", "eig", "lu")),
    *((name, (symmetric(200),), {"full": True}) for name in ("qr", "svd")),
    ("solve", (symmetric(200), numbers(200, 300)), {}),
    ("linear_int8", (numbers(20, 800), whole_numbers(900, 800)), {}),
    ("matmul_int8", (whole_numbers(64, 1100), whole_numbers(900, 1100)), {}),
]


def call_of(name: str, operands: tuple[Array, ...], attributes: dict[str, Any]) -> KernelCall:
    specs = tuple(map(operand_of, operands))
    (result,) = infer(name, specs, attributes)
    return KernelCall(np, name, attributes, specs, result, result.shape, tuple((0, size) for size in result.shape))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_kernels_use_no_more_than_is_said(number: int, dtype: str) -> None:
    """Beside the result; and half of what is said is used, or room would be wasted."""
    name, operands, attributes = CASES[number]
    to = dtypes.as_dtype(dtype).numpy
    operands = tuple(x if x.dtype.kind in "bi" else x.astype(to) for x in operands)
    try:
        call = call_of(name, operands, attributes)
    except DTypeError:
        pytest.skip(f"{name} takes no {dtype}")
    used = used_by(call, operands)
    assert used <= workspace(call) + SLACK
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence, "lstm_loops", None)  # which use less, where operands lie as they need
        used = used_by(call, operands)
    assert used <= workspace(call) + SLACK
    if name not in LIBRARY:
        assert workspace(call) <= 2 * used + SLACK


def used_by(call: KernelCall, operands: tuple[Array, ...]) -> int:
    """The bytes that a kernel uses beside its result, at most."""
    kernel = KERNELS[call.op](call)
    with np.errstate(all="ignore"):
        kernel(*operands)  # what is kept for later calls is there
        tracemalloc.start()
        try:
            result = kernel(*operands)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    return int(most - result.nbytes)


EMPTY: list[tuple[str, tuple[Array, ...], dict[str, Any]]] = [
    ("conv", (numbers(4, 1, 0, 8, 8), numbers(1, 6, 0, 3, 3)), CONV),
    ("conv", (numbers(0, 1, 3, 8, 8), numbers(1, 6, 3, 3, 3)), CONV),
    ("attention", (numbers(2, 0, 5), numbers(2, 3, 5), numbers(2, 3, 5)), {"causal": False}),
    ("attention", (numbers(2, 4, 0), numbers(2, 3, 0), numbers(2, 3, 5)), {"causal": True}),
    ("attention_grad", (numbers(2, 0, 5), numbers(2, 3, 5), numbers(2, 3, 5), numbers(2, 0, 5)), {"causal": False}),
    ("attention", (numbers(2, 4, 5), numbers(2, 0, 5), numbers(2, 0, 5)), {"causal": True}),
    ("attention_grad", (numbers(2, 4, 5), numbers(2, 0, 5), numbers(2, 0, 5), numbers(2, 4, 5)), {"causal": False}),
    *((name, (numbers(0, 3),), {"axis": 0}) for name in ("cumsum", "cumprod", "argcummax", "argcummin")),
    ("argsort", (numbers(0, 3),), {"axis": 0, "descending": True}),
    *((name, (numbers(0, 0),), {}) for name in ("cholesky", "inverse", "det", "slogdet", "matrix_exp")),
    *((name, (numbers(0, 3, 3),), {}) for name in ("det", "eigh", "eig", "lu")),
    ("qr", (numbers(0, 3, 3),), {"full": True}),
    ("svd", (numbers(0, 3, 3),), {"full": True}),
    ("solve", (numbers(3, 3), numbers(3, 0)), {}),
]
"""A shard may be empty, whatever of the call it is."""


@pytest.mark.parametrize("number", range(len(EMPTY)))
def test_what_computes_with_nothing_uses_little(number: int) -> None:
    name, operands, attributes = EMPTY[number]
    call = call_of(name, operands, attributes)
    assert workspace(call) <= SLACK
    assert KERNELS[name](call)(*operands).shape == call.result.shape


def test_every_op_with_scratch_is_among_the_cases() -> None:
    assert {name for name, _, _ in CASES} == WORKSPACE_RULES.keys()


def sorting(rows: int) -> tuple[Ranks, int, Array]:
    """A plan whose kernel uses more than its result, beside a tensor that it does not read."""
    group = Ranks(1)
    array = numbers(rows).astype(np.float32)
    group.store(1, array, WHOLE)
    group.store(2, array, WHOLE)
    lines = Lines()
    plan, _ = group.define(lines.segment(lines.op("argsort", lines.input(rows), axis=0, descending=True)), [WHOLE])
    return group, plan, array


def test_room_is_made_for_what_a_kernel_uses() -> None:
    """What is stored goes out for it before the plan begins, as it does for results."""
    group, plan, array = sorting(1000)
    (core,) = group.cores
    held, result = 2 * array.nbytes, 8 * array.size
    core.stored.limiter = limiter = MemoryLimiter(HostBuffers(), SpillStorage(), held + result + array.nbytes, small=0)
    limiter.bound = held
    group.tell(0, group.execute(plan, [1]))
    assert type(group.stored(2)) is SpilledValue
    assert limiter.low_memory_runs == 0 or limiter.spill.used == array.nbytes
    np.testing.assert_array_equal(group.stored(100), np.argsort(-array, kind="stable"))


def test_a_kernel_that_would_use_more_than_there_is_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said is what it may use at most: a step with room for its operands and its result is tried."""
    group, plan, array = sorting(1000)
    (core,) = group.cores
    core.stored.limiter = limiter = MemoryLimiter(HostBuffers(), SpillStorage(), array.nbytes + 8 * array.size, small=0)
    limiter.bound = 2 * array.nbytes
    seen: list[int] = []
    original = LowMemoryRun.scratch

    def asked(self: LowMemoryRun, step: Any, needs: int) -> int:
        seen.append(original(self, step, needs))
        return seen[-1]

    monkeypatch.setattr(LowMemoryRun, "scratch", asked)
    group.tell(0, group.execute(plan, [1]))
    assert seen == [0]
    assert type(core.stored.tensors[CLIENT][2]) is SpilledValue
    np.testing.assert_array_equal(group.stored(100), np.argsort(-array, kind="stable"))
