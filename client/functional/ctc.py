"""Connectionist temporal classification: the loss of sequences whose alignment with their labels is not known."""

from __future__ import annotations

import math
from typing import Any

from gt.client.ops import arithmetic, creation, join_and_pad, reductions, shape_ops
from gt.client.tensor import emission
from gt.client.tensor.autocast import widened
from gt.client.tensor.operands import cast, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.ir.dtypes import int64

from .losses import reduced

__all__ = ["ctc_loss"]

_NEVER = -math.inf


def _joined(parts: list[Tensor]) -> Tensor:
    """log Σ eˣ of several tensors, with a gradient also where all of them are −∞."""
    most = parts[0].detach()
    for part in parts[1:]:
        most = arithmetic.maximum(most, part.detach())
    most = arithmetic.where(arithmetic.eq(most, _NEVER), 0.0, most)
    total = None
    for part in parts:
        share = arithmetic.exp(arithmetic.sub(part, most))
        total = share if total is None else arithmetic.add(total, share)
    assert total is not None, "there are parts"
    nothing = arithmetic.eq(total, 0)
    return arithmetic.where(
        nothing, _NEVER, arithmetic.add(arithmetic.log(arithmetic.where(nothing, 1.0, total)), most)
    )


def _lengths(name: str, lengths: Any, count: int, most: int) -> Tensor:
    """One length for each sequence; what the program knows already is checked."""
    if not isinstance(lengths, Tensor):
        listed = [int(each) for each in lengths]
        if any(not 0 <= each <= most for each in listed):
            raise ValueError(f"ctc_loss: {name} lie from 0 to {most}, not {listed}")
        lengths = creation.tensor(listed, dtype=int64)
    if lengths.numel() != count:
        raise ShapeError(f"ctc_loss: {count} {name}, not shape {lengths.shape}")
    return cast(shape_ops.reshape(lengths, (count,)), int64)


def _rows(targets: Tensor, lengths: Any, count: int) -> Tensor:
    """Labels one row for each sequence, of those that lie one after the other; their lengths are fetched."""
    listed = [int(each) for each in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]
    if len(listed) != count or sum(listed) != targets.shape[0]:
        raise ShapeError(f"ctc_loss: target_lengths {listed} do not add up to the {targets.shape[0]} labels")
    most, start, rows = max(listed, default=0), 0, []
    for length in listed:
        row = shape_ops.narrow(targets, 0, start, length)
        rows.append(join_and_pad.pad(row, (0, most - length)))
        start += length
    return join_and_pad.stack(rows)


@widened
def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Minus the logarithm of the probability of label sequences (N, S), or one after the other, under `log_probs` (T, N, C),
    over all alignments with repetitions and blanks (Graves et al., 2006).

    The mean is of each loss over its length. Gradients are those of this function; PyTorch's own assume that `log_probs` comes
    from `log_softmax`, after which both are the same.
    """
    x, labels = tensor_of("ctc_loss", log_probs), tensor_of("ctc_loss", targets)
    single = x.ndim == 2
    if single:
        x = shape_ops.unsqueeze(x, 1)
    if x.ndim != 3 or labels.ndim not in (1, 2) or not x.shape[0]:
        raise ShapeError(f"ctc_loss: log_probs (T, N, C) and targets (N, S), not {x.shape} and {labels.shape}")
    steps, count, classes = x.shape
    if not 0 <= blank < classes:
        raise ValueError(f"ctc_loss: the blank is one of {classes} classes, not {blank}")
    if labels.ndim == 1:
        given = [target_lengths] if isinstance(target_lengths, int) else target_lengths
        flat = given.reshape(-1) if isinstance(given, Tensor) else given
        labels = _rows(labels, flat, count)
    if labels.shape[0] != count:
        raise ShapeError(f"ctc_loss: targets {labels.shape} for {count} sequences")
    size = labels.shape[1]
    ends = _lengths("input_lengths", [input_lengths] if isinstance(input_lengths, int) else input_lengths, count, steps)
    counts = _lengths(
        "target_lengths", [target_lengths] if isinstance(target_lengths, int) else target_lengths, count, size
    )
    nll = _negative(x, cast(labels, int64), ends, counts, blank)
    if zero_infinity:
        nll = arithmetic.where(arithmetic.isinf(nll), 0.0, nll)
    if reduction == "mean":
        nll = arithmetic.div(nll, cast(arithmetic.clamp(counts, 1), nll.dtype))
    return reduced("ctc_loss", shape_ops.squeeze(nll, 0) if single and reduction == "none" else nll, reduction)


def _negative(x: Tensor, labels: Tensor, ends: Tensor, counts: Tensor, blank: int) -> Tensor:
    """The loss of each sequence: step by step, how likely the labels up to each place (blanks between them) are so far."""
    steps, count, _ = x.shape
    size = labels.shape[1]
    width = 2 * size + 1
    # blank, first label, blank, second label, …, blank
    pairs = join_and_pad.stack([creation.full((count, size), blank, dtype=int64), labels], 2)
    places = join_and_pad.cat(
        [shape_ops.reshape(pairs, (count, 2 * size)), creation.full((count, 1), blank, dtype=int64)], 1
    )
    known = emission.emit("gather", (x, shape_ops.expand(places, (steps, count, width))), 2)
    before = join_and_pad.pad(places, (2, 0), value=blank)[:, :width]
    skips = arithmetic.logical_and(arithmetic.ne(places, blank), arithmetic.ne(places, before))
    number = creation.arange(width)
    last = arithmetic.mul(shape_ops.unsqueeze(counts, 1), 2)
    begins = arithmetic.logical_and(arithmetic.lt(number, 2), arithmetic.le(number, last))
    state = arithmetic.where(begins, known[0], _NEVER)
    for step in range(1, steps):
        stayed = join_and_pad.pad(state, (2, 0), value=_NEVER)
        moved = [state, stayed[:, 1 : width + 1], arithmetic.where(skips, stayed[:, :width], _NEVER)]
        following = arithmetic.add(_joined(moved), known[step])
        state = arithmetic.where(shape_ops.unsqueeze(arithmetic.gt(ends, step), 1), following, state)
    final = emission.emit("gather", (state, last), 1)
    label = emission.emit("gather", (state, arithmetic.clamp(arithmetic.sub(last, 1), 0)), 1)
    total = _joined([final, arithmetic.where(arithmetic.gt(last, 0), label, _NEVER)])
    return arithmetic.neg(reductions.sum(total, 1))
