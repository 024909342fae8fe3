"""Steps of LSTM and GRU as PyTorch has them on accelerators: after the products with the weights, with their gradients.

The workspace that a step gives is what its gradient wants of the forward pass. Arguments and results are of shape (batch, ...).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gt.client.ops.arithmetic import add, mul, sigmoid, square, sub, tanh
from gt.client.ops.join_and_pad import cat
from gt.client.ops.shape_ops import chunk

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["gru_step", "gru_step_backward", "lstm_step", "lstm_step_backward"]


def _biased(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else add(x, bias)


def _through_sigmoid(given: Tensor, out: Tensor) -> Tensor:
    return mul(given, mul(out, sub(1.0, out)))


def _through_tanh(given: Tensor, out: Tensor) -> Tensor:
    return mul(given, sub(1.0, square(out)))


def lstm_step(
    input_gates: Tensor, hidden_gates: Tensor, cell: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The next hidden state and the next cell state, (batch, size), and the four gates, (batch, 4 · size), of an LSTM."""
    gates = add(_biased(input_gates, input_bias), _biased(hidden_gates, hidden_bias))
    first, second, third, fourth = chunk(gates, 4, 1)
    inner, kept, new, shown = sigmoid(first), sigmoid(second), tanh(third), sigmoid(fourth)
    after = add(mul(kept, cell), mul(inner, new))
    return mul(shown, tanh(after)), after, cat([inner, kept, new, shown], 1)


def lstm_step_backward(
    of_hidden: Tensor | None, of_cell: Tensor | None, before: Tensor, after: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of `lstm_step` in its gates, in the cell state before and, if it has one, in a bias."""
    if of_hidden is None and of_cell is None:
        return None, None, None
    inner, kept, new, shown = chunk(workspace, 4, 1)
    bent = tanh(after)
    if of_hidden is None:
        through, of_shown = of_cell, sub(shown, shown)
    else:
        through = _through_tanh(mul(of_hidden, shown), bent)
        through = through if of_cell is None else add(through, of_cell)
        of_shown = _through_sigmoid(mul(of_hidden, bent), shown)
    assert through is not None, "one of the two gradients is there"
    gates = cat(
        [
            _through_sigmoid(mul(through, new), inner), _through_sigmoid(mul(through, before), kept),
            _through_tanh(mul(through, inner), new), of_shown,
        ],
        1,
    )  # fmt: skip
    return gates, mul(through, kept), gates.sum(0) if has_bias else None


def gru_step(
    input_gates: Tensor, hidden_gates: Tensor, hidden: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The next hidden state of a GRU, (batch, size), and what its gradient wants, (batch, 5 · size)."""
    of_input = chunk(_biased(input_gates, input_bias), 3, 1)
    of_hidden = chunk(_biased(hidden_gates, hidden_bias), 3, 1)
    reset, kept = sigmoid(add(of_input[0], of_hidden[0])), sigmoid(add(of_input[1], of_hidden[1]))
    new = tanh(add(of_input[2], mul(reset, of_hidden[2])))
    after = add(new, mul(kept, sub(hidden, new)))
    return after, cat([reset, kept, new, hidden, of_hidden[2]], 1)


def gru_step_backward(
    given: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of `gru_step` in both gates, in the hidden state and, if it has them, in the biases."""
    reset, kept, new, hidden, inside = chunk(workspace, 5, 1)
    of_kept = _through_sigmoid(mul(given, sub(hidden, new)), kept)
    of_new = _through_tanh(mul(given, sub(1.0, kept)), new)
    of_reset = _through_sigmoid(mul(of_new, inside), reset)
    of_input, of_hidden = cat([of_reset, of_kept, of_new], 1), cat([of_reset, of_kept, mul(of_new, reset)], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, mul(given, kept), *biases
