"""Kernels written in CUDA for what takes an array module many calls: rows of an attention's strip, steps of recurrent layers.

Each is source text and a class that launches it; without a compiler the callers compute step by step. Nothing here imports
the kernels that use it.
"""
