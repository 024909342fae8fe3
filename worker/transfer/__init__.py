"""Moves between workers: schedules, pieces in flight, shared memory, links.

May import `base`, `device` and `nccl`.
"""
