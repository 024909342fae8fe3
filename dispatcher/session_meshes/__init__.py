"""The mesh of each session: what its config asks for, which workers it gets, and how tensors follow when that changes.

May import `session_plans`, `jobs` and `state`.
"""
