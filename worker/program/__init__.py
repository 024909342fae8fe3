"""Compiled plans: flat programs over slots.

May import `kernels`, `transfer`, `spill` and what is below them.
"""
