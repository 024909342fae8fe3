"""Execution of plans: programs, stored tensors, moves in progress, deferred checks, reports.

May import every other package but `lifecycle`. `worker/core.py` calls it.
"""
