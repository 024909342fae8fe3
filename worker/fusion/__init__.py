"""Fusion: which steps of a program become one chain. Pure logic, independent of the array module.

May import `base`. How a chain is computed is in `cpu` and `cuda`.
"""
