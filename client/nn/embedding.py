"""Embeddings: look-ups of rows in a table that is learnt."""

from __future__ import annotations

from typing import Any

from gt.client.functional import embeddings, functional
from gt.client.ops import creation
from gt.client.tensor import grad_mode
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

from . import init
from .module import Module
from .parameter import Parameter


def _refuse(name: str, scale_grad_by_freq: bool, sparse: bool) -> None:
    """Refuse the options that would make gradients of another kind."""
    if scale_grad_by_freq:
        raise NotImplementedError(f"{name}: scale_grad_by_freq is not there; weigh the loss instead")
    if sparse:
        raise NotImplementedError(f"{name}: gradients are dense; leave sparse=False")


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
        _refuse("Embedding", scale_grad_by_freq, sparse)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        if padding_idx is not None:
            padding_idx = embeddings.place_of("Embedding", padding_idx, num_embeddings)
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
            with grad_mode.no_grad():
                self.weight[self.padding_idx] = 0

    def forward(self, input: Tensor) -> Tensor:
        return functional.embedding(input, self.weight, self.padding_idx, self.max_norm, self.norm_type)

    def extra_repr(self) -> str:
        said = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            said += f", padding_idx={self.padding_idx}"
        return said if self.max_norm is None else f"{said}, max_norm={self.max_norm}"


class EmbeddingBag(Module):
    """For each bag of integers the sum, the mean or the largest of the rows that it lists; see `functional.embedding_bag`."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        _refuse("EmbeddingBag", scale_grad_by_freq, sparse)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.mode = mode
        self.include_last_offset = include_last_offset
        if padding_idx is not None:
            padding_idx = embeddings.place_of("EmbeddingBag", padding_idx, num_embeddings)
        self.padding_idx = padding_idx
        if _weight is None:
            self.weight = Parameter(creation.empty(num_embeddings, embedding_dim, dtype=dtype))
            self.reset_parameters()
        elif _weight.shape != (num_embeddings, embedding_dim):
            raise ShapeError(
                f"EmbeddingBag: a weight of shape {_weight.shape}, not ({num_embeddings}, {embedding_dim})"
            )
        else:
            self.weight = Parameter(_weight)

    @classmethod
    def from_pretrained(cls, embeddings: Any, freeze: bool = True, **options: Any) -> EmbeddingBag:
        """A table of given rows, which do not learn unless `freeze=False`."""
        rows = creation.as_tensor(embeddings)
        if rows.ndim != 2:
            raise ShapeError(f"from_pretrained: rows of shape (rows, size), not {rows.shape}")
        made = cls(rows.shape[0], rows.shape[1], _weight=rows, **options)
        made.weight.requires_grad = not freeze
        return made

    def reset_parameters(self) -> None:
        """Draw the rows anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with grad_mode.no_grad():
                self.weight[self.padding_idx] = 0

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return functional.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )

    def extra_repr(self) -> str:
        said = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.max_norm is not None:
            said += f", max_norm={self.max_norm}"
        said += f", mode={self.mode!r}"
        return said if self.padding_idx is None else f"{said}, padding_idx={self.padding_idx}"
