"""The plans of each session: which one a run takes, and how a new one is prepared, fits into memory and is kept.

May import `jobs` and `state`. What a plan looks like is for `planner` to decide.
"""
