"""Fused chains on a CPU: NumPy functions over strips of rows, on several threads.

May import `fusion`, `kernels`, `program` and what is below them.
"""
