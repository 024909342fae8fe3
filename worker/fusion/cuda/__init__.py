"""Fused chains on a GPU: one generated CUDA kernel each.

May import `fusion`, `op_table` and what is below them.
"""
