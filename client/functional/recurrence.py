"""Recurrent layers: their cells step by step, and all steps of a layer in one direction as one instruction.

On the tape such a layer is one vertex with a port for its outputs and for each of its last states. Its gradient is one
instruction too, and a product for its inputs and for each weight; where it is recorded itself (`create_graph`), the steps are
recorded again one after the other, and gradients go on into these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from gt.client.ops import arithmetic, join_and_pad, shape_ops
from gt.client.ops.matrix_products import matmul
from gt.client.segment.value import TensorValue
from gt.client.tensor import deferred_gradients, emission, emission_context, tape
from gt.client.tensor.operands import cast
from gt.client.tensor.tape import Edge, Port, ResultGradients, Vertex, VertexForm
from gt.client.tensor.tensor import Tensor

from . import functional

RecurrentState = tuple[Tensor, ...]
CellStep = Callable[[Tensor, Tensor, "Tensor | None", RecurrentState], RecurrentState]
"""From what the input brings (…, gates · hidden), what the hidden state brings, what is added to that and could not be added to
the former, and the state, to the next state."""


def _elman(activation: Callable[[Any], Tensor]) -> CellStep:
    def step(brought: Tensor, recalled: Tensor, inner: Tensor | None, state: RecurrentState) -> RecurrentState:
        return (activation(arithmetic.add(brought, recalled)),)

    return step


def _lstm(brought: Tensor, recalled: Tensor, inner: Tensor | None, state: RecurrentState) -> RecurrentState:
    """Gates in the order input, forget, cell, output."""
    i, f, g, o = functional.chunk(arithmetic.add(brought, recalled), 4, -1)
    kept = arithmetic.mul(arithmetic.sigmoid(f), state[1])
    cell = arithmetic.add(kept, arithmetic.mul(arithmetic.sigmoid(i), arithmetic.tanh(g)))
    return arithmetic.mul(arithmetic.sigmoid(o), arithmetic.tanh(cell)), cell


def _gru(brought: Tensor, recalled: Tensor, inner: Tensor | None, state: RecurrentState) -> RecurrentState:
    """Gates in the order reset, update, new. The reset is also of the bias of what is recalled for the new state."""
    r, z, n = functional.chunk(brought, 3, -1)
    hr, hz, hn = functional.chunk(recalled, 3, -1)
    if inner is not None:
        hn = arithmetic.add(hn, cast(inner, hn.dtype))
    reset = arithmetic.sigmoid(arithmetic.add(r, hr))
    update = arithmetic.sigmoid(arithmetic.add(z, hz))
    new = arithmetic.tanh(arithmetic.add(n, arithmetic.mul(reset, hn)))
    return (arithmetic.add(new, arithmetic.mul(update, arithmetic.sub(state[0], new))),)


CELL_STEPS: Final[dict[str, CellStep]] = {
    "RNN_TANH": _elman(arithmetic.tanh),
    "RNN_RELU": _elman(arithmetic.relu),
    "LSTM": _lstm,
    "GRU": _gru,
}
GATE_COUNTS: Final = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}


# as one instruction


class _Instruction(NamedTuple):
    """A kind of layer as an instruction."""

    op: str
    relu: tuple[bool, ...]
    """The attribute that says so, if the op has it."""
    states: int
    recalled: slice
    """Of its gradient, in multiples of the hidden size, the columns of what the hidden state recalls."""


_INSTRUCTIONS: Final = {
    "LSTM": _Instruction("lstm", (), 2, slice(0, 4)),
    "GRU": _Instruction("gru", (), 1, slice(3, 6)),
    "RNN_TANH": _Instruction("rnn", (False,), 1, slice(0, 1)),
    "RNN_RELU": _Instruction("rnn", (True,), 1, slice(0, 1)),
}


def recurrent(
    mode: str,
    x: Tensor,
    incoming: Tensor,
    weight: Tensor,
    state: RecurrentState,
    biases: Sequence[Tensor],
    *,
    backwards: bool,
) -> tuple[Tensor, RecurrentState]:
    """All steps of one direction: outputs (steps, N, hidden), and the last states (N, hidden).

    Of inputs (steps, N, in), their weight (gates · hidden, in), that of the hidden state (gates · hidden, hidden), the first
    states (N, hidden), and perhaps a bias (gates · hidden), of a GRU another one (hidden) of what is recalled for the new state;
    all of one floating-point dtype.
    """
    form = _INSTRUCTIONS[mode]
    operands = (x, incoming, weight, *state, *biases)
    context = emission_context.current()
    recorded = context.grad and any(operand.requires_grad for operand in operands)
    attributes = form.relu or (recorded,)
    all_states = emission.emit(form.op, operands, backwards, *attributes)
    planes, steps, rows, size = all_states.shape
    shape = (steps - 1, rows, size)
    out = _cut(all_states, (0, 1), (planes - 1, 0 if backwards else 1), (1, steps - 1), shape)
    end = 0 if backwards else steps - 1
    last = [_cut(all_states, (0, 1), (planes - 1 - at, end), (1, 1), (rows, size)) for at in range(form.states)]
    if recorded:
        edges = tuple([operand._edge for operand in operands])
        values = [operand._current() for operand in operands]
        vertex = RecurrentVertex(context, mode, backwards, edges, values, all_states._value)
        for number, result in enumerate((out, *last)):
            result._edge = Port(vertex, number)
    return out, tuple(last)


def _cut(
    x: Tensor, axes: Sequence[int], starts: Sequence[int], sizes: Sequence[int], shape: tuple[int, ...] | None = None
) -> Tensor:
    """A part of `x`, in another shape if one is said."""
    part = emission.emit("slice", (x, *starts), tuple(axes), tuple(sizes), (1,) * len(axes))
    return part if shape is None else emission.emit("reshape", (part,), shape)


class RecurrentVertex(Vertex):
    """All steps of one direction of a layer on the tape."""

    __slots__ = ("backwards", "kept", "mode", "operands")

    def __init__(
        self,
        context: emission_context.Context,
        mode: str,
        backwards: bool,
        edges: tuple[Edge, ...],
        operands: list[TensorValue] | None,
        kept: TensorValue | None,
    ) -> None:
        super().__init__(context, edges)
        self.mode = mode
        self.backwards = backwards
        self.operands = operands
        """None once they are freed."""
        self.kept = kept
        """All states, and the gates."""

    def name(self) -> str:
        return f"{self.mode.capitalize()}Backward"

    def is_spent(self) -> bool:
        """Whether it was walked."""
        return self.operands is None

    def form(self) -> VertexForm | None:
        """Its kind and direction; operands and what was kept."""
        if self.operands is None or self.kept is None:
            return VertexForm((self.context, self.mode, self.backwards), ())
        return VertexForm((self.context, self.mode, self.backwards), (*self.operands, self.kept))

    @classmethod
    def from_form(cls, parts: tuple[Any, ...], edges: tuple[Edge, ...], values: list[TensorValue]) -> RecurrentVertex:
        """A layer of that kind."""
        context, mode, backwards = parts
        return cls(context, mode, backwards, edges, values[:-1] or None, values[-1] if values else None)

    def free(self) -> None:
        """Let operands and gates go."""
        self.operands = self.kept = None

    def step(self, gradient: ResultGradients, create_graph: bool) -> Iterable[tuple[Edge, Any]]:
        """The gradients of the operands; or those of the results, which go on into the steps recorded again."""
        if self.operands is None or self.kept is None:
            raise tape.freed("a recurrent layer")
        if not create_graph:
            self.enter(create_graph)
            return zip(self.edges, self._gradients(gradient, self.operands, Tensor(self.kept)), strict=True)
        now = self.context
        again = emission_context.interned(now.signal, "backward", now.site, True, now.backward, now.lower, now.hints)
        with emission_context.using(again):
            results = self._unrolled([Tensor(*pair) for pair in zip(self.operands, self.edges, strict=True)])
        self.enter(create_graph)
        return [(results[number]._edge, part) for number, part in gradient.by_result.items()]

    def _unrolled(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """The results, step by step."""
        count = _INSTRUCTIONS[self.mode].states
        x, incoming, weight, *rest = operands
        state, biases = tuple(rest[:count]), rest[count:]
        brought = matmul(x, shape_ops.t(incoming))
        brought = arithmetic.add(brought, biases[0]) if biases else brought
        inner = biases[1] if len(biases) > 1 else None
        turned, step = shape_ops.t(weight), CELL_STEPS[self.mode]
        outs: list[Tensor] = []
        parts = shape_ops.unbind(brought, 0)
        for part in reversed(parts) if self.backwards else parts:
            state = step(part, matmul(state[0], turned), inner, state)
            outs.append(state[0])
        return [join_and_pad.stack(outs[::-1] if self.backwards else outs), *state]

    def _gradients(self, gradient: ResultGradients, operands: Sequence[TensorValue], kept: Tensor) -> list[Any]:
        form, wants = _INSTRUCTIONS[self.mode], self.wants
        x, incoming, weight = map(Tensor, operands[:3])
        planes, steps, rows, size = kept.shape
        steps -= 1
        given = [gradient.by_result.get(number) for number in range(1 + form.states)]
        shapes = [(steps, rows, size), *[(rows, size)] * form.states]
        made = [
            emission.emit("full", (0.0,), shape, kept.dtype) if one is None else one
            for one, shape in zip(given, shapes, strict=True)
        ]
        states = any(wants[3 : 3 + form.states])
        flat = emission.emit(f"{form.op}_grad", (kept, weight, *made), self.backwards, states, *form.relu)
        whole = _cut(flat, (0,), (0,), (steps,)) if states else flat
        width = GATE_COUNTS[self.mode] * size
        brought = recalled = whole
        if form.recalled.start:
            brought = _cut(whole, (2,), (0,), (width,))
            recalled = _cut(whole, (2,), (form.recalled.start * size,), (width,))
        found: list[Any] = [None] * len(operands)
        if wants[0]:
            found[0] = emission.emit("matmul", (brought, incoming))
        if wants[1]:
            found[1] = deferred_gradients.matrix_gradient(brought, x)
        if wants[2]:
            before = _cut(kept, (0, 1), (planes - 1, int(self.backwards)), (1, steps), (steps, rows, size))
            found[2] = deferred_gradients.matrix_gradient(recalled, before)
        for at in range(form.states):
            if wants[3 + at]:
                found[3 + at] = _cut(flat, (0, 2), (steps, at * size), (1, size), (rows, size))
        for at in range(3 + form.states, len(operands)):
            if wants[at]:
                inner = at > 3 + form.states
                part = _cut(recalled, (2,), (2 * size,), (size,)) if inner else brought
                found[at] = emission.emit("sum", (part,), (0, 1), False)
        return found
