"""Kernels: one implementation for each op over `xp`, which is NumPy or CuPy.

May import `base` and `device`.
"""
