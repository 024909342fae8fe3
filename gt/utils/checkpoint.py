"""Activation recomputation, under the name by which programs import it."""

from __future__ import annotations

from gt.client.autograd.checkpoint import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]
