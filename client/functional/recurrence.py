"""Recurrent layers: their cells step by step, and all steps of a layer in one direction as one instruction.

What inputs bring to the gates is computed before, as one product for the whole sequence. On the tape such a layer is one vertex
with a port for its outputs and for each of its last states. Its gradient is one instruction too, and a product for the weight;
where it is recorded itself (`create_graph`), the steps are recorded again one after the other, and gradients go on into these.
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
    first: int | None
    """Which of the first states its gradient reads."""
    recalled: slice
    """Of its gradient, in multiples of the hidden size, the columns of what the hidden state recalls."""


_INSTRUCTIONS: Final = {
    "LSTM": _Instruction("lstm", (), 2, 1, slice(0, 4)),
    "GRU": _Instruction("gru", (), 1, 0, slice(3, 6)),
    "RNN_TANH": _Instruction("rnn", (False,), 1, None, slice(0, 1)),
    "RNN_RELU": _Instruction("rnn", (True,), 1, None, slice(0, 1)),
}


def recurrent(
    mode: str, brought: Tensor, weight: Tensor, state: RecurrentState, inner: Tensor | None, *, backwards: bool
) -> tuple[Tensor, RecurrentState]:
    """All steps of one direction: outputs (steps, N, hidden), and the last states (N, hidden).

    Of what inputs bring (N, steps, gates · hidden), the weight of the hidden state (gates · hidden, hidden), the first states (N,
    hidden), and perhaps the bias of what is recalled for the new state of a GRU; all of one floating-point dtype.
    """
    form = _INSTRUCTIONS[mode]
    operands = (brought, weight, *state, *([] if inner is None else [inner]))
    context = emission_context.current()
    recorded = context.grad and any(operand.requires_grad for operand in operands)
    attributes = form.relu or (recorded,)
    all_states = emission.emit(form.op, operands, backwards, *attributes)
    steps, _, rows, size = all_states.shape
    out = _cut(all_states, (1,), (0,), (1,), (steps, rows, size))
    end = 0 if backwards else steps - 1
    last = [_cut(all_states, (0, 1), (end, at), (1, 1), (rows, size)) for at in range(form.states)]
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
        brought, weight, *rest = operands
        state, inner = tuple(rest[:count]), rest[count] if len(rest) > count else None
        turned, step = shape_ops.t(weight), CELL_STEPS[self.mode]
        outs: list[Tensor] = []
        parts = shape_ops.unbind(brought, 1)
        for part in reversed(parts) if self.backwards else parts:
            state = step(part, matmul(state[0], turned), inner, state)
            outs.append(state[0])
        return [join_and_pad.stack(outs[::-1] if self.backwards else outs), *state]

    def _gradients(self, gradient: ResultGradients, operands: Sequence[TensorValue], kept: Tensor) -> list[Any]:
        form = _INSTRUCTIONS[self.mode]
        weight, first = Tensor(operands[1]), [Tensor(each) for each in operands[2 : 2 + form.states]]
        steps, _, rows, size = kept.shape
        given = [gradient.by_result.get(number) for number in range(1 + form.states)]
        shapes = [(steps, rows, size), *[(rows, size)] * form.states]
        made = [
            emission.emit("full", (0.0,), shape, kept.dtype) if one is None else one
            for one, shape in zip(given, shapes, strict=True)
        ]
        wants = self.wants
        states = any(wants[2 : 2 + form.states])
        read = [] if form.first is None else [first[form.first]]
        flat = emission.emit(f"{form.op}_grad", (kept, weight, *read, *made), self.backwards, states, *form.relu)
        whole = _cut(flat, (1,), (0,), (steps,)) if states else flat
        width = GATE_COUNTS[self.mode] * size
        brought = recalled = whole
        if form.recalled.start:
            brought = _cut(whole, (2,), (0,), (width,))
            recalled = _cut(whole, (2,), (form.recalled.start * size,), (width,))
        found: list[Any] = [brought if wants[0] else None, None]
        if wants[1]:
            found[1] = deferred_gradients.matrix_gradient(recalled, self._before(kept, first[0]))
        for at in range(form.states):
            place = (flat, (1, 2), (steps, at * size), (1, size), (rows, size))
            found.append(_cut(*place) if wants[2 + at] else None)
        if len(operands) > len(found):
            inner = _cut(recalled, (2,), (2 * size,), (size,)) if wants[-1] else None
            found.append(None if inner is None else emission.emit("sum", (inner,), (0, 1), False))
        return found

    def _before(self, kept: Tensor, first: Tensor) -> Tensor:
        """The hidden states before each step, (N, steps, hidden)."""
        steps, _, rows, size = kept.shape
        start = emission.emit("reshape", (first,), (rows, 1, size))
        if steps == 1:
            return start
        others = _cut(kept, (0, 1), (int(self.backwards), 0), (steps - 1, 1), (steps - 1, rows, size))
        others = emission.emit("permute", (others,), (1, 0, 2))
        return emission.emit("cat", (others, start) if self.backwards else (start, others), 1)
