"""Collectives between GPUs by NCCL.

May import `device`.
"""
