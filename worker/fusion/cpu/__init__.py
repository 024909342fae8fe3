"""Fused chains on a CPU: NumPy functions over strips of rows, on several threads.

May import `fusion`, `op_table`, `program` and what is below them.
"""
