"""Embeddings, under the path that PyTorch's files have for them."""

from __future__ import annotations

from gt.client.nn import Embedding, EmbeddingBag

__all__ = ["Embedding", "EmbeddingBag"]
