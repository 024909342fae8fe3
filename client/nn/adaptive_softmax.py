"""A softmax over very many classes: frequent ones at once, rare ones in clusters that are looked into only for their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gt.client.functional import functional
from gt.client.ops import arithmetic, gather_scatter, join_and_pad, reductions, shape_ops
from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

from .containers import ModuleList, Sequential
from .linear import Linear
from .module import Module


class ASMOutput(NamedTuple):
    """What `AdaptiveLogSoftmaxWithLoss` gives: log-probabilities of the targets, and minus their mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-softmax in clusters, of which later ones are projected to fewer features (Grave et al., 2017, arXiv:1609.04309).

    `cutoffs` say from which class on each later cluster begins. All clusters are computed for all targets: nothing waits
    for which of them there are.
    """

    head: Linear
    tail: ModuleList

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0, head_bias: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        ends = list(cutoffs)
        if not ends or ends != sorted(set(ends)) or min(ends) <= 0 or max(ends) > n_classes - 1:
            raise ValueError(
                f"AdaptiveLogSoftmaxWithLoss: cutoffs rise, from 1 on and below {n_classes}, and none comes twice, not {ends}"
            )
        self.in_features, self.n_classes, self.div_value, self.head_bias = in_features, n_classes, div_value, head_bias
        self.cutoffs = [*ends, n_classes]
        self.shortlist_size = self.cutoffs[0]
        self.n_clusters = len(self.cutoffs) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, dtype=dtype)
        self.tail = ModuleList()
        for at in range(self.n_clusters):
            inner = int(in_features // div_value ** (at + 1))
            size = self.cutoffs[at + 1] - self.cutoffs[at]
            self.tail.append(
                Sequential(
                    Linear(in_features, inner, bias=False, dtype=dtype), Linear(inner, size, bias=False, dtype=dtype)
                )
            )

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        self.head.reset_parameters()
        for pair in self.tail:
            for layer in pair.children():
                layer.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> ASMOutput:
        """Log-probabilities of the targets (N,) or () given (N, features) or (features,), and minus their mean."""
        single = input_.ndim == 1
        x, target = (shape_ops.unsqueeze(each, 0) if single else each for each in (input_, target_))
        if x.ndim != 2 or target.shape != x.shape[:1]:
            raise ShapeError(f"AdaptiveLogSoftmaxWithLoss: input {input_.shape} and target {target_.shape}")
        head = reductions.log_softmax(self.head(x), 1)
        cluster = arithmetic.mul(target, 0)
        for end in self.cutoffs[:-1]:
            cluster = arithmetic.add(cluster, cast(arithmetic.ge(target, end), target.dtype))
        first = arithmetic.where(arithmetic.eq(cluster, 0), target, arithmetic.add(cluster, self.shortlist_size - 1))
        output = shape_ops.squeeze(gather_scatter.gather(head, 1, shape_ops.unsqueeze(first, 1)), 1)
        for at, pair in enumerate(self.tail):
            inside = arithmetic.eq(cluster, at + 1)
            place = arithmetic.where(inside, arithmetic.sub(target, self.cutoffs[at]), 0)
            scores = reductions.log_softmax(pair(x), 1)
            more = shape_ops.squeeze(gather_scatter.gather(scores, 1, shape_ops.unsqueeze(place, 1)), 1)
            output = arithmetic.add(output, arithmetic.where(inside, more, 0.0))
        loss = arithmetic.neg(reductions.mean(output))
        return ASMOutput(shape_ops.squeeze(output, 0) if single else output, loss)

    def log_prob(self, input: Tensor) -> Tensor:
        """The log-probabilities of all classes, (N, classes)."""
        head = reductions.log_softmax(self.head(input), 1)
        parts = [shape_ops.narrow(head, 1, 0, self.shortlist_size)]
        for at, pair in enumerate(self.tail):
            share = shape_ops.narrow(head, 1, self.shortlist_size + at, 1)
            parts.append(arithmetic.add(reductions.log_softmax(pair(input), 1), share))
        return join_and_pad.cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The most probable classes, (N,)."""
        return reductions.argmax(self.log_prob(input), 1)


class CrossMapLRN2d(Module):
    """`local_response_norm` of images, under an older name and with other defaults."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return functional.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
