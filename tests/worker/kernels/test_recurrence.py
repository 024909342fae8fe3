"""Recurrent layers against their definition, one number at a time, and their gradients against differences."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from one_kernel import run

from gt.ir.dtypes import as_dtype
from gt.ir.infer import infer
from gt.ir.spec import spec
from gt.worker.base.kernel_call import KernelCall, OperandPart
from gt.worker.kernels import recurrence as module
from gt.worker.op_table.op_table import DETERMINISTIC_KERNELS, KERNELS

Array = np.ndarray[Any, Any]
R = np.random.default_rng(5)
ROWS, STEPS, INPUTS, SIZE = 3, 5, 2, 4
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
COUNT = {"lstm": 2, "gru": 1, "rnn": 1}


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Each test draws the same, whatever ran before it."""
    R.bit_generator.state = np.random.default_rng(5).bit_generator.state


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def steps_of(op: str, operands: list[Array], reverse: bool, relu: bool) -> list[list[Array]]:
    """The states before the first step and after each, from the definition of the cells in PyTorch's documents."""
    inputs, incoming, weight, *rest = operands
    state, biases = rest[: COUNT[op]], rest[COUNT[op] :]
    out, inner = [state], biases[1] if len(biases) > 1 else None
    for fed in inputs[:: -1 if reverse else 1]:
        x, h = fed @ incoming.T + (biases[0] if biases else 0), state[0]
        recalled = h @ weight.T
        if op == "lstm":
            i, f, g, o = np.split(x + recalled, 4, 1)
            cell = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
            state = [sigmoid(o) * np.tanh(cell), cell]
        elif op == "gru":
            (xr, xz, xn), (hr, hz, hn) = np.split(x, 3, 1), np.split(recalled, 3, 1)
            r, z = sigmoid(xr + hr), sigmoid(xz + hz)
            n = np.tanh(xn + r * (hn + (0 if inner is None else inner)))
            state = [(1 - z) * n + z * h]
        else:
            state = [np.maximum(x + recalled, 0) if relu else np.tanh(x + recalled)]
        out.append(state)
    return out


def operands_of(op: str, biased: bool) -> list[Array]:
    height = GATES[op] * SIZE
    x, incoming, weight = (R.standard_normal(s) / 2 for s in ((STEPS, ROWS, INPUTS), (height, INPUTS), (height, SIZE)))
    states = [R.standard_normal((ROWS, SIZE)) for _ in range(COUNT[op])]
    biases = [height, *([SIZE] if op == "gru" else [])] if biased else []
    return [x, incoming, weight, *states, *(R.standard_normal(size) for size in biases)]


CASES = [
    ("lstm", False, False),
    ("lstm", True, False),
    ("gru", True, False),
    ("gru", False, False),
    ("rnn", True, False),
    ("rnn", False, True),
]


def attributes_of(op: str, reverse: bool, relu: bool, **more: Any) -> dict[str, Any]:
    return {"reverse": reverse, **({"relu": relu} if op.startswith("rnn") else {}), **more}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(("op", "biased", "relu"), CASES)
def test_all_steps_are_what_cells_are(
    op: str, biased: bool, relu: bool, joined: bool, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is kept for the gradient and without; with inputs step by step and all at once."""
    if not joined:
        monkeypatch.setattr(module, "MIN_SHARED_MULTIPLICATIONS", 0)
    operands = operands_of(op, biased)
    expected = np.array(steps_of(op, operands, reverse, relu))[:: -1 if reverse else 1]
    for kept in (False, True) if op != "rnn" else (None,):
        out = run(op, *operands, **attributes_of(op, reverse, relu, **({} if kept is None else {"kept": kept})))
        np.testing.assert_allclose(out[::-1][: COUNT[op]].swapaxes(0, 1), expected, rtol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("op", "biased", "relu"), CASES)
def test_gradients_are_differences(
    op: str, biased: bool, relu: bool, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of inputs, their weight and the first states, whether slopes are computed for all steps at once or for two."""
    operands, count = operands_of(op, biased), COUNT[op]
    given = [R.standard_normal((STEPS, ROWS, SIZE)), *(R.standard_normal((ROWS, SIZE)) for _ in range(count))]
    last = 0 if reverse else STEPS
    keeps = {} if op == "rnn" else {"kept": True}

    def total(*each: Array) -> float:
        out = run(op, *each, **attributes_of(op, reverse, relu, **keeps))
        ends = sum((g * out[-1 - at, last]).sum() for at, g in enumerate(given[1:]))
        states = out[-1, :-1] if reverse else out[-1, 1:]
        return float((given[0] * states).sum() + ends)

    kept = run(op, *operands, **attributes_of(op, reverse, relu, **keeps))
    attributes = attributes_of(op, reverse, relu, states=True)
    found = run(f"{op}_grad", kept, operands[2], *given, **attributes)
    monkeypatch.setattr(module, "SLOPES_BYTES", 2 * 6 * ROWS * SIZE * 8)
    again = run(f"{op}_grad", kept, operands[2], *given, **attributes)
    np.testing.assert_array_equal(found, again)
    alone = run(f"{op}_grad", kept, operands[2], *given, **{**attributes, "states": False})
    np.testing.assert_array_equal(found[:STEPS], alone)
    brought = found[:STEPS, :, : GATES[op] * SIZE]
    states = [found[STEPS, :, at * SIZE : (at + 1) * SIZE] for at in range(count)]
    parts = [brought @ operands[1], np.einsum("tng,tni->gi", brought, operands[0]), None, *states]
    for position, part in enumerate(parts):
        if part is None:
            continue
        for place in list(np.ndindex(part.shape))[::7]:
            up, down = ([each.copy() for each in operands] for _ in range(2))
            up[position][place] += 1e-6
            down[position][place] -= 1e-6
            assert part[place] == pytest.approx((total(*up) - total(*down)) / 2e-6, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("op", "biased", "relu"), CASES)
def test_half_precision_is_rounded_once(op: str, biased: bool, relu: bool, dtype: str) -> None:
    """Steps and their gradients of narrow numbers are those of the same numbers in double precision, rounded."""
    number = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    keeps = {} if op == "rnn" else {"kept": True}
    narrow = [each.astype(number) for each in operands_of(op, biased)]
    attributes = attributes_of(op, False, relu, **keeps)
    out, expected = (run(op, *each, **attributes) for each in (narrow, [x.astype(np.float64) for x in narrow]))
    unit = float(ml_dtypes.finfo(number).eps)
    assert out.dtype == number
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=unit, atol=8 * unit)
    shapes = [(STEPS, ROWS, SIZE), *[(ROWS, SIZE)] * COUNT[op]]
    back = (out, narrow[2], *(R.standard_normal(shape).astype(number) for shape in shapes))
    attributes = attributes_of(op, False, relu, states=True)
    out, expected = (run(f"{op}_grad", *each, **attributes) for each in (back, [x.astype(np.float64) for x in back]))
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=unit, atol=16 * unit)


@pytest.mark.parametrize("op", ["lstm", "gru", "rnn"])
def test_a_deterministic_session_has_the_same_bits_for_some_rows(op: str) -> None:
    """Rows on the grid of blocks, computed alone, are those of all; and near those of other sessions."""
    blocks, rows, size = 4, 16, 8
    height = GATES[op] * size
    shapes: list[tuple[int, ...]] = [(6, rows, 5), (height, 5), (height, size), *[(rows, size)] * COUNT[op], (height,)]
    shapes += [(size,)] * (op == "gru")
    axes = [{3: 1, 2: 0}.get(len(shape)) if at not in (1, 2) else None for at, shape in enumerate(shapes)]
    operands = [(R.standard_normal(shape) / 4).astype(np.float32) for shape in shapes]
    attributes = attributes_of(op, True, False, **({} if op == "rnn" else {"kept": True}))

    def computed(first: int, last: int) -> Array:
        mine = [
            each if axis is None else each.take(range(first, last), axis)
            for each, axis in zip(operands, axes, strict=True)
        ]
        specs = tuple(spec(as_dtype(each.dtype), each.shape) for each in operands)
        (whole,) = infer(op, specs, attributes)
        local = tuple(spec(as_dtype(each.dtype), each.shape) for each in mine)
        (result,) = infer(op, local, attributes)
        parts = tuple(
            OperandPart(
                each.shape,
                tuple((first, last) if at == axis else (0, length) for at, length in enumerate(each.shape)),
            )
            for each, axis in zip(operands, axes, strict=True)
        )
        box = tuple((first, last) if axis == 2 else (0, length) for axis, length in enumerate(whole.shape))
        call = KernelCall(np, op, attributes, local, result, whole.shape, box, parts, blocks)
        return np.asarray(DETERMINISTIC_KERNELS[op](call)(*mine))

    whole = computed(0, rows)
    assert computed(0, 4).tobytes() == np.ascontiguousarray(whole[:, :, :4]).tobytes()
    assert computed(8, 16).tobytes() == np.ascontiguousarray(whole[:, :, 8:]).tobytes()
    np.testing.assert_allclose(whole, run(op, *operands, **attributes), rtol=1e-4, atol=1e-6)
    assert KERNELS[op] is not DETERMINISTIC_KERNELS[op]


@pytest.mark.parametrize("op", ["lstm", "gru", "rnn"])
def test_gradients_of_the_last_states_may_lie_turned(op: str) -> None:
    """As those of a transposed state do."""
    operands = [each.astype(np.float32) for each in operands_of(op, True)]
    kept = run(op, *operands, **attributes_of(op, False, False, **({} if op == "rnn" else {"kept": True})))
    given = [R.standard_normal(shape, dtype=np.float32) for shape in [(STEPS, ROWS, SIZE), *[(ROWS, SIZE)] * COUNT[op]]]
    attributes = attributes_of(op, False, False, states=True)
    found = run(f"{op}_grad", kept, operands[2], *given, **attributes)
    again = run(f"{op}_grad", kept, operands[2], *map(np.asfortranarray, given), **attributes)
    np.testing.assert_allclose(again, found, rtol=1e-6, atol=1e-6)
