"""Linear algebra: decompositions, solvers and norms.

May import `ops` and `tensor`.
"""
