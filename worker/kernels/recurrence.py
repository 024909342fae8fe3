"""Kernels of recurrent layers: all steps of a sequence in one call, and all steps back.

What inputs bring to the gates comes as one product for the whole sequence. Here each step adds what the hidden state recalls and
computes all gates at once, in few calls, whose results lie where they are kept: a gate of a step is one stretch of memory. On
the way back all that does not wait for a later step is computed for many steps at once; a step then takes two products with the
slopes and one with the weight. The gradient of the weight is no part of it: it is one product of all steps, by `matmul`.

Cells are those of PyTorch: Elman's; Hochreiter and Schmidhuber, 1997; Cho et al., 2014, with the reset after the product. Half
precision is computed in float32. Examples do not meet each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from gt.worker.base.kernel_call import Kernel, KernelCall

from .elementwise import wide
from .matmul import product

MAX_WHOLE_FACTOR_BYTES: Final = 64 << 10
"""Bytes of a factor of all gates of a step, at most, that is kept once for each element: NumPy takes less time for two arrays of
one shape than for one that is repeated, but large ones take room in caches."""
SLOPES_BYTES: Final = 1 << 20
"""Bytes of slopes that are computed at once on a CPU: they stay in a core's caches until their step comes."""


class RecurrentKernel:
    """What the kernels of one call share. `multiply(a, b, out=…)` is its product of matrices."""

    def __init__(self, call: KernelCall, multiply: Kernel | None = None) -> None:
        self.xp, self.result = call.xp, call.result
        self.dtype, self.work = call.result.dtype.numpy, wide(call.result.dtype).numpy
        self.gates, self.size = call.tensor(1).shape
        self.gates //= self.size
        grad = call.op.endswith("_grad")
        self.rows = call.tensor(0).shape[2 if grad else 0]
        self.steps = call.tensor(0).shape[0 if grad else 1]
        self.backwards = call.attributes["reverse"]
        self.relu = call.attributes.get("relu", False)
        self.stacked = call.xp is np and multiply is None
        """Whether what the hidden state recalls is a stack of products, one for each gate."""
        times = self.rows * self.gates * self.size**2
        self.multiply = product(call, times, wide(call.result.dtype)) if multiply is None else multiply

    def empty(self, *shape: int) -> Any:
        return self.xp.empty(shape, self.work)

    def in_turn(self, x: Any, axis: int = 0) -> Any:
        """`x` with its steps in the order in which they are computed."""
        return self.xp.flip(x, axis) if self.backwards else x

    def turned(self, weight: Any) -> Any:
        """The weight by which a hidden state is multiplied: stacked, one matrix (h, h) for each gate, row by row, for which BLAS
        takes half the time of small products by a matrix that lies turned."""
        if not self.stacked:
            return weight.T
        return np.ascontiguousarray(weight.reshape(self.gates, self.size, self.size).swapaxes(1, 2))

    def recalled(self) -> tuple[Any, Any]:
        """Memory of what the hidden state brings to all gates, as products leave it, and the same gate by gate [gate, n, h]."""
        if self.stacked:
            made = self.empty(self.gates, self.rows, self.size)
            return made, made
        made = self.empty(self.rows, self.gates * self.size)
        return made, made.reshape(self.rows, self.gates, self.size).transpose(1, 0, 2)

    def cast(self, *operands: Any) -> list[Any]:
        return [x.astype(self.work, copy=False) for x in operands]


def recurrence(call: KernelCall, multiply: Kernel | None = None) -> Kernel:
    """All steps of a layer in one direction."""
    k = RecurrentKernel(call, multiply)
    if call.result.size == 0:
        return lambda *_: call.xp.zeros(call.result.shape, k.dtype)
    forward = _FORWARD[call.op](k, call)

    def kernel(*operands: Any) -> Any:
        brought, weight, *rest = k.cast(*operands)
        out = k.empty(*call.result.shape)
        fed = brought.reshape(k.rows, k.steps, k.gates, k.size).transpose(1, 2, 0, 3)
        forward(k.in_turn(out), k.in_turn(fed), k.turned(weight), *rest)
        return out.astype(k.dtype, copy=False)

    return kernel


Forward = Callable[..., None]
"""Computes all steps, from the result's memory [t, k, n, h], what inputs bring [t, gate, n, h], the weight turned, and the
first state."""


class Logistic:
    """The gates of a step: of some the logistic function, of the others tanh; both are tanh, for σ(x) = (tanh(x / 2) + 1) / 2."""

    def __init__(self, k: RecurrentKernel, logistic: tuple[bool, ...]) -> None:
        self.xp = k.xp
        self.scale = self._of(k, np.where(logistic, 0.5, 1))
        self.shift = self._of(k, np.where(logistic, 0.5, 0))

    @staticmethod
    def _of(k: RecurrentKernel, factors: Any) -> Any:
        """Factors of the gates, for each element of a step or to be repeated."""
        each = k.xp.asarray(factors.reshape(-1, 1, 1).astype(k.work))
        whole = k.xp.broadcast_to(each, (len(factors), k.rows, k.size))
        return k.xp.ascontiguousarray(whole) if k.xp is np and whole.nbytes <= MAX_WHOLE_FACTOR_BYTES else each

    def __call__(self, x: Any) -> None:
        xp = self.xp
        xp.multiply(x, self.scale, x)
        xp.tanh(x, x)
        xp.multiply(x, self.scale, x)
        xp.add(x, self.shift, x)


def _lstm(k: RecurrentKernel, call: KernelCall) -> Forward:
    """Gates in the order input, forget, cell, output; h, c and the gates, or h and c."""
    xp, kept = k.xp, call.attributes["kept"]
    activate = Logistic(k, (True, True, False, True))

    def forward(out: Any, fed: Any, weight: Any, hidden: Any, cell: Any) -> None:
        recalled, by_gate = k.recalled()
        spare: Any = None if kept else k.empty(4, k.rows, k.size)
        part = k.empty(k.rows, k.size)
        for made, brought in zip(out, fed, strict=True):
            gates = made[2:] if kept else spare
            k.multiply(hidden, weight, out=recalled)
            xp.add(by_gate, brought, gates)
            activate(gates)
            i, f, g, o = gates
            before, hidden, cell = cell, made[0], made[1]
            xp.multiply(f, before, cell)
            xp.multiply(i, g, part)
            xp.add(cell, part, cell)
            xp.tanh(cell, part)
            xp.multiply(o, part, hidden)

    return forward


def _gru(k: RecurrentKernel, call: KernelCall) -> Forward:
    """Gates in the order reset, update, new; h, the gates and what is recalled for the new state, or h."""
    xp, kept = k.xp, call.attributes["kept"]
    activate = Logistic(k, (True, True))

    def forward(out: Any, fed: Any, weight: Any, hidden: Any, inner: Any = None) -> None:
        recalled, by_gate = k.recalled()
        spare: Any = None if kept else k.empty(4, k.rows, k.size)
        part = k.empty(k.rows, k.size)
        inner = 0 if inner is None else inner
        for made, brought in zip(out, fed, strict=True):
            gates = made[1:] if kept else spare
            _, _, new, memory = gates
            k.multiply(hidden, weight, out=recalled)
            xp.add(by_gate[:2], brought[:2], gates[:2])
            activate(gates[:2])
            reset, update = gates[:2]
            xp.add(by_gate[2], inner, memory)
            xp.multiply(reset, memory, new)
            xp.add(new, brought[2], new)
            xp.tanh(new, new)
            before, hidden = hidden, made[0]
            xp.subtract(before, new, part)
            xp.multiply(update, part, part)
            xp.add(new, part, hidden)

    return forward


def _rnn(k: RecurrentKernel, call: KernelCall) -> Forward:
    xp = k.xp

    def forward(out: Any, fed: Any, weight: Any, hidden: Any) -> None:
        for made, brought in zip(out, fed, strict=True):
            before, hidden = hidden, made[0]
            k.multiply(before, weight, out=made if k.stacked else hidden)
            xp.add(hidden, brought[0], hidden)
            if k.relu:
                xp.maximum(hidden, 0, out=hidden)
            else:
                xp.tanh(hidden, hidden)

    return forward


_FORWARD: Final[dict[str, Callable[[RecurrentKernel, KernelCall], Forward]]] = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}


# backward


class Backward(NamedTuple):
    """How a cell goes back."""

    arrays: int
    """Arrays (n, h) of slopes that a step has."""
    state: int | None
    """Which of what was kept the slopes of the next step read; None: they read no state."""
    slopes: Callable[[RecurrentKernel, Any, Any, Any], None]
    """Fills the slopes [k, t, n, h] of some steps, from what was kept [k, t, n, h], and the states before them [t, n, h]."""
    step: Callable[..., None]
    """One step back, from its slopes, what was kept of it, and the gradient of its hidden state: the gradients of the gates
    [gate, n, h]; the first of the state becomes what this step's hidden state passes on beside the product."""
    products: slice
    """Of the columns of a gradient, in multiples of h, those that the state recalled: they meet the weight."""


def _lstm_slopes(k: RecurrentKernel, made: Any, kept: Any, before: Any) -> None:
    xp = k.xp
    (_, c, i, f, g, o), (of_i, of_f, of_g, of_o, of_c, tanh) = kept, made
    xp.tanh(c, tanh)
    for gate, slope, factor in ((i, of_i, g), (f, of_f, before), (o, of_o, tanh)):
        xp.subtract(1, gate, slope)
        xp.multiply(slope, gate, slope)
        xp.multiply(slope, factor, slope)
    for value, slope, factor in ((g, of_g, i), (tanh, of_c, o)):
        xp.multiply(value, value, slope)
        xp.subtract(1, slope, slope)
        xp.multiply(slope, factor, slope)


def _lstm_step(
    k: RecurrentKernel, slopes: Any, kept: Any, gradient: Any, gates: Any, state: list[Any], part: Any
) -> None:
    cell = state[1]
    k.xp.multiply(gradient, slopes[4], part)
    k.xp.add(cell, part, cell)
    k.xp.multiply(slopes[:3], cell, gates[:3])
    k.xp.multiply(slopes[3], gradient, gates[3])
    k.xp.multiply(cell, kept[3], cell)


def _gru_slopes(k: RecurrentKernel, made: Any, kept: Any, before: Any) -> None:
    """Of the new state without what is recalled, the reset, the update, and what is recalled for the new state."""
    xp = k.xp
    (_, r, z, n, memory), (of_n, of_r, of_z, of_memory) = kept, made
    xp.multiply(n, n, of_n)
    xp.subtract(1, of_n, of_n)
    xp.subtract(1, z, of_z)
    xp.multiply(of_n, of_z, of_n)
    xp.multiply(of_n, r, of_memory)
    xp.subtract(1, r, of_r)
    xp.multiply(of_r, of_memory, of_r)
    xp.multiply(of_r, memory, of_r)
    xp.multiply(of_z, z, of_z)
    xp.multiply(of_z, before - n, of_z)


def _gru_step(
    k: RecurrentKernel, slopes: Any, kept: Any, gradient: Any, gates: Any, state: list[Any], part: Any
) -> None:
    """Two gates have the same gradient as what inputs bring to them and as what the state recalls for them."""
    k.xp.multiply(slopes, gradient, gates[2:])
    k.xp.multiply(slopes[1:3], gradient, gates[:2])
    k.xp.multiply(gradient, kept[2], part)


def _rnn_slopes(k: RecurrentKernel, made: Any, kept: Any, before: Any) -> None:
    xp = k.xp
    (slope,), (h,) = made, kept
    if k.relu:
        xp.less_equal(h, 0, slope)
    else:
        xp.multiply(h, h, slope)
    xp.subtract(1, slope, slope)


def _rnn_step(
    k: RecurrentKernel, slopes: Any, kept: Any, gradient: Any, gates: Any, state: list[Any], part: Any
) -> None:
    k.xp.multiply(slopes, gradient, gates)


_BACKWARD: Final[dict[str, Backward]] = {
    "lstm_grad": Backward(6, 1, _lstm_slopes, _lstm_step, slice(0, 4)),
    "gru_grad": Backward(4, 0, _gru_slopes, _gru_step, slice(3, 6)),
    "rnn_grad": Backward(1, None, _rnn_slopes, _rnn_step, slice(0, 1)),
}


def slopes_span(call: KernelCall) -> int:
    """The steps of which slopes are computed at once."""
    steps, _, rows, size = call.tensor(0).shape
    nbytes = _BACKWARD[call.op].arrays * rows * size * wide(call.result.dtype).numpy.itemsize
    return steps if call.xp is not np else max(1, min(steps, SLOPES_BYTES // max(1, nbytes)))


def recurrence_grad(call: KernelCall, multiply: Kernel | None = None) -> Kernel:
    """The gradients of what was added up for the gates, [n, t, …]; with `states` those of the first states in one step more."""
    k = RecurrentKernel(call, multiply)
    xp, states, cell = call.xp, call.attributes["states"], _BACKWARD[call.op]
    if call.result.size == 0:
        return lambda *_: xp.zeros(call.result.shape, k.dtype)
    span, size, width = slopes_span(call), k.size, call.result.shape[-1]
    columns = slice(cell.products.start * size, cell.products.stop * size)
    passes = call.op == "gru_grad"

    def kernel(kept: Any, weight: Any, *rest: Any) -> Any:
        first, (given, *last) = (None, rest) if cell.state is None else (rest[0], rest[1:])
        weight, given, *last = k.cast(weight, given, *last)
        kept, given = k.in_turn(kept), k.in_turn(given)
        out = k.empty(*call.result.shape)
        rows = k.in_turn(out[:, : k.steps], 1)
        gates = rows.reshape(k.rows, k.steps, width // size, size).transpose(1, 2, 0, 3)
        state = [xp.array(each) for each in last]
        recalled, gradient, part = state[0], k.empty(k.rows, size), k.empty(k.rows, size)
        held = k.empty(span, cell.arrays, k.rows, size)
        for start in reversed(range(0, k.steps, span)):
            stop = min(k.steps, start + span)
            (whole,) = k.cast(kept[start:stop])
            before = None
            if cell.state is not None:
                before = k.empty(stop - start, k.rows, size)
                (before[0],) = k.cast(kept[start - 1, cell.state] if start else first)
                before[1:] = whole[:-1, cell.state]
            slopes = held[: stop - start]
            cell.slopes(k, slopes.swapaxes(0, 1), whole.swapaxes(0, 1), before)
            for at in reversed(range(start, stop)):
                xp.add(given[at], recalled, gradient)
                cell.step(k, slopes[at - start], whole[at - start], gradient, gates[at], state, part)
                if at or states:
                    k.multiply(rows[:, at, columns], weight, out=recalled)
                    if passes:
                        xp.add(recalled, part, recalled)
        if states:
            out[:, k.steps] = 0
            for number, each in enumerate(state):
                out[:, k.steps, number * size : (number + 1) * size] = each
        return out.astype(k.dtype, copy=False)

    return kernel


def scratch(call: KernelCall) -> int:
    """Bytes that the kernel of a call uses beside casts of its operands and result, at most."""
    size = call.tensor(1).shape[1]
    if call.op.endswith("_grad"):
        rows, span = call.tensor(0).shape[2], slopes_span(call)
        cell = _BACKWARD[call.op]
        arrays, weight = span * (cell.arrays + (0 if cell.state is None else 2)) + 5, 0
    else:
        rows = call.tensor(0).shape[0]
        arrays = 2 * call.tensor(1).shape[0] // size + 3
        weight = call.tensor(1).size if call.xp is np else 0
    return (arrays * rows * size + weight) * wide(call.result.dtype).numpy.itemsize
