"""Loaders, under the path that PyTorch's files have for them."""

from __future__ import annotations

from gt.client.data.dataloader import DataLoader, default_collate, get_worker_info

__all__ = ["DataLoader", "default_collate", "get_worker_info"]
