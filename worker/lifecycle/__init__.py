"""A worker process' start: how fast its device is, and restarts after device failures.

May import `base`.
"""
