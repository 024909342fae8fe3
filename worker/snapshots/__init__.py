"""A worker's part in snapshots: the thread that reads and writes their files.

May import `base` and `gt.snapshot_files`.
"""
