"""Runs within a worker's memory limit: eviction, prefetch, and runs step by step.

May import `program` and `spill`.
"""
