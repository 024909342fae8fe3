"""Tensors in files: safetensors, and PyTorch's checkpoints.

May import `nn` and everything below it.
"""
