"""PyTorch's export to ONNX, which GT has not: programs that only could export import this and run."""

from __future__ import annotations

from gt.torch_paths.instead import INSTEAD, refused

__all__ = ["export"]

export = refused("gt.onnx.export", INSTEAD["export"])
