"""The worker's table of ops: one row for each op with all that the worker knows of it.

May import `kernels` and what is below it.
"""
