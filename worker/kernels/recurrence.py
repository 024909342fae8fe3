"""Kernels of recurrent layers: all steps of a sequence in one call, and all steps back.

What inputs bring to the gates is one product for the whole sequence, to which each step adds what the hidden state recalls; of an
LSTM with few inputs it is part of each step's product. All gates are computed at once, in few calls, and a gate of all steps is
one stretch of memory. On the way back all that does not wait for a later step is computed for many steps at once; a step then
takes products with the slopes and one with the weight. The gradients of the weights are no part of it: they are one product of
all steps each, by `matmul`.

Where loops of machine code are built, all steps of an LSTM of float32 on a CPU are one call of them, with the same bits. On a
GPU a step of an LSTM or GRU is a product and one kernel of `cuda/recurrent_cells.py`.

What is kept of a step are its gates and the states before it, so a state is written where the next step reads it; of the step
behind the last one, only states. Cells are those of PyTorch: Elman's; Hochreiter and Schmidhuber, 1997; Cho et al., 2014, with
the reset after the product. Half precision is computed in float32. Examples do not meet each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np

from gt.worker.base.kernel_call import Kernel, KernelCall

from .conv_cpu import MAX_SMALL_MULTIPLICATIONS
from .cuda.recurrent_cells import RecurrentCells
from .elementwise import wide
from .matmul import MIN_SHARED_MULTIPLICATIONS, product

lstm_loops: ModuleType | None
try:
    from gt.worker.element_loops import lstm as lstm_loops
except ImportError:  # they are not built, or not for this processor
    lstm_loops = None

MAX_WHOLE_FACTOR_BYTES: Final = 64 << 10
"""Bytes of a factor of all gates of a step, at most, that is kept once for each element: NumPy takes less time for two arrays of
one shape than for one that is repeated, but large ones take room in caches."""
SLOPES_BYTES: Final = 1 << 20
"""Bytes of slopes that are computed at once on a CPU: they stay in a core's caches until their step comes."""
MAX_JOINED_BYTES: Final = 256 << 10
"""Bytes of the weights of hidden states and inputs, at most, that are read at each step: a core's cache keeps them."""
GATE_FACTORS: Final = {"lstm": (0.5, 0.5, 1, 0.5), "gru": (0.5, 0.5, 1), "rnn": (1,)}
"""Of some gates there is the logistic function, of the others tanh: both are tanh, for σ(x) = (tanh(x / 2) + 1) / 2. The halves
of x are in the weights and the bias."""


class RecurrentKernel:
    """What the kernels of one call share. `multiply(a, b, out=…)` is its product of matrices at each step, `bring(a, b)` that of
    all inputs."""

    def __init__(self, call: KernelCall, multiply: Kernel | None = None, bring: Kernel | None = None) -> None:
        self.xp, self.result = call.xp, call.result
        self.dtype, self.work = call.result.dtype.numpy, wide(call.result.dtype).numpy
        grad = call.op.endswith("_grad")
        self.gates, self.size = call.tensor(1 if grad else 2).shape
        self.gates //= self.size
        self.rows = call.tensor(0).shape[2 if grad else 1]
        self.steps = call.tensor(0).shape[1] - 1 if grad else call.tensor(0).shape[0]
        self.backwards = call.attributes["reverse"]
        self.relu = call.attributes.get("relu", False)
        self.stacked = call.xp is np and multiply is None
        """Whether products are stacks, one for each gate."""
        self.tiled = multiply is not None
        times = self.rows * self.gates * self.size
        self.multiply = product(call, times * self.size, wide(call.result.dtype)) if multiply is None else multiply
        self.inputs = 0 if grad else call.tensor(1).shape[1]
        whole = times * self.steps * self.inputs
        self.bring = product(call, whole, wide(call.result.dtype)) if bring is None else bring
        self.joined = self.stacked and is_joined(call)
        self.cells = None if self.tiled else RecurrentCells(call.xp, self.work)
        """Kernels of whole steps, on a GPU."""

    def dense(self, x: Any) -> Any:
        """`x`, or a copy of it, whose last two dimensions are one stretch of memory."""
        return x if _is_dense(x) else self.xp.ascontiguousarray(x)

    def empty(self, *shape: int) -> Any:
        return self.xp.empty(shape, self.work)

    def in_turn(self, x: Any, axis: int = 0) -> Any:
        """`x` with its steps in the order in which they are computed."""
        return self.xp.flip(x, axis) if self.backwards else x

    def weights(self, weight: Any, factors: Any) -> Any:
        """The weight by which inputs or a hidden state are multiplied, times the factors of its gates: stacked, one matrix (…, h)
        for each gate, row by row, for which BLAS takes half the time of small products by a matrix that lies turned."""
        scaled = weight.reshape(self.gates, self.size, -1) * factors
        return np.ascontiguousarray(scaled.swapaxes(1, 2)) if self.stacked else scaled.reshape(weight.shape).T

    def brought(self, x: Any, weight: Any, bias: Any, factors: Any) -> Any:
        """What inputs [t, n, i] bring to the gates, with the bias if there is one: [t, gate, n, h]."""
        steps, rows, width = x.shape
        if not self.stacked:
            made = self.bring(x if self.tiled else x.reshape(steps * rows, width), self.weights(weight, factors))
            made = made.reshape(steps, rows, self.gates, self.size).transpose(0, 2, 1, 3)
            return made if bias is None else made + bias.reshape(self.gates, 1, self.size) * factors
        made = self.bring(x.reshape(steps * rows, width), self.weights(weight, factors))
        if bias is not None:
            self.xp.add(made, bias.reshape(self.gates, 1, self.size) * factors, made)
        return made.reshape(self.gates, steps, rows, self.size).swapaxes(0, 1)

    def join(self, incoming: Any, weight: Any, bias: Any, factors: Any) -> Any:
        """The weights of hidden states, inputs and, if there is a bias, a one, below each other: [gate, h + i + 1, h]."""
        parts = [self.weights(weight, factors), self.weights(incoming, factors)]
        return np.concatenate(parts if bias is None else [*parts, bias.reshape(self.gates, 1, self.size) * factors], 1)

    def recalled(self) -> tuple[Any, Any]:
        """Memory of what the hidden state brings to all gates, as products leave it, and the same gate by gate [gate, n, h]."""
        if self.stacked:
            made = self.empty(self.gates, self.rows, self.size)
            return made, made
        made = self.empty(self.rows, self.gates * self.size)
        return made, made.reshape(self.rows, self.gates, self.size).transpose(1, 0, 2)

    def summed(self, weight: Any) -> tuple[Any, Callable[[Any, Any], None]]:
        """Memory of the sums of gates [gate, n, h], and what fills it, from a hidden state and what inputs bring, or inputs."""
        recalled, by_gate = self.recalled()
        if not self.joined:

            def add(hidden: Any, brought: Any) -> None:
                self.multiply(hidden, weight, out=recalled)
                self.xp.add(by_gate, brought, by_gate)

            return by_gate, add
        both = self.empty(self.rows, weight.shape[1])
        states, inputs, ones = np.split(both, [self.size, self.size + self.inputs], 1)
        ones[...] = 1

        def multiply(hidden: Any, x: Any) -> None:
            states[...], inputs[...] = hidden, x
            self.multiply(both, weight, out=recalled)

        return by_gate, multiply

    def cast(self, *operands: Any) -> list[Any]:
        return [x.astype(self.work, copy=False) for x in operands]


def is_joined(call: KernelCall) -> bool:
    """Whether inputs meet their weights step by step, in one product with the hidden state, so that nothing is left to add:
    where that is a small one for BLAS, a core's cache keeps all weights, and no threads would share the product of all inputs."""
    if call.op != "lstm" or call.xp is not np or call.blocks:
        return False
    (steps, rows, inputs), size = call.tensor(0).shape, call.tensor(2).shape[1]
    weights = (size + inputs + 1) * 4 * size
    return (
        rows * weights <= 4 * MAX_SMALL_MULTIPLICATIONS
        and weights * wide(call.result.dtype).numpy.itemsize <= MAX_JOINED_BYTES
        and steps * rows * inputs * 4 * size < MIN_SHARED_MULTIPLICATIONS
    )


def recurrence(call: KernelCall, multiply: Kernel | None = None, bring: Kernel | None = None) -> Kernel:
    """All steps of a layer in one direction."""
    k, xp = RecurrentKernel(call, multiply, bring), call.xp
    if call.result.size == 0:
        return lambda *_: xp.zeros(call.result.shape, k.dtype)
    forward, count = _FORWARD[call.op](k, call), STATE_COUNTS[call.op]
    factors = k.xp.asarray(np.reshape(GATE_FACTORS[call.op], (-1, 1, 1)).astype(k.work))

    def kernel(*operands: Any) -> Any:
        x, incoming, weight, *rest = k.cast(*operands)
        states, biases = rest[:count], rest[count:]
        out = k.empty(*call.result.shape)
        planes = k.in_turn(out, 1)
        for at, state in enumerate(states):
            planes[-1 - at, 0] = state
        planes[:-count, k.steps] = 0  # no step has these gates
        bias = biases[0] if biases else None
        if k.joined:
            forward(planes, k.in_turn(x), k.join(incoming, weight, bias, factors))
        else:
            brought = k.brought(x, incoming, bias, factors)
            if k.cells and brought.strides[-1] != brought.itemsize:
                brought = xp.ascontiguousarray(brought)
            forward(planes, k.in_turn(brought), k.weights(weight, factors), *biases[1:])
        return out.astype(k.dtype, copy=False)

    return kernel


STATE_COUNTS: Final = {"lstm": 2, "gru": 1, "rnn": 1}
"""The states of a cell, which are the last that are kept of a step, the hidden one at the end."""

Forward = Callable[..., None]
"""Computes all steps, from the result's memory [k, t + 1, n, h] with the first states, what inputs bring [t, gate, n, h], and the
weight of hidden states, both times the factors of gates; or inputs [t, n, i], and all weights."""


class Logistic:
    """The gates of a step, from what was multiplied by their factors: of some the logistic function, of the others tanh."""

    def __init__(self, k: RecurrentKernel, factors: tuple[float, ...]) -> None:
        self.xp = k.xp
        self.scale = self._of(k, np.array(factors))
        self.shift = self._of(k, 1 - np.array(factors))

    @staticmethod
    def _of(k: RecurrentKernel, factors: Any) -> Any:
        """Factors of the gates, for each element of a step or to be repeated."""
        each = k.xp.asarray(factors.reshape(-1, 1, 1).astype(k.work))
        whole = k.xp.broadcast_to(each, (len(factors), k.rows, k.size))
        return k.xp.ascontiguousarray(whole) if k.xp is np and whole.nbytes <= MAX_WHOLE_FACTOR_BYTES else each

    def __call__(self, x: Any, out: Any) -> None:
        """`x` is memory that is written to."""
        xp = self.xp
        xp.tanh(x, x)
        xp.multiply(x, self.scale, x)
        xp.add(x, self.shift, out)


def _lstm(k: RecurrentKernel, call: KernelCall) -> Forward:
    """Gates in the order input, forget, cell, output; these, c and h, or c and h."""
    xp, kept = k.xp, call.attributes["kept"]
    activate = Logistic(k, GATE_FACTORS["lstm"])
    loops = lstm_loops if k.stacked and k.multiply is np.matmul and k.work == np.float32 else None

    def on_device(out: Any, fed: Any, weight: Any) -> None:
        assert k.cells is not None
        recalled, _ = k.recalled()
        cells, states = out[-2:]
        for at in range(k.steps):
            k.multiply(states[at], weight, out=recalled)
            place = out[:4, at] if kept else None
            k.cells.lstm_step(recalled, fed[at], place, cells[at], cells[at + 1], states[at + 1])

    def forward(out: Any, fed: Any, weight: Any) -> None:
        if loops is not None:
            gates = k.empty(k.gates, k.rows, k.size)
            if not k.joined:
                loops.recall(out, fed, weight, gates)
                return
            both = k.empty(k.rows, weight.shape[1])
            both[:, k.size + k.inputs :] = 1
            loops.forward(out, fed, weight, both, gates)
            return
        gates, add_up = k.summed(weight)
        i, f, g, o = gates
        part, other = k.empty(2, k.rows, k.size)
        cells, states = out[-2:]
        places = out[:4].swapaxes(0, 1) if kept else itertools.repeat(None)
        for cell, hidden, each, place, new, result in zip(
            cells, states, fed, places, cells[1:], states[1:], strict=False
        ):
            add_up(hidden, each)
            activate(gates, gates)
            if place is not None:
                place[...] = gates
            xp.multiply(f, cell, part)
            xp.multiply(i, g, other)
            xp.add(part, other, new)
            xp.tanh(new, part)
            xp.multiply(o, part, result)

    return on_device if k.cells else forward


def _gru(k: RecurrentKernel, call: KernelCall) -> Forward:
    """Gates in the order reset, update, new; these, what is recalled for the new state, and h, or h."""
    xp, kept = k.xp, call.attributes["kept"]
    activate = Logistic(k, GATE_FACTORS["gru"][:2])

    def on_device(out: Any, fed: Any, weight: Any, inner: Any = None) -> None:
        assert k.cells is not None
        recalled, _ = k.recalled()
        inner = None if inner is None else xp.ascontiguousarray(inner)
        states = out[-1]
        for at in range(k.steps):
            k.multiply(states[at], weight, out=recalled)
            place = out[:4, at] if kept else None
            k.cells.gru_step(recalled, fed[at], inner, place, states[at], states[at + 1])

    def forward(out: Any, fed: Any, weight: Any, inner: Any = None) -> None:
        recalled, by_gate = k.recalled()
        part = k.empty(k.rows, k.size)
        inner = 0 if inner is None else inner
        states = out[-1]
        places = out[:4, :-1].swapaxes(0, 1) if kept else itertools.repeat(k.empty(4, k.rows, k.size), k.steps)
        for hidden, gates, brought, result in zip(states, places, fed, states[1:], strict=False):
            reset, update, new, memory = gates
            k.multiply(hidden, weight, out=recalled)
            xp.add(by_gate[:2], brought[:2], by_gate[:2])
            activate(by_gate[:2], gates[:2])
            xp.add(by_gate[2], inner, memory)
            xp.multiply(reset, memory, new)
            xp.add(new, brought[2], new)
            xp.tanh(new, new)
            xp.subtract(hidden, new, part)
            xp.multiply(update, part, part)
            xp.add(new, part, result)

    return on_device if k.cells else forward


def _rnn(k: RecurrentKernel, call: KernelCall) -> Forward:
    xp = k.xp

    def forward(out: Any, fed: Any, weight: Any) -> None:
        states = out[0]
        for before, brought, hidden in zip(states, fed, states[1:], strict=False):
            k.multiply(before, weight, out=hidden[None] if k.stacked else hidden)
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
    slopes: Callable[[RecurrentKernel, Any, Any], None]
    """Fills the slopes [k, t, n, h] of some steps, from what was kept of them and of the next one [k, t + 1, n, h]."""
    step: Callable[..., None]
    """One step back, from its slopes, the gate that it reads, the gradient of its hidden state, and those of the states of the
    next: the gradients of the gates [gate, n, h]; the last argument becomes what this step's hidden state passes on beside the
    product."""
    gate: int
    """The gate of what was kept that a step reads."""
    products: slice
    """Of the columns of a gradient, in multiples of h, those that the state recalled: they meet the weight."""


def _lstm_slopes(k: RecurrentKernel, made: Any, kept: Any) -> None:
    xp = k.xp
    (i, f, g, o, before, _), (of_i, of_f, of_g, of_o, of_c, tanh) = kept[:, :-1], made
    xp.tanh(kept[4, 1:], tanh)
    for gate, slope, factor in ((i, of_i, g), (f, of_f, before), (o, of_o, tanh)):
        xp.subtract(1, gate, slope)
        xp.multiply(slope, gate, slope)
        xp.multiply(slope, factor, slope)
    for value, slope, factor in ((g, of_g, i), (tanh, of_c, o)):
        xp.multiply(value, value, slope)
        xp.subtract(1, slope, slope)
        xp.multiply(slope, factor, slope)


def _lstm_step(
    k: RecurrentKernel, slopes: Any, forget: Any, gradient: Any, state: list[Any], gates: Any, part: Any
) -> None:
    cell, multiply = state[1], k.xp.multiply
    of_i, of_f, of_g, of_o, of_c, _ = slopes
    i, f, g, o = gates
    multiply(gradient, of_c, part)
    k.xp.add(cell, part, cell)
    multiply(of_i, cell, i)
    multiply(of_f, cell, f)
    multiply(of_g, cell, g)
    multiply(of_o, gradient, o)
    multiply(cell, forget, cell)


def _gru_slopes(k: RecurrentKernel, made: Any, kept: Any) -> None:
    """Of the new state without what is recalled, the reset, the update, and what is recalled for the new state."""
    xp = k.xp
    (r, z, n, memory, before), (of_n, of_r, of_z, of_memory) = kept[:, :-1], made
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
    k: RecurrentKernel, slopes: Any, update: Any, gradient: Any, state: list[Any], gates: Any, part: Any
) -> None:
    """Two gates have the same gradient as what inputs bring to them and as what the state recalls for them."""
    k.xp.multiply(slopes, gradient, gates[2:])
    gates[:2] = gates[3:5]
    k.xp.multiply(gradient, update, part)


def _rnn_slopes(k: RecurrentKernel, made: Any, kept: Any) -> None:
    xp = k.xp
    (slope,), h = made, kept[0, 1:]
    if k.relu:
        xp.less_equal(h, 0, slope)
    else:
        xp.multiply(h, h, slope)
    xp.subtract(1, slope, slope)


def _rnn_step(
    k: RecurrentKernel, slopes: Any, hidden: Any, gradient: Any, state: list[Any], gates: Any, part: Any
) -> None:
    k.xp.multiply(slopes, gradient, gates)


_BACKWARD: Final[dict[str, Backward]] = {
    "lstm_grad": Backward(6, _lstm_slopes, _lstm_step, 1, slice(0, 4)),
    "gru_grad": Backward(4, _gru_slopes, _gru_step, 1, slice(3, 6)),
    "rnn_grad": Backward(1, _rnn_slopes, _rnn_step, 0, slice(0, 1)),
}


def slopes_span(call: KernelCall) -> int:
    """The steps of which slopes are computed at once."""
    _, steps, rows, size = call.tensor(0).shape
    nbytes = _BACKWARD[call.op].arrays * rows * size * wide(call.result.dtype).numpy.itemsize
    return steps - 1 if call.xp is not np else max(1, min(steps - 1, SLOPES_BYTES // max(1, nbytes)))


def recurrence_grad(call: KernelCall, multiply: Kernel | None = None) -> Kernel:
    """The gradients of what was added up for the gates, [t, n, …]; with `states` those of the first states in one step more."""
    k = RecurrentKernel(call, multiply)
    xp, states, cell = call.xp, call.attributes["states"], _BACKWARD[call.op]
    if call.result.size == 0:
        return lambda *_: xp.zeros(call.result.shape, k.dtype)
    if k.cells and call.op != "rnn_grad":
        return _grad_on_device(call, k, k.cells)
    span, size, width = slopes_span(call), k.size, call.result.shape[-1]
    columns = _met_columns(call, k)
    passes = call.op == "gru_grad"
    multiply = np.dot if k.multiply is np.matmul else k.multiply  # which takes longer to begin
    loops = lstm_loops if is_looped(call, k) else None

    def kernel(kept: Any, *rest: Any) -> Any:
        weight, given, *last = k.cast(*rest)
        kept, given = k.in_turn(kept, 1), k.in_turn(given)
        out = k.empty(*call.result.shape)
        rows = k.in_turn(out[: k.steps])
        by_gate = rows.reshape(k.steps, k.rows, width // size, size).transpose(0, 2, 1, 3)
        gates = k.empty(*by_gate.shape[1:])
        met = rows[:, :, columns]
        state = [xp.array(each, order="C") for each in last]
        recalled, gradient, part = state[0], k.empty(k.rows, size), k.empty(k.rows, size)
        looped = (
            loops is not None and _is_dense(given) and _is_dense(kept) and (_is_dense(weight) or _is_dense(weight.T))
        )
        if loops is not None and looped:
            loops.backward(kept, given, weight, rows, recalled, state[1], part, states)
        held = k.empty(cell.arrays, 0 if looped else span, k.rows, size)
        for start in reversed(range(0, 0 if looped else k.steps, span)):
            stop = min(k.steps, start + span)
            (read,) = k.cast(kept[:, start : stop + 1])
            made = held[:, : stop - start]
            cell.slopes(k, made, read)
            slopes, gate = made.swapaxes(0, 1), read[cell.gate]
            for at in reversed(range(start, stop)):
                xp.add(given[at], recalled, gradient)
                cell.step(k, slopes[at - start], gate[at - start], gradient, state, gates, part)
                by_gate[at] = gates  # to compute them there would take longer
                if at or states:
                    multiply(met[at], weight, out=recalled)
                    if passes:
                        xp.add(recalled, part, recalled)
        if states:
            _place_states(out[k.steps], state)
        return out.astype(k.dtype, copy=False)

    return kernel


def _grad_on_device(call: KernelCall, k: RecurrentKernel, cells: RecurrentCells) -> Kernel:
    """The same of an LSTM or GRU by kernels of whole steps."""
    xp, states, columns = call.xp, call.attributes["states"], _met_columns(call, k)

    def kernel(kept: Any, *rest: Any) -> Any:
        kept, weight, given, *last = k.cast(kept, *rest)
        kept, given = k.dense(k.in_turn(kept, 1)), k.dense(k.in_turn(given))
        out = k.empty(*call.result.shape)
        rows = k.in_turn(out[: k.steps])
        state = [xp.array(each, order="C") for each in last]
        recalled, part = state[0], xp.zeros((k.rows, k.size), k.work)
        for at in reversed(range(k.steps)):
            if call.op == "gru_grad":
                cells.gru_back(kept[:, at], given[at], recalled, part, rows[at])
            else:
                cells.lstm_back(kept[:, at : at + 2], given[at], recalled, state[1], rows[at])
            if at or states:
                k.multiply(rows[at][:, columns], weight, out=recalled)
        if states:
            recalled += part
            _place_states(out[k.steps], state)
        return out.astype(k.dtype, copy=False)

    return kernel


def _met_columns(call: KernelCall, k: RecurrentKernel) -> slice:
    """Of a step's gradients, those that meet the weight."""
    products = _BACKWARD[call.op].products
    return slice(products.start * k.size, products.stop * k.size)


def _place_states(row: Any, gradients: list[Any]) -> None:
    """Writes the gradients of the first states (n, h) beside each other, and zeros behind them, to (n, width)."""
    size = gradients[0].shape[-1]
    row[...] = 0
    for number, each in enumerate(gradients):
        row[:, number * size : (number + 1) * size] = each


def is_looped(call: KernelCall, k: RecurrentKernel) -> bool:
    """Whether loops of machine code may go back over an LSTM: there BLAS multiplies matrices at each step, no vectors."""
    of_matrices = k.multiply is np.matmul and k.rows > 1 and k.size > 1
    return call.op == "lstm_grad" and of_matrices and k.dtype == k.work == np.float32


def _is_dense(array: Any) -> bool:
    """Whether the last two dimensions are one stretch of memory."""
    return bool(array.strides[-2:] == (array.itemsize * array.shape[-1], array.itemsize))


def scratch(call: KernelCall) -> int:
    """Bytes that the kernel of a call uses beside casts of its operands and result, at most."""
    if call.op.endswith("_grad"):
        planes, _, rows, size = call.tensor(0).shape
        span, width = slopes_span(call), call.result.shape[-1] // size
        halves = (span + 1) * planes if wide(call.result.dtype) is not call.result.dtype else 0
        passing = span if call.op == "gru_grad" else 0
        elements = (span * _BACKWARD[call.op].arrays + halves + passing + width + 5) * rows * size
    else:
        (steps, rows, inputs), incoming, weight = (call.tensor(at).shape for at in range(3))
        size = weight[1]
        weights, step = math.prod(incoming) + math.prod(weight), rows * (weight[0] + 2 * size)
        if is_joined(call):
            elements = weights + max(weights, step + rows * (size + inputs + 1))
        else:
            spare = 4 * rows * size if call.op == "gru" and not call.attributes["kept"] else 0
            brought = steps * rows * weight[0] * (1 if call.xp is np and not call.blocks else 3)
            elements = brought + max(2 * math.prod(incoming), 2 * math.prod(weight) + step + spare)
    return int(elements) * wide(call.result.dtype).numpy.itemsize
