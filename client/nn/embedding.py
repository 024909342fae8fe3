"""Look-ups: rows of a table, learnt."""

from __future__ import annotations

from typing import Any

from gt.client import creation, functional, modes, transformer
from gt.client.tensor import Tensor
from gt.errors import ShapeError

from . import init
from .module import Module
from .parameter import Parameter


def _refuse(max_norm: float | None, scale_grad_by_freq: bool, sparse: bool) -> None:
    """What would change a weight during a look-up, or make gradients of another kind, is not there."""
    if max_norm is not None:
        raise NotImplementedError(
            "Embedding: max_norm would write to the weight in forward(); normalise the rows after optimizer.step()"
        )
    if scale_grad_by_freq:
        raise NotImplementedError("Embedding: scale_grad_by_freq is not there; weigh the loss instead")
    if sparse:
        raise NotImplementedError("Embedding: gradients are dense; leave sparse=False")


class Embedding(Module):
    """Rows of a weight of shape (rows, size), listed by integers. They start normal, the row `padding_idx` as zeros."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        _refuse(max_norm, scale_grad_by_freq, sparse)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        if padding_idx is not None:
            padding_idx = transformer.place_of("Embedding", padding_idx, num_embeddings)
        self.padding_idx = padding_idx
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        if _weight is None:
            empty = creation.empty(num_embeddings, embedding_dim, dtype=dtype)
            self.weight = Parameter(empty, requires_grad=not _freeze)
            self.reset_parameters()
        else:
            if _weight.shape != (num_embeddings, embedding_dim):
                raise ShapeError(
                    f"Embedding: a weight of shape {_weight.shape}, not ({num_embeddings}, {embedding_dim})"
                )
            self.weight = Parameter(_weight, requires_grad=not _freeze)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:
        """A table of given rows, which do not learn unless `freeze=False`."""
        rows = creation.as_tensor(embeddings)
        if rows.ndim != 2:
            raise ShapeError(f"from_pretrained: rows of shape (rows, size), not {rows.shape}")
        return cls(
            rows.shape[0],
            rows.shape[1],
            padding_idx=padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            sparse=sparse,
            _weight=rows,
            _freeze=freeze,
        )

    def reset_parameters(self) -> None:
        """Draw the rows anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with modes.no_grad():
                self.weight[self.padding_idx] = 0

    def forward(self, input: Tensor) -> Tensor:
        return functional.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
