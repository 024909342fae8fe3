"""Fused chains on a GPU: one generated CUDA kernel each.

May import `fusion`, `kernels` and what is below them.
"""
