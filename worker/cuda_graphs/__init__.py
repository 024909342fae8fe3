"""CUDA graphs of hot programs.

May import `program`, `fusion.cuda` and what is below them.
"""
