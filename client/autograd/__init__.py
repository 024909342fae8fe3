"""Automatic differentiation as programs ask for it: `backward`, `grad`, hooks, Jacobians, checkpointing, checks.

May import `functional` and what is below it. The tape itself is `tensor/tape.py`.
"""
