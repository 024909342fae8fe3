"""The instruction set: ops, attributes, dtypes, shape rules, segments and plans, and their bytes.

May import `gt.sharding` (placements are part of plans) and `gt.errors`.
"""
