"""Tensors in files: snapshots that workers write, safetensors, and PyTorch's checkpoints.

May import `optim` and everything below it, and `gt.snapshot_files`.
"""
