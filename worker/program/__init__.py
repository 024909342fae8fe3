"""Compiled plans: flat programs over slots.

May import `op_table`, `transfer`, `spill` and what is below them.
"""
