"""A worker's part in snapshots and marks: the threads that read and write their files.

May import `base` and `gt.snapshot_files`.
"""
