"""Memory that processes of one machine share in place of sending: pools, slabs, and the plan that a worker computes.

May import `gt.daemon` and `gt.errors`.
"""
