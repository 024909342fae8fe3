"""The planner: a pure function from a segment and the placements of its inputs to a plan.

May import `cost`.
"""
