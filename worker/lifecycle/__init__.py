"""A worker process' start: how fast its device is, and restarts after failures.

May import `base`.
"""
