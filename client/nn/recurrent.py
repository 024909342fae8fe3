"""Recurrent networks: cells, and layers of them over a sequence, as in PyTorch (Elman; Hochreiter and Schmidhuber, 1997;
Cho et al., 2014).

All steps of a layer in one direction are one
instruction (`client/functional/recurrence.py`). Those of packed sequences (`packed_sequence.py`), which are read as they are, at
each step those that go on, and of an LSTM with projections are recorded one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from gt.client.functional import dropout_functions, functional, linear
from gt.client.functional.recurrence import CELL_STEPS, GATE_COUNTS, RecurrentState, recurrent
from gt.client.ops import arithmetic, creation, join_and_pad, shape_ops
from gt.client.ops.matrix_products import matmul
from gt.client.tensor import emission_context
from gt.client.tensor.autocast_policy import ELIGIBLE
from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import DType, result_type

from . import init
from .module import Module
from .packed_sequence import PackedSequence
from .parameter import Parameter


def _biases(mode: str, first: Tensor | None, second: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """What is added to all that inputs bring, at once for the whole sequence, and what must wait for the step."""
    if first is None or second is None:
        return None, None
    if mode != "GRU":
        return arithmetic.add(first, second), None
    outer, inner = functional.split(second, [2 * second.shape[0] // 3, second.shape[0] // 3])
    return arithmetic.add(first, join_and_pad.cat([outer, creation.zeros_like(inner)])), inner


def _draw(module: Module, hidden_size: int) -> None:
    """Everything uniform in ±1/√hidden."""
    bound = 1 / math.sqrt(hidden_size) if hidden_size else 0.0
    for parameter in module.parameters():
        init.uniform_(parameter, -bound, bound)


def _as_brought(state: RecurrentState, brought: Sequence[Tensor]) -> RecurrentState:
    """The state in the dtype of what inputs bring, which may be lower inside of `autocast`."""
    return tuple([cast(part, brought[0].dtype) for part in state]) if brought else state


def _computed_in(x: Tensor, weight: Tensor) -> DType:
    """The dtype of a product of inputs and weights, which may be lower inside of `autocast`. Raises `DTypeError` if they differ
    and nothing casts them."""
    lower = emission_context.current().lower
    if lower is None and x.dtype != weight.dtype:
        raise DTypeError(
            f"the input is {x.dtype}, and the weights {weight.dtype}: convert one, as by input.to({weight.dtype})"
        )
    dtypes = [lower if lower is not None and each.dtype in ELIGIBLE else each.dtype for each in (x, weight)]
    return result_type([(dtype, False) for dtype in dtypes], [])


def _rows(state: RecurrentState, start: int, stop: int) -> RecurrentState:
    """The states of some of the sequences."""
    if start == 0 and stop == state[0].shape[0]:
        return state
    return tuple([part[start:stop] for part in state])


def _stack_states(states: Sequence[RecurrentState]) -> RecurrentState:
    """The states of sequences and of those after them."""
    return tuple([join_and_pad.cat(parts) for parts in zip(*states, strict=True)])


# cells


class RNNCellBase(Module):
    """One step of a recurrent network, of (N, in) or (in)."""

    _mode: str
    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(creation.empty(rows, input_size, dtype=dtype))
        self.weight_hh = Parameter(creation.empty(rows, hidden_size, dtype=dtype))
        self.register_parameter("bias_ih", Parameter(creation.empty(rows, dtype=dtype)) if bias else None)
        self.register_parameter("bias_hh", Parameter(creation.empty(rows, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all anew."""
        _draw(self, self.hidden_size)

    def _step(self, input: Tensor, state: RecurrentState | None, count: int) -> RecurrentState:
        name = type(self).__name__
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ShapeError(f"{name} takes (N, {self.input_size}) or ({self.input_size}), not shape {input.shape}")
        shape = (*input.shape[:-1], self.hidden_size)
        if state is None:
            state = (creation.zeros(shape, dtype=input.dtype),) * count
        for part in state:
            if part.shape != shape:
                raise ShapeError(f"{name}: a state of shape {part.shape}, where the input {input.shape} needs {shape}")
        bias, inner = _biases(self._mode, self.bias_ih, self.bias_hh)
        brought = linear.linear(input, self.weight_ih, bias)
        state = _as_brought(state, (brought,))
        return CELL_STEPS[self._mode](brought, linear.linear(state[0], self.weight_hh), inner, state)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}{'' if self.bias else ', bias=False'}"


class RNNCell(RNNCellBase):
    """`tanh(W x + b + W' h + b')`, or `relu` of it."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity
        self._mode = _elman_mode("RNNCell", nonlinearity)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step(input, None if hx is None else (hx,), 1)[0]

    def extra_repr(self) -> str:
        plain = self.nonlinearity == "tanh"
        return super().extra_repr() + ("" if plain else f", nonlinearity={self.nonlinearity}")


def _elman_mode(name: str, nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"{name}: the nonlinearity is 'tanh' or 'relu', not {nonlinearity!r}")
    return f"RNN_{nonlinearity.upper()}"


class LSTMCell(RNNCellBase):
    """One step of an LSTM: (input, (h, c)) to (h, c)."""

    _mode = "LSTM"

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = self._step(input, hx, 2)
        return h, c


class GRUCell(RNNCellBase):
    """One step of a GRU."""

    _mode = "GRU"

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step(input, None if hx is None else (hx,), 1)[0]


# layers


class RNNBase(Module):
    """Layers of cells over a sequence, of (L, N, in), with `batch_first` (N, L, in), or (L, in)."""

    _states: ClassVar[int] = 1

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        for name, choice in (("bias", bias), ("batch_first", batch_first)):
            if not isinstance(choice, bool):
                raise TypeError(f"{mode}: {name} is True or False, not {choice!r}")
        if input_size <= 0:
            raise ValueError(f"{mode}: input_size is greater than 0, not {input_size}")
        if hidden_size <= 0 or num_layers <= 0:
            raise ValueError(f"{mode}: hidden_size and num_layers are greater than 0, not {hidden_size}, {num_layers}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"{mode}: a probability lies from 0 to 1, not {dropout}")
        if proj_size and (mode != "LSTM" or not 0 < proj_size < hidden_size):
            raise ValueError(f"{mode}: proj_size is for an LSTM, and less than hidden_size, not {proj_size}")
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        out, rows = proj_size or hidden_size, GATE_COUNTS[mode] * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else out * (1 + bidirectional)
            for suffix in self._suffixes(layer):
                shapes: dict[str, tuple[int, ...]] = {
                    f"weight_ih{suffix}": (rows, width),
                    f"weight_hh{suffix}": (rows, out),
                }
                if bias:
                    shapes |= {f"bias_ih{suffix}": (rows,), f"bias_hh{suffix}": (rows,)}
                if proj_size:
                    shapes[f"weight_hr{suffix}"] = (proj_size, hidden_size)
                for name, shape in shapes.items():
                    self.register_parameter(name, Parameter(creation.empty(shape, dtype=dtype)))
        self.reset_parameters()

    def _suffixes(self, layer: int) -> tuple[str, ...]:
        return (f"_l{layer}", f"_l{layer}_reverse") if self.bidirectional else (f"_l{layer}",)

    def reset_parameters(self) -> None:
        """Draw all anew."""
        _draw(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """Nothing: parameters are where the service keeps them."""

    def _run(self, input: Any, state: RecurrentState | None) -> tuple[Any, RecurrentState]:
        """The last layer's outputs, and the last states of all layers (layers · directions, N, size)."""
        if isinstance(input, PackedSequence):
            return self._run_packed(input, state)
        name = type(self).__name__
        if input.ndim not in (2, 3):
            raise ShapeError(f"{name}: an input of two or three dimensions, not of shape {input.shape}")
        single = input.ndim == 2
        x = shape_ops.unsqueeze(input, 1) if single else input.transpose(0, 1) if self.batch_first else input
        if single and state is not None:
            state = tuple([shape_ops.unsqueeze(part, 1) for part in state])
        if not x.shape[0]:
            raise ShapeError(f"{name}: a sequence of at least one step, not shape {input.shape}")
        x, last = self._layers(x, None, self._start(x, x.shape[1], state))
        if single:
            return shape_ops.squeeze(x, 1), tuple([shape_ops.squeeze(part, 1) for part in last])
        return (x.transpose(0, 1) if self.batch_first else x), last

    def _run_packed(self, input: PackedSequence, state: RecurrentState | None) -> tuple[PackedSequence, RecurrentState]:
        """States are those of the sequences in their first order."""
        sizes = tuple(int(size) for size in input.batch_sizes)
        if state is not None and input.sorted_indices is not None:
            state = tuple([functional.index_select(part, 1, input.sorted_indices) for part in state])
        data, last = self._layers(input.data, sizes, self._start(input.data, sizes[0], state))
        if input.unsorted_indices is not None:
            last = tuple([functional.index_select(part, 1, input.unsorted_indices) for part in last])
        return input._replace(data=data), last

    def _layers(self, x: Tensor, sizes: tuple[int, ...] | None, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        ends: list[RecurrentState] = []
        for layer in range(self.num_layers):
            outs = []
            for direction, suffix in enumerate(self._suffixes(layer)):
                at = len(ends)
                out, end = self._layer(x, sizes, tuple([part[at] for part in state]), suffix, bool(direction))
                outs.append(out)
                ends.append(end)
            x = outs[0] if len(outs) == 1 else join_and_pad.cat(outs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = dropout_functions.dropout(x, self.dropout, self.training)
        return x, tuple([join_and_pad.stack([end[part] for end in ends]) for part in range(self._states)])

    def _start(self, x: Tensor, count: int, state: RecurrentState | None) -> RecurrentState:
        """The states to start with, checked; zeros when none are given."""
        if x.shape[-1] != self.input_size:
            raise ShapeError(f"{type(self).__name__}: input {x.shape} does not end in input_size {self.input_size}")
        rows = self.num_layers * (1 + self.bidirectional)
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)[: self._states]
        shapes = [(rows, count, size) for size in sizes]
        if state is None:
            return tuple([creation.zeros(shape, dtype=x.dtype) for shape in shapes])
        for part, shape in zip(state, shapes, strict=True):
            if part.shape != shape:
                raise ShapeError(f"{type(self).__name__}: a first state of shape {part.shape}, not {shape}")
        return tuple(state)

    def _layer(
        self, x: Tensor, sizes: tuple[int, ...] | None, first: RecurrentState, suffix: str, backward: bool
    ) -> tuple[Tensor, RecurrentState]:
        """One direction of one layer over sequences of one length (steps, N, in), or packed ones."""
        weight, recall = getattr(self, f"weight_ih{suffix}"), getattr(self, f"weight_hh{suffix}")
        bias, inner = _biases(
            self.mode, getattr(self, f"bias_ih{suffix}", None), getattr(self, f"bias_hh{suffix}", None)
        )
        project = getattr(self, f"weight_hr{suffix}", None)
        if sizes is None and project is None and x.dtype.kind == "f":
            dtype = _computed_in(x, weight)
            biases = [cast(each, dtype) for each in (bias, inner) if each is not None]
            weights = cast(weight, dtype), cast(recall, dtype)
            state = tuple([cast(part, dtype) for part in first])
            return recurrent(self.mode, cast(x, dtype), *weights, state, biases, backwards=backward)
        step, turned = CELL_STEPS[self.mode], shape_ops.t(recall)
        whole = linear.linear(x, weight, bias)
        brought = shape_ops.unbind(whole, 0) if sizes is None else shape_ops.split(whole, sizes)
        first = _as_brought(first, brought)
        state = _rows(first, 0, brought[-1 if backward else 0].shape[0])
        outs: list[Tensor] = []
        ended: list[RecurrentState] = []
        for part in reversed(brought) if backward else brought:
            now, count = state[0].shape[0], part.shape[0]
            if count < now:  # of packed sequences, some are over
                ended.append(_rows(state, count, now))
                state = _rows(state, 0, count)
            elif count > now:  # and others, from behind, only begin
                state = _stack_states([state, _rows(first, now, count)])
            state = step(part, matmul(state[0], turned), inner, state)
            if project is not None:
                state = (linear.linear(state[0], project), *state[1:])
            outs.append(state[0])
        last = _stack_states([state, *reversed(ended)]) if ended else state
        join = join_and_pad.stack if sizes is None else join_and_pad.cat
        return join(outs[::-1] if backward else outs), last

    def extra_repr(self) -> str:
        shown = f"{self.input_size}, {self.hidden_size}"
        for name, default in (
            ("proj_size", 0), ("num_layers", 1), ("bias", True), ("batch_first", False), ("dropout", 0.0),
            ("bidirectional", False),
        ):  # fmt: skip
            if getattr(self, name) != default:
                shown += f", {name}={getattr(self, name)}"
        return shown


class RNN(RNNBase):
    """Elman's network: (outputs, last hidden states). `nonlinearity` is 'tanh' or 'relu'."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        mode = _elman_mode("RNN", nonlinearity)
        super().__init__(
            mode, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        out, last = self._run(input, None if hx is None else (hx,))
        return out, last[0]


class LSTM(RNNBase):
    """Long short-term memory: (outputs, (last hidden states, last cells)); `proj_size` projects the hidden states."""

    _states = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "LSTM",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
        )

    def forward(self, input: Any, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Any, tuple[Tensor, Tensor]]:
        out, (hidden, cells) = self._run(input, hx)
        return out, (hidden, cells)


class GRU(RNNBase):
    """Gated recurrent units: (outputs, last hidden states)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        out, last = self._run(input, None if hx is None else (hx,))
        return out, last[0]
